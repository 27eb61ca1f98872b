"""If, Loop and Scan.

A condition that is known is decided while the model is traced: one branch is built. Otherwise the node becomes a branch
of the program, whose bodies make tensors of the same types.

    Loop                                            becomes
    of known count, its steps all of one type       a loop of the program; its body is built once
    of known count, and few steps, or unlike ones   each step separately, so that shapes may change
    whose count or condition is data                a while of the program, without stacked parts

A count is known where it is given, and where Python computes it: by counters that the steps carry (`_known`).

Tensors whose rank is data: one branch of an If adds leading axes of one element, and the other doesn't.

    then:  bool[]        else:  bool[1]        a program can't tell which

Few readers tell the two apart. A reader that broadcasts the tensor to another one of at least that rank gives the same
result for both, and so does one that reads its only element; an elementwise operator passes the question on. These
readers get the tensor without the axes. Any other reader raises the error that the If would have raised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

import taskc as tc
from taskc import CompileError, TensorType, boolean, i64
from taskc.dataclass import dataclass
from taskc.ir.types import from_numpy
from taskc.lang.sizes import Size
from taskc.operators.call import Builder, Call, DataError, Made, UnrolledError, is_few, operator
from taskc.operators.graph import Array, Graph, Node
from taskc.operators.movement import joined
from taskc.operators.operands import are_equal, spliced
from taskc.operators.tensors import (
    OBJECTS,
    Extent,
    Held,
    Loose,
    Shape,
    Tensor,
    computed,
    dtype_of,
    handle_of,
    reshaped,
)
from taskc.programs.tracing import Computed, Element, TensorHandle, current_trace

NO_STEPS = "it has no steps, and taskc doesn't know what they would have made"
UNLIKE_STEPS = "its steps make tensors of different shapes"
_FEW_STEPS = 4  # that are each built separately, in nested loops together
_MOST_STEPS = 12  # that are built separately where a loop of the program can't make them
_MOST_COUNTED = 1 << 16  # whose counters Python computes


@operator("If")
def if_(call: Call) -> Made:
    condition = call.given(0)
    branches = [call.attribute(name) for name in ("then_branch", "else_branch")]
    if isinstance(condition, TensorHandle):
        return _or_known(call, 0, lambda: _branch(call, condition, *branches))
    return call.inline(branches[not call.single(0)], ())


def _branch(call: Call, condition: TensorHandle, then: Graph, otherwise: Graph) -> Made:
    with tc.branch(condition):
        results = call.inline(then, ())
        outputs = [_carried(handle_of(tensor)) for tensor in results]
    with tc.otherwise():
        others = call.inline(otherwise, ())
        for name, output, other in zip(call.node.outputs, outputs, others, strict=True):
            is_alike = dtype_of(output) is dtype_of(other) and _are_equal(
                *map(_bare, (output.shape, other.shape))
            )
            if not is_alike:
                raise call.node.error(_either(name, output, other))
            _carried(handle_of(reshaped(other, *output.shape)), output)
    return tuple(map(partial(_loosely, call), call.node.outputs, outputs, others))


def _loosely(call: Call, name: str, output: TensorHandle, other: Tensor) -> Held:
    """An output to which the two branches gave different ranks."""
    if len(output.shape) == len(other.shape):
        return output
    error = DataError(f"{call.node.title}: {_either(name, output, other)}", call.node.where)
    error.names = (call.node.inputs[0],)
    bare = reshaped(output, *_bare(output.shape))
    return Loose(bare, max(len(output.shape), len(other.shape)), error)


def _either(name: str, output: Tensor, other: Tensor) -> str:
    both = f"{_kind(output)} or {_kind(other)}"
    return f"its output '{name}' is {both}, and which one is known only when it runs"


def _bare(shape: Shape) -> Shape:
    """A shape without leading axes of one element."""
    while shape and are_equal(shape[0], 1):
        shape = shape[1:]
    return shape


@operator("Loop")
def loop(call: Call) -> Made:
    body = call.attribute("body")
    most: Tensor | None = call.given(0) if call.has(0) else None
    goes_on: Tensor = call.given(1) if call.has(1) else np.array(True)
    state = [call.given(position) for position in range(2, len(call.inputs))]
    for position, held in enumerate((most, goes_on)):
        if isinstance(held, TensorHandle):
            return _or_known(
                call, position, lambda: _turns(call, body, most, goes_on, state, np.array(0))
            )
    assert not isinstance(goes_on, TensorHandle)
    count = math.inf if most is None else call.integers(0)[0]
    is_long = isinstance(count, Size) or call.turns * count > _FEW_STEPS
    if is_long and id(call.node) not in call.unrolled:
        try:
            with _attempt():
                return _steps(call, body, count, goes_on, state)
        except (UnrolledError, CompileError):
            # Data ends it, or the types of its steps differ.
            call.unrolled.add(id(call.node))
    stacked: list[list[Tensor]] = [[] for _ in body.outputs[1 + len(state) :]]
    limit = None if most is None else call.number(call.integers(0)[0], "the number of its steps")
    turns = 1 if limit is None else max(1, limit)
    step = 0
    while limit is None or step < limit:
        if isinstance(goes_on, TensorHandle):
            return _turns(call, body, most, goes_on, state, np.array(step))
        if not goes_on.reshape(-1)[0]:
            break
        results = call.inline(body, (np.array(step, np.int64), goes_on, *state), turns)
        goes_on, *made = results[: 1 + len(state)]
        parts = results[1 + len(state) :]
        is_changing = step >= _FEW_STEPS and not all(map(_is_alike, made, state))
        if is_changing or step * call.turns >= _MOST_STEPS:
            raise _by_turns(call, "its steps make tensors of different types, and are many")
        state = made
        for tensors, part in zip(stacked, parts, strict=True):
            tensors.append(part)
        step += 1
    if stacked and not step:
        return (*state, *_none_made(call, body, state))
    return (*state, *(_stacked(call, tensors, 0) for tensors in stacked))


def _none_made(call: Call, body: Graph, state: Sequence[Tensor]) -> list[TensorHandle]:
    """The stacked outputs of no turn: of the types that one would have made."""
    made: list[Tensor] = []
    try:
        with _attempt():
            made += call.inline(body, (np.array(0, np.int64), np.array(True), *state))
            raise UnrolledError
    except UnrolledError:
        kinds = [(dtype_of(part), part.shape) for part in made[1 + len(state) :]]
    return [_zeros(dtype, (0, *shape)) for dtype, shape in kinds]


def _zeros(dtype: tc.DType, shape: Shape) -> TensorHandle:
    return computed(shape, lambda *at: dtype(0))


def _steps(
    call: Call, body: Graph, most: Extent | float, goes_on: Array, given: Sequence[Tensor]
) -> Made:
    """A Loop of known count as a loop of the program; an error where it can't be one."""
    count, known = (
        (most, {}) if isinstance(most, Size) else _known(call, body, most, goes_on, given)
    )

    # A number of steps that Python computed includes the condition's say.
    goes_on_name = body.outputs[0] if isinstance(count, Size) else body.inputs[1].name
    outputs = [name for place, name in enumerate(body.outputs[1:]) if place not in known]
    needed = replace(body, outputs=(goes_on_name, *outputs))
    late = frozenset(_differing(body, {value.name for value in body.inputs}))

    def step(number: Size, state: Sequence[TensorHandle]) -> Sequence[Tensor]:
        unknown = iter(state)
        values = [
            known[place].at(number) if place in known else next(unknown)
            for place in range(len(given))
        ]
        index = np.array(number, OBJECTS[i64])
        goes_on, *results = call.inline(needed, (index, np.array(True), *values), 1, late)
        if isinstance(goes_on, TensorHandle) or not goes_on.item():
            raise UnrolledError
        return results

    carried = [tensor for place, tensor in enumerate(given) if place not in known]
    last, stacked = _repeated(call, count, carried, step)
    ends = iter(last)
    state = [
        known[place].values[-1] if place in known else next(ends) for place in range(len(given))
    ]
    return (*state, *stacked)


def _differing(body: Graph, names: set[str]) -> set[str]:
    """Tensors that may differ from step to step, in a Loop's body and the graphs within; `names` do, around it."""
    names = {*names}
    for node in body.nodes:
        for inner in node.graphs:
            names |= _differing(inner, names)
        if not names.isdisjoint(node.reads):
            names.update(node.outputs)
    return names


def _known(
    call: Call, body: Graph, most: Extent | float, goes_on: Array, given: Sequence[Tensor]
) -> tuple[int, dict[int, _Known]]:
    """The number of a Loop's steps, and the values of carried tensors that Python computes for all of them.

    These are counters, and conditions on them. The part of the body that computes them runs now, step by step.
    """
    places = [place for place, tensor in enumerate(given) if _is_counted(tensor)]
    while True:
        state = [
            tensor if place in places else handle_of(tensor) for place, tensor in enumerate(given)
        ]
        part = replace(body, outputs=(body.outputs[0], *[body.outputs[1 + at] for at in places]))
        part = replace(part, nodes=tuple(part.needed))
        results = call.inline(part, (np.array(0, np.int64), np.array(True), *state))[1:]
        remaining = [
            place
            for place, result in zip(places, results, strict=True)
            if _is_counted(result) and _is_alike(result, given[place])
        ]
        if remaining == places:
            break
        places = remaining
    number = body.inputs[0].name
    is_numbered = number in part.outputs or any(number in node.reads for node in part.nodes)
    values = {place: [given[place]] for place in places}
    count: Any = 0
    while count < most and goes_on.item():
        made = call.inline(part, (np.array(count, np.int64), np.array(True), *state))
        if not all(map(_is_counted, made)) or count == _MOST_COUNTED:
            raise UnrolledError
        goes_on, *changed = cast("Sequence[Array]", made)
        is_still = all(map(np.array_equal, changed, [state[place] for place in places]))
        is_like_all = is_still and not is_numbered and count == 0
        if is_like_all and goes_on.item() and most < math.inf:
            count = most
            break
        for place, value in zip(places, changed, strict=True):
            state[place] = value
            values[place].append(value)
        count += 1
    if count * call.turns <= _FEW_STEPS:
        raise UnrolledError
    return count, {place: _Known(np.stack(series)) for place, series in values.items()}


def _is_counted(tensor: Tensor) -> bool:
    return isinstance(tensor, np.ndarray) and tensor.dtype.kind in "biu" and is_few(tensor)


@dataclass(frozen=True, slots=True)
class _Known:
    """The values of a carried tensor before each step, and after the last: few integers, which Python computes."""

    values: Array

    def at(self, step: Size) -> Tensor:
        first, dtype = self.values[0], from_numpy(self.values.dtype)
        if np.array_equal(self.values, np.broadcast_to(first, self.values.shape)):
            return np.asarray(first)
        stride = self.values[1] - first if dtype.is_integer else first
        numbers = np.arange(len(self.values)).reshape(-1, *[1] * first.ndim)
        if dtype.is_integer and np.array_equal(self.values, first + numbers * stride):
            objects = first.astype(object) + stride.astype(object) * step
            return np.array(objects, OBJECTS[dtype])
        values = handle_of(self.values)
        return computed(first.shape, lambda *at: values[spliced(at, 0, 0, (step,))], "known")


def _turns(
    call: Call,
    body: Graph,
    most: Tensor | None,
    goes_on: Tensor,
    given: Sequence[Tensor],
    first: Array,
) -> Made:
    """A while loop of the program from step `first` on."""
    stacked = call.node.outputs[len(given) :]
    if any(stacked):
        raise _by_turns(
            call,
            f"how many parts its output '{next(filter(None, stacked))}' has is known only when it runs",
        )
    state = [_carried(handle_of(tensor)) for tensor in given]
    count = _carried(_scalar(first.astype(np.int64)))
    limit = None if most is None else _scalar(most)
    flag = tc.empty(TensorType(boolean, ()))
    _set_flag(flag, _scalar(goes_on), count, limit)
    for _ in tc.steps_while(flag):
        # There is no turn where the condition doesn't hold.
        goes_on, *made = call.inline(body, (count, np.array(True), *state))
        goes_on = _carried(_scalar(goes_on))
        _change(call, state, made[: len(state)])
        following = computed((), lambda: count[()] + 1, name="count")
        _carried(following, count)
        _set_flag(flag, goes_on, count, limit)
    return tuple(state)


def _change(call: Call, state: Sequence[TensorHandle], results: Sequence[Tensor]) -> None:
    """Set the loop's state to the tensors that one turn made."""
    for current, new in zip(state, results, strict=True):
        if not _is_alike(current, new):
            raise _by_turns(
                call,
                f"a turn makes {_kind(new)} of the {_kind(current)} that it carries, and taskc takes such that stay"
                " of one type",
            )
    # One value may be what another one was: all are taken before any is changed.
    taken = [_carried(handle_of(new)) for new in results]
    for current, new in zip(state, taken, strict=True):
        _carried(new, current)


def _by_turns(call: Call, message: str) -> DataError:
    """The error of a loop that Python can run turn by turn, and a program can't."""
    error = DataError(f"{call.node.title}: {message}", call.node.where)
    error.names = (call.attribute("body").inputs[0].name,)
    return error


def _set_flag(
    flag: TensorHandle, goes_on: TensorHandle, count: TensorHandle, limit: TensorHandle | None
) -> None:
    if limit is None:
        computed((), lambda: goes_on[()], name="goes_on", out=flag)
    else:
        computed((), lambda: goes_on[()] and count[()] < limit[()], name="goes_on", out=flag)


def _or_known(call: Call, position: int, build: Callable[[], Made]) -> Made:
    """Build a node for any value of an input, to be decided at run time; if that fails, the input has to be known."""
    if call.node.inputs[position] not in call.late:
        raise call.unknown(position, can_wait=True)
    try:
        return build()
    except DataError as error:
        if not error.can_wait:
            error.names += (call.node.inputs[position],)
        raise
    except CompileError as reason:
        unknown = DataError(reason.message, reason.location, reason.hint, reason.notes)
        unknown.names = (call.node.inputs[position],)
        raise unknown from reason


def _attempt() -> AbstractContextManager[None]:
    trace = current_trace()
    assert trace is not None
    return trace.attempt()


def _carried(x: TensorHandle, out: TensorHandle | None = None) -> TensorHandle:
    """A copy of a tensor in memory of its own, or in `out`."""
    return computed(x.shape, lambda *at: x[at], name="carried", out=out)


def _scalar(tensor: Tensor) -> TensorHandle:
    """A tensor of one element, without axes."""
    return handle_of(tensor).reshape()


def _is_alike(one: Tensor, other: Tensor) -> bool:
    return dtype_of(one) is dtype_of(other) and _are_equal(one.shape, other.shape)


def _are_equal(one: Shape, other: Shape) -> bool:
    return len(one) == len(other) and all(map(are_equal, one, other))


def _kind(tensor: Tensor) -> str:
    return f"{dtype_of(tensor)}[{', '.join(map(str, tensor.shape))}]"


@operator("Scan", since=8)
def scan_of_batches(call: Call) -> Made:
    """Scan each batch over its own steps."""
    if call.has(0):
        raise call.node.error(
            "taskc doesn't have sequences of different lengths in a Scan of version 8"
        )
    body, count = call.attribute("body"), call.count("num_scan_inputs")
    given = [handle_of(call.given(position)) for position in range(1, len(call.inputs))]
    states = len(given) - count
    backwards = call.attribute("directions") or [0] * count

    def step(b: Size, _: Sequence[TensorHandle]) -> Sequence[Tensor]:
        read = [(x[b], 0, bool(back)) for x, back in zip(given[states:], backwards, strict=True)]
        return _scan(call, body, [x[b] for x in given[:states]], read)

    return (*_repeated(call, given[0].shape[0], (), step)[1],)


@operator("Scan", since=9)
def scan(call: Call) -> Made:
    body, count = call.attribute("body"), call.count("num_scan_inputs")
    state = [call.given(position) for position in range(len(call.inputs) - count)]
    inputs = [handle_of(call.given(n)) for n in range(len(state), len(call.inputs))]
    axes = call.attribute("scan_input_axes") or [0] * count
    backwards = call.attribute("scan_input_directions") or [0] * count
    read = [
        (x, call.axis_of(axis, len(x.shape)), bool(back))
        for x, axis, back in zip(inputs, axes, backwards, strict=True)
    ]
    results = _scan(call, body, state, read)
    outputs = len(results) - len(state)
    ends = call.attribute("scan_output_axes") or [0] * outputs
    directions = call.attribute("scan_output_directions") or [0] * outputs
    stacked = [
        _laid(x, call.axis_of(axis, len(x.shape)), bool(back))
        for x, axis, back in zip(results[len(state) :], ends, directions, strict=True)
    ]
    return (*results[: len(state)], *stacked)


def _scan(
    call: Call,
    body: Graph,
    given: Sequence[Tensor],
    read: Sequence[tuple[TensorHandle, int, bool]],
) -> tuple[TensorHandle, ...]:
    """The final state, and the tensors that the steps made, stacked.

    read  scanned inputs: each with its axis, and whether it is scanned backwards
    """
    steps = read[0][0].shape[read[0][1]]

    def step(t: Size, state: Sequence[TensorHandle]) -> Sequence[Tensor]:
        parts = [_step_of(x, axis, steps - 1 - t if back else t) for x, axis, back in read]
        return call.inline(body, (*state, *parts))

    state, stacked = _repeated(call, steps, given, step)
    return (*state, *stacked)


def _repeated(
    call: Call,
    count: Extent,
    given: Sequence[Tensor],
    step: Callable[[Size, Sequence[TensorHandle]], Sequence[Tensor]],
) -> tuple[list[TensorHandle], list[TensorHandle]]:
    """The final state of a loop of the program, and the parts that its steps made, stacked.

    step  from a step's number and the state before it to the state after it, and its parts
    """
    state = [_carried(handle_of(tensor)) for tensor in given]
    stacked: list[TensorHandle] = []
    for number in tc.steps(count):
        results = [*map(handle_of, step(number, state))]
        # A part may be what the state was.
        for part in results[len(state) :]:
            kind = TensorType(part.dtype, (count, *part.shape))
            stacked.append(tc.empty(kind))
            _carried(part, stacked[-1][number])
        _change(call, state, results[: len(state)])
    return state, stacked


def _step_of(x: TensorHandle, axis: int, step: Extent) -> TensorHandle:
    """A tensor at one place of an axis, without that axis."""
    if axis == 0:
        return x[step]
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return computed(shape, lambda *at: x[spliced(at, axis, axis, (step,))], name="step")


def _laid(x: TensorHandle, axis: int, is_backwards: bool) -> TensorHandle:
    """Stacked steps moved to another axis, or put in reverse order."""
    if axis == 0 and not is_backwards:
        return x
    steps, *rest = x.shape

    @tc.function
    def element(*at: Element) -> Computed:
        step = steps - 1 - at[axis] if is_backwards else at[axis]
        place = (step, *at[:axis], *at[axis + 1 :])
        return x[place]

    shape = (*rest[:axis], steps, *rest[axis:])
    return computed(shape, element, name="steps")


def _stacked(call: Call, parts: Sequence[Tensor], axis: int) -> Tensor:
    """The tensors of all steps, stacked along a new axis."""
    rank = len(parts[0].shape) + 1
    place = call.axis_of(axis, rank)
    extents = parts[0].shape
    for part in parts:
        if not all(are_equal(one, other) for one, other in zip(part.shape, extents, strict=True)):
            raise call.node.error(UNLIKE_STEPS)
    shape = (*extents[:place], 1, *extents[place:])
    single = [reshaped(handle_of(part), *shape) for part in parts]
    return joined(single, place, partial(computed, name="steps"))


_ELEMENTWISE = "taskc.operators.elementwise"  # each of its operators broadcasts all inputs
_OF_FIRST = ("Cast", "Clip", "Identity", "PRelu")  # the result has the first input's shape
_ELEMENTS = {("If", 0), ("Loop", 0), ("Loop", 1), ("Size", 0)}  # inputs whose shape isn't read


def settled(
    node: Node, builder: Builder, inputs: Sequence[Held | None]
) -> tuple[tuple[Held | None, ...], Loose | None]:
    """A node's inputs, each with one rank, and the loosest of them where its outputs are equally loose."""
    loose = {place: held for place, held in enumerate(inputs) if isinstance(held, Loose)}
    if not loose:
        return tuple(inputs), None
    bare = tuple([held.handle if isinstance(held, Loose) else held for held in inputs])
    loosest = max(loose.values(), key=lambda held: held.rank)
    others = [len(held.shape) for held in inputs if not isinstance(held, Loose | None)]
    is_seen = max(others, default=-1) < loosest.rank
    if node.operator in _OF_FIRST:
        if [*loose] == [0]:
            return bare, loosest
    elif builder.__module__ == _ELEMENTWISE:
        return bare, loosest if is_seen else None
    elif _is_blind(node, loose, bare, loosest.rank):
        return bare, None
    raise loosest.error


def _is_blind(node: Node, loose: dict[int, Loose], given: Sequence[Held | None], rank: int) -> bool:
    """Whether a node gives the same result for a tensor with the axes and without them."""
    if all((node.operator, place) in _ELEMENTS for place in loose):
        return True
    if [*loose] != [0]:
        return False
    shape = given[1] if len(given) > 1 else None
    if node.operator == "Reshape":
        return isinstance(shape, np.ndarray) and all(extent != 0 for extent in shape.reshape(-1))
    return node.operator == "Expand" and shape is not None and shape.shape[0] >= rank
