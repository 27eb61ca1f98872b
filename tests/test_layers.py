"""Imports point down only, never in a circle, and heavy third-party modules load where their target starts."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Each part of the package, and the parts right below it: it may import those, whatever is below
# them, and itself. The empty name is taskc/__init__.py, which holds the public names.
BELOW: dict[str, tuple[str, ...]] = {
    "dataclass": (),
    "errors": ("dataclass",),
    "ir": ("errors",),
    "arrays": ("ir",),
    "lang": ("arrays",),
    "annotations": ("lang",),
    "analysis": ("ir",),
    "passes": ("analysis", "output_file"),
    # A program as data, without its compiler: backends run its plan.
    "programs.ir": ("ir",),
    "programs.plan": ("programs.ir",),
    "programs.resize": ("programs.plan",),
    "programs": ("lang", "passes", "programs.resize"),
    "backend": ("analysis", "arrays", "format", "programs.resize"),
    "backend.cpu": ("backend",),
    "backend.cuda": ("backend",),
    "backend.sim": ("backend",),
    "runtime": ("backend.cpu", "backend.cuda", "backend.sim", "lang", "programs", "progress"),
    "markup": ("dataclass",),
    "progress": ("ir", "markup"),
    "pictures": ("ir", "markup"),
    "output_file": (),
    "format": (),
    "device": ("backend.cuda",),
    "backward": ("lang",),
    "torch": ("backward", "onnx"),
    "jax": ("backward", "runtime"),
    "notebooks": ("pictures", "runtime"),
    "mutation": ("runtime",),
    "tune": ("device", "pictures", "runtime"),
    "kernels": ("tune",),
    "profiling": ("kernels",),
    "operators": ("kernels",),
    "gradients": ("backward", "operators"),
    "numpy": ("operators",),
    "onnx": ("operators",),
    "commands": ("mutation", "onnx", "profiling"),
    "cli": ("commands",),
    "": ("annotations", "cli", "gradients", "jax", "notebooks", "numpy", "torch"),
    "__main__": ("",),
}

# An operator is written against the public names, like a user's; so is what stands on operators.
USE_PUBLIC_NAMES = {"kernels", "operators", "gradients", "numpy", "onnx", "commands", "cli"}

# Third-party modules that may be imported at module level only in the part given.
HOMES = {"cuda": "backend.cuda", "llvmlite": "backend.cpu", "onnx": "onnx"}
# These are never imported, except in functions of a part that they call themselves.
NEVER = {"jax", "torch"}
CALLED_BY = {"torch": "torch"}


@dataclass(frozen=True, slots=True)
class Import:
    line: int
    module: str  # `taskc.ir.types.f32` for `from taskc.ir.types import f32`
    eager: bool  # runs when the file is imported: not inside a function


def absolute(name: str, package: str) -> str:
    """A module's full name; each leading dot but the first leaves a package."""
    rest = name.lstrip(".")
    if rest == name:
        return name
    parents = package.split(".")
    kept = parents[: len(parents) - (len(name) - len(rest)) + 1]
    return ".".join([*kept, *([rest] if rest else [])])


def imports(source: str, package: str) -> Iterator[Import]:
    """All of a file's imports; `package` is what its relative ones start from."""

    def walk(node: ast.AST, eager: bool) -> Iterator[Import]:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(node.lineno, alias.name, eager)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = absolute("." * level + (module or ""), package)
                for alias in names:
                    yield Import(node.lineno, f"{base}.{alias.name}", eager)
            case ast.Call(
                func=ast.Attribute(attr="import_module" | "__import__")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(node.lineno, absolute(name, package), eager)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, eager and not inside)

    return walk(ast.parse(source), True)


def part_of(module: str) -> str:
    """The part that a module of taskc belongs to, or that a name in one does."""
    path = module.split(".")[1:]
    prefixes = (".".join(path[:length]) for length in range(len(path), 0, -1))
    return next((prefix for prefix in prefixes if prefix in BELOW), "")


def below(part: str) -> set[str]:
    return set(BELOW[part]).union(*(below(other) for other in BELOW[part]))


def violations(source: str, module: str, *, package: bool = False) -> list[str]:
    """What is wrong with a file's imports. `package` says that the file is an `__init__.py`."""
    part = part_of(module)
    if not part and module != "taskc":
        return [f"{module}: it is in no layer; add it to BELOW"]
    allowed = {part} | below(part) | ({""} if part in USE_PUBLIC_NAMES else set())
    found = []
    for item in imports(source, module if package else module.rpartition(".")[0]):
        top = item.module.partition(".")[0]
        place = f"{module}, line {item.line}: "
        if top == "taskc" and part_of(item.module) not in allowed:
            found.append(f"{place}{part} may not import {part_of(item.module) or 'taskc'}")
        elif top in NEVER and (item.eager or CALLED_BY.get(top) != part):
            found.append(f"{place}{top} is never imported")
        elif item.eager and HOMES.get(top, part) != part:
            found.append(f"{place}{top} at module level belongs in {HOMES[top]}")
    return found


def modules() -> Iterator[tuple[str, bool, str]]:
    """Each module's name, whether it is a package, and its text."""
    for path in sorted((ROOT / "taskc").rglob("*.py")):
        is_package = path.name == "__init__.py"
        names = path.parent if is_package else path.with_suffix("")
        yield ".".join(names.relative_to(ROOT).parts), is_package, path.read_text(encoding="utf-8")


def test_imports_point_down() -> None:
    found = []
    for module, is_package, source in modules():
        found += violations(source, module, package=is_package)
    assert found == []


def circles(sources: list[tuple[str, bool, str]]) -> set[frozenset[str]]:
    """The largest groups of modules in which each imports all others, directly or not."""
    names = {module for module, _, _ in sources}
    imported: dict[str, set[str]] = {}
    for module, is_package, source in sources:
        package = module if is_package else module.rpartition(".")[0]
        found = [item.module for item in imports(source, package)]
        # Of `from a import b`, b is a module or something in one.
        imported[module] = {
            name if name in names else name.rpartition(".")[0] for name in found
        } & names
    reached: dict[str, set[str]] = {}
    for module in names:
        below_it = reached[module] = set()
        stack = [*imported[module]]
        while stack:
            if (name := stack.pop()) not in below_it:
                below_it.add(name)
                stack += imported[name]
    return {
        frozenset(name for name in reached[module] if module in reached[name])
        for module in names
        if module in reached[module]
    }


def test_no_modules_import_each_other() -> None:
    assert sorted(map(sorted, circles([*modules()]))) == []


@pytest.mark.parametrize(
    "source",
    [
        "from taskc.ir.b import c",
        "from taskc.ir import b",
        "import taskc.ir.b",
        "from .b import c",
        "def f():\n    from taskc.ir.b import c",
        "if TYPE_CHECKING:\n    from taskc.ir.b import c",
        "def f():\n    import_module('.b', __package__)",
    ],
)
def test_a_planted_circle_is_caught(source: str) -> None:
    others = [("taskc.ir", True, "from .a import x"), ("taskc.ir.c", False, "from .a import x")]
    back = ("taskc.ir.b", False, "from taskc.ir.c import x")
    assert circles([*others, back, ("taskc.ir.a", False, source)]) == {
        frozenset({"taskc.ir.a", "taskc.ir.b", "taskc.ir.c"})
    }
    assert not circles([*others, back, ("taskc.ir.a", False, "from taskc.ir.d import b")])


def test_importing_taskc_loads_no_heavy_module() -> None:
    heavy = sorted({*HOMES, *NEVER})
    program = f"import sys, taskc; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("taskc.ir.types", "import taskc.passes.pipeline", ["ir may not import passes"]),
        ("taskc.ir.types", "from ..lang import parse", ["ir may not import lang"]),
        ("taskc.ir.types", "from .. import runtime", ["ir may not import runtime"]),
        ("taskc.ir.types", "from taskc import f32", ["ir may not import taskc"]),
        ("taskc.lang.parse", "from taskc.passes import lean", ["lang may not import passes"]),
        ("taskc.passes.hoist", "from taskc import backend", ["passes may not import backend"]),
        ("taskc.backend.shared", "import taskc.lang", ["backend may not import lang"]),
        ("taskc.backend.shared", "from . import sim", ["backend may not import backend.sim"]),
        (
            "taskc.backend.cuda.emit",
            "from taskc.backend.cpu.emit import emit",
            ["backend.cuda may not import backend.cpu"],
        ),
        ("taskc.errors", "def f():\n    import taskc.ir", ["errors may not import ir"]),
        (
            "taskc.ir.types",
            "if TYPE_CHECKING:\n    from taskc.cli import main",
            ["ir may not import cli"],
        ),
        (
            "taskc.runtime.driver",
            "import importlib\nimportlib.import_module('taskc.tune')",
            ["runtime may not import tune"],
        ),
        (
            "taskc.ir.types",
            "def f():\n    def g():\n        from ..lang.parse import parse",
            ["ir may not import lang"],
        ),
        (
            "taskc.backend.sim.run",
            "class A:\n    def f(self):\n        from ...passes import lean",
            ["backend.sim may not import passes"],
        ),
        (
            "taskc.passes.proofs.races",
            "def f():\n    from ... import runtime",
            ["passes may not import runtime"],
        ),
        (
            "taskc.passes.proofs.races",
            "def f():\n    import_module('...lang', __package__)",
            ["passes may not import lang"],
        ),
        ("taskc.ir.types", "f = lambda: __import__('taskc.lang')", ["ir may not import lang"]),
        ("taskc.runtime.driver", "import onnx.helper", ["onnx at module level belongs in onnx"]),
        (
            "taskc.backend.sim.run",
            "try:\n    from llvmlite import ir\nexcept ImportError:\n    pass",
            ["llvmlite at module level belongs in backend.cpu"],
        ),
        ("taskc.cli", "def f():\n    import torch", ["torch is never imported"]),
        ("taskc.torch.dynamo", "import torch", ["torch is never imported"]),
        ("taskc.torch.dynamo", "def f():\n    import jax", ["jax is never imported"]),
        ("taskc.novel", "", ["it is in no layer; add it to BELOW"]),
    ],
)
def test_a_planted_import_is_caught(module: str, source: str, expected: list[str]) -> None:
    assert [line.partition(": ")[2] for line in violations(source, module)] == expected


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("taskc.ir.types", "from .mapping import Mapping\nfrom ..errors import CompileError"),
        ("taskc.passes.hoist", "import numpy\nfrom taskc.ir import nodes"),
        ("taskc.backend.cuda.emit", "from taskc.backend.shared import f\nfrom cuda import nvrtc"),
        ("taskc.runtime.driver", "def f():\n    from cuda.bindings import driver"),
        (
            "taskc.runtime.driver",
            "from taskc.backend.sim import run\nfrom taskc.errors import Location",
        ),
        ("taskc.kernels.matmul", "import taskc as tc\nfrom taskc import f32"),
        ("taskc", "from taskc.cli import main"),
        ("taskc.torch.dynamo", "def f():\n    from torch.fx import Node"),
    ],
)
def test_imports_that_are_in_order(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_a_package_s_own_file_counts_as_inside() -> None:
    (found,) = violations("def f():\n    from ..lang import parse", "taskc.ir", package=True)
    assert found.endswith("ir may not import lang")
    assert violations("from .types import f32", "taskc.ir", package=True) == []
