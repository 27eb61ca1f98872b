"""Parameters that are tuples: as many as their annotation has types, none if it is empty."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import ArgumentError, f32, i32
from taskc.backend import sim
from taskc.cli import main
from taskc.ir.compare import program_difference
from tests.lang.annotated import biased
from tests.lang.notebook import cell, checked

SCALED = """
def make_scaled(n, inputs=1, biased=True, factor=False, outputs=1):
    own = repeat(2) * spatial(4)

    @tc.function
    def finished(value, j, *offsets):
        for offset in offsets:
            value += offset[j]
        return value

    @tc.kernel(workers=own.workers)
    def scaled(
        xs: (f32[n],) * inputs,
        bias: (f32[n],) if biased else (),
        factor: (f32,) if factor else (),
        ys: (tc.out[f32[n]],) * outputs,
    ):
        assert len(xs) == inputs and len(ys) == outputs
        for first in tc.tiles(n, by=8):
            for i in own:
                if first + i < n:
                    total = f32(0)
                    for x in xs:
                        total += x[first + i]
                    if factor:
                        total *= factor[0]
                    for number, y in enumerate(ys):
                        y[first + i] = finished(total, first + i, *bias) + number

    return scaled
"""
make_scaled = cell(SCALED)["make_scaled"]


def vectors(count: int, n: int = 13) -> list[Any]:
    random = np.random.default_rng(0)
    return list(random.standard_normal((count, n)).astype(np.float32))


def test_one_or_none() -> None:
    a, b = vectors(2)
    with_bias, without = make_scaled(13), make_scaled(13, biased=False)
    assert with_bias.signature == "scaled(xs: f32[13], bias: f32[13], ys: out f32[13])"
    assert without.signature == "scaled(xs: f32[13], ys: out f32[13])"
    for _ in range(3):  # compiled, and then called without looking at arguments here
        assert (with_bias(a, b) == a + b).all()
        assert (with_bias(a, bias=b) == a + b).all()
        assert (with_bias(bias=b, xs=a) == a + b).all()
        assert (without(a) == a).all()
    assert with_bias.direct is not None
    out = np.empty_like(a)
    assert with_bias(a, b, out=out) is out
    assert with_bias(a, b, ys=out) is out
    assert (out == a + b).all()


def test_several_have_numbers() -> None:
    a, b, c = vectors(3)
    made = make_scaled(13, inputs=2, outputs=2)
    assert made.signature == (
        "scaled(xs_0: f32[13], xs_1: f32[13], bias: f32[13], ys_0: out f32[13], ys_1: out f32[13])"
    )
    expected = a + b + c
    for _ in range(3):
        first, second = made(a, b, c)
        assert (first == expected).all()
        assert (second == expected + np.float32(1)).all()
        assert (made(a, bias=c, xs_1=b)[0] == expected).all()
    outs = np.empty_like(a), np.empty_like(a)
    assert made(a, b, c, out=outs)[1] is outs[1]
    assert made(a, b, c, ys_1=outs[0])[1] is outs[0]


def test_scalars_and_arrays_of_others() -> None:
    class Foreign:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    a, b = vectors(2)
    made = make_scaled(13, factor=True)
    for _ in range(3):
        assert (made(Foreign(a), Foreign(b), 2) == 2 * a + b).all()
        assert (made(a, b, factor=-1.0) == b - a).all()


def test_a_size_may_be_learned_from_a_part() -> None:
    made = make_scaled(tc.dim("n"), inputs=2)
    a, b, c = vectors(3)
    assert (made(a, b, c) == a + b + c).all()
    assert [found for found in tc.check(made) if found.severity == "error"] == []
    assert len(made.example()) == 3


def test_it_is_the_kernel_that_is_written_out() -> None:
    space = cell("""
@tc.kernel(workers=8)
def declared(xs: (f32[8],) * 2, bias: (), ys: (tc.out[f32[8]],)):
    for i in spatial(8):
        ys[0][i] = xs[0][i] * xs[1][i] if not bias else bias[0][i]

@tc.kernel(workers=8)
def written(a: f32[8], b: f32[8], y: tc.out[f32[8]]):
    for i in spatial(8):
        y[i] = a[i] * b[i]
""")
    made = checked(space["declared"].ir)
    assert program_difference(replace(made, name="written"), space["written"].ir) is None


def test_annotations_may_be_texts() -> None:
    a, b = vectors(2, 4)
    assert (biased(4, True)(a, b) == a + b).all()
    assert (biased(4, False)(a) == a).all()


def test_what_is_packed() -> None:
    made = cell("""
@tc.kernel(workers=4)
def product(a: f32[3], bs: (f32[3, 8].laid(repeat(1, 2) * repeat(3, 4)),) * 2, c: tc.out[f32[8]]):
    for (col,) in tc.tiles((8,), by=(4,)):
        for j in spatial(4):
            total = f32(0)
            for b in bs:
                for q in tc.static(range(3)):
                    total += a[q] * b[q, col + j]
            c[col + j] = total
""")["product"]
    (a,), (b,) = vectors(1, 3), vectors(1, 24)
    b = b.reshape(3, 8)
    packed = made.pack(b, "bs_1")
    assert np.allclose(made(a, b, packed), 2 * (a @ b), atol=1e-5)
    with pytest.raises(TypeError, match="those are: bs_0, bs_1"):
        made.pack(b)


def test_below_phases() -> None:
    made = cell("""
def make(count):
    @tc.cuda.kernel(workers=4)
    def k(x: f32[4], more: (f32[4],) * count, y: tc.inout[f32[4]]):
        w = tc.worker()
        y[w] = x[w] + (more[0][w] if more else 0)
    return k
""")["make"]
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    made(0)(x, y)
    assert (y == 1).all()
    made(1)(x, x, y)
    assert (y == 2).all()
    assert not sim.run(made(1).ir, [x, x, y]).findings


def test_a_helper_takes_a_tuple_whole_or_by_its_parts() -> None:
    made = cell("""
@tc.function
def whole(x, parts, i):
    return x[i] + parts[0][i] if parts else x[i]

@tc.function
def apart(i, x, *parts):
    return whole(x, parts, i)

def make(count):
    @tc.kernel(workers=4)
    def k(x: f32[4], more: (f32[4],) * count, y: tc.out[f32[4]]):
        for i in spatial(4):
            y[i] = whole(x, more, i) + apart(i, x, *more) + apart(i, *[x, *more])
    return k
""")["make"]
    x = np.ones(4, np.float32)
    assert made(0)(x).tolist() == [3] * 4
    assert made(1)(x, x).tolist() == [6] * 4


PROGRAM = (
    SCALED
    + """
def make_twice(n, biased, count):
    scaled = make_scaled(n, inputs=count, biased=biased)
    last = make_scaled(n, inputs=1, biased=biased, factor=True)

    @tc.program
    def twice(
        xs: (f32[n],) * count,
        bias: (f32[n],) if biased else (),
        factor: (f32,),
        y: tc.out[f32[n]],
    ):
        between = scaled(*xs, *bias)
        last(between, *bias, *factor, out=y)

    return twice
"""
)


@pytest.mark.parametrize("count", [1, 2])
def test_a_program_passes_tuples_on(count: int) -> None:
    make_twice = cell(PROGRAM)["make_twice"]
    n = tc.dim("n")
    *xs, bias = vectors(count + 1)
    with_bias, without = make_twice(n, True, count), make_twice(n, False, count)
    assert np.allclose(with_bias(*xs, bias, 3), 3 * (sum(xs) + bias) + bias, atol=1e-5)
    assert np.allclose(without(*xs, factor=3), 3 * sum(xs), atol=1e-5)
    assert [found for found in tc.check(with_bias) if found.severity == "error"] == []
    names = "xs: f32[n]" if count == 1 else "xs_0: f32[n], xs_1: f32[n]"
    assert with_bias.signature == f"twice({names}, bias: f32[n], factor: f32, y: out f32[n])"


@pytest.mark.parametrize(
    ("args", "keywords", "expected"),
    [
        ((0, 0, 0), {}, "takes 2 arguments (xs, factor), not 3; outputs are passed as out=; there is none for 'bias'"),
        ((), {}, "misses the arguments 'xs', 'factor'"),
        ((0,), {"bias": 0}, "has no parameter 'bias': its type is a tuple, of no parameter"),
        ((0,), {"fctor": 0}, "has no parameter 'fctor'; did you mean 'factor'?"),
        ((np.zeros(4, np.float32), 1), {}, "argument 'xs' must be f32[13], not f32[4]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(args: Any, keywords: Any, expected: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make_scaled(13, biased=False, factor=True)(*args, **keywords)
    assert str(caught.value).removeprefix("scaled() ").removeprefix("scaled(): ") == expected


def test_parts_that_do_not_fit_are_named() -> None:
    made = make_scaled(13, inputs=3)
    (a,) = vectors(1)
    for args, keywords, expected in [
        ((a, a), {}, "scaled() misses the arguments 'xs_2', 'bias'"),
        ((a, a, a[:4], a), {}, "scaled(): argument 'xs_2' must be f32[13], not f32[4]"),
        (
            (a,),
            {"xs": (a, a)},
            "scaled() has no parameter 'xs': its type is a tuple, of 3 parameters: xs_0, xs_1, xs_2",
        ),
    ]:
        with pytest.raises(ArgumentError) as caught:
            made(*args, **keywords)
        assert str(caught.value) == expected


def test_a_kernel_without_any() -> None:
    made = cell("""
@tc.kernel(workers=4)
def k(xs: (), y: tc.out[f32[4]]):
    for i in spatial(4):
        y[i] = 1.0 if not xs and xs == () else 0.0
""")["k"]
    assert made().tolist() == [1] * 4
    assert made.tuples == {"xs": ()}


def test_it_is_shown_as_it_is_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "some.py"
    imports = "import taskc as tc\nfrom taskc import f32, repeat, spatial\n"
    file.write_text(f"{imports}{SCALED}\nscaled = make_scaled(8, inputs=2, biased=False)\n")
    assert main(["show", f"{file}:scaled"]) == 0
    assert capsys.readouterr().out.startswith(
        "kernel scaled(xs_0: f32[8], xs_1: f32[8], ys: out f32[8]) workers=4 stage=parsed:\n"
    )
    assert main(["check", f"{file}:scaled"]) == 0
    assert main(["run", f"{file}:scaled", "--check"]) == 0


def test_the_types_of_a_tuple_may_differ() -> None:
    made = cell("""
def make(types):
    @tc.kernel(workers=4)
    def k(xs: tuple([kind[4] for kind in types]), y: tc.out[f32[4]]):
        for i in spatial(4):
            total = f32(0)
            for x in xs:
                total += x[i].to(f32)
            y[i] = total
    return k
""")["make"]((f32, i32, tc.f16))
    assert made.signature == "k(xs_0: f32[4], xs_1: i32[4], xs_2: f16[4], y: out f32[4])"
    ones = [np.ones(4, kind) for kind in (np.float32, np.int32, np.float16)]
    assert made(*ones).tolist() == [3] * 4
