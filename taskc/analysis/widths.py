"""The widest vectorized or coalesced access at a place: its alignment, from known divisors of an index.

Parameters start at an address that is a multiple of 16 bytes.
"""

from __future__ import annotations

from math import gcd

from taskc.analysis.banks import line_of
from taskc.analysis.facts import Facts
from taskc.ir import nodes as ir
from taskc.ir.linear import Opaque
from taskc.ir.mapping import repeat
from taskc.ir.nodes import GLOBAL, SHARED, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import walk, walk_statements
from taskc.ir.target import Target


def facts_of_names(program: ir.Kernel | Statement) -> Facts:
    """All facts about the names that a program binds, wherever they are bound."""
    facts = Facts.empty()
    if isinstance(program, ir.Kernel):
        facts.bind_processors(program)
        program = program.body
    for node in walk_statements(program):
        facts.enter(node)  # conditions hold only inside, and are dropped
    return facts


def divisor(expression: Expression | int, known: Facts) -> int:
    """A number that divides the value of an index; 0 stands for the value 0, which all numbers divide."""
    return abs(expression) if isinstance(expression, int) else gcd(*known.congruence(expression))


def contiguous_width(
    indices: tuple[Expression, ...],
    shape: tuple[int | Expression, ...],
    along: Variable,
    limit: int,
    known: Facts,
) -> int:
    """The widest power of two, up to `limit`, of aligned consecutive elements along `along`.

    0 where the access does not depend on `along`.
    """
    if not any(node is along for index in indices for node in walk(index)):
        return 0
    *leading, last = indices
    common = min([steady_width(index, along, limit, known) for index in leading], default=limit)
    if isinstance(last, ir.Binary) and last.operator == "%":
        # The remainders of a run between two multiples of the divisor.
        common, last = gcd(common, divisor(last.right, known)), last.left
    if not unit_stride(last, along, known):
        return 1
    common = gcd(*known.congruence_of(known.affine(last).without(along)), common)
    if leading:
        common = gcd(divisor(shape[-1], known), common)
    return common & -common


def steady_width(index: Expression, along: Variable, limit: int, known: Facts) -> int:
    """The widest power of two, up to `limit`, of aligned consecutive values of `along` that don't change it."""
    if not any(node is along for node in walk(index)):
        return limit
    match index:
        case ir.Binary(operator="//", left=left, right=right) if unit_stride(left, along, known):
            base = known.affine(left).without(along)
            common = gcd(*known.congruence_of(base), divisor(right, known), limit)
            return common & -common
        case ir.Binary(left=left, right=right):
            widths = [steady_width(part, along, limit, known) for part in (left, right)]
            return min(widths)
    return 1


def unit_stride(index: Expression, along: Variable, known: Facts) -> bool:
    """Whether index = along + terms without `along`."""
    form = known.affine(index)
    rest = [atom.expression for atom in form.terms if isinstance(atom, Opaque)]
    return form.coefficient(along) == 1 and not any(along is n for part in rest for n in walk(part))


def move_width(move: ir.Move, target: Target, known: Facts) -> int:
    """The number of consecutive elements that one worker of a move can access at a time."""
    along = move.variables[-1]
    limit = max(1, target.vector_bytes // move.tensor.dtype.nbytes)
    limit = gcd(limit, move.shape[-1])
    places = [(move.tensor, move.indices)] + [
        (node.tensor, node.indices)
        for node in walk(move.value)
        if isinstance(node, ir.Read) and node.tensor.scope in (GLOBAL, SHARED)
    ]
    for tensor, indices in places:
        if tensor.scope in (GLOBAL, SHARED):
            pitches = _pitches(tensor)
            if pitches is None:
                return 1
            width = contiguous_width(indices, pitches, along, limit, known)
            limit = min(limit, width) if width else limit
    return max(1, limit)


def _pitches(tensor: Tensor) -> tuple[int | Expression, ...] | None:
    """The extents of a row-major tensor in memory, padding included; None for another layout.

    In panels a row is that of a panel: what lies in a row from a multiple of its width on is together.
    """
    if tensor.layout is None:
        return tensor.shape
    extents = tensor.layout.shape
    if tensor.layout == repeat(*extents):
        return extents
    line = line_of(tensor)
    return None if line is None else (*extents[:-1], line)
