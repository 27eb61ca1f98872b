"""Training steps: a program's gradients, and the update of its weights in place, as one program.

    step = tc.training_step(network, wrt=["w"], optimizer=tc.AdamW(), clip=1.0)
->
    step(x, w: inout, rate: f32, steps: inout i64[1], m_w: inout, v_w: inout) -> loss

An optimizer tells which arrays it keeps for each weight, and how the weight and these follow from a gradient: by
computations that write what they read. The formulas are PyTorch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

import taskc as tc
from taskc.dataclass import dataclass
from taskc.errors import CompileError
from taskc.gradients.walk import differentiated
from taskc.ir.nodes import GLOBAL, Tensor, Variable
from taskc.ir.signature import Parameter, inputs_of, named_type
from taskc.ir.types import f32, f64, i64
from taskc.lang.source import call_site
from taskc.operators.op import op
from taskc.programs.definition import ProgramDefinition
from taskc.programs.trace_program import traced_with
from taskc.programs.tracing import TensorHandle, current_trace


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight that a step moves.

    gradient  after clipping
    states    the arrays that are kept for it
    rate      the learning rate
    count     the number of the step, from 1 on, as an f64[1]
    """

    value: TensorHandle
    gradient: TensorHandle
    states: tuple[TensorHandle, ...]
    rate: Any
    count: TensorHandle

    def move(self, direction: TensorHandle, decay: float = 0.0) -> None:
        """Move the weight by the rate against a direction, after it has shrunk by the rate times `decay`."""
        p, rate, dtype = self.value, self.rate, self.value.dtype
        tc.compute(
            p.shape,
            lambda *at: p[at] * (1 - rate.to(dtype) * decay) - rate.to(dtype) * direction[at],
            out=p,
        )

    def decayed(self, decay: float) -> TensorHandle:
        """The gradient, with that of the weight's own squares."""
        p, g = self.value, self.gradient
        return tc.compute(p.shape, lambda *at: g[at] + decay * p[at]) if decay else g

    def normalized(self, g: TensorHandle, betas: Sequence[float], epsilon: float) -> TensorHandle:
        """Adam's direction: the average gradient over the root of that of squares; both began with zeros."""
        (m, v), count, dtype = self.states, self.count, self.value.dtype
        first, second = betas
        tc.compute(m.shape, lambda *at: m[at] + (1 - first) * (g[at] - m[at]), out=m)
        tc.compute(v.shape, lambda *at: second * v[at] + (1 - second) * g[at] * g[at], out=v)
        of_m = tc.compute(1, lambda i: (1 / (1 - f64(first) ** count[i])).to(dtype))
        of_v = tc.compute(1, lambda i: tc.rsqrt(1 - f64(second) ** count[i]).to(dtype))
        direction: TensorHandle = tc.compute(
            m.shape, lambda *at: of_m[0] * m[at] / (tc.sqrt(v[at]) * of_v[0] + epsilon)
        )
        return direction


@dataclass(frozen=True, slots=True)
class SGD:
    """Stochastic gradient descent with momentum."""

    names: ClassVar[tuple[str, ...]] = ("m",)
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def update(self, weight: Weight) -> None:
        g, (m,), momentum = weight.decayed(self.weight_decay), weight.states, self.momentum
        tc.compute(m.shape, lambda *at: momentum * m[at] + g[at], out=m)
        direction = m
        if self.nesterov:
            direction = tc.compute(m.shape, lambda *at: g[at] + momentum * m[at])
        weight.move(direction)


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam; the decay is a part of the gradient."""

    names: ClassVar[tuple[str, ...]] = ("m", "v")
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def update(self, weight: Weight) -> None:
        g = weight.decayed(self.weight_decay)
        weight.move(weight.normalized(g, self.betas, self.epsilon))


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam whose decay shrinks the weight itself."""

    names: ClassVar[tuple[str, ...]] = ("m", "v")
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01

    def update(self, weight: Weight) -> None:
        direction = weight.normalized(weight.gradient, self.betas, self.epsilon)
        weight.move(direction, self.weight_decay)


@dataclass(frozen=True, slots=True)
class LAMB:
    """Adam's direction and the decay, made as long as the weight is: for large batches."""

    names: ClassVar[tuple[str, ...]] = ("m", "v")
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-6
    weight_decay: float = 0.01

    def update(self, weight: Weight) -> None:
        p, decay, dtype = weight.value, self.weight_decay, weight.value.dtype
        adam = weight.normalized(weight.gradient, self.betas, self.epsilon)
        r = tc.compute(p.shape, lambda *at: adam[at] + decay * p[at])
        own, other = (_length([one]) for one in (p, r))
        ratio = tc.compute(
            1, lambda i: own[i] / other[i] if own[i] > 0 and other[i] > 0 else dtype(1)
        )
        weight.move(tc.compute(p.shape, lambda *at: ratio[0] * r[at]))


Optimizer: TypeAlias = SGD | Adam | AdamW | LAMB


def _length(tensors: Sequence[TensorHandle]) -> TensorHandle:
    """The root of the sum of all squares, in an array of one."""
    squares = [op.ReduceSumSquare(x, [*range(len(x.shape))], keepdims=0) for x in tensors]
    total = squares[0].reshape(1)
    for one in squares[1:]:
        total = op.Add(total, one.reshape(1))
    length: TensorHandle = op.Sqrt(total)
    return length


def training_step(
    program: ProgramDefinition,
    of: str = "loss",
    wrt: Sequence[str] = (),
    *,
    optimizer: Optimizer,
    clip: float | None = None,
) -> ProgramDefinition:
    """The program of a step of training, which returns the loss and moves the weights in place.

    It takes what the program takes, with the weights as `tc.inout`, and after that the learning rate, the number of
    steps before, and the optimizer's states: `optimizer_state` makes these two.

    of    the name of the loss
    wrt   the names of the weights
    clip  the most that the gradients are long, all together; longer ones are scaled
    """
    gradients = differentiated(program, of, wrt, with_value=True)
    output = next(item for item in program.ir.parameters if item.name == of)
    assert isinstance(output, Tensor)
    if any(n != 1 for n in output.shape):
        found = named_type(output.dtype, output.shape)
        raise CompileError(f"'{of}' is {found}, and a loss is one number", call_site())
    inputs = inputs_of(program.ir.parameters)
    weights = [_checked(item) for item in inputs if item.name in wrt]
    states = {item.name: states_of(item, optimizer) for item in weights}
    rate = Variable("rate", f32)
    steps = Tensor("steps", i64, (1,), GLOBAL, role="inout")
    given = [replace(item, role="inout") if item in weights else item for item in inputs]
    kept = [state for several in states.values() for state in several]
    parameters: list[Parameter] = [*given, rate, steps, *kept]

    def body(*handles: Any) -> dict[str, TensorHandle]:
        trace = current_trace()
        assert trace is not None
        named = dict(zip([item.name for item in parameters], handles, strict=True))
        loss, *found = gradients(*handles[: len(inputs)])
        _update(named, dict(zip(wrt, found, strict=True)), states, optimizer, clip)
        return {of: loss}

    loc = program.ir.loc
    name = f"{program.ir.name}_step"
    made, kernels = traced_with(name, parameters, dict(program.dimensions), body, loc)
    return ProgramDefinition(made, program.dimensions, kernels)


def _update(
    named: Mapping[str, Any],
    gradients: Mapping[str, TensorHandle],
    states: Mapping[str, Sequence[Tensor]],
    optimizer: Optimizer,
    clip: float | None,
) -> None:
    """Record the update of all weights."""
    steps = named["steps"]
    tc.compute(1, lambda i: steps[i] + 1, out=steps)
    count = tc.compute(1, lambda i: steps[i].to(f64))
    scale = None
    if clip is not None:
        length = _length([*gradients.values()])
        scale = tc.compute(1, lambda i: min(clip / (length[i] + 1e-6), 1.0))
    for name, gradient in gradients.items():
        clipped = gradient if scale is None else op.Mul(gradient, scale)
        own = tuple([named[state.name] for state in states[name]])
        optimizer.update(Weight(named[name], clipped, own, named["rate"], count))


def _checked(item: Any) -> Tensor:
    assert isinstance(item, Tensor)
    if item.dtype not in (f32, f64):
        raise CompileError(
            f"the weight '{item.name}' is {item.dtype}: a step would be too small for it",
            call_site(),
            "keep it as f32, and convert it in the program",
        )
    return item


def states_of(weight: Tensor, optimizer: Optimizer) -> list[Tensor]:
    return [replace(weight, name=f"{kind}_{weight.name}", role="inout") for kind in optimizer.names]


def optimizer_state(optimizer: Optimizer, **weights: Any) -> dict[str, Any]:
    """The arguments of a first step by name, besides the rate: zeros for the states and for `steps`."""
    state: dict[str, Any] = {"steps": np.zeros(1, np.int64)}
    for name, weight in weights.items():
        for kind in optimizer.names:
            state[f"{kind}_{name}"] = np.zeros_like(weight)
    return state
