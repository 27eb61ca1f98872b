"""The command line: `taskc COMMAND …`.

Exit codes: 0 all is well, 1 something is wrong with a kernel, 2 with the command line, 3 the output
can't be written, and 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from taskc import __version__
from taskc.arguments import ArgumentError
from taskc.commands.show import CUDA, NATIVE
from taskc.commands.terminal import OutputError, UsageError, put, write_error
from taskc.driver import CheckError
from taskc.errors import CompileError, InternalError
from taskc.ir.nodes import STAGES
from taskc.ir.target import TARGETS

_KERNEL_HELP = """\
FILE:KERNEL names a kernel or a program of a file of Python: one at its top level, or what a
function returns:

  taskc show examples/01_vector_add.py:vector_add
  taskc show 'matmul.py:matmul(256, 256, 64, stages=3)'

Without KERNEL it is the only one of the file; where there are several, they are listed.
"""

_EXIT_NO_OUTPUT = 3
_EXIT_BROKEN_PIPE = 141  # as a shell reports a program that SIGPIPE ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for good)
    if sys.stdout is None:  # what is opened next would take its place
        write_error("error: the standard output is closed")
        return _EXIT_NO_OUTPUT
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode still gets the rest
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except OutputError as error:
        return _without_output(error.__cause__)
    except OSError as error:  # the flush's; a command's own are told by now
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
        options = _parser().parse_args(arguments)
        if any("\0" in word for word in vars(options).values() if isinstance(word, str)):
            raise UsageError("an argument has a character of number 0")
        code: int = importlib.import_module(f"taskc.commands.{options.command}").run(options)
        return code
    except UsageError as error:
        write_error(f"error: {error}")
        return 2
    except (CompileError, InternalError, CheckError) as error:
        write_error(str(error))
        return 1
    except (ArgumentError, OSError) as error:
        write_error(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        write_error("interrupted")
        return 130


class _Parser(argparse.ArgumentParser):
    """argparse's own says nothing where its help can't be written."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            put(message)
        else:
            super()._print_message(message, file)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="taskc",
        description="A tensor-program compiler whose schedules are task mappings.",
        epilog="'taskc COMMAND --help' says more about a command.",
    )
    parser.add_argument("--version", action="version", version=f"taskc {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(
        name: str, summary: str, description: str = "", epilog: str = ""
    ) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=description or f"{summary[0].upper()}{summary[1:]}.",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    add(
        "demo",
        "see taskc at work: an operator, its mapping, its checks, and a race",
        "Writes an operator, draws its mapping, checks it after every pass, runs it against\n"
        "NumPy, and shows how a race is reported. Takes a few seconds, and changes nothing.",
    )

    show = add(
        "show",
        "the program at a stage of its lowering",
        "Prints a kernel as a program of the IR: as it was parsed, at the end of a stage, or\n"
        "after every pass. Notes of the compiler follow.",
        _KERNEL_HELP,
    )
    _kernel(show)
    show.add_argument(
        "--stage",
        choices=(*STAGES, *NATIVE, *CUDA),
        metavar="NAME",
        help=f"the end of a stage: {', '.join(STAGES)}; or what the CPU runs: {', '.join(NATIVE)}; or"
        f" what a GPU does: {', '.join(CUDA)}",
    )
    show.add_argument("--all", action="store_true", help="after every pass, with its time")
    show.add_argument("--diff", action="store_true", help="what each pass changes")
    _target(show)

    started = add(
        "run",
        "run a kernel or a program on its own example inputs",
        "Runs a kernel or a program on its example inputs, and prints the outputs' shapes, a digest\n"
        "of their bits, and the median time of a call, whose first ones don't count.",
        _KERNEL_HELP,
    )
    _kernel(started)
    started.add_argument(
        "--repeat", metavar="N", type=_positive, default=20, help="calls to time (default 20)"
    )
    started.add_argument(
        "--check",
        action="store_true",
        help="compare with the simulator: bit for bit, closely where there are mathematical functions\n"
        "or sums of floats by atomics; exits with 1 where it differs",
    )
    started.add_argument(
        "--target", choices=("cpu", "sim"), metavar="T", help="where it runs: cpu or sim"
    )
    _json(started)

    check = add(
        "check",
        "check a kernel on its own example inputs",
        "Proves that each output element is stored once, indices are in bounds and nothing\n"
        "races; then runs the program in the simulator after every pass, and compares the\n"
        "results bit for bit. Exits with 1 if anything is wrong.",
        _KERNEL_HELP,
    )
    _kernel(check)
    _seeds(check, 1)
    _json(check)
    _target(check)

    picture = add(
        "map",
        "draw a mapping",
        "Draws a mapping as a table of who does which task: worker:slot, + where several do.",
        "example: taskc map 'spatial(4, 8).repeat(2, 2)'",
    )
    picture.add_argument("mapping", metavar="MAPPING", help="such as 'spatial(4, 8).repeat(2, 2)'")
    picture.add_argument("--svg", metavar="FILE", help="write the picture to a file, too")
    picture.add_argument("--worker", metavar="W", type=int, help="list this worker's tasks, too")

    mutate = add(
        "mutate",
        "break the lowered program in small ways, and count which are noticed",
        "Deletes and moves barriers, waits and fences, shifts ring slots, shrinks buffers and\n"
        "perturbs mappings, one at a time. Exits with 1 if fewer than 95% are reported of those\n"
        "that are not proved equivalent.",
        _KERNEL_HELP,
    )
    _kernel(mutate)
    _seeds(mutate, 3)
    _json(mutate)
    _target(mutate)

    add("doctor", "versions, processor, driver, cache folder, environment variables")
    return parser


def _kernel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernel", metavar="FILE:KERNEL", help="the kernel, see below")


def _target(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(TARGETS)
    parser.add_argument(
        "--target", choices=tuple(TARGETS), metavar="T", help=f"lower it for this target: {names}"
    )


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="write JSON")


def _seeds(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=_positive,
        default=default,
        help=f"how many schedules of the workers are tried (default {default})",
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
