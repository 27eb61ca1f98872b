"""Give shared tensors a layout without bank conflicts, if one is found.

    shared t: f32[32, 32]                    written by rows, read by columns: 32 lanes, one bank
->
    shared t: f32[32, 32].laid(repeat(32, 33))

For every access the addresses of one warp are computed under each candidate layout: unchanged, rows padded by
a few elements, and, if a row is a power of two, swizzled. The cheapest wins, or the plainest of equals;
an access counts eight times more for each loop around it. Contiguous elements of a worker are one
access, in a layout that keeps them contiguous. For a move of matrices the lines count, by the lanes that name them.
Tensors that a bulk copy writes stay unchanged, as do those in a matrix instruction's form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

import numpy as np

from taskc.analysis.accesses import Access, Crew
from taskc.analysis.coalescing import (
    WORD,
    bank_cycles,
    divisor,
    facts_of_names,
    move_width,
    swizzled,
)
from taskc.analysis.facts import Facts
from taskc.analysis.indices import Array
from taskc.analysis.phases import Phases, shared_tensors
from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.fragments import LINE_BYTES, named_by_lines
from taskc.ir.mapping import repeat
from taskc.ir.nodes import SHARED, Statement, Swizzle, Tensor
from taskc.ir.rewrite import statements, walk
from taskc.ir.target import MATRIX_MOVES, TARGETS, Target
from taskc.passes.overlay import place
from taskc.passes.transports import run_of

PADDINGS = (1, 2, 4, 8, 16)
LOOP_WEIGHT = 8
SAMPLED_SLOTS = 16


@dataclass(frozen=True, slots=True)
class _Request:
    """Element indices [dimension][lane, slot] of a warp's accesses; `width` slots are one access.

    is_whole  whether they have to stay one: a move's are
    """

    indices: tuple[Array, ...]
    width: int
    weight: int
    is_whole: bool
    is_matrix: bool  # by the lanes that name lines of matrices


def layout(kernel: ir.Kernel) -> ir.Kernel:
    target = TARGETS[kernel.target]
    if not target.banks:
        return kernel
    requests = _requests(kernel, target)
    chosen: dict[Tensor, Tensor] = {}
    for tensor, tensor_requests in requests.items():
        best = min(
            _candidates(tensor, tensor_requests, target.banks),
            key=lambda c: _cost(c, tensor_requests, target),
        )
        if best is not tensor:
            chosen[tensor] = best
    return place(kernel, chosen) if chosen else kernel


def _requests(kernel: ir.Kernel, target: Target) -> dict[Tensor, list[_Request]]:
    shared = frozenset(
        t
        for t in shared_tensors(kernel.body)
        if t.scope == SHARED and t.layout is None and t.swizzle is None and t.shape
    )
    bulk = {m.tensor for m in walk(kernel.body) if isinstance(m, ir.Move) and m.how == "tma"}
    known = facts_of_names(kernel)
    requests: dict[Tensor, list[_Request]] = {}
    for statement, weight, crew in _phases(kernel.body, 1, Crew.everyone(kernel.workers)):
        width, is_matrix = None, isinstance(statement, ir.Move) and statement.how in MATRIX_MOVES
        if isinstance(statement, ir.Move) and is_matrix:
            # Eight lanes that name lines of 16 bytes are served at a time, like lanes that read 16 bytes.
            statement = named_by_lines(statement)
            width = LINE_BYTES // statement.tensor.dtype.nbytes
        elif isinstance(statement, ir.Move):
            width = gcd(move_width(statement, target, known), run_of(statement))
        phases = Phases(kernel.worker, crew, shared - bulk, {}, masked=False)
        for access in phases.of(statement, {}):
            request = _request(access, target, width, weight, known, is_matrix=is_matrix)
            if request is not None:
                requests.setdefault(access.tensor, []).append(request)
    return requests


def _phases(statement: Statement, weight: int, crew: Crew) -> Iterator[tuple[Statement, int, Crew]]:
    match statement:
        case ir.Each() | ir.Move():
            yield statement, weight, crew
        case ir.For() | ir.While() | ir.Pipeline():
            yield from _phases(statement.body, weight * LOOP_WEIGHT, crew)
        case ir.Roles():
            for role in statement.roles:
                yield from _phases(role.body, weight, Crew.everyone(role.workers, role.first))
        case _:
            for inner in statements(statement):
                yield from _phases(inner, weight, crew)


def _request(
    access: Access,
    target: Target,
    width: int | None,
    weight: int,
    known: Facts,
    *,
    is_matrix: bool,
) -> _Request | None:
    """The accesses of the first warp; None if they are unknown."""
    shape = access.workers.shape
    indices: list[Array] = []
    for index in access.indices:
        if index is None:
            return None
        lanes = np.broadcast_to(index.base, shape).reshape(shape[0], -1)[: target.warp]
        indices.append(lanes)
    is_whole = width is not None
    if width is None:
        last = access.indices[-1] if indices else None
        common = 1 if last is None else divisor(last.origin, known)
        width = _side_by_side(access.tensor, indices, common, target)
    sampled = [lanes[:, : SAMPLED_SLOTS * width] for lanes in indices]
    return _Request(tuple(sampled), width, weight, is_whole, is_matrix)


def _side_by_side(tensor: Tensor, indices: list[Array], common: int, target: Target) -> int:
    """The number of elements that a worker accesses contiguously, from a multiple of it on.

    common  divides what all of them are moved by
    """
    *leading, last = indices
    common = gcd(common, int(tensor.shape[-1]), last.shape[1])  # type: ignore[arg-type]
    width = target.vector_bytes // tensor.dtype.nbytes
    while width > 1:
        if common % width == 0:
            groups = last.reshape(len(last), -1, width)
            follow = (groups == groups[..., :1] + np.arange(width)).all()
            others = [lanes.reshape(groups.shape) for lanes in leading]
            stay = all((lanes == lanes[..., :1]).all() for lanes in others)
            if follow and stay and (groups[..., 0] % width == 0).all():
                return width
        width //= 2
    return 1


def _candidates(tensor: Tensor, requests: list[_Request], banks: int) -> Iterator[Tensor]:
    yield tensor
    extents = tuple(int(n) for n in tensor.shape)  # type: ignore[arg-type]
    if len(extents) < 2:
        return
    whole = max((request.width for request in requests if request.is_whole), default=1)
    row = extents[-1]
    line = banks * WORD // tensor.dtype.nbytes
    for widest in sorted({whole, max(whole, *(request.width for request in requests))}):
        if row & (row - 1) == 0 and row > widest:
            unit = widest.bit_length() - 1
            for bits in (1, 2, 3):
                if (widest << bits) <= row:
                    shift = row.bit_length() - 1
                    yield replace(tensor, swizzle=Swizzle(bits, unit, shift))
            # Several short rows are in one line of banks: they get one number in the swizzle. For whole lines that
            # costs one XOR, and padding the memory of a stage or two.
            if row < line and any(request.is_matrix for request in requests):
                bits = (row // widest).bit_length() - 1
                yield replace(tensor, swizzle=Swizzle(bits, unit, line.bit_length() - 1))
    for padding in PADDINGS:
        if padding % whole == 0:
            yield replace(tensor, layout=repeat(*extents[:-1], row + padding))


def _cost(tensor: Tensor, requests: list[_Request], target: Target) -> tuple[int, int, int]:
    """Extra cycles of all requests; the weight of those that can't be wide; extra cycles if none is wide."""

    def extra(counted: list[_Request]) -> int:
        return sum(r.weight * _extra_cycles(tensor, r, target.banks) for r in counted)

    may_be_wide = [r for r in requests if r.width > 1 and not r.is_whole]
    split = sum(r.weight for r in requests if not _leaves_whole(tensor, r.width))
    return extra(requests), split, extra([replace(r, width=1) for r in may_be_wide])


def _extra_cycles(tensor: Tensor, request: _Request, banks: int) -> int:
    width = request.width if _leaves_whole(tensor, request.width) else 1
    offset: Array = np.zeros((), np.int64)
    for index, pitch in zip(request.indices, _pitches(tensor), strict=True):
        offset = offset * pitch + index[:, ::width]
    size = tensor.dtype.nbytes
    cycles = bank_cycles(swizzled(tensor.swizzle, offset) * size, width * size, banks)
    return int(cycles.sum()) - cycles.size


def _pitches(tensor: Tensor) -> list[int]:
    shape = tensor.layout.shape if tensor.layout is not None else tensor.shape
    return [n for n in shape if isinstance(n, int)]


def _leaves_whole(tensor: Tensor, width: int) -> bool:
    """Whether contiguous elements of a row, from a multiple of their number on, stay contiguous."""
    pitches = _pitches(tensor)
    if tensor.swizzle is not None and 1 << tensor.swizzle.base < width:
        return False
    return not pitches or pitches[-1] % width == 0
