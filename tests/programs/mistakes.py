"""Mistakes to plant in fusion, each with what shows it: a lookalike, or the number of a random program."""

from __future__ import annotations

from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.rewrite import map_children
from taskc.programs import (
    calls,
    fuse_computations,
    fuse_into_kernels,
    indices,
    pairs,
    pipeline,
)
from tests.random_programs.mutations.mutation import Mutation, always, changed_result, edited


def _contracted(value: Any) -> Any:
    """A sum of a product as one operation, rounded once."""
    value = map_children(value, _contracted)
    match value:
        case ir.Binary(operator="+", left=ir.Binary(operator="*") as product, right=addend):
            if value.dtype.is_float:
                return ir.Fused(product.left, product.right, addend)
    return value


_PRODUCER = fuse_computations._Producer
_ELEMENTS = fuse_computations._Elements
_EPILOGUE = fuse_into_kernels._Epilogue
_PROLOGUE = fuse_into_kernels._Prologue

MISTAKES = [
    Mutation("calls", "any call may move", calls.Calls, "may_move", always(True)),
    Mutation(
        "calls", "what is written between is read later", calls.Calls, "may_move",
        edited("any(is_touched(memory, self.writers) for memory in self.reads(call)) or", ""),
    ),
    Mutation("calls", "no call disturbs another", calls.Calls, "disturbs", always(False)),
    Mutation(
        "calls", "several calls may write", calls.Calls, "written_once",
        edited("and len(self.writers.get(tensor, ())) == 1", ""),
    ),
    Mutation(
        "calls", "a view is memory of its own", calls.Calls, "memory",
        edited("tensor if view is None else view.of", "tensor"),
    ),
    Mutation(
        "calls", "what is the same is seen by the shape", calls._Taken, "is_as",
        edited("and self.given is given", ""),
    ),
    Mutation(
        "fuse_computations", "what stays apart is fused", fuse_computations, "is_free_computation",
        edited("not call.apart and", ""),
    ),
    Mutation(
        "fuse_computations", "an output need not be stored", _PRODUCER, "fuse",
        edited("output not in self.calls.temporaries or", ""),
    ),
    Mutation(
        "fuse_computations", "parts start at the first element", _PRODUCER, "merged",
        edited("self.calls.view(given).offset for", "0 for"),
    ),
    Mutation(
        "fuse_computations", "an element is as good as another", _ELEMENTS, "at",
        edited("element = self.made.get(key)", "element = next(iter(self.made.values()), None)"),
    ),
    Mutation(
        "fuse_computations", "products and sums become one operation", _ELEMENTS, "put_into",
        changed_result(_contracted),
    ),
    Mutation("fuse_computations", "all is cheap", _PRODUCER, "is_cheap", always(True)),
    Mutation("indices", "a part starts at the whole", indices, "_part",
        edited("_digits(add(flat_index(at[:own], shape[:own]), first)", "_digits(flat_index(at[:own], shape[:own])"),
    ),
    Mutation("indices", "all is at the first element", indices, "_regrouped",
        edited("regrouped += digits", "regrouped += [ZERO] * len(digits)"),
    ),
    Mutation("fuse_into_stores", "all is in order", _EPILOGUE, "_is_in_order", always(True)),
    Mutation(
        "fuse_into_stores", "only the first read counts", _EPILOGUE, "_axes",
        edited("or any(n.indices != self.reads[0].indices for n in self.reads)", ""),
    ),
    Mutation(
        "fuse_into_stores", "neighbours may go apart", _EPILOGUE, "_axes",
        edited("if long and long[-1] != max(long):", "if False:"),
    ),
    Mutation(
        "fuse_into_stores", "what others read isn't stored", fuse_into_kernels, "_fused",
        edited("is_kept = given not in calls.temporaries or calls.readers[given] != {reader}", "is_kept = False"),
    ),
    Mutation(
        "fuse_into_stores", "another input is read at other indices", _EPILOGUE, "_alike",
        edited("and all(self._is_in_order(n) for n in reads if n.tensor is tensor)", ""),
    ),
    Mutation(
        "fuse_into_loads", "others that read are forgotten", fuse_into_kernels, "_fuse",
        edited("or len(readers) != 1", "or not readers"),
    ),
    Mutation(
        "fuse_into_loads", "parts start at the first element", _PROLOGUE, "_with_elements",
        edited("self.computation.output.shape, offset)", "self.computation.output.shape, 0)"),
    ),
    Mutation("fuse_into_loads", "all is cheap", fuse_into_kernels, "is_worth_fusing", always(True)),
    Mutation("pairs", "pairs are alike by their callees", pairs, "_pattern", always(())),
    Mutation(
        "bodies", "what lasts longer is the body's own", calls, "_own",
        edited("if naming[tensor] == 1", ""),
    ),
    Mutation(
        "calls", "rows are apart if they start apart", calls, "_ends_before",
        edited("between >= 0", "between > -product(one.tensor.shape).value"),
    ),
    Mutation("drop_dead", "what a call reads is dead", pipeline, "drop_dead",
        edited("alive |= calls.reads(step)", "pass"),
    ),
]  # fmt: skip
