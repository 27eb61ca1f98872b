"""Options that several commands have, each declared once."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from taskc.commands.terminal import UsageError
from taskc.ir.target import TARGETS

_KERNEL_HELP = """\
FILE:KERNEL names a kernel or a program of a file of Python: one at its top level, or what a
function returns:

  taskc show examples/01_vector_add.py:vector_add
  taskc show 'matmul.py:matmul(256, 256, 64, stages=3)'

Without KERNEL it is the only one of the file; where there are several, they are listed.
"""


def add_kernel(parser: argparse.ArgumentParser, *, or_model: bool = False) -> None:
    parser.epilog = _KERNEL_HELP
    named, what = (
        ("FILE:KERNEL|FILE.onnx|FILE.taskc", "kernel, model or bundle")
        if or_model
        else ("FILE:KERNEL", "kernel")
    )
    parser.add_argument("kernel", metavar=named, help=f"the {what}, see below")


def add_target(parser: argparse.ArgumentParser, *more: str) -> None:
    known = *more, *TARGETS
    parser.add_argument(
        "--target", choices=known, metavar="T", help=f"lower it for this target: {', '.join(known)}"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="write JSON")


def add_seeds(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=positive,
        default=default,
        help=f"how many schedules of the workers are tried (default {default})",
    )


def page_at(named: str) -> Path:
    """Where a page is written; it is checked before what takes long."""
    path = Path(named)
    if path.is_dir():
        raise UsageError(f"the report can't be written to {path}: it is a folder")
    if not path.parent.is_dir():
        raise UsageError(f"the report can't be written to {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"the report can't be written to {path}: permission denied")
    return path


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def seconds_of(text: str) -> float:
    """Of 30s, 5m, 1.5h, or 30."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: say 30s, or 5m")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
