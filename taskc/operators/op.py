"""`tc.op`: the operators in a user's program, by their names.

    @tc.program
    def head(x: f32[n, 64], w: f32[64, 10], y: tc.out[f32[n, 10]]) -> None:
        op.Softmax(op.MatMul(x, w), axis=-1, out=y)

An input is a tensor of the program, or an array, a list or a number. A result of known inputs alone is computed while
the program is traced, and is an array. Without `out`, an output is a new temporary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, cast

import numpy as np

import taskc as tc
from taskc import DType
from taskc.ir.types import from_numpy
from taskc.lang.sizes import Size, tracing
from taskc.lang.source import call_site
from taskc.operators.build import built
from taskc.operators.call import Call, Counted, Held, dtype_of, handle_of, rows_of
from taskc.operators.graph import Array, Node
from taskc.operators.signature import Attribute, Signature, signatures
from taskc.programs.tracing import TensorHandle

_WITH_GRAPHS = {
    "If": "tc.branch", "Loop": "tc.steps or tc.steps_while", "Scan": "tc.steps",
}  # fmt: skip
_TYPES: dict[str, type | tuple[type, ...]] = {
    "int": (int, np.integer), "float": (int, float, np.number), "string": str, "tensor": np.ndarray,
}  # fmt: skip


class Operators:
    """The operators as attributes; `dir(op)` lists them, and `help(op.Conv)` shows inputs and attributes."""

    def __getattr__(self, name: str) -> Operator:
        signature = signatures().get(name)
        if signature is not None:
            return Operator(signature)
        if name in _WITH_GRAPHS:
            hint = f"a program has {_WITH_GRAPHS[name]}"
        else:
            close = get_close_matches(name, signatures(), 1, 0.6)
            hint = f"did you mean op.{close[0]}?" if close else "dir(op) lists them"
        raise AttributeError(f"there is no op.{name}; {hint}", name=name, obj=self)

    def __dir__(self) -> list[str]:
        return [*signatures()]


op = Operators()


class Operator:
    """An operator that can be called while a program is traced."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self.__name__ = self.__qualname__ = signature.name
        self.__signature__ = signature.python
        self.__doc__ = f"ONNX's {signature.name}, of operator set {signature.version}."

    def __repr__(self) -> str:
        return f"<op.{self._signature.name}{self.__signature__}>"

    def __call__(
        self, *inputs: Any, outputs: int | None = None, out: Any = None, **options: Any
    ) -> Any:
        """The output, or a tuple of them.

        outputs  their number, where the operator has optional ones
        out      tensors of the program to write them to
        """
        signature = self._signature
        name, version = signature.name, signature.version
        node = Node(name, (), (), version=version, where=call_site(), called=f"op.{name}")
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
        if out is not None:
            results = _written(node, results, out)
        return results[0] if len(results) == 1 else tuple(results)

    def _inputs(
        self, node: Node, inputs: Sequence[Any], options: dict[str, Any]
    ) -> list[Held | None]:
        """The inputs by position; inputs passed by name are removed from the options."""
        signature = self._signature
        if len(inputs) > signature.most_inputs:
            raise node.error(f"it takes {signature.most_inputs} inputs, and gets {len(inputs)}")
        given = [*inputs]
        for place, formal in enumerate(signature.inputs):
            if formal.name in options and formal.name not in signature.attributes:
                if place < len(inputs):
                    raise node.error(f"its input '{formal.name}' is given twice")
                given += [None] * (place + 1 - len(given))
                given[place] = options.pop(formal.name)
        for place, formal in enumerate(signature.inputs):
            if formal.required and (place >= len(given) or given[place] is None):
                raise node.error(f"its input '{formal.name}' is missing")
        kinds: dict[str, tuple[DType, str]] = {}
        typed = [
            signature.inputs[min(place, len(signature.inputs) - 1)] for place in range(len(given))
        ]
        for formal, x in zip(typed, given, strict=True):
            if isinstance(x, TensorHandle | np.ndarray | np.generic) and not formal.type.startswith(
                "tensor("
            ):
                dtype, first = kinds.setdefault(formal.type, (_dtype(x), formal.name))
                if dtype is not _dtype(x):
                    raise node.error(f"'{first}' is {dtype}, and '{formal.name}' is {_dtype(x)}")
        return [
            _held(node, formal.name, x, kinds.get(formal.type, (None, ""))[0])
            for formal, x in zip(typed, given, strict=True)
        ]

    def _attributes(self, node: Node, options: dict[str, Any]) -> dict[str, object]:
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


def _no_graph(*_: Any) -> Any:
    raise tc.InternalError("an operator without a graph builds one")


def _dtype(x: Any) -> DType:
    return dtype_of(x) if isinstance(x, TensorHandle) else from_numpy(np.asarray(x).dtype)


def _held(node: Node, name: str, x: Any, dtype: DType | None) -> Held | None:
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


def _flat(x: Any) -> Iterator[Any]:
    if isinstance(x, list | tuple):
        for part in x:
            yield from _flat(part)
    else:
        yield x


def _value(node: Node, name: str, formal: Attribute, value: Any) -> object:
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


def _written(node: Node, made: Sequence[Any], out: Any) -> list[Any]:
    """Write the outputs to the tensors of the program in `out`."""
    targets = out if isinstance(out, tuple | list) else (out,)
    if len(targets) != len(made):
        raise node.error(f"it has {len(made)} outputs, and {len(targets)} in `out`")
    for result, target in zip(made, targets, strict=True):
        x, dtype = handle_of(result), getattr(target, "dtype", None)
        if dtype is not None and dtype is not x.dtype:
            raise node.error(f"it makes {x.dtype}, and its output is {dtype}")
        _copy(x, target)
    return list(targets)


def _copy(x: TensorHandle, target: Any) -> None:
    tc.compute(x.shape, lambda *at: x[at], out=target, name="result")
