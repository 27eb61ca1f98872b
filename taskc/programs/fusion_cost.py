"""The cost of a fusion on a processor: additional operations and reads against memory traffic saved.

    layer_norm(x, out=t); moved(t, s, out=y)     moved: out[i, j, k] = t[i, j, k] * s[j]
->
    y[row, col] = ... * s[col // 9 % 8]          each vector of 16 gathers s: 20 operations, for 8 bytes in a cache

The unit is an operation on one element of a vector. Every evaluation of every worker counts, so a value that is the
same in all lanes counts once for each lane. A read counts by its index along the lanes: a uniform or contiguous one is
one load, one by quotients and remainders is a few segments of a vector, and any other is a gather. Quotients that all
lanes share are computed as often as their variables change: once a row, or once a vector.

A long operation such as tanh fills a core's window of instructions with a few vectors of work. Latencies that the
window hid before then show: a row's fold, as the next row is beyond the window, and arrays that a tile reads by
columns, which no prefetcher follows.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from math import ceil, gcd

from taskc.analysis.coalescing import facts_of_names, unit_stride
from taskc.analysis.facts import Facts
from taskc.ir import nodes as ir
from taskc.ir.linear import Affine, Opaque
from taskc.ir.nodes import Expression, Kernel, Statement, Tensor, Variable
from taskc.ir.rewrite import (
    all_below,
    expressions,
    operands_first,
    statements,
    walk,
    walk_statements,
)
from taskc.programs.indices import flat_index
from taskc.programs.ir import Computation, variables_in
from taskc.programs.traffic import (
    Estimate,
    bytes_weighed,
    elements_of,
    is_cached,
    operations_of_node,
    size_at_a_call,
    without_indices,
)

# Costs, each per element of a vector.
_GATHER = 24  # a vector with scattered elements
_SHUFFLED = 4  # a vector whose elements are in few vectors
_DIGIT = 4  # a quotient or remainder of a vector's first lane
_PLACE = 4  # an index that is read from a table, and what is computed of it
_SEGMENT = 4  # the lanes with one quotient
_MOST_SEGMENTS = 4  # a vector of more is a gather
_LONG = 14  # an operation this long fills the window, such as a math function
_FOLD = 256  # the time of a fold of lanes
_WINDOW = 128  # operations on vectors that can wait at the same time
_WORD = 4  # bytes of the elements of which is known:
_FAR = 18  # a vector of a large array's tile, which no prefetcher follows
_FAR_ALONE = 48  # the same where long operations prevent overlapping such reads
_MOST_NEIGHBOURS = 8  # vectors of a row of a tile

_Lanes = dict[Variable, tuple[int, ...]]


def is_worth_fusing(
    before: Kernel, made: Kernel, added: Computation, memory: Tensor, lanes: int
) -> bool:
    """Whether the fused kernel costs no more than the two calls and the memory traffic between them."""
    alike, known = _alike(before, made), facts_of_names(made)
    for node in walk_statements(before.body):
        if id(node) not in alike:  # the others' names are known
            known.enter(node)
    apart = _cost(before, known, lanes, alike) + _of_computation(added, lanes)
    return _cost(made, known, lanes, alike) <= apart + _moved(added, memory)


def _alike(before: Kernel, made: Kernel) -> set[int]:
    """The identities of statements that both kernels have: they cost the same, unless a fold waits for others."""
    if all_below(before.body, ir.Reduce):
        return set()
    return {*map(id, walk_statements(before.body))} & {*map(id, walk_statements(made.body))}


def _moved(added: Computation, memory: Tensor) -> int:
    """The operations in the time that it takes to store and load the memory between two calls: none if it is cached
    with room to spare, and long operations hide the accesses."""
    hides = is_cached(memory, parts=2) and _long_operations([added.value])
    return bytes_weighed(memory, 0 if hides else 2)


def _cost(kernel: Kernel, known: Facts, lanes: int, left_out: Container[int]) -> float:
    """The cost of a kernel: operations of all workers on values, and accesses.

    left_out  identities of statements that aren't weighed
    """
    estimate = Estimate(kernel)
    changes = _Changes(estimate.names)
    total, folds = 0.0, list[int]()
    before = [0.0]  # long operations before each fold, and after the last
    alike = _Weigh({}, set(), lanes, known, changes)
    weighed = [alike]
    pending: list[tuple[Statement, int, _Weigh]] = [(kernel.body, 1, alike)]
    while pending:
        node, times, weigh = pending.pop()
        if id(node) in left_out:
            continue
        inside = times * estimate.times(node)
        changes.enter(node, times, inside, lanes)
        if isinstance(node, ir.Each | ir.Move):
            offsets = _lane_offsets(node, lanes)
            weigh = _Weigh(offsets, _varying(node, offsets), lanes, known, changes, _span(node))
            weighed.append(weigh)
        if isinstance(node, ir.Reduce):
            folds.append(times * lanes)
            before.append(0.0)
        evaluations = inside if isinstance(node, ir.Move | ir.While) else times
        total += evaluations * weigh.statement(node)
        before[-1] += evaluations * _long_operations(expressions(node))
        pending += [(below, inside, weigh) for below in reversed([*statements(node)])]
    before[0] += before.pop() if folds else 0.0  # the next row follows the last fold
    waits = sum([min(fold, long / _WINDOW) for fold, long in zip(folds, before, strict=False)])
    return total + _FOLD * waits + sum([weigh.shared for weigh in weighed])


def _is_looked_up(read: ir.Read) -> bool:
    """Whether an index is data: no order of elements makes neighbours of such reads."""
    return any(isinstance(part, ir.Read) for index in read.indices for part in walk(index))


def _long_operations(values: Iterable[Expression]) -> int:
    parts = {
        id(part): part
        for value in values
        if not isinstance(value, Variable | ir.Constant)
        for part in operands_first(value)
    }
    return sum([n for part in parts.values() if (n := operations_of_node(part)) >= _LONG])


def _of_computation(computation: Computation, lanes: int) -> float:
    """The cost of a computation by itself, with lanes along its last axis."""
    last = computation.variables[-1:]  # empty for a scalar
    offsets = dict.fromkeys(last, tuple(range(lanes)))
    shape, changes = computation.output.shape, _Changes({})
    for place, variable in enumerate(computation.variables):
        changes.often[variable] = lanes * elements_of(shape[: place + 1])
    weigh = _Weigh(offsets, set(last), lanes, Facts.empty(), changes)
    # Reads along other axes are transposed in squares, or shared by neighbours.
    element = 1 + weigh.value(computation.value, most=2 * _SHUFFLED)
    return elements_of(shape) * element + weigh.shared


def _lane_offsets(each: ir.Each | ir.Move, lanes: int) -> _Lanes:
    """The offsets of neighbouring workers' tasks from the first one's, for each variable in which they differ."""
    if isinstance(each, ir.Move):
        return {each.variables[-1]: tuple(range(lanes))}
    tasks = each.mapping.tasks[:lanes, 0]
    offsets = [tuple((column - column[0]).tolist()) for column in tasks.T]
    return {
        variable: moved
        for variable, moved in zip(each.variables, offsets, strict=True)
        if any(moved)
    }


def _span(each: ir.Each | ir.Move) -> dict[Variable, int]:
    """The distance between a worker's first and last task, for each variable."""
    if isinstance(each, ir.Move):
        return {}
    tasks = each.mapping.tasks[0]
    return dict(zip(each.variables, (tasks[-1] - tasks[0]).tolist(), strict=True))


def _extents(each: ir.Each | ir.Move) -> tuple[int, ...]:
    return each.shape if isinstance(each, ir.Move) else each.mapping.shape


class _Changes:
    """The number of times that variables change, counted for each lane."""

    def __init__(self, names: Mapping[Variable, Expression]) -> None:
        self.names = names
        self.often: dict[Variable, int] = {}

    def enter(self, node: Statement, times: int, inside: int, lanes: int) -> None:
        """Record a statement that is executed `times` times, and its body `inside` times for all workers."""
        match node:
            case ir.Grid():
                for variable, extent, by in zip(node.variables, node.shape, node.by, strict=True):
                    times *= ceil(size_at_a_call(extent) / by)
                    self.often[variable] = times * lanes
            case ir.For():
                self.often[node.variable] = inside * lanes
            case ir.Each() | ir.Move():
                changing = [
                    variable
                    for variable, extent in zip(node.variables, _extents(node), strict=True)
                    if extent > 1
                ]
                self.often.update(dict.fromkeys(changing, inside))
            case _:  # no other statement binds a variable that changes
                pass

    def of(self, value: Expression) -> int:
        often = 0
        for node in walk(value):
            if isinstance(node, Variable):
                if node not in self.often and node in self.names:
                    self.often[node] = self.of(self.names[node])
                often = max(often, self.often.get(node, 0))
        return often


class _Weigh:
    """The costs of a vector's values.

    offsets  of each lane from the first one, for the variables in which lanes differ
    varying  these variables, and the names computed from them
    span     the distance between a worker's first and last vector, for each variable
    """

    def __init__(
        self,
        offsets: _Lanes,
        varying: set[Variable],
        lanes: int,
        known: Facts,
        changes: _Changes,
        span: Mapping[Variable, int] | None = None,
    ) -> None:
        self.offsets = offsets
        self.varying = varying
        self.lanes = lanes
        self.known = known
        self.changes = changes
        self.span = span or {}
        self.digits: set[ir.Binary] = set()  # counted already; each is computed once
        self.shared = 0  # the cost of digits that all lanes share
        self.has_long = False

    def statement(self, node: Statement) -> float:
        cost = sum([self.value(part) for part in expressions(node)])
        if isinstance(node, ir.Store | ir.Move):
            cost += self.access(node.tensor, node.indices)
        return cost

    def value(self, value: Expression, most: int = _GATHER) -> float:
        """The cost of a value: each distinct part once, without the parts of indices."""
        if isinstance(value, Variable | ir.Constant):
            return 0
        nodes = without_indices(value)
        reads = [node for node in nodes if isinstance(node, ir.Read)]
        operations = [operations_of_node(node) for node in nodes if not isinstance(node, ir.Read)]
        costs = [(self.access(read.tensor, read.indices), _is_looked_up(read)) for read in reads]
        cost = sum([access if at_data else min(most, access) for access, at_data in costs])
        cost += _PLACE * sum(
            [isinstance(part, ir.Read) for read in reads for part in _inside(read)]
        )
        if self.offsets and max(operations, default=0) >= _LONG:
            self.has_long = True
        # A line of memory has the more of a vector's neighbours, the shorter its elements are.
        far = sum([read.tensor.dtype.nbytes / _WORD for read in reads if self._is_far(read)])
        return cost + far * (_FAR_ALONE if self.has_long else _FAR) + sum(operations)

    def access(self, tensor: Tensor, indices: tuple[Expression, ...]) -> int:
        """The cost of accessing a vector, by its elements' addresses; one load if private or uniform."""
        if tensor.scope not in (ir.GLOBAL, ir.SHARED) or tensor.layout is not None:
            return 1
        form = self.known.affine(flat_index(indices, tensor.shape))
        opaque = [atom.expression for atom in form.terms if isinstance(atom, Opaque)]
        self._share([part for part in _digits(opaque) if not self._varies(part)])
        if not self._varies(*indices):
            return 1
        places = [0] * len(next(iter(self.offsets.values())))
        for variable, offsets in self.offsets.items():
            step = form.coefficient(variable)
            places = [place + step * moved for place, moved in zip(places, offsets, strict=True)]
        load = self._of_places(places)
        if not self._varies(*opaque):
            return load
        return _GATHER if load > 1 else self._by_digits(form, opaque)

    def _share(self, digits: list[ir.Binary]) -> None:
        for digit in digits:
            if digit not in self.digits:
                self.digits.add(digit)
                self.shared += _DIGIT * self.changes.of(digit)

    def _is_far(self, read: ir.Read) -> bool:
        """Whether a worker's vectors of a large array are in several rows."""
        tensor = read.tensor
        if tensor.scope != ir.GLOBAL or is_cached(tensor, parts=2):
            return False
        if not self._varies(*read.indices):
            return False
        form = self.known.affine(flat_index(read.indices, tensor.shape))
        span = sum([form.coefficient(variable) * moved for variable, moved in self.span.items()])
        return abs(span) > _MOST_NEIGHBOURS * self.lanes

    def _of_places(self, places: list[int]) -> int:
        if not any(places) or places == list(range(len(places))):
            return 1
        return _SHUFFLED if max(places) - min(places) < _SHUFFLED * self.lanes else _GATHER

    def _by_digits(self, form: Affine, opaque: list[Expression]) -> int:
        """The cost of a read by quotients and remainders of a number that counts up from lane to lane."""
        if any(self._step(form, variable) > 1 for variable in self.offsets):
            return _GATHER
        digits = {part for part in _digits(opaque) if self._varies(part)}
        lengths = [n for digit in digits if (n := self._length(digit)) is not None]
        if not lengths or any(
            isinstance(part, ir.Read) for whole in opaque for part in walk(whole)
        ):
            return _GATHER
        cost = _DIGIT * len(digits - self.digits)
        self.digits |= digits
        shortest = min([length for length in lengths if length], default=0)
        segments = 1 if not shortest else (self.lanes + shortest - 2) // shortest + 1
        return _GATHER if segments > _MOST_SEGMENTS else cost + _SEGMENT * segments

    def _step(self, form: Affine, along: Variable) -> int:
        """The distance between neighbouring lanes with equal quotients."""
        step = form.coefficient(along)
        for atom, factor in form.terms.items():
            if isinstance(atom, Opaque):
                value = atom.expression
                if isinstance(value, ir.Binary) and value.operator == "%":
                    step += factor * self._step(self.known.affine(value.left), along)
        return step

    def _length(self, digit: ir.Binary) -> int | None:
        """The number of neighbouring lanes with equal quotients; 0 if these are whole vectors.

        None if it is no digit of a number that counts up (though it may be a digit of such a digit).
        """
        along = [
            variable
            for variable, moved in self.offsets.items()
            if moved == tuple(range(len(moved)))
        ]
        if len(along) != 1 or not isinstance(digit.right, ir.Constant):
            return None
        if not unit_stride(digit.left, along[0], self.known):
            return None
        start = self.known.affine(digit.left).without(along[0])
        length = int(digit.right.value)
        aligned = gcd(*self.known.congruence_of(start), length)
        return 0 if aligned % self.lanes == 0 else length

    def _varies(self, *values: Expression) -> bool:
        return _uses(self.varying, values)


def _digits(values: Iterable[Expression]) -> Iterator[ir.Binary]:
    for value in values:
        for part in walk(value):
            if isinstance(part, ir.Binary) and part.operator in ("//", "%"):
                yield part


def _inside(read: ir.Read) -> list[Expression]:
    """The distinct parts of a read's indices."""
    return operands_first(read)[:-1]


def _uses(names: set[Variable], values: Iterable[Expression]) -> bool:
    return not names.isdisjoint(variables_in(*values))


def _varying(node: Statement, offsets: _Lanes) -> set[Variable]:
    """The variables in which lanes differ, and the names computed from them."""
    names = set(offsets)
    for below in walk_statements(node):
        if isinstance(below, ir.Let) and _uses(names, (below.value,)):
            names.add(below.variable)
    return names
