"""fuse_into_loads: a computation becomes the prologue of the kernel that reads its result.

    temporary t: f32[64, 48]
    scaled(x, out=t)            scaled: out[i, j] = x[i, j] * 2.0
    sums(t, out=y)              sums: ... total[i] += t[row + i, col]
->
    scaled_sums(x, out=y)       ... total[i] += x[row + i, col] * 2.0

The reads of each element are counted: a row's sum reads it once, and many blocks read a product's operand. Repeated
operations are weighed against the memory traffic saved. Operands that an instruction or a bulk copy reads from memory
stay in memory. The fused kernel is proved again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Kernel, Statement, Tensor, Variable
from taskc.ir.rewrite import map_children, replace_tensors, substitute, tensors_of, walk
from taskc.programs.calls import Calls, Joined, computation_of, is_free_computation, name_of
from taskc.programs.fusion_cost import is_worth_fusing
from taskc.programs.indices import seen_in
from taskc.programs.ir import Call, Program
from taskc.programs.pairs import Pairs, UnfusedError, is_fusible_kernel
from taskc.programs.program_sizes import over_program_sizes
from taskc.programs.traffic import elements_of, is_small, is_worth, operations_of, reads_of


def fuse_into_loads(program: Program, lanes: int = 16) -> Program:
    """The program with computations fused into the loads of the kernels that read them.

    lanes  of a processor's vectors; 0 on GPUs, where a prologue may rule out a bulk copy
    """
    calls = Calls(program)
    pairs = Pairs()
    for position, call in calls.each():
        if is_free_computation(call):
            _fuse(calls, pairs, position, call, lanes)
    return calls.finished()


def _fuse(calls: Calls, pairs: Pairs, position: int, added: Call, lanes: int) -> None:
    output = added.arguments[-1]
    assert isinstance(output, Tensor)
    readers = calls.readers.get(output, set())
    if output not in calls.temporaries or not calls.written_once(output) or len(readers) != 1:
        return
    (reader,) = readers
    call = calls.call(reader)
    if call is None or reader < position or not is_fusible_kernel(call):
        return
    if not calls.may_move(position, reader) or calls.disturbs(reader, position, output):
        return
    read = {item: calls.view(given) for item, given in calls.reading(call, output)}
    if any(item.role != "in" for item in read):
        return
    offsets = {item: (view.tensor.shape, view.offset) for item, view in read.items()}

    def fused() -> tuple[Kernel, Joined]:
        return _Prologue(call, added, offsets, lanes).made()

    fused_call = pairs.call(calls, call, added, "loads", fused)
    if fused_call is not None:
        calls.put(reader, fused_call)
        calls.put(position, None)


class _Prologue:
    """A kernel with a computation substituted in its reads of some tensors.

    read  the kernel's tensors, each with the shape of its argument, and the argument's offset in the computation's
          output
    """

    def __init__(
        self,
        call: Call,
        added: Call,
        read: dict[Tensor, tuple[tuple[int | Expression, ...], int | Expression]],
        lanes: int,
    ) -> None:
        self.computation = computation = computation_of(added)
        self.kernel, new_tensors = over_program_sizes(call)
        self.lanes = lanes
        self.read = {new_tensors[item]: given for item, given in read.items()}
        gone = frozenset(self.read), frozenset([computation.output])
        self.joined = Joined(call, self.kernel.parameters, added, gone)
        value = replace_tensors(computation.value, self.joined.tensors_of_added)
        self.value = substitute(value, self.joined.scalars_of_added)

    def made(self) -> tuple[Kernel, Joined]:
        kernel, computation = self.kernel, self.computation
        self._check_cost()
        text = f"`{computation.name}` is computed where it is read"
        fused = replace(
            kernel,
            name=name_of(computation.name, kernel.name),
            parameters=self.joined.parameters(),
            dimensions=tuple(dict.fromkeys([*kernel.dimensions, *computation.dimensions])),
            body=self._put_into(kernel.body),
            notes=(*kernel.notes, (text, computation.loc)),
        )
        if self.lanes and not is_worth_fusing(
            kernel, fused, computation, computation.output, self.lanes
        ):
            raise UnfusedError("its reads cost more than the memory between the two")
        return fused, self.joined

    def _check_cost(self) -> None:
        wanted = frozenset(self.read)
        for node in walk(self.kernel.body):
            if not isinstance(node, ir.Read) and not wanted.isdisjoint(tensors_of(node)):
                raise UnfusedError("an instruction reads it from memory")
        if not self.lanes:
            self._check_copies(wanted)
            self._check_repeated(wanted)

    def _check_repeated(self, wanted: frozenset[Tensor]) -> None:
        output = self.computation.output
        evaluations = reads_of(self.kernel, wanted)
        repeated = max(0, evaluations - elements_of(output.shape))
        if not is_worth(repeated, operations_of(self.value), output, 2):
            raise UnfusedError(
                f"each element is read {evaluations / elements_of(output.shape):.0f} times"
            )

    def _check_copies(self, wanted: frozenset[Tensor]) -> None:
        for node in walk(self.kernel.body):
            if isinstance(node, ir.Pipeline):
                for below in walk(node.body):
                    if isinstance(below, ir.Read) and below.tensor in wanted:
                        raise UnfusedError("it is copied while other work is done")

    def _put_into(self, body: Statement) -> Statement:
        replaced: dict[int, tuple[Any, Any]] = {}

        def visit(node: Any) -> Any:
            if isinstance(node, Variable | ir.Constant):
                return node
            if id(node) not in replaced:
                inner = map_children(node, visit)
                if isinstance(inner, ir.Read) and inner.tensor in self.read:
                    inner = self._element(inner)
                replaced[id(node)] = node, inner
            return replaced[id(node)][1]

        result: Statement = visit(body)
        return result

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
