"""If, Loop and Scan, where it is known which branch is taken and how many steps there are: steps are unrolled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import taskc as tc
from taskc.lang.tracing import TensorHandle
from taskc.onnx.operators import Call, Made, Tensor, handle_of, operator
from taskc.onnx.operators.common import are_equal, axis_of, spliced
from taskc.onnx.operators.movement import joined
from taskc.onnx.operators.shapes import with_shape

_MOST_STEPS = 4096


@operator("If")
def if_(call: Call) -> Made:
    taken = "then_branch" if bool(call.known(0).reshape(-1)[0]) else "else_branch"
    return call.inline(call.attribute(taken), ())


@operator("Loop")
def loop(call: Call) -> Made:
    body = call.attribute("body")
    most = call.number(call.integers(0)[0], "the number of its steps") if call.has(0) else None
    goes_on: Tensor = call.known(1) if call.has(1) else np.array(True)
    state = [call.given(position) for position in range(2, len(call.inputs))]
    kept: list[list[Tensor]] = [[] for _ in body.outputs[1 + len(state) :]]
    step = 0
    while most is None or step < most:
        if isinstance(goes_on, TensorHandle):
            raise call.node.error(
                f"whether it goes on after {step} steps is known only when it runs"
            )
        if not goes_on.reshape(-1)[0]:
            break
        if step == _MOST_STEPS:
            raise call.node.error(f"it has more than {_MOST_STEPS} steps")
        made = call.inline(body, (np.array(step, np.int64), goes_on, *state))
        goes_on, state, parts = made[0], [*made[1 : 1 + len(state)]], made[1 + len(state) :]
        for tensors, part in zip(kept, parts, strict=True):
            tensors.append(part)
        step += 1
    return (*state, *(_stacked(call, tensors, 0) for tensors in kept))


@operator("Scan", since=9)
def scan(call: Call) -> Made:
    body, count = call.attribute("body"), call.attribute("num_scan_inputs")
    state = [call.given(position) for position in range(len(call.inputs) - count)]
    outputs = len(body.outputs) - len(state)
    inputs = [call.given(position) for position in range(len(state), len(call.inputs))]
    axes = call.attribute("scan_input_axes") or [0] * count
    backwards = call.attribute("scan_input_directions") or [0] * count
    places = [axis_of(call, axis, len(x.shape)) for axis, x in zip(axes, inputs, strict=True)]
    steps = call.number(inputs[0].shape[places[0]], "the number of its steps")
    if steps > _MOST_STEPS:
        raise call.node.error(f"it has {steps} steps, and taskc takes up to {_MOST_STEPS}")
    kept: list[list[Tensor]] = [[] for _ in range(outputs)]
    for step in range(steps):
        parts = [
            _step_of(x, axis, steps - 1 - step if back else step)
            for x, axis, back in zip(inputs, places, backwards, strict=True)
        ]
        made = call.inline(body, (*state, *parts))
        state = [*made[: len(state)]]
        for tensors, part in zip(kept, made[len(state) :], strict=True):
            tensors.append(part)
    ends = call.attribute("scan_output_axes") or [0] * outputs
    directions = call.attribute("scan_output_directions") or [0] * outputs
    stacked = [
        _stacked(call, tensors[::-1] if back else tensors, axis)
        for tensors, axis, back in zip(kept, ends, directions, strict=True)
    ]
    return (*state, *stacked)


def _step_of(x: Tensor, axis: int, step: int) -> Tensor:
    """A tensor without an axis, at one place of it."""
    whole = handle_of(x)
    shape = (*whole.shape[:axis], *whole.shape[axis + 1 :])
    made = tc.compute(shape, lambda *at: whole[spliced(at, axis, axis, (step,))], name="step")
    assert isinstance(made, TensorHandle)
    return made


def _stacked(call: Call, parts: Sequence[Tensor], axis: int) -> Tensor:
    """The tensors of all steps along an axis of their own."""
    if not parts:
        raise call.node.error("it has no steps, and taskc doesn't know what they would have made")
    rank = len(parts[0].shape) + 1
    place = axis_of(call, axis, rank)
    first = parts[0].shape
    for part in parts:
        if not all(are_equal(one, other) for one, other in zip(part.shape, first, strict=True)):
            raise call.node.error("its steps make tensors of different shapes")
    shape = (*first[:place], 1, *first[place:])
    value = joined([with_shape(handle_of(part), shape) for part in parts], place, 0)
    made = tc.compute(
        (*first[:place], len(parts), *first[place:]), lambda *at: value(at), name="steps"
    )
    assert isinstance(made, TensorHandle)
    return made
