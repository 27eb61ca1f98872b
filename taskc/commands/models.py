"""`model.onnx` as the command line says it, and the inputs that it is run on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taskc.arguments import Array
from taskc.commands.terminal import UsageError

if TYPE_CHECKING:  # operators take a while to load, and kernels of a file need none
    from taskc.onnx.graph import Value
    from taskc.onnx.session import Model

_MOST = 1 << 30  # elements of an input


def is_model(text: str) -> bool:
    """Whether a word of the command line names a model, and not a kernel."""
    return text.endswith(".onnx")


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="FILE.onnx", help="the model")
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


def feeds_of(model: Model, options: argparse.Namespace) -> dict[str, Array]:
    """An array for each input: a file's, or one that is the same in each run.

    Floats are of a normal distribution. Integers and booleans are 0 or 1, which are an index into most tables, and of a
    mask.
    """
    extents, files = dict(options.dim), dict(options.input)
    names = {value.name for value in model.inputs}
    _refuse_others("input", files, names)
    made = [value for value in model.inputs if value.name not in files]
    random = np.random.default_rng(0)
    feeds = {name: _loaded(path) for name, path in files.items()}
    feeds |= {value.name: _example(value, extents, random) for value in made}
    _refuse_others("open extent", extents, {name for value in made for name in _open(value)})
    return feeds


def _refuse_others(what: str, given: dict[str, Any], known: set[str]) -> None:
    for name in given:
        if name not in known:
            has = ", ".join(f"'{one}'" for one in sorted(known)) or "none"
            raise UsageError(f"the model has no {what} '{name}'; it has {has}")


def _open(value: Value) -> list[str]:
    """The ways to name the extents that an input leaves open."""
    extents = enumerate(value.shape or ())
    return [
        name
        for axis, extent in extents
        if not isinstance(extent, int)
        for name in (extent, f"{value.name}:{axis}")
        if name is not None
    ]


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
    if np.prod(shape, dtype=object) > _MOST:
        raise UsageError(f"the input {value} is too large to make up: give it with --input")
    dtype: np.dtype[Any] = np.dtype(value.dtype.numpy)
    if value.dtype.is_float:
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 2, shape).astype(dtype)


def _loaded(path: Path) -> Array:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{path} can't be read as an array: {error}") from None
    if not isinstance(found, np.ndarray):
        raise UsageError(f"{path} has several arrays; an input is one")
    return found


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
