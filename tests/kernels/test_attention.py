"""Attention against f64: ragged sizes, heads in groups, all masks, large and infinite numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.kernels.attention import Problem, Schedule, attention
from taskc.kernels.attention.plan import FewQueries, candidates
from taskc.passes.prove import findings
from taskc.runtime.machine import Machine
from taskc.tune.space import least
from tests.backend.cpu.processors import NAMES, loaded_for

HALF_ULP = 2.0**-24
MANY, FEW = 17, 2  # queries of a head: for each of the two kernels


def operands(
    batches: int, heads: int, groups: int, length: int, keys: int, features: int, results: int
) -> list[Any]:
    random = np.random.default_rng(length + keys)
    shapes = (heads, length, features), (groups, keys, features), (groups, keys, results)
    return [random.standard_normal((batches, *shape)).astype(np.float32) for shape in shapes]


def exact(
    q: Any, k: Any, v: Any, mask: Any = None, lengths: Any = None, sinks: Any = None, *,
    offset: int | None = None, scale: Any = None, window: int | None = None, cap: float = 0.0,
) -> tuple[Any, Any]:  # fmt: skip
    """The result, and how far an f32 one may be from it.

    A score is off by what a sum of so many terms is, and a power by twice as much, since the largest is
    off as well; weights and results are sums of as many terms as there are keys.
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * q @ k.swapaxes(-1, -2)
    sizes = abs(scale) * np.abs(q) @ np.abs(k).swapaxes(-1, -2)
    scores = np.tanh(scores / cap) * cap if cap else scores
    if mask is not None and mask.dtype == bool:
        scores = np.where(mask, scores, -np.inf)
    elif mask is not None:
        scores = scores + mask
        sizes = sizes + np.where(np.isfinite(mask), np.abs(mask), 0)
    queries, keys = (np.arange(n) for n in scores.shape[-2:])
    ends = np.full(len(q), len(keys)) if lengths is None else lengths
    scores = np.where(keys < ends[:, None, None, None], scores, -np.inf)
    if offset is not None:
        last = (queries + offset + (ends - len(keys))[:, None])[:, None, :, None]
        is_seen = (keys <= last) & (True if window is None else keys > last - window)
        scores = np.where(is_seen, scores, -np.inf)
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))
        scores = np.concatenate([scores, column], -1)
    peaks = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isinf(peaks), 0, peaks))
    totals = powers.sum(axis=-1, keepdims=True)
    weights = (powers / np.where(totals > 0, totals, 1))[..., : len(keys)]
    terms = 2 * (q.shape[-1] + 4) * sizes.max(axis=-1, keepdims=True, initial=0)
    bound = HALF_ULP * (terms + 2 * k.shape[-2] + 16) * (weights @ np.abs(v)) + 1e-37
    return weights @ v, bound


def check(made: Any, expected: tuple[Any, Any]) -> None:
    assert made.shape == expected[0].shape
    assert (np.abs(made - expected[0]) <= expected[1]).all()


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 1, 1, 1, 1),
        (1, 2, 1, 3, 129, 17, 33),
        (2, 2, 2, 127, 17, 2, 1),
        (1, 6, 2, 15, 131, 20, 7),
        (1, 2, 2, 65, 300, 16, 40),
        (1, 40, 4, 1, 40, 64, 64),
    ],
    ids=str,
)
def test_ragged_shapes(shape: Any) -> None:
    batches, heads, groups, length, keys, features, results = shape
    kernel = attention(
        batches, heads, length, keys, features, kv_heads=groups, value_features=results
    )
    arguments = operands(*shape)
    check(kernel(*arguments), exact(*arguments))


@pytest.mark.parametrize(
    ("length", "keys", "offset"),
    [(130, 150, None), (40, 20, None), (40, 20, 0), (2, 9, 3)],
)  # fmt: skip
def test_causal(length: int, keys: int, offset: int | None) -> None:
    """Queries that see no key, where there are fewer keys than queries, get zeros."""
    arguments = operands(1, 4, 2, length, keys, 5, 6)
    kernel = attention(
        1, 4, length, keys, 5, kv_heads=2, value_features=6, causal=True, offset=offset
    )
    expected = exact(*arguments, offset=keys - length if offset is None else offset)
    made = kernel(*arguments)
    check(made, expected)
    assert not made[:, :, : max(0, length - keys) if offset is None else 0].any()


def options_of(random: np.random.Generator, batches: int, length: int, keys: int) -> dict[str, Any]:
    """Some of the options of `check_options`: lengths from none to all, windows from one key to more than there are."""
    options: dict[str, Any] = {}
    if random.random() < 0.7:
        choices = 0, 1, keys, int(random.integers(keys + 1))
        options["lengths"] = random.choice(choices, batches).astype(np.int32)
    if random.random() < 0.7:
        options["offset"] = int(random.choice([keys - length, 0, keys]))
        if random.random() < 0.7:
            options["window"] = int(random.choice([1, 7, keys, 2 * keys]))
    if random.random() < 0.5:
        options["cap"] = 1.5
    if random.random() < 0.5:
        options["sinks"] = True
    return options


def check_options(shape: Any, options: dict[str, Any], **of_kernel: Any) -> None:
    batches, heads, groups, length, keys, features, results = shape
    arguments: dict[str, Any] = dict(zip("qkv", operands(*shape), strict=True))
    random, described = np.random.default_rng(keys), dict(options)
    if "lengths" in options:
        arguments["lengths"] = options["lengths"]
        described["lengths"] = True
    if described.pop("sinks", False):
        arguments["sinks"] = random.standard_normal(heads).astype(np.float32)
        described["sinks"] = True
    kernel = attention(
        batches, heads, length, keys, features,
        kv_heads=groups, value_features=results, causal="offset" in options, **described, **of_kernel,
    )  # fmt: skip
    made = kernel(*arguments.values())
    settings = {name: options[name] for name in ("offset", "window", "cap") if name in options}
    check(made, exact(**arguments, **settings))


SHAPES = [
    (3, 4, 2, FEW, 131, 20, 36),
    (2, 4, 1, 1, 64, 16, 16),
    (2, 6, 3, MANY, 37, 8, 5),
    (1, 2, 1, 70, 300, 17, 16),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "seed", [0, *[pytest.param(n, marks=pytest.mark.sweep) for n in range(1, 30)]]
)
def test_lengths_windows_caps_and_sinks(shape: Any, seed: int) -> None:
    random = np.random.default_rng([seed, *shape])
    check_options(shape, options_of(random, shape[0], shape[3], shape[4]))


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
@pytest.mark.parametrize(
    "seed", [0, *[pytest.param(n, marks=pytest.mark.sweep) for n in range(1, 15)]]
)
def test_parts_of_keys(shape: Any, seed: int) -> None:
    """Some parts have no keys that a batch has."""
    random = np.random.default_rng([seed, *shape])
    options = options_of(random, shape[0], shape[3], shape[4])
    check_options(shape, options, schedule=FewQueries(16, 1, 2, 16, int(random.integers(2, 7))))


@pytest.mark.parametrize(
    ("threads", "batches", "keys", "parts"),
    [
        (2, 1, 4096, 1),
        (64, 1, 4096, 8),
        (64, 8, 4096, 1),
        (3, 1, 4096, 3),
    ],
)
def test_keys_are_cut_into_parts_where_threads_would_wait(
    threads: int, batches: int, keys: int, parts: int
) -> None:
    """Of 8 heads of keys for each batch."""
    machine = replace(tc.machine(), threads=threads)
    problem = Problem(batches, 8, 4, 1, keys, 128, 128, None, None, 1.0, tc.f32)
    plan = least(candidates, problem, machine)
    assert isinstance(plan, FewQueries)
    assert plan.parts == parts


def test_options_of_a_kernel_for_all_lengths() -> None:
    """One kernel has one query of all heads that share keys, or many."""
    batches, length, keys = (tc.dim(name) for name in ("batches", "length", "keys"))
    kernel = attention(
        batches, 4, length, keys, 8,
        kv_heads=2, causal=True, window=5, cap=2.0, lengths=True, sinks=True,
    )  # fmt: skip
    sinks = np.array([-np.inf, -1, 0, 3], np.float32)
    for n, m in ((1, 40), (FEW, 33), (MANY, 129)):
        arguments = *operands(3, 4, 2, n, m, 8, 8), None, np.array([0, m, 9], np.int32), sinks
        given = [x for x in arguments if x is not None]
        check(kernel(*given), exact(*arguments, offset=m - n, window=5, cap=2.0))


def test_an_empty_batch() -> None:
    options = {"lengths": np.zeros(0, np.int32), "offset": 5, "window": 3}
    check_options((0, 4, 2, 1, 6, 8, 8), options)


@pytest.mark.each_value
@pytest.mark.parametrize("length", [FEW, MANY])
@pytest.mark.parametrize("shape", [(33,), (2, 1, None, 33)], ids=str)
def test_added_masks(shape: Any, length: int) -> None:
    """Repeated along any axes; None stands for the queries."""
    shape = tuple(length if extent is None else extent for extent in shape)
    arguments = operands(2, 4, 2, length, 33, 5, 6)
    mask = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    mask[mask < -1] = -np.inf
    kernel = attention(2, 4, length, 33, 5, kv_heads=2, value_features=6, mask=tc.f32[shape])
    check(kernel(*arguments, mask), exact(*arguments, mask))


@pytest.mark.parametrize(
    ("length", "shape"), [(MANY, (4, 1, 33)), (MANY, (1, 4, MANY, 1)), (FEW, (FEW, 33))], ids=str
)
def test_masks_of_flags(length: int, shape: Any) -> None:
    """What is seen, of what a causal attention leaves."""
    arguments = operands(2, 4, 2, length, 33, 5, 6)
    mask = np.random.default_rng(1).random(shape) < 0.5
    kernel = attention(
        2, 4, length, 33, 5,
        kv_heads=2, value_features=6, mask=tc.boolean[shape], causal=True, offset=20,
    )  # fmt: skip
    check(kernel(*arguments, mask), exact(*arguments, mask, offset=20))


@pytest.mark.parametrize("length", [FEW, MANY])
def test_queries_that_see_nothing_get_zeros(length: int) -> None:
    arguments = operands(1, 1, 1, length, 600, 4, 4)
    mask = np.ones((length, 600), bool)
    mask[0] = False
    mask[1, :590] = False  # nothing for some steps, then something
    made = attention(1, 1, length, 600, 4, mask=tc.boolean[length, 600])(*arguments, mask)
    assert not made[0, 0, 0].any()
    check(made, exact(*arguments, mask))


@pytest.mark.parametrize("length", [FEW, MANY])
@pytest.mark.parametrize("direction", [1, -1])
def test_large_scores(length: int, direction: int) -> None:
    """Of some 10,000, which grow along the keys, or fall: the largest decide, and nothing overflows."""
    q, k, v = operands(1, 1, 1, length, 600, 4, 4)
    q, k = (
        np.full_like(q, 50),
        np.linspace(90, 110, 600, dtype=np.float32)[::direction, None] + 0 * k,
    )
    made = attention(1, 1, length, 600, 4)(q, k, v)
    assert np.isfinite(made).all()
    check(made, exact(q, k, v))


@pytest.mark.parametrize(
    ("batches", "length", "keys"), [(1, FEW, 0), (1, MANY, 0), (1, 0, 5), (0, FEW, 5)]
)
def test_sizes_of_nothing(batches: int, length: int, keys: int) -> None:
    made = attention(batches, 2, length, keys, 4, causal=True)(
        *operands(batches, 2, 2, length, keys, 4, 4)
    )
    assert made.shape == (batches, 2, length, 4)
    assert not made.any()


def test_a_nan_is_one_query_s_own() -> None:
    for length in (FEW, MANY):
        arguments = operands(1, 1, 1, length, 600, 4, 4)
        arguments[0][0, 0, 1, 2] = np.nan
        made = attention(1, 1, length, 600, 4)(*arguments)
        assert np.isnan(made[0, 0, 1]).all()
        assert not np.isnan(np.delete(made, 1, axis=2)).any()


@pytest.mark.parametrize("key", [0, 3, 599])
def test_a_nan_of_a_key_is_every_query_s(key: int) -> None:
    for length in (FEW, MANY):
        arguments = operands(1, 1, 1, length, 600, 4, 4)
        arguments[1][0, 0, key, 2] = np.nan
        assert np.isnan(attention(1, 1, length, 600, 4)(*arguments)).all()


@pytest.mark.parametrize(
    ("dtype", "bits", "length"),
    [(tc.f16, 11, MANY), (tc.bf16, 8, FEW), (tc.f64, 53, MANY), (tc.f64, 53, FEW)],
)
def test_types(dtype: tc.DType, bits: int, length: int) -> None:
    arguments = [x.astype(dtype.numpy) for x in operands(1, 2, 1, length, 35, 20, 18)]
    kernel = attention(1, 2, length, 35, 20, kv_heads=1, value_features=18, dtype=dtype)
    made = kernel(*arguments).astype(np.float64)
    expected, bound = exact(*arguments)
    if dtype is tc.f64:
        check(made, (expected, bound * 2.0**-29))
    else:
        check(made, (expected, bound + 2.0**-bits * np.abs(expected)))


def test_one_kernel_for_all_lengths() -> None:
    batches, length, keys = tc.dim("batches"), tc.dim("length"), tc.dim("keys")
    kernel = attention(
        batches, 2, length, keys, 5, kv_heads=1, causal=True, mask=tc.f32[batches, 1, 1, keys]
    )
    for sizes in (
        (1, 1, 1),
        (2, 1, 150),
        (2, 17, 150),
        (1, 130, 17),
        (0, 3, 3),
        (1, 0, 3),
        (2, 3, 0),
    ):
        arguments = operands(sizes[0], 2, 1, sizes[1], sizes[2], 5, 5)
        mask = np.linspace(-1, 1, sizes[0] * sizes[2], dtype=np.float32)
        mask = mask.reshape(sizes[0], 1, 1, sizes[2])
        expected = exact(*arguments, mask, offset=sizes[2] - sizes[1])
        check(kernel(*arguments, mask), expected)


@pytest.mark.parametrize("plan", [(4, 1, 4, 4), (2, 3, 6, 8)], ids=str)
def test_schedules_and_scales(plan: tuple[int, int, int, int]) -> None:
    arguments = operands(1, 2, 1, 50, 70, 9, 11)
    kernel = attention(
        1, 2, 50, 70, 9,
        kv_heads=1, value_features=11, causal=True, scale=-2.5, schedule=Schedule(*plan),
    )  # fmt: skip
    check(kernel(*arguments), exact(*arguments, offset=20, scale=-2.5))


@pytest.mark.parametrize("length", [FEW, MANY])
@pytest.mark.parametrize(
    ("name", "lanes", "registers", "dtype"), [("avx2", 8, 16, tc.f32), ("sse2", 4, 32, tc.f16)]
)
def test_narrow_vectors(
    name: str,
    lanes: int,
    registers: int,
    dtype: tc.DType,
    length: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is chosen for lesser processors, on them."""
    if name not in NAMES:
        pytest.skip(f"this processor does not run {name}")
    monkeypatch.setattr(tc, "machine", lambda: Machine(lanes, registers, 1, 1 << 20))
    arguments = [x.astype(dtype.numpy) for x in operands(1, 2, 1, length, 35, 20, 18)]
    kernel = attention(
        1, 2, length, 35, 20, kv_heads=1, value_features=18, causal=True, dtype=dtype
    )
    made = np.empty((1, 2, length, 18), dtype.numpy)
    loaded_for(kernel.ir, name).run([*arguments, made], {})
    expected, bound = exact(*arguments, offset=35 - length)
    rounding = 2.0**-11 if dtype is tc.f16 else 0
    check(made, (expected, bound + rounding * np.abs(expected)))


@pytest.mark.parametrize("length", [FEW, MANY])
def test_the_simulator_finds_nothing(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKC_TARGET", "sim")
    arguments = operands(1, 2, 1, length, 21, 5, 6)
    mask = np.linspace(-1, 1, length * 21, dtype=np.float32).reshape(length, 21)
    kernel = attention(
        1, 2, length, 21, 5, kv_heads=1, value_features=6, causal=True, mask=tc.f32[length, 21]
    )
    check(kernel(*arguments, mask), exact(*arguments, mask, offset=21 - length))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kv_heads": 3}, r"4 heads can't share 3 heads of k and v evenly"),
        ({"kv_heads": 0}, r"4 heads can't share 0 heads of k and v evenly"),
        ({"features": 0}, r"scores are products of features, of which there are 0"),
        ({"offset": 2}, r"an offset says what a causal attention sees: causal=True is missing"),
        ({"mask": tc.f32[2, 5]}, r"a mask f32\[2, 5\] can't be broadcast to \(2, 4, 3, 5\)"),
        ({"mask": tc.f32[1, 1, 2, 4, 3, 5]}, r"a mask f32\[1, 1, 2, 4, 3, 5\] can't be broadcast"),
        ({"mask": tc.i32[3, 5]}, r"a mask has floats, which are added, or bools; i32\[3, 5\] has"),
    ],
    ids=str,
)
def test_what_does_not_fit(options: Any, text: str) -> None:
    with pytest.raises(tc.CompileError, match=text):
        attention(2, 4, 3, 5, **{"features": 6, **options})


@pytest.mark.parametrize("batches", [1, tc.dim("b")], ids=str)
@pytest.mark.parametrize("length", [3, 12, 16])
def test_all_heads_may_share_one_of_keys(batches: Any, length: int) -> None:
    kernel = attention(batches, 4, length, 40, 16, kv_heads=1, mask=tc.f32[batches, 4, length, 1])
    assert not findings(kernel.ir)
