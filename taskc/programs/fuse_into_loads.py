"""fuse_into_loads: what a kernel reads of a computation's result, it computes: its prologue.

    temporary t: f32[64, 48]
    scaled(x, out=t)            scaled: out[i, j] = x[i, j] * 2.0
    sums(t, out=y)              sums: ... total[i] += t[row + i, col]
->
    scaled_sums(x, out=y)       ... total[i] += x[row + i, col] * 2.0

How often the kernel reads each element is counted: a row's sum reads it once, a product's operand is read by many
blocks. The operations that are repeated are weighed against the bytes that nobody moves then. What an instruction
reads from memory by itself, or a bulk copy brings, stays memory. What is made is proved again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Kernel, Statement, Tensor, Variable
from taskc.ir.program import Call, Program
from taskc.ir.rewrite import map_children, replace_tensors, substitute, tensors_of, walk
from taskc.programs.calls import Calls, Joined, computation_of, is_free_computation, name_of
from taskc.programs.fusion_cost import is_worth_fusing
from taskc.programs.indices import seen_in
from taskc.programs.pairs import Pairs, UnfusedError, is_fusible_kernel
from taskc.programs.program_sizes import over_program_sizes
from taskc.programs.reads import reads_of
from taskc.programs.work import elements_of, is_small, is_worth, operations_of


def fuse_into_loads(program: Program, lanes: int = 16) -> Program:
    """The program with computations in the loads of the kernels that read them.

    lanes  of a processor's vectors; 0 where a prologue may cost a bulk copy
    """
    calls = Calls(program)
    pairs = Pairs()
    for position, call in calls.each():
        if is_free_computation(call):
            _fuse(calls, pairs, position, call, lanes)
    return calls.finished()


def _fuse(calls: Calls, pairs: Pairs, position: int, added: Call, lanes: int) -> None:
    made = added.arguments[-1]
    assert isinstance(made, Tensor)
    readers = calls.readers.get(made, set())
    if made not in calls.temporaries or not calls.written_once(made) or len(readers) != 1:
        return
    (reader,) = readers
    call = calls.call(reader)
    if call is None or reader < position or not is_fusible_kernel(call):
        return
    if not calls.may_move(position, reader) or calls.disturbs(reader, position, made):
        return
    read = {item: calls.view(given) for item, given in calls.reading(call, made)}
    if any(item.role != "in" for item in read):
        return
    offsets = {item: (view.tensor.shape, view.offset) for item, view in read.items()}

    def fused() -> tuple[Kernel, Joined]:
        return _Prologue(call, added, offsets, lanes).made()

    found = pairs.call(calls, call, added, "loads", fused)
    if found is not None:
        calls.put(reader, found)
        calls.put(position, None)


class _Prologue:
    """A kernel with a computation in its reads of some tensors.

    read  the tensors, as the kernel sees them, each with the shape of what it is given and where that starts in the
          computation's output
    """

    def __init__(
        self,
        call: Call,
        added: Call,
        read: dict[Tensor, tuple[tuple[int | Expression, ...], int | Expression]],
        lanes: int,
    ) -> None:
        self.computation = computation = computation_of(added)
        self.kernel, own = over_program_sizes(call)
        self.lanes = lanes
        self.read = {own[item]: given for item, given in read.items()}
        gone = frozenset(self.read), frozenset([computation.output])
        self.joined = Joined(call, self.kernel.parameters, added, gone)
        value = replace_tensors(computation.value, self.joined.tensors_of_added)
        self.value = substitute(value, self.joined.scalars_of_added)

    def made(self) -> tuple[Kernel, Joined]:
        kernel, computation = self.kernel, self.computation
        self._check_cost()
        text = f"`{computation.name}` is computed where it is read"
        made = replace(
            kernel,
            name=name_of(computation.name, kernel.name),
            parameters=self.joined.parameters(),
            dimensions=tuple(dict.fromkeys([*kernel.dimensions, *computation.dimensions])),
            body=self._put_into(kernel.body),
            notes=(*kernel.notes, (text, computation.loc)),
        )
        if self.lanes and not is_worth_fusing(
            kernel, made, computation, computation.output, self.lanes
        ):
            raise UnfusedError("its reads cost more than the memory between the two")
        return made, self.joined

    def _check_cost(self) -> None:
        wanted = frozenset(self.read)
        for node in walk(self.kernel.body):
            if not isinstance(node, ir.Read) and not wanted.isdisjoint(tensors_of(node)):
                raise UnfusedError("an instruction reads it from memory")
        if not self.lanes:
            self._check_copies(wanted)
            self._check_repeated(wanted)

    def _check_repeated(self, wanted: frozenset[Tensor]) -> None:
        made = self.computation.output
        evaluations = reads_of(self.kernel, wanted)
        repeated = max(0, evaluations - elements_of(made.shape))
        if not is_worth(repeated, operations_of(self.value), made, 2):
            raise UnfusedError(
                f"each element is read {evaluations / elements_of(made.shape):.0f} times"
            )

    def _check_copies(self, wanted: frozenset[Tensor]) -> None:
        for node in walk(self.kernel.body):
            if isinstance(node, ir.Pipeline):
                for below in walk(node.body):
                    if isinstance(below, ir.Read) and below.tensor in wanted:
                        raise UnfusedError("it is copied while other work is done")

    def _put_into(self, body: Statement) -> Statement:
        made: dict[int, tuple[Any, Any]] = {}

        def visit(node: Any) -> Any:
            if isinstance(node, Variable | ir.Constant):
                return node
            if id(node) not in made:
                inner = map_children(node, visit)
                if isinstance(inner, ir.Read) and inner.tensor in self.read:
                    inner = self._element(inner)
                made[id(node)] = node, inner
            return made[id(node)][1]

        found: Statement = visit(body)
        return found

    def _element(self, read: ir.Read) -> Expression:
        shape, offset = self.read[read.tensor]
        at = seen_in(read.indices, read.tensor.shape, shape)
        at = at and seen_in(at, shape, self.computation.output.shape, offset)
        if at is None:
            raise UnfusedError("its shape is another one, by more than constants")
        value = substitute(self.value, dict(zip(self.computation.variables, at, strict=True)))
        if not is_small(value):
            raise UnfusedError("what would be read has too many parts")
        return value
