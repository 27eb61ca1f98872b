"""The text of programs: the calls, and then each callee once; `taskc.programs.parser` parses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from taskc.errors import assert_never
from taskc.ir.code_size import deeply
from taskc.ir.nodes import Expression, Kernel, Let, Tensor, Variable
from taskc.ir.printer import Printer, to_text
from taskc.ir.printer_expressions import joined
from taskc.ir.rewrite import expressions, walk
from taskc.ir.signature import is_output
from taskc.ir.text_rules import RESERVED
from taskc.programs.ir import (
    Branch,
    Call,
    Computation,
    Loop,
    Program,
    Step,
    View,
    While,
    callees_of,
    digest_of,
    views_by_loop,
)

_SHORT = 8  # largest number of nodes of an expression that is repeated at each use


@to_text.register(Program)
@deeply
def _(program: Program) -> str:
    """A program followed by its callees."""
    printer = _Printer(None)
    parts = [printer.program(program)]
    for name, callee in callees_of(program).items():
        if isinstance(callee, Kernel):
            parts.append(to_text(replace(callee, name=name)))
        else:
            sizes = {size: printer.text.name(size) for size in callee.dimensions}
            parts.append(_Printer(None, sizes).computation(replace(callee, name=name)))
    return "\n".join(parts)


@to_text.register(Computation)
@deeply
def _(computation: Computation) -> str:
    return _Printer(None).computation(computation)


@deeply
def calls_text(program: Program) -> str:
    """A program without its callees, as text with a final newline."""
    return _Printer(None).program(program)


class _Printer(Printer):
    """Prints programs and computations; their expressions look as in a kernel."""

    def program(self, program: Program) -> str:
        self.text.taken |= RESERVED
        lines = [self.header("program", program)]
        for tensor, memory in program.constants:
            kind = self.text.type(tensor)
            lines.append(f'    constant {self.text.name(tensor)}: {kind} = "{digest_of(memory)}"')
        for tensor in program.temporaries:
            lines.append(f"    temporary {self.text.name(tensor)}: {self.text.type(tensor)}")
        views = views_by_loop(program)
        names = {id(callee): name for name, callee in callees_of(program).items()}
        lines += self.views(views.get(None, ()), "    ")
        lines += self.steps(program.calls, names, views, "    ")
        return "\n".join([*lines, *([] if lines[1:] else ["    pass"]), ""])

    def views(self, views: Iterable[View], indent: str) -> Iterator[str]:
        for view in views:
            name, of = self.text.name(view.tensor), self.text.name(view.of)
            place = "" if view.offset == 0 else f" at {self.text.extent(view.offset)}"
            yield f"{indent}view {name}: {self.text.type(view.tensor)} of {of}{place}"

    def steps(
        self,
        steps: Iterable[Step],
        names: Mapping[int, str],
        views: Mapping[Variable | None, list[View]],
        indent: str,
    ) -> Iterator[str]:
        inner = indent + "    "
        for step in steps:
            match step:
                case Call():
                    yield f"{indent}{names[id(step.callee)]}{self.call(step)}"
                case Loop():
                    variable = self.text.name(step.variable)
                    yield f"{indent}for {variable} in steps({self.text.extent(step.count)}):"
                    body = [*self.views(views.get(step.variable, ()), inner)]
                    body += self.steps(step.body, names, views, inner)
                    yield from body or [f"{inner}pass"]
                case While():
                    yield f"{indent}while {self.text.name(step.condition)}:"
                    yield from [*self.steps(step.body, names, views, inner)] or [f"{inner}pass"]
                case Branch():
                    yield f"{indent}if {self.text.name(step.condition)}:"
                    yield from [*self.steps(step.then, names, views, inner)] or [f"{inner}pass"]
                    if step.otherwise:
                        yield f"{indent}else:"
                        yield from self.steps(step.otherwise, names, views, inner)
                case _:
                    assert_never(step)

    def computation(self, computation: Computation) -> str:
        self.text.taken |= RESERVED
        first = self.header(
            "unrounded computation" if computation.unrounded else "computation", computation
        )
        output = self.text.name(computation.output)
        variables = ", ".join(map(self.text.name, computation.variables))
        lines = [first]
        for part in _long_and_shared(computation.value):
            variable = Variable("t", part.dtype)
            lines.append(f"    {self.let(Let(variable, part))}")
            self.text.shared[id(part)] = self.text.name(variable)
        value = self.text(computation.value, computation.output.dtype, 0)
        return "\n".join([*lines, f"    {output}[{variables}] = {value}", ""])

    def call(self, call: Call) -> str:
        """A call: inputs in order, the outputs, and whether it stays apart."""
        inputs: list[str] = []
        outputs: list[str] = []
        for parameter, argument in zip(call.callee.parameters, call.arguments, strict=True):
            if isinstance(argument, Tensor):
                text = self.text.name(argument)
            else:
                text = self.text(argument, parameter.dtype, 0)
            (outputs if is_output(parameter) else inputs).append(text)
        if outputs:
            inputs.append(f"out={joined(outputs)}")
        return f"({', '.join(inputs)}){' apart' if call.apart else ''}"


def _long_and_shared(value: Expression) -> list[Expression]:
    """The longer parts that occur more than once in an expression, each after its own parts.

    With a name for each of them the text is as long as the expression is in memory.
    """
    uses = Counter(id(part) for node in walk(value) for part in expressions(node))
    shared: list[Expression] = []
    lengths: dict[int, int] = {}
    waiting = [value]
    while waiting:
        node = waiting[-1]
        parts = [*expressions(node)]
        new = [part for part in parts if id(part) not in lengths]
        waiting += new
        if new:
            continue
        waiting.pop()
        if id(node) not in lengths:
            lengths[id(node)] = 1 + sum(lengths[id(part)] for part in parts)
            if lengths[id(node)] > _SHORT and uses[id(node)] > 1:
                shared.append(node)
                lengths[id(node)] = 1
    return shared
