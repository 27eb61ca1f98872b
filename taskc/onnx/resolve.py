"""Resolve a model's graphs and functions into one graph, in which every name and operator is known.

Functions are inlined, as are operators that ONNX defines by others and taskc has no builder for. Constant nodes become
constants. Nodes are sorted. Names, operators and attributes are checked.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from typing import TypeAlias

import numpy as np

from taskc.dataclass import dataclass
from taskc.errors import CompileError, Location
from taskc.ir.types import DTYPES
from taskc.onnx import schemas
from taskc.onnx.serialized import (
    Function,
    Key,
    Reference,
    WrittenAttribute,
    WrittenGraph,
    WrittenNode,
    strings_of,
)
from taskc.operators.call import names_of
from taskc.operators.graph import Array, Graph, Node, Value

# --- Topological order --------------------------------------------------------------------------


def in_order(nodes: tuple[WrittenNode, ...]) -> list[WrittenNode]:
    """The nodes of one graph in topological order, close to their own order."""
    makers = {name: at for at, item in enumerate(nodes) for name in item.node.outputs if name}
    needs = [{makers[name] for name in item.reads if name in makers} for item in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for at, needed in enumerate(needs):
        for maker in needed:
            users[maker].append(at)
    waits = list(map(len, needs))
    ready = [at for at, count in enumerate(waits) if not count]
    order: list[int] = []
    while ready:
        at = heapq.heappop(ready)
        order.append(at)
        for user in users[at]:
            waits[user] -= 1
            if not waits[user]:
                heapq.heappush(ready, user)
    if len(order) < len(nodes):
        circle = _circle(needs, waits)
        titles = ", ".join(nodes[at].node.title for at in circle[1:5])
        more = f" and {len(circle) - 5} more" if len(circle) > 5 else ""
        way = f", by way of the {titles}{more}" if titles else ""
        raise nodes[circle[0]].node.error(f"it needs what it makes itself{way}")
    return [nodes[at] for at in order]


def _circle(needs: list[set[int]], waits: list[int]) -> list[int]:
    """A cycle of nodes, each of which needs the next; every node that waits needs another one that waits."""
    path: list[int] = []
    seen: dict[int, int] = {}
    at = next(at for at, count in enumerate(waits) if count)
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = min(need for need in needs[at] if waits[need])
    return path[seen[at] :]


# --- Bodies -------------------------------------------------------------------------------------


def _check_bodies(node: Node) -> None:
    """Raise an error for a body that takes or makes another number of tensors than its node needs."""
    for body in node.graphs if not node.domain else ():
        match node.operator:
            case "If":
                takes, makes, is_exact = 0, len(node.outputs), True
            case "Loop":
                takes = max(2, len(node.inputs))
                makes, is_exact = 1 + max(takes - 2, len(node.outputs)), False
            case "Scan":
                takes = len(node.inputs) - (node.version < 9)
                scanned = node.attributes["num_scan_inputs"]
                assert isinstance(scanned, int)  # by its schema
                states = takes - scanned
                makes, is_exact = max(states, len(node.outputs)), False
            case _:
                continue
        if len(body.inputs) != takes:
            raise node.error(f"its body takes {len(body.inputs)} tensors, and it gives {takes}")
        if len(body.outputs) != makes and (is_exact or len(body.outputs) < makes):
            need = makes if is_exact else f"at least {makes}"
            raise node.error(f"its body makes {len(body.outputs)} tensors, and it needs {need}")


# --- Constant nodes -----------------------------------------------------------------------------


_TYPES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def constant_of(node: Node, attributes: dict[str, WrittenAttribute]) -> Array:
    """The array of a Constant node, which is in one of several attributes."""
    if not node.outputs[0]:
        raise node.error("its output has no name")
    if len(attributes) != 1:
        has = ", ".join(attributes) or "none"
        raise node.error(f"it needs one attribute that says its value, and has {has}")
    ((name, attribute),) = attributes.items()
    if isinstance(attribute.value, np.ndarray):
        return attribute.value
    if name not in _TYPES:
        return strings_of(attribute.value)
    array = np.array(attribute.value, _TYPES[name])
    array.flags.writeable = False
    return array


IsKnown: TypeAlias = Callable[[str, str, int], bool]
BodyOf: TypeAlias = "Callable[[Node, dict[str, WrittenAttribute], list[Value]], Function | None]"

MOST_NODES = 200_000
_DEEPEST = 40
_LONGEST_PREFIX = 200


def in_onnx(operator: str, domain: str, version: int) -> bool:
    """Whether an operator is in ONNX's own tables."""
    return schemas.schema_of(operator, version, domain) is not None


def resolve(
    written: WrittenGraph,
    functions: dict[Key, Function],
    body_of: BodyOf,
    is_known: IsKnown,
    where: Location,
) -> Graph:
    """The resolved graph; `body_of` returns ONNX's definition of a node for some input types, or None."""
    resolver = _Resolver(functions, body_of, is_known, where, {*_all_names(written)})
    graph = resolver.graph(written, None)
    if resolver.unknown:
        hint = "tc.onnx.partition leaves these to ONNX Runtime"
        raise CompileError(_unknown(resolver.unknown), where, hint)
    return graph


def _all_names(written: WrittenGraph) -> Iterable[str]:
    yield from written.names
    for node in written.nodes:
        for graph in node.graphs:
            yield from _all_names(graph)


def _unknown(unknown: dict[tuple[str, str, int], list[Node]]) -> str:
    lines = ["the model has operators that taskc doesn't know:"]
    for (operator, domain, version), nodes in sorted(unknown.items()):
        of = domain or "ONNX"
        count = f"{len(nodes)} nodes, the first is the" if len(nodes) > 1 else "the"
        near = difflib.get_close_matches(operator, names_of(domain), 2) if domain else []
        has = f"; taskc has {' and '.join(near)}" if near else ""
        lines.append(f"  {operator} (of {of}, opset {version}): {count} {nodes[0].title}{has}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Builder:
    """A graph under construction, and the known types of tensors that it may use."""

    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    types: dict[str, Value] = field(default_factory=dict)

    def types_of(self, node: Node) -> list[Value]:
        """The known types of a node's inputs."""
        return [self.types.get(name, Value(name)) for name in node.inputs]

    def add_constant(self, name: str, array: Array) -> None:
        self.constants[name] = array
        dtype = next((dtype for dtype in DTYPES.values() if dtype.numpy == array.dtype), None)
        self.types[name] = Value(name, dtype, array.shape)


@dataclass(frozen=True, slots=True)
class _Scope:
    """The meaning of names at one place of the model.

    outer   the scope of the graph around; the body of a function has none
    prefix  the prefix of a function body's names where it is inlined
    given   the attributes of the call that a function is inlined for; None outside of functions
    depth   the number of enclosing graphs and functions
    """

    made: _Builder
    outer: _Scope | None = None
    prefix: str = ""
    given: dict[str, WrittenAttribute] | None = None
    depth: int = 0
    names: dict[str, str] = field(default_factory=dict)

    def find(self, name: str) -> str | None:
        """The name in the resolved graph; "" for an input that a call leaves out."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return "" if name == "" else None

    @property
    def visible(self) -> Iterable[str]:
        return [*self.names, *(self.outer.visible if self.outer else ())]


@dataclass(slots=True)
class _Resolver:
    functions: dict[Key, Function]
    body_of: BodyOf
    is_known: IsKnown
    where: Location
    taken: set[str]  # all names in use
    unknown: dict[tuple[str, str, int], list[Node]] = field(default_factory=dict)
    repeats: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def graph(self, written: WrittenGraph, outer: _Scope | None) -> Graph:
        scope = _Scope(_Builder())
        if outer is not None:
            made = _Builder(types={**outer.made.types})
            scope = _Scope(made, outer, outer.prefix, outer.given, outer.depth + 1)
        self.name_inputs(written, scope)
        self.name_outputs(written.nodes, scope, {})
        values = {
            scope.names[name]: replace(value, name=scope.names[name])
            for name, value in written.values.items()
            if name in scope.names
        }
        scope.made.types.update(values)
        for name, array in written.constants.items():
            scope.made.add_constant(scope.names[name], array)
        self.add(written.nodes, scope)
        outputs = []
        for name in written.outputs:
            resolved = scope.find(name)
            if not resolved:
                message = f"nothing makes the output '{name}' of the graph '{written.name}'"
                raise CompileError(message, self.where, _close(name, scope))
            outputs.append(resolved)
        inputs = tuple(replace(item, name=scope.names[item.name]) for item in written.inputs)
        nodes = tuple(scope.made.nodes)
        return Graph(written.name, inputs, tuple(outputs), nodes, scope.made.constants, values)

    def name_inputs(self, written: WrittenGraph, scope: _Scope) -> None:
        """Name a graph's inputs and constants, which may shadow names of the enclosing graphs."""
        for name in (*(value.name for value in written.inputs), *written.constants):
            if not name:
                message = f"the graph '{written.name}' has an input or initializer without a name"
                raise CompileError(message, self.where)
            if name in scope.names:
                raise CompileError(
                    f"the graph '{written.name}' has two inputs '{name}'", self.where
                )
            hides = scope.outer is not None and scope.outer.find(name) is not None
            scope.names[name] = self.fresh(scope.prefix + name) if hides or scope.prefix else name

    def name_outputs(
        self, written: tuple[WrittenNode, ...], scope: _Scope, bound: dict[str, str]
    ) -> None:
        """Name the outputs of nodes; `bound` has the caller's names for outputs of an inlined function."""
        for item in written:
            for name in filter(None, item.node.outputs):
                if name in scope.names or (scope.outer and scope.outer.find(name) is not None):
                    raise item.node.error(f"something else makes its output '{name}', too")
                renamed = self.fresh if scope.prefix else str
                scope.names[name] = bound.get(name) or renamed(scope.prefix + name)

    def add(self, written: tuple[WrittenNode, ...], scope: _Scope) -> None:
        """Add nodes to the graph under construction."""
        for item in in_order(written):
            self.node(item, scope)

    def node(self, written: WrittenNode, scope: _Scope) -> None:
        self.count += 1
        if self.count > MOST_NODES:
            message = f"the model has more than {MOST_NODES} nodes when its functions are inlined"
            raise CompileError(message, self.where)
        node = written.node
        inputs = []
        for name in node.inputs:
            resolved = scope.find(name)
            if resolved is None:
                raise node.error(f"nothing makes its input '{name}'", _close(name, scope))
            inputs.append(resolved)
        node = replace(
            node,
            inputs=tuple(inputs),
            outputs=tuple(scope.names[name] if name else "" for name in node.outputs),
            name=scope.prefix + node.name if node.name else "",
        )
        attributes = self.attributes(node, written.attributes, scope)
        function = self.functions.get((node.domain, node.operator, written.overload))
        if function is not None:
            self.inline(function, node, attributes, scope)
            return
        node = schemas.at_least_oldest(node)
        schema = schemas.schema_of(node.operator, node.version, node.domain)
        if schema is not None:
            attributes = schemas.complete(node, attributes, schema)
        is_operator = schema is not None or node.domain != ""
        if node.operator == "Constant" and not node.domain:
            scope.made.add_constant(node.outputs[0], constant_of(node, attributes))
        elif is_operator and self.is_known(node.operator, node.domain, node.version):
            values = {name: attribute.value for name, attribute in attributes.items()}
            node = replace(node, attributes=values)
            _check_bodies(node)
            scope.made.nodes.append(node)
            if schema is not None:
                for value in schemas.made_types(node, schema, scope.made.types_of(node)):
                    scope.made.types.setdefault(value.name, value)
        elif schema is not None and (
            function := self.body_of(node, attributes, scope.made.types_of(node))
        ):
            self.inline(function, node, attributes, scope)
        else:
            key = (node.operator, node.domain, node.version)
            self.unknown.setdefault(key, []).append(node)

    def attributes(
        self, node: Node, written: dict[str, WrittenAttribute], scope: _Scope
    ) -> dict[str, WrittenAttribute]:
        """Attributes with references replaced by the call's attributes; ones that the call lacks are left out."""
        resolved = {}
        for name, attribute in written.items():
            if not isinstance(attribute.value, Reference):
                resolved[name] = replace(attribute, value=self.value(attribute.value, scope))
            elif scope.given is None:
                raise node.error(f"its attribute '{name}' is a function's, and it is in none")
            elif attribute.value.name in scope.given:
                resolved[name] = scope.given[attribute.value.name]
        return resolved

    def value(self, value: object, scope: _Scope) -> object:
        match value:
            case WrittenGraph():
                return self.graph(value, scope)
            case list():
                return [self.value(item, scope) for item in value]
        return value

    def inline(
        self, function: Function, node: Node, attributes: dict[str, WrittenAttribute], scope: _Scope
    ) -> None:
        """Add the nodes of a function's body in place of a node that calls it."""
        _check_call(function, node, scope)
        label = node.name or next(filter(None, node.outputs), node.operator)
        inner = _Scope(
            scope.made,
            None,
            f"{label[-_LONGEST_PREFIX:]}/",
            {**function.defaults, **attributes},
            scope.depth + 1,
            dict.fromkeys(function.inputs, "")
            | dict(zip(function.inputs, node.inputs, strict=False)),
        )
        bound: dict[str, str] = {}
        copied: list[tuple[str, str]] = []
        for formal, name in zip(function.outputs, node.outputs, strict=False):
            if name and (formal in function.inputs or formal in bound):
                copied.append((formal, name))
            elif name:
                bound[formal] = name
        self.name_outputs(function.nodes, inner, bound)
        self.add(function.nodes, inner)
        for formal in [*bound, *(formal for formal, _ in copied)]:
            if not inner.find(formal):
                raise node.error(f"the function {function.name} doesn't make its output '{formal}'")
        for formal, name in copied:
            identity = Node(
                "Identity", (inner.names[formal],), (name,), {}, schemas.NEWEST, "", "", self.where
            )
            scope.made.nodes.append(identity)

    def fresh(self, name: str) -> str:
        """A name that isn't in use."""
        candidate = name
        while candidate in self.taken:
            self.repeats[name] = self.repeats.get(name, 1) + 1
            candidate = f"{name}_{self.repeats[name]}"
        self.taken.add(candidate)
        return candidate


def _check_call(function: Function, node: Node, scope: _Scope) -> None:
    if scope.depth >= _DEEPEST:
        message = f"its function {function.name} lies {_DEEPEST} deep in graphs and functions"
        raise node.error(message, "a function may not call itself")
    if len(node.inputs) > len(function.inputs):
        raise node.error(
            f"it has {len(node.inputs)} inputs, but its function {len(function.inputs)}"
        )
    if len(node.outputs) > len(function.outputs):
        raise node.error(
            f"it has {len(node.outputs)} outputs, but its function {len(function.outputs)}"
        )


def _close(name: str, scope: _Scope) -> str | None:
    close = difflib.get_close_matches(name, scope.visible, 1)
    return f"did you mean '{close[0]}'?" if close else None
