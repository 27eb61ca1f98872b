"""Show the parameters of a docstring, `name  text` a line, as a list in the API reference.

    stages  how many steps are in flight,        - `stages`: how many steps are in flight, this one included
            this one included               →

Griffe calls this for each object that mkdocstrings shows.
"""

from __future__ import annotations

import re
from typing import Any

try:
    from griffe import Extension
except ImportError:  # a test of `as_list` has no site to build
    Extension = object

_PARAMETER = re.compile(r"(?P<names>\w+(?:, \w+)*) {2,}(?P<text>\S.*)")


def as_list(docstring: str) -> str:
    """The docstring in Markdown; lines that are no parameters, nor go on with one, stay as they are."""
    lines: list[str] = []
    is_parameter = False
    for line in docstring.splitlines():
        found = _PARAMETER.fullmatch(line)
        if found:
            names = found["names"].replace(", ", "`, `")
            lines += ([] if is_parameter else [""]) + [f"- `{names}`: {found['text']}"]
        else:
            lines.append(f"    {line.strip()}" if is_parameter and line.startswith(" ") else line)
        is_parameter = bool(found) or (is_parameter and line.startswith(" "))
    return "\n".join(lines)


class Parameters(Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_list(obj.docstring.value)
