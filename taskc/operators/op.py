"""`tc.op`: the operators in a user's program, by their names.

    @tc.program
    def head(x: f32[n, 64], w: f32[64, 10], y: tc.out[f32[n, 10]]) -> None:
        op.Softmax(op.MatMul(x, w), axis=-1, out=y)

An input is a tensor of the program, or an array, a list or a number. A result of known inputs alone is computed while
the program is traced, and is an array. Without `out`, an output is a new temporary.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np

import taskc as tc
from taskc import DType
from taskc.dataclass import dataclass
from taskc.ir.types import from_numpy
from taskc.lang.sizes import Size, tracing
from taskc.lang.source import call_site
from taskc.operators.build import built
from taskc.operators.call import Call
from taskc.operators.files import MICROSOFT
from taskc.operators.graph import Array, Node
from taskc.operators.tensors import Counted, Held, Tensor, computed, handle_of, rows_of
from taskc.programs.tracing import TensorHandle

MOST = 1 << 20  # inputs or outputs of an operator that takes any number


@dataclass(frozen=True, slots=True)
class Input:
    """An input's name, its type (or the name of a type variable), and whether it is required."""

    name: str
    type: str
    required: bool


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute's type by ONNX's name ("int", "floats"), and its default if it has one."""

    type: str
    required: bool
    default: Any


@dataclass(frozen=True, slots=True)
class Signature:
    """An operator as of its newest version.

    most_inputs  the largest number of inputs; above that of `inputs`, the last one repeats
    outputs      their smallest and largest number
    """

    name: str
    version: int
    inputs: tuple[Input, ...]
    most_inputs: int
    outputs: tuple[int, int]
    attributes: dict[str, Attribute]

    @property
    def python(self) -> inspect.Signature:
        """The operator's signature as that of a Python function."""
        kinds = inspect.Parameter
        parameters = [
            kinds(
                formal.name,
                kinds.POSITIONAL_OR_KEYWORD,
                default=kinds.empty if formal.required else None,
            )
            for formal in self.inputs
        ]
        if self.most_inputs > len(self.inputs):
            parameters = [*parameters[:-1], kinds(self.inputs[-1].name, kinds.VAR_POSITIONAL)]
        parameters += [
            kinds(
                name, kinds.KEYWORD_ONLY, default=kinds.empty if formal.required else formal.default
            )
            for name, formal in self.attributes.items()
        ]
        parameters += [kinds(name, kinds.KEYWORD_ONLY, default=None) for name in ("outputs", "out")]
        return inspect.Signature(parameters)


_TABLES = {"": "signatures.jsonl", MICROSOFT: "microsoft.jsonl"}


@cache
def signatures(domain: str = "") -> dict[str, Signature]:
    """All operators of a domain that a user's program can call, by name."""
    path = Path(__file__).with_name(_TABLES[domain])
    by_name = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        by_name[fields["name"]] = Signature(
            fields["name"],
            fields["version"],
            tuple([Input(*one) for one in fields["inputs"]]),
            fields["most_inputs"],
            tuple(fields["outputs"]),
            {name: Attribute(*one) for name, one in fields["attributes"].items()},
        )
    return by_name


_WITH_GRAPHS = {
    "If": "tc.branch", "Loop": "tc.steps or tc.steps_while", "Scan": "tc.steps",
}  # fmt: skip
_TYPES: dict[str, type | tuple[type, ...]] = {
    "int": (int, np.integer), "float": (int, float, np.number), "string": str, "tensor": np.ndarray,
}  # fmt: skip


class Operators:
    """A domain's operators as attributes; `dir(op)` lists them, and `help(op.Conv)` shows inputs and attributes."""

    def __init__(self, domain: str, shown: str) -> None:
        self._domain, self._shown = domain, shown

    def __getattr__(self, name: str) -> Operator:
        known, shown = signatures(self._domain), self._shown
        if name in known:
            return Operator(known[name], self._domain, f"{shown}.{name}")
        if name in _WITH_GRAPHS and not self._domain:
            hint = f"a program has {_WITH_GRAPHS[name]}"
        else:
            close = get_close_matches(name, known, 1, 0.6)
            hint = f"did you mean {shown}.{close[0]}?" if close else f"dir({shown}) lists them"
        # Python adds a hint of its own, unless the error has no name.
        raise AttributeError(f"there is no {shown}.{name}; {hint}", name=None)

    def __dir__(self) -> list[str]:
        return [*signatures(self._domain)]

    @property
    def microsoft(self) -> Operators:
        """The operators of com.microsoft, ONNX Runtime's own."""
        return Operators(MICROSOFT, "op.microsoft")


op = Operators("", "op")


class Operator:
    """An operator that can be called while a program is traced."""

    def __init__(self, signature: Signature, domain: str, shown: str) -> None:
        self._signature, self._domain, self._shown = signature, domain, shown
        self.__name__ = self.__qualname__ = signature.name
        self.__signature__ = signature.python
        owner = domain or "ONNX"
        self.__doc__ = f"{owner}'s {signature.name}, of operator set {signature.version}."

    def __repr__(self) -> str:
        return f"<{self._shown}{self.__signature__}>"

    def __call__(
        self, *inputs: Any, outputs: int | None = None, out: Any = None, **options: Any
    ) -> Any:
        """The output, or a tuple of them.

        outputs  their number, where the operator has optional ones
        out      tensors of the program to write them to
        """
        signature = self._signature
        name, version = signature.name, signature.version
        node = Node(
            name,
            (),
            (),
            version=version,
            domain=self._domain,
            where=call_site(),
            called=self._shown,
        )
        if tracing.get() is None:
            hint = "call it in a tc.program, or in what tc.trace traces"
            raise node.error("it has no program to be a part of", hint)
        held_inputs = self._inputs(node, inputs, options)
        least, most = signature.outputs
        count = least if outputs is None else outputs
        if not least <= count <= most:
            raise node.error(f"it has {least} to {most} outputs, not {count}")
        names = [formal.name for formal in signature.inputs]
        names += [f"{names[-1]} {place}" for place in range(len(names), len(held_inputs))]
        node = replace(
            node,
            inputs=tuple(["" if x is None else names[n] for n, x in enumerate(held_inputs)]),
            outputs=tuple([f"output {place}" for place in range(count)]),
            attributes=self._attributes(node, options),
        )
        call = Call(node, tuple(held_inputs), _no_graph)
        results = [_whole(node, held) for held in built(call)[:count]]
        returned = results if out is None else _written(node, results, out)
        return returned[0] if len(returned) == 1 else tuple(returned)

    def _inputs(
        self, node: Node, inputs: Sequence[object], options: dict[str, object]
    ) -> list[Held | None]:
        """The inputs by position; inputs passed by name are removed from the options."""
        formals = self._signature.inputs
        by_place = self._by_place(node, inputs, options)
        for place, formal in enumerate(formals):
            if formal.required and (place >= len(by_place) or by_place[place] is None):
                raise node.error(f"its input '{formal.name}' is missing")
        last = len(formals) - 1
        typed = [(formals[min(place, last)], x) for place, x in enumerate(by_place)]
        dtypes = _type_variables(node, typed)
        return [_held(node, formal.name, x, dtypes.get(formal.type)) for formal, x in typed]

    def _by_place(
        self, node: Node, inputs: Sequence[object], options: dict[str, object]
    ) -> list[object]:
        """The arguments of a call that are inputs, passed by position or by name."""
        signature = self._signature
        if len(inputs) > signature.most_inputs:
            raise node.error(f"it takes {signature.most_inputs} inputs, and gets {len(inputs)}")
        by_place = [*inputs]
        for place, formal in enumerate(signature.inputs):
            if formal.name in options and formal.name not in signature.attributes:
                if place < len(inputs):
                    raise node.error(f"its input '{formal.name}' is given twice")
                by_place += [None] * (place + 1 - len(by_place))
                by_place[place] = options.pop(formal.name)
        return by_place

    def _attributes(self, node: Node, options: dict[str, object]) -> dict[str, object]:
        formals = self._signature.attributes
        for name in options:
            if name not in formals:
                has = ", ".join([*(one.name for one in self._signature.inputs), *formals])
                raise node.error(f"it has no '{name}'", f"it has {has}")
        missing = [
            name for name, one in formals.items() if one.required and options.get(name) is None
        ]
        if missing:
            raise node.error(f"its attribute '{missing[0]}' is missing")
        passed = {name: value for name, value in options.items() if value is not None}
        values = {name: one.default for name, one in formals.items() if one.default is not None}
        for name, value in passed.items():
            values[name] = _value(node, name, formals[name], value)
        return values


def _no_graph(*_: object) -> NoReturn:
    raise tc.InternalError("an operator without a graph builds one")


def _type_variables(node: Node, typed: Sequence[tuple[Input, object]]) -> dict[str, DType]:
    """The element type of each type variable, from the tensors and arrays that have it: all of them agree."""
    firsts: dict[str, tuple[DType, str]] = {}
    for formal, x in typed:
        if formal.type.startswith("tensor("):
            continue
        if isinstance(x, TensorHandle | np.ndarray | np.generic):
            own = x.dtype if isinstance(x, TensorHandle) else from_numpy(x.dtype)
            dtype, first = firsts.setdefault(formal.type, (own, formal.name))
            if dtype is not own:
                raise node.error(f"'{first}' is {dtype}, and '{formal.name}' is {own}")
    return {variable: dtype for variable, (dtype, _) in firsts.items()}


def _held(node: Node, name: str, x: object, dtype: DType | None) -> Held | None:
    """An input as builders take it; numbers and lists get the type of the other inputs, if any has one."""
    if x is None or isinstance(x, TensorHandle):
        return x
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    try:
        array = np.array(x, object) if any(isinstance(n, Size) for n in _flat(x)) else np.array(x)
    except ValueError:
        raise node.error(f"its input '{name}' is no array: {x!r}") from None
    if array.dtype == object:
        if all(isinstance(n, int | Size) for n in array.flat):
            return array
        raise node.error(f"its input '{name}' is {type(x).__name__}, which is no tensor")
    if array.dtype.kind not in "bif":
        raise node.error(f"its input '{name}' is {type(x).__name__}, which is no tensor")
    if dtype is None:
        return array.astype(np.float32) if array.dtype.kind == "f" else array
    if not dtype.is_float:
        is_kind = array.dtype.kind == ("b" if dtype is tc.boolean else "i")
        if not is_kind or not ((array >= dtype.minimum) & (array <= dtype.maximum)).all():
            raise node.error(f"its input '{name}', {x!r}, doesn't fit {dtype}, the others' type")
    return array.astype(dtype.numpy)


def _flat(x: object) -> Iterator[object]:
    if isinstance(x, list | tuple):
        for part in x:
            yield from _flat(part)
    else:
        yield x


def _value(node: Node, name: str, formal: Attribute, value: object) -> object:
    """An attribute's value, with its type checked."""
    kind = formal.type
    if kind.endswith("s") and isinstance(value, list | tuple | np.ndarray):
        return [_value(node, name, Attribute(kind[:-1], True, None), part) for part in value]
    if kind == "tensor" and not isinstance(value, str):
        value = np.asarray(value)
    if not isinstance(value, _TYPES.get(kind, ())):
        raise node.error(
            f"its attribute '{name}' is {type(value).__name__}, and has to be of type {kind}"
        )
    match kind:
        case "int":
            return int(cast("int", value))
        case "float":
            return float(cast("float", value))
    return value


def _whole(node: Node, held: Held | None) -> TensorHandle | Array | None:
    if isinstance(held, Counted):
        raise node.error("how many elements it makes is known only when the program runs")
    return None if held is None else rows_of(held)


def _written(node: Node, made: Sequence[Tensor | None], out: object) -> list[object]:
    """Write the outputs to the tensors of the program in `out`."""
    targets = out if isinstance(out, tuple | list) else (out,)
    if len(targets) != len(made):
        raise node.error(f"it has {len(made)} outputs, and {len(targets)} in `out`")
    for result, target in zip(made, targets, strict=True):
        assert result is not None
        x, dtype = handle_of(result), getattr(target, "dtype", None)
        if dtype is not None and dtype is not x.dtype:
            raise node.error(f"it makes {x.dtype}, and its output is {dtype}")
        _copy(x, target)
    return list(targets)


def _copy(x: TensorHandle, target: object) -> None:
    computed(x.shape, lambda *at: x[at], out=target, name="result")
