"""What type checkers and editors see of the language: users' files are clean, and every name is declared."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill, indent
from typing import Any

import pytest

import taskc as tc
from taskc.lang import cuda
from taskc.lang.calls import bind
from taskc.lang.names import INTRINSICS, Intrinsic
from tests.test_docs import _BLOCK, DOCUMENTS

ROOT = Path(__file__).parents[1]
ELEMENT_TYPES = {name for name in tc.__all__ if isinstance(getattr(tc, name), tc.DType)}


# --- what is declared ------------------------------------------------------------------------


def test_every_function_of_the_language_is_declared() -> None:
    for name, it in INTRINSICS.items():
        assert isinstance(it, Intrinsic)
        assert it.__doc__, f"tc.{name} has no text"
        for parameter in inspect.signature(it).parameters.values():
            assert parameter.annotation is not parameter.empty, f"tc.{name}: {parameter}"


def test_every_public_name_has_a_text() -> None:
    """What `help` and an editor show."""
    without = {"inf", "inout", "out", "typed"} | ELEMENT_TYPES  # annotations.pyi has theirs
    names = [name for name in tc.__all__ if name not in without]
    missing = [name for name in names if not inspect.getdoc(getattr(tc, name))]
    assert not missing


def classes() -> dict[str, ast.ClassDef]:
    """Of annotations.pyi, as type checkers other than mypy read it."""
    tree = ast.parse((ROOT / "taskc" / "annotations.pyi").read_text(encoding="utf-8"))
    (choice,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {node.name: node for node in choice.orelse if isinstance(node, ast.ClassDef)}


def test_every_annotation_is_a_class_for_type_checkers() -> None:
    from taskc import annotations

    declared = {name for name, node in classes().items() if ast.get_docstring(node)}
    expected = {*ELEMENT_TYPES, "inout", "out", "typed"}
    assert expected <= declared, "taskc/annotations.pyi lacks some"
    assert set(annotations.__all__) == expected
    assert declared - expected == {"ElementType"}


def declarations() -> str:
    """The text of cuda.pyi."""
    head = (
        f'"""{(cuda.__doc__ or "").partition(chr(10))[0]}"""\n\n'
        "# As type checkers and editors read it; `pytest tests/test_annotations.py --update-golden` writes it.\n"
        "from collections.abc import Callable\nfrom contextlib import AbstractContextManager\n"
        "from typing import Any, TypeVar\n\n"
        "from taskc.lang.definition import cuda_kernel as kernel\n\n"
        f'__all__ = {json.dumps(cuda.__all__)}\n\nV = TypeVar("V")\n\n'
    )
    parts = []
    for name in cuda.__all__[1:]:
        it = getattr(cuda, name)
        signature = re.sub(r"'([^']*)'", r"\1", str(inspect.signature(it)))
        lines = "\n".join(fill(line, 100) for line in it.__doc__.splitlines())
        lines = indent(lines, "    ").strip()
        parts.append(f'def {name}{signature}:\n    """{lines}"""\n')
    return head + "\n".join(re.sub(r"\btyping\.", "", part) for part in parts)


def test_the_stub_of_tc_cuda_has_every_name(request: pytest.FixtureRequest) -> None:
    path = ROOT / "taskc" / "lang" / "cuda.pyi"
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    if importlib.util.find_spec("ruff") is None:
        command[:3] = [shutil.which("ruff") or "ruff"]
    run = subprocess.run(
        command, input=declarations(), capture_output=True, text=True, check=True, cwd=ROOT
    )
    if request.config.getoption("--update-golden"):
        path.write_text(run.stdout, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == run.stdout, "pytest --update-golden writes it"


def test_a_handler_binds_what_is_declared() -> None:
    """`bind` refuses a second signature, so a call in a kernel takes what `help` says."""
    assert INTRINSICS["tile"].parameters == "dtype mapping fill?"
    assert INTRINSICS["scan"].parameters.endswith("* exclusive?")
    call: Any = ast.parse("f(1)", mode="eval").body
    with pytest.raises(AssertionError, match=r"tc\.tile is declared already"):
        bind(None, call, "tc.tile", "x")  # type: ignore[arg-type]


def test_a_function_says_what_it_takes() -> None:
    assert str(inspect.signature(tc.cdiv)) == "(a: 'V', b: 'Any') -> 'V'"
    assert "block value" in (tc.load.__doc__ or "")


def test_what_loads_later_is_declared_as_it_is() -> None:
    tree = ast.parse((ROOT / "taskc" / "__init__.py").read_text(encoding="utf-8"))
    (later,) = [node for node in tree.body if isinstance(node, ast.If)]
    declared = [node for node in later.body if isinstance(node, ast.FunctionDef)]
    assert declared
    for node in declared:
        signature = inspect.signature(getattr(tc, node.name))
        own = [(it.name, it.kind, it.default) for it in signature.parameters.values()]
        namespace: dict[str, Any] = {"Any": Any}
        exec(ast.unparse(node), namespace)
        there = inspect.signature(namespace[node.name]).parameters.values()
        assert [(it.name, it.kind, it.default) for it in there] == own, node.name


def test_a_mapping_says_who_goes_through_it() -> None:
    with pytest.raises(TypeError, match="are gone through in a kernel; m\\(w\\) lists those"):
        list(tc.spatial(4))
    with pytest.raises(TypeError, match="in a kernel's loop"):
        tc.spatial(4).on(0)


def test_typed_is_what_stands_in_it() -> None:
    panels = tc.f32[4, 8].laid(tc.repeat(4, 8))
    assert tc.typed[panels] is panels
    assert tc.typed[tc.out[panels]] == tc.out[panels]
    assert tc.typed[()] == ()
    with pytest.raises(TypeError):
        iter(tc.typed)


# --- what users write ------------------------------------------------------------------------


def programs(text: str, name: str) -> Iterator[tuple[str, str, bool]]:
    """The programs of a document as files, each of which imports what earlier ones have defined; and whether one is
    shown to be refused."""
    defined: dict[str, str] = {}  # how each name is brought in
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        module = f"{name}_{line}"
        tree = ast.parse(match["code"])
        nodes = [*ast.walk(tree)]
        own = {name: node for node in tree.body for name in bound(node)}
        used = {node.id for node in nodes if isinstance(node, ast.Name)} - own.keys()
        imports = [defined[name] for name in sorted(used & defined.keys())]
        future = "from __future__ import annotations; " + "; ".join(imports)
        is_refused = re.search(r"\b(\w*Error|error): ", match["output"] or "") is not None
        yield module, "\n" * line + future + "\n" + match["code"], is_refused
        for own_name, node in own.items():
            is_import = isinstance(node, ast.Import | ast.ImportFrom)
            brought = ast.unparse(node) if is_import else f"from {module} import {own_name}"
            defined[own_name] = brought


def bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module binds in it."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from [(name.asname or name.name).partition(".")[0] for name in names]
        case _:
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id


def written(folder: Path) -> list[str]:
    """The documents' programs, in a folder; those that aren't shown to be refused."""
    accepted = []
    for path in (*DOCUMENTS, ROOT / "README.md"):
        for module, code, is_refused in programs(path.read_text(encoding="utf-8"), path.stem):
            place = folder / f"{module}.py"
            place.write_text(code, encoding="utf-8")
            # The checkers see what is installed, and PyTorch and JAX needn't be.
            is_seen = all(f"import {it}" not in code or find_spec(it) for it in ("torch", "jax"))
            if not is_refused and is_seen:
                accepted.append(str(place))
    assert len(accepted) > 50
    return accepted


def pyright(folder: Path, *files: str) -> list[str]:
    """What pyright says without settings but of where to look."""
    include = [os.path.relpath(file, folder) for file in files]
    settings = {"include": include, "extraPaths": [str(folder), str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    run = subprocess.run([*command, "-p", str(folder)], capture_output=True, text=True)
    found = json.loads(run.stdout)
    assert found["summary"]["filesAnalyzed"] >= len(files), run.stdout
    return [
        f"{Path(it['file']).name}:{it['range']['start']['line'] + 1}: {it['message']}"
        for it in found["generalDiagnostics"]
    ]


def mypy(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-pretty"]
    run = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(folder)},
    )
    return run.stdout + run.stderr


def test_pyright_finds_nothing_in_what_users_write(tmp_path: Path) -> None:
    found = pyright(tmp_path, str(ROOT / "examples"), *written(tmp_path))
    assert not found, "\n".join(found)


@pytest.mark.sweep
def test_pyright_finds_nothing_in_the_templates(tmp_path: Path) -> None:
    """These are checked by mypy at each change."""
    found = pyright(tmp_path, str(ROOT / "taskc" / "kernels"))
    assert not found, "\n".join(found)


def test_mypy_finds_nothing_in_what_users_write(tmp_path: Path) -> None:
    assert "no issues found" in mypy(tmp_path, "examples")
    found = mypy(tmp_path, *written(tmp_path))
    assert "no issues found" in found, found
