"""The arguments of a run, and the extents, addresses and sizes derived from them.

The end of a run: results are stored to the arrays, and the findings become a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from taskc.arrays.packed import packed_argument
from taskc.backend.sim.expressions import scalar
from taskc.backend.sim.machine import Run
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.report import Report
from taskc.backend.sim.statistics import warn
from taskc.errors import CompileError
from taskc.ir import arithmetic, nodes as ir
from taskc.ir.extents import extent_value, size_in_bytes
from taskc.ir.target import TARGETS
from taskc.ir.types import TensorType


def bind_arguments(
    run: Run, arguments: Sequence[Any], dimensions: Mapping[ir.Variable, int]
) -> tuple[dict[ir.Variable, Any], list[tuple[Array, Memory]]]:
    """The values of scalars and dimensions, and the arrays that take results from memories.

    The parameters' memories and shapes go into `run`.
    """
    kernel = run.kernel
    numbers = {kernel.processors: TARGETS[kernel.target].processors, **dimensions}
    bound: dict[ir.Variable, Any] = {
        size: size.dtype.numpy.type(number) for size, number in numbers.items()
    }
    results: list[tuple[Array, Memory]] = []
    if len(arguments) != len(kernel.parameters):
        raise CompileError(
            f"{kernel.name} takes {len(kernel.parameters)} arguments, not {len(arguments)}",
            kernel.loc,
        )
    pairs = list(zip(kernel.parameters, arguments, strict=True))
    for parameter, value in pairs:
        if isinstance(parameter, ir.Variable):
            bound[parameter] = scalar(
                arithmetic.as_storage(
                    value.item() if isinstance(value, np.ndarray) else value, parameter.dtype
                )
            )
        else:
            _bind_dimensions(parameter, np.asarray(value), bound)
    for parameter, value in pairs:
        if isinstance(parameter, ir.Tensor):
            memory = _bind_tensor(run, parameter, value, bound)
            if parameter.role != "in":
                results.append((value, memory))
    return bound, results


def _bind_dimensions(tensor: ir.Tensor, array: Array, bound: dict[ir.Variable, Any]) -> None:
    dtype = tensor.argument.dtype
    if array.ndim != len(tensor.argument_shape) or array.dtype != dtype.numpy:
        raise CompileError(
            f"{tensor.name} is {dtype} of rank {len(tensor.argument_shape)};"
            f" the argument is {array.dtype} of shape {array.shape}",
            tensor.loc,
        )
    for extent, size in zip(tensor.argument_shape, array.shape, strict=True):
        if isinstance(extent, ir.Variable):
            known = bound.setdefault(extent, extent.dtype.numpy.type(size))
            if known != size:
                raise CompileError(
                    f"{extent.name} is {known} and {size} at once, in {tensor.name}", tensor.loc
                )


def _bind_tensor(
    run: Run, tensor: ir.Tensor, array: Array, bound: dict[ir.Variable, Any]
) -> Memory:
    expected_shape = known_shape(tensor, tensor.argument_shape, bound)
    if array.shape != expected_shape:
        raise CompileError(
            f"{tensor.name} has the shape {expected_shape}; the argument has {array.shape}",
            tensor.loc,
        )
    if tensor.held is not None:
        array = _as_bytes(array, tensor.held).view(tensor.dtype.numpy)
    shape = known_shape(tensor, tensor.shape, bound)
    run.shapes[tensor] = shape
    data = np.ascontiguousarray(array).reshape(-1)
    is_out = tensor.role == "out"
    written = np.full(data.size, 0 if is_out else 1, np.int8)
    memory = Memory(tensor, shape, data, written, complete=not is_out)
    if run.is_flat and tensor.layout is not None:
        memory.data = np.zeros(tensor.layout.slots, data.dtype)
        memory.data[addresses_of(tensor, shape)] = data
        memory.written = np.ones(tensor.layout.slots, np.int8)
        if is_out:
            memory.written[addresses_of(tensor, shape)] = 0
    run.globals[tensor] = memory
    return memory


def _as_bytes(array: Array, held: ir.Tensor) -> Array:
    """The elements in their layout, as a stream of bits."""
    return np.asarray(packed_argument(array, TensorType(held.dtype, array.shape, held.layout)))


def typed(numbers: Array, variable: ir.Variable) -> Array:
    return numbers.astype(variable.dtype.numpy)


def shared_end(tensor: ir.Tensor) -> int:
    return (tensor.offset or 0) + size_in_bytes(tensor)


def addresses_of(tensor: ir.Tensor, shape: tuple[int, ...]) -> Array:
    """The address of each element, in row-major order."""
    assert tensor.layout is not None
    tasks = np.indices(shape).reshape(len(shape), -1).T
    return tensor.layout.find(0, tasks)


def known_shape(
    tensor: ir.Tensor, shape: tuple[int | ir.Expression, ...], bound: dict[ir.Variable, Any]
) -> tuple[int, ...]:
    try:
        return tuple([extent_value(extent, bound) for extent in shape])
    except KeyError as error:
        raise CompileError(f"the dimension {error.args[0].name} is not known", tensor.loc) from None


def store_results(run: Run, results: list[tuple[Array, Memory]]) -> None:
    """Copy results from the memories to the arrays; report elements that were never stored."""
    for array, memory in results:
        tensor = memory.tensor
        addresses: Any = slice(None)
        if run.is_flat and tensor.layout is not None:
            addresses = addresses_of(tensor, memory.shape)
        missing = memory.written[addresses] == 0
        if missing.any() and not run.aborted:
            first = np.unravel_index(int(np.argmax(missing)), memory.shape)
            name = f"{tensor.name}[{', '.join(str(int(i)) for i in first)}]"
            run.findings.add(
                "not-written",
                f"{name} is never stored",
                tensor.loc,
                count=int(np.count_nonzero(missing)),
                details=(("element", name),),
                where=tensor,
            )
        data = memory.data[addresses].reshape(array.shape)
        if not np.shares_memory(data, array):
            array[...] = data


def report(run: Run, allocated: Iterable[ir.Tensor], shared_limit: int | None) -> Report:
    if run.statistics:
        warn(run, run.findings)
    shared = _shared_bytes(run, allocated)
    if shared_limit is not None and shared > shared_limit:
        run.findings.add(
            "shared-memory",
            f"a block takes {shared} bytes of shared memory; the limit is {shared_limit}",
            run.kernel.loc,
            where="budget",
        )
    return Report(
        run.findings.result(),
        tuple([replace(a, total=run.totals[site]) for site, a in run.accesses.items()]),
        shared,
        sum(run.private_bytes.values()),
    )


def _shared_bytes(run: Run, allocated: Iterable[ir.Tensor]) -> int:
    placed, free, mbarriers = 0, 0, 0
    for tensor in dict.fromkeys(allocated):
        if tensor.scope == ir.SHARED:
            end = shared_end(tensor)
            if tensor.offset is None:
                free += end
            else:
                placed = max(placed, end)
        elif tensor.scope == ir.BARRIER:
            mbarriers += tensor.dtype.nbytes * prod(run.shapes[tensor])
    used = placed + free
    return -(-used // 8) * 8 + mbarriers if mbarriers else used
