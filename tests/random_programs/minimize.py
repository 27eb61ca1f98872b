"""Makes a program that fails smaller, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.random_programs import description as d

BODIES = ("body", "then", "otherwise")


def minimal(program: d.Program, fails: Callable[[d.Program], bool]) -> d.Program:
    """`fails` says whether a program still shows what the first one does."""
    changed = True
    while changed:
        changed = False
        for body in _smaller(program.body):
            candidate = replace(program, body=body)
            if fails(candidate):
                program, changed = candidate, True
                break
    return program


def _smaller(body: d.Body) -> Iterator[d.Body]:
    """The body without a statement, with a statement's body in its place, with a part made smaller."""
    for k, statement in enumerate(body):
        yield body[:k] + body[k + 1 :]
        for name in BODIES:
            inner = getattr(statement, name, ())
            if inner and isinstance(statement, (d.If, d.For, d.While)):
                yield body[:k] + inner + body[k + 1 :]
            for smaller in _smaller(inner):
                if smaller or name == "otherwise":
                    changed = replace(statement, **{name: smaller})  # type: ignore[arg-type]
                    yield (*body[:k], changed, *body[k + 1 :])
        for value in _smaller_values(statement):
            yield (*body[:k], value, *body[k + 1 :])


def _smaller_values(statement: d.Statement) -> Iterator[d.Statement]:
    value = getattr(statement, "value", None)
    if isinstance(value, d.Apply) and not getattr(statement, "augmented", False):
        for part in _parts(value):
            yield replace(statement, value=part)  # type: ignore[call-arg]


def _parts(value: d.Value) -> Iterator[d.Value]:
    """Values of the same type that stand within, and the value with one operand made smaller."""
    if not isinstance(value, d.Apply):
        return
    for operand in value.operands:
        if operand.dtype == value.dtype:
            yield operand
    for k, operand in enumerate(value.operands):
        for smaller in _parts(operand):
            operands = (*value.operands[:k], smaller, *value.operands[k + 1 :])
            yield replace(value, operands=operands)
