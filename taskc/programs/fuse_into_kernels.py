"""fuse_into_stores: a computation on a kernel's result becomes the kernel's epilogue.

    temporary t: f32[64, 48]
    product(a, b, out=t)            product: ... t[row + i, col + j] = acc[i, j]
    moved(t, c, out=y)              moved: out[i, j] = max(t[i, j] + c[j], 0.0)
->
    product_moved(a, b, c, out=y)   ... y[row + i, col + j] = max(acc[i, j] + c[col + j], 0.0)

A `tc.out` is proved to be stored exactly once, and never read. So where the computation reads one element for each of
its own, at indices that are its variables in some order, it can be computed where that element is stored. The memory
may be reshaped in between. The fused kernel is proved; if that fails, the calls aren't fused. Where all of its accesses
are at indices that the kernel stores at, its proof is that of the kernel, and is left to when it is lowered. A result
that other calls read is also stored.

A store of a whole tile is kept, and stores another tile, which is computed in a phase before it.

fuse_into_loads: a computation becomes the prologue of the kernel that reads its result.

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
from taskc.ir.build import ZERO, guarded
from taskc.ir.extents import are_as_many
from taskc.ir.nodes import Expression, Kernel, Statement, Tensor, Variable
from taskc.ir.rewrite import (
    all_below,
    copy,
    map_statements,
    rewritten,
    substitute,
    tensors_of,
    walk,
)
from taskc.ir.types import boolean
from taskc.programs.calls import Calls, Joined, computation_of, is_free_computation, name_of
from taskc.programs.fusion_cost import is_worth_fusing
from taskc.programs.indices import Indices, bijection, is_same_number, seen_in
from taskc.programs.inlining import over_program_sizes
from taskc.programs.ir import Call, Program
from taskc.programs.pairs import Pairs, UnfusedError, is_fusible_kernel, proved
from taskc.programs.rounding import is_rounded, without_rounding
from taskc.programs.traffic import elements_of, is_small, is_worth, operations_of, reads_of


def fuse_into_stores(program: Program, lanes: int = 16) -> Program:
    """The program with computations fused into the stores of the kernels whose results they read.

    lanes  of a processor's vectors; 0 on GPUs, where the cost isn't weighed
    """
    calls = Calls(program)
    pairs = Pairs()
    for position, _ in calls.each():
        while _fuse_one(calls, pairs, position, lanes):
            pass
    return calls.finished()


def _fuse_one(calls: Calls, pairs: Pairs, position: int, lanes: int) -> bool:
    """Fuse one computation into the kernel called at a position; returns whether it did."""
    call = calls.call(position)
    if call is None or not is_fusible_kernel(call):
        return False
    for parameter, given in zip(call.callee.parameters, call.arguments, strict=True):
        if not isinstance(parameter, Tensor) or parameter.role != "out":
            continue
        assert isinstance(given, Tensor)
        if calls.written_once(given):
            for reader in sorted(calls.readers.get(given, ())):
                if _fused(calls, pairs, position, parameter, given, reader, lanes):
                    return True
    return False


def _fused(
    calls: Calls,
    pairs: Pairs,
    position: int,
    stored: Tensor,
    given: Tensor,
    reader: int,
    lanes: int,
) -> bool:
    """Fuse one reader into the stores of a kernel, at the position of one of the two."""
    call, added = calls.call(position), calls.call(reader)
    if call is None or added is None or not is_free_computation(added) or reader < position:
        return False
    read = calls.reading(added, given)
    if len(read) != 1 or calls.disturbs(position, reader, given):
        return False
    if calls.disturbs(reader, position, given):
        return False
    if calls.may_move(position, reader):
        place, empty = reader, position
    elif calls.may_move(reader, position):
        place, empty = position, reader
    else:
        return False
    ((seen, view),) = read
    if calls.view(view).offset != 0:
        return False
    is_kept = given not in calls.temporaries or calls.readers[given] != {reader}

    def make() -> tuple[Kernel, Joined]:
        return _Epilogue(call, stored, added, seen, is_kept, lanes).made()

    fused_call = pairs.call(calls, call, added, (id(stored), is_kept), make)
    if fused_call is None:
        return False
    calls.put(empty, None)
    calls.put(place, fused_call)
    return True


class _Epilogue:
    """A kernel with a computation in its stores to one tensor.

    stored       the tensor that the kernel stores to, in the kernel's shape
    read         the computation's parameter for it
    is_in_order  each output element reads the element of the same row-major index
    axes         otherwise the axis of `read` for each of the computation's variables
    as_stored    the output and inputs that the kernel accesses in the shape of `stored`, at the same indices
    """

    def __init__(
        self, call: Call, stored: Tensor, added: Call, read: Tensor, is_kept: bool, lanes: int
    ) -> None:
        self.computation = computation = computation_of(added)
        self.kernel, tensors = over_program_sizes(call)
        self.stored = stored_parameter = tensors[stored]
        self.read, self.is_kept, self.lanes = read, is_kept, lanes
        gone = frozenset(() if is_kept else (stored_parameter,)), frozenset([read])
        self.joined = Joined(call, self.kernel.parameters, added, gone)
        self.value = self.joined.value(computation)
        self.reads = [n for n in walk(self.value) if isinstance(n, ir.Read) and n.tensor is read]
        output = self.joined.of_added[computation.output]
        assert isinstance(output, Tensor)
        self.output = output
        self.is_in_order = all(map(self._is_in_order, self.reads))
        self.axes = {} if self.is_in_order else self._axes()
        layouts = computation.output.layout, stored_parameter.layout
        alike = (
            [self.output, *self._alike()] if self.is_in_order and layouts == (None, None) else []
        )
        self.as_stored = {tensor: self._as_stored(tensor) for tensor in alike}
        self.is_proved = self._keeps_indices()

    def made(self) -> tuple[Kernel, Joined]:
        kernel, computation = self.kernel, self.computation
        if not are_as_many(self.stored.argument_shape, self.read.shape):
            raise UnfusedError("it reads a part of what is stored")
        for node in walk(kernel.body):
            is_store = isinstance(node, ir.Store | ir.Move) and node.tensor is self.stored
            if self.stored in tensors_of(node) and not is_store:
                raise UnfusedError(f"'{self.stored.name}' is more than stored to")
        text = f"`{computation.name}` is computed where `{self.stored.name}` is stored"
        fused = replace(
            kernel,
            name=name_of(kernel.name, computation.name),
            parameters=self.joined.parameters(self.as_stored),
            dimensions=tuple(dict.fromkeys([*kernel.dimensions, *computation.dimensions])),
            body=self.statement(kernel.body),
            notes=(*kernel.notes, (text, computation.loc)),
        )
        if self.lanes and not is_worth_fusing(kernel, fused, computation, self.stored, self.lanes):
            raise UnfusedError("where it is stored it costs more than the memory between the two")
        return fused if self.is_proved else proved(fused), self.joined

    def _keeps_indices(self) -> bool:
        """Whether the fused kernel is surely proved when it is lowered, if its kernel would be.

        It stores at the kernel's own indices, in a tensor with the same extents; and at these, or at constants, it
        reads tensors that nothing writes, on no other condition.
        """
        output = self.computation.output
        shape = output.shape if self.is_in_order else self.read.shape
        extents: dict[Expression, int | Expression] = dict(
            zip(self.computation.variables, output.shape, strict=True)
        )

        def is_inside(read: ir.Read) -> bool:
            return read.tensor.role == "in" and all(
                extents.get(place) == extent
                if isinstance(place, Variable)
                else place == ZERO and isinstance(extent, int) and extent > 0
                for place, extent in zip(read.indices, read.tensor.shape, strict=True)
            )

        nodes = [*walk(self.value)]
        others = [n for n in nodes if isinstance(n, ir.Read) and n.tensor is not self.read]
        has_conditions = any(
            isinstance(node, ir.Select) or (isinstance(node, ir.Binary) and node.dtype is boolean)
            for node in nodes
        )
        return (
            shape == self.stored.shape
            and not (others and has_conditions)
            and all(map(is_inside, others))
            and not any(node.tensor is self.stored for node in all_below(self.kernel.body, ir.Move))
        )

    # The output element that is computed from each stored element.

    def _is_in_order(self, read: ir.Read) -> bool:
        """Whether a read's row-major index equals that of the output element."""
        variables, shape = self.computation.variables, self.computation.output.shape
        return are_as_many(read.tensor.shape, shape) and is_same_number(
            read.indices, read.tensor.shape, variables, shape
        )

    def _axes(self) -> dict[Variable, int]:
        """The axis of `read` for each variable of the computation."""
        variables, shape = self.computation.variables, self.read.shape
        axes = bijection(self.reads[0].indices, shape, variables)
        if axes is None or any(n.indices != self.reads[0].indices for n in self.reads):
            raise UnfusedError("not each element of the output has one of its own that it reads")
        for variable, extent in zip(variables, self.computation.output.shape, strict=True):
            if extent != (shape[axes[variable]] if variable in axes else 1):
                raise UnfusedError("it reads some elements several times, or not at all")
        long = [axes[variable] for variable in variables if variable in axes]
        long = [axis for axis in long if shape[axis] != 1]
        if long and long[-1] != max(long):
            raise UnfusedError("its last axis is another, and neighbours would be stored apart")
        return axes

    def _as_stored(self, tensor: Tensor) -> Tensor:
        """A tensor with as many elements as the output, in the shape in which the kernel stores."""
        shape = self.stored.shape
        return replace(tensor, shape=shape, given=None if tensor.shape == shape else tensor.shape)

    def _alike(self) -> list[Tensor]:
        """The inputs that are read only at the output's own row-major index."""
        reads = [node for node in walk(self.value) if isinstance(node, ir.Read)]
        added = {*self.joined.parameters()} - {*self.kernel.parameters}
        tensors = dict.fromkeys([n.tensor for n in reads if n.tensor in added])
        return [
            tensor
            for tensor in tensors
            if tensor.layout is None
            and all(self._is_in_order(n) for n in reads if n.tensor is tensor)
        ]

    def places(self, at: Indices) -> dict[Variable, Expression]:
        """The computation's variables for the element stored at some indices; none if its shape can't be mapped."""
        variables = self.computation.variables
        shape = self.computation.output.shape if self.is_in_order else self.read.shape
        indices = seen_in(at, self.stored.shape, shape)
        if indices is None:
            return {}
        if self.is_in_order:
            return dict(zip(variables, indices, strict=True))
        return {
            variable: indices[self.axes[variable]] if variable in self.axes else ZERO
            for variable in variables
        }

    def element(self, at: Indices, value: Expression) -> tuple[Tensor, Indices, Expression]:
        """The tensor, indices and value of the output element computed from the one stored at some indices."""
        places, variables = self.places(at), self.computation.variables

        def put_in(node: Expression) -> Expression:
            if isinstance(node, Variable):
                return places.get(node, node)
            if isinstance(node, ir.Read) and node.tensor is self.read:
                return value
            if isinstance(node, ir.Read) and node.tensor in self.as_stored:
                return replace(node, tensor=self.as_stored[node.tensor], indices=at)
            return without_rounding(node) if self.computation.unrounded else node

        result = rewritten(self.value, put_in)
        is_stored_alike = self.output in self.as_stored
        if not places and (not is_stored_alike or any(node in variables for node in walk(result))):
            raise UnfusedError("its shape is another one, by more than constants")
        if not is_small(result):
            raise UnfusedError("what would be stored has too many parts")
        if is_stored_alike:
            return self.as_stored[self.output], at, result
        return self.output, tuple([places[variable] for variable in variables]), result

    # The statements that store.

    def statement(self, node: Statement) -> Statement:
        match node:
            case ir.Store() if node.tensor is self.stored:
                return self.store(node)
            case ir.Move() if node.tensor is self.stored:
                return self.move(node)
        return map_statements(node, self.statement)

    def store(self, store: ir.Store) -> Statement:
        before: list[Statement] = []
        value = store.value
        is_named = isinstance(value, Variable | ir.Constant)
        if not is_named and (len(self.reads) > 1 or self.is_kept):
            rounded = value if self.computation.unrounded and is_rounded(value) else None
            wide = value if rounded is None else rounded.operand
            name = Variable(self.stored.name, wide.dtype, loc=store.loc)
            before.append(ir.Let(name, wide, loc=store.loc))
            value = name if rounded is None else replace(rounded, operand=name)
        if self.is_kept:
            before.append(replace(store, value=value))
        tensor, indices, computed = self.element(store.indices, value)
        last = replace(store, tensor=tensor, indices=indices, value=computed)
        return ir.Sequence((*before, last), loc=store.loc) if before else last

    def move(self, move: ir.Move) -> Statement:
        tile = _tile_of(move)
        statements: list[Statement] = [move] if self.is_kept else []
        fresh = copy(move) if self.is_kept else move
        assert isinstance(fresh, ir.Move)
        if tile is None:
            tensor, indices, value = self.element(fresh.indices, fresh.value)
            last = replace(fresh, tensor=tensor, indices=indices, value=value)
            return ir.Sequence((*statements, last), loc=move.loc) if statements else last
        done = replace(tile, name=f"{tile.name}_done", dtype=self.output.dtype, constant=False)
        variables = tuple([replace(variable) for variable in move.variables])
        names = dict(zip(move.variables, variables, strict=True))
        at = tuple([substitute(place, names) for place in move.indices])
        _, _, value = self.element(at, substitute(move.value, names))
        inside = None if move.guard is None else substitute(move.guard, names)
        compute = guarded(inside, ir.Store(done, variables, value, loc=move.loc))
        assert tile.owners is not None
        tensor, indices, _ = self.element(fresh.indices, fresh.value)
        statements += [
            ir.Allocate(done, loc=move.loc),
            ir.Each(variables, tile.owners, None, compute, loc=move.loc),
            replace(
                fresh,
                tensor=tensor,
                indices=indices,
                value=ir.Read(done, fresh.variables, loc=move.loc),
            ),
        ]
        return ir.Sequence(tuple(statements), loc=move.loc)


def _tile_of(move: ir.Move) -> Tensor | None:
    """The tile that a move stores, if it stores each element at its own indices."""
    for node in walk(move.value):
        if isinstance(node, ir.Read) and node.tensor.scope == ir.TILE:
            is_whole = node.indices == move.variables and node.tensor.shape == move.shape
            return node.tensor if is_whole else None
    return None


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
        self.value = self.joined.value(computation)

    def made(self) -> tuple[Kernel, Joined]:
        kernel, computation = self.kernel, self.computation
        self._check_cost()
        text = f"`{computation.name}` is computed where it is read"
        fused = replace(
            kernel,
            name=name_of(computation.name, kernel.name),
            parameters=self.joined.parameters(),
            dimensions=tuple(dict.fromkeys([*kernel.dimensions, *computation.dimensions])),
            body=rewritten(kernel.body, self._with_elements),
            notes=(*kernel.notes, (text, computation.loc)),
        )
        if self.lanes and not is_worth_fusing(
            kernel, fused, computation, computation.output, self.lanes
        ):
            raise UnfusedError("its reads cost more than the memory between the two")
        return proved(fused), self.joined

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

    def _with_elements(self, read: Any) -> Any:
        if not isinstance(read, ir.Read) or read.tensor not in self.read:
            return read
        shape, offset = self.read[read.tensor]
        at = seen_in(read.indices, read.tensor.shape, shape)
        at = at and seen_in(at, shape, self.computation.output.shape, offset)
        if at is None:
            raise UnfusedError("its shape is another one, by more than constants")
        value = substitute(self.value, dict(zip(self.computation.variables, at, strict=True)))
        if not is_small(value):
            raise UnfusedError("what would be read has too many parts")
        return value
