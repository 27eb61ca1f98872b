"""The picture of a kernel or a program in a notebook: parameters, calls, mappings, and the text.

    html(definition)       HTML for a part of a page
    mappings_of(kernel)    the mappings, with the places in the kernel that use them

Only the first of many mappings and calls are shown, so that a page stays small.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from itertools import islice
from textwrap import dedent

from taskc.errors import CompileError, Location
from taskc.format import many
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.ir.signature import named_type
from taskc.lang.definition import Definition
from taskc.markup import Markup, cell, inset, joined, table, tag
from taskc.pictures import figure
from taskc.programs.definition import ProgramDefinition
from taskc.programs.ir import Program, calls_of, kernels_of
from taskc.programs.printer import calls_text
from taskc.runtime.driver import scheduled

_MOST_PICTURES, _MOST_CALLS = 6, 100
_ROLES = {"in": "input", "out": "output", "inout": "updated in place"}


def html(definition: Definition) -> str:
    if isinstance(definition, ProgramDefinition):
        return inset(*_program(definition))
    assert isinstance(definition.ir, ir.Kernel)
    return inset(*_kernel(definition, definition.ir))


def _kernel(definition: Definition, kernel: ir.Kernel) -> Iterator[Markup]:
    about = f", {many(kernel.workers, 'worker')}"
    if kernel.target != "generic":
        about += f", for {kernel.target}"
    yield tag("div", "kernel ", tag("strong", definition.name), about)
    yield _parameters(kernel)
    yield from _pictures([("", kernel)])
    yield from _source(definition)
    yield _folded("as the compiler has it", to_text(kernel))


def _pictures(kernels: Iterable[tuple[str, ir.Kernel]]) -> Iterator[Markup]:
    """Pictures of each mapping of some kernels, with its uses; of several kernels, uses have the kernel's name."""
    uses_of: dict[Mapping, list[str]] = {}
    for name, kernel in kernels:
        for mapping, places in mappings_of(kernel).items():
            uses_of.setdefault(mapping, []).extend(f"{name}{place}" for place in places)
    for mapping, places in islice(uses_of.items(), _MOST_PICTURES):
        said = [part for place in places for part in (", ", tag("code", place))]
        yield figure(mapping, joined((tag("code", mapping.name), ": ", *said[1:])))
    yield from _rest(len(uses_of) - _MOST_PICTURES, "mapping")


def _rest(count: int, what: str) -> Iterator[Markup]:
    if count > 0:
        yield tag("div", f"and {many(count, f'more {what}')}")


def mappings_of(kernel: ir.Kernel) -> dict[Mapping, list[str]]:
    """Each mapping in order, with its uses: loops, the owners of tiles, copies, and layouts."""
    places_of: dict[Mapping, dict[str, None]] = {}
    for mapping, place in _places(kernel):
        places_of.setdefault(mapping, {})[place] = None
    return {mapping: [*places] for mapping, places in places_of.items()}


def _places(kernel: ir.Kernel) -> Iterator[tuple[Mapping, str]]:
    for parameter in kernel.parameters:
        if isinstance(parameter, ir.Tensor) and parameter.layout is not None:
            yield parameter.layout, f"layout of {parameter.name}"
    for node in walk(kernel.body):
        match node:
            case ir.Each(variables=variables, mapping=mapping):
                yield mapping, f"for {', '.join(variable.name for variable in variables)}"
            case ir.Allocate(tensor=ir.Tensor(name=name, owners=Mapping() as owners)):
                yield owners, name
            case ir.Allocate(tensor=ir.Tensor(name=name, layout=Mapping() as layout)):
                yield layout, f"layout of {name}"
            case ir.Move(tensor=tensor, by=Mapping() as by):
                yield by, f"copy to {tensor.name}"
            case _:
                pass  # no others have one


def _program(definition: ProgramDefinition) -> Iterator[Markup]:
    made = definition.ir
    calls = many(len([*calls_of(made.calls)]), "call")
    yield tag("div", "program ", tag("strong", definition.name), f", {calls}")
    yield _parameters(made)
    try:
        running, _ = scheduled(definition)
    except CompileError as error:
        yield tag("pre", str(error), class_="error")
    else:
        yield from _calls(running)
        yield _folded("as it runs", calls_text(running))
    yield from _pictures([(f"{kernel.name}: ", kernel.ir) for kernel in definition.kernels])
    yield from _source(definition)
    yield _folded("as it was traced", calls_text(made))


def _calls(running: Program) -> Iterator[Markup]:
    """Each call as it runs, with the lines that it was made of; several lines were fused."""
    names = {id(kernel): name for name, kernel in kernels_of(running).items()}
    calls, rows = [*calls_of(running.calls)], []
    for call in calls[:_MOST_CALLS]:
        assert isinstance(call.callee, ir.Kernel)  # after scheduling there are no computations
        name, workers = names[id(call.callee)], many(call.callee.workers, "worker")
        lines = [tag("div", tag("code", _line(origin))) for origin in call.origins]
        rows.append((_short(tag("code", name)), _short(workers), cell(*lines)))
    yield table(("call", "", "made of"), rows)
    yield from _rest(len(calls) - _MOST_CALLS, "call")


def _short(text: str) -> Markup:
    """A cell whose text stays on one line."""
    return tag("td", text, class_="number")


def _line(origin: Location) -> str:
    return origin.text.strip() or str(origin)


def _parameters(made: ir.Kernel | Program) -> Markup:
    rows = []
    for item in made.parameters:
        if isinstance(item, ir.Tensor):
            kind, role = named_type(item.dtype, item.argument_shape), _ROLES[item.role]
        else:
            kind, role = str(item.dtype), "number"
        rows.append((_short(tag("code", item.name)), cell(tag("code", kind)), _short(role)))
    return table(("parameter", "type", ""), rows)


def _source(definition: Definition) -> Iterator[Markup]:
    """The author's source text, if it is available."""
    function = getattr(definition, "__wrapped__", None)
    try:
        text = inspect.getsource(function) if function is not None else ""
    except (OSError, TypeError):
        text = ""
    if text:
        yield _folded("source", dedent(text))


def _folded(title: str, text: str) -> Markup:
    return tag("details", tag("summary", title), tag("pre", text.strip("\n")))
