"""The names that the language adds to Python: what a user imports, and a kernel mentions.

A function is only declared here, for people and editors; its meaning is its handler (calls.py). The end of the file
has the names that people know from Triton, CUDA, TileLang or NumPy, and what to write here.

An intrinsic is declared as a function of Python, whose parameters are those that its handler takes. It has a signature
and a docstring, for people and editors.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Iterator
from operator import index
from typing import Any, ClassVar, TypeVar, cast, overload

import numpy as np

from taskc.dataclass import dataclass
from taskc.ir import arithmetic
from taskc.ir.mapping import Mapping
from taskc.ir.reentry import cached_property
from taskc.ir.types import DType, TensorType, f64, i64

INTRINSICS: dict[str, Intrinsic] = {}

# Functions that are one unary operator of the IR, by its name.
UNARY_FUNCTIONS: list[str] = []

Declared = TypeVar("Declared", bound=Callable[..., Any])


class Intrinsic:
    """A function of the language. With `on_numbers` it also works in plain Python, on numbers.

    name      without the `tc.`; of `tc.cuda` it begins with `cuda.`
    declared  its signature
    """

    def __init__(
        self,
        name: str,
        declared: inspect.Signature,
        text: str | None,
        on_numbers: Callable[..., Any] | None = None,
    ) -> None:
        self.__name__ = name
        self.__module__ = "taskc.lang.names"  # databases of tuned plans know functions by this
        self.__doc__ = text
        self.__signature__ = declared
        self.on_numbers = on_numbers
        INTRINSICS[name] = self

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if self.on_numbers is None:
            raise TypeError(f"tc.{self.__name__} is a part of the language: use it in a kernel")
        return self.on_numbers(*args, **keywords)

    def __repr__(self) -> str:
        return f"tc.{self.__name__}"

    @cached_property
    def parameters(self) -> str:
        """The parameters as `bind` takes them: "dtype mapping fill?", with keyword-only ones after `*`."""
        words: list[str] = []
        for parameter in self.__signature__.parameters.values():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in words:
                words.append("*")
            words.append(parameter.name + "?" * (parameter.default is not parameter.empty))
        return " ".join(words)


def in_kernels(function: Declared) -> Declared:
    """Declare a function that only kernels may use; for type checkers it stays a function."""
    return _declare(function, None)


def on_numbers(function: Declared) -> Declared:
    """Declare a function that plain Python may also call on numbers, where its body is what runs."""
    return _declare(function, function)


def elementwise(function: Declared) -> Declared:
    """Declare a unary operator of the IR that has the function's name."""
    name = function.__name__

    def on_number(x: float) -> float:
        result = arithmetic.unary(name, np.float64(x), f64)
        return bool(result) if name == "isnan" else float(result)

    UNARY_FUNCTIONS.append(name)
    return _declare(function, on_number)


def of_bits(function: Declared) -> Declared:
    """Declare a unary operator of the IR on integers; a Python number is taken as an i64."""
    name = function.__name__

    def on_integer(x: int) -> int:
        if not i64.minimum <= index(x) <= i64.maximum:
            raise ValueError(f"{x} has no type, and is out of range for i64: say it, u64({x})")
        return int(arithmetic.unary(name, np.int64(x), i64))

    UNARY_FUNCTIONS.append(name)
    return _declare(function, on_integer)


def _declare(function: Declared, meaning: Callable[..., Any] | None) -> Declared:
    package = "cuda." if function.__module__.endswith(".cuda") else ""
    declared = inspect.signature(function)
    intrinsic = Intrinsic(package + function.__name__, declared, inspect.getdoc(function), meaning)
    return cast(Declared, intrinsic)


V = TypeVar("V")


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


class Typed:
    """`tc.typed`: the expression in the brackets, which a type checker accepts."""

    __iter__: ClassVar[None] = None

    def __getitem__(self, type: object) -> object:
        return type

    def __repr__(self) -> str:
        return "tc.typed"


typed = Typed()
out = Role("out")
inout = Role("inout")


@on_numbers
def static(value: V) -> V:
    """A constant, which any Python may compute: `tc.static([2**i for i in range(4)])`. A loop over one is unrolled."""
    return value


@in_kernels
def tiles(
    shape: Any, *, by: Any, order: Any = None, persistent: bool = False, cluster: Any = None
) -> Iterator[Any]:
    """The blocks of the grid, one for each tile: `for row, col in tc.tiles((m, n), by=(32, 64)):`.

    by          the shape of a tile
    order       how blocks are numbered: the dimensions from slowest to fastest, ("grouped", 8) or ("backwards", 8)
    persistent  as many blocks as the machine has processors, each running over several tiles
    cluster     blocks that are scheduled together
    """


@on_numbers
def range(*ends: Any, unroll: bool | int | None = None) -> builtins.range:
    """Python's `range`, with control over unrolling: `for q in tc.range(n, unroll=4):`.

    unroll  how many turns stand one after another, or True for all of them; by default the compiler decides
    """
    return builtins.range(*ends)


@in_kernels
def pipeline(
    extent: Any,
    *,
    by: int = 1,
    stages: int = 1,
    transport: str | None = None,
    specialize: bool = False,
    turns: str | None = None,
) -> Iterator[Any]:
    """0, by, 2 * by, … below the extent, one after another; the loads of later steps overlap the work of this one.

    stages      how many steps are in flight, this one included
    transport   how block values travel: "registers", "cp.async", "tma"; by default the best that target and loads allow
    specialize  a warp of its own does the loads, in addition to the workers
    turns       with `specialize`, "tiles": two groups of `workers` take a block's tiles in turn, one multiplies while
                the other stores; "products": one warpgroup issues its matrix products while others work on results
    """


@overload
def load(what: V, *, fill: Any = 0) -> V: ...
@overload
def load(what: Any, value: Callable[..., V], *, fill: Any = 0) -> V: ...
@in_kernels
def load(what: Any, value: Any = None, *, fill: Any = 0) -> Any:
    """A block value, a constant copy in shared memory: of a slice, or of a shape with a function of the indices.

        part = tc.load(x[start : start + 32])
        part = tc.load(32, lambda i: 2 * x[99 - (start + i)], fill=0)

    fill  the value of elements outside the tensor, which aren't read
    """


@in_kernels
def store(target: Any, value: Any) -> None:
    """Stores a tile, shared memory or `lambda i, j: …` into a slice; what lies outside the tensor is dropped."""


@in_kernels
def copy(target: Any, source: Any, *, by: Mapping | None = None) -> None:
    """Moves one slice to another, between global, shared memory and tiles; `by` says which worker moves what."""


@overload
def tile(dtype: type[V], mapping: Mapping, fill: Any = None) -> V: ...
@overload
def tile(dtype: DType, mapping: Mapping, fill: Any = None) -> Any: ...
@in_kernels
def tile(dtype: Any, mapping: Mapping, fill: Any = None) -> Any:
    """Registers, laid out by a mapping: worker w has one for each of its tasks. `acc = tc.tile(f32, own, 0)`"""


@overload
def shared(type: type[V], *, swizzle: int | None = None) -> V: ...
@overload
def shared(type: TensorType, *, swizzle: int | None = None) -> Any: ...
@in_kernels
def shared(type: Any, *, swizzle: int | None = None) -> Any:
    """Memory of the block, uninitialized: `tc.shared(f32[32, 33])`.

    swizzle  16-byte units are XORed as TMA and wgmma do it, in lines of 32, 64 or 128 bytes
    """


@overload
def local(type: type[V], fill: Any = None) -> V: ...
@overload
def local(type: TensorType, fill: Any = None) -> Any: ...
@in_kernels
def local(type: Any, fill: Any = None) -> Any:
    """A private array of a worker, or in a mapping loop of a task, with run-time indices: `tc.local(f32[4], 0)`."""


@in_kernels
def mma(acc: Any, a: Any, b: Any, *, by: type[Any] | DType | None = None) -> None:
    """Adds the matrix product of a and b to the tile acc, by a matrix instruction where the target has one that fits.

    by  the type that the operands are rounded to first
    """


@in_kernels
def reduce(tile: V, axis: int, op: str | Callable[..., Any]) -> V:
    """The tile without the axis, folded over it in an order that the mapping alone decides; of several tiles, as many.

    op  "+", "*", "min", "max", "&", "|" or "^"; or a `@tc.function` of two elements, of each tile one, in any order
    """


@in_kernels
def scan(tile: V, axis: int, op: str | Callable[..., Any], *, exclusive: bool = False) -> V:
    """The prefixes of the tile along the axis, in an order that the mapping alone decides; of several tiles, as many.

    op         "+", "*", "min", "max", "&", "|" or "^"; or a `@tc.function`, as of `tc.reduce`, that is associative
    exclusive  a prefix ends before its own element
    """


@in_kernels
def atomic_add(element: V, value: Any) -> V:
    """Adds to an element; returns the old value."""


@in_kernels
def atomic_min(element: V, value: Any) -> V:
    """Makes an element the smaller of itself and the value; returns the old value."""


@in_kernels
def atomic_max(element: V, value: Any) -> V:
    """Makes an element the larger of itself and the value; returns the old value."""


@in_kernels
def atomic_and(element: V, value: Any) -> V:
    """Combines an element with the value by `&`; returns the old value."""


@in_kernels
def atomic_or(element: V, value: Any) -> V:
    """Combines an element with the value by `|`; returns the old value."""


@in_kernels
def atomic_xor(element: V, value: Any) -> V:
    """Combines an element with the value by `^`; returns the old value."""


@in_kernels
def atomic_exchange(element: V, value: Any) -> V:
    """Puts the value in an element's place; returns the old value."""


@in_kernels
def sync() -> None:
    """A barrier of the block, in a kernel of `tc.cuda`."""


@in_kernels
def worker() -> Any:
    """The worker's number in its block; in a kernel of phases only within `mapping.on(…)`."""


@in_kernels
def print(text: str, *values: Any) -> None:
    """Prints in the simulator, one `{}` for each value: `tc.print("x is {}", x)`."""


# Their names, and a hint.
_WORDS = """
program_id blockIdx block_idx grid | a block knows where its tile begins: for row, col in tc.tiles(shape, by=...): ...
num_programs gridDim grid_dim | the grid is what tc.tiles(shape, by=...) makes of a shape
Kernel | a kernel is @tc.kernel(workers=...), and its blocks are those of tc.tiles(shape, by=...)
threadIdx thread_idx thread_id lane_id get_thread_binding | a worker's tasks are those of for i in mapping: ...
blockDim block_dim num_threads num_warps | how many workers a block has says @tc.kernel(workers=...)
Parallel thread_binding prange ndrange vectorize vectorized | each worker does its own tasks: for i, j in mapping: ...
serial grange | use range(...)
static_range unroll Unroll Unrolled | for x in tc.static(range(n)) is unrolled
Pipelined num_stages | for k in tc.pipeline(n, by=..., stages=3)
Persistent | tc.tiles(shape, by=..., persistent=True)
use_swizzle swizzle2d | the order of blocks is an argument of tc.tiles: order=("grouped", 8)
syncthreads __syncthreads sync_threads debug_barrier | only a tc.cuda.kernel has barriers, tc.sync(); phases need none
__syncwarp sync_warp | use tc.cuda.syncwarp() in a tc.cuda.kernel
shfl_xor __shfl_xor_sync shfl_xor_sync | use tc.reduce, or tc.cuda.shuffle_xor(value, mask) in a tc.cuda.kernel
shfl_up __shfl_up_sync shfl_up_sync | use tc.scan, or tc.cuda.shuffle_up(value, distance) in a tc.cuda.kernel
shfl_down __shfl_down_sync shfl_down_sync | use tc.reduce, or tc.cuda.shuffle_down(value, distance) in a tc.cuda.kernel
shfl __shfl_sync shfl_sync | use tc.cuda.shuffle_index(value, lane) in a tc.cuda.kernel
__ballot_sync ballot_sync | use tc.cuda.vote_ballot(condition) in a tc.cuda.kernel
__shared__ alloc_shared shared_memory SharedMemory | use tc.shared(f32[32, 33])
alloc_fragment | use tc.tile(f32, mapping, 0), registers of a mapping's owners
alloc_local local_array alloc_var | use x = f32(0) for a scalar, tc.local(f32[4], 0) for an array of a worker's own
zeros zeros_like ones ones_like full full_like tile_zeros | use tc.tile(f32, mapping, 0); in a program, tc.compute
empty_like | use tc.tile(f32, mapping); in a program, tc.empty(f32[m, n])
language | all of it is in taskc: import taskc as tc
pi e tau | use math.pi and math.e, which are constant
nan | use float("nan"), which is constant
arange | an index is one number: for i in mapping: ...
load tile_load ldg __ldg | x[i] is an element, tc.load(x[row : row + 32, 0:k]) a block; what lies outside is filled
store tile_store stg | y[i] = value stores an element, tc.store(y[row : row + 32, 0:n], tile) a tile
make_block_ptr make_tensor_descriptor BlockSpec memcpy_async | tc.load(x[row : row + 32, 0:k]) takes a slice
boundary_check | edges are masked by tc.load and tc.store; elsewhere write if i < n
dot matmul gemm mma_sync wmma tile_matmul dot_scaled einsum inner | use tc.mma(acc, a, b)
max amax maximum fmax reduce_max tile_max | of two max(a, b); of a tile tc.reduce(tile, axis, "max")
min amin minimum fmin reduce_min tile_min | of two min(a, b); of a tile tc.reduce(tile, axis, "min")
sum reduce_sum add_reduce tile_sum | of a tile tc.reduce(tile, axis, "+"); of a tensor taskc.kernels.reductions
prod | of a tile tc.reduce(tile, axis, "*"); of a tensor taskc.kernels.reductions
mean average | of a tile tc.reduce(tile, axis, "+") / n; of a tensor taskc.kernels.reductions
softmax log_softmax logsumexp layer_norm rms_norm group_norm instance_norm | a template makes it: taskc.kernels.rows
cross_entropy mse_loss l1_loss smooth_l1_loss huber_loss kl_div nll_loss | a template makes it: taskc.kernels.losses
conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d | a template makes it: taskc.kernels.convolution
max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d | a template makes it: taskc.kernels.pooling
linear Linear | matmul(m, n, k, transpose_b=True, bias=True) of taskc.kernels.matmul makes it
leaky_relu | use x if x > 0 else 0.01 * x
elu | use x if x > 0 else tc.expm1(x)
relu6 | use min(max(x, 0), 6)
hardsigmoid | use min(max(x + 3, 0), 6) / 6
swish | use tc.silu(x)
cumsum associative_scan inclusive_scan | use tc.scan(tile, axis, "+")
exclusive_scan | use tc.scan(tile, axis, "+", exclusive=True)
cumprod | use tc.scan(tile, axis, "*")
abs fabs absolute | use Python's abs(x)
round rint nearbyint | use Python's round(x), ties to even
pow power | use x**n
cast astype convert_element_type static_cast | use x.to(f16), or f16(x)
select if_then_else if_else | use a if condition else b, or tc.where(condition, a, b)
logical_and logical_or logical_not | use and, or, not
clamp clip | use min(max(x, low), high)
rsqrtf __frsqrt_rn | use tc.rsqrt(x)
expf __expf | use tc.exp(x)
logf __logf | use tc.log(x)
fmaf __fmaf_rn | use tc.fma(a, b, c), or a * b + c, which is one
ceildiv ceil_div | use tc.cdiv(a, b)
next_power_of_2 | a template is Python: 1 << (n - 1).bit_length()
expand_dims broadcast broadcast_to unsqueeze | an operand without one of the axes is x[i]: for i, j in mapping: ...
trans permute swapaxes transpose | use x.T
reshape view flatten ravel | a parameter is seen in another shape where it is declared: f32[m, n].reshape(m * n)
stride strides | an element is x[i, j]; where it lies is declared, f32[m, n].laid(layout)
ndim numel size | use len(x.shape), and x.shape
atomicAdd | use tc.atomic_add(x[i], value)
atomicMin | use tc.atomic_min(x[i], value)
atomicMax | use tc.atomic_max(x[i], value)
atomicAnd | use tc.atomic_and(x[i], value)
atomicOr | use tc.atomic_or(x[i], value)
atomicXor | use tc.atomic_xor(x[i], value)
atomicExch atomic_xchg | use tc.atomic_exchange(x[i], value)
printf device_print static_print | use tc.print("x is {}", x)
device_assert static_assert | use assert condition, "text"
constexpr | what a kernel closes over is constant: make it an argument of a Python function that returns the kernel
jit prim_func stencil vectorize_jit guvectorize | a kernel is @tc.kernel(workers=...), and a helper @tc.function
autotune heuristics Config | use @tc.tune(bk=[8, 16]) on a template
inline_asm_elementwise asm call_extern | use tc.cuda.ptx(f32, text, x, meaning=...)
multiple_of max_contiguous assume | use tc.dim("n", multiple=16), or assert
Tensor Buffer ndarray array | a parameter's type is f32[m, n], tc.out[f32[m, n]] or tc.inout[f32[m, n]]
float64 double | use f64
float32 | use f32
float16 half | use f16
bfloat16 | use bf16
float8_e4m3 float8_e4m3fn float8e4nv | use tc.f8e4m3
float8_e5m2 float8e5 | use tc.f8e5m2
int8 int16 int32 int64 uint8 uint16 uint32 uint64 | the types are i8, i16, i32, i64, u8, u16, u32 and u64
bool_ int1 | use tc.boolean
"""

# The libraries whose functions have such names.
PEERS = {
    "cupy",
    "jax",
    "math",
    "numba",
    "numpy",
    "taichi",
    "tilelang",
    "torch",
    "triton",
    "tvm",
    "warp",
}

_HINTS = {
    name: hint.strip()
    for names, _, hint in (line.partition("|") for line in _WORDS.strip().splitlines())
    for name in names.split()
}


def word_for(name: str) -> str | None:
    """A hint with the word here for a name that other languages use."""
    return _HINTS.get(name) or (f"use tc.{name}" if name in INTRINSICS else None)
