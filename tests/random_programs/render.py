"""Random programs as source text of the DSL."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.random_programs import description as d

_PRECEDENCE_FREE = ("+", "-", "*", "/", "//", "%", "&", "|", "^", "<<", ">>", "and", "or")
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_TYPES = "i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64"


def source(program: d.Program) -> str:
    """The module that defines `kernel`."""
    lines = [
        "import taskc as tc",
        f"from taskc import {_TYPES}",
        "from taskc import mapping, repeat, replicate, spatial",
        "",
    ]
    for name, multiple, extent in program.dimensions:
        lines.append(f'{name} = tc.dim("{name}", multiple={multiple}, example={extent})')
    for mapping in _mappings(program.body):
        lines += _mapping(mapping)
    parameters = ", ".join(map(_parameter, program.parameters))
    lines += [
        "",
        "",
        f"@tc.kernel(workers={program.workers})",
        f"def {program.name}({parameters}):",
    ]
    lines += _body(program.body, 1)
    return "\n".join(lines) + "\n"


def _mappings(body: d.Body) -> list[d.MappingOf]:
    found: dict[str, d.MappingOf] = {}

    def visit(statements: d.Body) -> None:
        for statement in statements:
            mapping = getattr(statement, "mapping", None) or getattr(statement, "by", None)
            if isinstance(mapping, d.MappingOf):
                found[mapping.name] = mapping
            for inner in ("body", "then", "otherwise"):
                visit(getattr(statement, inner, ()))

    visit(body)
    return list(found.values())


def _mapping(mapping: d.MappingOf) -> Iterator[str]:
    if mapping.tasks is not None:
        rows = ", ".join(f"[{', '.join(repr(task) for task in tasks)}]" for tasks in mapping.tasks)
        yield f"{mapping.name}_tasks = [{rows}]"
        text = f"mapping({mapping.shape!r}, {mapping.workers}, {mapping.name}_tasks.__getitem__)"
    else:
        text = _composed(mapping.factors)
    if mapping.limit is not None:
        text = f"({text}).within({', '.join(map(str, mapping.limit))})"
    yield f"{mapping.name} = {text}"


def _composed(factors: tuple[d.Factor, ...]) -> str:
    parts = []
    for factor in factors:
        sizes = ", ".join(map(str, factor.sizes))
        order = "" if factor.order is None else f", order={factor.order!r}"
        parts.append(f"{factor.kind}({sizes}{order})")
    return " * ".join(parts)


def _parameter(parameter: d.Parameter) -> str:
    dtype = "tc.boolean" if parameter.dtype == "bool" else parameter.dtype
    if parameter.shape is None:
        return f"{parameter.name}: {dtype}"
    kind = f"{dtype}[{', '.join(map(str, parameter.shape))}]"
    if parameter.layout:
        kind += f".laid({_composed(parameter.layout)})"
    role = {"in": kind, "out": f"tc.out[{kind}]", "inout": f"tc.inout[{kind}]"}[parameter.role]
    return f"{parameter.name}: {role}"


# --- expressions -----------------------------------------------------------------------------


def text(node: d.Value) -> str:
    match node:
        case d.Number():
            return number(node)
        case d.Name():
            return node.name
        case d.Element():
            return f"{node.tensor}[{', '.join(map(text, node.indices))}]"
    parts = [text(operand) for operand in node.operands]
    operator = node.operator
    if operator in _PRECEDENCE_FREE or operator in _COMPARISONS:
        return f"({parts[0]} {operator} {parts[1]})"
    match operator:
        case "neg":
            return f"(-{parts[0]})"
        case "invert":
            return f"(~{parts[0]})"
        case "not":
            return f"(not {parts[0]})"
        case "typed":
            return parts[0]
        case "if":
            return f"({parts[1]} if {parts[0]} else {parts[2]})"
        case "angle":
            return f"round(8 * tc.atan2({parts[0]}, {parts[1]}))"
        case "cast":
            return f"{_operand(parts[0])}.to({_type(node.dtype)})"
        case "bitcast":
            return f"{_operand(parts[0])}.bitcast({node.dtype})"
        case "ptx":
            instruction = f'"fma.rn.{node.dtype} %0, %1, %2, %3;"'
            meaning = "lambda a, b, c: tc.fma(a, b, c)"
            return (
                f"tc.cuda.ptx({node.dtype}, {instruction}, {', '.join(parts)}, meaning={meaning})"
            )
        case "min" | "max" | "abs" | "round":
            return f"{operator}({', '.join(parts)})"
    return f"tc.{operator}({', '.join(parts)})"


def _operand(part: str) -> str:
    return part if part[0].isalpha() or part[0] == "(" else f"({part})"


def _type(dtype: str) -> str:
    return "tc.boolean" if dtype == "bool" else dtype


def number(node: d.Number) -> str:
    if node.dtype == "bool":
        return repr(bool(node.value))
    if node.dtype == "number":
        return repr(node.value) if node.value >= 0 else f"({node.value!r})"
    if node.dtype in ("f16", "bf16", "f32", "f64"):
        value = float(node.value)
        written = f"{'-' if value < 0 else ''}tc.inf" if math.isinf(value) else repr(value)
        return f"{node.dtype}({written})"
    return str(node.value) if node.dtype == "i64" else f"{node.dtype}({node.value})"


# --- statements ------------------------------------------------------------------------------


def _box(box: d.Slice) -> str:
    parts = []
    for start, size in zip(box.starts, box.sizes, strict=True):
        first = text(start)
        if size is None:
            parts.append(first)
        elif isinstance(start, d.Number):
            parts.append(f"{start.value}:{start.value + size}")
        else:
            parts.append(f"{first} : {first} + {size}")
    return f"{box.tensor}[{', '.join(parts)}]"


def _body(body: d.Body, depth: int) -> list[str]:
    lines = [line for statement in body for line in _statement(statement, depth)]
    return lines or ["    " * depth + "pass"]


def _statement(node: d.Statement, depth: int) -> Iterator[str]:
    margin = "    " * depth
    match node:
        case d.Let(name=name, value=value) | d.Assign(name=name, value=value):
            written = text(value)
            if (
                isinstance(node, d.Let)
                and node.cell
                and isinstance(value, d.Number)
                and value.dtype == "i64"
            ):
                written = f"i64({value.value})"
            yield f"{margin}{name} = {written}"
        case d.Tile():
            fill = "" if node.fill is None else f", {_fill(node.fill, node.dtype)}"
            yield f"{margin}{node.name} = tc.tile({_type(node.dtype)}, {node.mapping.name}{fill})"
        case d.Shared():
            shape = ", ".join(map(str, node.shape))
            yield f"{margin}{node.name} = tc.shared({_type(node.dtype)}[{shape}])"
        case d.Local():
            fill = "" if node.fill is None else f", {_fill(node.fill, node.dtype)}"
            shape = ", ".join(map(str, node.shape))
            yield f"{margin}{node.name} = tc.local({_type(node.dtype)}[{shape}]{fill})"
        case d.Load():
            fill = "" if node.fill is None else f", fill={_fill(node.fill, node.dtype)}"
            if node.source is not None:
                yield f"{margin}{node.name} = tc.load({_box(node.source)}{fill})"
            else:
                assert node.value is not None
                variables = ", ".join(node.variables)
                yield (
                    f"{margin}{node.name} = tc.load({node.shape!r}, "
                    f"lambda {variables}: {text(node.value)}{fill})"
                )
        case d.StoreBlock():
            if node.source is not None:
                yield f"{margin}tc.store({_box(node.target)}, {_box(node.source)})"
            else:
                assert node.value is not None
                variables = ", ".join(node.variables)
                yield f"{margin}tc.store({_box(node.target)}, lambda {variables}: {text(node.value)})"
        case d.Copy():
            by = "" if node.by is None else f", by={node.by.name}"
            yield f"{margin}tc.copy({_box(node.target)}, {_box(node.source)}{by})"
        case d.Store():
            place = text(d.Element(node.tensor, node.indices, ""))
            if node.augmented:
                assert isinstance(node.value, d.Apply)
                yield f"{margin}{place} {node.value.operator}= {text(node.value.operands[1])}"
            else:
                yield f"{margin}{place} = {text(node.value)}"
        case d.Atomic():
            name = {"+": "add", "&": "and", "|": "or", "^": "xor"}.get(node.operator, node.operator)
            place = text(d.Element(node.tensor, node.indices, ""))
            result = "" if node.result is None else f"{node.result} = "
            yield f"{margin}{result}tc.atomic_{name}({place}, {text(node.value)})"
        case d.If():
            yield f"{margin}if {text(node.condition)}:"
            yield from _body(node.then, depth + 1)
            if node.otherwise:
                yield f"{margin}else:"
                yield from _body(node.otherwise, depth + 1)
        case d.While():
            yield f"{margin}while {text(node.condition)}:"
            yield from _body(node.body, depth + 1)
        case d.For():
            step = "" if node.step == 1 else f", {node.step}"
            start = "" if node.start == d.Number(0) and not step else f"{text(node.start)}, "
            yield f"{margin}for {node.variable} in range({start}{text(node.stop)}{step}):"
            yield from _body(node.body, depth + 1)
        case d.Each():
            on = "" if node.on is None else f".on({text(node.on)})"
            yield f"{margin}for {', '.join(node.variables)} in {node.mapping.name}{on}:"
            yield from _body(node.body, depth + 1)
        case d.Pipeline():
            options = f"by={node.by}, stages={node.stages}"
            if node.transport is not None:
                options += f', transport="{node.transport}"'
            if node.specialize:
                options += ", specialize=True"
            yield f"{margin}for {node.variable} in tc.pipeline({text(node.extent)}, {options}):"
            yield from _body(node.body, depth + 1)
        case d.Tiles():
            shape = ", ".join(map(text, node.shape))
            options = f"({shape},), by={node.by!r}"
            if node.order:
                options += f", order={node.order!r}"
            if node.persistent:
                options += ", persistent=True"
            yield f"{margin}for {', '.join(node.variables)} in tc.tiles({options}):"
            yield from _body(node.body, depth + 1)
        case d.Product():
            sides = [
                _box(side) + (".T" if turned else "")
                for side, turned in zip((node.left, node.right), node.transposed, strict=True)
            ]
            yield f"{margin}tc.mma({node.accumulator}, {sides[0]}, {sides[1]})"
        case d.Reduce():
            yield f'{margin}{node.name} = tc.reduce({node.source}, {node.axis}, "{node.operator}")'
        case d.Scan():
            exclusive = ", exclusive=True" if node.exclusive else ""
            yield (
                f'{margin}{node.name} = tc.scan({node.source}, {node.axis}, "{node.operator}"{exclusive})'
            )
        case d.Breakpoint():
            yield f"{margin}breakpoint()"
        case d.Print():
            values = "".join(f", {text(value)}" for value in node.values)
            yield f'{margin}tc.print("{node.text}"{values})'
        case d.Assert():
            yield f'{margin}assert {text(node.condition)}, "{node.text}"'


def _fill(value: object, dtype: str) -> str:
    if dtype == "bool":
        return repr(bool(value))
    return repr(value)
