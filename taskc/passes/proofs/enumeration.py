"""Evaluation of expressions over all workers and slots at once, as NumPy arrays.

The uniform part of an index stays symbolic (taskc.analysis.indices): sizes, tile origins, variables
of block-wide loops. Conditions become two arrays: where they surely hold, and where they may.

Axes count from the right: 0 belongs to the workers, and each loop has the axis to the left of its
enclosing loops', so NumPy's broadcasting aligns values of different depths. Nothing is
expanded before a proof needs it.

Messages name an example that was found: its worker, its task, its element.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping as Dictionary, Sequence
from functools import lru_cache
from math import prod
from typing import Any, Literal

import numpy as np

from taskc.analysis.indices import (
    TRUE,
    UNKNOWN,
    Array,
    Evaluator,
    Index,
    Truth,
    conjunction,
    negated,
)
from taskc.ir import nodes as ir
from taskc.ir.code_size import length
from taskc.ir.mapping import Mapping
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.printer import expression_text
from taskc.passes.proofs.accesses import (
    Frame,
    Guard,
    GuardedAccess,
    KernelAccesses,
    Path,
    tensors_read,
)

Mode = Literal["phase", "iterations", "unrolled"]

LIMIT = 8_000_000  # most elements of an array that a proof builds
STEPS = 256  # most steps of a loop that is enumerated; variables of longer ones, and of the grid, stay symbols


@lru_cache(maxsize=256)
def task_arrays(mapping: Mapping) -> tuple[tuple[Array, ...], Array | bool]:
    """Each coordinate of the tasks, [slot, worker], and the mask of existing ones (True: all)."""
    coordinates = tuple(np.ascontiguousarray(mapping.tasks[..., d].T) for d in range(mapping.rank))
    valid = np.ascontiguousarray(mapping.valid.T)
    return coordinates, True if valid.all() else valid


@lru_cache(maxsize=256)
def first_owners(mapping: Mapping) -> Array | bool:
    """Mask where the worker is the first owner of its task, [slot, worker] (True: everywhere)."""
    if not mapping.is_replicated:
        return True
    coordinates, _ = task_arrays(mapping)
    return np.asarray(mapping.owner_table()[0][coordinates] == np.arange(mapping.workers))


@lru_cache(maxsize=256)
def index_arrays(shape: tuple[int, ...]) -> tuple[Array, ...]:
    """The coordinates of all elements, row-major and flat."""
    grid = np.indices(shape, dtype=np.int64).reshape(len(shape), -1)
    return tuple(grid)


def along(values: Array, axis: int) -> Array:
    """A vector along an axis that is counted from the right."""
    return np.reshape(values, values.shape + (1,) * axis)


def all_blocks(
    collected: KernelAccesses, variables: Iterable[Variable]
) -> dict[Variable, Any] | None:
    """Every value of the block-wide loop variables among these, each along its axis.

    None where one of them has no constant range. See `is_short` for what may be concluded from them.
    """
    values: dict[Variable, Any] = {}
    for variable in variables:
        binder = collected.binders.get(variable)
        if binder is None or not binder.shared:
            continue
        block_values = block_range(collected, variable)
        if block_values is None or length(block_values) > LIMIT:
            return None
        numbers = np.arange(
            block_values.start, block_values.stop, block_values.step, dtype=np.int64
        )
        values[variable] = along(numbers, binder.axis)
    return values


def is_short(collected: KernelAccesses, variables: Iterable[Variable]) -> bool:
    """Whether no variable among these is of the grid, or of a long loop, so that a property of all their values counts
    as proved.
    """
    for variable in variables:
        block_values = block_range(collected, variable)
        if block_values is not None and (
            isinstance(collected.binders[variable].loop, ir.Grid) or length(block_values) > STEPS
        ):
            return False
    return True


def block_range(collected: KernelAccesses, variable: Variable) -> range | None:
    """The values of a block-wide loop's variable, if they are constant."""
    binder = collected.binders.get(variable)
    if binder is None or not binder.shared:
        return None
    match binder.loop:
        case ir.Grid(shape=shape, by=by):
            extent: Any = shape[binder.position]
            stop = extent.value if isinstance(extent, ir.Constant) else extent
            return range(0, stop, by[binder.position]) if isinstance(stop, int) else None
        case ir.Pipeline(extent=ir.Constant(value=stop), by=step):
            return range(0, int(stop), step)
        case ir.For(start=ir.Constant(value=start), stop=ir.Constant(value=stop), step=step):
            return range(int(start), int(stop), step)
    return None


class Enumerator:
    """Evaluates expressions of one kernel.

    mode   "phase": within one phase; the variable of a loop of unknown length inside a mapping loop
           is unknown, since two workers may be at different iterations of it
           "iterations": its variable is an atom; asked for one worker or one iteration at a time
           "unrolled": variables of all loops with constant bounds are enumerated, also outside of
           mapping loops
    fixed  values of variables that are decided from outside
    role   whose workers they are, if not the block's
    cells  values that block-wide cells have in the phase
    steps  of a loop that is enumerated, at most

    What is accepted must not depend on how large an extent is: a proof enumerates what the program's
    text fixes, workers, slots and short loops. Whole grids are enumerated for counterexamples alone.
    """

    def __init__(
        self,
        collected: KernelAccesses,
        mode: Mode,
        fixed: Dictionary[Variable, Any] | None = None,
        role: ir.Role | None = None,
        cells: Dictionary[Tensor, int] | None = None,
        steps: int = STEPS,
    ) -> None:
        self.collected = collected
        self.steps = steps
        self.cells = cells or {}
        self.mode = mode
        self.evaluator = Evaluator(self)
        # The conjunction of a path's frames, by the number of the one before the last, and the last.
        self.paths: dict[tuple[int, int], tuple[Frame, int, bool, Truth]] = {}
        self.variables: dict[Variable, Index | None] = {}
        for variable, value in (fixed or {}).items():
            self.variables[variable] = Index({}, value)
        self.workers = np.arange(collected.kernel.workers if role is None else role.workers)
        first = 0 if role is None else role.first
        self.variables.setdefault(collected.kernel.worker, Index({}, self.workers + first))

    def index(self, node: Expression) -> Index | None:
        """The value of an integer expression; None if unknown."""
        return self.evaluator.index(node)

    def truth(self, condition: Expression) -> Truth:
        return self.evaluator.truth(condition)

    # Values of the leaves of expressions.

    def named(self, condition: Variable) -> Expression | None:
        return self.collected.lets.get(condition)

    def read(self, read: ir.Read) -> Index | None:
        if read.tensor in self.cells:
            return Index({}, self.cells[read.tensor])
        if read.tensor in self.collected.written or read.tensor.scope == ir.TILE:
            return None
        indices = [self.index(index) for index in read.indices]
        is_uniform = all(index is not None and index.is_uniform for index in indices)
        return Index({read: 1}, 0) if is_uniform else None

    def divisor(self, atom: Expression) -> int:
        if not isinstance(atom, Variable):
            return 1
        binder = self.collected.binders.get(atom)
        if binder is None:
            return atom.multiple
        match binder.loop:
            case ir.Grid(by=by):
                return by[binder.position]
            case ir.Pipeline(by=by):
                return by
            case ir.For(start=ir.Constant(value=0), step=step):
                return abs(step)
        return 1

    def variable(self, variable: Variable) -> Index | None:
        if variable not in self.variables:
            self.variables[variable] = self._variable(variable)
        return self.variables[variable]

    def _variable(self, variable: Variable) -> Index | None:
        if variable in self.collected.lets:
            value, shared = self.collected.lets[variable], variable not in self.collected.private
            form = self.index(value) if variable.dtype.is_integer else None
            if shared and self._reads_cells(value):
                form = None  # it was read before the phase
            if form is None or any(isinstance(atom, ir.Read) for atom in form.terms):
                # A cell may change after the Let has read it.
                return Index({variable: 1}, 0) if shared else None
            return form
        if variable in self.collected.results:
            return None
        binder = self.collected.binders.get(variable)
        if binder is None:
            return Index({variable: 1}, 0)
        values = block_range(self.collected, variable)
        if values is not None and length(values) == 1:
            return Index({}, values[0])
        match binder.loop:
            case ir.Each() as each:
                return self._each(each, binder.position)
            case ir.Move() as move:
                coordinates = index_arrays(move.shape)[binder.position]
                return Index({}, along(coordinates, binder.axis))
            case ir.For() as loop:
                if not binder.shared or self.mode == "unrolled":
                    form = self._enumerated_loop(loop, binder.axis)
                    if form is not None:
                        return form
            case _:
                pass  # blocks and steps are not enumerated
        if binder.shared or self.mode != "phase":
            return Index({variable: 1}, 0)
        return None

    def _each(self, each: ir.Each, position: int) -> Index | None:
        axis = self.collected.axis(each)
        number = self._worker_of(each)
        if number is None:
            return None
        values = task_arrays(each.mapping)[0][position]
        return Index({}, _spread(values, number, axis))

    def _worker_of(self, each: ir.Each) -> Any:
        """The number that each worker has for this mapping; None if unknown."""
        if each.worker is None:
            return self.workers
        form = self.index(each.worker)
        return None if form is None or form.terms else np.asarray(form.base)

    def _enumerated_loop(self, loop: ir.For, axis: int) -> Index | None:
        start, stop = self.index(loop.start), self.index(loop.stop)
        if start is None or stop is None or start.terms or stop.terms:
            return None
        distance = stop.base - start.base if loop.step > 0 else start.base - stop.base
        count = max(0, -(-int(np.max(distance, initial=0)) // abs(loop.step)))
        if count > self.steps:
            return None
        return Index({}, start.base + along(np.arange(count) * loop.step, axis))

    def frame(self, frame: Frame, stores: bool = False) -> Truth:
        """Mask where a frame lets execution through, as far as enumeration knows.

        With `stores`, only first owners: they alone store to SHARED and GLOBAL memory.
        """
        match frame:
            case Guard():
                truth = self.truth(frame.condition)
                return truth if frame.holds else negated(truth)
            case ir.Each():
                return self._each_frame(frame, stores)
            case ir.For():
                return self._for_frame(frame)
            case ir.While():
                return UNKNOWN
        return TRUE

    def _each_frame(self, each: ir.Each, stores: bool) -> Truth:
        number = self._worker_of(each)
        if number is None:
            return UNKNOWN
        axis = self.collected.axis(each)
        valid = _spread(task_arrays(each.mapping)[1], number, axis)
        if stores:
            valid = valid & _spread(first_owners(each.mapping), number, axis)
        if each.worker is not None:
            valid = valid & (number >= 0) & (number < each.mapping.workers)
        return TRUE if valid is True else Truth(valid, valid)

    def _for_frame(self, loop: ir.For) -> Truth:
        form = self.index(loop.variable)
        if form is None or form.terms or form.is_uniform:
            return TRUE
        stop = self.index(loop.stop)
        if stop is None or stop.is_uniform:
            return TRUE
        inside = form.base < stop.base if loop.step > 0 else form.base > stop.base
        return Truth(inside, inside)

    def path(self, frames: Iterable[Frame], stores: bool = False) -> Truth:
        """Mask where all frames let execution through; results for outer frames are cached for all inner ones."""
        number, is_before, result = int(stores), True, TRUE
        for frame in frames:
            key = number, id(frame)
            if key not in self.paths:
                is_before = is_before and not isinstance(frame, (ir.Each, ir.Move))
                if is_before and isinstance(frame, Guard) and self._reads_cells(frame.condition):
                    truth = UNKNOWN
                else:
                    truth = self.frame(frame, stores)
                entry = frame, len(self.paths) + 2, is_before, conjunction(result, truth)
                self.paths[key] = entry
            _, number, is_before, result = self.paths[key]
        return result

    def _reads_cells(self, node: Expression) -> bool:
        """Whether the value dates from before the phase, when cells had other values."""
        if not self.cells:
            return False
        return not self.cells.keys().isdisjoint(tensors_read(node, self.collected.lets))


def _spread(values: Array | bool, number: Any, axis: int) -> Any:
    """[slot, worker] arrays with the slots along an axis, for the workers' numbers."""
    if isinstance(values, bool):
        return values
    slots, workers = values.shape
    whole = number.ndim == 1 and np.array_equal(number, np.arange(workers))
    picked = values if whole else values[:, np.clip(number, 0, workers - 1)]
    return picked.reshape((slots,) + (1,) * (axis - number.ndim) + picked.shape[1:])


def size_of(*arrays: Any) -> int:
    """The number of elements of the arrays once they are broadcast together."""
    return prod(np.broadcast_shapes(*(np.shape(array) for array in arrays)))


def spelled(node: Expression) -> str:
    """An expression as DSL text."""
    return expression_text(node)


def element(tensor: Tensor, indices: Iterable[Any]) -> str:
    return f"{tensor.name}[{', '.join(str(int(index)) for index in indices)}]"


def task_text(task: Sequence[Any]) -> str:
    numbers = [str(int(number)) for number in task]
    return f"({', '.join(numbers)}{',' if len(numbers) == 1 else ''})"


def at(array: Any, position: Sequence[int]) -> int:
    """An element of an array that may have to be broadcast to the shape of `position`."""
    array = np.asarray(array)
    position = (0,) * (array.ndim - len(position)) + tuple(position)
    own_position = position[len(position) - array.ndim :]
    return int(
        array[tuple(p if n > 1 else 0 for p, n in zip(own_position, array.shape, strict=True))]
    )


def first_true(mask: Any) -> tuple[int, ...]:
    """The position of a mask's first true element, of the lowest worker."""
    mask = np.atleast_1d(mask)
    flat = int(np.argmax(np.moveaxis(mask, -1, 0)))
    worker, *rest = np.unravel_index(flat, (mask.shape[-1], *mask.shape[:-1]))
    return (*(int(p) for p in rest), int(worker))


def task_of(enumerator: Enumerator, path: Path, position: Sequence[int]) -> tuple[int, ...] | None:
    """The task of the innermost mapping loop (or Move) at a place of the enumeration."""
    for frame in reversed(path):
        if isinstance(frame, (ir.Each, ir.Move)):
            forms = [enumerator.index(variable) for variable in frame.variables]
            if any(form is None for form in forms):
                return None
            return tuple(at(form.base, position) for form in forms if form is not None)
    return None


def index_text(form: Index, position: Sequence[int]) -> str:
    """An index at a place of the enumeration: its atoms, then the number."""
    number = at(form.base, position)
    text = ""
    for atom, coefficient in form.terms.items():
        size, divisor = abs(coefficient.numerator), coefficient.denominator
        part = spelled(atom) if size == divisor == 1 else f"({spelled(atom)})"
        if divisor != 1:
            part = f"{spelled(atom)} // {divisor}"
        part = part if size == 1 else f"{size} * {part}"
        sign = "-" if coefficient < 0 else "+"
        text = f"{text} {sign} {part}" if text else part if sign == "+" else f"-{part}"
    if not text:
        return str(number)
    if number == 0:
        return text
    return f"{text} {'+' if number > 0 else '-'} {abs(number)}"


_ATOMIC = {"+": "add", "min": "min", "max": "max", "&": "and", "|": "or", "^": "xor"}


def scatter_hint(access: GuardedAccess, collected: KernelAccesses) -> str | None:
    """A hint that names the atomic to use, for a store whose index is read from memory."""
    store = access.statement
    if not isinstance(store, ir.Store):
        return None
    read = [tensor for index in access.indices for tensor in tensors_read(index, collected.lets)]
    if all(tensor.scope == ir.LOCAL for tensor in read):
        return None
    # An index is widened implicitly.
    indices = [i.operand if isinstance(i, ir.Cast) else i for i in store.indices]
    place = f"{access.tensor.name}[{', '.join(map(spelled, indices))}]"
    match store.value:
        case ir.Binary(operator=operator, left=ir.Read() as old, right=value) if (
            operator in _ATOMIC and (old.tensor, old.indices) == (store.tensor, store.indices)
        ):
            return (
                "two tasks may have one place: update it with"
                f" `tc.atomic_{_ATOMIC[operator]}({place}, {spelled(value)})`"
            )
    return (
        "two tasks may have one place: if any of their values will do, write"
        f" `tc.atomic_exchange({place}, {spelled(store.value)})`; to combine them, tc.atomic_add and"
        " its like"
    )
