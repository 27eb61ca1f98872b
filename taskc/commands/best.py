"""taskc best: print the fastest plan that is known, as source.

Prints Python that makes a kernel by the fastest plan that is known, for a machine that has no database.

  taskc best matmul --m 1024 --n 1024 --k 1024

Calls of the same problem take that plan by themselves, where it was tuned.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from taskc import Mapping, machine
from taskc.commands.terminal import UsageError, write_text
from taskc.commands.tune import MORE, asked, speed
from taskc.ir.types import DTYPES
from taskc.tune.choose import choose, fingerprint
from taskc.tune.database import database
from taskc.tune.template import Choices

TAKES_MORE = True

_MAPPINGS = ("mapping", "repeat", "replicate", "spatial")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = MORE
    parser.add_argument("what", metavar="WHAT", help="matmul, conv2d, or FILE:TEMPLATE")


def run(options: argparse.Namespace) -> int:
    wanted = asked(options.what, options.more, machine())
    space = wanted.space
    row = database().best(space.operator.name, space.problem_text, fingerprint(space.machine))
    plan = choose(space.operator, space.problem, space.machine)
    if row is None or row.seconds is None or row.plan != space.text(plan):
        raise UsageError(f"{wanted.title} was never tuned here: taskc tune {options.what} …")
    names = sorted({*_names(plan)})
    lines = [f"# {wanted.title}: {speed(space, row.seconds)}, on {row.machine}, {row.date[:10]}"]
    call = wanted.call.replace("{plan}", source_of(plan))
    used = sorted({*re.findall(r"\w+", call)} & {*DTYPES, *_MAPPINGS})
    lines += [f"from taskc import {', '.join(used)}"] if used else []
    module = type(plan).__module__
    lines += [f"from {module} import {', '.join(names)}"] if not isinstance(plan, Choices) else []
    lines += [wanted.imports, "", f"kernel = {call}"]
    write_text("\n".join(lines))
    return 0


def source_of(value: Any) -> str:
    """Frozen data as Python source, without default values."""
    if isinstance(value, Choices):
        return ", ".join(f"{name}={source_of(item)}" for name, item in value.values)
    if is_dataclass(value) and not isinstance(value, type | Mapping):
        said = [
            f"{item.name}={source_of(getattr(value, item.name))}"
            for item in fields(value)
            if item.default is MISSING or getattr(value, item.name) != item.default
        ]
        return f"{type(value).__name__}({', '.join(said)})"
    return repr(value)


def _names(value: Any) -> list[str]:
    """The names of the types of frozen data, and of data in it."""
    if not is_dataclass(value) or isinstance(value, type | Mapping):
        return []
    inner = [name for item in fields(value) for name in _names(getattr(value, item.name))]
    return [type(value).__name__, *inner]
