"""Runs random programs through every pass, and holds each result to the oracle's."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from unittest import mock

import numpy as np

from taskc.backend.sim import run
from taskc.ir import nodes as ir
from taskc.ir.compare import same_program
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk_statements
from taskc.ir.target import TARGETS
from taskc.ir.verify import verify
from taskc.passes import pipeline
from tests.random_programs import description as d
from tests.random_programs.coverage import Coverage
from tests.random_programs.generator import program as generate
from tests.random_programs.oracle import Oracle
from tests.random_programs.render import source
from tests.random_programs.vectors import as_hardware_does

# The first is the simulator's choice; the others are tried where copies or roles run beside workers.
SCHEDULES = (None, 1)
# Printing and parsing back takes as long as two thirds of all else.
TEXTS_EVERY = 16
SCHEDULES_EVERY = 4
PROCESSORS = 2


Results: TypeAlias = "dict[str, np.ndarray]"
Observer: TypeAlias = "Callable[[str, ir.Kernel, ir.Kernel | None], None]"


@dataclass(frozen=True)
class Failure:
    """stage   the pass after which something was wrong first, or "parse"
    what    what was wrong: "result", "finding", "verify", "text" or "error"
    """

    stage: str
    what: str
    detail: str
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        return f"after {self.stage}: {self.what}: {self.detail}"


def parsed(program: d.Program, file: str = "<program>") -> ir.Kernel:
    """The program's kernel, by way of its source."""
    text = source(program)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"__name__": "random_program"}
    exec(compile(text, file, "exec"), scope)
    kernel: ir.Kernel = scope[program.name].ir
    return replace(kernel, target=program.target)


def small_machine() -> AbstractContextManager[object]:
    """Targets of so few processors that the blocks of a persistent grid have several tiles."""
    return mock.patch.dict(
        TARGETS, {name: replace(one, processors=PROCESSORS) for name, one in TARGETS.items()}
    )


def steps(kernel: ir.Kernel) -> Iterator[tuple[str, ir.Kernel]]:
    """The kernel as parsed, and after each pass."""
    yield "parse", kernel
    lowering = pipeline.lower_steps(kernel)
    while True:
        with small_machine():
            step = next(lowering, None)
        if step is None:
            return
        yield step.name, step.kernel


def check(
    program: d.Program,
    *,
    expected: Results | None = None,
    texts: bool = True,
    schedules: tuple[int | None, ...] = SCHEDULES,
    observe: Observer | None = None,
    file: str = "<program>",
) -> Failure | None:
    """What is wrong with the compiler, as far as this program shows it."""
    if expected is None:
        expected = Oracle(program).results()
    before: ir.Kernel | None = None
    ahead = iter(["parse", *(one.name for one in pipeline.PASSES)])
    stage = ""
    try:
        kernels = steps(parsed(program, file))
        while True:
            stage = next(ahead)
            _, kernel = next(kernels)
            if kernel is not before:
                wrong = check_kernel(
                    program, stage, kernel, expected, texts=texts, schedules=schedules
                )
                if wrong is not None:
                    earlier = "" if before is None else to_text(before)
                    return Failure(stage, *wrong, earlier, to_text(kernel))
                if observe is not None:
                    observe(stage, kernel, before)
            before = kernel
    except StopIteration:
        return None
    except Exception as error:  # of any kind: it is to be reported with its program
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
        detail = f"{type(error).__name__} in {where}: {error}"
        return Failure(stage, "error", detail, "" if before is None else to_text(before))


def check_kernel(
    program: d.Program,
    stage: str,
    kernel: ir.Kernel,
    expected: Results,
    *,
    texts: bool = False,
    schedules: tuple[int | None, ...] = SCHEDULES,
) -> tuple[str, str] | None:
    """What is wrong with a kernel as the pass `stage` left it: the kind, and the details."""
    wrong = _check_step(program, kernel, expected, texts, schedules)
    if wrong is None and stage == "synchronize" and not is_asynchronous(kernel):
        # Where there are no ring steps to lower the barriers must do from here on.
        free = replace(kernel, stage="synchronized")
        wrong = _check_step(program, free, expected, False, schedules)
    if wrong is None and stage in ("vectorize", "hoist"):
        hardware = as_hardware_does(kernel)
        if hardware is not kernel:
            wrong = _check_step(program, hardware, expected, False, schedules[:1])
    return wrong


def _check_step(
    program: d.Program,
    kernel: ir.Kernel,
    expected: Results,
    texts: bool,
    schedules: tuple[int | None, ...],
) -> tuple[str, str] | None:
    try:
        verify(kernel)
    except Exception as error:
        return "verify", str(error)
    if texts:
        text = to_text(kernel)
        if not same_program(parse(text), kernel):
            return "text", "what is printed parses as another program"
    seeds = schedules if len(schedules) == 1 or is_asynchronous(kernel) else schedules[:1]
    for seed in seeds:
        arguments = {
            p.name: p.data if p.shape is None or p.role == "in" else p.data.copy()
            for p in program.parameters
        }
        report = run(
            kernel,
            list(arguments.values()),
            seed=seed,
            on_stop=lambda stop: None,
            dimensions={kernel.processors: PROCESSORS},
        )
        if report.findings:
            return "finding", str(report.findings[0])
        for name, wanted in expected.items():
            difference = differences(name, arguments[name], wanted)
            if difference is not None:
                return "result", difference
    return None


def is_asynchronous(kernel: ir.Kernel) -> bool:
    return any(
        isinstance(node, (ir.RingStep, ir.Roles, ir.Do)) for node in walk_statements(kernel.body)
    )


def run_many(
    seed: int, numbers: Iterable[int]
) -> tuple[list[tuple[int, Failure]], dict[str, object]]:
    """The failures among some programs of a seed, and what they covered, as plain data."""
    coverage = Coverage()
    failures: list[tuple[int, Failure]] = []
    for number in numbers:
        with coverage.program():
            made = generate(seed, number)
            failure = check(
                made,
                texts=number % TEXTS_EVERY == 0,
                schedules=SCHEDULES if number % SCHEDULES_EVERY == 0 else SCHEDULES[:1],
                observe=coverage.see,
                file=f"<program {number}>",
            )
        if failure is not None:
            failures.append((number, failure))
    return failures, coverage.to_json()


def differences(name: str, found: np.ndarray, wanted: np.ndarray) -> str | None:
    """The first element that differs in a bit; one NaN is as good as another."""
    if found.dtype.kind == "f" or found.dtype.name == "bfloat16":
        bits = f"u{found.itemsize}"
        same = (found.view(bits) == wanted.view(bits)) | ((found != found) & (wanted != wanted))
    else:
        same = found == wanted
    if same.all():
        return None
    index = tuple(int(i) for i in np.argwhere(~same)[0])
    count = int((~same).sum())
    return f"{name}{list(index)} is {found[index]!r}, not {wanted[index]!r} ({count} of {same.size} differ)"
