"""Reading the text of a program: its calls, and below them the kernels that they name.

    parse_program(text) -> Program

The grammar is that of kernels, ir.lark. A scalar's number has the type of the parameter that it is for, and an
extent is an i64. That the calls fit their kernels for all sizes, and read what was written, is for
`taskc.lang.program` to see, where a program is made that can be called.
"""

from __future__ import annotations

from collections.abc import Callable

from lark import Token, Tree

from taskc.ir import nodes as ir
from taskc.ir.depth import deep
from taskc.ir.nodes import Expression
from taskc.ir.parser import kernel_of, signature
from taskc.ir.parser_names import Node
from taskc.ir.parser_statements import Statements
from taskc.ir.parser_text import location, syntax_tree
from taskc.ir.program import Call, Program, View
from taskc.ir.rewrite import walk
from taskc.ir.signature import Parameter, inputs_of, is_output, outputs_of
from taskc.ir.types import TensorType, i64

_SIZE_OPERATORS = ("+", "-", "*", "//", "%")


def parse_program(text: str, file: str = "<ir>") -> Program:
    """The program that a text describes; a CompileError tells where it can't be one."""
    with deep(location(text.splitlines(), file, 1, 1)):
        tree, *kernels = syntax_tree(text, file, "program_text").children
        return _Reader(text, file).program(tree, kernels)


class _Reader:
    """What has been read of a program so far."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.statements = Statements(text, file)
        self.names = self.statements.names
        self.kernels: dict[str, ir.Kernel] = {}
        self.dimensions: tuple[ir.Variable, ...] = ()
        self.temporaries: list[ir.Tensor] = []
        self.views: dict[ir.Tensor, View] = {}
        self.calls: list[Call] = []

    def program(self, tree: Node, kernels: list[Node]) -> Program:
        for kernel in kernels:
            self.kernel(kernel)
        name, *parts, steps = tree.children
        self.dimensions, parameters = signature(self.statements, parts)
        for variable in self.dimensions:
            if variable.dtype is not i64 or variable.multiple < 1:
                raise self.names.error("a dimension is an i64, a multiple of 1 or more", parts[0])
        declared = [part for part in parts if part.data != "dimensions"]
        for parameter, part in zip(parameters, declared, strict=True):
            if isinstance(parameter, ir.Tensor):
                self.check_tensor(parameter, part)
        for step in steps.children:
            _STEPS[step.data](self, step)
        self.check_all_are_called(kernels)
        return Program(
            name=self.names.title(name),
            parameters=parameters,
            dimensions=self.dimensions,
            temporaries=tuple(self.temporaries),
            calls=tuple(self.calls),
            views=tuple(self.views.values()),
            loc=self.names.location(name),
        )

    def kernel(self, tree: Node) -> None:
        kernel = kernel_of(Statements(self.text, self.file), tree)
        if kernel.name in self.kernels:
            raise self.names.error(f"two kernels are called {kernel.name}", tree.children[0])
        self.kernels[kernel.name] = kernel

    def check_all_are_called(self, kernels: list[Node]) -> None:
        called = {id(call.callee) for call in self.calls}
        for kernel, tree in zip(self.kernels.values(), kernels, strict=True):
            if id(kernel) not in called:
                raise self.names.error(f"no call is one of {kernel.name}", tree.children[0])

    # --- what stands in a program ---

    def pass_(self, tree: Node) -> None:
        pass

    def temporary(self, tree: Node) -> None:
        self.temporaries.append(self.tensor(tree))

    def view(self, tree: Node) -> None:
        of = self.names.find(tree.children[2], ir.Tensor)
        if of in self.views:
            raise self.names.error(
                f"{of} is a view, too", tree.children[2], f"it is one of {self.views[of].of}"
            )
        view = self.tensor(tree)
        if view.dtype is not of.dtype:
            raise self.names.error(f"{of} is of {of.dtype}, and its view too", tree.children[1])
        self.views[view] = View(view, of)

    def tensor(self, tree: Node) -> ir.Tensor:
        name, kind = tree.children[:2]
        tensor = self.statements.tensor(name, kind, ir.GLOBAL)
        self.check_tensor(tensor, kind)
        return self.names.define(name, tensor)

    def kernel_call(self, tree: Node) -> None:
        name, *given = tree.children
        kernel = self.kernels.get(name)
        if kernel is None:
            raise self.names.error(f"there is no kernel {name}", name)
        outputs = self.outputs(given.pop()) if given and _is_outputs(given[-1]) else []
        misplaced = next(filter(_is_outputs, given), None)
        if misplaced is not None:
            raise self.names.error("outputs come last, as out=…", misplaced)
        for kind, wanted, found in (
            ("input", inputs_of(kernel.parameters), given),
            ("output", outputs_of(kernel.parameters), outputs),
        ):
            if len(wanted) != len(found):
                plural = "" if len(wanted) == 1 else "s"
                counts = f"{len(wanted)} {kind}{plural}, not {len(found)}"
                raise self.names.error(f"{name} takes {counts}", tree)
        arguments = tuple(
            [
                self.argument(parameter, (outputs if is_output(parameter) else given).pop(0))
                for parameter in kernel.parameters
            ]
        )
        self.calls.append(Call(kernel, arguments, loc=self.names.location(tree)))

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
            hint = f"it is computed from dimensions and integers by {' '.join(_SIZE_OPERATORS)}"
            raise self.names.error("this is no size", tree, hint)

    def is_of_size(self, node: object) -> bool:
        match node:
            case ir.Binary():
                return node.operator in _SIZE_OPERATORS
            case ir.Constant():
                return node.dtype is i64
        return node in self.dimensions


def _is_outputs(tree: Node) -> bool:
    return isinstance(tree, Tree) and tree.data == "outputs"


_STEPS: dict[str, Callable[[_Reader, Node], None]] = {
    name: getattr(_Reader, name) for name in ("pass_", "temporary", "view", "kernel_call")
}
