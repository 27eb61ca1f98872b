"""A product with quantized weights as a problem: c[m, n] = epilogue(a[m, k] @ w[k, n]), where

    w[q, j] = (b[q, j] - zeros[q // group, j]) * scales[q // group, j]

Weights b of few bits have a scale, and perhaps a zero point, for each `group` of neighbours along k: W4A16, as it is
called where b has 4 bits and a 16.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import taskc as tc
from taskc import CompileError, DType, TensorType, f16, f32, i32
from taskc.dataclass import dataclass
from taskc.kernels.epilogue import Epilogue
from taskc.kernels.signatures import (
    Decorator,
    Extent,
    Function,
    Made,
    Value,
    Values,
    require_numbers,
)

Activation = Callable[[Any], Any]

MOST_BITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """dtype, right, result  the types of a, b and c; sums are f32
    scales   the type of scales
    zeros    zero points are an operand, of b's type; else `zero` is that of all weights
    """

    m: Extent
    n: int
    k: int
    dtype: DType
    right: DType
    result: DType
    group: int
    scales: DType = f32
    zeros: bool = False
    zero: int = 0
    bias: bool = False
    residual: bool = False
    activation: Activation | None = None

    def __post_init__(self) -> None:
        right = self.right
        if right.bits > MOST_BITS or right.kind == "bool":
            raise CompileError(
                f"quantized weights have {MOST_BITS} bits at most, and {right} has more"
            )
        if self.group < 1:
            raise CompileError(f"a group has 1 weight at least, not {self.group}")
        if right.is_float and (self.zeros or self.zero):
            raise CompileError(f"weights of {right} have no zero points, but a zero")
        if not right.minimum <= self.zero <= right.maximum:
            raise CompileError(
                f"{self.zero} is no zero point of {right}",
                hint=f"{right} goes from {right.minimum} to {right.maximum}",
            )

    @property
    def groups(self) -> int:
        return ceil(self.k / self.group)

    @property
    def of_sums(self) -> Epilogue:
        return Epilogue(
            bias=self.bias, scale=False, residual=self.residual, activation=self.activation,
            total=f32, made=self.result[self.m, self.n], features=self.n,
        )  # fmt: skip

    @property
    def weight(self) -> Function:
        """weight(b, scales, zeros, place, at): what b has at `place`, of the group and column `at`, as an f32."""

        @tc.function
        def moved(value: Value, zeros: Values, at: Values) -> Any:
            return value.to(i32) - (zeros[0][at].to(i32) if self.zeros else self.zero)

        @tc.function
        def number(value: Value, zeros: Values, at: Values) -> Any:
            return (value if self.right.is_float else moved(value, zeros, at)).to(f32)

        return tc.function(
            lambda b, scales, zeros, place, at: number(b[place], zeros, at) * scales[at].to(f32)
        )

    def kernel(
        self, workers: int, blocks: Function, packed: TensorType | None = None
    ) -> tc.KernelDefinition:
        """blocks(a, b, scales, zeros, further, c) as a kernel, with the parameters that the problem has."""
        packs = {"b": (self.k, self.n)} if packed else None
        return self._defined(tc.kernel(workers=workers, packs=packs), blocks, packed)

    def program(self, steps: Function) -> tc.ProgramDefinition:
        """steps(a, b, scales, zeros, further, c) as a program, with the same parameters."""
        return self._defined(tc.program, steps)

    @property
    def types(self) -> tuple[TensorType, TensorType, TensorType, tuple[TensorType, ...]]:
        """Of a, b, scales and, if there are such, zero points."""
        zeros = (self.right[self.groups, self.n],) if self.zeros else ()
        right, scales = self.right[self.k, self.n], self.scales[self.groups, self.n]
        return self.dtype[self.m, self.k], right, scales, zeros

    def _defined(
        self, decorate: Decorator[Made], run: Function, packed: TensorType | None = None
    ) -> Made:
        left, right, scale, zero = self.types
        right, made = packed or right, self.of_sums.made
        offset, _, residue = self.of_sums.operands

        @decorate
        def quantized_matmul(
            a: tc.typed[left],
            b: tc.typed[right],
            scales: tc.typed[scale],
            zeros: tc.typed[zero],
            offsets: tc.typed[offset],
            residual: tc.typed[residue],
            c: tc.out[made],
        ) -> None:
            run(a, b, scales, zeros, (*offsets, *residual), c)

        return quantized_matmul


def problem_of(*, dtype: DType, result: DType | None, **options: Any) -> Problem:
    """Check and complete the options of a call: c has a's type by default."""
    require_numbers("quantized_matmul", **{name: options[name] for name in ("n", "k", "group")})
    result = result or (dtype if dtype.bits >= f16.bits else f32)
    return Problem(dtype=dtype, result=result, **options)
