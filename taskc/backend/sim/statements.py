"""Statements as closures.

A statement becomes a function of the frame. Where it may have to wait for other warps, it is a
generator function instead, and `Code.waits` says so; a generator yields what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, TypeAlias

import numpy as np

from taskc.backend.operations import printed
from taskc.backend.sim import analysis
from taskc.backend.sim.accesses import AccessCompiler
from taskc.backend.sim.expressions import ExpressionCompiler
from taskc.backend.sim.machine import Frame, Run, active_blocks, both
from taskc.backend.sim.memory import Array, Storage
from taskc.backend.sim.report import Located
from taskc.backend.sim.tiles import Registers
from taskc.dataclass import dataclass
from taskc.errors import CompileError, InternalError
from taskc.ir import nodes as ir
from taskc.ir.operations import OPERATIONS
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


def preceded(before: Callable[[Frame], None] | None, code: Code) -> Code:
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


NOTHING = Code(lambda frame: None)

Maker: TypeAlias = "Callable[[StatementCompiler, Any], Code]"
"""A function that compiles statements of one type, or target operations of one name."""

Makers: TypeAlias = "dict[type | str, Maker]"

_UNKNOWN = " (it is not a known operation)"


class StatementCompiler:
    """Compiles statements, by a table: rows are added for what the rest of the simulator executes."""

    def __init__(self, run: Run, expressions: ExpressionCompiler, accesses: AccessCompiler) -> None:
        self.run = run
        self.expressions = expressions
        self.accesses = accesses
        self.in_each = False
        self.in_roles = False
        self.before: Callable[[ir.Statement], Callable[[Frame], None] | None] | None = None
        self.scope: list[
            ir.Variable | ir.Tensor | ir.Each
        ] = []  # the scope around the statement being compiled
        self.divergent = analysis.divergent_locals(run.kernel.body) if run.by_phases else None
        self.makers: Makers = {**STATEMENTS}

    def __call__(self, node: ir.Statement) -> Code:
        kind = node.operation if isinstance(node, ir.Do) else type(node)
        maker = self.makers.get(kind)
        if maker is None:
            name = kind if isinstance(kind, str) else kind.__name__
            known = "" if name in OPERATIONS or not isinstance(node, ir.Do) else _UNKNOWN
            raise InternalError(f"the simulator can't execute {name}{known}")
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
        code = maker(self, node)
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
        return preceded(before, code)

    @property
    def uniform(self) -> bool:
        """Whether all workers of a block execute the statement being compiled in the same way."""
        return self.run.by_phases and not self.in_each


# --- Straight-line code -------------------------------------------------------------------------


def _sequence(compiler: StatementCompiler, node: ir.Sequence) -> Code:
    parts = [compiler(statement) for statement in node.statements]
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


def _let(compiler: StatementCompiler, node: ir.Let) -> Code:
    value = compiler.expressions(node.value)
    variable = node.variable
    uniform = compiler.uniform

    def run(frame: Frame) -> None:
        result = value(frame)
        if isinstance(result, np.ndarray):
            if uniform and result.shape[-1] != 1:
                result = agreed(frame, result, node)
            if not result.flags.owndata:  # it may be a view of memory that will change
                result = result.copy()
        frame.env[variable] = result

    return Code(run)


def _allocate(compiler: StatementCompiler, node: ir.Allocate) -> Code:
    tensor, fill = node.tensor, node.fill
    shape = compiler.run.shapes[tensor]
    size = prod(shape)
    initial = None if fill is None else compiler.expressions(fill)
    if tensor.scope == ir.SHARED:
        if fill is not None:
            raise InternalError(f"{tensor.name} is shared, and no allocation fills it")
        ring = compiler.run.ring_of.get(tensor) if compiler.run.by_phases else None

        def allocate_shared(frame: Frame) -> None:
            memory = frame.group.allocate(tensor, frame, node)
            frame.memories[tensor] = memory
            if ring in frame.group.rings:
                frame.group.rings[ring].renew(active_blocks(frame))

        return Code(allocate_shared)
    if tensor.scope == ir.BARRIER:
        return NOTHING
    storage = tensor.dtype.numpy
    is_tile = tensor.scope == ir.TILE
    if is_tile and tensor.owners is not None:
        size = tensor.owners.slots
    narrow = (
        compiler.divergent is not None and tensor not in compiler.divergent and not compiler.in_each
    )
    is_narrow = tensor.scope == ir.LOCAL and narrow
    compiler.run.private_bytes[tensor] = size * tensor.dtype.nbytes

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
        memory = Storage(tensor, shape, data, written, lanes=lanes)
        if tensor in compiler.run.of_products:
            memory.registers = Registers(data.shape, fill is not None)
        if initial is not None:
            data[...] = initial(frame)
            written[...] = 1
            memory.complete = True
        frame.memories[tensor] = memory
        if is_tile:
            frame.group.tiles[tensor] = memory

    return Code(allocate)


def _store(compiler: StatementCompiler, node: ir.Store) -> Code:
    tensor = node.tensor
    value = compiler.expressions(node.value)
    store = compiler.accesses.store(tensor, node.indices, node)
    if not compiler.uniform:
        return Code(lambda frame: store(frame, value(frame)))

    def run(frame: Frame) -> None:
        frame.group.order.step()
        store(frame, agreed(frame, value(frame), node))

    return Code(run)


def _atomic(compiler: StatementCompiler, node: ir.Atomic) -> Code:
    value = compiler.expressions(node.value)
    update = compiler.accesses.atomic(node)
    result = node.result

    def run(frame: Frame) -> None:
        old = update(frame, value(frame))
        if result is not None:
            frame.env[result] = old

    return Code(run)


def _print(compiler: StatementCompiler, node: ir.Print) -> Code:
    values = [compiler.expressions(value) for value in node.values]
    text = node.text

    def run(frame: Frame) -> None:
        results = [np.broadcast_to(value(frame), frame.full) for value in values]
        width = 1 if not frame.in_each and frame.run.by_phases else frame.width
        active = frame.active
        for block in range(frame.count):
            for worker in range(width):
                if active[..., block, worker].any():
                    line = printed(text, [r[..., block, worker].flat[0] for r in results])
                    frame.run.on_print(line)

    return Code(run)


def _assert(compiler: StatementCompiler, node: ir.Assert) -> Code:
    condition = compiler.expressions(node.condition)
    message = node.text or "the assertion does not hold"

    def run(frame: Frame) -> None:
        wrong = np.logical_not(condition(frame))
        frame.fault_if("assertion", message, wrong, node)

    return Code(run)


# --- Control flow --------------------------------------------------------------------------------


def _if(compiler: StatementCompiler, node: ir.If) -> Code:
    condition = compiler.expressions(node.condition)
    then = compiler(node.then)
    otherwise = NOTHING if node.otherwise is None else compiler(node.otherwise)
    uniform = compiler.uniform

    def branches(frame: Frame) -> tuple[Any, Any]:
        """The masks of the two branches; False where one isn't taken."""
        chosen = condition(frame)
        if uniform:
            chosen = agreed(frame, chosen, node)
        outer = frame.mask
        if not isinstance(chosen, np.ndarray):
            return (outer, False) if chosen else (False, outer)
        wanted, refused = both(outer, chosen), both(outer, ~chosen)
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
        for mask, code in zip(branches(frame), (then, otherwise), strict=True):
            if mask is not False:
                frame.mask = mask
                code.run(frame)
        frame.mask = outer

    return Code(run)


def _grid(compiler: StatementCompiler, node: ir.Grid) -> Code:
    body = compiler(node.body)
    shape = [compiler.expressions(constant_of(extent)) for extent in node.shape]

    def turns(frame: Frame) -> Iterator[None]:
        tiles = grid_tiles([int(np.max(extent(frame))) for extent in shape], node)
        origin = grid_origin(frame.group.blocks, tiles, node)
        for variable, value in zip(node.variables, origin, strict=True):
            frame.env[variable] = value[:, None]
        yield

    return repeated(turns, body)


STATEMENTS: Makers = {
    ir.Sequence: _sequence,
    ir.Let: _let,
    ir.Allocate: _allocate,
    ir.Store: _store,
    ir.Atomic: _atomic,
    ir.If: _if,
    ir.Grid: _grid,
    ir.Print: _print,
    ir.Assert: _assert,
}


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
