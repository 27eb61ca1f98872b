"""Programs and models of thousands of calls: in a chain, side by side, and each twice in the next.

What is done for one more node is the same for all, so twice the nodes are twice the work, and no walk's depth is the
program's length.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import taskc as tc
from taskc import f32
from taskc.ir.printer import to_text
from taskc.programs.ir import kernels_of
from taskc.programs.parser import parse_program
from taskc.programs.pipeline import fused_program, lower_program
from taskc.runtime.machine import machine

X = np.arange(8, dtype=np.float32)


def chain(count: int) -> tc.ProgramDefinition:
    @tc.program
    def chain(x: f32[8], y: tc.out[f32[8]]) -> None:
        h = x
        for _ in tc.static(range(count)):
            h = tc.compute((8,), lambda i: h[i] + x[i])
        tc.compute((8,), lambda i: h[i], out=y)

    return chain


def shared(count: int) -> tc.ProgramDefinition:
    @tc.program
    def shared(x: f32[8], y: tc.out[f32[8]]) -> None:
        h = x
        for _ in tc.static(range(count)):
            h = tc.compute((8,), lambda i: (h[i] + h[i]) * 0.5)
        tc.compute((8,), lambda i: h[i], out=y)

    return shared


def wide(count: int) -> tc.ProgramDefinition:
    @tc.program
    def wide(x: f32[8], y: tc.out[f32[count, 8]]) -> None:
        for number in tc.static(range(count)):
            tc.compute((8,), lambda i: x[i] + 1.0, out=y[number])

    return wide


def operators(count: int) -> tc.ProgramDefinition:
    @tc.program
    def operators(x: f32[8], y: tc.out[f32[8]]) -> None:
        h = x
        for _ in tc.static(range(count)):
            h = tc.op.Add(h, x)
        tc.op.Identity(h, out=y)

    return operators


PROGRAMS: dict[Callable[[int], Any], Callable[[int], Any]] = {
    chain: lambda count: X * (count + 1),
    shared: lambda count: X,
    operators: lambda count: X * (count + 1),
    wide: lambda count: np.tile(X + 1, (count, 1)),
}


def _value(name: str, shape: list[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _model(nodes: list[onnx.NodeProto], *constants: onnx.TensorProto) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [_value("x", [8])], [_value("y", None)], constants)
    opset = helper.make_opsetid("", 20)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)


def chain_model(count: int) -> onnx.ModelProto:
    names = ["x", *[f"t{number}" for number in range(1, count)], "y"]
    nodes = [helper.make_node("Add", [one, "x"], [other]) for one, other in pairwise(names)]
    return _model(nodes)


def shared_model(count: int) -> onnx.ModelProto:
    names = ["x", *[f"t{number}" for number in range(1, count)], "y"]
    nodes = []
    for number, (one, other) in enumerate(pairwise(names)):
        nodes.append(helper.make_node("Add", [one, one], [f"u{number}"]))
        nodes.append(helper.make_node("Mul", [f"u{number}", "half"], [other]))
    return _model(nodes, numpy_helper.from_array(np.array(0.5, np.float32), "half"))


def wide_model(count: int) -> onnx.ModelProto:
    parts = [f"t{number}" for number in range(count)]
    nodes = [helper.make_node("Neg", ["x"], [part]) for part in parts]
    return _model([*nodes, helper.make_node("Concat", parts, ["y"], axis=0)])


def joined_model(count: int) -> onnx.ModelProto:
    return _model([helper.make_node("Concat", ["x"] * count, ["y"], axis=0)])


def unlike_model(count: int) -> onnx.ModelProto:
    parts = ["x" if number % 2 else "three" for number in range(count)]
    node = helper.make_node("Concat", parts, ["y"], axis=0)
    return _model([node], numpy_helper.from_array(X[:3], "three"))


def sum_model(count: int) -> onnx.ModelProto:
    return _model([helper.make_node("Sum", ["x"] * count, ["y"])])


MODELS: dict[Callable[[int], onnx.ModelProto], Callable[[int], Any]] = {
    chain_model: lambda count: X * (count + 1),
    shared_model: lambda count: X,
    wide_model: lambda count: np.tile(-X, count),
    joined_model: lambda count: np.tile(X, count),
    unlike_model: lambda count: np.tile([*X[:3], *X], count // 2),
    sum_model: lambda count: X * count,
}


def _run_program(make: Callable[[int], Any], count: int) -> None:
    np.testing.assert_array_equal(make(count)(X), PROGRAMS[make](count))


def _run_model(make: Callable[[int], onnx.ModelProto], count: int) -> None:
    np.testing.assert_array_equal(tc.compile(make(count))(X), MODELS[make](count))


def _takes_time_for_its_length(run: Callable[[int], None], few: int = 100, many: int = 400) -> None:
    """Four times as long, and some more for what has a fixed size; squares would be 16 times as long."""
    limit = sys.getrecursionlimit()

    def seconds(count: int) -> float:
        before = time.process_time()
        run(count)
        return time.process_time() - before

    seconds(few)  # with what is compiled once
    ratios = (seconds(many) / seconds(few) for _ in range(3))
    assert any(ratio < 6 for ratio in ratios)
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_a_program_takes_time_for_its_length(make: Callable[[int], Any]) -> None:
    _takes_time_for_its_length(partial(_run_program, make))


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_a_model_takes_time_for_its_length(make: Callable[[int], onnx.ModelProto]) -> None:
    _takes_time_for_its_length(partial(_run_model, make))


@pytest.mark.sweep
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_a_very_long_program_runs(make: Callable[[int], Any]) -> None:
    _takes_time_for_its_length(partial(_run_program, make), 2500, 10_000)


@pytest.mark.sweep
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_a_very_long_model_runs(make: Callable[[int], onnx.ModelProto]) -> None:
    _takes_time_for_its_length(partial(_run_model, make), 2500, 10_000)


@pytest.mark.sweep
def test_a_concat_of_very_many() -> None:
    _run_model(joined_model, 100_000)
    _run_model(unlike_model, 100_000)


def test_a_long_chain_is_several_kernels() -> None:
    kernels = kernels_of(lower_program(chain(400).ir, machine()))
    assert 3 <= len(kernels) <= 8


def test_what_is_in_an_expression_many_times_is_gone_over_once() -> None:
    """Sixty doublings are 2^60 terms as a tree."""

    def doubled(value: Callable[[Any], Any]) -> Any:
        @tc.function
        def twice(i):
            part = value(i)
            return (part + part) * 0.5

        return twice

    @tc.program
    def shared(x: f32[8], y: tc.out[f32[8]]) -> None:
        value = tc.function(lambda i: x[i])
        for _ in tc.static(range(60)):
            value = doubled(value)
        tc.compute((8,), lambda i: value(i), out=y)

    np.testing.assert_array_equal(shared(X), X)


def doublings(count: int) -> onnx.ModelProto:
    names = ["x", *[f"t{number}" for number in range(1, count)], "y"]
    return _model([helper.make_node("Add", [one, one], [other]) for one, other in pairwise(names)])


def test_the_text_of_what_is_in_an_expression_many_times_is_as_long_as_it_is_in_memory() -> None:
    def text(count: int) -> str:
        traced = tc.compile(doublings(count)).program({"x": X}).program.ir
        fused = fused_program(traced, machine())
        found = to_text(fused)
        again = parse_program(found)
        assert to_text(again) == found
        np.testing.assert_array_equal(tc.ProgramDefinition.of(again)(X), X * 2.0**count)
        return found

    short = text(15)
    assert "let t_1 = t + t" in short
    assert len(text(60)) < 6 * len(short)


def _loops(depth: int) -> onnx.ModelProto:
    """Loops of two turns within each other, around an addition."""
    body = None
    for number in range(depth):
        inputs = [
            helper.make_tensor_value_info(f"i{number}", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"c{number}", TensorProto.BOOL, []),
            _value(f"v{number}", [8]),
        ]
        outputs = [
            helper.make_tensor_value_info(f"k{number}", TensorProto.BOOL, []),
            _value(f"w{number}", [8]),
        ]
        step = (
            helper.make_node("Add", [f"v{number}", "one"], [f"w{number}"])
            if body is None
            else helper.make_node("Loop", ["two", "", f"v{number}"], [f"w{number}"], body=body)
        )
        same = helper.make_node("Identity", [f"c{number}"], [f"k{number}"])
        body = helper.make_graph([step, same], f"b{number}", inputs, outputs)
    loop = helper.make_node("Loop", ["two", "", "x"], ["y"], body=body)
    constants = [np.array(2, np.int64), np.array(1, np.float32)]
    named = zip(constants, ["two", "one"], strict=True)
    return _model([loop], *[numpy_helper.from_array(array, name) for array, name in named])


def test_loops_within_loops_take_time_for_their_number() -> None:
    """The four outermost are built turn by turn, so that there are 16 of each of the others."""

    def prepare(loops: int) -> None:
        tc.compile(_loops(4 + loops)).prepare({"x": X})

    _takes_time_for_its_length(prepare, 1, 4)
    np.testing.assert_array_equal(tc.compile(_loops(5))(X), X + 32)


@pytest.mark.sweep
def test_many_loops_within_loops() -> None:
    np.testing.assert_array_equal(tc.compile(_loops(20))(X), X + 2**20)
