"""Bugs in `select`."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.passes import select, select_products, select_reductions, select_scans
from tests.random_programs.mutations.mutation import Mutation, edited


def _too_small_cover(right: Any) -> Any:
    def auto_map(shape: tuple[int, ...], **options: int) -> Any:
        full = right(shape, **options)
        return full.within(*(max(1, n - 1) for n in shape))

    return auto_map


def _zero_identity(right: Any) -> Any:
    def identity(operator: str, dtype: Any) -> ir.Constant:
        return right("+", dtype) if operator in ("min", "max", "*") else right(operator, dtype)

    return identity


def _from_left_to_right(
    operator: str, values: list[list[ir.Expression]], loc: Location
) -> tuple[list[ir.Statement], list[ir.Expression]]:
    first = [value for (value,) in values]
    return [], [reduce(lambda total, value: ir.Binary(operator, total, value, loc=loc), first)]


def _not_transposed(right: Any) -> Any:
    return lambda operand, *place: right(replace(operand, transposed=False), *place)


MUTATIONS = (
    Mutation("select", "a move's mapping misses the last row", select, "auto_map", _too_small_cover),
    Mutation("select", "minimum and product start from 0",
             select_reductions, "identity", _zero_identity),
    Mutation("select", "a transposed operand is read as it lies",
             select_products, "operand_element", _not_transposed),
    Mutation("select", "the tree's last levels come first",
             select, "reduction", edited("reversed([*enumerate(lanes)])", "enumerate(lanes)")),
    Mutation("select", "a sum starts from 0.0",
             select_scans, "identity", edited("-0.0 if is_float", "0.0 if is_float")),
    Mutation("select", "an exclusive scan is inclusive",
             select, "scan", edited("if scan.exclusive:", "if False:")),
    Mutation("select", "a scan's second slot takes in nothing",
             select_scans._Step, "chain", edited("index(1)", "index(2)")),
    Mutation("select", "a product goes down in k",
             select_products, "_fused",
             edited("ir.For(q, ZERO, index(mma.left.shape[1]), 1,",
                    "ir.For(q, index(mma.left.shape[1] - 1), index(-1), -1,")),
    Mutation("select", "a product is rounded before it is added",
             select_products, "_fused",
             edited("ir.Fused(a, b, total, loc=mma.loc)",
                    'ir.Binary("+", ir.Binary("*", a, b), total, loc=mma.loc)')),
)  # fmt: skip
