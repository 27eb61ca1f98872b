"""DFT and STFT as products with the matrix of a transform; rows and columns are parts of complex numbers.

MelWeightMatrix is the matrix from such a spectrum to frequency bands on the mel scale.
"""

from __future__ import annotations

from math import pi, prod

import taskc as tc
from taskc import DType, f32, f64, i64
from taskc.operators.call import Call, Made, operator
from taskc.operators.graph import Array
from taskc.operators.products import multiplied
from taskc.operators.tensors import Extent, Tensor, computed, computed_once, handle_of
from taskc.programs.tracing import Computed, Element, TensorHandle


def _transform(
    length: Extent, given: Extent, made: Extent, is_inverse: bool, dtype: DType
) -> Array:
    """The matrix of a DFT from `given` numbers of one or two parts each to `made` frequencies (all, or half and one).

    Its entry for element n and frequency k is the real or imaginary part of exp(-2 pi i n k / length).
    """
    count, sign = length if made == length else made, 1 if is_inverse else -1
    turn, scale = 2 * pi / length, 1 / length if is_inverse else 1.0

    def value(row: Element, column: Element) -> Computed:
        angle = ((row // given) * (column // 2) % length).to(f64) * turn
        is_across = row % given != column % 2  # a real part of an imaginary one, or the reverse
        sine = tc.sin(angle) * sign
        return (
            scale * (tc.cos(angle) if not is_across else sine if column % 2 == 1 else -sine)
        ).to(dtype)

    return computed_once(lambda: computed((length * given, count * 2), tc.function(value)))


def _half_inverse(length: Extent, given: Extent, dtype: DType) -> Array:
    """The inverse DFT from half of the frequencies to real numbers; the other half are conjugates."""
    turn, scale = 2 * pi / length, 1 / length

    def value(row: Element, n: Element) -> Computed:
        k = row // 2
        angle = (k * n % length).to(f64) * turn
        once = f64(scale) if k == 0 or 2 * k == length else f64(2 * scale)
        return (tc.cos(angle) * once if row % 2 == 0 else -tc.sin(angle) * once).to(dtype)

    return computed_once(lambda: computed((given * 2, length), tc.function(value)))


def _length(call: Call, usual: Extent) -> Extent:
    length = call.single(1) if call.has(1) else usual
    if isinstance(length, int) and length < 1:
        raise call.node.error(f"it transforms {length} elements")
    return length


@operator("DFT", since=17)
def dft(call: Call) -> Tensor:
    call.require_kernel()
    if call.node.version < 20:
        named = call.attribute("axis", 1)
    else:
        named = call.single(2) if call.has(2) else -2
    x, rank = call.tensor(0), len(call.shape(0))
    axis, parts, extent = call.axis_of(named, rank), x.shape[-1], x.shape[named]
    if axis == rank - 1 or parts not in (1, 2):
        raise call.node.error(
            "it takes numbers of one or two parts along the last axis, and another one"
        )
    is_inverse, is_half = bool(call.attribute("inverse", 0)), bool(call.attribute("onesided", 0))
    if is_inverse and is_half:
        length = _length(call, 2 * (extent - 1))
        read, made = length // 2 + 1, (length, 1)
        matrix = _half_inverse(length, read, x.dtype)
    else:
        length = _length(call, extent)
        read, made = length, (length // 2 + 1 if is_half else length, 2)
        matrix = _transform(length, parts, made[0], is_inverse, x.dtype)
    others = (*x.shape[:axis], *x.shape[axis + 1 : -1])

    def row(*at: Element) -> Computed:
        n = at[-1] // parts
        place = (*at[:axis], min(n, extent - 1), *at[axis:-1], at[-1] % parts)
        return x[place] if n < extent else 0

    rows = computed((*others, read * parts), tc.function(row), name="rows")
    product = multiplied(rows.reshape(prod(others), read * parts), matrix)
    whole = product.reshape(*others, *made)
    shape = (*others[:axis], made[0], *others[axis:], made[1])

    def moved(*at: Element) -> Computed:
        place = (*at[:axis], *at[axis + 1 : -1], at[axis], at[-1])
        return whole[place]

    return call.compute(shape, tc.function(moved))


@operator("STFT", since=17, ranks=(range(2, 4), None, 1))
def stft(call: Call) -> Made:
    call.require_kernel()
    x, step = call.tensor(0), call.single(1)
    batch, extent, *last = x.shape
    parts = last[0] if last else 1
    signal = x.reshape(batch, extent, parts)
    window = call.tensor(2) if call.has(2) else None
    length = call.single(3) if call.has(3) else call.shape(2)[0]
    frames = (extent - length) // step + 1
    count = length // 2 + 1 if call.attribute("onesided", 1) else length
    if window is None:
        value = tc.function(lambda b, f, i: signal[b, f * step + i // parts, i % parts])
    else:
        value = tc.function(
            lambda b, f, i: signal[b, f * step + i // parts, i % parts] * window[i // parts]
        )
    rows = computed((batch, frames, length * parts), value, name="frames")
    matrix = _transform(length, parts, count, False, x.dtype)
    product = multiplied(rows.reshape(batch * frames, length * parts), matrix)
    return product.reshape(batch, frames, count, 2)


@operator("MelWeightMatrix", since=17)
def mel_weight_matrix(call: Call) -> Made:
    """Each band is a triangle over the frequencies: it rises from one edge to the next, and falls to the one after."""
    bands, length, rate = (int(call.known(n).item()) for n in range(3))
    lowest, highest = (float(call.known(n).item()) for n in (3, 4))
    dtype = call.attribute_type("output_datatype", f32)
    if min(bands, length, rate) < 1 or not 0 <= lowest <= highest <= rate / 2:
        raise call.node.error(
            f"there are no {bands} bands from {lowest} to {highest} Hz of {length} samples at {rate} Hz"
        )
    known = _edges(bands, length, rate, lowest, highest)
    return computed_once(lambda: _triangles(handle_of(known), (length // 2 + 1, bands), dtype))


def _triangles(edges: TensorHandle, shape: tuple[int, int], dtype: DType) -> TensorHandle:
    def value(k: Element, band: Element) -> Computed:
        low, middle, high = edges[band], edges[band + 1], edges[band + 2]
        rising = (k - low).to(f64) / f64(max(middle - low, 1))
        falling = (high - k).to(f64) / f64(max(high - middle, 1))
        is_rising = low <= k and k <= middle and low < middle
        is_falling = middle <= k and k < high
        is_alone = k == middle and low == middle
        return (
            falling if is_falling else rising if is_rising else f64(1) if is_alone else f64(0)
        ).to(dtype)

    return computed(shape, tc.function(value), name="bands")


def _edges(bands: int, length: int, rate: int, lowest: float, highest: float) -> Array:
    """The indices of the frequencies that bound the bands, equally spaced on the mel scale."""

    def edge(n: Element) -> Computed:
        low, high = tc.log1p(f64(lowest / 700)), tc.log1p(f64(highest / 700))
        hertz = 700 * tc.expm1(n.to(f64) * ((high - low) / (bands + 2)) + low)
        return tc.floor((length + 1) * hertz / rate).to(i64)

    return computed_once(lambda: computed((bands + 2,), tc.function(edge)))
