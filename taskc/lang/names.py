"""The names that the language adds to Python: what a user imports, and a kernel mentions.

An intrinsic is only a name here; what it means is in `taskc.lang.builtins`.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar

import numpy as np

from taskc.ir import arithmetic
from taskc.ir.operations import OFFERED
from taskc.ir.types import DType, TensorType, f64, i64
from taskc.lang.sizes import Size

INTRINSICS: dict[str, Intrinsic] = {}


class Intrinsic:
    """A function of the language. With `on_numbers` it also works in plain Python, on numbers."""

    __slots__ = ("__name__", "on_numbers")

    def __init__(self, name: str, on_numbers: Callable[..., Any] | None = None) -> None:
        self.__name__ = name
        self.on_numbers = on_numbers
        INTRINSICS[name] = self

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if self.on_numbers is None:
            raise TypeError(f"tc.{self.__name__} is a part of the language: use it in a kernel")
        return self.on_numbers(*args, **keywords)

    def __repr__(self) -> str:
        return f"tc.{self.__name__}"


@dataclass(frozen=True, slots=True)
class ParameterType:
    """`tc.out[f32[m, n]]`"""

    role: str
    type: TensorType

    def laid(self, layout: Any) -> ParameterType:
        return ParameterType(self.role, self.type.laid(layout))

    def reshape(self, *shape: Any) -> ParameterType:
        return ParameterType(self.role, self.type.reshape(*shape))


@dataclass(frozen=True, slots=True)
class Role:
    """`tc.out` and `tc.inout`: what a kernel does with a parameter."""

    name: str

    __iter__: ClassVar[None] = None  # as for element types: no sequence without an end

    def __getitem__(self, type: object) -> ParameterType:
        if isinstance(type, DType):
            raise TypeError(f"tc.{self.name} needs a tensor type, such as {type}[16]; got {type}")
        if not isinstance(type, TensorType):
            raise TypeError(f"tc.{self.name} needs a tensor type, such as f32[16]; got {type!r}")
        return ParameterType(self.name, type)

    def __repr__(self) -> str:
        return f"tc.{self.name}"


out = Role("out")
inout = Role("inout")
inf = math.inf


def _cdiv(a: Any, b: int) -> Any:
    return (a + (b - 1)) // b if isinstance(a, Size) else -(-a // b)


def _truncdiv(a: int, b: int) -> Any:
    return abs(a) // abs(b) * _sign(a) * _sign(b)


def _fmod(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a - b * _truncdiv(a, b)
    return float(arithmetic.binary("fmod", np.float64(a), np.float64(b), f64))


def _sign(x: Any) -> Any:
    return x if x != x or x == 0 else 1 if x > 0 else -1


def _fma(a: float, b: float, c: float) -> float:
    return float(arithmetic.fma(np.float64(a), np.float64(b), np.float64(c), f64))


def _elementwise(name: str) -> Intrinsic:
    def on_number(x: float) -> float:
        result = arithmetic.unary(name, np.float64(x), f64)
        return bool(result) if name == "isnan" else float(result)

    UNARY_FUNCTIONS.append(name)
    return Intrinsic(name, on_number)


def _of_bits(name: str) -> Intrinsic:
    def on_integer(x: int) -> int:
        if not i64.minimum <= index(x) <= i64.maximum:
            raise ValueError(f"{x} has no type, and is out of range for i64: say it, u64({x})")
        return int(arithmetic.unary(name, np.int64(x), i64))

    UNARY_FUNCTIONS.append(name)
    return Intrinsic(name, on_integer)


# Functions that are one unary operator of the IR, by its name.
UNARY_FUNCTIONS: list[str] = []
exp = _elementwise("exp")
exp2 = _elementwise("exp2")
fast_exp2 = _elementwise("fast_exp2")
expm1 = _elementwise("expm1")
log = _elementwise("log")
log2 = _elementwise("log2")
log1p = _elementwise("log1p")
sin = _elementwise("sin")
cos = _elementwise("cos")
tan = _elementwise("tan")
asin = _elementwise("asin")
acos = _elementwise("acos")
atan = _elementwise("atan")
sinh = _elementwise("sinh")
cosh = _elementwise("cosh")
tanh = _elementwise("tanh")
asinh = _elementwise("asinh")
acosh = _elementwise("acosh")
atanh = _elementwise("atanh")
sqrt = _elementwise("sqrt")
rsqrt = _elementwise("rsqrt")
sigmoid = _elementwise("sigmoid")
erf = _elementwise("erf")
gelu = _elementwise("gelu")
floor = _elementwise("floor")
ceil = _elementwise("ceil")
trunc = _elementwise("trunc")
isnan = _elementwise("isnan")
popcount = _of_bits("popcount")
leading_zeros = _of_bits("leading_zeros")
trailing_zeros = _of_bits("trailing_zeros")
reverse_bits = _of_bits("reverse_bits")

cdiv = Intrinsic("cdiv", _cdiv)
truncdiv = Intrinsic("truncdiv", _truncdiv)
fmod = Intrinsic("fmod", _fmod)
sign = Intrinsic("sign", _sign)
isinf = Intrinsic("isinf", math.isinf)
fma = Intrinsic("fma", _fma)
where = Intrinsic("where", lambda condition, then, otherwise: then if condition else otherwise)
static = Intrinsic("static", lambda value: value)

tiles = Intrinsic("tiles")
range = Intrinsic("range", lambda *ends, unroll=None: builtins.range(*ends))
pipeline = Intrinsic("pipeline")
load = Intrinsic("load")
store = Intrinsic("store")
copy = Intrinsic("copy")
tile = Intrinsic("tile")
shared = Intrinsic("shared")
local = Intrinsic("local")
mma = Intrinsic("mma")
reduce = Intrinsic("reduce")
scan = Intrinsic("scan")
atomic_add = Intrinsic("atomic_add")
atomic_min = Intrinsic("atomic_min")
atomic_max = Intrinsic("atomic_max")
atomic_and = Intrinsic("atomic_and")
atomic_or = Intrinsic("atomic_or")
atomic_xor = Intrinsic("atomic_xor")
atomic_exchange = Intrinsic("atomic_exchange")
sync = Intrinsic("sync")
worker = Intrinsic("worker")
print = Intrinsic("print")

CUDA_NAMES = (
    *(
        "barriers",
        "cluster_rank",
        "cluster_sync",
        "grid_sync",
        "load_acquire",
        "peer",
        "ptx",
        "role",
        "roles",
        "store_release",
        "syncrole",
        "syncwarp",
        "wgmma",
    ),
    *(operation.name.replace(".", "_") for operation in OFFERED),
)
for _name in CUDA_NAMES:
    Intrinsic(f"cuda.{_name}")
