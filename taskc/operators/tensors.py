"""The tensors of a trace, in the forms in which builders pass them, and the calls that make and convert them.

array      the model or shape arithmetic determines its elements
handle     its elements are known at run time
`Blocked`  images with blocked channels (NCHWc), the layout in which one convolution passes them to the next
`Counted`  its extent along an axis is known when the model runs
`Loose`    its rank is
`State`    a session keeps it from call to call, and appends to it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from functools import cache, cached_property
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np

import taskc as tc
from taskc import CompileError, DType, TensorType, i8, i16, i32, i64, u8, u16, u32, u64
from taskc.dataclass import dataclass
from taskc.ir.types import from_numpy
from taskc.kernels.images import blocked
from taskc.lang.sizes import Size
from taskc.operators.graph import Array
from taskc.programs.evaluate import evaluate
from taskc.programs.tracing import Computed, Element, TensorHandle

Extent: TypeAlias = "int | Size"
Shape: TypeAlias = "tuple[Extent, ...]"
Function: TypeAlias = (
    "Callable[..., Computed]"  # a lambda or a tc.function, of indices or of elements
)
Kernel: TypeAlias = "Callable[..., TensorHandle]"

_Result = TypeVar("_Result")

# The known elements of an array of objects are Python integers or sizes (`tc.dim`, and expressions of them). Only shape
# arithmetic makes such arrays. Their element type is i64, unless the NumPy type's metadata names another (`OBJECTS`).
Tensor: TypeAlias = "TensorHandle | Array"

OBJECTS = {
    it: np.dtype(object, metadata={"dtype": it}) for it in (i8, i16, i32, i64, u8, u16, u32, u64)
}


def computed(
    shape: Sequence[Extent], function: Function, name: str | None = None, out: Any = None
) -> TensorHandle:
    """`tc.compute` of one tensor."""
    handle: TensorHandle = tc.compute(tuple(shape), function, name=name, out=out)
    return handle


def memory(dtype: DType, shape: Shape) -> TensorHandle:
    """A temporary that calls write."""
    handle: TensorHandle = tc.empty(TensorType(dtype, shape))
    return handle


@dataclass(frozen=True)
class Blocked:
    """Images [n, channels, height, width] as NCHWc; the last block of channels is filled with zeros."""

    handle: TensorHandle
    channels: Extent

    @staticmethod
    def empty(shape: Sequence[Any], dtype: DType) -> Blocked:
        """Memory for images of this shape, whose extents but the first are numbers."""
        images, channels, height, width = shape
        kind = blocked(images, channels, height, width, dtype)
        return Blocked(tc.empty(kind), channels)

    @property
    def shape(self) -> Shape:
        images, _, *extents = self.handle.shape
        return images, self.channels, *extents

    @property
    def dtype(self) -> DType:
        return self.handle.dtype

    @cached_property
    def rows(self) -> TensorHandle:
        """The same images as NCHW, for operators that take no blocked ones."""
        x = self.handle
        return computed(self.shape, lambda *at: x[at], "rows")

    def computed(self, name: str, function: Function) -> Blocked:
        """These images, once a computation has written the function's value for each index."""
        channels, shape = self.channels, self.handle.shape

        @tc.function
        def filled(*at: Element) -> Computed:
            return function(*at) if at[1] < channels else 0

        computed(shape, function if shape[1] == channels else filled, name, self.handle)
        return self


Images: TypeAlias = "TensorHandle | Blocked"


def like(
    x: Images,
    dtype: DType,
    function: Function,
    name: str | None = None,
    shape: Sequence[Extent] | None = None,
) -> Images:
    """The function's value at each element of x, or of images of another shape; blocked if x is blocked."""
    shape = x.shape if shape is None else shape
    if isinstance(x, Blocked):
        return Blocked.empty(shape, dtype).computed(name or "elements", function)
    return computed(shape, function, name)


def elements_of(x: Images) -> TensorHandle:
    """The handle from which to read elements of x at the indices that `like` passes."""
    return x.handle if isinstance(x, Blocked) else x


def can_be_blocked(shape: Shape) -> bool:
    """Whether images of this shape can be blocked: all extents but the batch are numbers, on a CPU."""
    is_sized = len(shape) == 4 and all(isinstance(extent, int) for extent in shape[1:])
    return is_sized and tc.machine().is_processor


@dataclass(frozen=True, slots=True)
class Counted:
    """A tensor whose extent along an axis is known when the model runs; it has memory for the largest.

    count  one number
    """

    handle: TensorHandle
    count: TensorHandle
    axis: int

    @property
    def shape(self) -> Shape:
        return self.handle.shape


@dataclass(frozen=True, slots=True)
class Loose:
    """A tensor that may have more leading axes of one element each; whether it has them is known when the model runs.

    rank   with all of them
    error  raised by readers that tell the two apart
    """

    handle: TensorHandle
    rank: int
    error: CompileError

    @property
    def shape(self) -> Shape:
        return self.handle.shape

    def like(self, tensor: Tensor) -> Loose:
        """A tensor computed from this one element by element, with the same doubt about its rank."""
        return Loose(handle_of(tensor), self.rank, self.error)


@dataclass(frozen=True)
class State:
    """The first `length` places along an axis of memory that a session keeps from call to call.

    memory   an input that is written in place; it has room for more along the axis
    """

    memory: TensorHandle
    axis: int
    length: Extent

    @property
    def shape(self) -> Shape:
        shape = self.memory.shape
        return *shape[: self.axis], self.length, *shape[self.axis + 1 :]

    @property
    def dtype(self) -> DType:
        return self.memory.dtype

    @cached_property
    def rows(self) -> TensorHandle:
        """The same elements as a tensor without room, for operators that take no state."""
        memory, axis, room = self.memory, self.axis, self.memory.shape[self.axis]

        @tc.function
        def element(*at: Element) -> Computed:
            place = (*at[:axis], min(at[axis], room - 1), *at[axis + 1 :])
            return memory[place]

        return computed(self.shape, element, "rows")


# The value of a name in a graph. Operators that take no blocked images or states get rows. No operator gets a counted
# tensor, which ends a program, or a loose one.
Held: TypeAlias = "Tensor | Blocked | Counted | Loose | State"


@overload
def rows_of(held: Images | State) -> TensorHandle: ...
@overload
def rows_of(held: Held) -> Tensor: ...
def rows_of(held: Held) -> Tensor:
    """The tensor in row-major layout; an error where its extent or rank isn't known."""
    match held:
        case Blocked() | State():
            return held.rows
        case Counted():
            raise CompileError("how many elements it has is known only when the model runs")
        case Loose():
            raise held.error
    return held


def dtype_of(tensor: Held) -> DType:
    if isinstance(tensor, Counted | Loose):
        return tensor.handle.dtype
    if isinstance(tensor, TensorHandle | Blocked | State):
        return tensor.dtype
    if tensor.dtype == object:
        dtype: DType = (tensor.dtype.metadata or {}).get("dtype", i64)
        return dtype
    try:
        return from_numpy(tensor.dtype)
    except ValueError:  # a model's constant may be of any of ONNX's types
        raise CompileError(f"taskc doesn't compute with {tensor.dtype}") from None


def handle_of(tensor: Tensor) -> TensorHandle:
    """The tensor as the program reads it."""
    if isinstance(tensor, TensorHandle):
        return tensor
    if tensor.dtype == object:
        if not any(isinstance(element, Size) for element in tensor.flat):
            return handle_of(tensor.astype(np.int64))
        chosen, dtype = _chosen(tuple(tensor.flat), 0), dtype_of(tensor)
        elements = computed((tensor.size,), lambda at: chosen(at).to(dtype), "sizes")
        return elements.reshape(*tensor.shape)
    handle: TensorHandle = tc.constant(tensor)
    return handle


def _chosen(numbers: Shape, first: int) -> Function:
    """The function that returns one of some integers and sizes, by its index, counted from `first`."""
    if len(numbers) == 1:
        return tc.function(lambda at: numbers[0])
    bound = first + len(numbers) // 2
    before, behind = (
        _chosen(numbers[: bound - first], first),
        _chosen(numbers[bound - first :], bound),
    )
    return tc.function(lambda at: before(at) if at < bound else behind(at))


@overload
def reshaped(x: TensorHandle, *shape: Extent) -> TensorHandle: ...
@overload
def reshaped(x: Array, *shape: Extent) -> Array: ...
@overload
def reshaped(x: Tensor, *shape: Extent) -> Tensor: ...
def reshaped(x: Tensor, *shape: Extent) -> Tensor:
    """The same elements in another shape."""
    if isinstance(x, TensorHandle):
        return x.reshape(*shape)
    array: Array = x.reshape(shape)
    return array


def now(compute: Callable[[], _Result]) -> _Result:
    """Run kernels at once, outside of the trace: compiled for this processor, whatever the model's target."""
    return Context().run(compute)


def computed_once(body: Callable[[], TensorHandle]) -> Array:
    """The result of a program of its own, run now."""
    return results_now(now(lambda: tc.trace("once", {}, body)))[0]


def results_now(program: tc.ProgramDefinition) -> tuple[Array, ...]:
    """The results of a program without inputs: by NumPy, or compiled where NumPy can't compute them."""
    results = evaluate(program.ir, _math_now)
    if results is None:
        arrays = now(program)
        results = arrays if isinstance(arrays, tuple) else (arrays,)
    return results


def _math_now(name: str, operands: tuple[Array, ...]) -> Array:
    """A math function of arrays: compiled once for all shapes, since NumPy's may give other bits."""
    whole = np.broadcast_arrays(*operands)
    flat = [np.ascontiguousarray(x).reshape(-1) for x in whole]
    array: Array = now(lambda: _math(name, len(flat), from_numpy(flat[0].dtype))(*flat))
    return array.reshape(whole[0].shape)


@cache
def _math(name: str, count: int, dtype: DType) -> tc.ProgramDefinition:
    n = tc.dim("n")
    function = tc.function(lambda x, y: x**y) if name == "pow" else getattr(tc, name)

    def body(*operands: TensorHandle) -> TensorHandle:
        return computed((n,), lambda i: function(*[x[i] for x in operands]))

    return tc.trace(name, {f"x{place}": dtype[n] for place in range(count)}, body)
