"""Syntax of Python that the language doesn't have, each with its own message."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from taskc.lang.context import Context


def _refuse(message: str, hint: str | None = None) -> Callable[[Context, Any], Any]:
    def refuse(context: Context, node: Any) -> None:
        raise context.error(message, node, hint)

    return refuse


def _refusals(
    table: dict[str, tuple[str, str | None]],
) -> dict[type, Callable[[Context, Any], Any]]:
    # Not every version of Python has every kind of node.
    return {
        getattr(ast, name): _refuse(*rest) for name, rest in table.items() if hasattr(ast, name)
    }


_TRY = ("exceptions are not a part of the language", "test before: if ...")
_IMPORT = ("a kernel imports nothing", "import at the top of the file")
_DEFINE = ("a function can't be defined in a kernel", "define it outside, with @tc.function")
_COMPREHENSION = (
    "such a comprehension is only for tc.static",
    "write a list, [... for ...]: over constants it may stand anywhere",
)
_SUSPEND = ("a kernel can't be suspended", None)

REFUSED_STATEMENTS = _refusals(
    {
        "Try": _TRY,
        "TryStar": _TRY,
        "Raise": ("exceptions are not a part of the language", 'use assert condition, "text"'),
        "FunctionDef": _DEFINE,
        "AsyncFunctionDef": _DEFINE,
        "ClassDef": ("a class can't be defined in a kernel", None),
        "Global": ("'global' is not a part of the language", "what is outside is constant"),
        "Nonlocal": ("'nonlocal' is not a part of the language", "what is outside is constant"),
        "Delete": ("'del' is not a part of the language", "a name ends with its body"),
        "Import": _IMPORT,
        "ImportFrom": _IMPORT,
        "Match": ("'match' is not a part of the language", "use if and elif"),
        "AnnAssign": ("a name takes no annotation", "give the value its type: x = f32(0)"),
        "AsyncFor": _SUSPEND,
        "AsyncWith": _SUSPEND,
        "TypeAlias": ("a type can't be named in a kernel", "name it outside"),
    }
)

REFUSED_EXPRESSIONS = _refusals(
    {
        "Lambda": (
            "a lambda is only for tc.load, tc.store and meanings",
            "use @tc.function for a helper",
        ),
        "SetComp": _COMPREHENSION,
        "DictComp": _COMPREHENSION,
        "JoinedStr": ("an f-string is not a part of the language", 'use tc.print("{}", x)'),
        "TemplateStr": ("a t-string is not a part of the language", 'use tc.print("{}", x)'),
        "Dict": ("a dict can't be made in a kernel", "make it outside: it is constant"),
        "Set": ("a set can't be made in a kernel", "make it outside: it is constant"),
        "NamedExpr": ("':=' is not a part of the language", "assign in a statement before"),
        "Await": _SUSPEND,
        "Yield": _SUSPEND,
        "YieldFrom": _SUSPEND,
        "Starred": ("'*' is not a part of the language here", None),
        "Slice": ("a slice stands only in the brackets of a tensor", None),
    }
)

REFUSED_CALLS = {
    "empty": _refuse(
        "tc.empty is for programs: a kernel allocates no global memory",
        "use tc.shared, tc.tile or tc.local; or pass it as a parameter",
    ),
}
