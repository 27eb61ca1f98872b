"""A graph of PyTorch's operators (fx, ATen) as a graph of the operator library, which rewrites and tracing take.

    addmm: f32[8, 4] = aten.addmm.default(b, x, t)      ->      addmm = Gemm(x, t, b)

The rows of `taskc.torch.aten` run with a recorder in place of `tc.op`. A symbolic size is computed from the shapes of
the graph's inputs, as in ONNX.
"""

from __future__ import annotations

import operator as python
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from taskc.arrays.dlpack import DTYPES
from taskc.arrays.torch import dtype_of, torch
from taskc.dataclass import dataclass
from taskc.errors import NOWHERE, CompileError, Location
from taskc.ir.types import DType, boolean, from_numpy, i64
from taskc.operators.call import ELEMENT_TYPES
from taskc.operators.graph import Array, Graph, Node, Value
from taskc.operators.op import Attribute, Signature, signatures
from taskc.torch.aten import ROWS

_NUMBERS = {dtype: number for number, dtype in ELEMENT_TYPES.items()}
_NAMESPACES = ("aten", "prims")
# Arguments that don't change values.
_UNUSED = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator")
_TRUTHS = frozenset(
    "Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not IsNaN IsInf".split()
)
_POSITIONS = frozenset("ArgMax ArgMin Shape Size Range".split())
# `File "model.py", line 7, in forward`, and the line itself.
_LINE = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n *([^\n]*)')


@cache
def element_types() -> dict[Any, DType]:
    """taskc's element type for each of PyTorch's that it has."""
    known = [dtype for dtype in DTYPES if hasattr(torch(), dtype.name) and dtype.kind != "c"]
    return {dtype_of(dtype): from_numpy(dtype) for dtype in known}


def element_type(dtype: Any) -> DType:
    known = element_types()
    if dtype not in known:
        raise CompileError(f"taskc doesn't compute with {dtype}")
    return known[dtype]


def place_of(node: Any) -> Location:
    """The line of the model that a node comes from."""
    lines = _LINE.findall(node.meta.get("stack_trace") or "")
    if not lines:
        return NOWHERE
    file, line, text = lines[-1]
    return Location(file, int(line), 0, int(line), 0, text)


def row_of(node: Any) -> str | None:
    """The name of the table's row for a node; None where there is none."""
    namespace, _, name = str(node.target).partition(".")
    return name if namespace in _NAMESPACES and name in ROWS else None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the graph that is recorded. The shape is None where a row made it, and reads none."""

    name: str
    dtype: DType
    shape: tuple[Any, ...] | None = None


class Recorder:
    """`tc.op` for rows: operators by their names, which record nodes of a graph."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self._sizes: dict[Any, Tensor] = {}  # by expressions, each a tensor of one number
        self._where = NOWHERE
        self._name = ""
        self._counter = count()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        known = signatures()
        if name not in known:
            raise AttributeError(name)
        return lambda *inputs, outputs=None, **options: self._recorded(
            known[name], inputs, outputs, options
        )

    def _recorded(
        self,
        signature: Signature,
        inputs: Sequence[Any],
        outputs: int | None,
        options: dict[str, Any],
    ) -> Any:
        name, number = signature.name, outputs or signature.outputs[0]
        formals = [
            signature.inputs[min(place, len(signature.inputs) - 1)] for place in range(len(inputs))
        ]
        typed = [
            (formal.type, x.dtype if isinstance(x, Tensor) else from_numpy(x.dtype))
            for formal, x in zip(formals, inputs, strict=True)
            if isinstance(x, Tensor | np.ndarray | np.generic)
        ]
        types = dict(typed[::-1])
        held = [
            self._held(x, types.get(formal.type)) for formal, x in zip(formals, inputs, strict=True)
        ]
        attributes = {
            key: one.default for key, one in signature.attributes.items() if one.default is not None
        }
        attributes |= {
            key: _attribute(signature.attributes[key], value)
            for key, value in options.items()
            if value is not None
        }
        names = [self._fresh(name) for _ in range(number)]
        self.nodes.append(
            Node(
                name, tuple([x.name if x is not None else "" for x in held]), tuple(names), attributes,
                signature.version, name=self._name, where=self._where,
            )
        )  # fmt: skip
        results = [
            Tensor(one, dtype)
            for one, dtype in zip(names, _types(name, held, attributes, number), strict=True)
        ]
        return results[0] if number == 1 else tuple(results)

    def _fresh(self, stem: str) -> str:
        return f"{stem}_{next(self._counter)}"

    def _held(self, x: Any, dtype: DType | None) -> Tensor | None:
        """An input as a tensor of the graph: numbers get the type of the other inputs."""
        if x is None or isinstance(x, Tensor):
            return x
        if isinstance(x, list):
            return self._list(x)
        if not isinstance(x, np.ndarray | np.generic | bool | int | float):
            return self._scalar(x, dtype)
        array = (
            np.asarray(x)
            if dtype is None or isinstance(x, np.ndarray | np.generic)
            else _number(x, dtype)
        )
        return self.constant(array)

    def constant(self, array: Array) -> Tensor:
        name = self._fresh("constant")
        self.constants[name] = array
        return Tensor(name, from_numpy(array.dtype), array.shape)

    # --- symbolic sizes ---------------------------------------------------------------------

    def _list(self, sizes: list[Any]) -> Tensor:
        parts = [
            self.constant(np.array([n], np.int64)) if type(n) is int else self.size(n.node.expr)
            for n in sizes
        ]
        joined: Tensor = self.Concat(*parts, axis=0) if len(parts) > 1 else parts[0]
        return joined

    def _scalar(self, size: Any, dtype: DType | None) -> Tensor:
        if not hasattr(size, "node"):
            raise CompileError(f"its argument is {type(size).__name__}, which is no tensor")
        number: Tensor = self.Reshape(self.size(size.node.expr), np.zeros(0, np.int64))
        if dtype is not None and dtype is not i64:
            number = self.Cast(number, to=_NUMBERS[dtype])
        return number

    def bind(self, expression: Any, tensor: Tensor) -> None:
        """A tensor of one number has the value of an expression."""
        self._sizes.setdefault(expression, tensor)

    def bind_shape(self, tensor: Tensor, shape: Sequence[Any]) -> None:
        """The symbols among a tensor's extents are known."""
        for axis, extent in enumerate(shape):
            if hasattr(extent, "node") and extent.node.expr not in self._sizes:
                self.bind(extent.node.expr, self.Shape(tensor, start=axis, end=axis + 1))

    def size(self, expression: Any) -> Tensor:
        """The value of an expression of sizes, a tensor of one number."""
        if expression not in self._sizes:
            self._sizes[expression] = self._computed(expression)
        return self._sizes[expression]

    def _computed(self, expression: Any) -> Tensor:
        if expression.is_Integer:
            return self.constant(np.array([int(expression)], np.int64))
        kind, parts = type(expression).__name__, expression.args
        total: Tensor
        match kind:
            case "Add" | "Mul" | "Max" | "Min":
                total = self.size(parts[0])
                for part in parts[1:]:
                    total = getattr(self, kind)(total, self.size(part))
                return total
            case "Pow" if parts[1].is_Integer and parts[1] > 0:
                total = base = self.size(parts[0])
                for _ in range(int(parts[1]) - 1):
                    total = self.Mul(total, base)
                return total
            case "FloorDiv" | "CleanDiv" | "Mod" | "PythonMod":  # of sizes, which aren't negative
                divide = self.Mod if kind.endswith("Mod") else self.Div
                total = divide(*map(self.size, parts))
                return total
        raise CompileError(f"a size is {expression}, which taskc doesn't compute")

    # --- nodes of PyTorch's graph -----------------------------------------------------------

    def record(self, node: Any, values: Mapping[Any, Any]) -> Any:
        """The outputs of one node: a tensor, None, or a tuple of them."""
        name = row_of(node)
        if name is None:
            raise CompileError(f"taskc has no row for {node.target}", place_of(node))
        self._where, self._name = place_of(node), node.name
        kind, row = ROWS[name]
        result = node.meta.get("val")
        args = _mapped(node.args, values)
        options = {key: value for key, value in node.kwargs.items() if key not in _UNUSED}
        dtype = options.pop("dtype", None)
        options = {key: _mapped(value, values) for key, value in options.items()}
        if kind == "created":
            options["dtype"] = element_type(result.dtype)
        elif kind == "result":
            args = self._converted(args, element_type(result.dtype))
        elif kind == "common":
            args = self._converted(args, element_type(_common(node)), keep=name == "where.self")
        elif dtype is not None:
            raise CompileError(f"{node.target} with a type is none of its forms", self._where)
        made = row(self, *args, **options)
        if isinstance(result, tuple | list):
            return tuple([self._result(*pair) for pair in zip(made, result, strict=True)])
        return self._result(made, result)

    def _converted(self, args: Any, dtype: DType, keep: bool = False) -> Any:
        """Arguments with all tensors of an element type; `keep` leaves the first one alone."""
        if isinstance(args, tuple | list):
            first = args[:1] if keep else args[:0]
            return type(args)([*first, *[self._converted(x, dtype) for x in args[len(first) :]]])
        if not isinstance(args, Tensor) or args.dtype is dtype:
            return args
        made = self.Cast(args, to=_NUMBERS[dtype])
        return replace(made, shape=args.shape)

    def _result(self, made: Any, value: Any) -> Any:
        """A row's output, of the type that PyTorch gives it."""
        if made is None or value is None:
            return None
        if not isinstance(made, Tensor):
            made = self.constant(np.asarray(made))
        dtype = element_type(value.dtype)
        if made.dtype is not dtype:
            made = self.Cast(made, to=_NUMBERS[dtype])
        return Tensor(made.name, dtype, tuple(value.shape))


def _number(x: Any, dtype: DType) -> Array:
    if not dtype.is_float and isinstance(x, float) and not x.is_integer():
        raise CompileError(f"{x} is no {dtype}")
    with np.errstate(over="ignore"):
        return np.array(x, dtype.numpy)


def _attribute(formal: Attribute, value: Any) -> Any:
    if formal.type.endswith("s"):
        return [_attribute(Attribute(formal.type[:-1], True, None), one) for one in value]
    if formal.type == "int":
        if not isinstance(value, int):
            raise CompileError("an option is known only at a call")
        return int(value)
    return float(value) if formal.type == "float" else value


def _types(
    name: str, held: Sequence[Tensor | None], attributes: Mapping[str, Any], number: int
) -> list[DType]:
    """The element types of an operator's outputs."""
    if name == "Cast":
        return [ELEMENT_TYPES[attributes["to"]]]
    if name in _TRUTHS:
        return [boolean]
    if name in _POSITIONS:
        return [i64]
    of = held[1 if name in ("Where", "CastLike") else 0]
    assert of is not None
    if name == "TopK":
        return [of.dtype, i64]
    return [of.dtype] * number


def _mapped(value: Any, values: Mapping[Any, Any]) -> Any:
    """An argument, with tensors, sizes and element types in place of PyTorch's."""
    library: Any = torch()
    if isinstance(value, library.fx.Node):
        if value in values:
            tensor = values[value]
            if tensor is None:
                raise CompileError(f"{value.name} isn't computed by taskc")
            return tensor
        size = value.meta.get("val")
        if isinstance(size, library.SymInt):
            expression = size.node.expr
            return int(expression) if expression.is_Integer else size
        raise CompileError(f"{value.name} is no tensor")
    if isinstance(value, library.SymInt):
        return int(value) if value.node.expr.is_Integer else value
    if isinstance(value, tuple | list):
        return [_mapped(one, values) for one in value]
    if isinstance(value, library.dtype):
        return element_type(value)
    return value


def _common(node: Any) -> Any:
    """The type to which PyTorch promotes a node's operands."""
    library: Any = torch()
    left, right = [
        arg.meta["val"] if isinstance(arg, library.fx.Node) else arg for arg in node.args[-2:]
    ]
    return library.result_type(left, right)


def is_size(node: Any) -> bool:
    """Whether a node computes a size, and no tensor."""
    library: Any = torch()
    return isinstance(
        node.meta.get("val"), library.SymInt | library.SymFloat | library.SymBool | int
    )


def refused(nodes: Iterable[Any]) -> dict[Any, str]:
    """The nodes that taskc doesn't compute, each with the reason."""
    library: Any = torch()
    reasons: dict[Any, str] = {}
    recorder = Recorder()
    values: dict[Any, Any] = {}
    for node in nodes:
        value = node.meta.get("val")
        try:
            if node.op in ("placeholder", "get_attr"):
                if isinstance(value, library.Tensor):
                    values[node] = Tensor(node.name, _usable(value), tuple(value.shape))
                    recorder.bind_shape(values[node], value.shape)
                elif isinstance(value, library.SymInt):
                    recorder.bind(value.node.expr, Tensor(node.name, i64, (1,)))
            elif node.op == "call_function" and not is_size(node):
                values[node] = outputs_of(node, values, recorder)
        except CompileError as error:
            reasons[node] = error.message
            values |= _assumed(node, value)
        except (TypeError, ValueError, IndexError) as error:  # a form that the row doesn't have
            reasons[node] = f"{type(error).__name__}: {error}"
            values |= _assumed(node, value)
    _refuse_uncomputed(values, reasons)
    return reasons


def _usable(value: Any) -> DType:
    """The element type of a tensor that programs take: one of the processor's memory."""
    if value.device.type != "cpu" or value.layout is not value.new_empty(0).layout:
        raise CompileError(f"it is on {value.device}")
    return element_type(value.dtype)


def _assumed(node: Any, value: Any) -> dict[Any, Any]:
    """The outputs of a node that PyTorch computes, as tensors."""

    def tensor(one: Any) -> Tensor | None:
        try:
            return Tensor(node.name, _usable(one), tuple(one.shape))
        except (AttributeError, CompileError):
            return None

    if isinstance(value, tuple | list):
        return {node: tuple(map(tensor, value))}
    return {node: tensor(value)}


def outputs_of(node: Any, values: Mapping[Any, Any], recorder: Recorder) -> Any:
    """The outputs of a node that calls a function."""
    if node.target is python.getitem:
        source, place = node.args
        if source not in values or not isinstance(values[source], tuple):
            raise CompileError("it is an item of no tuple")
        return values[source][place]
    return recorder.record(node, values)


def _refuse_uncomputed(values: Mapping[Any, Any], reasons: dict[Any, str]) -> None:
    """Refuse the nodes of which an output is read that their rows don't compute."""
    for node, outputs in values.items():
        if not isinstance(outputs, tuple) or node in reasons:
            continue
        for user in node.users:
            if user.target is python.getitem and outputs[user.args[1]] is None and user.users:
                reasons[node] = f"its output {user.args[1]} is read"
    for node in values:
        if node.op == "call_function" and node.target is python.getitem and node.args[0] in reasons:
            reasons.setdefault(node, "it is an item of such a node's")


# --- The whole graph ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Translated:
    """A graph, and how a call's arguments and results are those of its inputs and outputs.

    inputs   the argument's number of each input of the graph, and the order of axes in which its memory is row-major
    outputs  for each result the number of an argument, or the name of an output with such an order, or None
    """

    graph: Graph
    inputs: tuple[tuple[int, tuple[int, ...] | None], ...]
    outputs: tuple[Any, ...]


def order_of(value: Any) -> tuple[int, ...] | None:
    """The order of axes in which a dense tensor is row-major, if it isn't as it is; None for all others."""
    if not value.layout or not all(isinstance(n, int) for n in (*value.shape, *value.stride())):
        return None
    if value.is_contiguous():
        return None
    order = sorted(range(value.dim()), key=lambda axis: (-value.stride(axis), -value.shape[axis]))
    return tuple(order) if value.permute(order).is_contiguous() else None


def translated(module: Any, constants: Mapping[Any, Array], name: str) -> Translated:
    """The graph of a module in which every node has a row.

    constants  the arrays of placeholders that are known
    """
    library: Any = torch()
    recorder = Recorder()
    values: dict[Any, Any] = {}
    declared: list[Value] = []
    inputs: list[tuple[int, tuple[int, ...] | None]] = []
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    numbers: list[tuple[int, Any]] = []
    for number, node in enumerate(placeholders):
        value = node.meta["val"]
        if not isinstance(value, library.Tensor):
            numbers.append((number, node))
        elif node in constants:
            recorder.constants[node.name] = constants[node]
            values[node] = Tensor(node.name, element_type(value.dtype), tuple(value.shape))
        elif node.users:
            values[node] = _input(recorder, node, value, declared)
            inputs.append((number, order_of(value)))
    for number, node in numbers:
        if (
            isinstance(node.meta["val"], library.SymInt)
            and node.meta["val"].node.expr not in recorder._sizes
        ):
            declared.append(Value(node.name, i64, (1,)))
            inputs.append((number, None))
            recorder.bind(node.meta["val"].node.expr, Tensor(node.name, i64, (1,)))
    results = recorded(module, recorder, values, constants)
    outputs = tuple([_output(recorder, one, values, placeholders) for one in results])
    names = tuple(dict.fromkeys([one[0] for one in outputs if isinstance(one, tuple)]))
    graph = Graph(name, tuple(declared), names, tuple(recorder.nodes), recorder.constants, {})
    return Translated(graph, tuple(inputs), outputs)


def recorded(
    module: Any, recorder: Recorder, values: dict[Any, Any], constants: Mapping[Any, Array]
) -> Sequence[Any]:
    """Record all nodes, whose outputs are added to `values`; returns the nodes of the results, or None for one."""
    results: Sequence[Any] = ()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            recorder.constants[node.name] = array = constants[node]
            values[node] = Tensor(node.name, from_numpy(array.dtype), array.shape)
        elif node.op == "call_function" and not is_size(node):
            values[node] = outputs_of(node, values, recorder)
        elif node.op == "output":
            (returned,) = node.args
            results = returned if isinstance(returned, tuple | list) else (returned,)
    return results


def _input(recorder: Recorder, node: Any, value: Any, declared: list[Value]) -> Tensor:
    dtype, order = element_type(value.dtype), order_of(value)
    memory = [value.shape[axis] for axis in order] if order else [*value.shape]
    shape = tuple([n if isinstance(n, int) else None for n in memory])
    declared.append(Value(node.name, dtype, shape))
    tensor = Tensor(node.name, dtype, tuple(value.shape))
    if order:
        recorder._where = NOWHERE
        turned: Tensor = recorder.Transpose(
            tensor, perm=[order.index(axis) for axis in range(len(order))]
        )
        return replace(turned, shape=tuple(value.shape))
    recorder.bind_shape(tensor, value.shape)
    return tensor


def _output(
    recorder: Recorder, node: Any, values: Mapping[Any, Any], placeholders: list[Any]
) -> Any:
    """The source of a result: an argument's number, an output's name and order, or None."""
    if node is None:
        return None
    if node in placeholders:
        return placeholders.index(node)
    tensor, order = values[node], order_of(node.meta["val"])
    if order is None:
        return tensor.name, None
    turned = recorder.Transpose(tensor, perm=[*order])
    return turned.name, tuple([order.index(axis) for axis in range(len(order))])
