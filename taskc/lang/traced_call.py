"""One call in a program that is being traced: whether it fits, and what it becomes.

All that can be wrong with a call is found here, at its line: types, shapes, layouts, what has been
written and what has not. Shapes have to fit for all sizes: whether they do is decided on linear forms
of the program's dimensions, and what can't be decided is an error. Only that an extent isn't negative,
and that a size fits a scalar of fewer bits, is left to the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from taskc.arrays.host import host_array, is_array
from taskc.arrays.packed import Packed, pack
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import floor_divide, index, subtract
from taskc.ir.extents import one_unknown, untold
from taskc.ir.mapping import repeat
from taskc.ir.printer_expressions import extent_text
from taskc.ir.program import Call, Callee as Called, Computation, Program, Step
from taskc.ir.rewrite import substitute, walk
from taskc.ir.rounding import as_storage
from taskc.ir.signature import (
    MatchError,
    Parameter,
    inputs_of,
    is_output,
    match,
    misfit,
    named_type,
    outputs_of,
)
from taskc.ir.types import TensorType, i64
from taskc.lang.inlining import Inlining
from taskc.lang.sizes import FloatOfSizes, OfSizes
from taskc.lang.slices import copy_of, into_part
from taskc.lang.source import assigned_names, call_site
from taskc.lang.tracing import (
    ComputedScalar,
    Handle,
    PartHandle,
    ScalarHandle,
    TensorHandle,
    Trace,
)
from taskc.lang.values import describe

Callee: TypeAlias = "Called | Program"
Pack: TypeAlias = Callable[[Any, str], Any]
Value: TypeAlias = "ir.Tensor | ir.Expression"


def traced_call(
    trace: Trace,
    called: Callee,
    tuples: Mapping[str, tuple[str, ...]],
    args: Sequence[Any],
    keywords: dict[str, Any],
    site: Location | None = None,
    pack: Pack | None = None,
) -> Any:
    """Notes a call with handles, of the running code or at a site; what it returns are handles, too.

    pack  makes of an array, given a parameter's name, what that takes
    """
    call = _TracedCall(trace, called, tuples, site or call_site(), pack)
    handles = call.bind(args, keywords)
    call.check_memory()
    trace.calls += call.made()
    for _, value in call.arguments("out"):
        trace.written.add(trace.memory_of(value), trace.span(value, call.site))
    call.write_parts()
    return None if not handles else handles[0] if len(handles) == 1 else tuple(handles)


def noted_computation(
    trace: Trace, made: Computation, given: list[Handle], out: Any, site: Location
) -> Handle:
    """Notes a computation, which writes `out` or a temporary.

    What reads the memory that it writes reads what was there before all of it: it writes a temporary, which is copied.
    """
    whole = out
    if isinstance(out, PartHandle):
        made, given = into_part(made, given, out)
        whole = out.whole
    if isinstance(whole, TensorHandle) and whole.tensor.role != "out":
        memory = trace.memory_of(whole.tensor)
        tensors = [it.tensor for it in given if isinstance(it, TensorHandle)]
        if any(trace.memory_of(tensor) is memory for tensor in tensors):
            temporary = traced_call(trace, made, {}, given, {}, site)
            made = copy_of(temporary, made.name, site, made.output.layout)
            given = [temporary]
    keywords = {} if whole is None else {"out": whole}
    returned: Handle = traced_call(trace, made, {}, given, keywords, site)
    return out if isinstance(out, PartHandle) else returned


class _TracedCall:
    """One call of a kernel or a program, as far as it has been looked at."""

    def __init__(
        self,
        trace: Trace,
        called: Callee,
        tuples: Mapping[str, tuple[str, ...]],
        site: Location,
        pack: Pack | None,
    ) -> None:
        self.trace = trace
        self.called = called
        self.tuples = tuples
        self.site = site
        self.pack = pack
        self.values: dict[str, Value] = {}
        # A computation has the program's own dimensions.
        own = called.dimensions if isinstance(called, Computation) else ()
        self.sizes: dict[ir.Variable, int | ir.Expression] = {size: size for size in own}
        self.inferred_from: dict[ir.Variable, str] = {}
        self.parts: list[tuple[Handle, PartHandle]] = []  # what a call writes in place of parts
        self.computed: list[tuple[ir.Tensor, ir.Expression, int | ir.Expression, ir.Tensor]] = []

    def error(
        self,
        parameter: Parameter,
        problem: str,
        hint: str | None = None,
        note: tuple[str, Location] | None = None,
    ) -> CompileError:
        kind = "output" if is_output(parameter) else "argument"
        return CompileError(
            f"{self.called.name}(): {kind} '{parameter.name}' {problem}",
            self.site,
            hint,
            (note,) if note else (),
        )

    # Which argument is which parameter's.

    def bind(self, args: Sequence[Any], keywords: dict[str, Any]) -> list[Handle]:
        """Takes the arguments and returns the outputs."""
        parameters = self.called.parameters
        try:
            given = match(f"{self.called.name}()", parameters, args, keywords, self.tuples)
        except MatchError as error:
            raise CompileError(str(error), self.site) from None
        outputs = outputs_of(parameters)
        for parameter in (*inputs_of(parameters), *outputs):
            if parameter.name not in given:
                continue
            argument = given[parameter.name]
            if isinstance(argument, Handle):
                self.trace.check_owner(argument, self.site)
            if isinstance(argument, PartHandle) and isinstance(parameter, ir.Tensor):
                argument = self._in_memory(argument, parameter.role)
            if isinstance(parameter, ir.Variable):
                self.values[parameter.name] = self._scalar(parameter, argument)
            else:
                self.values[parameter.name] = self._tensor(parameter, argument)
        self._check_computed()
        names = assigned_names(self.site, tuple([output.name for output in outputs]))
        for output, name in zip(outputs, names, strict=True):
            if output.name not in given:
                given[output.name] = self._allocated(output, name)
        return [given[output.name] for output in outputs]

    def _scalar(self, parameter: ir.Variable, value: Any) -> ir.Expression:
        dtype = parameter.dtype
        if isinstance(value, ScalarHandle):
            if value.dtype is not dtype:
                raise self.error(parameter, f"must be a number of type {dtype}, not {value.dtype}")
            return value.variable
        if isinstance(value, OfSizes):
            if isinstance(value, FloatOfSizes) or not dtype.is_integer:
                is_float = isinstance(value, FloatOfSizes)
                what = f"{value} is a float of the call" if is_float else "a size is an integer"
                hint = "a program passes on sizes as integers; what is computed of them belongs in the kernel"
                raise self.error(parameter, f"must be a number of type {dtype}, and {what}", hint)
            expression = self.trace.expression(value)
            return expression if dtype is i64 else ir.Cast(expression, dtype)
        if isinstance(value, (TensorHandle, ComputedScalar)):
            hint = "a program passes on its scalars as they are; what is computed of them belongs in the kernel"
            raise self.error(
                parameter,
                f"must be a number of type {dtype}, not {value.described}",
                None if isinstance(value, TensorHandle) else hint,
            )
        number = value.item() if isinstance(value, np.generic) else value
        problem = misfit(number, dtype)
        if problem is not None:
            raise self.error(parameter, problem)
        stored = as_storage(float(number) if dtype.is_float else number, dtype)
        return ir.Constant(float(stored) if dtype.is_float else stored.item(), dtype)

    def _tensor(self, parameter: ir.Tensor, value: Any) -> ir.Tensor:
        expected = _expected(parameter)
        if parameter.role == "in" and is_array(value):
            value = self._constant(parameter, host_array(value, self.site))
        if not isinstance(value, TensorHandle):
            hint = "its parts are passed one by one: *name" if isinstance(value, tuple) else None
            what = "an array" if hasattr(value, "__dlpack__") else describe(value)
            raise self.error(parameter, f"{expected}, a tensor of the program, not {what}", hint)
        array = self.trace.constants.get(value.tensor)
        if array is not None and value.tensor.layout is None and parameter.layout is not None:
            value = self._constant(parameter, array)
        tensor: ir.Tensor = value.tensor
        self.trace.check_is_there(tensor, self.site)
        if tensor.dtype is not parameter.dtype or len(tensor.shape) != len(
            parameter.argument_shape
        ):
            raise self.error(parameter, f"{expected}, not {_typed(tensor)}", _pack_hint(parameter))
        for wanted, extent in zip(parameter.argument_shape, tensor.shape, strict=True):
            self._extent(parameter, wanted, extent, tensor)
        self._check_layout(parameter, tensor)
        return tensor

    def _in_memory(self, part: PartHandle, role: str) -> Handle:
        """A temporary in place of a part; of one that is written its elements go back after the call."""
        made = copy_of(part, "copy", self.site)
        temporary: Handle
        if role == "out":
            tensor = replace(made.output, name=part.name, role="in", loc=self.site)
            temporary = self.trace.temporary(tensor)
        else:
            temporary = noted_computation(self.trace, made, [part.whole], None, self.site)
        if role != "in":
            self.parts.append((temporary, part))
        return temporary

    def write_parts(self) -> None:
        for temporary, part in self.parts:
            assert isinstance(temporary, TensorHandle)
            made = copy_of(temporary, "copy", self.site)
            noted_computation(self.trace, made, [temporary], part, self.site)

    def _constant(self, parameter: ir.Tensor, array: np.ndarray[Any, Any]) -> Handle:
        """An array as a constant of the program: as it is, or packed where the parameter has a layout."""
        trace, dtype = self.trace, parameter.dtype
        if dtype.is_sub_byte:
            return self._constant_bits(parameter, array)
        if array.dtype != dtype.numpy:
            raise self.error(parameter, f"{_expected(parameter)}, not an array of {array.dtype}")
        if parameter.layout is None:
            kind = TensorType(dtype, array.shape)
            return trace.constant(np.ascontiguousarray(array), kind, parameter.name, self.site)
        if not isinstance(array, Packed):
            assert self.pack is not None  # a callee without a definition has no such parameter
            key = id(array), parameter.layout, parameter.argument_shape
            known = trace.packed.get(key)
            if known is not None:
                return known[1]
            try:
                made = Context().run(self.pack, array, parameter.name)  # now, not in the program
            except TypeError as error:
                raise self.error(parameter, f"can't be packed: {error}") from None
            found = trace.constant(made, made.type, parameter.name, self.site)
            trace.packed[key] = array, found
            return found
        return trace.constant(array, array.type, parameter.name, self.site)

    def _constant_bits(self, parameter: ir.Tensor, array: np.ndarray[Any, Any]) -> Handle:
        """Elements of a sub-byte type as a constant, which is bytes."""
        if not isinstance(array, Packed):
            kind = TensorType(parameter.dtype, parameter.argument_shape, parameter.layout)
            try:
                array = pack(array, kind)
            except TypeError as error:
                raise self.error(parameter, f"can't be packed: {error}") from None
        return self.trace.constant(array, array.type, parameter.name, self.site)

    def _extent(
        self,
        parameter: ir.Tensor,
        wanted: int | ir.Expression,
        extent: int | ir.Expression,
        tensor: ir.Tensor,
    ) -> None:
        trace = self.trace
        expected = _expected(parameter)
        if isinstance(wanted, int):
            if not trace.are_equal(wanted, extent):
                raise self.error(
                    parameter, f"{expected}, not {_typed(tensor)}", _pack_hint(parameter)
                )
            return
        if not isinstance(wanted, ir.Variable):
            self.computed.append((parameter, wanted, extent, tensor))
            return
        if not trace.divides(wanted.multiple, extent):
            reason = f"{expected} with {wanted} a multiple of {wanted.multiple}"
            hint = None
            if isinstance(extent, ir.Variable):
                hint = f'declare it so: tc.dim("{extent}", multiple={wanted.multiple})'
            raise self.error(parameter, f"{reason}, not {_typed(tensor)}", hint)
        known = self.sizes.setdefault(wanted, extent)
        source = self.inferred_from.setdefault(wanted, parameter.name)
        where = "" if source == parameter.name else f" (from '{source}')"
        self._check_equal(parameter, wanted, known, extent, tensor, where)

    def _check_equal(
        self,
        parameter: ir.Tensor,
        wanted: ir.Expression,
        known: int | ir.Expression,
        extent: int | ir.Expression,
        tensor: ir.Tensor,
        where: str = "",
    ) -> None:
        """`wanted`, an extent of the parameter, is known to be what the argument has."""
        difference = self.trace.linear_difference(known, extent)
        if difference.is_constant and difference.constant == 0:
            return
        hint = None
        if not difference.is_constant:
            hint = "they have to be equal for all sizes; the same tc.dim in both would say so"
        reason = _expected(parameter)
        if wanted is not known:  # a computation has the program's own
            reason += f" with {extent_text(wanted)} = {extent_text(known)}{where}"
        raise self.error(parameter, f"{reason}, not {_typed(tensor)}", hint)

    def _check_computed(self) -> None:
        """Checks extents that are computed as at a call with arrays: dimensions may follow from `12 * n + 2`."""
        pending = self.computed
        while told := [row for row in pending if self._tells(*row)]:
            pending = [row for row in pending if row not in told]
        for parameter, wanted, extent, tensor in self.computed:
            self._check_equal(parameter, wanted, self._known(parameter, wanted), extent, tensor)

    def _tells(
        self,
        parameter: ir.Tensor,
        wanted: ir.Expression,
        extent: int | ir.Expression,
        tensor: ir.Tensor,
    ) -> bool:
        """Learns the one dimension of an extent that isn't known, if it is a whole number for all sizes."""
        unknown = one_unknown(wanted, self.sizes)
        if unknown is None or unknown.factor < 0:
            return False
        left = subtract(extent, unknown.rest)
        if not self.trace.divides(unknown.factor, left):
            return False
        number = self.trace.extent(floor_divide(left, index(unknown.factor)))
        self._extent(parameter, unknown.dimension, number, tensor)
        return True

    def _known(self, parameter: ir.Tensor, extent: ir.Expression) -> int | ir.Expression:
        """A computed extent, in the sizes of the caller."""
        for node in walk(extent):
            if isinstance(node, ir.Variable) and node not in self.sizes:
                raise self.error(parameter, untold(parameter, extent, node))
        sizes = {variable: index(n) for variable, n in self.sizes.items()}
        return self.trace.extent(substitute(extent, sizes))

    def _check_layout(self, parameter: ir.Tensor, tensor: ir.Tensor) -> None:
        if not _same_layout(parameter, tensor):
            raise self.error(
                parameter,
                f"must lie {_laid(parameter)}, and '{tensor.name}' lies {_laid(tensor)}",
                "a kernel can pack it: from one layout to the other",
            )

    def _allocated(self, output: ir.Tensor, name: str) -> Handle:
        """A temporary for an output that wasn't given."""
        shape: list[int | ir.Expression] = []
        for extent in output.argument_shape:
            size = extent if isinstance(extent, int) else self._known(output, extent)
            if isinstance(size, int) and size < 0:
                raise self.error(output, f"would have the extent {extent_text(extent)} = {size}")
            shape.append(size)
        tensor = ir.Tensor(
            name, output.dtype, tuple(shape), ir.GLOBAL, output.layout, loc=self.site
        )
        self.values[output.name] = tensor
        return self.trace.temporary(tensor)

    # What it reads and writes.

    def arguments(self, *roles: str) -> list[tuple[ir.Tensor, ir.Tensor]]:
        """The tensor parameters of some roles, with what they are given."""
        found = []
        for parameter in self.called.parameters:
            if isinstance(parameter, ir.Tensor) and parameter.role in roles:
                value = self.values[parameter.name]
                assert isinstance(value, ir.Tensor)
                found.append((parameter, value))
        return found

    def check_memory(self) -> None:
        """Checks that what is read has been written, and that what is written may be."""
        for parameter, value in self.arguments("in", "inout"):
            self._check_read(parameter, value)
        for parameter, value in self.arguments("out", "inout"):
            self._check_written(parameter, value)
        self._check_overlap()

    def _check_read(self, parameter: ir.Tensor, value: ir.Tensor) -> None:
        trace, memory = self.trace, self.trace.memory_of(value)
        if trace.is_written(value, self.site):
            return
        what = f"'{memory.name}'" if memory.role != "out" else f"the output '{memory.name}'"
        if trace.written.of(memory):
            problem = (
                f"is read, and calls before have written only parts of {what}, as far as is known"
            )
        elif trace.written.perhaps_of(memory):
            problem = f"is read, and whether calls before have written {what} depends on a flag"
        else:
            problem = f"is read, and no call has written {what} before"
        hint = "it starts uninitialized: let a kernel fill it first, as its tc.out"
        note = ("it is made here", memory.loc)
        error = self.error(parameter, problem, hint, note)
        trace.written.need(memory, trace.span(value, self.site), error)

    def _check_written(self, parameter: ir.Tensor, value: ir.Tensor) -> None:
        trace, memory = self.trace, self.trace.memory_of(value)
        if memory in trace.constants:
            raise self.error(parameter, f"is written, and '{memory.name}' is constant")
        if memory not in trace.parameters:
            return
        if memory.role == "in":
            raise self.error(
                parameter,
                f"is written, and '{memory.name}' is an input of program '{trace.name}'",
                f"declare it tc.inout[{_typed(memory)}], or write to tc.empty({_typed(memory)})",
                ("it is declared here", memory.loc),
            )
        if memory.role == "out" and parameter.role == "out":
            before = trace.written.overlapping(memory, trace.span(value, self.site))
            if before is not None:
                raise self.error(
                    parameter,
                    f"is written, and the output '{memory.name}' has been written before",
                    f"use a temporary for the first result, or declare '{memory.name}' tc.inout",
                    ("it was written here", before.site),
                )

    def _check_overlap(self) -> None:
        trace, everything = self.trace, self.arguments("in", "out", "inout")
        for number, (first, value) in enumerate(everything):
            for second, other in everything[number + 1 :]:
                memory = trace.memory_of(value)
                if memory is not trace.memory_of(other) or {first.role, second.role} == {"in"}:
                    continue
                one, another = trace.span(value, self.site), trace.span(other, self.site)
                if not trace.written.are_apart(one, another):
                    written, overlapping = (
                        (first, second) if first.role != "in" else (second, first)
                    )
                    raise self.error(
                        written,
                        f"is written, and '{memory.name}' is also given for '{overlapping.name}'",
                    )

    # What it becomes.

    def made(self) -> Sequence[Step]:
        """The call; of a program, its steps on the arguments of this one."""
        if not isinstance(self.called, Program):
            arguments = [self.values[item.name] for item in self.called.parameters]
            return (Call(self.called, tuple(arguments), self.trace.apart, loc=self.site),)
        scalars = {variable: index(size) for variable, size in self.sizes.items()}
        tensors: dict[ir.Tensor, ir.Tensor] = {}
        for parameter in self.called.parameters:
            value = self.values[parameter.name]
            if isinstance(parameter, ir.Tensor):
                assert isinstance(value, ir.Tensor)
                tensors[parameter] = value
            else:
                assert not isinstance(value, ir.Tensor)
                scalars[parameter] = value
        return Inlining(self.trace, self.called, tensors, scalars, self.site).made()


def _expected(parameter: ir.Tensor) -> str:
    return f"must be {named_type(parameter.dtype, parameter.argument_shape)}"


def _pack_hint(parameter: ir.Tensor) -> str | None:
    if parameter.layout is None:
        return None
    return f"it has a layout: pass a constant, or what kernel.pack({parameter.name}) makes"


def _typed(tensor: ir.Tensor) -> str:
    return named_type(tensor.dtype, tensor.shape)


def _same_layout(parameter: ir.Tensor, tensor: ir.Tensor) -> bool:
    a, b = parameter.layout, tensor.layout
    if a is not None and b is not None:
        return a == b
    laid = a or b
    # Row-major may be said, too.
    extents = [n for n in tensor.shape if isinstance(n, int)]
    return laid is None or (len(extents) == len(tensor.shape) and laid == repeat(*extents))


def _laid(tensor: ir.Tensor) -> str:
    return "row-major" if tensor.layout is None else f"as {tensor.layout}"
