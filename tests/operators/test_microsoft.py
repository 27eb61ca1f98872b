"""The operators of com.microsoft, against NumPy and, where it is installed, against ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, helper, numpy_helper

import taskc as tc
from taskc import CompileError, f32, op
from taskc.kernels.quantized.words import multiplies_words
from taskc.operators import op as signature
from taskc.operators.call import names_of
from taskc.operators.files import MICROSOFT
from taskc.programs.ir import calls_of
from tests.onnx.decoder import grouped_decoder
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
    if name != "quantized_gemm":  # it has no other
        # Without VNNI, its fast products of u8 and i8 saturate.
        options.add_session_config_entry("session.x64quantprecision", "1")
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


def test_signatures_are_what_onnx_runtime_says(request: pytest.FixtureRequest) -> None:
    """Its newer versions may have more inputs and attributes."""
    runtime: Any = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    schemas = {(one.domain, one.name): one for one in runtime.get_all_operator_schema()}
    path = Path(signature.__file__).with_name("microsoft.jsonl")
    names = sorted(names_of(MICROSOFT))
    lines = [_line(schemas.get((MICROSOFT, name)) or schemas["", name]) for name in names]
    if request.config.getoption("--update-golden"):
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    own = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line, expected in zip(own, lines, strict=True):
        assert line["name"] == expected["name"]
        assert line["inputs"] == expected["inputs"][: len(line["inputs"])], line["name"]
        assert line["attributes"].items() <= expected["attributes"].items(), line["name"]


def _line(schema: Any) -> dict[str, Any]:
    """The fields of an operator's line in the table."""
    attributes = {}
    for name, formal in sorted(schema.attributes.items()):
        default = AttributeProto.FromString(formal._default_value)
        value = helper.get_attribute_value(default) if default.type else None
        kind = str(formal.type).rpartition(".")[2].lower()
        attributes[name] = [
            kind,
            formal.required,
            value.decode() if isinstance(value, bytes) else value,
        ]
    return {
        "name": schema.name,
        "version": 1,
        "inputs": [
            [one.name, one.typeStr, str(one.option).endswith("Single")] for one in schema.inputs
        ],
        "most_inputs": min(schema.max_input, signature.MOST),
        "outputs": [max(schema.min_output, 1), min(schema.max_output, signature.MOST)],
        "attributes": attributes,
    }


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


@pytest.mark.parametrize("room", [0, pytest.param(12, marks=pytest.mark.sweep)])
def test_step_by_step_is_as_all_at_once(room: int) -> None:
    """A cache grows at each step, or has room for all."""
    random = np.random.default_rng(0)
    compiled, ids = tc.compile(grouped_decoder(random)), random.integers(0, 9, (1, 5))

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


def test_rows_are_rounded_once_for_all_nodes_that_read_them() -> None:
    if not multiplies_words(4, tc.machine()):
        pytest.skip("nothing is rounded without fast products of bytes")
    random = np.random.default_rng(0)
    attributes = {"N": 8, "K": 32, "bits": 4, "block_size": 32, "accuracy_level": 4}
    nodes = [
        node("MatMulNBits", [x, "w", "scales"], [y], domain=MICROSOFT, **attributes)
        for x, y in (("x", "gate"), ("x", "up"))
    ]
    constants = {
        "w": random.integers(0, 256, (8, 1, 16)).astype(np.uint8),
        "scales": random.random((8, 1)).astype(np.float32),
    }
    proto = model(
        nodes, [tensor("x", 3, 32)], ["gate", "up"], domains=(MICROSOFT,),
        initializer=[numpy_helper.from_array(x, name) for name, x in constants.items()],
    )  # fmt: skip
    compiled = tc.compile(proto)
    feeds = {"x": random.standard_normal((3, 32)).astype(np.float32)}
    np.testing.assert_array_equal(*compiled.run(None, feeds))
    names = [call.callee.name for call in calls_of(compiled.program(feeds).program.ir.calls)]
    assert names.count("rounded_rows") == 1


Shape = Any  # extents, perhaps after a type other than f32; None is an input that is absent
U8, I32 = np.uint8, np.int32
TAKEN: list[Shape] = [(1, 2, 4), (1, 2, 2), (1, 2, 2), (1, 1, 0, 2), (1, 1, 0, 2), (I32, 1), (I32,)]
EXPERTS: list[Shape] = [(2, 4), (2, 3), (3, 5, 4), None, (3, 4, 5)]
PACKED: list[Shape] = [(2, 4), (2, 3), (U8, 3, 5, 2), (3, 5), None, (U8, 3, 4, 4), (3, 4)]

# Nodes, and why they are refused.
REFUSED: list[tuple[str, list[Shape], dict[str, Any], str]] = [
    ("BiasGelu", [(2, 2)], {}, "it has 1 inputs, but takes 2"),
    ("QuickGelu", [(2, 2)], {"beta": 1.0}, "it has no attribute 'beta'"),
    ("FusedMatMul", [(2, 2), (2, 2)], {"transBatchA": 1}, "its attribute 'transBatchA' needs 3 dimensions"),
    ("FusedConv", [(1, 1, 4, 4), (1, 1, 3, 3)], {"activation": "Snake"}, "its attribute 'activation' of 'Snake'"),
    ("Inverse", [(2, 3)], {}, r"its input \[2, 3\] is no square matrix"),
    ("GroupNorm", [(1, 2, 2, 4), (4,), (4,)], {"groups": 2, "activation": 2}, "its attribute 'activation' of 2"),
    ("Attention", [(1, 2, 4), (4, 12)], {"num_heads": 2, "do_rotary": 1}, "its attribute 'do_rotary' of 1"),
    ("Attention", [(1, 2, 4), (4, 12)], {"num_heads": 3}, "aren't queries, keys and values of 3 heads"),
    ("Attention", [(1, 2, 4), (4, 12), None, (I32, 5)], {"num_heads": 2},
     r"its input 3 is a mask of the shape \[5\]"),
    ("Attention", [(1, 2, 4), (4, 12), None, (I32, 1, 3)], {"num_heads": 2},
     r"its mask \[1, 3\] isn't of 2 keys"),
    ("MultiHeadAttention", [(1, 2, 4)], {"num_heads": 2}, "it has no keys"),
    ("MultiHeadAttention", [(1, 2, 4), (1, 2, 4)], {"num_heads": 2}, "it has no values"),
    ("MultiHeadAttention", [(1, 2, 4)] * 3, {"num_heads": 3}, "4 features aren't 3 heads of as many"),
    ("MultiHeadAttention", [*[(1, 2, 4)] * 3, *[None] * 5, (I32, 1)], {"num_heads": 2},
     "its input 8, past_sequence_length"),
    ("GroupQueryAttention", TAKEN, {"num_heads": 2, "kv_num_heads": 1, "k_quant_type": "PER_TENSOR"},
     "its attribute 'k_quant_type' of 'PER_TENSOR'"),
    ("GroupQueryAttention", TAKEN, {"num_heads": 2, "kv_num_heads": 1, "causal": 0, "local_window_size": 3},
     "it has a window, and isn't causal"),
    ("GroupQueryAttention", TAKEN, {"num_heads": 3, "kv_num_heads": 2}, "3 heads aren't shared by 2 heads"),
    ("GroupQueryAttention", TAKEN, {"num_heads": 3, "kv_num_heads": 1}, "aren't 3 heads of as many features"),
    ("GroupQueryAttention", TAKEN, {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1}, "it rotates, and has no"),
    ("RotaryEmbedding", [(1, 2, 4), (np.int64, 1), (4, 2), (4, 2)], {"scale": 2.0}, "its attribute 'scale' of 2.0"),
    ("MatMulNBits", [(2, 32), (U8, 4, 1, 12), (4, 1)], {"N": 4, "K": 32, "bits": 3, "block_size": 32},
     "its attribute 'bits' is 3"),
    ("MatMulNBits", [(2, 33), (U8, 4, 1, 16), (4, 1)], {"N": 4, "K": 32, "block_size": 32},
     "its rows have 33 elements, and its attribute 'K' is 32"),
    ("MatMulNBits", [(2, 32), (U8, 4, 1, 16), (5, 1)], {"N": 4, "K": 32, "block_size": 32},
     r"its scales \[5, 1\] aren't 4 rows of 1 blocks of 32"),
    ("MatMulNBits", [(2, 32), (U8, 4, 1, 16), (4, 1)], {"N": 4, "K": 32, "block_size": 32, "weight_prepacked": 1},
     "its attribute 'weight_prepacked' of 1"),
    ("MatMulBnb4", [(2, 16), (U8, 32), (4,)], {"N": 4, "K": 16, "block_size": 16, "quant_type": 2},
     "its attribute 'quant_type' is 2"),
    ("MatMulBnb4", [(2, 16), (U8, 31), (4,)], {"N": 4, "K": 16, "block_size": 16, "quant_type": 1},
     "its weights have 31 bytes and 4 scales"),
    ("GatherBlockQuantized", [(U8, 4, 16), (I32, 2), (4, 1)], {"bits": 3}, "its attribute 'bits' is 3"),
    ("GatherBlockQuantized", [(U8, 4, 16), (I32, 2), (4, 1)], {"gather_axis": 1, "quantize_axis": 0},
     "packed numbers are gathered along axis 0"),
    ("QLinearConcat", [(), (U8,), (U8, 2), ()], {"axis": 0}, "it has 4 inputs, which aren't tensors with scale"),
    ("MoE", EXPERTS, {"activation_type": "geglu"}, "its attribute 'activation_type' of 'geglu'"),
    ("MoE", EXPERTS, {"activation_type": "swiglu"}, "its attribute 'swiglu_fusion' is 0, which doesn't fit"),
    ("MoE", [(2, 4), (2, 3), (5, 4), None, (4, 5)], {}, r"its weights \[5, 4\] aren't one matrix an expert"),
    ("QMoE", PACKED, {"quant_type": "fp8"}, "its attribute 'quant_type' of 'fp8'"),
    ("QMoE", PACKED, {"weights_prepacked": 1}, "its attribute 'weights_prepacked' of 1"),
    ("QMoE", PACKED, {"expert_weight_bits": 3}, "its weights have 3 bits"),
    ("LinearAttention", [(1, 2, 4)] * 3, {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "x"},
     "its attribute 'update_rule' of 'x'"),
    ("LinearAttention", [(1, 2, 4)] * 3, {"q_num_heads": 2, "kv_num_heads": 2}, "needs decays and rates"),
    ("LinearAttention", [(1, 2, 6)] * 3, {"q_num_heads": 2, "kv_num_heads": 3, "update_rule": "linear"},
     "2 heads of queries and 3 of keys"),
    ("CausalConvWithState", [(1, 2, 4), (2, 1, 3)], {"activation": "relu"}, "its attribute 'activation' of 'relu'"),
    ("CausalConvWithState", [(1, 2, 4), (2, 1, 3)], {"ndim": 2}, "its attribute 'ndim' of 2"),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]}, {case[3]}")
def test_what_is_refused(case: Any) -> None:
    operator, shapes, attributes, message = case
    zeros = [None if shape is None else _zeros(shape) for shape in shapes]
    outputs = zeros[:1] * signature.signatures(MICROSOFT)[operator].outputs[0]
    one = Case(operator, zeros, outputs, attributes, tuple(range(1, len(zeros))))
    with pytest.raises(CompileError, match=f"{operator} node 'n': .*{message}"):
        tc.compile(one.model).run(None, one.feeds)


def _zeros(shape: Shape) -> Any:
    is_typed = bool(shape) and isinstance(shape[0], type)
    return np.zeros(shape[1:], shape[0]) if is_typed else np.zeros(shape, np.float32)


def test_outputs_of_training_are_refused() -> None:
    x, scale = _zeros((1, 2, 4)), _zeros((4,))
    one = Case("SkipLayerNormalization", [x, x, scale], [x, x])
    with pytest.raises(CompileError, match="node 'n': taskc doesn't compute its output 1, 'y1'"):
        tc.compile(one.model).run(None, one.feeds)


def test_an_unknown_operator_names_those_near_it() -> None:
    one = node("SkipLayerNorm", ["x"], ["y"], name="n", domain=MICROSOFT)
    with pytest.raises(CompileError) as error:
        tc.compile(model([one], [tensor("x", 2)], ["y"], domains=(MICROSOFT,)))
    assert error.value.message == (
        "the model has operators that taskc doesn't know:\n"
        "  SkipLayerNorm (of com.microsoft, opset 1): the SkipLayerNorm node 'n';"
        " taskc has SkipLayerNormalization and SkipGroupNorm"
    )
