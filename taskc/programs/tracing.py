"""Tracing: a program's body runs once, with handles for tensors, and each call is recorded.

Handles have no values. Mistakes in a call are found at its line, in `taskc.programs.record_call`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast, overload

import numpy as np

from taskc.dataclass import dataclass
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import add, index, product
from taskc.ir.printer_expressions import extent_text
from taskc.ir.rewrite import walk
from taskc.ir.signature import Parameter, named_type, outputs_of
from taskc.ir.types import DType, TensorType
from taskc.lang.names import ParameterType
from taskc.lang.sizes import Dimension, Number, OfSizes, Size, is_size, tracing
from taskc.lang.source import assigned_names, call_site
from taskc.lang.values import SelfDescribed, counted, describe, is_number, layout_of, layout_problem
from taskc.programs.ir import Loop, Step, View
from taskc.programs.sizes import Sizes
from taskc.programs.written import Span, Written


def tensor_type(kind: object, site: Location) -> TensorType:
    """The argument of `tc.empty` if it is a tensor's type; raises an error if not."""
    if isinstance(kind, ParameterType):
        raise CompileError(
            f"what tc.empty makes is neither input nor output: tc.empty({kind.type})", site
        )
    if not isinstance(kind, TensorType):
        raise CompileError(
            f"tc.empty takes a tensor type, and this is {describe(kind)}",
            site,
            "for example tc.empty(f32[64, 64])",
        )
    return kind


class Handle(SelfDescribed):
    """The stand-in for a tensor or a scalar in a trace: it can be passed on, and anything else is an error."""

    __slots__ = ("described", "name", "trace")

    def __init__(self, name: str, described: str, trace: Trace) -> None:
        self.name = name
        self.described = described
        self.trace = trace

    def __repr__(self) -> str:
        return f"<'{self.name}' of program '{self.trace.name}'>"

    __hash__ = object.__hash__


def _needs_value(self: Handle, *rest: object) -> NoReturn:
    hint = "what a program does is decided while it is traced; a choice by data belongs in a kernel"
    if isinstance(self, (ScalarHandle, ComputedScalar)):
        hint = "for _ in tc.steps(count): runs as often as a scalar says, and with tc.branch(flag): chooses"
    raise CompileError(
        f"the value of '{self.name}' is known only when the program is called", call_site(), hint
    )


def _computes(self: Handle, *rest: object) -> NoReturn:
    raise CompileError(
        f"'{self.name}' can't be computed with: in a program only kernels compute",
        call_site(),
        "call a kernel that does it, or say what each element is: tc.compute(shape, lambda i: ...)",
    )


def _takes_part(self: Handle, *rest: object) -> NoReturn:
    raise CompileError(
        f"'{self.name}' is no memory to write to, and has no parts that can be asked for",
        call_site(),
        "a call writes: tc.compute(shape, lambda i: ..., out=x); x[t] and x[:, a:b] are parts of a tensor",
    )


_REFUSALS = {
    _needs_value: "bool int float complex index len iter array",
    _computes: (
        "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul"
        " rmatmul and rand or ror xor rxor lshift rlshift rshift rrshift neg pos abs invert round"
        " eq ne lt le gt ge array_ufunc array_function"
    ),
    _takes_part: "setitem contains",
}
for _refuse, _names in _REFUSALS.items():
    for _name in _names.split():
        setattr(Handle, f"__{_name}__", _refuse)


class TensorHandle(Handle):
    """A parameter or a temporary; `shape` has an int or a symbolic size for each dimension."""

    __slots__ = ("shape", "tensor")

    def __init__(self, tensor: ir.Tensor, trace: Trace, shape: tuple[Number, ...]) -> None:
        kind = named_type(tensor.dtype, tensor.shape)
        super().__init__(tensor.name, f"the tensor '{tensor.name}': {kind}", trace)
        self.tensor = tensor
        self.shape = shape

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    def reshape(self, *shape: Any) -> TensorHandle:
        """The same memory, row by row, with other extents: `x.reshape(m * n, k)`."""
        return self.trace.reshaped(self, shape)

    def __getitem__(self, key: Any) -> Part:
        """A part of the leading axes, without a copy: `x[t]`, `x[a:b]`, `x[t, a:b]`; or of any axes: `x[:, 1:-1]`."""
        part: Any = self.trace.sliced(self, key)
        return cast("Part", part)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"a tensor of a program has .shape, .dtype, .reshape and slices, and no .{name}"
        )


# The result of a lambda of tc.compute, or of a helper of kernels: a number, a truth or a tuple of these. It depends on
# element types, which are values, so that no annotation can say it.
Computed: TypeAlias = Any

if TYPE_CHECKING:
    from taskc.lang.element import Element as Element

    class Part(TensorHandle, Element):
        """`x[t]`: in a program a part of the tensor, and in a computation an element."""

else:
    Element = Any


@dataclass(frozen=True, slots=True)
class Axis:
    """`count` places of an axis from `start` on, `step` apart; a step of 0 is one place, and no axis of the part."""

    start: Number
    step: int
    count: Number = 1


class PartHandle(Handle):
    """A part of a tensor along any axes, which is no memory of its own (taskc/programs/record_call.py)."""

    __slots__ = ("axes", "whole")

    def __init__(self, whole: TensorHandle, axes: tuple[Axis, ...]) -> None:
        self.whole = whole
        self.axes = axes
        extents = [whole.trace.extent(whole.trace.expression(n)) for n in self.shape]
        kind = named_type(whole.dtype, tuple(extents))
        super().__init__(whole.name, f"a part of '{whole.name}': {kind}", whole.trace)

    @property
    def shape(self) -> tuple[Number, ...]:
        return tuple([axis.count for axis in self.axes if axis.step])

    @property
    def dtype(self) -> DType:
        return self.whole.dtype

    def __getitem__(self, key: Any) -> NoReturn:
        raise CompileError(
            f"this is a part of '{self.name}' already, and has no parts",
            call_site(),
            f"take all at once: {self.name}[1:-1, ::2], say; elements are read in tc.compute",
        )


class ComputedScalar(Handle):
    """The result of operators on scalars of a program: a part of computations.

    kind  the operator's node in Python's syntax, or the type that it is converted to
    """

    __slots__ = ("kind", "sides", "site")

    def __init__(
        self, kind: type | DType, sides: tuple[Any, ...], trace: Trace, site: Location
    ) -> None:
        super().__init__("a computed scalar", "a number computed of scalars", trace)
        self.kind = kind
        self.sides = sides
        self.site = site


def _is_scalar(value: object) -> bool:
    return isinstance(value, (ScalarHandle, ComputedScalar, OfSizes)) or is_number(value)


def _converted(self: Handle, dtype: DType) -> ComputedScalar:
    return ComputedScalar(dtype, (self,), self.trace, call_site())


def _with_scalars(kind: type, turned: bool) -> Callable[..., Any]:
    def method(self: Handle, *others: object) -> ComputedScalar:
        if not all(map(_is_scalar, others)):
            _computes(self)
        sides = (self, *others)
        return ComputedScalar(kind, sides[::-1] if turned else sides, self.trace, call_site())

    return method


class ScalarHandle(Handle):
    """A scalar parameter, to be passed on."""

    __slots__ = ("variable",)

    def __init__(self, variable: ir.Variable, trace: Trace) -> None:
        described = f"the scalar '{variable.name}': {variable.dtype}"
        super().__init__(variable.name, described, trace)
        self.variable = variable

    @property
    def dtype(self) -> DType:
        return self.variable.dtype

    __getitem__ = _takes_part


_OPERATORS: dict[str, type] = {
    "add": ast.Add, "sub": ast.Sub, "mul": ast.Mult, "truediv": ast.Div, "floordiv": ast.FloorDiv,
    "mod": ast.Mod, "pow": ast.Pow,
}  # fmt: skip
_METHODS: dict[str, Callable[..., Any]] = {
    "to": _converted,
    "__neg__": _with_scalars(ast.USub, False),
}
for _name, _kind in _OPERATORS.items():
    _METHODS[f"__{_name}__"] = _with_scalars(_kind, False)
    _METHODS[f"__r{_name}__"] = _with_scalars(_kind, True)
for _class in (ScalarHandle, ComputedScalar):
    for _name, _method in _METHODS.items():
        setattr(_class, _name, _method)


class Trace(Sizes):
    """A program whose body is running: its calls so far, and the memory that they have written."""

    def __init__(
        self,
        name: str,
        parameters: Sequence[Parameter],
        dimensions: dict[Dimension, ir.Variable],
    ) -> None:
        super().__init__(name, dimensions)
        self.parameters = tuple(parameters)
        self.temporaries: list[ir.Tensor] = []
        self.views: dict[ir.Tensor, View] = {}
        self.constants: dict[ir.Tensor, np.ndarray[Any, Any]] = {}
        # Constants by the memory that was packed, and how; the memory is kept, so that it isn't another's later.
        self.packed: dict[object, tuple[object, Handle]] = {}
        self.calls: list[Step] = []  # of the innermost body
        self.apart = False  # its calls are
        self.opened: list[
            tuple[Step, list[Step]]
        ] = []  # whose bodies are around, and what is before
        self.awaited: list[Location] = []  # of branches and whiles whose bodies haven't begun
        self.branching: Any = None  # the branch that ended last, as long as tc.otherwise may come
        # Views that steps of an ended loop had, and its variable.
        self.ended: dict[ir.Tensor, ir.Variable] = {}
        self.kernels: dict[int, Any] = {}  # their definitions, by the identity of their IR
        self.written = Written(self)

    @overload
    def handle(self, named: ir.Tensor) -> TensorHandle: ...
    @overload
    def handle(self, named: Parameter) -> Handle: ...
    def handle(self, named: Parameter) -> Handle:
        if isinstance(named, ir.Variable):
            return ScalarHandle(named, self)
        shape = [n if isinstance(n, int) else self.number(n) for n in named.shape]
        return TensorHandle(named, self, tuple(shape))

    def empty(self, kind: object) -> TensorHandle:
        """`tc.empty(type)`"""
        site = call_site()
        kind = tensor_type(kind, site)
        shape = self.extents(kind.shape, site)
        if kind.dtype.is_sub_byte:
            raise CompileError(
                f"{kind.dtype} is a type of memory that is only read, and a temporary is written",
                site,
                f"say {kind.dtype.loaded}, or u8 for bytes that you put together",
            )
        if problem := layout_problem(replace(kind, shape=shape)):
            raise CompileError(problem, site)
        (name,) = assigned_names(site, ("temporary",))
        layout = layout_of(kind)
        return self.temporary(ir.Tensor(name, kind.dtype, shape, ir.GLOBAL, layout, loc=site))

    def reshaped(self, handle: TensorHandle, shape: Sequence[Any]) -> TensorHandle:
        """`x.reshape(m * n, k)`"""
        site, tensor = call_site(), handle.tensor
        view = replace(tensor, shape=self.extents(shape, site), role="in", loc=site)
        if not self.are_equal(product(view.shape), product(tensor.shape)):
            raise CompileError(
                f"{tensor.name}: {named_type(tensor.dtype, tensor.shape)} has not as many elements"
                f" as {named_type(tensor.dtype, view.shape)} for all sizes",
                view.loc,
            )
        return self.view(view, tensor, 0)

    def sliced(self, handle: TensorHandle, key: Any) -> Handle:
        """`x[t]`, `x[a:b]`: indices of the leading axes, and then perhaps a range, are memory; others are parts."""
        site, rank = call_site(), len(handle.shape)
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) > rank:
            axes = counted(rank, "dimension")
            raise CompileError(f"'{handle.name}' has {axes}, and {len(parts)} are given", site)
        count = next((n for n, part in enumerate(parts) if isinstance(part, slice)), len(parts))
        if count < len(parts) and not all(map(self._is_surely_on, handle.shape, parts[:count])):
            count = 0  # a computation asks when it runs
        first, rest = parts[:count], parts[count:]
        ends = [
            self._ends(handle, axis, part, site) if isinstance(part, slice) else (part, part)
            for axis, part in enumerate(rest, count)
        ]
        if not rest or (
            len(rest) == 1 and rest[0].step in (None, 1) and _surely(self, ends[0][1] - ends[0][0])
        ):
            return self._memory(handle, first, ends, site)
        whole = self._memory(handle, first, (), site) if first else handle
        assert isinstance(whole, TensorHandle)
        axes_of_part = [
            self._axis(whole, axis, part, start, stop, site)
            for axis, (part, (start, stop)) in enumerate(zip(rest, ends, strict=True))
        ]
        axes_of_part += [Axis(0, 1, extent) for extent in whole.shape[len(rest) :]]
        return PartHandle(whole, tuple(axes_of_part))

    def _memory(
        self,
        handle: TensorHandle,
        first: Sequence[object],
        ends: Sequence[tuple[Number, Number]],
        site: Location,
    ) -> Handle:
        """The part at indices of the leading axes, and then perhaps between two ends."""
        tensor, offset = handle.tensor, 0
        for axis, part in enumerate(first):
            at = self._within(handle, axis, part, site)
            offset = offset + at * self.number(product(tensor.shape[axis + 1 :]))
        shape = list(tensor.shape[len(first) :])
        for low, high in ends:
            shape[0] = self.extent(self.expression(high - low))
            offset = offset + low * self.number(product(tensor.shape[len(first) + 1 :]))
        self._check_bytes(tensor, len(first) + len(ends), site)
        (name,) = assigned_names(site, (tensor.name,))
        view = ir.Tensor(name, tensor.dtype, tuple(shape), ir.GLOBAL, tensor.layout, loc=site)
        return self.view(view, tensor, self.extent(self.expression(offset)))

    def _axis(
        self,
        handle: TensorHandle,
        axis: int,
        part: object,
        start: Number,
        stop: Number,
        site: Location,
    ) -> Axis:
        if not isinstance(part, slice):
            extent = handle.shape[axis]
            at = self._from_the_end(part, extent, site)
            if _surely(self, -1 - at) or _surely(self, at - extent):
                raise self._no_place(handle, axis, at, site)
            return Axis(at, 0)
        step = 1 if part.step is None else part.step
        if not isinstance(step, int) or step < 1:
            raise CompileError(
                f"a step is a constant of at least 1, and this is {describe(step)}",
                site,
                "read elements from the last one on in tc.compute: x[n - 1 - i]",
            )
        return Axis(start, step, (stop - start + (step - 1)) // step)

    def _ends(
        self, handle: TensorHandle, axis: int, part: slice, site: Location
    ) -> tuple[Number, Number]:
        """The start and stop of a range, on the axis for all sizes; the range may be empty, with stop before start."""
        extent = handle.shape[axis]
        ends = [
            default if end is None else self._from_the_end(end, extent, site)
            for end, default in ((part.start, 0), (part.stop, extent))
        ]
        start, stop = ends
        if _surely(self, start - stop - 1):
            raise CompileError(f"this part of '{handle.name}' ends before it begins", site)
        for at, is_there in ((start, _surely(self, start)), (stop, _surely(self, extent - stop))):
            if not is_there:
                raise self._no_place(handle, axis, at, site)
        return start, stop

    def _check_bytes(self, tensor: ir.Tensor, taken: int, site: Location) -> None:
        """A part along the leading axes begins with a byte, wherever it begins."""
        dtype = tensor.dtype
        whole = 8 // gcd(dtype.bits, 8)
        if not self.divides(whole, product(tensor.shape[taken:])):
            raise CompileError(
                f"a part of {named_type(dtype, tensor.shape)} need not begin with a byte",
                site,
                f"let each part have a multiple of {whole} elements",
            )

    def _is_surely_on(self, extent: Number, at: object) -> bool:
        if not is_size(at):
            return False
        at = self._from_the_end(at, extent, call_site())
        return _surely(self, at) and _surely(self, extent - at - 1)

    def _within(self, handle: TensorHandle, axis: int, at: object, site: Location) -> Number:
        """An index of an axis, for all sizes."""
        extent = handle.shape[axis]
        at = self._from_the_end(at, extent, site)
        if not (_surely(self, at) and _surely(self, extent - at - 1)):
            raise self._no_place(handle, axis, at, site)
        return at

    def _from_the_end(self, at: object, extent: Number, site: Location) -> Number:
        if not is_size(at):
            raise CompileError(
                f"a place in a tensor is an integer or a size, not {describe(at)}", site
            )
        return extent - -at if not isinstance(at, Size) and at < 0 else at

    def _no_place(
        self, handle: TensorHandle, axis: int, at: Number, site: Location
    ) -> CompileError:
        return CompileError(
            f"{at} isn't surely a place on axis {axis} of '{handle.name}', of {handle.shape[axis]}",
            site,
            "let the extent say that it is long enough: tc.dim(...) + 2, say",
        )

    def view(self, view: ir.Tensor, tensor: ir.Tensor, offset: int | ir.Expression) -> TensorHandle:
        """A tensor that is memory of another, from an element of it on."""
        if tensor.layout is not None or view.layout is not None:
            raise CompileError(
                f"'{tensor.name}' has a layout of its own, and no other shape and no parts",
                view.loc,
            )
        self.check_is_there(tensor, view.loc)
        under = self.views.get(tensor)
        if under is not None:
            tensor = under.of
            offset = self.extent(add(index(offset), index(under.offset)))
        self.views[view] = View(view, tensor, offset)
        return self.handle(view)

    def memory_of(self, tensor: ir.Tensor) -> ir.Tensor:
        """The parameter, constant or temporary that a tensor is or is a part of."""
        view = self.views.get(tensor)
        return tensor if view is None else view.of

    def span(self, tensor: ir.Tensor, site: Location) -> Span:
        """The span of a tensor in its memory."""
        view = self.views.get(tensor)
        low = self.form(0 if view is None else view.offset)
        return Span(low, low + self.form(product(tensor.shape)), site)

    def is_written(self, tensor: ir.Tensor, site: Location) -> bool:
        """Whether a tensor is surely initialized."""
        memory = self.memory_of(tensor)
        is_given = memory in self.parameters and memory.role != "out"
        return (
            memory in self.constants
            or is_given
            or self.written.has(memory, self.span(tensor, site))
        )

    def check_owner(self, handle: Handle, site: Location) -> None:
        if handle.trace is not self:
            raise CompileError(
                f"'{handle.name}' belongs to program '{handle.trace.name}', and this call is in"
                f" '{self.name}'",
                site,
                "pass it as a parameter",
            )

    def constant(
        self, array: np.ndarray[Any, Any], kind: TensorType, name: str, site: Location
    ) -> Handle:
        """Memory that holds an array, or packed an array's elements."""
        shape = tuple([int(extent) for extent in kind.shape])
        tensor = ir.Tensor(name, kind.dtype, shape, ir.GLOBAL, layout_of(kind), loc=site)
        self.constants[tensor] = array
        return self.handle(tensor)

    def extents(self, extents: Sequence[Any], site: Location) -> tuple[int | ir.Expression, ...]:
        for extent in extents:
            if not is_size(extent):
                raise CompileError(
                    "an extent is an integer, a tc.dim or computed from some, and this is"
                    f" {describe(extent)}",
                    site,
                )
        return tuple([self.extent(self.expression(extent)) for extent in extents])

    def temporary(self, tensor: ir.Tensor) -> TensorHandle:
        moving = [number for extent in tensor.shape for number in self._numbers_in(extent)]
        if moving:
            raise CompileError(
                f"the temporary '{tensor.name}' would have another size in each step of {moving[0]}",
                tensor.loc,
                "make one of the largest size before the loop, and take a part of it",
            )
        self.temporaries.append(tensor)
        return self.handle(tensor)

    def _numbers_in(self, size: int | ir.Expression) -> list[ir.Variable]:
        """The numbers of loops' steps that a size depends on."""
        numbers = [steps.variable for steps in self.loops]
        return [number for number in numbers if number in walk(index(size))]

    # --- bodies ---

    def open(self, step: Step) -> None:
        """Open a body of a step: the calls from here on are part of it."""
        self.opened.append((step, self.calls))
        self.calls = []
        self.written = Written(self, self.written, is_loop=isinstance(step, Loop))

    def close(self) -> tuple[Step, tuple[Step, ...], Written]:
        """Close the innermost body; returns the step that it belongs to, the body's steps, and their writes."""
        step, outer_calls = self.opened.pop()
        body, written = tuple(self.calls), self.written
        assert written.outer is not None
        self.calls, self.written = outer_calls, written.outer
        return step, body, written

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Forget all that was recorded within, if an error ends it."""
        kept: tuple[Any, ...] = (self.temporaries, self.calls, self.opened, self.awaited)
        lengths = [*map(len, kept)]
        named: tuple[dict[Any, Any], ...] = (
            *(self.views, self.constants, self.packed, self.ended),
            self.written.repeated,
        )
        counts = [*map(len, named)]
        loops, branching, written = len(self.loops), self.branching, self.written.copy()
        try:
            yield
        except BaseException:
            self.calls, self.branching = kept[1], branching
            # Caches that name what was written before find it no more, nor tensors that are gone.
            self.written = written
            for items, length in zip(kept, lengths, strict=True):
                del items[length:]
            for items, count in zip(named, counts, strict=True):
                for added in [*items][count:]:
                    del items[added]
            while len(self.loops) > loops:
                self.leave()
            raise

    # --- loops ---

    def begin_loop(self, variable: ir.Variable, count: int | ir.Expression, site: Location) -> Size:
        """Open the body of a loop; returns the number of its step."""
        if not self.is_natural(self.form(count)):
            raise CompileError(f"{extent_text(count)} steps aren't surely 0 or more", site)
        self.open(Loop(variable, count, (), loc=site))
        return self.enter(variable, count)

    def end_loop(self) -> None:
        loop, body, written = self.close()
        assert isinstance(loop, Loop)
        written.end(self.loops[-1])
        self.check_outputs()
        for tensor, view in self.views.items():
            if any(loop.variable in self._numbers_in(n) for n in (view.offset, *tensor.shape)):
                self.ended[tensor] = loop.variable
        self.leave()
        self.calls.append(replace(loop, body=body))

    def check_is_there(self, tensor: ir.Tensor, site: Location) -> None:
        """Raise an error for a part that depends on the step of a loop that is over."""
        if tensor in self.ended:
            raise CompileError(
                f"'{tensor.name}' is another part in each step of {self.ended[tensor]}, and that loop is over",
                site,
                notes=(("it is made here", tensor.loc),),
            )

    # --- outputs ---

    def check_outputs(self) -> None:
        """Raise an error for an output that more than one call may have written."""
        for output in outputs_of(self.parameters):
            if output in self.written.repeated:
                raise CompileError(
                    f"steps of a loop write the output '{output.name}' more than once",
                    self.written.repeated[output],
                    f"use a temporary, or declare '{output.name}' tc.inout",
                )

    def unended(self) -> CompileError:
        """The error for a loop that a break or a return leaves before its end."""
        return CompileError(
            "this loop isn't run to its end: a break or a return leaves it",
            self.opened[-1][0].loc,
            "what ends a loop is known while it is traced, or a flag: tc.steps_while(flag)",
        )

    def finish(self) -> None:
        if self.awaited:
            raise CompileError("this has no body", self.awaited[0], _BODIES)
        if self.opened:
            raise self.unended()
        for output in outputs_of(self.parameters):
            if self.written.has(output, self.span(output, output.loc)):
                continue
            if self.written.of(output):
                raise CompileError(
                    f"calls write parts of the output '{output.name}' of program '{self.name}', and surely"
                    " no more",
                    output.loc,
                )
            if self.written.perhaps_of(output):
                raise CompileError(
                    f"whether calls write the output '{output.name}' of program '{self.name}' depends on a"
                    " flag",
                    output.loc,
                    "where the flag doesn't hold, something else is the output: with tc.otherwise():",
                )
            raise CompileError(
                f"no call writes the output '{output.name}' of program '{self.name}'",
                output.loc,
                f"pass it as the output of a call: kernel(..., out={output.name})",
            )


_BODIES = "`with tc.branch(flag):` and `for _ in tc.steps_while(flag):` have one"


def _surely(trace: Sizes, size: Number) -> bool:
    """Whether a size is 0 or more, whatever the dimensions are."""
    return trace.is_natural(trace.form(size if isinstance(size, int) else trace.expression(size)))


def current_trace() -> Trace | None:
    """The program whose body is running, in this thread."""
    trace = tracing.get()
    return trace if isinstance(trace, Trace) else None


def has_handles(values: Iterable[object]) -> bool:
    """Whether values, or tuples or lists among them, hold a handle."""
    return any(
        has_handles(value)
        if isinstance(value, (tuple, list, type({}.values())))
        else isinstance(value, Handle)
        for value in values
    )


def refuse_handles(values: Iterable[object]) -> None:
    """Raise an error for a handle: outside of a trace there are only arrays."""
    for value in values:
        if isinstance(value, (tuple, list)):
            refuse_handles(value)
        elif isinstance(value, Handle):
            raise CompileError(
                f"'{value.name}' belongs to program '{value.trace.name}', and is used outside of it",
                call_site(),
                "a program's tensors have no values once it is traced; call it with arrays",
            )
