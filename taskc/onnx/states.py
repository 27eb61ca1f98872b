"""States: outputs of a model that a session keeps, and hands to the model's inputs at the next call.

    session = tc.compile("decoder.onnx", states={"present.*": "past_key_values.*"}, capacity=4096)

                    model as it is                             session
    past_0     [1, 8, n, 64]        an input                   the first n places of memory[1, 8, 4096, 64]
    present_0  [1, 8, n + 1, 64]    past_0 and a new row       the same memory: the program writes the new row

How many places are filled, n, is the extent of one more input, `position`, an array without use for its elements. So n
is a size of the program: one compilation serves all lengths. The program's last output, `length`, is how many are
filled after the call.

A state's output has to be computed by a node that appends to its input along one axis: Concat, or one of the attention
operators. The trace passes the input as a `State` (`taskc.operators.tensors`), which these append to in place; other
operators read it as a tensor.

Inputs that the patterns name and no output appends to are given once for a sequence: the keys and values that an
encoder-decoder's attention reads of the encoder. The first call may run another graph, which computes the states:
`decoder_model.onnx` before `decoder_with_past_model.onnx`, or the other branch of a merged decoder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from taskc.dataclass import dataclass
from taskc.errors import CompileError
from taskc.ir.text_rules import unused
from taskc.ir.types import boolean, i64, u8
from taskc.lang.values import did_you_mean
from taskc.onnx.passes.formulas import Tensors
from taskc.operators.files import MICROSOFT
from taskc.operators.graph import Graph, Node, Value
from taskc.operators.operands import are_equal
from taskc.operators.tensors import Extent, Held, State, computed, handle_of, rows_of

# Operators that append keys and values along their axis 2.
_APPENDING = {
    (MICROSOFT, "GroupQueryAttention"), (MICROSOFT, "MultiHeadAttention"), ("", "Attention"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class States:
    """The states of a graph.

    memory    the input of each state, with `capacity` places along its axis; other extents may be names
    axes      of each input of a state
    outputs   the output of each input of a state
    given     inputs that are given once for a sequence, and only read
    unasked   outputs that are such inputs, or constants in their place
    begun_by  for each output of the graph of the first call that begins a sequence, the input
    position  an input that has as many elements as places are filled before the call
    length    an output: the number of places that are filled after the call
    """

    memory: Mapping[str, Value]
    axes: Mapping[str, int]
    outputs: Mapping[str, str]
    given: tuple[str, ...]
    unasked: frozenset[str]
    begun_by: Mapping[str, str]
    capacity: int
    position: Value
    length: Value

    def of_inputs(self, graph: Graph) -> tuple[Value, ...]:
        """The inputs of a graph, of which those of states are memory."""
        return tuple([self.memory.get(value.name, value) for value in graph.inputs])

    def of_outputs(self, graph: Graph) -> tuple[Value, ...]:
        """The outputs that a call returns, and the length."""
        kept = {*self.outputs.values(), *self.unasked}
        return *[value for value in graph.returned if value.name not in kept], self.length

    def returned(self, graph: Graph) -> list[str]:
        return [value.name for value in self.of_outputs(graph)]

    def begun(self, values: Mapping[str, Held]) -> dict[str, Held]:
        """The states when a call begins."""
        filled = values[self.position.name].shape[0]
        return {
            name: State(handle_of(rows_of(values[name])), axis, filled)
            for name, axis in self.axes.items()
        }

    def ended(self, values: Mapping[str, Held]) -> dict[str, Held]:
        """A graph's values and the length, once all states are appended to."""
        lengths: list[Extent] = []
        for name, output in self.outputs.items():
            before, after = values[name], values[output]
            assert isinstance(before, State)
            if not isinstance(after, State) or after.memory is not before.memory:
                raise CompileError(f"the state '{output}' isn't '{name}' with more appended")
            lengths.append(after.length)
        length = lengths[0]
        if not all(are_equal(length, other) for other in lengths):
            raise CompileError("not all states get as many places by a call")
        ended = computed((1,), lambda i: i64(length), "length")
        return {**values, self.length.name: ended}


def states_of(
    graph: Graph, patterns: Mapping[str, str], capacity: int | None, first: Graph | None = None
) -> States:
    """The states that patterns of outputs name, with those of inputs: {"present.*": "past_key_values.*"}.

    first  the graph of a sequence's first call, if it's another one
    """
    if capacity is None or capacity < 1:
        raise CompileError(
            "states have a capacity: how many places along the axis that the model appends to",
            hint="tc.compile(model, states=..., capacity=4096)",
        )
    inputs = {value.name: value for value in graph.inputs}
    tensors = Tensors(graph)
    memory, axes, outputs = dict[str, Value](), dict[str, int](), dict[str, str]()
    unasked = set[str]()
    for output, name in _pairs(graph.outputs, inputs, patterns):
        origin = tensors.origin(output)
        if origin == name or origin in graph.constants:
            unasked.add(output)
            continue
        if name in outputs:
            raise CompileError(
                f"the input '{name}' is the state of '{outputs[name]}' and '{output}'"
            )
        axes[name], memory[name] = _memory(tensors, origin, inputs[name], output, capacity)
        outputs[name] = output
    if not memory:
        raise CompileError("the model appends to no state", hint=f"states={dict(patterns)}")
    begun_by = {} if first is None else dict(_pairs(first.outputs, inputs, patterns))
    missing = [name for name in memory if name not in begun_by.values()]
    if first is not None and missing:
        raise CompileError(
            f"the model of the first call has no output for the state '{missing[0]}'",
            hint=_listed("outputs", first.outputs),
        )
    of_inputs = [_pattern(pattern) for pattern in patterns.values()]
    given = [n for n in inputs if n not in memory and any(p.fullmatch(n) for p in of_inputs)]
    taken = {*inputs, *graph.outputs}
    position, length = (
        Value(unused(name, taken), dtype, (extent,))
        for name, dtype, extent in (("position", u8, None), ("length", i64, 1))
    )
    return States(
        memory,
        axes,
        outputs,
        tuple(given),
        frozenset(unasked),
        begun_by,
        capacity,
        position,
        length,
    )


def branches_of(graph: Graph) -> tuple[Graph, Graph] | None:
    """The graphs of the first call and of later ones, where an input chooses a branch that computes an output.

    Optimum's merged decoders are such: `use_cache_branch` is false at the first call.
    """
    inputs = {value.name for value in graph.inputs if value.dtype is boolean}
    for node in graph.nodes:
        is_chosen = node.operator == "If" and node.inputs[0] in inputs
        if is_chosen and not {*graph.outputs}.isdisjoint(node.outputs):
            return _with_branch(graph, node, False), _with_branch(graph, node, True)
    return None


def _with_branch(graph: Graph, choice: Node, condition: bool) -> Graph:
    """A graph with one branch of an If in place of it, and only the inputs that are needed then."""
    branch = choice.attributes["then_branch" if condition else "else_branch"]
    assert isinstance(branch, Graph)
    at = graph.nodes.index(choice)
    copies = [
        replace(choice, operator="Identity", inputs=(name,), outputs=(output,), attributes={})
        for name, output in zip(branch.outputs, choice.outputs, strict=True)
    ]
    constants = {choice.inputs[0]: np.array(condition), **graph.constants, **branch.constants}
    nodes = (*graph.nodes[:at], *branch.nodes, *copies, *graph.nodes[at + 1 :])
    whole = replace(
        graph, nodes=nodes, constants=constants, values={**branch.values, **graph.values}
    )
    needed = whole.needed
    reads = {*whole.outputs, *[name for node in needed for name in node.reads]}
    inputs = [v for v in graph.inputs if v.name in reads and v.name not in constants]
    return replace(whole, nodes=tuple(needed), inputs=tuple(inputs))


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile("(.+)".join(map(re.escape, text.split("*"))))


def _pairs(
    outputs: Sequence[str], inputs: Iterable[str], patterns: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Outputs and inputs that patterns match, in which a * is any text, the same in both."""
    names = [*inputs]
    for of_outputs, of_inputs in patterns.items():
        if of_outputs.count("*") != of_inputs.count("*"):
            raise CompileError(f"'{of_outputs}' and '{of_inputs}' don't have as many *")
        matches = [match for match in map(_pattern(of_outputs).fullmatch, outputs) if match]
        if not matches:
            raise CompileError(
                f"no output of the model matches the state '{of_outputs}'",
                hint=did_you_mean(of_outputs, outputs) or _listed("outputs", outputs),
            )
        for match in matches:
            texts = iter(match.groups())
            name = re.sub(r"\*", lambda _: next(texts), of_inputs)  # noqa: B023 (called at once)
            if name not in names:
                raise CompileError(
                    f"the state of the output '{match.string}' is the input '{name}', which the model doesn't have",
                    hint=did_you_mean(name, names) or _listed("inputs", names),
                )
            yield match.string, name


def _memory(
    tensors: Tensors, origin: str, value: Value, output: str, capacity: int
) -> tuple[int, Value]:
    """The axis along which the node of a tensor appends to a state, and the state's memory."""
    node = tensors.makers.get(origin)
    problem = CompileError(
        f"the state '{output}' isn't '{value.name}' with more appended along one axis",
        hint=f"it's computed by {'no node' if node is None else node}",
    )
    sources = [] if node is None else [*map(tensors.origin, node.inputs)]
    if node is None or value.shape is None or value.name not in sources:
        raise problem
    shape = [*value.shape]
    if node.operator == "Concat" and sources[0] == value.name and len(sources) == 2:
        axis = int(node.attributes["axis"]) % len(shape)  # type: ignore[call-overload]
    elif (node.domain, node.operator) in _APPENDING:
        axis = 2
        of_result = tensors.graph.values.get(node.outputs[0])
        features = of_result and of_result.shape and of_result.shape[-1]
        if node.operator == "GroupQueryAttention" and isinstance(features, int):
            shape[3] = features // int(node.attributes["num_heads"])  # type: ignore[call-overload]
    else:
        raise problem
    if isinstance(shape[axis], int) and shape[axis] != capacity:
        raise CompileError(
            f"the state {value} has {shape[axis]} along axis {axis}, to which the model appends,"
            " and has to be of any extent there"
        )
    shape[axis] = capacity
    return axis, replace(value, shape=tuple(shape))


def _listed(what: str, names: Sequence[str]) -> str:
    return f"its {what} are {', '.join(names)}"
