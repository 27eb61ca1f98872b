"""The site has the documents, and those of the top level: the README is its first page.

A link to a file that is no page is code: its text where that names the file, or else the path behind the text. Where
the repository will be looked at, nobody knows yet. MkDocs calls what is named `on_…`.
"""

from __future__ import annotations

import posixpath
import re
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ABOVE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}

# Code, which is left alone, or a link. The text of a link may have brackets and code in it.
_LINK = re.compile(
    r"^```.*?^```|\[(?P<text>(?:`[^`]*`|\[[^\]]*\]|[^\[\]`])+)\]\((?P<target>[^)\s]+)\)|`[^`]*`",
    re.MULTILINE | re.DOTALL,
)


def on_files(files: Any, *, config: Any) -> Any:
    from mkdocs.structure.files import File  # only a build needs it

    for name, page in ABOVE.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    return text_for_the_site(markdown, "" if page.file.src_uri in ABOVE.values() else "docs")


def text_for_the_site(markdown: str, folder: str) -> str:
    """The text of a document of a folder with its links as they are on the site."""
    return _LINK.sub(partial(_there, folder), markdown)


def _there(folder: str, found: re.Match[str]) -> str:
    text, target = found["text"], found["target"]
    if target is None or target.startswith("#") or "://" in target:
        return found[0]
    file, _, anchor = target.partition("#")
    path = posixpath.normpath(posixpath.join(folder, file))
    page = ABOVE.get(path, path.removeprefix("docs/"))
    if path in ABOVE or re.fullmatch(r"docs/\w+\.md", path):
        return f"[{text}]({page}{'#' * bool(anchor)}{anchor})"
    if path.startswith("docs/") and path.endswith(".svg"):
        return f"[{text}]({path.removeprefix('docs/')})"
    name = text.replace("\\", "").strip("`")
    module = path.removesuffix(".py").removesuffix("/__init__")
    return f"`{name}`" if path.endswith(name) or module.endswith(name) else f"{text} (`{path}`)"
