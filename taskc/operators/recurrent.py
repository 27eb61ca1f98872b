"""Recurrent networks: LSTM, GRU and RNN.

One product covers the inputs of all steps. In a loop, each step multiplies the previous state by the recurrent weights
and computes the next state. The states of all steps are in one tensor, in the order of x.

The activation functions of recurrent cells, by the names that models use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

import taskc as tc
from taskc import i64
from taskc.dataclass import dataclass
from taskc.kernels.reductions import reduction
from taskc.operators.call import Call, Made, operator
from taskc.operators.elementwise import PLAIN, WITH_ATTRIBUTES
from taskc.operators.movement import transposed
from taskc.operators.operands import kernel_of
from taskc.operators.products import rows_times
from taskc.operators.tensors import Extent, Function, Shape, Tensor, computed, memory, reshaped
from taskc.programs.tracing import Computed, Element, TensorHandle

# Activations whose formula in a cell differs from the operator's of that name, or that are no operator.
_OWN: dict[str, tuple[Function, dict[str, float]]] = {
    "Affine": (lambda x, alpha, beta: alpha * x + beta, {"alpha": 1.0, "beta": 0.0}),
    "HardSigmoid": (lambda x, alpha, beta: min(max(alpha * x + beta, 0), 1), {"alpha": 0.2, "beta": 0.5}),
    "ScaledTanh": (lambda x, alpha, beta: alpha * tc.tanh(beta * x), {"alpha": 1.0, "beta": 1.0}),
    "ThresholdedRelu": (lambda x, alpha: x if x >= alpha else 0, {"alpha": 1.0}),
}  # fmt: skip
_PLAIN = ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
_FUNCTIONS = {
    **{name: (PLAIN[name], {}) for name in _PLAIN},
    **{name: WITH_ATTRIBUTES[name] for name in ("Elu", "LeakyRelu")},
    **_OWN,
}
_BY_NAME = {name.lower(): function for name, function in _FUNCTIONS.items()}


def activations_of(call: Call, usual: list[str], directions: int) -> list[list[Function]]:
    """The functions of the cell for each direction. Alphas and betas are used up in order."""
    names = call.attribute("activations") or usual * directions
    if len(names) < len(usual) * directions:
        raise call.node.error(f"it names {len(names)} activations, for {directions} directions")
    alphas = iter(call.attribute("activation_alpha") or [])
    betas = iter(call.attribute("activation_beta") or [])
    clip = call.attribute("clip", 0.0)
    functions = [
        _activation(call, name, alphas, betas, clip) for name in names[: len(usual) * directions]
    ]
    return [functions[n : n + len(usual)] for n in range(0, len(functions), len(usual))]


def _activation(
    call: Call, name: str, alphas: Iterator[float], betas: Iterator[float], clip: float
) -> Function:
    """One activation function with its alpha and beta; `clip` bounds its argument."""
    if name.lower() not in _BY_NAME:
        raise call.node.error(f"taskc has no activation '{name}'")
    function, defaults = _BY_NAME[name.lower()]
    own = {"alpha": alphas, "beta": betas}
    options = tuple([next(own[option], default) for option, default in defaults.items()])
    of = tc.function(function)
    if not clip:
        return tc.function(lambda x: of(x, *options))
    return tc.function(lambda x: of(min(max(x, -clip), clip), *options))


State = tuple[TensorHandle, ...]
Put = Callable[[int, Function], TensorHandle]  # computes one tensor of the next state
Step = Callable[[TensorHandle, State, Put], None]  # takes the inputs' share of gates, and a state


@dataclass(frozen=True, slots=True)
class Direction:
    """The operands of one direction.

    w, r       weights [gates * hidden, inputs] and [gates * hidden, hidden]
    bias       [2 * gates * hidden], for inputs and then for states
    peephole   [3 * hidden], for an LSTM
    functions  activations of the cell
    """

    call: Call
    w: Tensor
    r: Tensor
    bias: TensorHandle | None
    peephole: TensorHandle | None
    functions: list[Function]

    @property
    def hidden(self) -> int:
        return int(self.r.shape[1])

    def shares(self, x: TensorHandle, apart: int | None = None) -> TensorHandle:
        """The inputs' share of all steps' gates, with both biases; from row `apart` on, with the first bias alone."""
        steps, batch, inputs = x.shape
        rows, gates, given = reshaped(x, steps * batch, inputs), self.w.shape[0], self.bias
        if given is None:
            product = _times(rows, _turned(self.w))
        else:
            end = gates if apart is None else apart
            bias = computed(
                (gates,), lambda j: given[j] + given[gates + j] if j < end else given[j]
            )
            product = _times(rows, _turned(self.w), bias)
        return reshaped(product, steps, batch, gates)


def _turned(weights: Tensor) -> Tensor:
    """Weights transposed for packing if they are constant: once, for all steps."""
    return weights.T if isinstance(weights, np.ndarray) else weights


def _times(x: TensorHandle, w: Tensor, bias: TensorHandle | None = None) -> TensorHandle:
    """x times weights that went through `_turned`, plus bias."""
    return rows_times(x, w, bias, transpose_b=not isinstance(w, np.ndarray))


_RANKS = (3, 3, 3, 2, 1, 3, 3, 2)


def _lstm_step(own: Direction) -> Step:
    """A step of an LSTM. The gates are input, output and forget, and the cell's candidate."""
    hidden, peephole = own.hidden, own.peephole
    of_gate, of_cell, of_state = own.functions
    is_coupled, weights = bool(own.call.attribute("input_forget", 0)), _turned(own.r)

    def step(share: TensorHandle, state: State, put: Put) -> None:
        h, c = state
        product = _times(h, weights)

        @tc.function
        def gate(number: int, b: Element, j: Element) -> Computed:
            return share[b, number * hidden + j] + product[b, number * hidden + j]

        @tc.function
        def seen(number: int, j: Element, value: Element) -> Computed:
            return 0 if peephole is None else peephole[number * hidden + j] * value

        @tc.function
        def cell(b: Element, j: Element) -> Computed:
            old = c[b, j]
            entering = of_gate(gate(0, b, j) + seen(0, j, old))
            staying = 1 - entering if is_coupled else of_gate(gate(2, b, j) + seen(2, j, old))
            return staying * old + entering * of_cell(gate(3, b, j))

        new = put(1, cell)

        @tc.function
        def out(b: Element, j: Element) -> Computed:
            return of_gate(gate(1, b, j) + seen(1, j, new[b, j])) * of_state(new[b, j])

        put(0, out)

    return step


def _gru_step(own: Direction) -> Step:
    """A step of a GRU. The gates are update and reset, and the candidate state."""
    hidden, bias, whole = own.hidden, own.bias, _turned(own.r)
    of_gate, of_state = own.functions
    is_linear = bool(own.call.attribute("linear_before_reset", 0))
    first, last = _turned(own.r[: 2 * hidden]), _turned(own.r[2 * hidden :])

    def step(share: TensorHandle, state: State, put: Put) -> None:
        (h,) = state
        product = _times(h, whole if is_linear else first)

        @tc.function
        def gate(number: int, b: Element, j: Element) -> Computed:
            return of_gate(share[b, number * hidden + j] + product[b, number * hidden + j])

        if is_linear:

            @tc.function
            def other(b: Element, j: Element) -> Computed:
                offset = 0 if bias is None else bias[5 * hidden + j]
                return gate(1, b, j) * (product[b, 2 * hidden + j] + offset)
        else:
            kept = computed(h.shape, lambda b, j: gate(1, b, j) * h[b, j])
            turned = _times(kept, last)
            other = tc.function(lambda b, j: turned[b, j])

        @tc.function
        def new(b: Element, j: Element) -> Computed:
            own_share = share[b, 2 * hidden + j]
            kept_part = gate(0, b, j)
            return (1 - kept_part) * of_state(own_share + other(b, j)) + kept_part * h[b, j]

        put(0, new)

    return step


def _rnn_step(own: Direction) -> Step:
    (of_state,), weights = own.functions, _turned(own.r)

    def step(share: TensorHandle, state: State, put: Put) -> None:
        (h,) = state
        product = _times(h, weights)
        put(0, tc.function(lambda b, j: of_state(share[b, j] + product[b, j])))

    return step


# The usual activations of a cell, its gates, and its steps.
_CELLS: dict[str, tuple[list[str], int, Callable[[Direction], Step]]] = {
    "LSTM": (["Sigmoid", "Tanh", "Tanh"], 4, _lstm_step),
    "GRU": (["Sigmoid", "Tanh"], 3, _gru_step),
    "RNN": (["Tanh"], 1, _rnn_step),
}


@operator("LSTM", since=7, ranks=_RANKS)
@operator("GRU", since=7, ranks=_RANKS)
@operator("RNN", since=7, ranks=_RANKS)
def recurrent(call: Call) -> Made:
    """Run all directions over all steps: y of all steps and the last states, in the model's layout."""
    usual, gates, make = _CELLS[call.node.operator]
    call.require_kernel()
    is_batch_first = bool(call.attribute("layout", 0))
    x = call.tensor(0)
    if is_batch_first:
        x = _swapped(x)
    directions = _directions(call, usual, gates)
    shape = x.shape[1], directions[0].hidden
    lengths = call.tensor(4) if call.has(4) else None
    # On a device, each flag would be waited for.
    stops = lengths is not None and tc.machine().is_processor
    is_within = _steps_within(lengths, x.shape[0]) if stops else None
    walks = []
    for number, direction in enumerate(directions):
        first = _first_state(call, number, shape, x.dtype, is_batch_first)
        walks.append(_walk(direction, make(direction), x, first, lengths, is_within, number))
    y = _all_steps([states[0] for states, _ in walks], lengths, is_batch_first)
    last = [_stacked(list(parts)) for parts in zip(*[ends for _, ends in walks], strict=True)]
    if is_batch_first:
        last = [*map(_swapped, last)]
    return (y, *last)


def _directions(call: Call, usual: list[str], gates: int) -> list[Direction]:
    w, r = call.given(1), call.given(2)
    directions, rows, hidden = r.shape
    expected = 2 if call.attribute("direction", "forward") == "bidirectional" else 1
    if directions != expected or rows != gates * hidden:
        raise call.node.error(
            f"its recurrent weights are {list(r.shape)}, for {expected} directions"
        )
    functions = activations_of(call, usual, expected)
    bias = call.tensor(3) if call.has(3) else None
    peephole = call.tensor(7) if call.has(7) else None
    return [
        Direction(
            call,
            w[number],
            r[number],
            None if bias is None else bias[number],
            None if peephole is None else peephole[number],
            functions[number],
        )
        for number in range(expected)
    ]


def _first_state(
    call: Call, number: int, shape: Shape, dtype: tc.DType, is_batch_first: bool
) -> State:
    """The initial state of a direction: the model's, or zeros."""
    tensors = []
    for place in (5, 6) if call.node.operator == "LSTM" else (5,):
        if not call.has(place):
            tensors.append(computed(shape, lambda *at: dtype(0)))
        elif is_batch_first:
            tensors.append(_swapped(call.tensor(place))[number])
        else:
            tensors.append(call.tensor(place)[number])
    return tuple(tensors)


def _walk(
    own: Direction, step: Step, x: TensorHandle, first: State, lengths: TensorHandle | None,
    is_within: TensorHandle | None, number: int,
) -> tuple[State, State]:  # fmt: skip
    """Run one direction: the states after each step, in the order of x, and the last state.

    Steps after the longest sequence only copy the state.
    """
    is_gru = own.call.node.operator == "GRU"
    is_linear = is_gru and bool(own.call.attribute("linear_before_reset", 0))
    shares = _shares(own, x, 2 * own.hidden if is_linear else None, is_within)
    steps = x.shape[0]
    is_reverse = number == 1 or own.call.attribute("direction", "forward") == "reverse"
    begin, end = (steps, 0) if is_reverse else (0, steps)
    states = tuple([_begun(state, steps, begin) for state in first])
    for t in tc.steps(steps):
        place = steps - 1 - t if is_reverse else t
        old, new = (place + 1, place) if is_reverse else (place, place + 1)
        before = tuple([state[old] for state in states])
        put = _put(states, old, new, place, lengths)
        if is_within is None:
            step(shares[place], before, put)
            continue
        with tc.branch(is_within[place]):
            step(shares[place], before, put)
        with tc.otherwise():
            for state in states:
                _copied(state[old], state[new])
    behind = slice(0, steps) if is_reverse else slice(1, steps + 1)
    states_of_steps = tuple([state[behind] for state in states])
    return states_of_steps, tuple([state[end] for state in states])


def _shares(
    own: Direction, x: TensorHandle, apart: int | None, is_within: TensorHandle | None
) -> TensorHandle:
    """The inputs' share of the gates: of all steps at once, or of some at a time until the longest sequence ends."""
    steps, batch, inputs = x.shape
    lengths = range(_MOST_AT_ONCE, 1, -1)
    at_once = next((n for n in lengths if isinstance(steps, int) and steps % n == 0), steps)
    if is_within is None or at_once == steps:
        return own.shares(x, apart)
    pieces, gates = steps // at_once, own.w.shape[0]
    parts = reshaped(x, pieces, at_once, batch, inputs)
    begins = reshaped(is_within, pieces, at_once)
    shares = memory(x.dtype, (pieces, at_once, batch, gates))
    for piece in tc.steps(pieces):
        with tc.branch(begins[piece, 0]):
            _copied(own.shares(parts[piece], apart), shares[piece])
        with tc.otherwise():  # nobody reads them, which a program can't know
            computed(shares.shape[1:], lambda *at: x.dtype(0), out=shares[piece])
    return reshaped(shares, steps, batch, gates)


_MOST_AT_ONCE = 8  # steps


def _steps_within(lengths: TensorHandle, steps: Extent) -> TensorHandle:
    """Whether a sequence lasts for each step."""
    (batch,) = lengths.shape
    longest = kernel_of(reduction, "max", (batch,), (0,), dtype=lengths.dtype)(lengths)
    return computed((steps,), lambda t: t < longest[()].to(i64))


def _begun(first: TensorHandle, steps: Extent, place: Extent) -> TensorHandle:
    """Memory for a state tensor before and after every step, with the initial state in its place."""
    states = memory(first.dtype, (steps + 1, *first.shape))
    _copied(first, states[place])
    return states


def _copied(state: TensorHandle, to: TensorHandle) -> None:
    computed(state.shape, lambda *at: state[at], out=to)


def _put(
    states: State, old: Extent, new: Extent, place: Extent, lengths: TensorHandle | None
) -> Put:
    """Computes one tensor of the next state; after the end of a sequence, its state stays unchanged."""

    def put(number: int, value: Function) -> TensorHandle:
        before, target = states[number][old], states[number][new]
        if lengths is None:
            computed(target.shape, value, out=target)
            return target

        @tc.function
        def kept(b: Element, j: Element) -> Computed:
            next_state = value(b, j)
            return next_state if place < lengths[b].to(i64) else before[b, j]

        computed(target.shape, kept, out=target)
        return target

    return put


def _all_steps(
    directions: list[TensorHandle], lengths: TensorHandle | None, is_batch_first: bool
) -> TensorHandle:
    """y: the states of one or two directions after each step, and 0 after the end of a sequence."""
    first, last = directions[0], directions[-1]
    steps, batch, hidden = first.shape
    if len(directions) == 1 and lengths is None and not is_batch_first:
        return reshaped(first, steps, 1, batch, hidden)

    @tc.function
    def state(t: Element, d: Element, b: Element, j: Element) -> Computed:
        own = first[t, b, j] if d == 0 else last[t, b, j]
        return own if lengths is None or t < lengths[b].to(i64) else 0

    if is_batch_first:
        shape = batch, steps, len(directions), hidden
        return computed(shape, lambda b, t, d, j: state(t, d, b, j))
    return computed((steps, len(directions), batch, hidden), state)


def _stacked(parts: list[TensorHandle]) -> TensorHandle:
    """The states of one or two directions along a leading axis."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return reshaped(first, 1, *first.shape)
    return computed((2, *first.shape), lambda d, b, j: first[b, j] if d == 0 else last[b, j])


def _swapped(x: TensorHandle) -> TensorHandle:
    """x with its first two axes exchanged."""
    return transposed(x, (1, 0, *range(2, len(x.shape))))
