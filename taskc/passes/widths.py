"""How wide an access may be: alignment, from what is known to divide an index.

Parameters start at an address that is a multiple of 16 bytes.
"""

from __future__ import annotations

from math import gcd, lcm, prod

from taskc.ir import nodes as ir
from taskc.ir.mapping import repeat
from taskc.ir.nodes import GLOBAL, SHARED, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import substitute, walk
from taskc.ir.target import Target
from taskc.passes.panels import line_of

Multiples = dict[Variable, int]


def known_multiples(body: Statement) -> Multiples:
    """What divides the variables that a program binds, as far as it shows."""
    known: Multiples = {}
    for node in walk(body):
        match node:
            case ir.Grid():
                known.update(zip(node.variables, node.by, strict=True))
            case ir.Pipeline():
                known[node.variable] = node.by
            case ir.For(start=ir.Constant(value=start)):
                known[node.variable] = gcd(int(start), node.step)
            case ir.Let():
                known[node.variable] = divisor(node.value, known)
    return known


def divisor(expression: Expression | int, known: Multiples) -> int:
    """A number that divides the value of an index; 0 stands for the value 0, which all divide."""
    match expression:
        case int():
            return abs(expression)
        case ir.Constant(value=value):
            return abs(int(value))
        case Variable():
            return lcm(known.get(expression, 1), expression.multiple)
        case ir.Binary(operator="+" | "-" | "%", left=left, right=right):
            return gcd(divisor(left, known), divisor(right, known))
        case ir.Binary(operator="*", left=left, right=right):
            return divisor(left, known) * divisor(right, known)
    return 1


def contiguous_width(
    indices: tuple[Expression, ...],
    shape: tuple[int | Expression, ...],
    along: Variable,
    limit: int,
    known: Multiples,
) -> int:
    """The widest power of two, up to `limit`, of aligned consecutive elements that `along` walks over.

    0 where the access does not depend on `along`.
    """
    if not any(node is along for index in indices for node in walk(index)):
        return 0
    *leading, last = indices
    common = min([steady_width(index, along, limit, known) for index in leading], default=limit)
    if isinstance(last, ir.Binary) and last.operator == "%":
        # The remainders of a run that lies between two multiples of the divisor.
        common, last = gcd(common, divisor(last.right, known)), last.left
    if not unit_stride(last, along):
        return 1
    base = substitute(last, {along: ir.Constant(0)})
    common = gcd(divisor(base, known), common)
    if leading:
        common = gcd(divisor(shape[-1], known), common)
    return common & -common


def steady_width(index: Expression, along: Variable, limit: int, known: Multiples) -> int:
    """The widest power of two, up to `limit`, of aligned consecutive values of `along` that don't change it."""
    if not any(node is along for node in walk(index)):
        return limit
    match index:
        case ir.Binary(operator="//", left=left, right=right) if unit_stride(left, along):
            base = substitute(left, {along: ir.Constant(0)})
            common = gcd(divisor(base, known), divisor(right, known), limit)
            return common & -common
        case ir.Binary(left=left, right=right):
            widths = [steady_width(part, along, limit, known) for part in (left, right)]
            return min(widths)
    return 1


def unit_stride(index: Expression, along: Variable) -> bool:
    """index = along + something else."""
    if index is along:
        return True
    if isinstance(index, ir.Binary) and index.operator in ("+", "-"):
        left = any(node is along for node in walk(index.left))
        right = any(node is along for node in walk(index.right))
        if left == right or (right and index.operator == "-"):
            return False
        return unit_stride(index.left if left else index.right, along)
    return False


def move_width(move: ir.Move, target: Target, known: Multiples) -> int:
    """How many consecutive elements one worker of a move can take at a time."""
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


def elements(shape: tuple[int, ...]) -> int:
    return prod(shape)
