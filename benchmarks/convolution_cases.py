"""Convolutions on the CPU: our kernel of each layer, held to float64, and what it is measured against.

chain    images are blocked, as they are between the kernels of a network, and were written just before. Peers: ONNX
         Runtime's own kernel in such a chain, and PyTorch's with packed filters and channels last
arrays   NCHW in and out, filters packed ahead
untuned  the plan that is chosen, against the fastest of 100 others

Whatever the library can't build yet is named, and nothing is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from convolution_layers import Layer, others, resnet50, separable, winograd
from convolution_peers import Array, Operands, in_a_chain, on_arrays, operands_of
from cpu_cases import Call, Case

import taskc as tc
from taskc import CompileError, DType, f32
from taskc.backend.cpu.compile import compile_kernel
from taskc.backend.cpu.processor import host
from taskc.ir.types import from_numpy
from taskc.kernels.convolution import build, convolution, convolution_3d
from taskc.kernels.convolution.plan import candidates
from taskc.kernels.convolution.problem import problem_of
from taskc.lang.definition import Definition
from taskc.passes.pipeline import lower
from taskc.tune.space import sample
from taskc.tune.timing import seconds

# Options, names and types that aren't there yet, and what they are refused with.
_NOT_BUILT = AttributeError, CompileError, ImportError, NotImplementedError, TypeError, ValueError
_BOUND, _BOUND_REASSOCIATED = 1e-4, 1e-3  # results are about 1
_PLANS = 100
_FASTEST = 5  # of them are measured in pairs
Made = TypeVar("Made")


@tc.function
def relu(x):  # type: ignore[no-untyped-def]
    return 0 if x < 0 else x


@dataclass(frozen=True)
class Ours:
    """image: what a call reads; result: what it makes, as NCHW."""

    call: Call
    image: Array
    result: Callable[[], Array]


_elements = tc.dim("elements")


@tc.kernel(workers=16)
def add(by: f32, x: tc.inout[f32[_elements]]):  # type: ignore[no-untyped-def]
    for start in tc.tiles(_elements, by=4096):
        for k in tc.repeat(256) * tc.spatial(16):
            if start + k < _elements:
                x[start + k] += by


class Fresh:
    """A call whose image was written before, on as many threads, as by the kernel before it in a network.

    `seconds` are the call's own.
    """

    def __init__(self, call: Call, image: Array) -> None:
        self.call, self.image = call, image.reshape(-1)
        self.found: list[float] = []

    def __call__(self) -> None:
        add(0.0, self.image)
        self.found.append(seconds(self.call))

    def seconds(self) -> list[float]:
        return self.found


def convolution_cases(threads: int, quick: bool) -> Iterator[Case]:
    few = slice(2) if quick else slice(None)
    yield from network_cases(threads, quick)
    for layer in winograd()[few]:
        yield from _case("convolution, chain, exact=False", layer, threads, is_exact=False)
    for layer in resnet50()[few]:
        yield from _case("convolution, arrays", layer, threads, is_blocked=False)
    forms = others()
    for layer in (forms[0], forms[-1]) if quick else forms:
        # Those that have no blocked images are on arrays.
        is_blocked = len(layer.size) == 2 and not layer.is_transposed
        yield from _case("other convolutions", layer, threads, is_blocked=is_blocked)


def network_cases(threads: int, quick: bool) -> Iterator[Case]:
    few = slice(2) if quick else slice(None)
    for layer in resnet50()[few]:
        yield from _case("convolution, chain", layer, threads)
    for layer in separable()[few]:
        yield from _case("depthwise and 1x1, chain", layer, threads)


def _case(
    benchmark: str, layer: Layer, threads: int, *, is_blocked: bool = True, is_exact: bool = True
) -> Iterator[Case]:
    operands = operands_of(layer)
    template = convolution_3d if len(layer.extents) == 3 else convolution
    make = partial(template, *shape_of(layer), **options_of(layer, is_blocked, is_exact))
    made = built(f"{benchmark} {layer}", partial(ours, make, layer, operands, is_blocked))
    if made is None:
        return
    error = operands.checked(made.result(), _BOUND if is_exact else _BOUND_REASSOCIATED)
    print(f"  {benchmark} {layer}: wrong by {error:.1e} at most", flush=True)
    find = in_a_chain if is_blocked else on_arrays
    yield Case(
        benchmark, str(layer), Fresh(made.call, made.image) if is_blocked else made.call,
        find(layer, operands, threads), operations=layer.operations, compiled_ms=compiled_ms(make),
    )  # fmt: skip


def untuned_cases(threads: int, quick: bool) -> Iterator[Case]:
    for layer in resnet50()[slice(2) if quick else slice(None)]:
        case = built(f"untuned {layer}", partial(_untuned, layer))
        if case is not None:
            yield case


def _untuned(layer: Layer) -> Case:
    """The fastest of the random plans are found by a few calls, and then measured in pairs."""
    machine, operands = tc.machine(), operands_of(layer)
    images, *extents, channels, features = shape_of(layer)
    problem = problem_of(
        images, tuple(extents), channels, features,
        scale=False, total=None, result=None,
        **options_of(layer, is_blocked=True, is_exact=True),
    )  # fmt: skip

    def by(plan: Any) -> Call:
        made = ours(lambda: build(problem, plan, machine), layer, operands)
        operands.checked(made.result(), _BOUND)
        return made.call

    fastest: list[tuple[float, str, Call]] = []
    for plan in sample(candidates, problem, machine, _PLANS):
        call = by(plan)
        found = min(seconds(call) for _ in range(5)), str(plan), call
        fastest = sorted([*fastest, found], key=lambda found: found[0])[:_FASTEST]
    peers = {plan: call for _, plan, call in fastest}
    return Case("untuned", str(layer), by(None), peers, operations=layer.operations)


def built(case: str, build: Callable[[], Made]) -> Made | None:
    try:
        return build()
    except _NOT_BUILT as error:
        print(f"  {case}: not built: {str(error).splitlines()[0]}", flush=True)
        return None


def ours(
    make: Callable[[], Definition],
    layer: Layer,
    operands: Operands,
    is_blocked: bool = True,
    result: DType = f32,
) -> Ours:
    """A call on operands that lie as our kernel wants them, made once."""
    kernel = make()
    lie = in_blocks if is_blocked else _two_axes
    x = operands.x if is_blocked and is_first(layer) else lie(operands.x)
    residual = [lie(array) for array in operands.residual]
    arguments = x, kernel.pack(_two_axes(operands.weights)), operands.bias
    if is_blocked and residual:  # which dies there, in a network
        (y,) = residual
        call = partial(kernel, *arguments, y)
    else:
        y = np.empty(operands.expected.shape, result.numpy)
        y = tc.empty(_blocked_type(y)) if is_blocked else _two_axes(y)
        call = partial(kernel, *arguments, *residual, out=y)
    call()

    def made() -> Array:
        lies = y.unpack()[:, : layer.features] if is_blocked else y
        return np.asarray(lies).reshape(operands.expected.shape)

    return Ours(call, np.asarray(x), made)


def compiled_ms(make: Callable[[], Definition]) -> float:
    """Processor time, from the template to machine code, whatever is in the cache."""
    processor = host()
    start = time.process_time()
    for part in make().kernels:
        compile_kernel(lower(replace(part.ir, target=processor.target)), processor)
    return 1e3 * (time.process_time() - start)


def shape_of(layer: Layer) -> tuple[int, ...]:
    return 1, *_two(layer.extents, 1), layer.channels, layer.features


def options_of(layer: Layer, is_blocked: bool, is_exact: bool) -> dict[str, Any]:
    """The options of a template that differ from its defaults."""
    options: dict[str, Any] = {
        "size": _two(layer.size, 1), "stride": layer.stride, "padding": _two(layer.padding, 0),
        "dilation": layer.dilation, "groups": layer.groups, "order": "NCHW", "filters": "OIHW",
        "packed": True, "bias": True, "residual": layer.residual, "activation": relu, "dtype": f32,
    }  # fmt: skip
    if is_blocked:
        options |= {"residual": False, "in_place": layer.residual}
        options |= {"results": "NCHWc"} if is_first(layer) else {"order": "NCHWc"}
    if layer.is_transposed:
        options |= {"filters": "IOHW", "transposed": True}
    if not is_exact:
        options["exact"] = False
    return options


def is_first(layer: Layer) -> bool:
    """Whether a layer is the first of its network: its channels don't fill a block, and are read unblocked."""
    return layer.channels < tc.machine().lanes


def _two(numbers: tuple[int, ...], first: int) -> tuple[int, ...]:
    return (first, *numbers) if len(numbers) == 1 else numbers


def _two_axes(array: Array) -> Array:
    """The array with a second spatial axis of one row, if it has one axis."""
    return array[:, :, None] if array.ndim == 3 else array


def in_blocks(array: Array) -> Any:
    """Zeros fill the last block of channels."""
    described = _blocked_type(array)
    rest = [(0, full - own) for full, own in zip(described.shape, array.shape, strict=True)]
    return tc.pack(np.pad(array, rest), described)


def _blocked_type(array: Array) -> tc.TensorType:
    from taskc.kernels.convolution import blocked

    return blocked(*array.shape, from_numpy(array.dtype))
