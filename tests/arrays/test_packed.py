"""Where the elements of a packed array lie."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f32, i8, mapping, repeat, spatial
from taskc.arrays import packed
from taskc.arrays.packed import laid_memory, places_of, put, put_into, shared, slots_of, take
from taskc.ir.mapping import Mapping
from taskc.lang import definition
from taskc.programs import specialize
from taskc.runtime import checking
from tests import guards


@pytest.mark.parametrize("dtype", [i8, bf16, f32])
@pytest.mark.parametrize("rows", [1, 3, 700])
def test_packed_arrays_begin_where_a_cache_line_does(dtype: tc.DType, rows: int) -> None:
    described = dtype[rows, 6].laid(repeat(1, 2) * repeat(rows, 3))
    values = (np.arange(rows * 6) % 100).reshape(rows, 6).astype(dtype.numpy)
    made = tc.pack(values, described)
    assert made.ctypes.data % 64 == 0
    assert made.dtype == dtype.numpy
    np.testing.assert_array_equal(made.unpack(), values)


def some_layout(random: np.random.Generator) -> Mapping:
    rank = random.integers(1, 5)
    factors = [
        repeat(*random.integers(1, 4, rank), order=random.permutation(rank))
        for _ in range(random.integers(1, 5))
    ]
    return functools.reduce(operator.mul, factors)


OTHERS = [
    mapping((2, 3), 1, lambda w: [(0, 2), (1, 0), (0, 0), (1, 1), (0, 1), (1, 2)]),
    mapping((2, 2), 1, lambda w: [(0, 1), (1, 0), (0, 0), (1, 1)]) * repeat(1, 2, order=(1, 0)),
    repeat(2, 4).within(2, 3),
]


@pytest.mark.parametrize("seed", range(40))
def test_elements_lie_where_the_layout_has_them(seed: int) -> None:
    """Compositions, which are copied axis by axis, and others; whole layouts, and a part of the last one."""
    random = np.random.default_rng(seed)
    for layout in (some_layout(random), some_layout(random), *OTHERS):
        most = layout.iterated if layout in OTHERS else [2 * n for n in layout.shape]
        shape = tuple([int(random.integers(0, n, endpoint=True)) for n in most])
        array = 1 + np.arange(prod(shape), dtype=np.int32).reshape(shape)
        memory = np.zeros(slots_of(shape, layout), np.int32)
        put(array, memory, layout)
        expected = np.zeros_like(memory)
        expected[places_of(shape, layout)] = array.reshape(-1)
        np.testing.assert_array_equal(memory, expected)
        taken = np.zeros_like(array)
        take(taken, memory, layout)
        np.testing.assert_array_equal(taken, array)


def test_a_kernel_packs_what_its_parameter_takes() -> None:
    own = spatial(4)

    @tc.kernel(workers=4, packs={"b": (3, 5)})
    def product(a: f32[3], b: f32[3, 8].laid(repeat(1, 2) * repeat(3, 4)), c: tc.out[f32[5]]):
        for (col,) in tc.tiles((5,), by=(4,)):
            for j in own:
                if col + j < 5:
                    c[col + j] = a[0] * b[0, col + j] + a[1] * b[1, col + j] + a[2] * b[2, col + j]

    a, b = np.arange(3, dtype=np.float32), np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_array_equal(product(a, product.pack(b)), a @ b)
    np.testing.assert_array_equal(product.pack(b, "b").unpack()[:, 5:], 0)
    with pytest.raises(TypeError, match=r"b is packed from \[3, 5\], not \[3, 8\]"):
        product.pack(np.zeros((3, 8), np.float32))
    with pytest.raises(TypeError, match="those are: b"):
        product.pack(b, "a")


def test_a_kernel_packs_by_another() -> None:
    """Which may compute, too: the parameter has squares, and one row more."""
    laid = f32[4, 5].laid(repeat(1, 5) * repeat(4, 1))

    @tc.kernel(workers=5)
    def squares(b: f32[3, 5], packed: tc.out[laid]):  # type: ignore[valid-type]
        for (row,) in tc.tiles((4,), by=(1,)):
            for j in spatial(5):
                packed[row, j] = b[min(row, 2), j] * b[min(row, 2), j]

    @tc.kernel(workers=5, packs={"b": squares})
    def copied(a: laid, b: laid, c: tc.out[f32[4, 5]]):  # type: ignore[valid-type]
        for (row,) in tc.tiles((4,), by=(1,)):
            for j in spatial(5):
                c[row, j] = b[row, j] + a[row, j]

    a, b = np.zeros((4, 5), np.float32), np.arange(15, dtype=np.float32).reshape(3, 5)
    packed = copied.pack(b)
    assert packed.type == squares.made[0] == laid
    expected = b[[0, 1, 2, 2]] ** 2
    np.testing.assert_array_equal(packed.unpack(), expected)
    np.testing.assert_array_equal(copied(copied.pack(a, "a"), packed), expected)
    with pytest.raises(tc.ArgumentError, match=r"squares\(\): argument 'b' must be f32\[3, 5\]"):
        copied.pack(a, "b")


# --- written in place ------------------------------------------------------------------------

COLUMNS = f32[6, 8].laid(repeat(1, 2) * repeat(6, 4))
PITCHED = f32[6, 8].laid(repeat(6, 10))
VALUES = np.arange(48, dtype=np.float32).reshape(6, 8)


@tc.kernel(workers=8)
def turned(x: COLUMNS, by: f32, y: tc.out[PITCHED]):  # type: ignore[valid-type]
    for row, _ in tc.tiles((6, 8), by=(1, 8)):
        for j in spatial(8):
            y[row, j] = x[row, j] * by


@tc.kernel(workers=8)
def raised(x: tc.inout[PITCHED], by: f32):  # type: ignore[valid-type]
    for row, _ in tc.tiles((6, 8), by=(1, 8)):
        for j in spatial(8):
            x[row, j] = x[row, j] + by


@pytest.fixture(params=["checked", "compiled", "simulated"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """How a kernel is called: its arguments looked at in Python or by compiled code alone, or in the simulator."""

    def called(kernel: tc.KernelDefinition) -> Callable[..., Any]:
        if request.param == "simulated":
            monkeypatch.setenv("TASKC_TARGET", "sim")
            return kernel.call
        kernel(*kernel.example())
        if request.param == "checked":
            return kernel.call
        assert kernel.direct is not None
        monkeypatch.setattr(definition, "_runner", [])  # what compiled code would hand the call to
        return kernel.direct

    return called


def test_what_pads_an_output_is_left_alone() -> None:
    with guards.absent():
        fresh = tc.KernelDefinition.of(raised.ir)
        x = tc.pack(VALUES, PITCHED)
        fresh(x, 1.0)
    np.testing.assert_array_equal(x.unpack(), VALUES + 1)
    np.testing.assert_array_equal(np.asarray(x).reshape(6, 10)[:, 8:], 0)


def test_outputs_are_written_in_place(way: Any) -> None:
    call = way(turned)
    x, y = tc.pack(VALUES, COLUMNS), tc.pack(-VALUES, PITCHED)
    for by in (2.0, 3.0):
        assert call(x, by, out=y) is y
        np.testing.assert_array_equal(y.unpack(), by * VALUES)
    np.testing.assert_array_equal(x.unpack(), VALUES)


def test_what_is_updated_is_written_in_place(way: Any) -> None:
    x = tc.pack(VALUES, PITCHED)
    call = way(raised)
    assert call(x, 1.0) is None
    assert call(x, 2.0) is None
    np.testing.assert_array_equal(x.unpack(), VALUES + 3)


def test_without_out_the_logical_array_is_made() -> None:
    for call in (turned.call, turned, turned):
        made = call(tc.pack(VALUES, COLUMNS), 2.0)
        assert type(made) is np.ndarray
        np.testing.assert_array_equal(made, 2 * VALUES)
        given = np.empty((6, 8), np.float32)
        assert call(VALUES, 2.0, out=given) is given
        np.testing.assert_array_equal(given, 2 * VALUES)


def refused(kernel: Any, *args: Any, **keywords: Any) -> str:
    """What a call that doesn't fit is told, by the first call as by later ones."""
    kernel(*kernel.example())
    told = []
    for call in (kernel.call, kernel.direct):
        with pytest.raises(tc.ArgumentError) as caught:
            call(*args, **keywords)
        told.append(str(caught.value))
    assert told[0] == told[1]
    return told[0].removeprefix(f"{kernel.name}(): ")


def test_what_does_not_fit_is_refused() -> None:
    x, y = tc.pack(VALUES, COLUMNS), tc.empty(PITCHED)
    as_laid = f"output 'y' must be f32[6, 8], laid out as {PITCHED.layout}, not an array packed as"
    for other in (COLUMNS, i8[6, 8].laid(PITCHED.layout)):
        assert refused(turned, x, 1.0, out=tc.empty(other)) == f"{as_laid} {other}"
    taller = f32[12, 8].laid(PITCHED.layout)
    expected = "output 'y' must be f32[6, 8], not f32[12, 8]"
    assert refused(turned, x, 1.0, out=tc.empty(taller)) == expected
    frozen = tc.empty(PITCHED)
    frozen.flags.writeable = False
    expected = "is written in place, and this array is read-only"
    assert refused(turned, x, 1.0, out=frozen) == f"output 'y' {expected}"
    assert refused(raised, frozen, 1.0) == f"argument 'x' {expected}"
    memory = np.empty(100, np.float32)
    x, y = (part.view(type(one)) for one, part in ((x, memory[:48]), (y, memory[40:])))
    expected = "output 'y' is written, and it overlaps 'x' in memory"
    assert refused(turned, x, 1.0, out=y) == expected
    shifted = np.empty(241, np.uint8)[1:].view(np.float32).view(type(y))
    assert refused(raised, shifted, 1.0).startswith("argument 'x' must be an array packed as")


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (lambda y: y[:8], "f32[8] with strides of (4,) bytes"),
        (lambda y: y[::-1], "f32[60] with strides of (-4,) bytes"),
        (lambda y: y.reshape(6, 10), "f32[6, 10] with strides of (40, 4) bytes"),
        (lambda y: y.view(np.int32), "i32[60] with strides of (4,) bytes"),
        (lambda y: y > 0, "bool[60] with strides of (1,) bytes"),
    ],
)
def test_what_numpy_makes_of_a_packed_array_is_refused(part: Any, shown: str) -> None:
    """It has the class of what it was made of, and not its memory."""
    made = part(tc.pack(VALUES, PITCHED))
    what = f"must be an array packed as {PITCHED}, and not what was made of one: {shown}"
    assert refused(raised, made, 1.0) == f"argument 'x' {what}"
    x = tc.pack(VALUES, COLUMNS)
    assert refused(turned, x, 1.0, out=made) == f"output 'y' {what}"


def test_memory_is_made_outside_of_programs() -> None:
    for described in (COLUMNS, PITCHED, f32[3, 5], bf16[7], f32[0, 4], i8[5, 2].laid(repeat(2, 2))):
        made = tc.empty(described)
        assert made.ctypes.data % 64 == 0 or not made.size
        assert made.dtype == described.dtype.numpy
        if described.layout is None:
            assert type(made) is np.ndarray
            assert made.shape == described.shape
            assert made.flags.c_contiguous
            assert made.flags.writeable
        else:
            assert not made.any()
            np.testing.assert_array_equal(made.unpack(), np.zeros(described.shape))
            assert type(made) is type(tc.pack(made.unpack(), described))
    assert tc.empty(f32[64, 64]).base is not tc.empty(f32[64, 64]).base


def test_memory_is_made_for_a_type() -> None:
    for described, expected in [
        (tc.out[f32[4]], "what tc.empty makes is neither input nor output: tc.empty(f32[4])"),
        (4, "tc.empty takes a tensor type, and this is"),
    ]:
        with pytest.raises(tc.CompileError) as caught:
            tc.empty(described)
        assert expected in str(caught.value)
        assert "test_packed.py" in str(caught.value)


# --- programs --------------------------------------------------------------------------------

n, m = tc.dim("n"), tc.dim("m")
ROWS = repeat(4, 8)


@tc.kernel(workers=4)
def spread(x: f32[n, 6], y: tc.out[f32[n, 6].laid(ROWS)]):  # type: ignore[valid-type]
    for row in tc.tiles(n, by=1):
        for j in spatial(4).repeat(2):
            if j < 6:
                y[row, j] = x[row, j]


@tc.kernel(workers=4)
def summed(x: f32[n, 6].laid(ROWS), y: f32[n, 6].laid(ROWS), z: tc.inout[f32[n, 6].laid(ROWS)]):  # type: ignore[valid-type]
    for row in tc.tiles(n, by=1):
        for j in spatial(4).repeat(2):
            if j < 6:
                z[row, j] = z[row, j] + x[row, j] * y[row, j]


@tc.kernel(workers=4)
def gathered(x: f32[n, 6].laid(ROWS), y: tc.out[f32[n, 6]]):  # type: ignore[valid-type]
    for row in tc.tiles(n, by=1):
        for j in spatial(4).repeat(2):
            if j < 6:
                y[row, j] = x[row, j] + 1


@tc.program
def inside(x: f32[m, 6], y: tc.out[f32[m, 6]]):
    one, two = tc.empty(f32[m, 6].laid(ROWS)), tc.empty(f32[m, 6].laid(ROWS))
    spread(x, out=one)
    spread(x, out=two)
    summed(one, one, two)
    summed(one, one, two)
    gathered(two, out=y)


@tc.program
def through(
    x: f32[m, 6].laid(ROWS), y: tc.out[f32[m, 6].laid(ROWS)], z: tc.inout[f32[m, 6].laid(ROWS)]
):  # type: ignore[valid-type]
    plain = tc.empty(f32[m, 6])
    gathered(x, out=plain)
    spread(plain, out=y)
    summed(x, x, z)
    summed(x, y, z)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arrays that are put into a layout and taken out of one, from now on."""
    told: list[str] = []
    for name, function in (("put_into", put_into), ("take", take)):

        def counted(*args: Any, name: str = name, function: Any = function) -> None:
            told.append(name)
            function(*args)

        monkeypatch.setattr(packed, name, counted)
    return told


def not_numbers(size: int, dtype: Any) -> Any:
    return np.full(size, 0xFF, dtype)


@pytest.mark.parametrize("target", ["cpu", "sim"])
def test_temporaries_lie_in_their_layout(
    target: str, moved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKC_TARGET", target)
    monkeypatch.setattr(
        specialize, "laid_memory", lambda make, type: laid_memory(not_numbers, type)
    )
    classes = len(packed._classes)
    for rows in (5, 8, 0, 1):
        x = np.arange(rows * 6, dtype=np.float32).reshape(rows, 6)
        np.testing.assert_array_equal(inside(x), x + 2 * x * x + 1)
    assert target == "sim" or not moved
    assert len(packed._classes) == classes  # none is made for a size


@pytest.mark.parametrize("target", ["cpu", "sim"])
def test_parameters_of_a_program_are_packed_once(
    target: str, moved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKC_TARGET", target)
    x, before = (np.arange(k, 30 + k, dtype=np.float32).reshape(5, 6) for k in (1, 2))
    z = before.copy()
    y = through(x, z)
    np.testing.assert_array_equal(y, x + 1)
    np.testing.assert_array_equal(z, before + x * x + x * y)
    if target == "cpu":
        assert sorted(moved) == [
            "put_into",
            "put_into",
            "take",
            "take",
        ]  # x and z go in, y and z come out
    described = f32[5, 6].laid(ROWS)
    x_packed, z_packed, y_packed = (
        tc.pack(x, described),
        tc.pack(before, described),
        tc.empty(described),
    )
    moved.clear()
    assert through(x_packed, z_packed, out=y_packed) is y_packed
    assert target == "sim" or not moved
    np.testing.assert_array_equal(y_packed.unpack(), y)
    np.testing.assert_array_equal(z_packed.unpack(), z)


def test_packed_arguments_are_checked_on() -> None:
    x, z = (tc.pack(np.ones((5, 6), np.float32), f32[5, 6].laid(ROWS)) for _ in range(2))
    assert tc.check(summed, (x, x, z)) == tc.check(summed, [one.unpack() for one in (x, x, z)])
    assert tc.check(through, (x, z)) == tc.check(through, (x.unpack(), z.unpack()))
    np.testing.assert_array_equal(z.unpack(), 1)
    examined = checking.examine(summed, (x, x, z), stages="lean")
    np.testing.assert_array_equal(examined.results[2], np.full((5, 6), 2))


def test_equal_constants_share_memory_as_long_as_one_is_there() -> None:
    kind = f32[4096, 2].laid(repeat(2048, 1) * repeat(2, 2))
    array = np.arange(8192, dtype=np.float32).reshape(4096, 2)
    first = shared(tc.pack(array, kind))
    assert shared(tc.pack(array, kind)) is first
    array[-1, -1] += 1  # not among the elements by which candidates are found
    other = tc.pack(array, kind)
    assert shared(other) is other
    flat = tc.pack(array, f32[4096, 2].laid(repeat(1, 2) * repeat(4096, 1)))
    assert shared(flat) is flat


def test_programs_share_equal_weights() -> None:
    weights = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)

    def constant(rows: int) -> Any:
        kind = f32[64, 32].laid(repeat(1, 2) * repeat(64, 16))

        @tc.kernel(workers=16)
        def product(x: f32[rows, 64], w: tc.typed[kind], y: tc.out[f32[rows, 32]]):
            for row, col in tc.tiles((rows, 32), by=(1, 16)):
                for j in spatial(16):
                    y[row, col + j] = x[row, 0] * w[0, col + j]

        body = functools.partial(product, w=weights.copy())
        ((_, memory),) = tc.trace("own", {"x": f32[rows, 64]}, body).ir.constants
        return memory

    memories = constant(1), constant(3)
    assert memories[0] is memories[1]
