"""Bugs in `specialize`, `overlap` and `lower_rings`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from taskc.ir import build, nodes as ir
from taskc.passes import lower_rings, overlap, specialize
from tests.random_programs.mutations.mutation import (
    Mutation,
    Wrong,
    always,
    changed_statements,
    edited,
    half_of,
    rounded_down,
)


def _next_step(right: Any) -> Any:
    return lambda steps, k: right(steps, build.add(k, 1))


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
             overlap.Steps, "place", _next_step),
    Mutation("specialize", "the consumer reads the next slot", specialize, "modulo", _next_slot),
    Mutation("specialize", "the last step of a ragged loop is lost",
             overlap, "ceiling_divide", rounded_down),
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
             specialize, "_using",
             edited("""*statements[first:end],
        ir.RingStep("release", ring, number, loc=loc),""",
                    """ir.RingStep("release", ring, number, loc=loc),
        *statements[first:end],""")),
    Mutation("specialize", "the producer doesn't ask whether a slot is free",
             specialize, "_filling",
             edited('ir.RingStep("acquire", ring, number, loc=loc),', "")),
    Mutation("specialize", "loads may depend on what the consumer computes",
             overlap.Work, "needed_by", always(None)),
    Mutation("specialize", "the producer's loads are those of all the workers",
             specialize._Cutter, "by_producer",
             edited("workers=self.helpers", "workers=self.kernel.workers")),
    Mutation("specialize", "scalars in front of the loop stay with the consumer",
             specialize, "needed_scalars", always(())),
    Mutation("specialize", "each tile begins a ring anew",
             overlap.Steps, "number", edited("add(self.earlier, k)", "k")),
    Mutation("specialize", "how many steps there are may depend on the consumer",
             specialize, "cant_count_across", always(None)),
    Mutation("specialize", "scalars of a tile stay with the consumer",
             specialize._Cutter, "roles",
             edited("needed_scalars(tile.around, tile.produce)", "()")),
    Mutation("overlap", "loads may depend on the work",
             overlap.Work, "needed_by", always(None)),
    Mutation("overlap", "how many steps there are is asked again each time",
             overlap, "_pipeline",
             edited("reads_memory(pipeline.extent)", "False")),
    Mutation("overlap", "the first loads don't ask whether their step exists",
             overlap, "_overlapped",
             edited("[ir.If(less(k, steps.total), ir.Sequence(body), loc=loc)]", "[*body]")),
    Mutation("overlap", "copies don't ask whether their step exists",
             overlap, "_overlapped",
             edited("ir.If(less(k, steps.total), ir.Sequence(tuple(fetch)), loc=loc)",
                    "ir.Sequence(tuple(fetch))")),
    Mutation("overlap", "one step too few is loaded before the loop",
             overlap, "_overlapped", edited("index(stages - 1),", "index(max(1, stages - 2)),")),
    Mutation("overlap", "loads go to the slot that is read",
             overlap, "_overlapped", edited("ahead = add(k, stages - 1)", "ahead = add(k, stages)")),
    Mutation("overlap", "a slot is released before it is read",
             overlap, "_overlapped",
             edited('*issue(later, place), work, step("release", number)',
                    'step("release", number), *issue(later, place), work')),
    Mutation("overlap", "the work doesn't wait",
             overlap, "_overlapped",
             edited('step("wait", number), *issue(later, place), work', '*issue(later, place), work')),
    Mutation("overlap", "scalars of loads are those of the step at hand",
             overlap, "_at", edited("(*loads.scalars, *moves)", "tuple(moves)")),
    Mutation("overlap", "each tile begins a ring anew",
             overlap.Steps, "number", edited("add(self.earlier, k)", "k")),
    Mutation("overlap", "steps behind a tile's end are of the same tile",
             overlap.Steps, "place_ahead", edited("add(tile, ahead)", "tile")),
    Mutation("overlap", "steps behind a tile's end go on in its row",
             overlap.Steps, "place_ahead", edited("modulo(k, self.count)", "k")),
    Mutation("overlap", "how many steps there are may depend on the work",
             overlap, "cant_count_across", always(None)),
    Mutation("overlap", "scalars of loads are those of the tile at hand",
             overlap, "_tile_loop",
             edited("replace(loads, scalars=(*needed, *loads.scalars))", "loads")),
    Mutation("lower_rings", "no store is fenced off from bulk copies",
             lower_rings, "is_reused", always(False)),
    Mutation("lower_rings", "mbarriers are used before they are set up",
             lower_rings._Lowering, "ready",
             edited("""[ir.Barrier(scope, f"mbarrier.init of {full}, its first use", loc=loc)]""", "[]")),
    Mutation("lower_rings", "mbarriers are set up again while some wait for them",
             lower_rings._Lowering, "set_up",
             edited("if ring in self.again and counted.empty is not None", "if False")),
    Mutation("lower_rings", "a slot is free when one consumer is done",
             lower_rings, "counted_rings", edited("consumer.workers // group * cluster", "1")),
    Mutation("lower_rings", "a free slot has the parity of a full one",
             lower_rings._Lowering, "step", edited('ir.Binary("-", index(1), turn)', "turn")),
    Mutation("lower_rings", "parities change with every step",
             lower_rings._Lowering, "step", edited("floor_divide(step.step, ring.stages)", "step.step")),
    Mutation("lower_rings", "slots are never released",
             lower_rings._Lowering, "step",
             edited('case "release" | "leave" if counted.empty is not None:',
                    'case "leave" if counted.empty is not None:')),
    Mutation("lower_rings", "a box begins at its tensor's corner",
             lower_rings, "_boxes",
             edited("(substitute(i, zeros) for i in distant.indices)",
                    "(index(0) for i in distant.indices)")),
    Mutation("lower_rings", "copies are counted where the loop ends, not where they are issued",
             lower_rings._Lowering, "step",
             edited('ir.Do("cp.async.commit", (), loc=loc)', "ir.Sequence(())")),
)  # fmt: skip
