"""LSTM, GRU and RNN with random attributes, against a cell by NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import taskc as tc
from taskc import f32, i32
from taskc.onnx.importer import import_graph, is_known
from taskc.onnx.reader import read
from taskc.onnx.session import compile
from taskc.programs.ir import Call, Loop, calls_of

from . import cells
from .models import model, tensor

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def run(operator: str, seed: int, dtype: Any = np.float32) -> tuple[list[Any], list[Any]]:
    """The outputs of a model of one node, and those of the cell by NumPy."""
    random = np.random.default_rng(seed)

    def chance() -> bool:
        return bool(random.integers(2))

    def normal(*shape: int) -> Any:
        return (random.standard_normal(shape) / 2).astype(dtype)

    steps, batch, inputs, hidden = (int(random.integers(1, most)) for most in (6, 4, 6, 20))
    order = str(random.choice(["forward", "reverse", "bidirectional"]))
    count, rows = 1 + (order == "bidirectional"), GATES[operator] * hidden
    x, w, r = normal(steps, batch, inputs), normal(count, rows, inputs), normal(count, rows, hidden)
    given: dict[str, Any] = {"X": x, "W": w, "R": r}
    if chance():
        given["B"] = normal(count, 2 * rows)
    if chance():
        given["sequence_lens"] = random.integers(1, steps + 1, batch).astype(np.int32)
    if chance():
        given["initial_h"] = normal(count, batch, hidden)
    if operator == "LSTM" and chance():
        given["initial_c"] = normal(count, batch, hidden)
    if operator == "LSTM" and chance():
        given["P"] = normal(count, 3 * hidden)
    attributes: dict[str, Any] = {
        "hidden_size": hidden,
        "direction": order,
        "layout": int(chance()),
    }
    names = USUAL[operator] * count
    if chance():
        names = [str(random.choice([*cells.FUNCTIONS])) for _ in names]
        attributes["activations"] = names
    if chance():
        attributes["clip"] = 0.4
    if operator == "GRU":
        attributes["linear_before_reset"] = int(chance())
    elif operator == "LSTM":
        attributes["input_forget"] = int(chance())
    expected = _expected(operator, given, attributes, names)
    is_constant = chance()
    made = _made(operator, given, attributes, is_constant)
    return made, expected


def _expected(operator: str, given: Any, attributes: Any, names: list[str]) -> list[Any]:
    x, (count, rows, hidden) = given["X"].astype(float), given["R"].shape
    steps, batch, _ = x.shape
    each = len(names) // count
    biases = given.get("B", np.zeros((count, 2 * rows)))
    peepholes = given.get("P", np.zeros((count, 3 * hidden)))
    directions = [
        {
            "w": given["W"][d], "r": given["R"][d], "wb": biases[d][:rows], "rb": biases[d][rows:],
            "p": peepholes[d], "clip": attributes.get("clip", 0), "coupled": attributes.get("input_forget", 0),
            "linear": attributes.get("linear_before_reset", 0),
            "functions": [cells.FUNCTIONS[name] for name in names[d * each : (d + 1) * each]],
        }
        for d in range(count)
    ]  # fmt: skip
    zeros = np.zeros((count, batch, hidden))
    y, h, c = cells.run(
        operator, x, given.get("sequence_lens", np.full(batch, steps)),
        given.get("initial_h", zeros).astype(float), given.get("initial_c", zeros).astype(float),
        directions, attributes["direction"],
    )  # fmt: skip
    if attributes["layout"]:
        y, h, c = y.transpose(2, 0, 1, 3), h.swapaxes(0, 1), c.swapaxes(0, 1)
    return [y, h, c] if operator == "LSTM" else [y, h]


def _made(operator: str, given: dict[str, Any], attributes: Any, is_constant: bool) -> list[Any]:
    places = ["X", "W", "R", "B", "sequence_lens", "initial_h"]
    places += ["initial_c", "P"] if operator == "LSTM" else []
    feeds = dict(given)
    if attributes["layout"]:
        for name in {"X", "initial_h", "initial_c"} & {*feeds}:
            feeds[name] = np.ascontiguousarray(feeds[name].swapaxes(0, 1))
    constants = {name: feeds.pop(name) for name in ("W", "R", "B") if is_constant and name in feeds}
    outputs = ["Y", "Y_h", "Y_c"][: 3 if operator == "LSTM" else 2]
    node = helper.make_node(
        operator, [name if name in given else "" for name in places], outputs, **attributes
    )
    types = {
        np.dtype(np.int32): TensorProto.INT32,
        np.dtype(np.float32): TensorProto.FLOAT,
        np.dtype(np.float16): TensorProto.FLOAT16,
    }
    made = model(
        [node],
        [tensor(name, *array.shape, type=types[array.dtype]) for name, array in feeds.items()],
        outputs,
        initializer=[numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return compile(made).run(None, feeds)


def _check(operator: str, seed: int) -> None:
    for found, wanted in zip(*run(operator, seed), strict=True):
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() < 2e-5 * max(1, np.abs(wanted).max()), (operator, seed)


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_a_network_is_what_its_cell_computes(operator: str) -> None:
    for seed in range(3):
        _check(operator, seed)


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_numbers_of_16_bits_are_summed_in_32(operator: str) -> None:
    for found, wanted in zip(*run(operator, 5, np.float16), strict=True):
        assert found.dtype == np.float16
        assert np.abs(found - wanted).max() < 5e-3


def test_one_program_serves_all_numbers_of_steps() -> None:
    random = np.random.default_rng(0)
    steps, batch, inputs, hidden = tc.dim("steps"), tc.dim("batch"), 3, 5
    constants = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in (("W", (2, 20, inputs)), ("R", (2, 20, hidden)))
    }
    attributes = {"hidden_size": hidden, "direction": "bidirectional"}
    outputs = ["Y", "Y_h", "Y_c"]
    made = model(
        [helper.make_node("LSTM", ["X", "W", "R", "", "lengths"], outputs, **attributes)],
        [tensor("X", None, None, inputs), tensor("lengths", None, type=TensorProto.INT32)],
        outputs,
        initializer=[numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    kinds = {"X": f32[steps, batch, inputs], "lengths": i32[batch]}
    program = import_graph(read(made, is_known), kinds).program
    for count, lengths in ((1, [1]), (6, [6, 2, 4])):
        x = random.standard_normal((count, len(lengths), inputs)).astype(np.float32)
        own = np.array(lengths, np.int32)
        given = {"X": x, "sequence_lens": own, **constants}
        expected = _expected("LSTM", given, {**attributes, "layout": 0}, USUAL["LSTM"] * 2)
        for found, wanted in zip(program(x, own), expected, strict=True):
            assert found.shape == wanted.shape
            assert np.abs(found - wanted).max() < 2e-5


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("order", ["forward", "reverse", "bidirectional"])
@pytest.mark.each_value
def test_nothing_is_multiplied_after_the_longest_sequence(operator: str, order: str) -> None:
    random = np.random.default_rng(0)
    steps, hidden, count, gates = 24, 5, 1 + (order == "bidirectional"), GATES[operator]
    constants = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in (
            ("W", (count, gates * hidden, 3)),
            ("R", (count, gates * hidden, hidden)),
        )
    }
    attributes = {"hidden_size": hidden, "direction": order}
    outputs = ["Y", "Y_h", "Y_c"][: 3 if operator == "LSTM" else 2]
    made = model(
        [helper.make_node(operator, ["X", "W", "R", "", "lengths"], outputs, **attributes)],
        [tensor("X", steps, 2, 3), tensor("lengths", 2, type=TensorProto.INT32)],
        outputs,
        initializer=[numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    compiled = compile(made)
    for lengths in ([1, 1], [9, 2], [16, 17], [24, 3]):
        x = random.standard_normal((steps, 2, 3)).astype(np.float32)
        given = {"X": x, "sequence_lens": np.array(lengths, np.int32), **constants}
        expected = _expected(operator, given, {**attributes, "layout": 0}, USUAL[operator] * count)
        found = compiled.run(None, {"X": x, "lengths": given["sequence_lens"]})
        for one, wanted in zip(found, expected, strict=True):
            assert np.abs(one - wanted).max() < 2e-5
    (only,) = compiled.programs
    steps_made = only.program.ir.calls
    assert "matmul" in [call.callee.name for call in calls_of(steps_made)]
    assert "matmul" not in [call.callee.name for call in _unconditional(steps_made)]


def _unconditional(steps: Any) -> Iterator[Call]:
    """The calls that no flag decides about."""
    for step in steps:
        if isinstance(step, Call):
            yield step
        elif isinstance(step, Loop):
            yield from _unconditional(step.body)


@pytest.mark.sweep
@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_many_networks(operator: str) -> None:
    for seed in range(3, 170):
        _check(operator, seed)
