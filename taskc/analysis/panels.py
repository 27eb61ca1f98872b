"""Shared memory in panels of columns: how matrix instructions and bulk copies take it.

    shared sb: bf16[64, 256]    ->    shared sb: bf16[64, 256].laid(repeat(1, 4).repeat(64, 64)).swizzled(3, 3, 6)

A panel has the widest lines that a swizzle knows; it is one box of a bulk copy.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.ir.fragments import UNIT, swizzle_of
from taskc.ir.mapping import Mapping, repeat
from taskc.ir.nodes import SHARED, Tensor

ATOM = 8  # lines that a swizzle tells apart


def panel_layout(shape: tuple[int, ...], line: int) -> Mapping:
    """Panels of `line` columns one behind the other, each row-major."""
    *outer, rows, columns = shape
    ones = (1,) * len(outer)
    return repeat(*outer, 1, columns // line) * repeat(*ones, rows, line)


def line_of(tensor: Tensor) -> int | None:
    """How many columns the panels have in which a tensor lies: all, if it is row-major; None: no panels."""
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
    """Shared memory in panels as wide as a swizzle; None where no width divides its rows."""
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
    """`count` tensors of a form, one behind the other: a ring's slots."""
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
