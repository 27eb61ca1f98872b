"""The gallery: each example's docstring, and its kernels and programs as a notebook shows them.

It is made of the examples when the site is, so that it is as true as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

from taskc.lang.definition import Definition

EXAMPLES = Path(__file__).parents[2] / "examples"
HEAD = """\
# Gallery

The programs of the folder `examples`, with who does what: a cell is a task and has the worker, and its `:slot` where
workers have several tasks. Each can be run as it is, and `taskc show`, `run` and `check` take what it defines:
`taskc check examples/01_vector_add.py:vector_add`.
"""


def on_files(files: Any, *, config: Any) -> Any:
    from mkdocs.structure.files import File  # only a build needs it

    files.append(File.generated(config, "gallery.md", content=gallery()))
    return files


def gallery() -> str:
    """The page, in Markdown."""
    return "\n".join(
        [HEAD, *(part for path in sorted(EXAMPLES.glob("*.py")) for part in _example(path))]
    )


def _example(path: Path) -> Iterator[str]:
    names = run_path(str(path), run_name=path.stem)
    said = names["__doc__"].strip()
    yield f"## {re.split('[:,.]', said)[0]}\n"
    yield f"{said}\n"
    yield f"`examples/{path.name}`\n"
    for made in names.values():
        if isinstance(made, Definition):
            yield f"<div data-search-exclude>{made._repr_html_()}</div>\n"
