"""Expressions evaluated over all workers and slots at once, as NumPy arrays.

A `Form` is an integer in two parts: a linear combination of *atoms*, expressions that have one
value for all workers (symbolic sizes, tile origins, loop variables), and an array over everything
enumerated. The index `row + i * 2` is the atom `row` plus an array of 2 * i. Conditions become two
arrays: where they surely hold, and where they may.

Axes count from the right: 0 belongs to the workers, each loop has the next one to the left of the
loops around it, so NumPy's broadcasting aligns what is known at different depths. Nothing is
expanded before a proof asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping as Dictionary
from functools import lru_cache
from math import prod
from typing import Any, Literal

import numpy as np

from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.rewrite import expressions
from taskc.ir.straight_line import length
from taskc.ir.types import DType
from taskc.passes.proofs.cells import tensors_read
from taskc.passes.proofs.forms import (
    BITWISE,
    COMPARE,
    FALSE,
    TRUE,
    UNKNOWN,
    Form,
    Truth,
    arithmetic,
    conjunction,
    negated,
)
from taskc.passes.proofs.paths import Frame, Guard
from taskc.passes.proofs.program import Program

Array = np.ndarray[Any, np.dtype[Any]]
Mode = Literal["phase", "iterations", "unrolled"]

LIMIT = 8_000_000  # elements of an array that a proof is willing to build
STEPS = 256  # of a loop that is enumerated; a longer one, and the grid, is only a name


@lru_cache(maxsize=256)
def task_arrays(mapping: Mapping) -> tuple[tuple[Array, ...], Array | bool]:
    """Each coordinate of the tasks, [slot, worker], and where there is one (True: everywhere)."""
    coordinates = tuple(np.ascontiguousarray(mapping.tasks[..., d].T) for d in range(mapping.rank))
    valid = np.ascontiguousarray(mapping.valid.T)
    return coordinates, True if valid.all() else valid


@lru_cache(maxsize=256)
def first_owners(mapping: Mapping) -> Array | bool:
    """Where the worker is the first owner of its task, [slot, worker] (True: everywhere)."""
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
    """A vector laid along an axis that is counted from the right."""
    return np.reshape(values, values.shape + (1,) * axis)


def all_blocks(program: Program, variables: Iterable[Variable]) -> dict[Variable, Any] | None:
    """Every value of the block-wide loop variables among these, each along its axis.

    None where one of them has no constant range. See `is_short` for what may be concluded from them.
    """
    values: dict[Variable, Any] = {}
    for variable in variables:
        binder = program.binders.get(variable)
        if binder is None or not binder.shared:
            continue
        found = block_range(program, variable)
        if found is None or length(found) > LIMIT:
            return None
        numbers = np.arange(found.start, found.stop, found.step, dtype=np.int64)
        values[variable] = along(numbers, binder.axis)
    return values


def is_short(program: Program, variables: Iterable[Variable]) -> bool:
    """No variable among these is one of the grid, or of a long loop: what holds for all values of them
    may be taken for proved."""
    for variable in variables:
        found = block_range(program, variable)
        if found is not None and (
            isinstance(program.binders[variable].loop, ir.Grid) or length(found) > STEPS
        ):
            return False
    return True


def block_range(program: Program, variable: Variable) -> range | None:
    """The values of a block-wide loop's variable, if they are constant."""
    binder = program.binders.get(variable)
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
    """Evaluates expressions of one program.

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
        program: Program,
        mode: Mode,
        fixed: Dictionary[Variable, Any] | None = None,
        role: ir.Role | None = None,
        cells: Dictionary[Tensor, int] | None = None,
        steps: int = STEPS,
    ) -> None:
        self.program = program
        self.steps = steps
        self.cells = cells or {}
        self.mode = mode
        # By identity: with the node itself, so that no other one takes its place in memory.
        self.forms: dict[int, tuple[Expression, Form | None]] = {}
        self.truths: dict[int, tuple[Expression, Truth]] = {}
        # What the frames of a path say together, by the number of those before the last, and the last.
        self.paths: dict[tuple[int, int], tuple[Frame, int, bool, Truth]] = {}
        self.variables: dict[Variable, Form | None] = {}
        for variable, value in (fixed or {}).items():
            self.variables[variable] = Form({}, value)
        self.workers = np.arange(program.kernel.workers if role is None else role.workers)
        first = 0 if role is None else role.first
        self.variables.setdefault(program.kernel.worker, Form({}, self.workers + first))

    # Integers.

    def form(self, node: Expression) -> Form | None:
        """The value of an integer expression; None where that is not known."""
        if isinstance(node, ir.Constant):
            return Form({}, int(node.value))
        if isinstance(node, Variable):
            if node not in self.variables:
                self.variables[node] = self._variable(node)
            return self.variables[node]
        if id(node) not in self.forms:
            self.forms[id(node)] = node, self._form(node)
        return self.forms[id(node)][1]

    def _form(self, node: Expression) -> Form | None:
        match node:
            case ir.Binary(operator="+" | "-" | "*" | "//" | "%" | "min" | "max"):
                left, right = self.form(node.left), self.form(node.right)
                if left is None or right is None:
                    return None
                found = arithmetic(node.operator, left, right, self._step)
                if found is None or not _fits(found, node.dtype):
                    return self._atom(node, (left, right))
                return found
            case ir.Binary(operator="&" | "|" | "^" | "<<" | ">>"):
                left, right = self.form(node.left), self.form(node.right)
                if left is None or right is None:
                    return None
                if not left.terms and not right.terms:
                    return Form({}, BITWISE[node.operator](left.base, right.base))
                return self._atom(node, (left, right))
            case ir.Unary(operator="-"):
                operand = self.form(node.operand)
                return None if operand is None else operand.scaled(-1)
            case ir.Cast() if node.operand.dtype.is_integer and node.dtype.bits == 64:
                return self.form(node.operand)
            case ir.Select():
                return self._select(node)
            case ir.Lookup():
                index = self.form(node.index)
                if index is None:
                    return None
                values = node.table.values
                if index.terms or np.any((index.base < 0) | (index.base >= values.size)):
                    return self._atom(node, (index,))
                found_values = values.reshape(-1)[index.base]
                return Form({}, int(found_values) if index.is_uniform else found_values)
            case ir.Read():
                if node.tensor in self.cells:
                    return Form({}, self.cells[node.tensor])
                if node.tensor in self.program.written or node.tensor.scope == ir.TILE:
                    return None
                return self._atom(node, [self.form(index) for index in node.indices])
        return Form({node: 1}, 0) if self.is_uniform(node) else None

    def _atom(self, node: Expression, operands: Iterable[Form | None]) -> Form | None:
        """The expression as something opaque, if it has one value for all workers."""
        if all(operand is not None and operand.is_uniform for operand in operands):
            return Form({node: 1}, 0)
        return None

    def _step(self, atom: Expression) -> int:
        """A number that divides the atom."""
        if not isinstance(atom, Variable):
            return 1
        binder = self.program.binders.get(atom)
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

    def _select(self, node: ir.Select) -> Form | None:
        condition = self.truth(node.condition)
        then, otherwise = self.form(node.then), self.form(node.otherwise)
        if np.all(condition.must):
            return then
        if not np.any(condition.may):
            return otherwise
        if then is None or otherwise is None:
            return None
        if condition.must is condition.may and then.terms == otherwise.terms:
            return Form(then.terms, np.where(condition.must, then.base, otherwise.base))
        if self.is_uniform(node.condition):
            return self._atom(node, (then, otherwise))
        return None

    def is_uniform(self, node: Expression) -> bool:
        """Whether an expression of any type has one value for all workers."""
        match node:
            case ir.Constant():
                return True
            case Variable():
                form = self.form(node)
                return form is not None and form.is_uniform
            case ir.Read() if node.tensor in self.program.written or node.tensor.scope == ir.TILE:
                return False
        return all(self.is_uniform(below) for below in expressions(node))

    # Variables.

    def _variable(self, variable: Variable) -> Form | None:
        if variable in self.program.lets:
            value, shared = self.program.lets[variable], variable not in self.program.private
            form = self.form(value) if variable.dtype.is_integer else None
            if shared and self._reads_cells(value):
                form = None  # it was read before the phase
            if form is None or any(isinstance(atom, ir.Read) for atom in form.terms):
                # A cell may change after the Let has read it.
                return Form({variable: 1}, 0) if shared else None
            return form
        if variable in self.program.results:
            return None
        binder = self.program.binders.get(variable)
        if binder is None:
            return Form({variable: 1}, 0)
        values = block_range(self.program, variable)
        if values is not None and length(values) == 1:
            return Form({}, values[0])
        match binder.loop:
            case ir.Each() as each:
                return self._each(each, binder.position)
            case ir.Move() as move:
                coordinates = index_arrays(move.shape)[binder.position]
                return Form({}, along(coordinates, binder.axis))
            case ir.For() as loop:
                if not binder.shared or self.mode == "unrolled":
                    form = self._enumerated_loop(loop, binder.axis)
                    if form is not None:
                        return form
            case _:
                pass  # blocks and steps are not enumerated
        if binder.shared or self.mode != "phase":
            return Form({variable: 1}, 0)
        return None

    def _each(self, each: ir.Each, position: int) -> Form | None:
        axis = self.program.axis(each)
        number = self._worker_of(each)
        if number is None:
            return None
        values = task_arrays(each.mapping)[0][position]
        return Form({}, _spread(values, number, axis))

    def _worker_of(self, each: ir.Each) -> Any:
        """The number that each worker has for this mapping; None where that is not known."""
        if each.worker is None:
            return self.workers
        form = self.form(each.worker)
        return None if form is None or form.terms else np.asarray(form.base)

    def _enumerated_loop(self, loop: ir.For, axis: int) -> Form | None:
        start, stop = self.form(loop.start), self.form(loop.stop)
        if start is None or stop is None or start.terms or stop.terms:
            return None
        distance = stop.base - start.base if loop.step > 0 else start.base - stop.base
        count = max(0, -(-int(np.max(distance, initial=0)) // abs(loop.step)))
        if count > self.steps:
            return None
        return Form({}, start.base + along(np.arange(count) * loop.step, axis))

    def frame(self, frame: Frame, stores: bool = False) -> Truth:
        """Where a frame lets execution through, as far as enumeration knows.

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
        axis = self.program.axis(each)
        valid = _spread(task_arrays(each.mapping)[1], number, axis)
        if stores:
            valid = valid & _spread(first_owners(each.mapping), number, axis)
        if each.worker is not None:
            valid = valid & (number >= 0) & (number < each.mapping.workers)
        return TRUE if valid is True else Truth(valid, valid)

    def _for_frame(self, loop: ir.For) -> Truth:
        form = self.form(loop.variable)
        if form is None or form.terms or form.is_uniform:
            return TRUE
        stop = self.form(loop.stop)
        if stop is None or stop.is_uniform:
            return TRUE
        inside = form.base < stop.base if loop.step > 0 else form.base > stop.base
        return Truth(inside, inside)

    def path(self, frames: Iterable[Frame], stores: bool = False) -> Truth:
        """Where all frames let execution through: what those around say is told once for all inside."""
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
        """Whether the value is one of before the phase, when cells had other values."""
        if not self.cells:
            return False
        return not self.cells.keys().isdisjoint(tensors_read(node, self.program.lets))

    # Conditions.

    def truth(self, node: Expression) -> Truth:
        if id(node) not in self.truths:
            self.truths[id(node)] = node, self._truth(node)
        return self.truths[id(node)][1]

    def _truth(self, node: Expression) -> Truth:
        match node:
            case ir.Constant():
                return TRUE if node.value else FALSE
            case Variable() if node in self.program.lets:
                return self.truth(self.program.lets[node])
            case ir.Unary(operator="not"):
                return negated(self.truth(node.operand))
            case ir.Binary(operator="and" | "&"):
                return conjunction(self.truth(node.left), self.truth(node.right))
            case ir.Binary(operator="or" | "|"):
                left, right = self.truth(node.left), self.truth(node.right)
                return negated(conjunction(negated(left), negated(right)))
            case ir.Binary() if node.operator in COMPARE and node.left.dtype.is_integer:
                left_form, right_form = self.form(node.left), self.form(node.right)
                if left_form is None or right_form is None:
                    return UNKNOWN
                difference = left_form.plus(right_form, -1)
                if difference.terms:
                    return UNKNOWN
                result = COMPARE[node.operator](difference.base, 0)
                return Truth(result, result)
        return UNKNOWN


def _fits(form: Form, dtype: DType) -> bool:
    """The numbers surely don't wrap in their type; sums of 64 bits are taken not to."""
    if dtype.bits == 64:
        return True
    if form.terms:
        return False
    if not np.size(form.base):
        return True
    return bool(dtype.minimum <= np.min(form.base) and np.max(form.base) <= dtype.maximum)


def _spread(values: Array | bool, number: Any, axis: int) -> Any:
    """[slot, worker] arrays with the slots along an axis, for the workers' numbers."""
    if isinstance(values, bool):
        return values
    slots, workers = values.shape
    whole = number.ndim == 1 and np.array_equal(number, np.arange(workers))
    picked = values if whole else values[:, np.clip(number, 0, workers - 1)]
    return picked.reshape((slots,) + (1,) * (axis - number.ndim) + picked.shape[1:])


def size_of(*arrays: Any) -> int:
    """How many elements the arrays have once they are broadcast together."""
    return prod(np.broadcast_shapes(*(np.shape(array) for array in arrays)))
