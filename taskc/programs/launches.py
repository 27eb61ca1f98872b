"""Expand a program call into kernel launches, with temporaries allocated and sizes resolved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

from taskc.arrays.arguments import Bound
from taskc.arrays.packed import Packed, laid_memory, part_of, shape_of
from taskc.errors import assert_never
from taskc.ir.nodes import Kernel, Tensor, Variable
from taskc.ir.signature import bind_dimensions
from taskc.ir.types import TensorType
from taskc.programs.ir import Call, Program
from taskc.programs.specialize import SizedBranch, SizedCall, SizedStep, SizedWhile, sized

# Makes an array for a type whose sizes are known.
Empty: TypeAlias = Callable[[TensorType], Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with its arguments. Launches share arrays, through which data flows."""

    call: Call
    bound: Bound

    @property
    def kernel(self) -> Kernel:
        assert isinstance(self.call.callee, Kernel)  # a program that runs has no computations
        return self.call.callee


class Launches:
    """The launches of a program in order; each has to run before the next one is requested, which may depend on it.

    all  all launches, each once, whether or not conditions let them run

    """

    def __init__(self, steps: Sequence[SizedStep], given: dict[Tensor | Variable, Any]) -> None:
        self._steps = steps
        self._given = given
        self._made = {id(call): _launch(call, given) for call in _calls_of(steps)}
        self.all = tuple(self._made.values())

    def __iter__(self) -> Iterator[Launch]:
        return self._taken(self._steps)

    def _taken(self, steps: Sequence[SizedStep]) -> Iterator[Launch]:
        for step in steps:
            match step:
                case SizedCall():
                    yield self._made[id(step)]
                case SizedBranch():
                    taken = step.then if self._holds(step.condition) else step.otherwise
                    yield from self._taken(taken)
                case SizedWhile():
                    while self._holds(step.condition):
                        yield from self._taken(step.body)
                case _:
                    assert_never(step)

    def _holds(self, condition: Tensor) -> bool:
        """The current value of a condition."""
        return bool(np.asarray(self._given[condition]).reshape(()))


def _calls_of(steps: Sequence[SizedStep]) -> Iterator[SizedCall]:
    for step in steps:
        match step:
            case SizedCall():
                yield step
            case SizedBranch():
                yield from _calls_of((*step.then, *step.otherwise))
            case SizedWhile():
                yield from _calls_of(step.body)
            case _:
                assert_never(step)


def _launch(call: SizedCall, given: dict[Tensor | Variable, Any]) -> Launch:
    values = [
        given[item] if isinstance(item, Tensor | Variable) else item for item in call.arguments
    ]
    return Launch(call.call, Bound(tuple(values), call.dimensions, None))


def in_usual_order(described: TensorType) -> Any:
    """A temporary for the simulator, which ignores layouts of parameters."""
    return np.empty(described.shape, described.dtype.numpy)


def on_host(described: TensorType) -> Any:
    """A temporary for compiled code. No result depends on the padding of its layout, which is uninitialized."""
    laid = described.layout is not None
    return laid_memory(np.empty, described) if laid else in_usual_order(described)


def as_elements(memory: Any) -> Any:
    """A constant for the simulator: its elements in row-major order, whatever its layout."""
    return memory.unpack() if isinstance(memory, Packed) else memory


def as_it_lies(memory: Any) -> Any:
    """A constant for compiled code, in its layout."""
    return memory


def launches(
    program: Program,
    values: Sequence[Any],
    empty: Empty = in_usual_order,
    constant: Callable[[Any], Any] = as_elements,
) -> Launches:
    """The launches of a program in order; `values` has one for each parameter, as in a `Bound`.

    empty     allocates a temporary
    constant  converts a constant's memory to a kernel's argument
    """
    sizes: dict[Variable, Any] = dict(bind_dimensions(program.parameters, [*map(shape_of, values)]))
    arguments: dict[Tensor | Variable, Any] = dict(zip(program.parameters, values, strict=True))
    sizes |= {item: value for item, value in arguments.items() if isinstance(item, Variable)}
    known = sized(program, sizes)
    arguments |= {tensor: constant(memory) for tensor, memory in program.constants}
    for tensor in program.temporaries:
        arguments[tensor] = empty(TensorType(tensor.dtype, known.shapes[tensor], tensor.layout))
    for view, of in known.views.items():
        shape, start = known.shapes[view], known.starts[view]
        memory, count = arguments[of], prod(shape)
        if isinstance(memory, Packed) and memory.type.dtype.is_sub_byte:
            arguments[view] = part_of(memory, shape, start)
            continue
        if count < memory.size:
            memory = memory.reshape((memory.size,))[start : start + count]
        arguments[view] = memory.reshape(shape)
    return Launches(known.steps, arguments)
