"""Models in bundles: for the shapes that they were saved for, by the model's own names."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

import taskc as tc
from taskc import f32
from taskc.arrays.arguments import ArgumentError
from taskc.runtime.bundle import BundleError

from .models import model, node, samples, tensor

_WEIGHTS = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def _layer() -> Any:
    return tc.compile(
        model(
            [node("MatMul", ["x", "w"], ["h/0"]), node("Relu", ["h/0"], ["y.0"])],
            [tensor("x", "n", 3)],
            ["y.0", "h/0", "w", "x"],
            initializer=[numpy_helper.from_array(_WEIGHTS, "w")],
        )
    )


def x(rows: int) -> Any:
    return np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.taskc"


def same(some: list[Any], others: list[Any]) -> bool:
    pairs = [*zip(some, others, strict=True)]
    return all((a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()) for a, b in pairs)


def test_a_model_is_called_as_it_was(path: Path) -> None:
    own = _layer()
    tc.save_bundle(own, path, {"x": x(2)}, {"x": x(5)})
    found = tc.load_bundle(path)
    assert repr(found) == repr(own)
    assert (found.name, found.inputs, found.outputs) == (own.name, own.inputs, own.outputs)
    assert found.shapes == [{"x": (2, 3)}, {"x": (5, 3)}]
    for rows in (5, 2):
        assert same(found.run(None, {"x": x(rows)}), own.run(None, {"x": x(rows)}))
    assert same(found.run(["h/0"], {"x": x(2)}), own.run(["h/0"], {"x": x(2)}))
    constant = found(x(2))[2]
    constant[:] = 0  # what is known is a copy
    assert same([found(x(2))[2]], [_WEIGHTS])


def test_other_shapes_are_told_which_there_are(path: Path) -> None:
    tc.save_bundle(_layer(), path, {"x": x(2)}, {"x": x(5)})
    found = tc.load_bundle(path)
    with pytest.raises(ArgumentError) as caught:
        found(x(3))
    assert str(caught.value) == (
        "the bundle has no program for x: f32[3, 3]; it has: x: f32[2, 3]; x: f32[5, 3]"
    )
    with pytest.raises(ArgumentError, match="has 3 along axis 1, and the array 4"):
        found(np.zeros((2, 4), np.float32))
    with pytest.raises(tc.CompileError, match="a bundle has no graph of its model"):
        _ = found.graph
    with pytest.raises(tc.CompileError, match="were traced as"):
        found.program({"x": x(2)})


def test_shapes_that_a_model_says_need_not_be_said(path: Path) -> None:
    fixed = tc.compile(model([node("Neg", ["x"], ["y"])], [tensor("x", 2, 3)], ["y"]))
    tc.save_bundle(fixed, path)
    assert same([tc.load_bundle(path)(x(2))], [-x(2)])
    with pytest.raises(
        tc.CompileError, match=r"leaves open what shape its input x: f32\[n, 3\] has"
    ) as caught:
        tc.save_bundle(_layer(), path)
    assert "--shape x=1,128" in str(caught.value)
    assert same([tc.load_bundle(path)(x(2))], [-x(2)])  # what was there still is


def test_what_is_compiled_may_depend_on_small_inputs(path: Path) -> None:
    own = tc.compile(
        model(
            [node("Reshape", ["x", "shape"], ["y"])],
            [tensor("x", 6), tensor("shape", 2, type=TensorProto.INT64)],
            ["y"],
        )
    )
    feeds = [{"x": x(2).reshape(-1), "shape": np.array(shape)} for shape in ([2, 3], [3, 2])]
    tc.save_bundle(own, path, *feeds)
    found = tc.load_bundle(path)
    assert [found(feed).shape for feed in feeds] == [(2, 3), (3, 2)]
    with pytest.raises(
        ArgumentError, match="no program for these elements of 'shape', which decide"
    ):
        found(feeds[0]["x"], np.array([6, 1]))


def test_what_needs_no_program_needs_none(path: Path) -> None:
    own = tc.compile(model([node("Shape", ["x"], ["y"])], [tensor("x", "n", 3)], ["y"]))
    tc.save_bundle(own, path, {"x": x(2)})
    assert tc.load_bundle(path)(x(2)).tolist() == [2, 3]


def test_operands_of_fewer_bits_are_in_the_bundle(path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    proto = model(
        [node("MatMul", ["x", "w"], ["y"])],
        [tensor("x", "n", 64)],
        ["y"],
        initializer=[numpy_helper.from_array(weights, "w")],
    )
    precise, rounded = (tc.compile(proto, precision=it) for it in ("f32", "bf16"))
    for rows in (1, 40):
        feeds = {"x": np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)}
        expected = rounded.run(None, feeds)
        assert not same(expected, precise.run(None, feeds))
        tc.save_bundle(rounded, path, feeds)
        assert same(tc.load_bundle(path, verify=True).run(None, feeds), expected)


def test_what_data_selects_is_counted(path: Path) -> None:
    own = tc.compile(
        model(
            [node("NonZero", ["x"], ["n"]), node("Relu", ["x"], ["y"])],
            [tensor("x", None, 3)],
            ["n", "y"],
        )
    )
    tc.save_bundle(own, path, {"x": x(4)})
    found = tc.load_bundle(path)
    for array in (x(4), 0 * x(4), np.maximum(x(4), 0)):
        n, y = found(array)
        assert np.array_equal(n, np.array(np.nonzero(array)))
        assert np.array_equal(y, np.maximum(array, 0))


def test_a_model_that_runs_in_parts_is_refused(path: Path) -> None:
    own = tc.compile(
        model(
            [
                node("NonZero", ["x"], ["n"]),
                node("Transpose", ["n"], ["t"]),
                node("GatherND", ["x", "t"], ["y"]),
            ],
            [tensor("x", 4, 3)],
            ["y"],
        )
    )
    for _ in range(2):
        with pytest.raises(tc.CompileError, match=r"'main' runs in parts, .* how many") as caught:
            tc.save_bundle(own, path)
        assert "takes a part" in str(caught.value)
        assert np.array_equal(own(x(4)), x(4)[x(4) != 0])
    assert not path.exists()


@pytest.mark.parametrize(
    "number", [0, 1, 2, 4, 5]
)  # the other one has numbers of 4 bits, which models can't have
def test_the_samples_give_the_same_bits(number: int, path: Path) -> None:
    own = tc.compile(samples()[number])
    rng = np.random.default_rng(0)
    feeds = {}
    for value in own.inputs:
        shape = [n if isinstance(n, int) else 3 for n in value.shape or ()]
        made = rng.integers(0, 2, shape) if value.dtype.is_integer else rng.standard_normal(shape)
        feeds[value.name] = made.astype(value.dtype.numpy)
    expected = own.run(None, feeds)
    tc.save_bundle(own, path, feeds)
    assert same(tc.load_bundle(path, verify=True).run(None, feeds), expected)


def test_sets_of_shapes_share_weights(path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    own = tc.compile(
        model(
            [node("MatMul", ["x", "w"], ["y"])],
            [tensor("x", "n", 64)],
            ["y"],
            initializer=[numpy_helper.from_array(weights, "w")],
        )
    )
    feeds = [{"x": np.ones((rows, 64), np.float32)} for rows in (24, 48)]
    tc.save_bundle(own, path, *feeds)
    assert weights.nbytes < path.stat().st_size < 2 * weights.nbytes


def test_a_program_is_saved_for_all_sizes(path: Path) -> None:
    n = tc.dim("n")

    @tc.program
    def doubled(x: f32[n], y: tc.out[f32[n]]):
        tc.compute(n, lambda i: x[i] + x[i], out=y)

    tc.save_bundle(doubled, path)
    found = tc.load_bundle(path)
    assert [found(np.ones(size, np.float32)).sum() for size in (0, 1, 37)] == [0, 2, 74]
    with pytest.raises(ArgumentError, match="it takes no feeds"):
        tc.save_bundle(doubled, path, {"x": x(2)})


def test_threads_call_it_at_once(path: Path) -> None:
    own = _layer()
    tc.save_bundle(own, path, {"x": x(2)}, {"x": x(5)})
    found = tc.load_bundle(path)
    expected = {rows: own(x(rows)) for rows in (2, 5)}
    with ThreadPoolExecutor(4) as pool:
        made = [*pool.map(lambda rows: (rows, found(x(rows))), [2, 5] * 20)]
    assert all(same(outputs, expected[rows]) for rows, outputs in made)


def test_no_flipped_bit_changes_a_result(path: Path) -> None:
    own = _layer()
    tc.save_bundle(own, path, {"x": x(2)})
    expected, whole, refused = own.run(None, {"x": x(2)}), path.read_bytes(), 0
    for place in range(3, len(whole), len(whole) // 60):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            assert same(tc.load_bundle(path).run(None, {"x": x(2)}), expected)
        except BundleError:
            refused += 1
    assert refused > 40


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tc.load_bundle(tmp_path / "nothing.taskc")
    (tmp_path / "text.taskc").write_text(
        "a text that is long enough to be a head, and isn't one at all\n"
    )
    with pytest.raises(BundleError, match="this is no bundle"):
        tc.load_bundle(tmp_path / "text.taskc")
