"""How kernels and programs are called, whatever with: which argument is which parameter's.

Inputs come in order or by name, outputs by name or as `out=`. Calls on arrays (`taskc.arrays.arguments`)
and calls in a program that is being traced (`taskc.lang.tracing`) go by the same rules.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.printer_expressions import extent_text
from taskc.ir.types import DType

Parameter: TypeAlias = "Tensor | Variable"


class MatchError(Exception):
    """The arguments of a call are too many, too few, or have names that aren't there."""


def is_output(parameter: Parameter) -> bool:
    """It is allocated by the call where it isn't given."""
    return isinstance(parameter, Tensor) and parameter.role == "out"


def inputs_of(parameters: Sequence[Parameter]) -> list[Parameter]:
    """What a call has to give, in order."""
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
