"""The parser of programs: steps, followed by the callees.

    parse_program(text, constants) -> Program

The grammar is that of kernels, ir.lark. A scalar's number has the type of the parameter that it is for, and an
extent is an i64. A computation's dimensions are the program's and its loops', by their names. That the calls fit
what they call for all sizes, and read what was written, is checked where a `ProgramDefinition` is made of a program.

The parser of computations, which follow the program that calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from lark import Token, Tree

from taskc.ir import nodes as ir
from taskc.ir.code_size import deep
from taskc.ir.nodes import Expression
from taskc.ir.parser import Statements, kernel_of, signature
from taskc.ir.parser_expressions import Node, location, syntax_tree
from taskc.ir.rewrite import walk
from taskc.ir.signature import Parameter, inputs_of, is_output, outputs_of
from taskc.ir.types import TensorType, i64
from taskc.programs.ir import (
    Branch,
    Call,
    Callee,
    Computation,
    Loop,
    Program,
    Step,
    View,
    While,
    condition_problem,
    memory_problem,
)


def computation_of(
    statements: Statements, tree: Node, sizes: Mapping[str, ir.Variable]
) -> Computation:
    """The computation of a tree; its dimensions are among the program's sizes."""
    names = statements.names
    name, *parts, element = tree.children
    is_unrounded = getattr(name, "data", None) == "unrounded"
    if is_unrounded:
        name, *parts = parts
    dimensions = []
    for binder in [part for one in parts if one.data == "dimensions" for part in one.children]:
        dimension = sizes.get(binder.children[0])
        if dimension is None:
            message = f"the program has no dimension and no loop of {binder.children[0]}"
            raise names.error(message, binder)
        dimensions.append(names.define(binder.children[0], dimension))
    declared = [part for part in parts if part.data not in ("dimensions", "shared")]
    _, parameters = signature(statements, declared)
    output = parameters[-1] if parameters else None
    roles = [item.role for item in parameters[:-1] if isinstance(item, ir.Tensor)]
    if not isinstance(output, ir.Tensor) or output.role != "out" or set(roles) - {"in"}:
        message = "a computation has inputs and scalars, and last its one output"
        raise names.error(message, name)
    written, *binders, expression = element.children
    if names.find(written, ir.Tensor) is not output:
        raise names.error(f"a computation writes its output, {output}", written)
    if len(binders) != len(output.shape):
        raise names.error(f"{output} has rank {len(output.shape)}, not {len(binders)}", element)
    variables = tuple([names.bind(binder, i64) for binder in binders])
    for part in parts:
        if part.data == "shared":
            names.define(part.children[0], statements.expression(part.children[1], None))
    value = statements.expression(expression, output.dtype)
    if value.dtype is not output.dtype:
        raise names.error(f"{output} is of {output.dtype}, and this of {value.dtype}", expression)
    if any(isinstance(node, ir.Read) and node.tensor is output for node in walk(value)):
        raise names.error(f"{output} is written, and not read", expression)
    return Computation(
        names.title(name),
        parameters,
        tuple(dimensions),
        variables,
        value,
        is_unrounded,
        loc=names.location(name),
    )


_SIZE_OPERATORS = ("+", "-", "*", "//", "%")
_SIZES = f"it is computed from dimensions and integers by {' '.join(_SIZE_OPERATORS)}"

Constants = Mapping[str, np.ndarray]


def parse_program(text: str, file: str = "<ir>", constants: Constants | None = None) -> Program:
    """Parse the text of a program; raises a CompileError with the location of an error.

    constants  the memory of each by what stands for it in the text, its `digest_of`
    """
    with deep(location(text.splitlines(), file, 1, 1)):
        tree, *callees = syntax_tree(text, file, "program_text").children
        return _Reader(text, file, constants or {}).program(tree, callees)


class _Reader:
    """The state of the parser of a program."""

    def __init__(self, text: str, file: str, known: Constants) -> None:
        self.text = text
        self.file = file
        self.known = known
        self.statements = Statements(text, file)
        self.names = self.statements.names
        self.callees: dict[str, Callee] = {}
        self.called: set[str] = set()
        self.dimensions: tuple[ir.Variable, ...] = ()
        self.loops: dict[str, ir.Variable] = {}
        self.constants: dict[ir.Tensor, np.ndarray] = {}
        self.temporaries: list[ir.Tensor] = []
        self.views: dict[ir.Tensor, View] = {}

    def program(self, tree: Node, callees: list[Node]) -> Program:
        name, *parts, steps = tree.children
        self.dimensions, parameters = signature(self.statements, parts)
        for variable in self.dimensions:
            if variable.dtype is not i64 or variable.multiple < 1:
                raise self.names.error("a dimension is an i64, a multiple of 1 or more", parts[0])
        declared = [part for part in parts if part.data != "dimensions"]
        for parameter, part in zip(parameters, declared, strict=True):
            if isinstance(parameter, ir.Tensor):
                self.check_tensor(parameter, part)
        self.find_loops(steps)
        for callee in callees:
            self.callee(callee)
        calls = self.steps(steps)
        for unused, callee in zip(self.callees, callees, strict=True):
            if unused not in self.called:
                raise self.names.error(f"no call is one of {unused}", callee.children[0])
        return Program(
            name=self.names.title(name),
            parameters=parameters,
            dimensions=self.dimensions,
            temporaries=tuple(self.temporaries),
            calls=calls,
            views=tuple(self.views.values()),
            constants=tuple(self.constants.items()),
            loc=self.names.location(name),
        )

    # --- what is called ---

    def find_loops(self, steps: Node) -> None:
        """Bind the variables of all loops, which computations below may name."""
        for step in steps.children:
            if step.data == "loop":
                name = step.children[0]
                if name in self.loops or name in self.names.bound:
                    raise self.names.error(f"{name} is bound already", name)
                self.loops[name] = ir.Variable(str(name), i64, loc=self.names.location(name))
            for body in step.children:
                if isinstance(body, Tree) and body.data == "calls":
                    self.find_loops(body)

    def callee(self, tree: Node) -> None:
        statements = Statements(self.text, self.file)
        callee_read: Callee
        if tree.data == "kernel":
            callee_read = kernel_of(statements, tree)
        else:
            sizes = {size.name: size for size in self.dimensions}
            callee_read = computation_of(statements, tree, sizes | self.loops)
        if callee_read.name in self.callees:
            raise self.names.error(f"two callees are called {callee_read.name}", tree.children[0])
        self.callees[callee_read.name] = callee_read

    # --- what stands in a program ---

    def steps(self, tree: Node) -> tuple[Step, ...]:
        found = [_STEPS[step.data](self, step) for step in tree.children]
        return tuple([step for step in found if step is not None])

    def pass_(self, tree: Node) -> None:
        pass

    def constant(self, tree: Node) -> None:
        tensor, text = self.tensor(tree), tree.children[2]
        memory = self.known.get(self.names.string(text))
        if memory is None:
            raise self.names.error(
                f"the elements of {tensor} aren't given",
                text,
                "a program's text stands for them by a digest: parse_program(text, constants={digest: array})",
            )
        kind = TensorType(tensor.dtype, tensor.shape, tensor.layout)
        if not all(isinstance(extent, int) for extent in tensor.shape):
            raise self.names.error("the extents of a constant are numbers", tree.children[1])
        problem = memory_problem(kind, memory)
        if problem is not None:
            raise self.names.error(f"{tensor} is a {kind}, and {problem}", text)
        self.constants[tensor] = memory

    def temporary(self, tree: Node) -> None:
        self.temporaries.append(self.tensor(tree))

    def view(self, tree: Node) -> None:
        _, kind, seen, *place = tree.children
        of = self.names.find(seen, ir.Tensor)
        if of in self.views:
            message = f"{of} is a view, too"
            raise self.names.error(message, seen, f"it is one of {self.views[of].of}")
        view = self.tensor(tree)
        if view.dtype is not of.dtype:
            raise self.names.error(f"{of} is of {of.dtype}, and its view too", kind)
        offset = self.size(place[0]) if place else 0
        self.views[view] = View(view, of, offset)

    def tensor(self, tree: Node) -> ir.Tensor:
        name, kind = tree.children[:2]
        tensor = self.statements.tensor(name, kind, ir.GLOBAL)
        self.check_tensor(tensor, kind)
        return self.names.define(name, tensor)

    def loop(self, tree: Node) -> Loop:
        name, count, body = tree.children
        times, variable = self.size(count), self.loops[name]
        with self.names.nested():
            self.names.define(name, variable)
            steps = self.steps(body)
        return Loop(variable, times, steps, loc=self.names.location(tree))

    def branch(self, tree: Node) -> Branch:
        name, *bodies = tree.children
        condition = self.condition(name)
        then, otherwise = [*map(self.body, bodies), ()][:2]
        return Branch(condition, then, otherwise, loc=self.names.location(name))

    def turns(self, tree: Node) -> While:
        name, body = tree.children
        return While(self.condition(name), self.body(body), loc=self.names.location(name))

    def condition(self, name: Token) -> ir.Tensor:
        found = self.names.find(name, ir.Tensor)
        if problem := condition_problem(found):
            raise self.names.error(f"{found} {problem}", name)
        return found

    def body(self, tree: Node) -> tuple[Step, ...]:
        with self.names.nested():
            return self.steps(tree)

    def call(self, tree: Node) -> Call:
        name, *given = tree.children
        callee = self.callees.get(name)
        if callee is None:
            raise self.names.error(f"there is no kernel {name}", name)
        is_apart = bool(given) and isinstance(given[-1], Tree) and given[-1].data == "apart"
        given = given[: len(given) - is_apart]
        outputs = self.outputs(given.pop()) if given and _is_outputs(given[-1]) else []
        misplaced = next(filter(_is_outputs, given), None)
        if misplaced is not None:
            raise self.names.error("outputs come last, as out=…", misplaced)
        for kind, wanted, found in (
            ("input", inputs_of(callee.parameters), given),
            ("output", outputs_of(callee.parameters), outputs),
        ):
            if len(wanted) != len(found):
                plural = "" if len(wanted) == 1 else "s"
                counts = f"{len(wanted)} {kind}{plural}, not {len(found)}"
                raise self.names.error(f"{name} takes {counts}", tree)
        arguments = tuple(
            [
                self.argument(parameter, (outputs if is_output(parameter) else given).pop(0))
                for parameter in callee.parameters
            ]
        )
        self.called.add(callee.name)
        return Call(callee, arguments, is_apart, loc=self.names.location(tree))

    def outputs(self, tree: Node) -> list[Node]:
        if tree.children[0] != "out":
            message = f"inputs come in order, outputs as out=…, not {tree.children[0]}=…"
            raise self.names.error(message, tree)
        return list(tree.children[1:])

    def argument(self, parameter: Parameter, tree: Node) -> ir.Tensor | Expression:
        if isinstance(parameter, ir.Tensor):
            if not (isinstance(tree, Token) and tree.type == "NAME"):
                raise self.names.error(f"{parameter} is a tensor, which has a name", tree)
            return self.names.find(tree, ir.Tensor)
        value = self.statements.expression(tree, parameter.dtype)
        if value.dtype is not parameter.dtype:
            message = f"{parameter} is of type {parameter.dtype}, and this of {value.dtype}"
            raise self.names.error(message, tree)
        if not isinstance(value, ir.Constant | ir.Variable):
            self.check_size(value.operand if isinstance(value, ir.Cast) else value, tree)
        return value

    # --- sizes ---

    def size(self, tree: Node) -> int | Expression:
        value = self.statements.expression(tree, i64)
        if value.dtype is not i64:
            raise self.names.error("this is no size", tree, _SIZES)
        self.check_size(value, tree)
        return int(value.value) if isinstance(value, ir.Constant) else value

    def check_tensor(self, tensor: ir.Tensor, tree: Node) -> None:
        if (tensor.given, tensor.swizzle, tensor.offset) != (None, None, None):
            message = "a tensor of a program has a shape and perhaps a layout, and nothing else"
            raise self.names.error(message, tree)
        for extent in tensor.shape:
            if not isinstance(extent, int):
                self.check_size(extent, tree)
        try:
            TensorType(tensor.dtype, tensor.shape, tensor.layout)
        except ValueError as error:
            raise self.names.error(str(error), tree) from None

    def check_size(self, size: Expression, tree: Node) -> None:
        if not all(map(self.is_of_size, walk(size))):
            raise self.names.error("this is no size", tree, _SIZES)

    def is_of_size(self, node: object) -> bool:
        match node:
            case ir.Binary():
                return node.operator in _SIZE_OPERATORS
            case ir.Constant():
                return node.dtype is i64
        return node in self.dimensions or node in self.loops.values()


def _is_outputs(tree: Node) -> bool:
    return isinstance(tree, Tree) and tree.data == "outputs"


_STEPS: dict[str, Callable[[_Reader, Node], Step | None]] = {
    "pass_": _Reader.pass_,
    "constant": _Reader.constant,
    "temporary": _Reader.temporary,
    "view": _Reader.view,
    "call_step": _Reader.call,
    "loop": _Reader.loop,
    "branch": _Reader.branch,
    "turns": _Reader.turns,
}
