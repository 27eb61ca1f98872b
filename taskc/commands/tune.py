"""taskc tune: find the fastest plan for a matmul, a convolution, your own template, or a model.

Compiles, checks and times plans, and remembers the fastest: later calls take it.

  taskc tune matmul --m 1024 --n 1024 --k 1024
  taskc tune conv2d --height 56 --width 56 --channels 64 --features 64 --size 3 --padding 1
  taskc tune my_kernels.py:matmul --m 1024 --n 1024 --k 1024
  taskc tune model.onnx --dim batch=8 --budget 1m
  taskc tune matmul --m 1024 --n 1024 --k 1024 --dtype f16 --target cuda:sm_90a --dry-run

What was measured is in the database of `taskc db`; nothing is measured twice, and Ctrl-C loses nothing.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import taskc as tc
from taskc import DType, Machine, f32, machine
from taskc.backend.cuda.api import DeviceError
from taskc.backend.cuda.context import context
from taskc.commands.loading import add_feeds, feeds_of, is_model, load_kernel, load_module
from taskc.commands.terminal import (
    UsageError,
    add_json,
    columns,
    page_at,
    positive,
    seconds_of,
    write,
    write_json,
    write_text,
)
from taskc.dataclass import dataclass
from taskc.format import many, rate_text, share_text, spread_text, time_text
from taskc.ir.target import GPUS, SM_90A
from taskc.ir.types import DTYPES
from taskc.kernels.convolution import CONVOLUTION
from taskc.kernels.convolution.problem import problem_of as convolution_problem
from taskc.kernels.matmul import MATMUL
from taskc.kernels.matmul.problem import problem_of as matmul_problem
from taskc.lang.definition import Definition
from taskc.output_file import write_whole
from taskc.progress import Progress
from taskc.tune.bench import dry_run, tuned
from taskc.tune.choose import processor, recorded
from taskc.tune.database import database
from taskc.tune.model import Judged, Quality
from taskc.tune.report import report
from taskc.tune.rows import said
from taskc.tune.space import STRATEGIES, Space
from taskc.tune.template import Template
from taskc.tune.timing import measured_facts
from taskc.tune.tuner import Final, Trial, Tuned
from taskc.tune.workers import ray_workers

_DRY = "with --dry-run candidates are compiled and simulated without a GPU"


def add_target(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(f"cuda:{gpu.name}" for gpu in GPUS)
    known = ("cpu", "cuda", *(f"cuda:{gpu.name}" for gpu in GPUS))
    parser.add_argument(
        "--target", metavar="T", choices=known, default="cpu",
        help=f"cpu (the default), cuda, the GPU at hand, or {names}",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true",
        help="of a GPU that need not be here: compile candidates, check them in the simulator, time nothing",
    )  # fmt: skip


def machine_of(target: str, *, is_dry: bool) -> Machine:
    """The machine to tune for, which is present unless the run is dry."""
    name = target.partition(":")[2]
    if is_dry:
        if not name:
            raise UsageError(f"say which GPU a dry run is for: --target cuda:{SM_90A.name}")
        return machine(name)
    if target == "cpu":
        return machine()
    try:
        here = context()
        if name and here.target != name:
            raise DeviceError(f"the GPU at hand, {here.name}, runs code for {here.target}")
    except DeviceError as error:
        raise UsageError(f"nothing can be measured for {target}: {error}; {_DRY}") from None
    return machine(here.target, threads=here.processors)


def report_dry(title: str, found: Tuned) -> None:
    """Report the plans that were compiled and checked."""
    tried = found.trials
    right = [trial for trial in tried if trial.result.outcome == "not measured"]
    write((title, "bold"), f", for {found.space.machine.name}, dry")
    write(
        f"{many(len(found.space.plans), 'plan')}: {len(tried)} tried, {len(right)} of them compiled and checked, "
        f"{len(tried) - len(right)} not; {found.seconds:.1f} s"
    )
    for trial in tried:
        if trial not in right:
            note = f"{said(found.space.text(trial.plan))}: {trial.result.note}"
            write((f"{trial.result.outcome}: ", "bold red"), note)
    if right:
        write_text(columns([_trial_row(found, trial) for trial in right]))
    for warning in found.warnings:
        write(("not measured: ", "bold yellow"), warning)
    if found.was_interrupted:
        write("interrupted")


def _trial_row(found: Tuned, trial: Trial) -> tuple[str, ...]:
    predicted = f"predicted {time_text(trial.predicted)}"
    return predicted, trial.result.note, said(found.space.text(trial.plan))


TAKES_MORE = True  # further options describe the problem


_OF_MATMUL = """\
matmul   --m M --n N --k K [--dtype f32] [--transpose-a] [--transpose-b] [--packed] [--bias] [--residual]
"""
_OF_CONVOLUTION = """\
conv2d   --height H --width W --channels C --features F [--images 1] [--size 3] [--stride 1] [--padding 0]
         [--dilation 1] [--groups 1] [--order NHWC] [--filters OHWI] [--dtype f32] [--unpacked] [--winograd]
         [--bias] [--residual]
"""
_OF_TEMPLATES = """\
FILE:TEMPLATE     --NAME VALUE, for each argument of a template with @tc.tune
FILE:KERNEL       all that a kernel or a program was made of by the library, such as 'net.py:model(128)'
FILE.onnx         [--dim NAME=N], all that a model is compiled to
"""
MORE = f"what is tuned:\n{_OF_MATMUL}{_OF_CONVOLUTION}{_OF_TEMPLATES}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = MORE
    parser.add_argument(
        "what",
        metavar="WHAT",
        nargs="?",
        help="matmul, conv2d, FILE:TEMPLATE, FILE:KERNEL or FILE.onnx",
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="measure the rates of this processor that costs count with, in place of anything else",
    )
    parser.add_argument(
        "--strategy", choices=tuple(STRATEGIES), metavar="S",
        help=f"how plans are searched: {', '.join(STRATEGIES)} (default: model, where there is a cost model)",
    )  # fmt: skip
    parser.add_argument(
        "--most", metavar="N", type=positive, help="plans that are tried (default 32)"
    )
    parser.add_argument(
        "--budget", metavar="TIME", type=seconds_of, help="how long it may go on: 30s, 5m"
    )
    parser.add_argument(
        "--workers",
        metavar="ray://HOST:PORT",
        help="compile and measure on a Ray cluster (pip install ray)",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of what is random")
    parser.add_argument(
        "--report", metavar="FILE", help="write a page of HTML that shows all plans"
    )
    parser.add_argument("--afresh", action="store_true", help="measure again what is known")
    add_target(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    if options.calibrate:
        return _calibrate(options)
    if options.what is None:
        raise UsageError("say what is tuned: matmul, conv2d, FILE:TEMPLATE or FILE.onnx")
    here = machine_of(options.target, is_dry=options.dry_run)
    wanted = _all_asked(options.what, options.more, here)
    page = None if options.report is None else page_at(options.report)
    if page is not None and len(wanted) > 1:
        raise UsageError(f"a report is of one problem, and {options.what} has {len(wanted)}")
    data, was_interrupted = [], False
    for one in wanted:
        result = _tuned(one, options)
        was_interrupted |= result.was_interrupted
        if options.json:
            of_this = {"is_dry": True, "winner": None} if options.dry_run else {}
            data.append(as_data(result) | of_this)
        elif options.dry_run:
            report_dry(one.title, result)
        else:
            _report(one.title, result)
        if page is not None:
            write_whole(page, report(result, one.title))
        if was_interrupted:
            break
    if options.json:
        write_json(data[0] if len(wanted) == 1 else data)
    return 130 if was_interrupted else 0


def _calibrate(options: argparse.Namespace) -> int:
    if options.what is not None or options.more:
        raise UsageError("--calibrate stands alone: it measures the processor")
    with Progress() as line:
        facts = measured_facts(lambda part: line(f"calibrating: {part}"))
    here = processor(machine())
    for name, value in facts.items():
        database().set_fact(here, name, value)
    if options.json:
        write_json({"machine": here, "facts": facts})
        return 0
    write(("calibrated: ", "bold"), here)
    write_text(columns([(name, f"{value:.4g}") for name, value in facts.items()], right=(1,)))
    return 0


def _tuned(wanted: Asked, options: argparse.Namespace) -> Tuned:
    exhaustive = options.strategy == "exhaustive"
    with _Shown(wanted.space, wanted.title) as shown:
        how: dict[str, Any] = {
            "strategy": options.strategy,
            "most": options.most or (None if exhaustive else 32),
            "budget": options.budget or float("inf"),
            "seed": options.seed,
            "progress": shown.trial,
        }
        if options.dry_run:
            return dry_run(wanted.space, **how)
        how["workers"] = options.workers and ray_workers(options.workers)
        return tuned(wanted.space, reference=wanted.reference, afresh=options.afresh, **how)


# --- problems --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A problem named on the command line.

    call     Python source that builds the kernel, with {plan} for the plan; `imports` is the import that it needs
    """

    title: str
    space: Space[Any, Any]
    imports: str = ""
    call: str = ""
    reference: Callable[..., Any] | None = None


def asked(what: str, more: Sequence[str], here: Machine) -> Asked:
    if what == "matmul":
        return _matmul(more, here)
    if what == "conv2d":
        return _convolution(more, here)
    return _template(what, more, here)


def _all_asked(what: str, more: Sequence[str], here: Machine) -> list[Asked]:
    """The problems to tune: one, or all problems of a kernel or a program in a file."""
    if is_model(what):
        return _each(_of_model(what, more), what, here)
    match = re.fullmatch(r"(.*\.py):(\w+)(\(.*\))?", what, re.DOTALL)
    if match is None or not Path(match[1]).is_file():
        return [asked(what, more, here)]
    with recorded() as spaces:
        value = getattr(load_module(Path(match[1])), match[2], None)
        if match[3] is not None:
            load_kernel(what)
        elif isinstance(value, Template) or not isinstance(value, Definition):
            return [asked(what, more, here)]
    if more:
        raise UsageError(f"{what} is no template with @tc.tune, and takes no arguments")
    return _each(spaces.values(), what, here)


def _of_model(path: str, words: Sequence[str]) -> Collection[Space[Any, Any]]:
    """The spaces from which plans are chosen while a model is compiled, each once."""
    parser = _Options(prog=f"taskc tune {path}", add_help=False)
    add_feeds(parser)
    options = parser.parse_args(words)
    model = tc.compile(path)
    feeds = feeds_of(model, options)
    with recorded() as spaces, Progress() as progress:
        progress(f"tracing {path}")
        model.program(feeds)
    return spaces.values()


def _each(spaces: Collection[Space[Any, Any]], what: str, here: Machine) -> list[Asked]:
    if not spaces:
        raise UsageError(f"{what} is made of no operators that have plans to choose from")
    return [
        Asked(f"{space.operator.name} {said(space.problem_text)}", replace(space, machine=here))
        for space in spaces
    ]


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(f"{self.prog}: {message}")


def _matmul(words: Sequence[str], here: Machine) -> Asked:
    parser = _Options(prog="taskc tune matmul", add_help=False)
    for extent in ("--m", "--n", "--k"):
        parser.add_argument(extent, type=positive, required=True)
    parser.add_argument("--dtype", type=_dtype, default=f32)
    for name in ("--transpose-a", "--transpose-b", "--packed", "--bias", "--residual"):
        parser.add_argument(name, action="store_true")
    given = vars(parser.parse_args(words))
    m, n, k, dtype = (given.pop(name) for name in ("m", "n", "k", "dtype"))
    if given["packed"] and not here.is_processor:
        raise UsageError("taskc tune matmul: GPUs take b as it is: --packed is for processors")
    problem = matmul_problem(m, n, k, dtype, **given)
    said = _keywords({"dtype": dtype, **given}, parser)
    return Asked(
        f"matmul {m} x {n} x {k} in {dtype}",
        Space(MATMUL, problem, here),
        "from taskc.kernels.matmul import matmul",
        f"matmul({m}, {n}, {k}, {said}schedule={{plan}})",
    )


def _convolution(words: Sequence[str], here: Machine) -> Asked:
    parser = _Options(prog="taskc tune conv2d", add_help=False)
    for extent in ("--height", "--width", "--channels", "--features"):
        parser.add_argument(extent, type=positive, required=True)
    parser.add_argument("--images", type=positive, default=1)
    parser.add_argument("--size", type=_extents, default=3)
    for name in ("--stride", "--dilation"):
        parser.add_argument(name, type=_extents, default=1)
    parser.add_argument("--padding", type=_extents, default=0)
    parser.add_argument("--groups", type=positive, default=1)
    parser.add_argument("--order", choices=("NHWC", "NCHW", "NCHWc"), default="NHWC")
    parser.add_argument("--filters", choices=("OHWI", "OIHW"), default="OHWI")
    parser.add_argument("--dtype", type=_dtype, default=f32)
    for name in ("--unpacked", "--winograd", "--bias", "--residual"):
        parser.add_argument(name, action="store_true")
    given = vars(parser.parse_args(words))
    images, height, width, channels, features, dtype = (
        given.pop(name) for name in ("images", "height", "width", "channels", "features", "dtype")
    )
    is_unpacked, is_exact = given.pop("unpacked"), not given.pop("winograd")
    given |= {"packed": here.is_processor and not is_unpacked, "exact": is_exact}
    problem = convolution_problem(
        images, (height, width), channels, features, dtype=dtype,
        lanes=here.of(f32).lanes, scale=False, activation=None, total=None, result=None, **given,
    )  # fmt: skip
    title = f"conv2d {channels} -> {features} at {height} x {width}, size {given['size']}"
    shape = f"{images}, {height}, {width}, {channels}, {features}"
    said = _keywords({"dtype": dtype, **given}, parser, packed=False, exact=True)
    return Asked(
        f"{title}, in {dtype}",
        Space(CONVOLUTION, problem, here),
        "from taskc.kernels.convolution import convolution",
        f"convolution({shape}, {said}schedule={{plan}})",
    )


def _keywords(given: dict[str, Any], parser: _Options, **more: bool) -> str:
    """Arguments of a call that aren't defaults, the parser's or `more`, as source: `bias=True, dtype=f16, `."""
    defaults = {name: parser.get_default(name) for name in given} | more
    return "".join(
        f"{name}={value!r}, " for name, value in given.items() if value != defaults[name]
    )


def _dtype(text: str) -> DType:
    if text not in DTYPES:
        raise argparse.ArgumentTypeError(f"{text!r} is no type; there are {', '.join(DTYPES)}")
    return DTYPES[text]


def _extents(text: str) -> int | tuple[int, ...]:
    """The number of `3`, or the numbers of `1,7`."""
    numbers = tuple([int(part) for part in text.split(",")])
    return numbers[0] if len(numbers) == 1 else numbers


def _template(what: str, words: Sequence[str], here: Machine) -> Asked:
    file, _, name = what.rpartition(":")
    if not file or not Path(file).is_file():
        raise UsageError(f"there is no {what!r} to tune: say matmul, conv2d, or FILE:TEMPLATE")
    module = load_module(Path(file))
    template = getattr(module, name, None)
    if not isinstance(template, Template):
        there = [key for key, value in vars(module).items() if isinstance(value, Template)]
        offer = f"it has {', '.join(there)}" if there else "it has no template with @tc.tune"
        raise UsageError(f"{file} has no template {name!r}; {offer}")
    arguments = _named_values(words)
    try:
        space = replace(template.space(**arguments), machine=here)
    except TypeError as error:
        raise UsageError(f"{name}: {error}") from None
    said = " ".join(f"{key}={value}" for key, value in arguments.items())
    call = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    stem = Path(file).stem
    imports = f"from {stem} import {name}" if stem.isidentifier() else f"# {name} is in {file}"
    return Asked(f"{name} {said}", space, imports, f"{name}({call}, {{plan}})", template.reference)


def _named_values(words: Sequence[str]) -> dict[str, Any]:
    """The arguments of `--m 1024 --dtype f16`, by name."""
    values: dict[str, Any] = {}
    left = [part for word in words for part in word.split("=", 1)]
    while left:
        name = left.pop(0)
        if not name.startswith("--") or not left:
            raise UsageError(f"a template's arguments are said as --NAME VALUE, and not {name!r}")
        text = left.pop(0)
        values[name[2:].replace("-", "_")] = _value(text)
    return values


def _value(text: str) -> Any:
    if text in DTYPES:
        return DTYPES[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


# --- output ----------------------------------------------------------------------------------


class _Shown:
    """The progress line: the number of plans tried, and the best time so far."""

    def __init__(self, space: Space[Any, Any], title: str) -> None:
        self._space, self._title = space, title
        self._tried, self._best = 0, float("inf")
        self._line = Progress()

    def __enter__(self) -> _Shown:
        self._line.__enter__()
        self._line(f"{self._title}: listing plans")
        return self

    def __exit__(self, *error: object) -> None:
        self._line.__exit__(*error)

    def trial(self, trial: Trial) -> None:
        self._tried += 1
        if trial.result.is_measured:
            self._best = min(self._best, trial.result.seconds)
        best = f", best {speed(self._space, self._best)}" if self._best < float("inf") else ""
        self._line(f"{self._title}: {self._tried} of {len(self._space.plans)} plans{best}")


def speed(space: Space[Any, Any], seconds: float) -> str:
    """`1.21 ms, 210 GFLOP/s, 91% of the roofline`"""
    said = time_text(seconds)
    work = space.work
    if work is not None:
        said += f", {rate_text(work.operations / seconds)}"
        said += f", {share_text(work.seconds / seconds)} of the roofline"
    return said


def _report(title: str, found: Tuned) -> None:
    tried = found.trials
    failed = [trial for trial in tried if not trial.result.is_measured]
    known = sum(not trial.is_new for trial in tried)
    here = found.space.machine
    kind = "thread" if here.is_processor else "multiprocessor"
    write((title, "bold"), f", on {here.name}, {many(here.threads, kind)}")
    write(
        f"{many(len(found.space.plans), 'plan')}: {len(tried)} tried, {known} of them known before, "
        f"{len(failed)} failed; {found.seconds:.1f} s"
    )
    for trial in failed:
        write((f"{trial.result.outcome}: ", "bold red"), f"{trial.plan} {trial.result.note}")
    if found.finals:
        write_text(columns([_row(found, final) for final in found.finals]))
    else:
        write(("best: ", "bold"), said(found.space.text(found.winner)))
        times = [t.result.seconds for t in tried if t.plan == found.winner and t.result.is_measured]
        if times:
            write(f"{speed(found.space, times[0])}, as measured before")
    if found.stages.get("compile"):
        runs = ", ".join(f"{name} {100 * n / len(tried):.0f}" for name, n in found.stages.items())
        write(f"runs for 100 plans: {runs}")
    if found.model is not None:
        write(_judgement(found.model))
    for warning in found.warnings:
        write(("warning: ", "bold yellow"), warning)
    if found.was_interrupted:
        write("interrupted: what was measured is kept")


def _row(found: Tuned, final: Final) -> tuple[str, ...]:
    """A finalist: its speed, half of its interquartile range, and its time over the winner's."""
    mark = "best" if final is found.finals[0] else f"{final.ratio:.3f} x"
    if final.plan == found.space.default:
        mark += ", default"
    numbers = speed(found.space, final.seconds), spread_text(final.spread)
    return mark, *numbers, said(found.space.text(final.plan))


def _judgement(model: Judged) -> str:
    """The quality of costs, over all tuned problems of an operator."""

    def words(quality: Quality) -> str:
        return (
            f"rank correlation {quality.correlation:.2f}, off by {quality.error:.0%}, "
            f"regret {quality.regret:.1%}"
        )

    said = f"costs of {many(model.problems, 'problem')}: {words(model.analytic)}"
    if model.learned is not None:
        said += f"; with what is learned from the others: {words(model.learned)}"
    return said


def as_data(found: Tuned) -> dict[str, Any]:
    space = found.space
    return {
        "operator": space.operator.name,
        "problem": json.loads(space.problem_text),
        "machine": space.machine.name,
        "plans": len(space.plans),
        "winner": json.loads(space.text(found.winner)),
        "is_default": found.winner == space.default,
        "finals": [
            {
                "plan": json.loads(space.text(final.plan)),
                "seconds": final.seconds,
                "spread": final.spread,
                "ratio": final.ratio,
                "quartiles": final.quartiles,
            }
            for final in found.finals
        ],
        "trials": [
            {
                "plan": json.loads(space.text(trial.plan)),
                "predicted": trial.predicted,
                "outcome": trial.result.outcome,
                "seconds": trial.result.seconds if trial.result.is_measured else None,
                "note": trial.result.note,
                "was_known": not trial.is_new,
            }
            for trial in found.trials
        ],
        "model": None if found.model is None else asdict(found.model),
        "stages": found.stages,
        "seconds": found.seconds,
        "warnings": found.warnings,
        "was_interrupted": found.was_interrupted,
    }
