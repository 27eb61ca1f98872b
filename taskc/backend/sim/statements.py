"""Statements as closures.

A statement becomes a function of the frame. Where it may have to wait for other warps, it is a
generator function instead, and `Code.waits` says so; a generator yields what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from taskc.backend.printed import printed
from taskc.backend.sim import analysis
from taskc.backend.sim.accesses import Accesses, atomic
from taskc.backend.sim.expressions import Expressions
from taskc.backend.sim.machine import Frame, Run, active_blocks
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.registers import Registers
from taskc.backend.sim.report import Located
from taskc.errors import CompileError, InternalError
from taskc.ir import nodes as ir
from taskc.ir.types import i64


@dataclass(frozen=True, slots=True)
class Code:
    """`run(frame)` executes the statement, or, if it `waits`, returns a generator that does."""

    run: Callable[[Frame], Any]
    waits: bool = False
    body: Callable[[Frame], Any] | None = None  # of a loop

    def steps(self, frame: Frame) -> Iterator[Any]:
        """Execute the statement, and yield its waits."""
        if self.waits:
            yield from self.run(frame)
        else:
            self.run(frame)


def behind(before: Callable[[Frame], None] | None, code: Code) -> Code:
    """The statement preceded by `before`, if given."""
    if before is None:
        return code
    if code.waits:

        def steps(frame: Frame) -> Iterator[Any]:
            before(frame)
            yield from code.run(frame)

        return Code(steps, waits=True)

    def run(frame: Frame) -> None:
        before(frame)
        code.run(frame)

    return Code(run, body=code.body)


def repeated(turns: Callable[[Frame], Iterator[object]], body: Code) -> Code:
    """A loop that executes its body whenever `turns` yields."""
    if body.waits:

        def steps(frame: Frame) -> Iterator[Any]:
            for _ in turns(frame):
                yield from body.run(frame)

        return Code(steps, waits=True)

    def run(frame: Frame) -> None:
        for _ in turns(frame):
            body.run(frame)

    return Code(run, body=body.run)


class Statements:
    """Compiles statements."""

    def __init__(self, run: Run, expressions: Expressions, accesses: Accesses) -> None:
        self.state = run
        self.expressions = expressions
        self.accesses = accesses
        self.in_each = False
        self.before: Callable[[ir.Statement], Callable[[Frame], None] | None] | None = None
        self.scope: list[
            ir.Variable | ir.Tensor | ir.Each
        ] = []  # the scope around the statement being compiled
        self.divergent = analysis.divergent_locals(run.kernel.body) if run.by_phases else None
        self.makers: dict[type, Callable[[Any], Code]] = {
            ir.Sequence: self._sequence,
            ir.Let: self._let,
            ir.Allocate: self._allocate,
            ir.Store: self._store,
            ir.Atomic: self._atomic,
            ir.If: self._if,
            ir.Grid: self._grid,
            ir.Print: self._print,
            ir.Assert: self._assert,
        }

    def __call__(self, node: ir.Statement) -> Code:
        maker = self.makers.get(type(node))
        if maker is None:
            raise InternalError(f"the simulator can't execute {type(node).__name__}")
        outside = len(self.scope)
        before = None if self.before is None else self.before(node)
        match node:
            case ir.For(variable=variable) | ir.Pipeline(variable=variable):
                self.scope.append(variable)
            case ir.Grid(variables=variables):
                self.scope.extend(variables)
            case ir.Each():
                self.scope.append(node)
            case _:
                pass  # it binds nothing for nested statements
        code = maker(node)
        del self.scope[outside:]
        match node:
            case ir.Let(variable=variable):
                self.scope.append(variable)
            case ir.Atomic(result=ir.Variable() as result) | ir.Do(result=ir.Variable() as result):
                self.scope.append(result)
            case ir.Allocate(tensor=tensor) | ir.Peer(tensor=tensor):
                self.scope.append(tensor)
            case _:
                pass  # it binds nothing for later statements
        return behind(before, code)

    @property
    def uniform(self) -> bool:
        """Whether all workers of a block execute the statement being compiled in the same way."""
        return self.state.by_phases and not self.in_each

    # Straight-line code.

    def _sequence(self, node: ir.Sequence) -> Code:
        parts = [self(statement) for statement in node.statements]
        if any(part.waits for part in parts):

            def steps(frame: Frame) -> Any:
                for part in parts:
                    yield from part.steps(frame)

            return Code(steps, waits=True)
        runs = [part.run for part in parts]

        def run(frame: Frame) -> None:
            for one in runs:
                one(frame)

        return Code(run)

    def _let(self, node: ir.Let) -> Code:
        value = self.expressions(node.value)
        variable = node.variable
        uniform = self.uniform

        def run(frame: Frame) -> None:
            result = value(frame)
            if isinstance(result, np.ndarray):
                if uniform and result.shape[-1] != 1:
                    result = agreed(frame, result, node)
                if not result.flags.owndata:  # it may be a view of memory that will change
                    result = result.copy()
            frame.env[variable] = result

        return Code(run)

    def _allocate(self, node: ir.Allocate) -> Code:
        tensor, fill = node.tensor, node.fill
        shape = self.state.shapes[tensor]
        size = prod(shape)
        initial = None if fill is None else self.expressions(fill)
        if tensor.scope == ir.SHARED:
            if fill is not None:
                raise InternalError(f"{tensor.name} is shared, and no allocation fills it")
            ring = self.state.ring_of.get(tensor) if self.state.by_phases else None

            def allocate_shared(frame: Frame) -> None:
                memory = frame.group.allocate(tensor, frame, node)
                frame.memories[tensor] = memory
                if ring in frame.group.rings:
                    frame.group.rings[ring].renew(active_blocks(frame))

            return Code(allocate_shared)
        if tensor.scope == ir.BARRIER:
            return Code(lambda frame: None)
        storage = tensor.dtype.numpy
        is_tile = tensor.scope == ir.TILE
        if is_tile and tensor.owners is not None:
            size = tensor.owners.slots
        narrow = self.divergent is not None and tensor not in self.divergent and not self.in_each
        is_narrow = tensor.scope == ir.LOCAL and narrow
        self.state.private_bytes[tensor] = size * tensor.dtype.nbytes

        def allocate(frame: Frame) -> None:
            if is_tile:
                width = frame.group.width
                old = frame.group.tiles.get(tensor)
                if old is not None and frame.width != width:
                    frame.memories[tensor] = old
                    frame.group.reset_tile(old, frame, initial)
                    return
                lanes: tuple[int, ...] = (frame.count, width)
            else:
                lanes = (*frame.axes, frame.count, 1 if is_narrow else frame.width)
            data = np.zeros((size, *lanes), storage)
            written = np.zeros((size, *lanes), np.int8)
            memory = Memory(tensor, shape, data, written, lanes=lanes)
            if tensor in self.accesses.of_products:
                memory.registers = Registers(data.shape, fill is not None)
            if initial is not None:
                data[...] = initial(frame)
                written[...] = 1
                memory.complete = True
            frame.memories[tensor] = memory
            if is_tile:
                frame.group.tiles[tensor] = memory

        return Code(allocate)

    def _store(self, node: ir.Store) -> Code:
        tensor = node.tensor
        value = self.expressions(node.value)
        store = self.accesses.store(tensor, node.indices, node)
        if not self.uniform:
            return Code(lambda frame: store(frame, value(frame)))

        def run(frame: Frame) -> None:
            frame.group.order.step()
            store(frame, agreed(frame, value(frame), node))

        return Code(run)

    def _atomic(self, node: ir.Atomic) -> Code:
        value = self.expressions(node.value)
        update = atomic(self.accesses, node)
        result = node.result

        def run(frame: Frame) -> None:
            old = update(frame, value(frame))
            if result is not None:
                frame.env[result] = old

        return Code(run)

    def _print(self, node: ir.Print) -> Code:
        values = [self.expressions(value) for value in node.values]
        text = node.text

        def run(frame: Frame) -> None:
            full = frame.full
            results = [np.broadcast_to(value(frame), full) for value in values]
            width = 1 if not frame.in_each and self.state.by_phases else frame.width
            mask = None if frame.mask is None else np.broadcast_to(frame.mask, full)
            for block in range(frame.count):
                for worker in range(width):
                    if mask is None or mask[..., block, worker].any():
                        line = printed(text, [r[..., block, worker].flat[0] for r in results])
                        self.state.on_print(line)

        return Code(run)

    def _assert(self, node: ir.Assert) -> Code:
        condition = self.expressions(node.condition)
        message = node.text or "the assertion does not hold"

        def run(frame: Frame) -> None:
            wrong = np.logical_not(condition(frame))
            frame.fault_if("assertion", message, wrong, node)

        return Code(run)

    # Control flow.

    def _if(self, node: ir.If) -> Code:
        condition = self.expressions(node.condition)
        then = self(node.then)
        otherwise = Code(lambda frame: None) if node.otherwise is None else self(node.otherwise)
        has_else = node.otherwise is not None
        uniform = self.uniform

        def branches(frame: Frame) -> tuple[Any, Any]:
            """The masks of the two branches; False where one isn't taken."""
            chosen = condition(frame)
            if uniform:
                chosen = agreed(frame, chosen, node)
            outer = frame.mask
            if not isinstance(chosen, np.ndarray):
                return (outer, False) if chosen else (False, outer)
            wanted = chosen if outer is None else chosen & outer
            refused = ~chosen if outer is None else ~chosen & outer
            if not refused.any():
                return outer, False
            return (wanted if wanted.any() else False), refused

        if then.waits or otherwise.waits:

            def steps(frame: Frame) -> Any:
                outer = frame.mask
                for mask, code in zip(branches(frame), (then, otherwise), strict=True):
                    if mask is not False:
                        frame.mask = mask
                        yield from code.steps(frame)
                frame.mask = outer

            return Code(steps, waits=True)

        def run(frame: Frame) -> None:
            outer = frame.mask
            wanted, refused = branches(frame)
            if wanted is not False:
                frame.mask = wanted
                then.run(frame)
            if has_else and refused is not False:
                frame.mask = refused
                otherwise.run(frame)
            frame.mask = outer

        return Code(run)

    def _grid(self, node: ir.Grid) -> Code:
        body = self(node.body)
        shape = [self.expressions(constant_of(extent)) for extent in node.shape]

        def turns(frame: Frame) -> Iterator[None]:
            tiles = grid_tiles([int(np.max(extent(frame))) for extent in shape], node)
            origin = grid_origin(frame.group.blocks, tiles, node)
            for variable, value in zip(node.variables, origin, strict=True):
                frame.env[variable] = value[:, None]
            yield

        return repeated(turns, body)


# --- helpers ---------------------------------------------------------------------------------


def constant_of(extent: int | ir.Expression) -> ir.Expression:
    return ir.Constant(extent, i64) if isinstance(extent, int) else extent


def grid_tiles(shape: list[int], node: ir.Grid) -> list[int]:
    tiles = [-(-extent // step) for extent, step in zip(shape, node.by, strict=True)]
    for dimension, (count, by) in enumerate(zip(tiles, node.cluster, strict=False)):
        if count % by:
            raise CompileError(
                f"the {count} tiles of dimension {dimension} aren't a multiple of the cluster's {by}",
                node.loc,
            )
    return tiles


def grid_origin(blocks: Array, tiles: list[int], node: ir.Grid) -> list[Array]:
    """The origins of some blocks' tiles, in each dimension."""
    rank = len(tiles)
    inner: tuple[Array, ...] = ()
    if node.cluster:
        size = prod(node.cluster)
        inner = np.unravel_index(blocks % size, node.cluster)
        blocks = blocks // size
        tiles = [n // by for n, by in zip(tiles, node.cluster, strict=True)]
    if node.order and node.order[0] in ir.GROUPED and rank >= 2:
        group = int(node.order[1])
        *outer, rows, columns = tiles
        outer_number, number = (
            np.divmod(blocks, rows * columns) if rows * columns else (blocks, blocks)
        )
        first = number // (group * columns) * group
        height = np.minimum(rows - first, group)
        within_group = number % (group * columns)
        numbers = [*np.unravel_index(outer_number, outer)] if outer else []
        column = within_group // height
        is_backwards = node.order[0] == "backwards"
        numbers += [first + within_group % height, columns - 1 - column if is_backwards else column]
    else:
        order = [int(i) for i in node.order] if node.order else list(range(rank))
        spelled = np.unravel_index(blocks, [tiles[i] for i in order]) if rank else ()
        numbers = [spelled[order.index(i)] for i in range(rank)]
    if node.cluster:
        parts = zip(numbers, node.cluster, inner, strict=True)
        numbers = [n * by + place for n, by, place in parts]
    return [np.asarray(n, np.int64) * by for n, by in zip(numbers, node.by, strict=True)]


def agreed(frame: Frame, value: Any, node: Located) -> Any:
    """A uniform value, once for each block; reports disagreement between workers."""
    if not isinstance(value, np.ndarray) or value.shape[-1] == 1:
        return value
    one = value[..., :1]
    wrong = (value != one) & ((value == value) | (one == one))
    if wrong.any():
        frame.fault_if("divergence", "workers disagree on a uniform value", wrong, node)
    return one.copy()
