"""How kernels and programs are called: which argument belongs to which parameter, and which sizes follow from it.

Inputs come in order or by name, outputs by name or as `out=`. A call on arrays (`taskc.arrays.arguments`) and
a call in a program that is being traced (`taskc.programs.record_call`) are bound by the same class, `Binding`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from taskc.errors import InternalError, Location
from taskc.ir.arithmetic import as_storage
from taskc.ir.extents import OneUnknown, extent_value, one_unknown, untold
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.printer_expressions import extent_text
from taskc.ir.rewrite import walk
from taskc.ir.types import DType

Parameter: TypeAlias = "Tensor | Variable"
Size: TypeAlias = Any  # an int, or an expression of the caller's dimensions


class Signed(Protocol):
    """A kernel, or a program of the layers above: it has a name and parameters."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> tuple[Parameter, ...]: ...
    @property
    def dimensions(self) -> tuple[Variable, ...]: ...
    @property
    def loc(self) -> Location: ...


class MatchError(Exception):
    """The arguments of a call are too many, too few, or have names that aren't there."""


def is_output(parameter: Parameter) -> bool:
    """It is allocated by the call where it isn't given."""
    return isinstance(parameter, Tensor) and parameter.role == "out"


def inputs_of(parameters: Sequence[Parameter]) -> list[Parameter]:
    """The arguments that a call has to pass, in order."""
    return [item for item in parameters if not is_output(item)]


def outputs_of(parameters: Sequence[Parameter]) -> list[Tensor]:
    return [item for item in parameters if isinstance(item, Tensor) and item.role == "out"]


def match(
    what: str,
    parameters: Sequence[Parameter],
    args: Sequence[Any],
    keywords: dict[str, Any],
    tuples: Mapping[str, tuple[str, ...]],
) -> dict[str, Any]:
    """The argument of each parameter by its name, outputs that are not given left out.

    what    is called, as in "add()"
    tuples  the parameters that were declared as tuples, and the names of their parts
    """
    names = [item.name for item in inputs_of(parameters)]
    outputs = [item.name for item in outputs_of(parameters)]
    if len(args) > len(names):
        number = f"{len(names)} argument{'' if len(names) == 1 else 's'}"
        listed = f" ({', '.join(names)})" if names else ""
        hint = "; outputs are passed as out=" if outputs else ""
        absent = [f"'{name}'" for name, parts in tuples.items() if not parts]
        hint += f"; there is none for {', '.join(absent)}" if absent else ""
        raise MatchError(f"{what} takes {number}{listed}, not {len(args)}{hint}")
    given = dict(zip(names, args, strict=False))
    for name, value in keywords.items():
        if name == "out" and name not in names and (name not in outputs or _is_tuple(value)):
            pairs = _out(what, value, outputs)
        elif name in names or name in outputs:
            pairs = [(name, value)]
        else:
            raise MatchError(_unexpected(what, name, [*names, *outputs], tuples))
        for parameter, argument in pairs:
            if parameter in given:
                raise MatchError(f"{what} got the argument '{parameter}' twice")
            if argument is not None or parameter in names:
                given[parameter] = argument
    missing = [f"'{name}'" for name in names if name not in given]
    if missing:
        plural = "" if len(missing) == 1 else "s"
        raise MatchError(f"{what} misses the argument{plural} {', '.join(missing)}")
    return given


def _out(what: str, value: Any, outputs: list[str]) -> list[tuple[str, Any]]:
    """The outputs that `out=` gives."""
    if value is None:
        return []
    values = value if _is_tuple(value) else (value,)
    if len(values) != len(outputs):
        names = f" ({', '.join(outputs)})" if outputs else ""
        plural = "" if len(outputs) == 1 else "s"
        has = f"{what} has {len(outputs)} output{plural}{names}"
        raise MatchError(f"{has}, and out= gives {len(values)}")
    return list(zip(outputs, values, strict=True))


def _unexpected(
    what: str, name: str, known: list[str], tuples: Mapping[str, tuple[str, ...]]
) -> str:
    if name in tuples:
        parts = ", ".join(tuples[name])
        kind = f"{len(tuples[name])} parameters: {parts}" if parts else "no parameter"
        return f"{what} has no parameter '{name}': its type is a tuple, of {kind}"
    close = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean '{close[0]}'?" if close else f"; it has {', '.join(known)}"
    return f"{what} has no parameter '{name}'{hint if known else ''}"


def _is_tuple(value: Any) -> bool:
    return isinstance(value, (tuple, list))


def misfit(number: object, dtype: DType) -> str | None:
    """Why a Python number is no value of a type, or None."""
    if not isinstance(number, (bool, int, float)):
        return f"must be a number of type {dtype}, not {number!r}"
    fits = isinstance(number, bool) if dtype.kind == "bool" else not isinstance(number, bool)
    if not fits or (isinstance(number, float) and not dtype.is_float):
        return f"must be a number of type {dtype}, not {number!r}"
    finite = number - number == 0  # neither an infinity nor NaN
    if finite and not dtype.minimum <= number <= dtype.maximum:
        return f"is {number!r}, and {dtype} holds {dtype.minimum} to {dtype.maximum}"
    return None


def named_type(dtype: object, shape: Sequence[int | Expression]) -> str:
    """A type and a shape as the language writes them."""
    return f"{dtype}[{', '.join(map(extent_text, shape)) or '()'}]"


class Binding:
    """One call's arguments, matched with the callee's parameters one after another.

    name    the callee's, as in "add()"
    values  the arguments that fit, by the names of parameters
    sizes   the symbolic dimensions that are known

    Sizes are ints here. A subclass that has other ones overrides `difference`, `divides`, `solve` and `value`.
    """

    # Whether a size of which `solve` finds nothing fits never; else it might, at other sizes of the caller.
    is_decided = True

    def __init__(self, name: str, sizes: Mapping[Variable, Size] | None = None) -> None:
        self.name = name
        self.values: dict[str, Any] = {}
        self.sizes: dict[Any, Size] = dict(sizes or {})
        self._origins: dict[Variable, str] = {}
        self._computed: list[tuple[Tensor, Expression, Size, Any]] = []

    def bind(
        self,
        parameters: Sequence[Parameter],
        args: Sequence[Any],
        keywords: dict[str, Any],
        tuples: Mapping[str, tuple[str, ...]],
    ) -> dict[str, Any]:
        """The arguments and new outputs, by the names of parameters; `tuples` as in `match`."""
        try:
            given = match(self.name, parameters, args, keywords, tuples)
        except MatchError as error:
            raise self.error(str(error)) from None
        outputs = outputs_of(parameters)
        for parameter in (*inputs_of(parameters), *outputs):
            if parameter.name in given:
                self.values[parameter.name] = self.fitting(parameter, given[parameter.name])
        self.check_computed()
        new = [output for output in outputs if output.name not in given]
        return given | self.allocated(new) if new else given

    # A subclass says how.

    def error(self, text: str, hint: str | None = None, *notes: tuple[str, Location]) -> Exception:
        """The exception that is raised where something doesn't fit."""
        return InternalError(text)

    def mismatch(
        self, parameter: Tensor, argument: Any, reason: str = "", hint: str | None = None
    ) -> Exception:
        """The error of an argument with another type or shape."""
        return self.fail(parameter, f"doesn't fit {reason}")

    def fitting(self, parameter: Parameter, argument: Any) -> Any:
        """An argument as the call passes it on, checked."""

    def allocated(self, outputs: Sequence[Tensor]) -> dict[str, Any]:
        """New outputs by their names, put among the values, too."""
        return {}

    def difference(self, left: Size, right: Size) -> int | None:
        """None where it depends on dimensions."""
        number: int = left - right
        return number

    def divides(self, divisor: int, size: Size) -> bool:
        """Whether the size is a multiple of `divisor`."""
        return bool(size % divisor == 0)

    def solve(self, size: Size, unknown: OneUnknown) -> Size | None:
        """The unknown dimension of an extent of this size; None where it is no whole number."""
        number, more = divmod(size - extent_value(unknown.rest, {}), unknown.factor)
        return None if more or number < 0 else number

    def value(self, extent: Expression) -> Size:
        """A computed extent, whose dimensions are known."""
        return extent_value(extent, self.sizes)

    # The matching itself.

    def fail(self, parameter: Parameter, problem: str, *details: Any) -> Exception:
        """The error of one argument; `details` are a hint, and notes with their locations."""
        kind = "output" if is_output(parameter) else "argument"
        return self.error(f"{self.name}: {kind} '{parameter.name}' {problem}", *details)

    def fit(self, parameter: Tensor, shape: Sequence[Size], argument: Any) -> None:
        """Checks a shape of the right rank and learns dimensions from it. `argument` is for `mismatch`."""
        for extent, size in zip(parameter.argument_shape, shape, strict=True):
            if (extent if isinstance(extent, int) else self.sizes.get(extent)) != size:
                self._fit(parameter, extent, size, argument)

    def _fit(self, parameter: Tensor, extent: int | Expression, size: Size, argument: Any) -> None:
        if isinstance(extent, int):
            if self.difference(extent, size) != 0:
                raise self.mismatch(parameter, argument)
        elif isinstance(extent, Variable):
            if extent.multiple > 1 and not self.divides(extent.multiple, size):
                declared = f'declare it so: tc.dim("{size}", multiple={extent.multiple})'
                hint = declared if isinstance(size, Variable) else None
                reason = f"with {extent} a multiple of {extent.multiple}"
                raise self.mismatch(parameter, argument, reason, hint)
            if extent not in self.sizes:
                self.sizes[extent], self._origins[extent] = size, parameter.name
                return
            origin = self._origins.get(extent, parameter.name)
            where = "" if origin == parameter.name else f" (from '{origin}')"
            self._check_equal(parameter, extent, self.sizes[extent], size, argument, where)
        else:
            self._computed.append((parameter, extent, size, argument))

    def check_computed(self) -> None:
        """Checks extents that are computed. A dimension that is none by itself follows from one where all
        else is known: n of `12 * n + 2`, and of `m * n` where m is an extent."""
        pending, told = self._computed, True
        while pending and told:
            left = [row for row in pending if not self._tells(*row)]
            pending, told = left, len(left) < len(pending)
        for parameter, extent, size, argument in self._computed:
            self._check_equal(parameter, extent, self.known(parameter, extent), size, argument)

    def _tells(self, parameter: Tensor, extent: Expression, size: Size, argument: Any) -> bool:
        """Learns the one dimension of an extent that isn't known, if there is one."""
        unknown = one_unknown(extent, self.sizes)
        if unknown is None:
            return False
        number = self.solve(size, unknown)
        if number is not None:
            self._fit(parameter, unknown.dimension, number, argument)
        elif self.is_decided:
            reason = f"with {unknown.dimension} a whole number, 0 or more"
            raise self.mismatch(parameter, argument, reason)
        return number is not None

    def _check_equal(
        self,
        parameter: Tensor,
        extent: Expression,
        known: Size,
        size: Size,
        argument: Any,
        where: str = "",
    ) -> None:
        """Checks that an extent of the parameter is known to be of the argument's size."""
        difference = self.difference(known, size)
        if difference == 0:
            return
        hint = "they have to be equal for all sizes; the same tc.dim in both would say so"
        # A computation has the program's own dimensions.
        reason = (
            "" if extent is known else f"with {extent_text(extent)} = {extent_text(known)}{where}"
        )
        raise self.mismatch(parameter, argument, reason, hint if difference is None else None)

    def known(self, parameter: Tensor, extent: Expression) -> Size:
        """A computed extent of a parameter."""
        for node in walk(extent):
            if isinstance(node, Variable) and node not in self.sizes:
                raise self.fail(parameter, untold(parameter, extent, node))
        return self.value(extent)

    def shape_of(self, output: Tensor) -> tuple[Size, ...]:
        """The shape of an output that isn't given."""
        shape = []
        for extent in output.argument_shape:
            size = extent if isinstance(extent, int) else self.known(output, extent)
            if not isinstance(size, Expression) and size < 0:
                raise self.fail(output, f"would have the extent {extent_text(extent)} = {size}")
            shape.append(size)
        return tuple(shape)

    def number(self, parameter: Variable, value: Any) -> Any:
        """A number as one of NumPy's, of the parameter's storage type."""
        number = value.item() if isinstance(value, np.generic) else value
        problem = misfit(number, parameter.dtype)
        if problem is not None:
            raise self.fail(parameter, problem)
        return as_storage(float(number) if parameter.dtype.is_float else number, parameter.dtype)[
            ()
        ]


def bind_dimensions(
    parameters: Sequence[Parameter], shapes: Sequence[Sequence[int]]
) -> dict[Variable, int]:
    """The symbolic dimensions at these shapes of a call's arguments."""
    binding = Binding("bind_dimensions()")
    for parameter, shape in zip(parameters, shapes, strict=True):
        if isinstance(parameter, Tensor):
            binding.fit(parameter, shape, shape)
    binding.check_computed()
    return binding.sizes
