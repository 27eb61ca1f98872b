"""The documents: their programs run, and say what the text under them shows.

Blocks of ```python run in the order of the file, in one namespace. A block of ```text behind one is
what that printed, and after it, where it ends in an error, what the error says. `--update-golden`
writes these blocks anew.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from docs.hooks.diagrams import on_page_markdown
from docs.hooks.docstrings import as_list
from docs.hooks.gallery import gallery
from docs.hooks.links import ABOVE, text_for_the_site
from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.specification import STAGES
from taskc.passes import pipeline
from tests.backend.cuda.conftest import compiled, fake, start
from tests.example_files import FILES

__all__ = ["compiled", "fake", "start"]  # fixtures

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted((ROOT / "docs").glob("*.md"))

_BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?P<output>\n```text\n.*?^```\n)?", re.MULTILINE | re.DOTALL
)


def rerun(text: str, name: str, namespace: dict[str, Any] | None = None) -> str:
    """A document with the outputs that its programs have now."""
    namespace = {} if namespace is None else namespace
    namespace["__name__"] = name
    parts, position = [], 0
    for number, match in enumerate(_BLOCK.finditer(text)):
        output, is_error = execute(match["code"], f"{name}_{number}.py", namespace)
        line = text.count("\n", 0, match.start()) + 2
        where = f"{name}: the block at line {line}"
        assert not is_error or match["output"], f"{where} ends in an error:\n{output}"
        assert not output or match["output"], f"{where} printed something:\n{output}"
        assert output or not match["output"], f"{where} printed nothing"
        parts.append(text[position : match.start()])
        parts.append(f"```python\n{match['code']}```\n")
        parts.append(f"\n```text\n{output}\n```\n" if output else "")
        position = match.end()
    return "".join(parts) + text[position:]


def execute(code: str, file: str, namespace: dict[str, Any]) -> tuple[str, bool]:
    """What a block prints, and the error that it ends in, if it does."""
    # Kernels are parsed from their source, which is asked for by the name of the file.
    linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file
    printed, said = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, file, "exec", dont_inherit=True), namespace)
    except CompileError as error:
        said = str(error)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    # An error may point into an earlier block, too.
    pattern = re.sub(r"\d+", r"\\d+", re.escape(file))
    output = re.sub(pattern, "example.py", printed.getvalue() + said)
    return "\n".join(line.rstrip() for line in output.strip("\n").splitlines()), bool(said)


def programs_of(path: Path) -> Any:
    """The document as a case of a test; two are for those who have PyTorch, or JAX."""
    marks = [getattr(pytest.mark, path.stem)] if path.stem in ("torch", "jax") else []
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", [*map(programs_of, DOCUMENTS)])
def test_the_programs_run_and_say_what_is_shown(path: Path, request: pytest.FixtureRequest) -> None:
    if path.stem == "cuda":  # on a fake device
        request.getfixturevalue("compiled")
    text = path.read_text(encoding="utf-8")
    now = rerun(text, path.stem)
    if request.config.getoption("--update-golden"):
        path.write_text(now, encoding="utf-8", newline="\n")
    assert now == text, "pytest --update-golden writes the new outputs"


def test_all_documents_are_here() -> None:
    assert [path.stem for path in DOCUMENTS] == [
        "api",
        "architecture",
        "calls",
        "coming_from",
        "commands",
        "cuda",
        "debugging",
        "extending",
        "glossary",
        "gradients",
        "ir",
        "jax",
        "kernels",
        "language",
        "limitations",
        "measured",
        "memory",
        "numpy",
        "numpy_programs",
        "onnx",
        "operators",
        "passes",
        "profiling",
        "programs",
        "sequential",
        "simt",
        "stability",
        "torch",
        "tuning",
        "tutorial",
        "values",
    ]


REFERENCE = ("language", "memory", "values", "calls", "programs", "simt", "debugging")


def test_every_name_is_in_the_reference() -> None:
    texts = (ROOT / "docs" / f"{name}.md" for name in REFERENCE)
    mentioned = set(re.findall(r"\w+", "".join(path.read_text(encoding="utf-8") for path in texts)))
    missing = sorted(set(tc.__all__) - mentioned)
    assert not missing, f"the reference, {', '.join(REFERENCE)}, has no {missing}"


def test_every_name_is_in_the_generated_reference() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: taskc\.(?!device\.)(?:\w+\.)*(\w+)$", text, flags=re.M)
    types = re.findall(r"`(\w+)`", text.partition("## Types")[2].partition(":::")[0])
    elsewhere = {"print", "range"}, {"inout", "out", "typed", "inf", "cuda"}
    assert sorted([*shown, *types]) == sorted({*tc.__all__, *elsewhere[0]} - elsewhere[1])


def test_parameters_of_a_docstring_are_a_list() -> None:
    text = "A loop.\n\nstages  in flight,\n        all of them\nby, at  steps\n\n    code  here"
    listed = "A loop.\n\n\n- `stages`: in flight,\n    all of them\n- `by`, `at`: steps\n\n    code  here"
    assert as_list(text) == listed


# --- architecture.md -------------------------------------------------------------------------


def test_the_architecture_names_every_folder() -> None:
    table = (
        (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Folders")[2]
    )
    named = set(re.findall(r"\[taskc/(\w+)\]", table))
    assert named == {path.parent.name for path in (ROOT / "taskc").glob("*/__init__.py")}


def test_diagrams_are_drawn() -> None:
    text = (
        'Before.\n```mermaid\nflowchart LR\n  a(["x"]) --> b["y<br>z"]\n  a -->|no| c["w"]\n```\n'
    )
    page = on_page_markdown(text)
    assert page.startswith("Before.\n<figure><svg")
    assert "mermaid" not in page
    assert [page.count(f"<{tag} ") for tag in ("rect", "text")] == [3, 5]
    assert re.findall(r">([^<>]+)</text>", page) == ["no", "x", "y", "z", "w"]
    with pytest.raises(ValueError, match="has the line 'a ==> b'"):
        on_page_markdown("```mermaid\nflowchart TB\na ==> b\n```")


# --- passes.md -------------------------------------------------------------------------------


def rows() -> Iterator[list[str]]:
    """The rows of the table of passes."""
    text = (ROOT / "docs" / "passes.md").read_text(encoding="utf-8")
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0].isdigit():
            yield cells


def test_the_table_has_every_pass_in_order() -> None:
    listed = [(int(number), name) for number, name, *_ in rows()]
    expected = [(k, f"`{one.name}`") for k, one in enumerate(pipeline.PASSES, start=1)]
    assert listed == expected


def test_the_table_names_the_files() -> None:
    for _, name, file, *_ in rows():
        match = re.fullmatch(r"\[(?P<shown>[\w.]+)\]\(\.\./taskc/passes/(?P<file>[\w.]+)\)", file)
        assert match, file
        assert match["shown"] == match["file"] == f"{name.strip('`')}.py"
        assert (ROOT / "taskc" / "passes" / match["file"]).exists()


def test_the_table_says_which_stage_a_pass_ends_in() -> None:
    @tc.kernel(workers=4)
    def double(x: tc.f32[8], y: tc.out[tc.f32[8]]):
        for i in tc.spatial(4) * tc.repeat(2):
            y[i] = 2 * x[i]

    stages = [step.kernel.stage for step in pipeline.lower_steps(double.ir)]
    assert [row[3] for row in rows()] == stages
    assert set(stages) == set(STAGES)


def test_every_file_of_the_passes_is_named() -> None:
    folder = ROOT / "taskc" / "passes"
    text = (ROOT / "docs" / "passes.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\(\.\./taskc/passes/([\w./]+)\)", text))
    of_kernels = {path.name for path in folder.glob("[!_]*") if path.name != "programs"}
    written = of_kernels | {f"programs/{path.name}" for path in folder.glob("programs/[!_]*.py")}
    assert sorted(written - linked) == []


# --- kernels.md ------------------------------------------------------------------------------


def test_every_operator_is_named() -> None:
    folder = ROOT / "taskc" / "kernels"
    heads = [ROOT / "docs" / "kernels.md", folder / "__init__.py"]
    named = set(re.findall(r"\w+", "".join(path.read_text(encoding="utf-8") for path in heads)))
    files = [path for path in folder.iterdir() if path.name[0] != "_"]
    own = {path.stem for path in files if path.is_dir() or "\ndef " in path.read_text("utf-8")}
    missing = sorted(own - named)
    assert not missing, f"docs/kernels.md, or the head of taskc/kernels, has no {missing}"


# --- README.md -------------------------------------------------------------------------------


def test_the_programs_of_the_readme_run(request: pytest.FixtureRequest) -> None:
    path = ROOT / "README.md"
    text, namespace = path.read_text(encoding="utf-8"), dict[str, Any]()
    now = rerun(text, "readme", namespace)
    if request.config.getoption("--update-golden"):
        path.write_text(now, encoding="utf-8", newline="\n")
    assert now == text, "pytest --update-golden writes the new outputs"
    picture = ROOT / "docs" / "mapping.svg"
    if request.config.getoption("--update-golden"):
        picture.write_text(namespace["own"].svg() + "\n", encoding="utf-8", newline="\n")
    assert namespace["own"].svg() + "\n" == picture.read_text(encoding="utf-8")
    kernel = namespace["matmul"](100, 70, 20)
    assert isinstance(kernel.ir, ir.Kernel)
    a, b = kernel.example()
    np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)


def test_the_chart_is_drawn_from_the_results() -> None:
    chart = run_path(str(ROOT / "benchmarks" / "chart.py"))
    assert chart["chart"]() == chart["CHART"].read_text(encoding="utf-8"), (
        "python benchmarks/chart.py"
    )


# --- links -----------------------------------------------------------------------------------

TEXTS = sorted([*ROOT.glob("*.md"), *DOCUMENTS, *(ROOT / "tests").rglob("*.md")])


def anchors(text: str) -> set[str]:
    """What the headings of a document are called in links, as code hosts and the site have it."""
    headings = re.findall(r"^#+ +(.+?) *$", without_code(text), flags=re.M)
    shown = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in shown}


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def dead(path: Path, text: str) -> Iterator[str]:
    """The links of a document that lead nowhere: to no file, out of the checkout, or to no heading."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists() or not found.is_relative_to(ROOT.resolve()):
            yield target
        elif anchor:
            own = text if found == path else found.read_text(encoding="utf-8")
            if anchor not in anchors(own):
                yield target


def test_links_lead_somewhere() -> None:
    found = {path.name: [*dead(path, path.read_text(encoding="utf-8"))] for path in TEXTS}
    assert {name: links for name, links in found.items() if links} == {}


def test_a_dead_link_is_found() -> None:
    text = """# A heading: `tc.mma`, and `f_x`
[a](memory.md#tcmma) [b](#a-heading-tcmma-and-f_x) [c](../taskc/ir) [d](https://example.com/#x) [e](../README.md)
[f](nowhere.md) [g](#nowhere) [h](language.md#nowhere) [i](../../elsewhere.md) [`j`](../taskc/nowhere.py)
```python
# nowhere
[k](nowhere.md)
```
"""
    named = ["nowhere.md", "#nowhere", "language.md#nowhere", "../../elsewhere.md"]
    assert [*dead(ROOT / "docs" / "tutorial.md", text)] == [*named, "../taskc/nowhere.py"]


# --- the site --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "text", "expected"),
    [
        ("docs", "[a](ir.md) [b](ir.md#text) [c](#here)", "[a](ir.md) [b](ir.md#text) [c](#here)"),
        ("", "[docs/ir.md](docs/ir.md#text)", "[docs/ir.md](ir.md#text)"),
        ("", "![a chart](docs/measured.svg)", "![a chart](measured.svg)"),
        ("docs", "[it](../README.md), [it](../CONTRIBUTING.md#a)", "[it](index.md), [it](contributing.md#a)"),
        ("docs", "[ir/types.py](../taskc/ir/types.py)", "`ir/types.py`"),
        ("docs", r"[\_\_init\_\_.py](../taskc/__init__.py)", "`__init__.py`"),
        ("docs", "[`types.py`](../taskc/ir/types.py#x)", "`types.py`"),
        ("docs", "[matmul/gpu](../taskc/kernels/matmul/gpu.py)", "`matmul/gpu`"),
        ("docs", "[rows](../taskc/kernels/rows/__init__.py)", "`rows`"),
        ("", "[its head](taskc/x.py) and", "its head (`taskc/x.py`) and"),
        ("docs", "[tests](../tests/corpus/README.md)", "tests (`tests/corpus/README.md`)"),
        ("docs", "[x](https://example.com/a.py)", "[x](https://example.com/a.py)"),
        ("docs", "`[x](../y.py)` [`f[0]`](../y.py)", "`[x](../y.py)` `f[0]` (`y.py`)"),
        ("docs", "```\n[x](../y.py)\n```\n[y.py](../y.py)", "```\n[x](../y.py)\n```\n`y.py`"),
    ],
)  # fmt: skip
def test_links_out_of_the_site_are_names_of_files(folder: str, text: str, expected: str) -> None:
    assert text_for_the_site(text, folder) == expected


def test_no_link_leaves_the_site() -> None:
    for path in [*DOCUMENTS, *(ROOT / name for name in ABOVE)]:
        folder = "" if path.parent == ROOT else "docs"
        text = without_code(text_for_the_site(path.read_text(encoding="utf-8"), folder))
        targets = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)}
        inside = {
            "",
            "measured.svg",
            "mapping.svg",
            *ABOVE.values(),
            *(document.name for document in DOCUMENTS),
        }
        assert {target for target in targets - inside if "://" not in target} == set(), path.name


def test_the_site_has_every_document() -> None:
    named = re.findall(r"^ +- (?:\w+: )?(\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    pages = [*(path.name for path in DOCUMENTS), *ABOVE.values(), "gallery.md"]
    assert sorted(named) == sorted(pages)


def test_the_gallery_has_every_example_and_its_mappings() -> None:
    page = gallery()
    assert re.findall(r"^`(examples/.*)`$", page, flags=re.M) == [
        f"examples/{path.name}" for path in FILES
    ]
    for part in re.split(r"^## ", page, flags=re.M)[1:]:
        assert "<figure>" in part or "@tc.cuda.kernel" in part, part[:80]  # which has no mappings
