"""The command line: `taskc COMMAND …`.

Exit codes: 0 all is well, 1 something is wrong with a kernel, 2 with the command line, 3 the output
can't be written, and 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from taskc import __version__
from taskc.arrays.arguments import ArgumentError
from taskc.commands.terminal import LogLines, OutputError, UsageError, put, write_error
from taskc.errors import CheckError, CompileError, InternalError
from taskc.ir.mapping_forms import MappingError
from taskc.markup import visible
from taskc.output_file import write_whole

_MEASURING = (["bench"], ["best"], ["profile"], ["tune"])  # commands that always time full code
COMMANDS = (
    *("demo", "show", "run", "profile", "check", "map", "mutate", "tune", "best", "db", "doctor"),
    *("compile", "explain", "verify", "bench", "generate"),
)

_EXIT_NO_OUTPUT = 3
_LONGEST_ERROR = 2000  # characters
_EXIT_BROKEN_PIPE = 141  # as a shell reports a program that SIGPIPE ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for good)
    if sys.stdout is None:  # the next file to be opened would take its place
        write_error("error: the standard output is closed")
        return _EXIT_NO_OUTPUT
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode still gets the rest
    logging.lastResort = LogLines(logging.WARNING)
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except OutputError as error:
        return _without_output(error.__cause__)
    except OSError as error:  # from the flush; a command reports its own
        return _without_output(error)


def _without_output(error: BaseException | None) -> int:
    # Python would complain when it flushes the stream at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return _EXIT_BROKEN_PIPE
    reason = error.strerror if isinstance(error, OSError) else None
    write_error(f"error: the output can't be written: {reason or error}")
    return _EXIT_NO_OUTPUT


def _run(arguments: Sequence[str] | None) -> int:
    try:
        words = sys.argv[1:] if arguments is None else arguments
        asked = [name for name in COMMANDS if name in words[:1]]  # import only this one
        parser = _parser(asked or COMMANDS)
        options, more = parser.parse_known_args(words)
        if more and not options.takes_more:
            parser.error(f"unrecognized arguments: {' '.join(more)}")
        options.more = more
        if words[:1] in _MEASURING:
            os.environ.setdefault("TASKC_TIER", "full")
        if any("\0" in word for word in vars(options).values() if isinstance(word, str)):
            raise UsageError("an argument has a character of number 0")
        code: int = options.run(options)
        return code
    except UsageError as error:
        write_error(f"error: {error}")
        return 2
    except (CompileError, InternalError, CheckError) as error:
        write_error(str(error))
        return 1
    except (ArgumentError, MappingError, OSError) as error:
        write_error(f"error: {error}")
        return 1
    except MemoryError:
        write_error("error: there isn't enough memory")
        return 1
    except KeyboardInterrupt:
        write_error("interrupted")
        return 130
    except OutputError:
        raise
    except Exception as error:
        from taskc.backend.cuda.api import DeviceError

        write_error(f"error: {error}" if isinstance(error, DeviceError) else _unexpected(error))
        return 1


def _unexpected(error: Exception) -> str:
    """A short report of a bug in taskc; the whole traceback goes to the TASKC_DUMP folder."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    said = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
    shown = str(InternalError(f"{said}, at {frame.filename}:{frame.lineno}"))
    folder = os.environ.get("TASKC_DUMP")
    if not folder:
        return f"{shown}\n  hint: with TASKC_DUMP=FOLDER, a folder, the traceback is written there"
    place = Path(folder, "traceback.txt")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, "".join(traceback.format_exception(error)))
    except OSError as problem:
        return f"{shown}\n  the traceback can't be written to {place}: {problem}"
    return f"{shown}\n  the traceback is in {place}"


class _Parser(argparse.ArgumentParser):
    """A parser that reports when its help can't be written."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            put(message)
        else:
            super()._print_message(visible(message), file)


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="taskc",
        description="A tensor-program compiler whose schedules are task mappings.",
        epilog="'taskc COMMAND --help' says more about a command.",
    )
    parser.add_argument("--version", action="version", version=f"taskc {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in names:
        module = importlib.import_module(f"taskc.commands.{name}")
        title, _, description = (module.__doc__ or "").partition("\n\n")
        summary = title.partition(": ")[2].rstrip(".\n")
        command = commands.add_parser(
            name,
            help=summary,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=not hasattr(module, "TAKES_MORE"),
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, takes_more=hasattr(module, "TAKES_MORE"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
