"""The cost of a fusion on a processor: what a kernel computes and reads more, against the bytes that are not moved.

    layer_norm(x, out=t); moved(t, s, out=y)     moved: out[i, j, k] = t[i, j, k] * s[j]
->
    y[row, col] = ... * s[col // 9 % 8]          each vector of 16 gathers s: 20 operations, for 8 bytes in a cache

The unit is an operation on one element of a vector. Counted is each evaluation of all workers, so a value that every
lane computes alike counts as often as there are lanes. A read counts by its index along the lanes: one that is
uniform or contiguous is one load, quotients and remainders are some segments of a vector, all else is a gather.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd

from taskc.analysis.facts import Facts
from taskc.analysis.widths import facts_of_names, unit_stride
from taskc.ir import nodes as ir
from taskc.ir.linear import Opaque
from taskc.ir.nodes import Expression, Kernel, Statement, Tensor, Variable
from taskc.ir.program import Computation
from taskc.ir.rewrite import expressions, operands_first, statements, walk, walk_statements
from taskc.passes.programs.indices import flat_index
from taskc.passes.programs.reads import Estimate
from taskc.passes.programs.work import bytes_weighed, elements_of, operations_of_node

_GATHER = 24  # of a vector whose elements lie apart
_SHUFFLED = 4  # of one whose elements lie in few vectors
_DIGIT = 4  # of a quotient or remainder of a vector's first lane
_SEGMENT, _MOST_SEGMENTS = 3, 4  # of the lanes with one quotient; of more, a gather

_Lanes = dict[Variable, tuple[int, ...]]


def is_worth_fusing(
    before: Kernel, made: Kernel, added: Computation, memory: Tensor, lanes: int
) -> bool:
    """Whether a kernel with a computation in it costs no more than the two, and the memory between them."""
    apart = _cost(before, lanes) + elements_of(added.output.shape) * _of_element(added, lanes)
    return _cost(made, lanes) <= apart + bytes_weighed(memory, 2)


def _cost(kernel: Kernel, lanes: int) -> float:
    """Operations of all workers on the values of a kernel, and its accesses."""
    estimate, known = Estimate(kernel), facts_of_names(kernel.body)
    total = 0.0
    alike = _Weigh({}, set(), lanes, known)
    pending: list[tuple[Statement, int, _Weigh]] = [(kernel.body, 1, alike)]
    while pending:
        node, times, weigh = pending.pop()
        inside = times * estimate.times(node)
        if isinstance(node, ir.Each | ir.Move):
            offsets = _lane_offsets(node, lanes)
            weigh = _Weigh(offsets, _varying(node, offsets), lanes, known)
        own = inside if isinstance(node, ir.Move | ir.While) else times
        total += own * weigh.statement(node)
        pending += [(below, inside, weigh) for below in statements(node)]
    return total


def _of_element(computation: Computation, lanes: int) -> float:
    """One element of a computation by itself, whose lanes go along its last axis."""
    last = computation.variables[-1:]  # none of a single number
    offsets = dict.fromkeys(last, tuple(range(lanes)))
    weigh = _Weigh(offsets, set(last), lanes, Facts.empty())
    # Reads along other axes are turned in squares, or shared by neighbours.
    return 1 + weigh.value(computation.value, most=2 * _SHUFFLED)


def _lane_offsets(each: ir.Each | ir.Move, lanes: int) -> _Lanes:
    """How far the tasks of neighbouring workers are from the first one's, for each variable in which they differ."""
    if isinstance(each, ir.Move):
        return {each.variables[-1]: tuple(range(lanes))}
    tasks = each.mapping.tasks[:lanes, 0]
    offsets = [tuple((column - column[0]).tolist()) for column in tasks.T]
    return {
        variable: moved
        for variable, moved in zip(each.variables, offsets, strict=True)
        if any(moved)
    }


class _Weigh:
    """The costs of a vector's values.

    offsets  of each lane from the first one, for the variables in which they differ
    varying  these, and the names that are made of them
    """

    def __init__(self, offsets: _Lanes, varying: set[Variable], lanes: int, known: Facts) -> None:
        self.offsets = offsets
        self.varying = varying
        self.lanes = lanes
        self.known = known
        self.digits: set[ir.Binary] = set()  # computed once, whatever reads by them

    def statement(self, node: Statement) -> float:
        cost = sum([self.value(part) for part in expressions(node)])
        if isinstance(node, ir.Store | ir.Move):
            cost += self.access(node.tensor, node.indices)
        return cost

    def value(self, value: Expression, most: int = _GATHER) -> float:
        """Each distinct part once, and none of an index."""

        def parts(node: Expression) -> Sequence[Expression]:
            return () if isinstance(node, ir.Read) else list(expressions(node))

        return sum(
            [
                min(most, self.access(node.tensor, node.indices))
                if isinstance(node, ir.Read)
                else operations_of_node(node)
                for node in operands_first(value, parts)
            ]
        )

    def access(self, tensor: Tensor, indices: tuple[Expression, ...]) -> int:
        """A vector's elements by how they lie; of private memory, and of no lanes, one load."""
        if tensor.scope not in (ir.GLOBAL, ir.SHARED) or tensor.layout is not None:
            return 1
        if not self._varies(*indices):
            return 1
        form = self.known.affine(flat_index(indices, tensor.shape))
        places = [0] * len(next(iter(self.offsets.values())))
        for variable, offsets in self.offsets.items():
            step = form.coefficient(variable)
            places = [place + step * moved for place, moved in zip(places, offsets, strict=True)]
        known = self._of_places(places)
        opaque = [atom.expression for atom in form.terms if isinstance(atom, Opaque)]
        if not self._varies(*opaque):
            return known
        return _GATHER if known > 1 else self._by_digits(opaque)

    def _of_places(self, places: list[int]) -> int:
        if not any(places) or places == list(range(len(places))):
            return 1
        return _SHUFFLED if max(places) - min(places) < _SHUFFLED * self.lanes else _GATHER

    def _by_digits(self, opaque: list[Expression]) -> int:
        """By quotients and remainders of a number that counts up from lane to lane."""
        digits = {
            part
            for whole in opaque
            for part in walk(whole)
            if isinstance(part, ir.Binary) and part.operator in ("//", "%") and self._varies(part)
        }
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

    def _length(self, digit: ir.Binary) -> int | None:
        """How many neighbours have one quotient; 0 where these are whole vectors.

        None of what isn't a digit of a number that counts up: a digit of another one, perhaps.
        """
        along = [it for it, moved in self.offsets.items() if moved == tuple(range(len(moved)))]
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


def _uses(names: set[Variable], values: Iterable[Expression]) -> bool:
    return any(
        isinstance(node, Variable) and node in names for value in values for node in walk(value)
    )


def _varying(node: Statement, offsets: _Lanes) -> set[Variable]:
    """The variables in which lanes differ, and the names that are made of these."""
    names = set(offsets)
    for below in walk_statements(node):
        if isinstance(below, ir.Let) and _uses(names, (below.value,)):
            names.add(below.variable)
    return names
