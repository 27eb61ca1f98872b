"""Models whose extents differ from call to call: how many programs there are, and that each is right."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

import taskc as tc
from taskc.errors import InternalError
from taskc.onnx import versions
from taskc.onnx.versions import Axis, Form, Shapes, condition, least_general
from taskc.programs.sizes import Assumptions
from taskc.runtime import served

from .bert import bert
from .decoder import decoder, first_feeds, grouped_decoder, next_feeds
from .models import model, node, tensor

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def integers(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def _form(seen: list[Shapes], numbers: set[Axis] | None = None) -> list[str]:
    names = {(number, axis): f"x{number}_{axis}" for number in range(3) for axis in range(3)}
    form = least_general(seen, numbers or set(), names)
    ranks = map(len, seen[-1])
    return [str([*form.shape(number, rank)]) for number, rank in enumerate(ranks)]


def test_the_least_general_form() -> None:
    assert _form([((1, 4), (4,)), ((1, 7), (7,))]) == ["[1, x0_1]", "[x0_1]"]
    assert _form([((1, 4), (4,)), ((1, 7), (7,)), ((1, 7), (9,))]) == ["[1, x0_1]", "[x1_0]"]
    assert _form([((2, 2),), ((3, 3),)]) == ["[x0_0, x0_0]"]
    assert _form([((2, 5),), ((3, 6),)], {(0, 1)}) == ["[x0_0, 6]"]
    assert _form([((5,),)]) == ["[5]"]


def test_a_form_has_only_shapes_that_fit_it() -> None:
    form = least_general([((1, 4), (4,)), ((1, 7), (7,))], set(), {(0, 1): "n", (1, 0): "m"})
    (n,) = form.dimensions
    assert form.sizes(((1, 3), (3,))) == {n: 3}
    for other in (((1, 3), (4,)), ((2, 3), (3,)), ((1, 0), (0,))):
        assert form.sizes(other) is None


def test_an_extent_may_be_the_sum_of_others() -> None:
    a, b, c = (tc.dim(name) for name in "abc")
    form = Form({(0, 0): a, (1, 0): b, (2, 0): c, (2, 1): 4})
    seen: list[Shapes] = [((2,), (3,), (6, 4)), ((2,), (5,), (8, 4)), ((0,), (5,), (6, 4))]
    related = form.related([a + b - c, a + b + 1 - c], seen)
    assert related is not None
    assert str([*related.shape(2, 2)]) == "[a + b + 1, 4]"
    assert related.sizes(((7,), (1,), (9, 4))) == {a: 7, b: 1}
    assert related.sizes(((7,), (1,), (8, 4))) is None
    assert related.sizes(((0,), (1,), (2, 4))) is None
    assert form.related([a + b - c, b - a - 3], seen) is None  # b is a + 3 at one call alone
    assert form.related([a - c // 3], seen[:2]) is not None
    assert form.related([a - (a + c) // 4], seen[:2]) is None  # it doesn't tell a


def test_relations_are_asked_for_by_the_model_and_hold_for_its_calls() -> None:
    """A cache, new rows, and a mask for both; there are programs for a mask that broadcasts, and for no cache."""
    proto = model(
        [node("Concat", ["past", "new"], ["all"], axis=0), node("Add", ["all", "mask"], ["y"])],
        [tensor("past", None), tensor("new", None), tensor("mask", None)],
        ["y"],
    )
    found, counts = tc.compile(proto), []
    for past, new, mask in [
        (2, 3, 5), (3, 5, 8), (9, 4, 13), (6, 2, 8), (20, 30, 50),
        (2, 3, 1), (0, 4, 4), (0, 9, 9), (0, 7, 7), (7, 7, 14),
    ]:  # fmt: skip
        arrays = normal(past), normal(new), normal(mask)
        assert (found(*arrays) == np.concatenate(arrays[:2]) + arrays[2]).all()
        counts.append(len(found.programs))
    assert counts == [1, 2, 3, 3, 3, 4, 5, 6, 6, 6]


def test_one_program_for_all_tokens_of_a_decoder() -> None:
    """Prompts, which have no cache, and single tokens have one each, behind those of the first shapes."""
    proto = decoder()
    found, reference = tc.compile(proto), ReferenceEvaluator(proto)
    feeds, counts = first_feeds(proto, RANDOM.integers(0, 50, 6)), []
    for step in range(51):
        outputs = found.run(None, feeds)
        if step in (0, 1, 3, 50):
            for made, expected in zip(outputs, reference.run(None, feeds), strict=True):
                np.testing.assert_allclose(made, expected, rtol=1e-3, atol=1e-5)
        counts.append(len(found.programs))
        feeds = next_feeds(outputs, feeds)
    assert counts == [1, 2, *[3] * 49]
    for length in (9, 4, 11):
        found.run(None, first_feeds(proto, RANDOM.integers(0, 50, length)))
    assert len(found.programs) == 4


def test_one_program_for_all_tokens_of_grouped_queries() -> None:
    """Behind those of the first shapes."""
    found, counts = tc.compile(grouped_decoder(np.random.default_rng(0))), list[int]()
    caches = [np.zeros((1, 1, 0, 16), np.float32)] * 2
    for total in range(4, 12):
        ids = integers([1] * (4 if total == 4 else 1))
        mask = np.ones((1, total), np.int64)
        _, *caches = found.run(
            None, {"ids": ids, "mask": mask, "past_k": caches[0], "past_v": caches[1]}
        )
        counts.append(len(found.programs))
    assert counts == [1, 2, *[3] * 6]


def test_one_program_for_all_lengths_of_text() -> None:
    proto = bert(layers=1, hidden=24, heads=3, inner=32, longest=64)
    found, reference = tc.compile(proto), ReferenceEvaluator(proto)
    lengths = [1, 64, *random.Random(0).sample(range(2, 64), 6)]
    for length in lengths:
        ids = RANDOM.integers(0, 50, (1, length))
        mask = np.ones((1, length), np.int64)
        mask[0, length - length // 4 :] = 0
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}
        (expected,), (made,) = reference.run(None, feeds), found.run(None, feeds)
        assert made.shape == expected.shape
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
    assert len(found.programs) == 3


def _checked(proto: Any, shapes: list[tuple[int, ...]], *more: Any) -> list[int]:
    """How many programs a model has behind calls with an input of each shape; what they give is compared."""
    found, reference, counts = tc.compile(proto), ReferenceEvaluator(proto), []
    names = [value.name for value in found.inputs]
    for shape in shapes:
        feeds = dict(zip(names, (normal(*shape), *more), strict=True))
        for made, expected in zip(found.run(None, feeds), reference.run(None, feeds), strict=True):
            assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(made, expected, rtol=1e-5)
        counts.append(len(found.programs))
    return counts


def test_where_a_size_decides_there_is_a_program_for_each_way() -> None:
    proto = model(
        [node("Slice", ["x", "low", "high"], ["s"]), node("Neg", ["s"], ["y"])],
        [tensor("x", None)],
        ["y"],
        initializer=[
            numpy_helper.from_array(integers(at), name) for at, name in ((-8, "low"), (20, "high"))
        ],
    )
    shapes = [(3,), (5,), (6,), (7,), (12,), (13,), (1,), (25,), (30,)]
    assert _checked(proto, shapes) == [1, 2, 3, 3, 4, 4, 4, 5, 6]


def test_an_extent_that_has_to_be_a_number_is_one(caplog: pytest.LogCaptureFixture) -> None:
    """Each step of a Loop adds a row: there is a program for each number of steps, and the other axis is open."""
    shapes = [(2, 3), (3, 4), (3, 5), (3, 6), (2, 7), (2, 8), (3, 9)]
    growing = [node("Concat", ["h", "x"], ["next"], axis=0)]
    assert _checked(_loop_over_rows(growing), shapes) == [1, 2, 3, 3, 4, 4, 4]
    (said,) = caplog.messages
    assert said.startswith(
        "main: each value of x_0 (axis 0 of 'x') gets a program of its own, which compiles at its first call: "
    )
    assert "is known only at a call" in said


def test_the_steps_of_a_loop_are_a_dimension() -> None:
    shapes = [(2, 3), (3, 4), (3, 5), (3, 6), (7, 7), (12, 8), (3, 9), (20, 9)]
    summing = [
        node("Add", ["h", "x"], ["sums"]),
        node("ReduceSum", ["sums", "first"], ["next"], keepdims=1),
    ]
    assert _checked(_loop_over_rows(summing), shapes) == [1, 2, 3, 3, 3, 3, 3, 3]


def _loop_over_rows(nodes: list[Any]) -> Any:
    """A Loop of as many steps as `x` has rows, which carries `h`, one row at first."""
    body = model(
        [*nodes, node("Identity", ["goes_on"], ["still"])],
        [
            tensor("turn", type=TensorProto.INT64),
            tensor("goes_on", type=TensorProto.BOOL),
            tensor("h", None, None),
        ],
        ["still", "next"],
        initializer=[numpy_helper.from_array(integers(0), "first")],
    ).graph
    return model(
        [
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "zero"], ["turns"]),
            node("ReduceSum", ["x", "zeros"], ["start"], keepdims=1),
            node("Loop", ["turns", "true", "start"], ["last"], body=body),
        ],
        [tensor("x", None, None)],
        ["last"],
        initializer=[
            numpy_helper.from_array(integers(0), "zeros"),
            numpy_helper.from_array(np.array(0), "zero"),
            numpy_helper.from_array(np.array(True), "true"),
        ],
    )


def test_the_steps_of_a_scan_are_a_dimension() -> None:
    body = model(
        [node("Add", ["h", "x"], ["next"]), node("Identity", ["next"], ["out"])],
        [tensor("h", None), tensor("x", None)],
        ["next", "out"],
    ).graph
    proto = model(
        [
            node("ReduceSum", ["x", "first"], ["start"], keepdims=0),
            node("Scan", ["start", "x"], ["last", "all"], body=body, num_scan_inputs=1),
        ],
        [tensor("x", None, None)],
        ["last", "all"],
        initializer=[numpy_helper.from_array(integers(0), "first")],
    )
    shapes = [(2, 3), (3, 4), (3, 5), (3, 6), (2, 7), (2, 8), (3, 9)]
    assert _checked(proto, shapes)[:3] == [1, 2, 3]
    assert _checked(proto, shapes)[-1] <= 4


def test_shapes_are_also_elements() -> None:
    proto = model(
        [
            node("Shape", ["x"], ["s"]),
            node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
            node("Mul", ["f", "half"], ["y"]),
        ],
        [tensor("x", None, 4, None)],
        ["s", "y"],
        initializer=[numpy_helper.from_array(np.float32(0.5), "half")],
    )
    counts = _checked(proto, [(1, 4, 2), (2, 4, 3), (3, 4, 5), (4, 4, 1), (7, 4, 9)])
    assert counts == [1, 2, 3, 3, 3]


def test_shapes_may_be_of_fewer_bits() -> None:
    proto = model(
        [
            node("Shape", ["x"], ["s"]),
            node("Cast", ["s"], ["few"], to=TensorProto.INT32),
            node("Concat", ["few", "two"], ["more"], axis=0),
            node("Cast", ["more"], ["wide"], to=TensorProto.INT64),
            node("Expand", ["one", "wide"], ["y"]),
        ],
        [tensor("x", None)],
        ["more", "y"],
        initializer=[
            numpy_helper.from_array(np.array([2], np.int32), "two"),
            numpy_helper.from_array(np.float32(1), "one"),
        ],
    )
    assert _checked(proto, [(1,), (2,), (3,), (4,), (9,)]) == [1, 2, 3, 3, 3]


def test_what_has_no_elements_has_a_program_of_its_own() -> None:
    proto = model([node("Neg", ["x"], ["y"])], [tensor("x", None, 3)], ["y"])
    assert _checked(proto, [(1, 3), (2, 3), (3, 3), (0, 3), (9, 3)]) == [1, 2, 3, 4, 4]


def test_decisive_values_have_programs_of_their_own() -> None:
    proto = model(
        [node("Tile", ["x", "times"], ["y"])],
        [tensor("x", None), tensor("times", 1, type=TensorProto.INT64)],
        ["y"],
    )
    found = tc.compile(proto)
    for size in (1, 2, 3, 4, 5):
        for times in (2, 3):
            x = normal(size)
            assert found(x, integers(times)).tolist() == np.tile(x, times).tolist()
    assert len(found.programs) == 6


def test_a_condition_is_that_of_a_form_with_its_names() -> None:
    n, m = tc.dim("n"), tc.dim("m")
    form = Form({(0, 0): n, (0, 1): n // 2, (1, 0): 5, (2, 0): m, (3, 0): n % 4})
    half = np.dtype(np.float16)

    def types(*shapes: tuple[int, ...]) -> Any:
        return tuple([(half, shape) for shape in shapes])

    fitting = (6, 3), (5,), (4,), (2,)
    assumptions = Assumptions({n: 6, m: 4})
    assumptions.answer("<", m - n)
    serves = condition(form, assumptions, types(*fitting), {})
    assert serves(types(*fitting))
    assert serves(types((7, 3), (5,), (4,), (3,)))
    for other in (
        ((6, 2), (5,), (4,), (2,)), ((6, 3), (4,), (4,), (2,)), ((6, 3), (5,), (4,), (1,)),
        ((6, 3), (5,), (7,), (2,)), ((6, 3, 1), (5,), (4,), (2,)), ((0, 0), (5,), (4,), (0,)),
    ):  # fmt: skip
        assert not serves(types(*other))
    assert not serves(((np.dtype(np.float32), (6, 3)), *types(*fitting)[1:]))
    named = condition(form, assumptions, types(*fitting), {(1, 0): "k", (2, 0): "k"})
    assert not named(types(*fitting))
    assert named(types((6, 3), (5,), (5,), (2,)))


def test_shapes_that_a_program_serves_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those: extents of one name are equal, and the answers that the program was traced with are the same."""
    proto = model(
        [
            node("Concat", ["x", "z"], ["joined"], axis=0),
            node("Slice", ["joined", "zero", "four"], ["y"]),
        ],
        [tensor("x", "n", 2), tensor("z", "m", 2), tensor("u", "n")],
        ["y"],
        initializer=[
            numpy_helper.from_array(integers(k), name) for k, name in ((0, "zero"), (4, "four"))
        ],
    )
    compiled = tc.compile(proto)

    def run(n: int, m: int, of_u: int | None = None) -> None:
        x, z, u = normal(n, 2), normal(m, 2), normal(of_u or n)
        np.testing.assert_array_equal(compiled(x, z, u), np.concatenate([x, z])[:4])

    for n, m in ((3, 4), (5, 6), (7, 9)):
        run(n, m)
    monkeypatch.setattr(type(compiled), "checked", None)
    for n, m in ((7, 9), (20, 3), (4, 30)):
        run(n, m)
    for others in (
        (1, 2),
        (2, 1),
        (0, 8),
        (5, 8, 4),
    ):  # fewer than four, none, and one name of two sizes
        with pytest.raises(TypeError, match="not callable"):
            run(*others)
    monkeypatch.undo()
    run(1, 2)
    with pytest.raises(tc.ArgumentError, match="'n' is 5 by 'x', and 4 by 'u'"):
        run(5, 8, 4)


def test_programs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is beyond what was assumed: behind a number of programs with dimensions come those without."""
    monkeypatch.setattr(versions, "_MOST_OPEN", 2)
    monkeypatch.setattr(served, "_MAX_PROGRAMS", 5)
    clipped = model(
        [node("Slice", ["x", "zero", f"c{at}"], [f"y{at}"]) for at in range(4, 40, 4)],
        [tensor("x", None)],
        [f"y{at}" for at in range(4, 40, 4)],
        initializer=[
            numpy_helper.from_array(integers(at), "zero" if at == 0 else f"c{at}")
            for at in range(0, 40, 4)
        ],
    )
    # Two of their own, two with dimensions, and then more of their own: the latest five programs are kept.
    shapes = [(1,), (2,), (3,), (5,), (9,), (13,), (17,), (1,), (3,), (5,)]
    assert _checked(clipped, shapes) == [1, 2, 3, 4, 5, 5, 5, 5, 5, 5]


def test_what_compiles_for_numbers_alone_is_compiled_for_each_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(versions, "whole_program", _fails(tc.CompileError("it isn't proved")))
    proto = model([node("Neg", ["x"], ["y"])], [tensor("x", None)], ["y"])
    assert _checked(proto, [(1,), (2,), (3,), (4,), (3,)]) == [1, 2, 3, 4, 4]
    said = "main: each value of x_0 (axis 0 of 'x') gets a program of its own, which compiles at its first call"
    assert f"{said}: error: it isn't proved" in caplog.text


def test_a_mistake_of_the_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "whole_program", _fails(InternalError("no plan")))
    proto = model([node("Neg", ["x"], ["y"])], [tensor("x", None)], ["y"])
    with pytest.raises(InternalError, match="no plan"):
        _checked(proto, [(1,), (2,), (3,)])


def _fails(error: Exception) -> Any:
    def fails(program: Any) -> None:
        raise error

    return fails


def test_threads_ask_for_programs_at_once() -> None:
    proto = model([node("Neg", ["x"], ["y"])], [tensor("x", None)], ["y"])
    found = tc.compile(proto)

    def call(size: int) -> bool:
        return bool((found(np.ones(size, np.float32)) == -np.ones(size)).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, [*range(1, 9)] * 3))
    assert len(found.programs) == 3
