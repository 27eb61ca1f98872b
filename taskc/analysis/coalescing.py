"""The cost of an access: bank conflicts, and its greatest width.

Bank conflicts are cycles that shared memory takes for an access of a warp. `layout` chooses layouts by them, and the
simulator reports them and gives advice.

The width of a vectorized or coalesced access follows from the alignment of its place, and that from known divisors of
an index. Parameters start at an address that is a multiple of 16 bytes.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from taskc.analysis.facts import Facts
from taskc.ir import nodes as ir
from taskc.ir.fragments import UNIT, swizzle_of
from taskc.ir.linear import Opaque
from taskc.ir.mapping import Mapping, repeat
from taskc.ir.nodes import GLOBAL, SHARED, Expression, Statement, Swizzle, Tensor, Variable
from taskc.ir.rewrite import walk, walk_statements
from taskc.ir.target import Target

Array: TypeAlias = npt.NDArray[Any]

WORD = 4  # bytes of a bank
_NOTHING = np.iinfo(np.int64).max


def bank_cycles(addresses: Array, width: int, banks: int, active: Array | None = None) -> Array:
    """The cycles of each group of lanes that are served at the same time, [group, access].

    addresses  the first byte that a lane takes, [lane, access]
    width      how many bytes a lane takes; of 8 and 16 a half and a quarter of a warp are served at a time
    active     the lanes that take part, in all accesses; a group of none of these takes no cycle
    """
    count, accesses = addresses.shape
    words = max(width // WORD, 1)
    served = max(min(banks // words, count), 1)
    groups = -(-count // served)
    touched = np.full((groups * served, accesses, words), _NOTHING)
    lanes = slice(count) if active is None else np.flatnonzero(active)
    touched[lanes] = addresses[lanes][..., None] // WORD + np.arange(words)
    # A row has the words of one group and access: each counts once, in its bank.
    touched = touched.reshape(groups, served, accesses, words).transpose(0, 2, 1, 3)
    touched = np.sort(touched.reshape(groups * accesses, -1), axis=1)
    counted = touched != _NOTHING
    counted[:, 1:] &= touched[:, 1:] != touched[:, :-1]
    bank = np.arange(len(touched))[:, None] * banks + touched % banks
    counts = np.bincount(bank[counted], minlength=len(touched) * banks)
    cycles: Array = counts.reshape(groups, accesses, banks).max(axis=2)
    return cycles


def swizzled(swizzle: Swizzle | None, offsets: Array) -> Array:
    """The physical offsets of elements at these offsets of the layout."""
    if swizzle is None:
        return offsets
    mask = (1 << swizzle.bits) - 1
    moved: Array = offsets ^ (((offsets >> swizzle.shift) & mask) << swizzle.base)
    return moved


# A panel has the widest lines that a swizzle supports; it is one box of a bulk copy.


ATOM = 8  # lines that a swizzle distinguishes


def panel_layout(shape: tuple[int, ...], line: int) -> Mapping:
    """Panels of `line` columns one after the other, each row-major."""
    *outer, rows, columns = shape
    ones = (1,) * len(outer)
    return repeat(*outer, 1, columns // line) * repeat(*ones, rows, line)


def line_of(tensor: Tensor) -> int | None:
    """The columns of a tensor's panels: all, if it is row-major; None if it has no panels."""
    shape = tuple(n for n in tensor.shape if isinstance(n, int))
    if tensor.layout is None:
        return shape[-1]
    modes = tensor.layout.slot_modes
    if not modes or len(shape) < 2 or modes[-1].dimension != len(shape) - 1:
        return None
    line = modes[-1].size
    is_whole = shape[-1] % line == 0 and tensor.layout == panel_layout(shape, line)
    return line if is_whole else None


def in_panels(tensor: Tensor) -> Tensor | None:
    """Shared memory in panels as wide as a swizzle; None if no width divides its rows."""
    if tensor.scope != SHARED or tensor.layout is not None or tensor.swizzle is not None:
        return tensor
    shape = tuple(n for n in tensor.shape if isinstance(n, int))
    size = tensor.dtype.nbytes
    width = next((w for w in (8 * UNIT, 4 * UNIT, 2 * UNIT, UNIT) if shape[-1] * size % w == 0), 0)
    if len(shape) < 2 or not width or shape[-2] % ATOM:
        return None
    line = width // size
    layout = None if line == shape[-1] else panel_layout(shape, line)
    return replace(tensor, layout=layout, swizzle=swizzle_of(width, tensor.dtype))


def slots_of(tensor: Tensor, count: int) -> Tensor:
    """`count` tensors of one form, one after the other, such as a ring's slots."""
    layout = tensor.layout
    if layout is not None:
        assert layout.slot_modes is not None
        lifted = [
            mode if mode.dimension is None else mode._replace(dimension=mode.dimension + 1)
            for mode in layout.slot_modes
        ]
        one = Mapping.from_modes((1, *layout.shape), [], lifted)
        layout = repeat(count, *(1 for _ in layout.shape)) * one
    return replace(tensor, shape=(count, *tensor.shape), layout=layout)


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
