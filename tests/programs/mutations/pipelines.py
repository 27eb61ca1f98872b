"""Bugs in `specialize`, `overlap` and `lower_rings`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from taskc.ir import build, nodes as ir
from taskc.passes import lower_rings, overlap, specialize
from tests.programs.mutations.mutation import (
    Mutation,
    Wrong,
    always,
    changed_statements,
    edited,
    half_of,
    rounded_down,
)


def _next_step(right: Any) -> Any:
    def fetch_step(pipeline: Any, loads: Any, slots: Any, k: Any, *rest: Any) -> Any:
        return right(pipeline, loads, slots, build.add(k, 1), *rest)

    return fetch_step


def _next_slot(right: Any) -> Any:
    return lambda k, stages: right(build.add(k, 1), stages)


def _work_in_next_slot(right: Any) -> Any:
    def index_leading(node: Any, rings: Any, slot: Any) -> Any:
        if isinstance(node, ir.Sequence) and rings:
            (stages, *_) = next(iter(rings.values())).shape
            slot = build.modulo(build.add(slot, 1), stages)
        return right(node, rings, slot)

    return index_leading


def _changed_do(operation: str, change: Callable[[ir.Do], ir.Statement]) -> Wrong:
    """The method that makes statements, with one operation made wrong."""

    def changed(node: ir.Statement) -> ir.Statement | None:
        is_meant = isinstance(node, ir.Do) and node.operation == operation
        return change(node) if is_meant else None  # type: ignore[arg-type]

    return changed_statements(changed)


def _one_more(do: ir.Do) -> ir.Statement:
    (count,) = do.operands
    return replace(do, operands=(build.add(count, 1),))


def _other_parity(do: ir.Do) -> ir.Statement:
    place, parity = do.operands
    return replace(do, operands=(place, build.subtract(1, parity)))


MUTATIONS = (
    Mutation("specialize", "the producer loads the next step",
             specialize, "fetch_step", _next_step),
    Mutation("specialize", "the consumer reads the next slot", specialize, "modulo", _next_slot),
    Mutation("specialize", "the last step of a ragged loop is lost",
             specialize, "ceiling_divide", rounded_down),
    Mutation("overlap", "the work reads the next slot",
             overlap, "index_leading", _work_in_next_slot),
    Mutation("overlap", "the last step of a ragged loop is lost",
             overlap, "ceiling_divide", rounded_down),
    Mutation("overlap", "steps count as elements",
             overlap, "multiply", lambda right: lambda k, by: k),
    Mutation("lower_rings", "one group of copies too many may be in flight",
             lower_rings._Lowering, "step", _changed_do("cp.async.wait", _one_more)),
    Mutation("lower_rings", "the wrong parity is waited for",
             lower_rings._Lowering, "step", _changed_do("mbarrier.wait", _other_parity)),
    Mutation("lower_rings", "half of the bytes are expected",
             lower_rings, "_slot_bytes", half_of),
    Mutation("specialize", "a slot is released before it is read",
             specialize._Cutter, "cut",
             edited("""index_leading(work, slots, modulo(k, pipeline.stages)),
                ir.RingStep("release", ring, k, loc=loc),""",
                    """ir.RingStep("release", ring, k, loc=loc),
                index_leading(work, slots, modulo(k, pipeline.stages)),""")),
    Mutation("specialize", "the producer doesn't ask whether a slot is free",
             specialize._Cutter, "cut",
             edited('ir.RingStep("acquire", ring, k, loc=loc),', "")),
    Mutation("specialize", "loads may depend on what the consumer computes",
             overlap.Work, "needed_by", always(None)),
    Mutation("specialize", "the producer's loads are those of all the workers",
             specialize._Cutter, "by_producer",
             edited("workers=self.target.warp", "workers=self.kernel.workers")),
    Mutation("specialize", "scalars in front of the loop stay with the consumer",
             specialize, "needed_scalars", always(())),
    Mutation("overlap", "loads may depend on the work",
             overlap.Work, "needed_by", always(None)),
    Mutation("overlap", "how many steps there are is asked again each time",
             overlap, "pipelined",
             edited("any(isinstance(node, ir.Read) for node in walk(pipeline.extent))", "False")),
    Mutation("overlap", "the first loads don't ask whether their step exists",
             overlap, "pipelined", edited("[ir.If(less(k, count), ir.Sequence(body), loc=loc)]", "[*body]")),
    Mutation("overlap", "copies don't ask whether their step exists",
             overlap, "pipelined",
             edited("ir.If(less(k, count), ir.Sequence(tuple(fetch(k))), loc=loc)",
                    "ir.Sequence(tuple(fetch(k)))")),
    Mutation("overlap", "one step too few is loaded before the loop",
             overlap, "pipelined", edited("index(stages - 1), 1,", "index(max(1, stages - 2)), 1,")),
    Mutation("overlap", "loads go to the slot that is read",
             overlap, "pipelined", edited("later = add(k, stages - 1)", "later = add(k, stages)")),
    Mutation("overlap", "a slot is released before it is read",
             overlap, "pipelined",
             edited('*issue(later), work, step("release", k)', 'step("release", k), *issue(later), work')),
    Mutation("overlap", "the work doesn't wait",
             overlap, "pipelined",
             edited('step("wait", k), *issue(later), work', '*issue(later), work')),
    Mutation("overlap", "scalars of loads are those of the step at hand",
             overlap, "_with_scalars", edited("(*loads.scalars, *moves)", "tuple(moves)")),
    Mutation("lower_rings", "no store is fenced off from bulk copies",
             lower_rings, "_is_reused", always(False)),
    Mutation("lower_rings", "mbarriers are used before they are set up",
             lower_rings._Lowering, "set_up",
             edited("""ir.Barrier(everyone, f"mbarrier.init of {counted.full.name}, its first use", loc=loc),""",
                    "")),
    Mutation("lower_rings", "a slot is free when one consumer is done",
             lower_rings, "_counted_rings", edited("arrivals, consumer.workers", "arrivals, 1")),
    Mutation("lower_rings", "a free slot has the parity of a full one",
             lower_rings._Lowering, "step", edited('ir.Binary("-", index(1), turn)', "turn")),
    Mutation("lower_rings", "parities change with every step",
             lower_rings._Lowering, "step", edited("floor_divide(step.step, ring.stages)", "step.step")),
    Mutation("lower_rings", "slots are never released",
             lower_rings._Lowering, "step",
             edited('case "release" if counted.empty is not None:', 'case "release" if False:')),
    Mutation("lower_rings", "a box begins at its tensor's corner",
             lower_rings._Lowering, "box_copy",
             edited("tuple(substitute(i, zeros) for i in read.indices)",
                    "tuple(index(0) for i in read.indices)")),
    Mutation("lower_rings", "copies are counted where the loop ends, not where they are issued",
             lower_rings._Lowering, "step",
             edited('ir.Do("cp.async.commit", (), loc=loc)', "ir.Sequence(())")),
)  # fmt: skip
