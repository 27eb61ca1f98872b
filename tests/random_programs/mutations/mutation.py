"""A bug to plant in a pass: a function of its modules exchanged for a wrong one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from taskc.ir import build, nodes as ir
from taskc.ir.rewrite import map_statements

Wrong = Callable[[Any], Any]


@dataclass(frozen=True)
class Mutation:
    """`wrong` makes the function that replaces `owner.name` from the right one."""

    stage: str
    title: str
    owner: Any
    name: str
    wrong: Wrong

    @contextmanager
    def planted(self) -> Iterator[None]:
        with mock.patch.object(self.owner, self.name, self.wrong(getattr(self.owner, self.name))):
            yield

    def __str__(self) -> str:
        return f"{self.stage}: {self.title}"


# Ways to be wrong.


def edited(old: str, new: str) -> Wrong:
    """The function with a part of its text changed, wherever that stands in it and however its lines are broken."""

    def wrong(right: Any) -> Any:
        function = inspect.unwrap(right)
        text = inspect.getsource(function)
        changed, count = re.subn(_anyhow(old), lambda found: new, text)
        if not count:
            raise LookupError(f"{old!r} does not stand in {function.__qualname__}")
        header = "from __future__ import annotations\n"
        if text[0] == " ":  # a method
            header += "if True:\n"
        text = header + changed
        found: dict[str, Any] = {}
        exec(
            compile(text, f"<{function.__qualname__}, edited>", "exec"), function.__globals__, found
        )
        return found[function.__name__]

    return wrong


def _anyhow(text: str) -> str:
    """A pattern for the text with any space, comments and last commas between its words."""
    between = r"(?:\s|#[^\n]*\n)*"
    words = re.findall(r"""\w+|"[^"]*"|'[^']*'|[^\w\s]""", text)
    closing = [f"(?:,{between})?" if word in ")]}" else "" for word in words]
    pattern = between.join(c + re.escape(word) for c, word in zip(closing, words, strict=True))
    return rf"\b{pattern}" if words[0][0].isalnum() or words[0][0] == "_" else pattern


def always(value: Any) -> Wrong:
    return lambda right: lambda *arguments, **keywords: value


def instead(other: Any) -> Wrong:
    return lambda right: other


def rounded_down(right: Any) -> Any:
    """In place of `ceiling_divide`."""
    return build.floor_divide


def half_of(right: Any) -> Any:
    return lambda *arguments: right(*arguments) // 2


def changed_result(change: Callable[[Any], Any]) -> Wrong:
    return lambda right: lambda *arguments, **keywords: change(right(*arguments, **keywords))


def changed_statements(change: Callable[[ir.Statement], ir.Statement | None]) -> Wrong:
    """Every statement in the result is exchanged, from the outermost in, where `change` says so."""

    def visit(node: ir.Statement) -> ir.Statement:
        new = change(node)
        return map_statements(node, visit) if new is None else new

    return changed_result(visit)
