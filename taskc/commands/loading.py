"""Load the kernel or program that the command line names as `FILE:KERNEL`."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from taskc.commands.terminal import UsageError
from taskc.errors import NOWHERE, CompileError, InternalError, Location
from taskc.ir.types import DTYPES
from taskc.lang.definition import Definition


def load_kernel(text: str) -> Definition:
    """The kernel or program of `FILE:NAME`, or what the template of `FILE:NAME(1024, stages=3)` returns.

    `FILE` alone names its only kernel.
    """
    match = re.fullmatch(r"(.*?\.py)(?::(.*))?", text, re.DOTALL)
    file, name = match.groups() if match else text.rpartition(":")[::2]
    if not match and not file:
        file, name = name, ""
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"there is no file {file!r}")
    module = load_module(path)
    if not name or not name.strip():
        kernels = _kernels(module)
        if len(kernels) == 1:
            return next(iter(kernels.values()))
        raise UsageError(f"which kernel of {file}? {_offer(module, file)}")
    return _find(module, file, name.strip())


def example_of(definition: Definition, seed: int = 0, larger: int = 0) -> tuple[Any, ...]:
    """A definition's example arguments, which the user's code may make."""
    with _blaming(definition.ir.loc.file):
        return definition.example(seed, larger)


def load_module(path: Path) -> ModuleType:
    """A Python file run as a module. Its name need not be an identifier."""
    path = path.resolve()
    name = f"taskc_file_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a file of Python: its name doesn't end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _on_path(str(path.parent)), _blaming(str(path)):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _on_path(folder: str) -> Iterator[None]:
    """A context in which a file can import its neighbours, as when Python runs it."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


@contextmanager
def _blaming(file: str) -> Iterator[None]:
    """Report exceptions of the user's own code as errors at their line."""
    try:
        yield
    except (CompileError, InternalError):
        raise
    except SyntaxError as error:
        place = Location(
            error.filename or file,
            error.lineno or 0,
            error.offset or 0,
            error.end_lineno or error.lineno or 0,
            error.end_offset or (error.offset or 0) + 1,
            (error.text or "").rstrip("\r\n"),
        )
        raise CompileError(f"this is not Python: {error.msg}", place) from error
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise CompileError(said, _last_line(error, file)) from error


def _last_line(error: BaseException, file: str) -> Location:
    """The last line of a file in an exception's traceback."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == file and frame.lineno is not None:
            text = linecache.getline(file, frame.lineno).rstrip("\r\n")
            first = len(text) - len(text.lstrip())
            return Location(file, frame.lineno, first + 1, frame.lineno, len(text) + 1, text)
    return NOWHERE


def _find(module: ModuleType, file: str, text: str) -> Definition:
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise UsageError(
            f"{text!r} is neither a name nor a call, such as matmul(64, bk=8)"
        ) from None
    called = tree.func if isinstance(tree, ast.Call) else tree
    root = called
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        raise UsageError(f"{text!r} is neither a name nor a call, such as matmul(64, bk=8)")
    if not hasattr(module, root.id):
        raise UsageError(f"{file} has no kernel {root.id!r}; {_offer(module, file, root.id)}")
    # The file's own code has run already: evaluating a call of it grants nothing new.
    names = {**DTYPES, **vars(module)}
    source = str(Path(file).resolve())
    with _blaming(source):
        value = eval(compile(ast.Expression(tree), "<command line>", "eval"), names)
    if isinstance(value, FunctionType) and not isinstance(tree, ast.Call):
        needed = _needed(value)
        if needed:
            example = f"{text}({', '.join('64' for _ in needed)})"
            raise UsageError(
                f"{text} is a template and needs {', '.join(needed)}: {file}:{example}, for example"
            )
        with _blaming(source):
            value = value()
    if not isinstance(value, Definition):
        raise UsageError(
            f"{text} is not a kernel but a {type(value).__name__}; {_offer(module, file)}"
        )
    return value


def _needed(function: FunctionType) -> list[str]:
    """The required parameters of a function."""
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _offer(module: ModuleType, file: str, name: str = "") -> str:
    """The kernels and templates that the file has instead."""
    kernels = _kernels(module)
    templates = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, FunctionType)
        and value.__module__ == module.__name__
        and not key.startswith("_")
        and {"kernel", "cuda_kernel", "program"} & set(value.__code__.co_names)
    }
    offered: list[Any] = [
        *kernels,
        *(f"{key}{_signature(value)}" for key, value in templates.items()),
    ]
    close = difflib.get_close_matches(name, [*kernels, *templates], 1) if name else []
    hint = f"did you mean {close[0]!r}? " if close else ""
    if not offered:
        return f"{hint}it has no kernels"
    return f"{hint}it has {', '.join(offered)}"


def _kernels(module: ModuleType) -> dict[str, Definition]:
    return {key: value for key, value in vars(module).items() if isinstance(value, Definition)}


def _signature(function: FunctionType) -> str:
    needed = _needed(function)
    return f"({', '.join(needed)})" if needed else ""
