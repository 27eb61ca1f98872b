"""The operators of com.microsoft, against NumPy and, where it is installed, against ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import taskc as tc
from taskc import CompileError, f32, op
from taskc.operators import op as signature
from taskc.operators.call import names_of
from taskc.operators.files import MICROSOFT
from tests.onnx.models import model, node, tensor
from tests.operators import (  # noqa: F401  they enter their cases
    microsoft_attention_cases,
    microsoft_expert_cases,
    microsoft_quantized_cases,
    microsoft_weight_cases,
)
from tests.operators.microsoft_cases import CASES, Case

FEW, RUNS = 5, 50  # random sets of attributes and shapes, by default and in the sweep


def case_of(name: str, seed: int) -> Case:
    return CASES[name](np.random.default_rng([seed, *name.encode()]))


@pytest.mark.parametrize("name", CASES)
def test_a_case(name: str) -> None:
    _check(case_of(name, 0))


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_many_cases(name: str) -> None:
    for seed in range(1, RUNS):
        _check(case_of(name, seed))


def _check(case: Case) -> None:
    case.check(tc.compile(case.model).run(None, case.feeds), case.tolerance)


@pytest.mark.parametrize("name", CASES)
def test_onnx_runtime_has_the_same_results(name: str) -> None:
    _check_peer(name, FEW)


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_onnx_runtime_has_the_same_results_of_many(name: str) -> None:
    _check_peer(name, RUNS)


def _check_peer(name: str, runs: int) -> None:
    runtime: Any = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    for case in (case_of(name, seed) for seed in range(runs)):
        if case.has_peer:
            proto = case.model.SerializeToString()
            session = runtime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
            case.check(session.run(None, case.feeds), case.peer_tolerance)


def test_every_operator_has_a_case() -> None:
    of_cases = {case_of(name, 0).operator for name in CASES}
    assert {*names_of(MICROSOFT)} <= of_cases | {"TransposeMatMul"}  # FusedMatMul's older name


def test_every_operator_has_a_signature() -> None:
    assert {*signature.signatures(MICROSOFT)} == {*names_of(MICROSOFT)}


def test_signatures_are_what_onnx_runtime_says() -> None:
    runtime: Any = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    schemas = {(one.domain, one.name): one for one in runtime.get_all_operator_schema()}
    path = Path(signature.__file__).with_name("microsoft.jsonl")
    for line in path.read_text(encoding="utf-8").splitlines():
        own = json.loads(line)
        schema = schemas.get((MICROSOFT, own["name"])) or schemas["", own["name"]]
        inputs = [[one.name, one.typeStr] for one in schema.inputs]
        assert [one[:2] for one in own["inputs"]] == inputs[: len(own["inputs"])], own["name"]
        assert own["attributes"].keys() <= schema.attributes.keys(), own["name"]


def test_the_page_lists_them() -> None:
    text = (Path(__file__).parents[2] / "docs" / "onnx.md").read_text(encoding="utf-8")
    missing = [name for name in names_of(MICROSOFT) if f"`{name}`" not in text]
    assert not missing


def test_in_a_program() -> None:
    x, bias = np.ones((2, 3), np.float32), np.full(3, -1, np.float32)

    def body(x: Any, bias: Any) -> Any:
        return {"y": op.microsoft.FastGelu(x, bias)}

    program = tc.trace("own", {"x": f32[2, 3], "bias": f32[3]}, body)
    np.testing.assert_array_equal(program(x, bias), np.zeros((2, 3)))


def _decoder(random: np.random.Generator) -> Any:
    """A layer of a decoder with its cache, as ONNX Runtime GenAI's builder writes it: lengths come from the mask."""
    width, packed = 32, random.integers(0, 256, (64, 2, 8)).astype(np.uint8)
    constants = {
        "table": random.standard_normal((9, width)).astype(np.float32),
        "norm": np.ones(width, np.float32),
        "w": packed,
        "scales": (random.random((64, 2)) * 0.05).astype(np.float32),
        "cos": np.cos(np.arange(64)[:, None] * np.ones(8)).astype(np.float32),
        "sin": np.sin(np.arange(64)[:, None] * np.ones(8)).astype(np.float32),
        "axes": np.array([1]),
        "one": np.array([1]),
        "place": np.array(1),
    }
    bits = {"N": 64, "K": width, "bits": 4, "block_size": 16}
    heads = {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1}
    nodes = [
        node("ReduceSum", ["mask", "axes"], ["sums"], keepdims=0),
        node("Sub", ["sums", "one"], ["ends"]),
        node("Cast", ["ends"], ["lengths"], to=6),
        node("Shape", ["mask"], ["shape"]),
        node("Gather", ["shape", "place"], ["length"]),
        node("Cast", ["length"], ["total"], to=6),
        node("Gather", ["table", "ids"], ["x"]),
        node("SimplifiedLayerNormalization", ["x", "norm"], ["n"]),
        node("MatMulNBits", ["n", "w", "scales"], ["qkv"], domain=MICROSOFT, **bits),
        node(
            "GroupQueryAttention",
            ["qkv", "", "", "past_k", "past_v", "lengths", "total", "cos", "sin"],
            ["a", "present_k", "present_v"],
            domain=MICROSOFT,
            **heads,
        ),
        node("SkipSimplifiedLayerNormalization", ["x", "a", "norm"], ["y"], domain=MICROSOFT),
    ]
    return model(
        nodes,
        [
            tensor("ids", "batch", "length", type=7),
            tensor("mask", "batch", "total", type=7),
            *[tensor(f"past_{name}", "batch", 1, "past", 16) for name in "kv"],
        ],
        ["y", "present_k", "present_v"],
        domains=(MICROSOFT,),
        initializer=[numpy_helper.from_array(array, name) for name, array in constants.items()],
    )


@pytest.mark.parametrize("room", [0, pytest.param(12, marks=pytest.mark.sweep)])
def test_step_by_step_is_as_all_at_once(room: int) -> None:
    """A cache grows at each step, or has room for all."""
    random = np.random.default_rng(0)
    compiled, ids = tc.compile(_decoder(random)), random.integers(0, 9, (1, 5))

    def run(first: int, end: int, caches: list[Any]) -> Any:
        feeds = {"ids": ids[:, first:end], "mask": np.ones((1, end), np.int64)}
        return compiled.run(None, {**feeds, "past_k": caches[0], "past_v": caches[1]})

    empty = [np.zeros((1, 1, room, 16), np.float32)] * 2
    whole, *_ = run(0, 5, empty)
    rows, *caches = run(0, 3, empty)
    for end in (4, 5):
        row, *caches = run(end - 1, end, caches)
        rows = np.concatenate([rows, row], 1)
    np.testing.assert_allclose(rows, whole, rtol=1e-4, atol=1e-4)
    assert caches[0].shape[2] == (room or 5)


# Nodes, and why they are refused.
REFUSED: list[tuple[str, list[tuple[int, ...]], dict[str, Any], str]] = [
    ("FusedConv", [(1, 1, 4, 4), (1, 1, 3, 3)], {"activation": "Snake"}, "its attribute 'activation' of 'Snake'"),
    ("Attention", [(1, 2, 4), (4, 12)], {"num_heads": 2, "do_rotary": 1}, "its attribute 'do_rotary' of 1"),
    ("Attention", [(1, 2, 4), (4, 12)], {"num_heads": 3}, "aren't queries, keys and values of 3 heads"),
    ("RotaryEmbedding", [(1, 2, 4), (1,), (4, 2), (4, 2)], {"scale": 2.0}, "its attribute 'scale' of 2.0"),
    ("MultiHeadAttention", [(1, 2, 4)], {"num_heads": 2}, "it has no keys"),
    ("FusedMatMul", [(2, 2), (2, 2)], {"transBatchA": 1}, "its attribute 'transBatchA' needs 3 dimensions"),
    ("BiasGelu", [(2, 2)], {}, "it has 1 inputs, but takes 2"),
    ("QuickGelu", [(2, 2)], {"beta": 1.0}, "it has no attribute 'beta'"),
    ("Inverse", [(2, 3)], {}, r"its input \[2, 3\] is no square matrix"),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[3])
def test_what_is_refused(case: Any) -> None:
    operator, shapes, attributes, message = case
    inputs = [tensor(f"x{n}", *shape) for n, shape in enumerate(shapes)]
    names = [f"x{n}" for n in range(len(shapes))]
    one = node(operator, names, ["y"], name="n", domain=MICROSOFT, **attributes)
    feeds = [np.zeros(shape, np.float32) for shape in shapes]
    with pytest.raises(CompileError, match=f"{operator} node 'n': .*{message}"):
        tc.compile(model([one], inputs, ["y"], domains=(MICROSOFT,)))(*feeds)


def test_an_unknown_operator_names_those_near_it() -> None:
    one = node("SkipLayerNorm", ["x"], ["y"], name="n", domain=MICROSOFT)
    with pytest.raises(CompileError) as error:
        tc.compile(model([one], [tensor("x", 2)], ["y"], domains=(MICROSOFT,)))
    assert error.value.message == (
        "the model has operators that taskc doesn't know:\n"
        "  SkipLayerNorm (of com.microsoft, opset 1): the SkipLayerNorm node 'n';"
        " taskc has SkipLayerNormalization and SkipGroupNorm"
    )
