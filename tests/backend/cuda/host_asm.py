"""Inline PTX as C++ for the host: each instruction is a call of a function that host_*.hpp has of its name.

    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; selp.u32 %0, 1, 2, p; }" : "=r"(x) : "r"(y) : "memory");
->
    { auto& _0 = (x); const u32 _1 = (u32)(y); bool p; ptx::setp_ne_b32(p, _1, 0); ptx::selp_u32(_0, 1, 2, p); }

The shape and the types of a matrix instruction, how many matrices one moves and the dimensions of a bulk copy
are arguments of a template. Where there is no such function, the compiler for the host names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_STATEMENT = re.compile(r"\basm\b(?:\s+volatile)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPERAND = re.compile(r'\s*"([=+]?)([a-z])"\s*\((.*)\)\s*', re.DOTALL)
_REGISTERS = {"r": "u32", "l": "u64", "h": "u16", "f": "f32", "d": "f64", "n": "int"}
_DECLARED = {".pred": "bool", ".b16": "u16", ".b32": "u32", ".b64": "u64"}
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_COUNT = re.compile(r"x(\d+)|(\d)d")


def executable(text: str) -> str:
    """C++ without inline PTX."""
    parts, at = [], 0
    while (found := _STATEMENT.search(text, at)) is not None:
        inside, end = _closed(text, found.end())
        parts += [text[at : found.start()], _statement(inside)]
        at = end + re.match(r"\s*;", text[end:]).end()  # type: ignore[union-attr]
    return "".join([*parts, text[at:]])


def _closed(text: str, start: int) -> tuple[str, int]:
    """What is between a parenthesis, behind which `start` is, and its partner; and where that ends."""
    depth, at = 1, start
    while depth:
        if (string := _STRING.match(text, at)) is not None:
            at = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return text[start : at - 1], at


def _split(text: str, separator: str) -> list[str]:
    """The parts between separators that are in no brackets and no string."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        if (string := _STRING.match(text, at)) is not None:
            at = string.end()
            continue
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if text[at] == separator and not depth:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def _statement(inside: str) -> str:
    template, *sections = _split(inside, ":")
    lines = []
    for number, (access, kind, value) in enumerate(_operands(sections)):
        if access:
            lines.append(f"auto& _{number} = {value};")
        else:
            lines.append(f"const {_REGISTERS[kind]} _{number} = ({_REGISTERS[kind]})({value});")
    text = re.sub(r"\\[nt]", " ", "".join(_STRING.findall(template))).strip()
    if text.startswith("{"):
        text = text[1 : text.rindex("}")]
    lines += [_instruction(*one.split(maxsplit=1)) for one in _split(text, ";")]
    return f"{{ {' '.join(lines)} }}"


def _operands(sections: list[str]) -> Iterator[tuple[str, str, str]]:
    for section in sections:
        for one in _split(section, ","):
            if (found := _OPERAND.fullmatch(one)) is not None:  # what is clobbered has no value
                yield found[1], found[2], found[3]


def _instruction(name: str, operands: str = "") -> str:
    if name.startswith("@"):
        return f"if ({name[1:]}) {_instruction(*operands.split(maxsplit=1))}"
    if name == ".reg":
        kind, registers = operands.split(maxsplit=1)
        return f"{_DECLARED[kind]} {registers};"
    words, arguments = [], []
    for word in name.replace("::", "_").split("."):
        if (shape := _SHAPE.fullmatch(word)) is not None:
            arguments += shape.groups()
        elif len(arguments) > 2 and word not in ("row", "col"):
            arguments.append(f"ptx::of_{word}")
        elif (count := _COUNT.fullmatch(word)) is not None:
            arguments.append(count[1] or count[2])
        else:
            words.append(word)
    given = ", ".join(_operand(one) for one in _split(operands, ","))
    template = f"<{', '.join(arguments)}>" if arguments else ""
    return f"ptx::{'_'.join(words)}{template}({given});"


def _operand(text: str) -> str:
    if text.startswith("["):
        return ", ".join(_operand(one) for one in _split(text[1:-1], ","))
    if text.startswith("{"):
        return f"host::list({', '.join(_operand(one) for one in _split(text[1:-1], ','))})"
    return "ptx::sink" if text == "_" else text.replace("%", "_")
