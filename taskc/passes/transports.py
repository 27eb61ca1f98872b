"""The choice of a transport for the block values of a pipelined loop."""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign, gcd, prod

from taskc.analysis.banks import line_of
from taskc.analysis.facts import Facts
from taskc.analysis.widths import (
    contiguous_width,
    divisor,
    facts_of_names,
    move_width,
    steady_width,
    unit_stride,
)
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.affine import affine
from taskc.ir.build import multiply, subtract
from taskc.ir.nodes import GLOBAL, Tensor
from taskc.ir.rewrite import walk
from taskc.ir.target import Target
from taskc.passes.pixels import misplaced, pixels_of

COPY_BYTES = (16, 8, 4)
BOX_EXTENT = 256


def transport_for(
    pipeline: ir.Pipeline,
    moves: Sequence[ir.Move],
    kernel: ir.Kernel,
    target: Target,
    notes: list[tuple[str, Location]],
) -> str:
    """The pipeline's own choice, or the best that all its loads allow.

    Two stages travel through registers: with one step in flight that costs no more, and needs one barrier
    a step. Bulk copies are taken where they are asked for, or where a producer warp issues them.
    """
    if pipeline.transport is not None:
        refusal = refusal_of(pipeline.transport, moves, target, kernel)
        if refusal is not None:
            raise CompileError(
                f"this pipeline can't travel by {pipeline.transport}: {refusal}", pipeline.loc
            )
        return pipeline.transport
    for transport in target.transports:
        if transport == "tma" and not pipeline.specialize:
            continue
        if transport == "cp.async" and pipeline.stages == 2 and not pipeline.specialize:
            continue
        refusal = refusal_of(transport, moves, target, kernel)
        if refusal is None:
            return transport
        notes.append((f"this pipeline does not travel by {transport}: {refusal}", pipeline.loc))
    return "registers"


def refusal_of(
    transport: str, moves: Sequence[ir.Move], target: Target, kernel: ir.Kernel
) -> str | None:
    known = facts_of_names(kernel)
    if transport not in target.transports:
        return f"{target.name} does not have it"
    if transport == "registers":
        return None
    for move in moves:
        refusal = (
            _copy_refusal(move, target, known)
            if transport == "cp.async"
            else _load_refusal(move, known)
        )
        if refusal is not None:
            return f"the load of `{move.tensor.name}` {refusal}"
    return None


def plain_read(move: ir.Move) -> tuple[ir.Read, ir.Expression | None] | None:
    """The read that a move copies unchanged, and the condition outside of which it writes zeros; None for other
    moves.
    """
    value = move.value
    condition: ir.Expression | None = None
    if isinstance(value, ir.Select):
        other = value.otherwise
        if not isinstance(other, ir.Constant) or other.value or _is_negative_zero(other):
            return None
        condition = value.condition
        value = value.then
    if not isinstance(value, ir.Read) or value.tensor.scope != GLOBAL or move.guard is not None:
        return None
    return value, condition


def _is_negative_zero(constant: ir.Constant) -> bool:
    return constant.dtype.is_float and copysign(1.0, constant.value) < 0


def copy_elements(move: ir.Move, target: Target, known: Facts) -> int:
    """The number of elements of one asynchronous copy; 0 if not even 4 bytes are aligned."""
    size = move.tensor.dtype.nbytes
    width = gcd(move_width(move, target, known), run_of(move))
    read = plain_read(move)
    if read is not None and read[1] is not None:
        width = min(width, _condition_width(read[1], move.variables[-1], known))
    return next((n // size for n in COPY_BYTES if n % size == 0 and n // size <= width), 0)


def run_of(move: ir.Move) -> int:
    """The number of consecutive elements of the last dimension in a worker's consecutive slots."""
    assert move.by is not None
    modes = move.by.slot_modes
    if not modes:
        return 1
    fastest = modes[-1]
    is_run = fastest.dimension == len(move.shape) - 1 and fastest.stride == 1
    return fastest.size if is_run else 1


def _condition_width(condition: ir.Expression, along: ir.Variable, known: Facts) -> int:
    """The number of aligned consecutive values of `along` for which a condition has one outcome."""
    match condition:
        case ir.Binary(operator="and" | "or", left=left, right=right):
            return min(_condition_width(left, along, known), _condition_width(right, along, known))
        case ir.Binary(operator="<" | "<=" | ">=" | ">", left=left, right=right):
            steady = min(steady_width(part, along, 1 << 10, known) for part in (left, right))
            if steady > 1:
                return steady
            # base + along < bound: both multiples of the width, so a run is on one side of the bound.
            if condition.operator in ("<", ">="):
                width = contiguous_width((left,), (0,), along, 1 << 10, known)
                bound = divisor(right, known)
                return min(width, bound & -bound) if bound else width
    return 1 if any(node is along for node in walk(condition)) else 1 << 10


def _copy_refusal(move: ir.Move, target: Target, known: Facts) -> str | None:
    read = plain_read(move)
    if read is None:
        return "is not a plain copy that fills with zeros"
    if read[0].dtype != move.tensor.dtype:
        return "converts its type"
    if not copy_elements(move, target, known):
        return "is not aligned to 4 bytes"
    return None


def _only_tests_bounds(condition: ir.Expression, read: ir.Read) -> bool:
    """Whether the condition only requires the read's indices to be in bounds."""
    match condition:
        case ir.Binary(operator="and", left=left, right=right):
            return _only_tests_bounds(left, read) and _only_tests_bounds(right, read)
        case ir.Binary(operator="<" | "<=" | ">" | ">=" as operator, left=left, right=right):
            if operator in (">", ">="):
                left, right = right, left
            least = 1 if operator in ("<", ">") else 0
            margin = subtract(right, left)  # at least `least`
            return any(
                _implies(one, margin, least)
                for index, extent in zip(read.indices, read.tensor.shape, strict=True)
                for one in (index, subtract(subtract(extent, 1), index))
            )
    return False


def _implies(one: ir.Expression, other: ir.Expression, least: int) -> bool:
    """Whether `other` >= `least` follows if `one` isn't negative; `one` may be a multiple of `other` plus a
    constant.
    """
    form, part = affine(one), affine(other)
    for atom, factor in part.terms.items():
        times, rest = divmod(form.coefficient(atom), factor)
        if rest or times < 1:
            return False
        more = form - affine(multiply(other, times))
        return more.is_constant and -(more.constant // times) >= least
    return False


def _load_refusal(move: ir.Move, known: Facts) -> str | None:
    read = plain_read(move)
    if read is None:
        return "is not a plain copy that fills with zeros"
    source, condition = read
    if source.dtype != move.tensor.dtype:
        return "converts its type"
    pixels = pixels_of(move, source, known)
    if pixels is None:
        return box_refusal(move.tensor, move, source, condition, known)
    if source.tensor.layout is not None:
        return "has a layout of its own"
    return (
        _fill_refusal(source, condition)
        or _line_refusal(move.tensor, move, source, known)
        or misplaced(pixels, source, known)
    )


def box_refusal(
    shared: Tensor,
    move: ir.Move,
    distant: ir.Read,
    condition: ir.Expression | None,
    known: Facts,
) -> str | None:
    """The reason why a bulk copy can't transfer the elements `distant` of a move to or from shared memory.

    condition  outside of which nothing is copied
    """
    if distant.tensor.layout is not None:
        return "has a layout of its own"
    used = [[v for v in move.variables if any(n is v for n in walk(i))] for i in distant.indices]
    steps = [(i, v) for i, variables in zip(distant.indices, used, strict=True) for v in variables]
    is_straight = all(len(variables) <= 1 for variables in used)
    if not is_straight or [v for _, v in steps] != list(move.variables):
        return "is not a box of its tensor"
    if not all(unit_stride(index, v, known) for index, v in steps):
        return "is not a box of its tensor"
    return _fill_refusal(distant, condition) or _line_refusal(shared, move, distant, known)


def _fill_refusal(distant: ir.Read, condition: ir.Expression | None) -> str | None:
    if condition is not None and not _only_tests_bounds(condition, distant):
        return "fills more than what lies outside its tensor"
    return None


def _line_refusal(shared: Tensor, move: ir.Move, distant: ir.Read, known: Facts) -> str | None:
    """The reason why a bulk copy can't transfer the rows, in shared memory and in the tensor."""
    size = shared.dtype.nbytes
    line = line_of(shared)
    if line is None:
        return "goes to shared memory of another layout"
    box = (*move.shape[:-1], line)
    if line * size % 16:
        return "has rows that are not a multiple of 16 bytes"
    if len(distant.indices) > 1 and divisor(distant.tensor.shape[-1], known) * size % 16:
        return "comes from rows that are not a multiple of 16 bytes"
    if prod(box) * size % 128:
        return "takes slots that are not a multiple of 128 bytes"
    if any(extent > BOX_EXTENT for extent in box):
        return f"is wider than {BOX_EXTENT}"
    return None
