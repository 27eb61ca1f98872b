"""What a call has written, held to what should have come out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from taskc.arrays.packed import Packed
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.ir.signature import is_output
from taskc.ir.types import DType
from taskc.lang.definition import Definition
from taskc.tune.operands import Array, Operands

# How many of its last bits a value may be off by. What was rounded a few times is off by a few of them, a sum of k
# numbers by about the root of k; Winograd's sums of 4608 numbers were seen to be off by 540. One number that is missing
# in such a sum is a hundredth of it, so there is room to spare, but for narrow types.
_OF_ROUNDINGS = 16
_OF_SUMS, _OF_NARROW_SUMS = 1024, 256
_MOST = 0.9  # zeros are off by 1 or more


def worst_error(definition: Definition, operands: Operands, folder: Path) -> tuple[float, float]:
    """After a call: how far results are from what should come out, and how far they may be.

    Both are relative to the root mean square of what should come out; of several results, what is worst.
    """
    found = [
        (_error(result, np.load(folder / f"output_{number}.npy")), tolerance(definition, dtype))
        for number, (result, dtype) in enumerate(results_of(definition, operands))
    ]
    return max(found, key=lambda pair: pair[0] - pair[1])


def results_of(definition: Definition, operands: Operands) -> Iterator[tuple[Array, DType]]:
    """What a call has written, in the order of the parameters, elements in their usual order."""
    given, made = iter(operands.inputs), iter(operands.outputs)
    for parameter in definition.ir.parameters:
        value = next(made if is_output(parameter) else given)
        if isinstance(parameter, ir.Tensor) and parameter.role != "in":
            yield value.unpack() if isinstance(value, Packed) else value, parameter.dtype


def tolerance(definition: Definition, dtype: DType) -> float:
    """What a result of a type may be off by, and be right: by the types that the definition adds in."""
    if not dtype.is_float:
        return 0.0
    added, rounded = set[DType](), {dtype}
    for kernel in definition.kernels:
        for node in walk(kernel.ir.body):
            match node:
                case ir.Binary(operator="+" | "-") | ir.Fused():
                    added.add(node.dtype)
                case ir.Reduce(operator="+" | ir.Combine()) | ir.Scan(operator="+" | ir.Combine()):
                    added |= {tensor.dtype for tensor in node.targets}
                case ir.Atomic(operator="+", tensor=tensor):
                    added.add(tensor.dtype)
                case ir.Mma(accumulator=tensor, by=by):
                    added.add(tensor.dtype)
                    rounded |= {by} if by else set()
                case _:  # it adds nothing
                    pass
    narrow = {dtype for dtype in added if dtype.bits < 32}
    allowed = (
        _OF_ROUNDINGS * _last_bit(rounded),
        _OF_SUMS * _last_bit(added - narrow),
        _OF_NARROW_SUMS * _last_bit(narrow),
    )
    return min(_MOST, max(allowed))


def _last_bit(dtypes: set[DType]) -> float:
    """Of 1.0, in the narrowest of the floats among them."""
    return max([2.0**-dtype.mantissa_bits for dtype in dtypes if dtype.is_float], default=0.0)


def _error(result: Array, expected: Array) -> float:
    if result.shape != expected.shape:
        return float("inf")
    got, wanted = result.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(got[~finite], wanted[~finite], equal_nan=True):
        return float("inf")
    off = np.abs(got[finite] - wanted[finite])
    if off.size == 0:
        return 0.0
    scale = float(np.sqrt(np.mean(np.square(wanted[finite])))) or 1.0
    worst = float(np.max(off)) / scale
    return worst if worst == worst else float("inf")
