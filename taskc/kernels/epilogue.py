"""The epilogue of all products, of matrices and of images: what is made of a sum before it is stored."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import DType, TensorType, f32
from taskc.dataclass import dataclass
from taskc.kernels.signatures import Extent, Function, Value, Values

Types = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """made = activation(sum * scales[feature] + offsets[feature] + residual), rounded once; `made` is a type.

    bias, scale, residual  whether there are such operands. The residual is of the result's type and shape
    total  the type of the sum, in which the rest is computed, too; of scaled integers that is f32
    """

    bias: bool
    scale: bool
    residual: bool
    activation: Function | None
    total: DType
    made: TensorType
    features: Extent

    @property
    def wide(self) -> DType:
        """The type that the epilogue computes in."""
        return f32 if self.scale and self.total.is_integer else self.total

    @property
    def operands(self) -> tuple[Types, Types, Types]:
        """The types of offsets, scales and residual, where there are such."""
        of_features = (self.wide[self.features],)
        return (
            of_features if self.bias else (),
            of_features if self.scale else (),
            (self.made,) if self.residual else (),
        )

    @property
    def function(self) -> Function:
        """An element of the result, from its sum, the operands that there are, its feature, and its indices."""

        @tc.function
        def scaled(value: Value, operands: Values, j: Value) -> Value:
            return value.to(self.wide) * operands[int(self.bias)][j] if self.scale else value

        @tc.function
        def moved(value: Value, operands: Values, j: Value) -> Any:
            return (
                scaled(value, operands, j) + operands[0][j]
                if self.bias
                else scaled(value, operands, j)
            )

        @tc.function
        def joined(value: Value, operands: Values, j: Value, at: Values) -> Any:
            return (
                moved(value, operands, j) + operands[-1][at].to(self.wide)
                if self.residual
                else moved(value, operands, j)
            )

        @tc.function
        def epilogue(value: Value, operands: Values, j: Value, at: Values) -> Any:
            if self.activation is None:
                return joined(value, operands, j, at).to(self.made.dtype)
            else:
                return self.activation(joined(value, operands, j, at)).to(self.made.dtype)

        return epilogue
