"""Load the kernel or program that the command line names as `FILE:KERNEL`.

Models named on the command line, and the inputs to run them on.
"""

from __future__ import annotations

import argparse
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
from typing import TYPE_CHECKING, Any

import numpy as np

import taskc as tc
from taskc.arrays.arguments import Array
from taskc.commands.terminal import UsageError
from taskc.errors import NOWHERE, CompileError, InternalError, Location
from taskc.format import many
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Tensor
from taskc.ir.signature import inputs_of
from taskc.ir.types import DTYPES
from taskc.lang.definition import Definition
from taskc.onnx.sequences import Sequence
from taskc.operators.graph import Value
from taskc.runtime.bundle import BundledProgram

if TYPE_CHECKING:
    from taskc.onnx.model import Model


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


_MAX_ELEMENTS = 1 << 30  # of an input


def is_model(text: str) -> bool:
    """Whether a word of the command line names a model rather than a kernel."""
    return text.endswith(".onnx")


def is_bundle(text: str) -> bool:
    """Whether it names a bundle of a model or a program."""
    return text.endswith(".taskc")


def loaded(path: str, precision: str, target: str = "cpu") -> Model | BundledProgram:
    """A model, compiled now or loaded from a bundle, or a bundle's program."""
    if not is_bundle(path):
        return tc.compile(path, target, precision=precision)  # type: ignore[no-any-return]
    if target != "cpu":
        raise UsageError(f"{path} is compiled for a processor")
    if precision != "f32":
        raise UsageError(f"{path} is compiled: --precision is said to taskc compile")
    bundled: Any = tc.load_bundle(path)
    if isinstance(bundled, Sequence):
        raise UsageError(f"{path} holds a model with states, which tc.load_bundle loads")
    return bundled  # type: ignore[no-any-return]


def model_of(path: str, precision: str) -> Model:
    loaded_model = loaded(path, precision)
    if isinstance(loaded_model, BundledProgram):
        raise UsageError(f"{path} holds a program, and no model")
    return loaded_model


def add_model(
    parser: argparse.ArgumentParser, metavar: str = "FILE.onnx", what: str = "the model"
) -> None:
    parser.add_argument("model", metavar=metavar, help=what)
    add_feeds(parser)


def add_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision", choices=("f32", "bf16"), default="f32",
        help="bf16 rounds the operands of products with weights, and sums in f32 (default f32)",
    )  # fmt: skip


def add_feeds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dim", metavar="NAME=N", type=_extent, action="append", default=[],
        help="an extent that a model leaves open, by its name or as INPUT:AXIS (default 1)",
    )  # fmt: skip
    parser.add_argument(
        "--input", metavar="NAME=FILE.npy", type=_file, action="append", default=[],
        help="an input of a model, in place of random numbers",
    )  # fmt: skip


def shaped_feeds(model: Model, options: argparse.Namespace) -> list[dict[str, Array]]:
    """`feeds_of` for each set of shapes given by --shape: the first shapes of all inputs, then the second ones, etc.

    An input with one shape has it in all sets. Extents of the same name are equal. All inputs need a shape.
    """
    shapes_of: dict[str, list[tuple[int, ...]]] = {}
    for name, shape in options.shape:
        shapes_of.setdefault(name, []).append(shape)
    _refuse_others("input", shapes_of, {value.name for value in model.inputs})
    counts = {name: len(shapes) for name, shapes in shapes_of.items() if len(shapes) > 1}
    if len({*counts.values()}) > 1:
        said = ", ".join(f"{count} of '{name}'" for name, count in counts.items())
        raise UsageError(
            f"inputs have as many shapes as there are sets of them, or one; not {said}"
        )
    feeds = []
    for number in range(max(counts.values(), default=1)):
        by_name = {name: shapes[min(number, len(shapes) - 1)] for name, shapes in shapes_of.items()}
        extents = dict(options.dim)
        for value in model.inputs:
            if value.name in by_name:
                extents |= _said(value, by_name[value.name])
        files = dict(options.input)
        missing = [
            value
            for value in model.inputs
            if value.name not in files
            and not all({f"{value.name}:{n}", name} & {*extents} for n, name in _open_axes(value))
        ]
        if missing:
            raise UsageError(
                f"the model leaves open what shape its input {missing[0]} has: say"
                f" --shape {missing[0].name}=N,M"
            )
        sized = argparse.Namespace(dim=[*extents.items()], input=options.input)
        feeds.append(feeds_of(model, sized))
    return feeds


def _said(value: Value, shape: tuple[int, ...]) -> dict[str, int]:
    """The open extents of an input with this shape, by name."""
    declared = value.shape
    if declared is None or len(declared) != len(shape):
        raise UsageError(f"the input {value} has no shape of {many(len(shape), 'extent')}")
    for extent, size in zip(declared, shape, strict=True):
        if isinstance(extent, int) and extent != size:
            raise UsageError(f"the input {value} has no extent of {size} in the place of {extent}")
    places = {f"{value.name}:{axis}": shape[axis] for axis, _ in _open_axes(value)}
    return places | {
        name: shape[axis]
        for axis, name in _open_axes(value)
        if name is not None and name.isidentifier()
    }


def _open_axes(value: Value) -> list[tuple[int, str | None]]:
    return [
        (axis, extent)
        for axis, extent in enumerate(value.shape or ())
        if not isinstance(extent, int)
    ]


def arguments_of(program: BundledProgram, options: argparse.Namespace) -> list[Any]:
    """An argument for each input of a program, with the extents given by --dim; scalars are 1."""
    named = {dimension.name: dimension for dimension in program.ir.dimensions}
    _refuse_others("dimension", dict(options.dim), {*named})
    if options.input:
        raise UsageError("--input is of models")
    extents = dict(options.dim)
    sizes = {item: extents.get(name, item.multiple) for name, item in named.items()}
    random, arguments = np.random.default_rng(0), list[Any]()
    for item in inputs_of(program.ir.parameters):
        if isinstance(item, Tensor):
            shape = tuple([extent_value(extent, sizes) for extent in item.argument_shape])
            arguments.append(_example(Value(item.name, item.dtype, shape), {}, random))
        else:
            arguments.append(item.dtype.numpy.type(1))
    return arguments


def feeds_of(model: Model, options: argparse.Namespace) -> dict[str, Array]:
    """An array for each input: from a file, or random but the same in each run.

    Floats are normally distributed. Integers and booleans are 0 or 1, which are valid in most tables and masks. If a
    bundle has only certain shapes, the first set is used.
    """
    extents, files = dict(options.dim), dict(options.input)
    if model.shapes and not extents:
        for value in model.inputs:
            extents |= {} if value.name in files else _said(value, model.shapes[0][value.name])
    names = {value.name for value in model.inputs}
    _refuse_others("input", files, names)
    generated = [value for value in model.inputs if value.name not in files]
    random = np.random.default_rng(0)
    feeds = {name: _loaded(path) for name, path in files.items()}
    feeds |= {value.name: _example(value, extents, random) for value in generated}
    _refuse_others("open extent", extents, {name for value in generated for name in _open(value)})
    return feeds


def _refuse_others(what: str, given: dict[str, Any], known: set[str]) -> None:
    for name in given:
        if name not in known:
            has = ", ".join(f"'{one}'" for one in sorted(known)) or "none"
            raise UsageError(f"the model has no {what} '{name}'; it has {has}")


def _open(value: Value) -> list[str]:
    """The names of an input's open extents."""
    axes = _open_axes(value)
    return [n for axis, name in axes for n in (name, f"{value.name}:{axis}") if n is not None]


def _example(value: Value, extents: dict[str, int], random: np.random.Generator) -> Array:
    if value.dtype is None or value.shape is None:
        what = "type" if value.dtype is None else "shape"
        raise UsageError(
            f"the model doesn't say the {what} of its input '{value.name}': give it with --input"
        )
    shape = [
        extent
        if isinstance(extent, int)
        else extents.get(f"{value.name}:{axis}", extents.get(extent or "", 1))
        for axis, extent in enumerate(value.shape)
    ]
    if np.prod(shape, dtype=object) > _MAX_ELEMENTS:
        raise UsageError(f"the input {value} is too large to make up: give it with --input")
    dtype: np.dtype[Any] = np.dtype(value.dtype.numpy)
    if value.dtype.is_float:
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 2, shape).astype(dtype)


def _loaded(path: Path) -> Array:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{path} can't be read as an array: {error}") from None
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{path} has several arrays; an input is one")
    return array


def shape_of(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, written = text.rpartition("=")
    extents = written.split(",") if written else []
    if not name or not all(extent.isdecimal() for extent in extents):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=N,M, such as tokens=1,128")
    return name, tuple(map(int, extents))


def _extent(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=N, such as batch=8")
    return name, int(number)


def _file(text: str) -> tuple[str, Path]:
    name, _, path = text.rpartition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE.npy")
    return name, Path(path)
