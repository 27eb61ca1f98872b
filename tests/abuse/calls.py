"""Random elementwise expressions over all types, called with every kind of array that a user may have.

What comes out is held to NumPy, element by element and type by type, and to the simulator, bit for bit. Outputs
lie between canaries.
"""

from __future__ import annotations

import linecache
import warnings
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from taskc import bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from taskc.backend import sim
from taskc.ir.types import DTYPES, DType, boolean

Array = np.ndarray[Any, Any]

# NumPy computes with these as the language does; narrow floats are held to the simulator alone.
PLAIN = (boolean, i8, i16, i32, i64, u8, u16, u32, u64, f32, f64)
NARROWEST = (f8e4m3, f8e5m2)  # memory has them, arithmetic hasn't
ALL = (*PLAIN, f16, bf16, *NARROWEST)
SIZES = (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 129)
LONG = (1023, 4097)
CALLS = 50  # of each kernel
CANARIES = 64

_HEADER = "import taskc as tc\nfrom taskc import *\n"
_TEMPLATE = """
@tc.kernel(workers={workers})
def kernel({parameters}, y: tc.out[{result}[n]]):
    for (at,) in tc.tiles(n, by={by}):
        for i in {mapping}:
            if at + i < n:
                y[at + i] = {expression}
"""


@dataclass(frozen=True)
class Written:
    """An expression of the language, and what NumPy has to make of the inputs."""

    text: str
    dtype: DType
    is_product: bool = False  # a sum would make one fused multiply-add of it


def said(dtype: DType) -> str:
    return "tc.boolean" if dtype is boolean else dtype.name


class Writer:
    """Writes an expression and its meaning side by side: `code` is run with NumPy on arrays of the same types."""

    def __init__(self, random: Random, inputs: dict[str, DType], types: tuple[DType, ...]) -> None:
        self.random = random
        self.types = types
        self.inputs = inputs
        self.code: list[str] = []

    def name(self, value: str) -> str:
        self.code.append(f"v{len(self.code)} = {value}")
        return f"v{len(self.code) - 1}"

    def leaf(self, dtype: DType) -> tuple[Written, str]:
        fitting = [name for name, other in self.inputs.items() if other is dtype]
        if fitting and self.random.random() < 0.8:
            name = self.random.choice(fitting)
            return Written(f"{name}[at + i]", dtype), name
        if self.random.random() < 0.6 and self.inputs:
            name, given = self.random.choice([*self.inputs.items()])
            return self.converted(Written(f"{name}[at + i]", given), name, dtype)
        return self.constant(dtype)

    def constant(self, dtype: DType) -> tuple[Written, str]:
        if dtype is boolean:
            value: Any = self.random.choice(("True", "False"))
        elif dtype.is_float:
            value = self.random.choice((0.0, -0.0, 1.0, 0.5, -2.0, 3.0, 96.0))
        else:
            low = -100 if dtype.is_signed else 0
            value = self.random.randint(low, 100)
        return Written(f"{said(dtype)}({value})", dtype), self.name(f"constant({value}, '{dtype}')")

    def converted(self, value: Written, code: str, dtype: DType) -> tuple[Written, str]:
        if value.dtype is dtype:
            return value, code
        made = self.name(f"convert({code}, '{value.dtype}', '{dtype}')")
        return Written(f"({value.text}).to({said(dtype)})", dtype), made

    def value(self, dtype: DType, depth: int) -> tuple[Written, str]:
        chance = self.random.random()
        if depth == 0 or chance < 0.1:
            return self.leaf(dtype)
        if chance < 0.25:
            return self.converted(*self.value(self.random.choice(self.types), depth - 1), dtype)
        if dtype is boolean:
            return self.condition(depth - 1)
        if dtype in NARROWEST:
            return self.converted(*self.value(f32, depth - 1), dtype)
        if chance < 0.4:
            test, code = self.condition(depth - 1)
            (a, first), (b, second) = (self.value(dtype, depth - 1) for _ in range(2))
            made = self.name(f"np.where({code}, {first}, {second})")
            return Written(f"tc.where({test.text}, {a.text}, {b.text})", dtype), made
        if chance < 0.5:
            operand, code = self.value(dtype, depth - 1)
            sign = self.random.choice(("-", "abs"))
            text = f"(-{operand.text})" if sign == "-" else f"abs({operand.text})"
            return Written(text, dtype), self.name(f"unary('{sign}', {code}, '{dtype}')")
        operators = ["+", "-", "*", "min", "max"]
        operators += ["/"] if dtype.is_float else ["&", "|", "^"]
        operator = self.random.choice(operators)
        (a, first), (b, second) = (self.value(dtype, depth - 1) for _ in range(2))
        if operator in "+-" and (a.is_product or b.is_product):
            operator = "min"
        made = self.name(f"binary('{operator}', {first}, {second}, '{dtype}')")
        called = f"{operator}({a.text}, {b.text})"
        text = called if operator in ("min", "max") else f"({a.text} {operator} {b.text})"
        return Written(text, dtype, operator == "*"), made

    def condition(self, depth: int) -> tuple[Written, str]:
        dtype = self.random.choice(
            [one for one in self.types if one is not boolean and one not in NARROWEST]
        )
        (a, first), (b, second) = (self.value(dtype, max(0, depth)) for _ in range(2))
        operator = self.random.choice(("<", "<=", ">", ">=", "==", "!="))
        code = self.name(f"compare('{operator}', {first}, {second})")
        return Written(f"({a.text} {operator} {b.text})", boolean), code


# --- what NumPy says ---------------------------------------------------------------------------


def constant(value: Any, dtype: str) -> Any:
    return np.asarray(value).astype(DTYPES[dtype].numpy)


def convert(x: Any, before: str, after: str) -> Any:
    source, target = DTYPES[before], DTYPES[after]
    if target is boolean:
        return np.asarray(x) != 0
    if not (source.is_float and target.is_integer):
        return np.asarray(x).astype(target.numpy)
    limits = np.iinfo(target.numpy)
    whole = np.trunc(np.asarray(x, np.float64))
    low, high = whole < float(limits.min), whole >= float(limits.max + 1)
    plain = np.where(low | high | np.isnan(whole), 0, whole).astype(target.numpy)
    edges = np.where(low, limits.min, np.where(high, limits.max, plain.astype(object)))
    return np.asarray(edges).astype(target.numpy)


def unary(operator: str, x: Any, dtype: str) -> Any:
    if not DTYPES[dtype].is_float:
        return (-x if operator == "-" else np.abs(x)).astype(DTYPES[dtype].numpy)
    size = DTYPES[dtype].nbytes
    bits = np.asarray(x).view(f"u{size}")
    sign = np.asarray(1 << (8 * size - 1), f"u{size}")
    flipped = bits ^ sign if operator == "-" else bits & ~sign
    return flipped.view(DTYPES[dtype].numpy)


def binary(operator: str, a: Any, b: Any, dtype: str) -> Any:
    a, b = np.broadcast_arrays(a, b)
    kind = DTYPES[dtype]
    if operator in ("min", "max") and kind.is_float:
        low = (a < b) | ((a == b) & np.signbit(a))
        chosen = np.where(low, a, b) if operator == "min" else np.where(low, b, a)
        return np.where(np.isnan(a), a, np.where(np.isnan(b), b, chosen)).astype(kind.numpy)
    apply = {
        "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "min": np.minimum,
        "max": np.maximum, "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor,
    }[operator]  # fmt: skip
    return apply(a, b).astype(kind.numpy)


def compare(operator: str, a: Any, b: Any) -> Any:
    return {
        "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
        "==": np.equal, "!=": np.not_equal,
    }[operator](a, b)  # fmt: skip


# --- arrays ------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def numbers(random: np.random.Generator, dtype: DType, size: int) -> Array:
    """Bits of all kinds: ordinary numbers, and those where arithmetic is strange."""
    if dtype is boolean:
        return random.integers(0, 2, size).astype(np.bool_)
    bits = random.integers(0, 256, (size, dtype.nbytes), np.uint8).view(dtype.numpy).reshape(size)
    if not dtype.is_float:
        limits = np.iinfo(dtype.numpy)
        strange = np.array([0, 1, limits.max, limits.min, limits.max - 1], dtype.numpy)
        plain = random.integers(0, 50, size).astype(dtype.numpy)
    else:
        values = (0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 2.0**-140, 1e-6, 65504.0, 3e38)
        strange = np.asarray(values).astype(dtype.numpy)
        plain = random.standard_normal(size).astype(dtype.numpy)
    kind = random.integers(0, 3, size)
    odd = strange[random.integers(0, len(strange), size)]
    return np.where(kind == 0, plain, np.where(kind == 1, bits, odd)).astype(dtype.numpy)


def placed(random: Random, array: Array) -> Array:
    """The same numbers somewhere else: strided, reversed, at any byte, read-only."""
    size, width = len(array), array.dtype.itemsize
    how = random.choice(("plain", "plain", "step", "reversed", "broadcast", "anywhere", "frozen"))
    if how == "step":
        room = np.zeros((size, random.randint(2, 5)), array.dtype)
        room[:, 1] = array
        return room[:, 1]
    if how == "reversed":
        return np.ascontiguousarray(array[::-1])[::-1]
    if how == "broadcast" and size:
        return np.broadcast_to(array[:1], (size,))
    if how == "anywhere":
        return between(array, random.randint(0, 2 * width))[0]
    if how == "frozen":
        array = array.copy()
        array.setflags(write=False)
    return array


def between(array: Array, first: int = 0) -> tuple[Array, Array]:
    """A copy that begins at any byte, and the bytes around it."""
    room = np.full(array.nbytes + 2 * CANARIES + first, 0xA5, np.uint8)
    place = room[CANARIES + first : CANARIES + first + array.nbytes]
    place[:] = np.ascontiguousarray(array).view(np.uint8)
    return place.view(array.dtype), room


# --- cases -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A kernel with its own source, and what NumPy has to run; None where only the simulator knows."""

    source: str
    kernel: Any
    inputs: dict[str, DType]
    result: DType
    code: str | None


@np.errstate(all="ignore")
def case(number: int) -> Case:
    random = Random(number)
    types = random.choice((PLAIN, PLAIN, ALL))
    given = [random.choice(types) for _ in range(random.randint(1, 3))]
    inputs = dict(zip("abc", given, strict=False))
    writer = Writer(random, inputs, types)
    result = random.choice(types)
    written, last = writer.value(result, random.randint(1, 4))
    lanes, repeats = random.choice((1, 4, 8, 16, 32)), random.choice((1, 2, 3, 4))
    order = f"repeat({repeats}) * spatial({lanes})"
    if random.random() < 0.3:
        order = f"spatial({lanes}) * repeat({repeats})"
    extent = random.choice(SIZES) if random.random() < 0.5 else 'tc.dim("n")'
    text = f"{_HEADER}n = {extent}\n" + _TEMPLATE.format(
        workers=lanes,
        parameters=", ".join(f"{name}: {said(dtype)}[n]" for name, dtype in inputs.items()),
        result=said(result),
        by=lanes * repeats,
        mapping=order,
        expression=written.text,
    )
    scope = run_source(text, f"<abuse {number}>")
    code = "\n".join([*writer.code, f"result = {last}"]) if types is PLAIN else None
    return Case(text, scope["kernel"], inputs, result, code)


def run_source(text: str, file: str) -> dict[str, Any]:
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"__name__": "abuse"}
    exec(compile(text, file, "exec"), scope)
    return scope


@np.errstate(all="ignore")
def same(found: Array, expected: Array) -> bool:
    """Equal bits, but for those of NaN."""
    if found.dtype.kind in "biu":
        return bool((found == expected).all())
    nan = found != found
    bits = f"u{found.dtype.itemsize}"
    equal = found.view(bits) == expected.view(bits)
    return bool(np.where(nan, expected != expected, equal).all())


def run_case(number: int) -> int:
    """Runs a kernel on CALLS sets of arrays, and returns their number; what is wrong is raised."""
    made = case(number)
    random, numbers_of = Random(number + 1), np.random.default_rng(number)
    sizes = made.kernel.ir.parameters[0].argument_shape
    for call in range(CALLS):
        size = sizes[0] if isinstance(sizes[0], int) else random.choice(SIZES + LONG[: call % 3])
        arrays = {
            name: placed(random, numbers(numbers_of, dtype, size))
            for name, dtype in made.inputs.items()
        }
        shared = [name for name, dtype in made.inputs.items() if dtype is made.inputs["a"]]
        if random.random() < 0.1:
            arrays |= dict.fromkeys(shared, arrays["a"])
        first = random.choice((0, made.result.nbytes))
        out, room = between(np.zeros(size, made.result.numpy), first)
        before = {name: array.copy() for name, array in arrays.items()}
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # arrays that don't lie well are copied, and that is said
            made.kernel(*arrays.values(), out=out)
        start = CANARIES + first
        around = np.concatenate([room[:start], room[start + out.nbytes :]])
        context = f"kernel {number}, call {call}, size {size}\n{made.source}"
        assert (around == 0xA5).all(), f"bytes around the output are written: {context}"
        for name, array in arrays.items():
            assert same(array, before[name]), f"input {name} has changed: {context}"
        if made.code is not None:
            scope = {**globals(), **before}
            with np.errstate(all="ignore"):
                exec(made.code, scope)
            expected = np.broadcast_to(scope["result"], (size,)).astype(made.result.numpy)
            assert same(out, expected), f"not NumPy's {expected}, but {out}: {context}"
        if call < 2 and size < 200:
            simulated = np.zeros(size, made.result.numpy)
            sim.run(made.kernel.ir, [*before.values(), simulated])
            assert same(out, simulated), f"not the simulator's {simulated}, but {out}: {context}"
    return CALLS
