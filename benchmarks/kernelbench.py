"""KernelBench's modules through `torch.compile(backend="taskc")`: whole, right, and against eager calls and Inductor.

    git clone https://github.com/ScalingIntelligence/KernelBench
    python benchmarks/kernelbench.py KernelBench/KernelBench --json FILE [--threads N] [--times] [--set-aside]

    whole  no node of the module's graph is left to PyTorch, and the graph has no break
    right  for inputs of five seeds, no result is off by more than 1e-4 of the largest element that f64 gives

Sizes are halved until no tensor of a module is larger than 32 MB (`--most`): batches to 4 first, then the largest
number whose half makes the largest tensor smaller and still runs, or two together. Each module runs in a process of
its own, for a limited time.

Modules that FILE has are not run again; `--times` adds times to those that have none.

Every fourth module is set aside: nothing is developed on it. `--set-aside` runs these in place of the others.
"""

from __future__ import annotations

import argparse
import ast
import json
import logging
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from processes import POOLS
from report import write

SEEDS = 5
LARGEST_ERROR = 1e-4
PARTS = 4  # the last of so many modules is set aside
LEAST_BATCH = 4

Place = tuple[int, int]  # a statement of a module, and a number in what it assigns
Namespace = dict[str, Any]


# --- Modules with smaller sizes -----------------------------------------------------------------


class Source:
    """A module's text, in which the numbers of assignments at the top can be halved."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.statements = ast.parse(file.read_text(encoding="utf-8")).body

    def run(self, halvings: dict[Place, int]) -> tuple[Namespace, dict[Place, tuple[str, int]]]:
        """The module's names, and the name and value of each number."""
        names: Namespace = {"__name__": "kernelbench"}
        numbers: dict[Place, tuple[str, int]] = {}
        for at, statement in enumerate(self.statements):
            code = compile(ast.Module([statement], []), str(self.file), "exec")
            exec(code, names)
            if not isinstance(statement, ast.Assign):
                continue
            value = eval(compile(ast.Expression(statement.value), "", "eval"), names)
            listed = value if isinstance(value, tuple | list) else [value]
            if not all(type(number) is int for number in listed):
                continue
            label = ast.unparse(statement.targets[0])
            smaller = [number >> halvings.get((at, k), 0) for k, number in enumerate(listed)]
            if not any(isinstance(one, ast.Name) for one in ast.walk(statement.value)):
                numbers |= {(at, k): (label, number) for k, number in enumerate(smaller)}
                names["_value"] = tuple(smaller) if listed is value else smaller[0]
                targets = ast.Assign(statement.targets, ast.Name("_value", ast.Load()))
                tree = ast.fix_missing_locations(ast.Module([targets], []))
                exec(compile(tree, str(self.file), "exec"), names)
        return names, numbers


def largest_tensor(names: Namespace) -> int:
    """The bytes of the largest tensor of a module's call, known without computing it."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    most = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal most
            results = function(*args, **(kwargs or {}))
            for one in tree_leaves(results):
                if isinstance(one, torch.Tensor):
                    most = max(most, one.numel() * one.element_size())
            return results

    with FakeTensorMode(), Watch(), torch.no_grad():
        model = names["Model"](*names["get_init_inputs"]())
        model(*names["get_inputs"]())
    return most


def scaled(source: Source, most: int) -> Namespace:
    """A module's names, with sizes that make no tensor larger than `most` bytes."""
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    halvings: dict[Place, int] = {}
    names, numbers = source.run(halvings)
    nbytes = largest_tensor(names)
    while nbytes > most:
        batches = [
            place for place, (name, n) in numbers.items() if "batch" in name and n > LEAST_BATCH
        ]
        others = sorted(numbers, key=lambda place: -numbers[place][1])
        others = [place for place in others if numbers[place][1] > 1]
        singly = [(place,) for place in [*batches, *others]]
        for places in [*singly, *combinations(others, 2)]:
            tried = halvings | {place: halvings.get(place, 0) + 1 for place in places}
            try:
                candidate, smaller = source.run(tried)
                reached = largest_tensor(candidate)
            except Exception:  # sizes that don't fit each other, in any library's words
                continue
            if reached < nbytes:
                halvings, names, numbers, nbytes = tried, candidate, smaller, reached
                break
        else:
            raise ValueError(f"{source.file.name} can't be scaled")
    return names


# --- One module ---------------------------------------------------------------------------------


def as_double(torch: Any, value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_float else value


def error_of(result: Any, expected: Any) -> float:
    """The largest error, relative to the largest element."""
    if result.shape != expected.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    largest = expected.abs().max().clamp_min(1e-30)
    same_infinities = result.double() == expected
    errors = (result.double() - expected).abs().where(~same_infinities, 0.0)
    return float((errors / largest).nan_to_num(nan=float("inf")).max())


def measured(file: Path, threads: int, most: int, has_times: bool) -> dict[str, Any]:
    """The row of one module."""
    import torch

    from taskc.torch.dynamo import backend

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("taskc.torch").addHandler(handler)
    torch.set_num_threads(threads)
    names = scaled(Source(file), most)
    torch.manual_seed(0)
    model = names["Model"](*names["get_init_inputs"]()).eval()
    torch.manual_seed(0)
    exact = names["Model"](*names["get_init_inputs"]()).eval().double()
    row: dict[str, Any] = {"error": 0.0, "eager_error": 0.0}
    calls = []
    # Some modules have parameters that their inputs don't: all of them run in inference.
    with torch.no_grad():
        ours = torch.compile(model, backend=backend)
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            inputs = names["get_inputs"]()
            expected = exact(*[as_double(torch, value) for value in inputs])
            if not seed:
                calls = [partial(ours, *inputs), partial(model, *inputs)]
                start = time.perf_counter()
                ours(*inputs)
                row["first_s"] = time.perf_counter() - start
            for name, call in (("error", ours), ("eager_error", model)):
                row[name] = max(row[name], error_of(call(*inputs), expected))
        breaks = torch._dynamo.utils.counters["graph_break"]
        row["left"] = [*lines, *map(str, breaks)]
        row["whole"] = not row["left"]
        row["right"] = row["error"] <= LARGEST_ERROR
        if has_times:
            row |= times(torch, model, calls, threads)
    return row


def times(
    torch: Any, model: Any, calls: list[Callable[[], object]], threads: int
) -> dict[str, Any]:
    """The median times of our call, an eager call and Inductor's, and the ratio to the faster of these."""
    from statistics import median

    from taskc import finish_compiling
    from taskc.tune.timing import Probe, interleaved

    torch._inductor.config.compile_threads = 1
    torch._dynamo.reset()
    theirs = partial(torch.compile(model), *calls[1].args)  # type: ignore[attr-defined]
    start = time.perf_counter()
    theirs()
    first = time.perf_counter() - start
    calls[0]()
    finish_compiling()
    rounds = interleaved(
        [*calls, theirs], Probe(threads), least=9, budget=0.3, calm=0.03 if threads > 1 else None,
        of_processor=threads == 1,
    ).calm(9)  # fmt: skip
    ours, eager, inductor = [1e3 * median(one.seconds[k] for one in rounds) for k in range(3)]
    peer = 1 if eager <= inductor else 2
    return {
        "ours_ms": ours,
        "eager_ms": eager,
        "inductor_ms": inductor,
        "inductor_first_s": first,
        "ratio": median(one.seconds[peer] / one.seconds[0] for one in rounds),
    }


# --- All modules --------------------------------------------------------------------------------


def in_process(measure: Callable[[], dict[str, Any]], limit: float) -> dict[str, Any]:
    """A row, from a process that has so many seconds."""
    context = multiprocessing.get_context(
        "fork"
    )  # of a process that has imported, and computed nothing
    receiver, sender = context.Pipe(False)

    def work() -> None:
        try:
            sender.send(measure())
        except BaseException as error:
            text = (str(error).strip().splitlines() or [""])[0]
            sender.send({"failure": f"{type(error).__name__}: {text[:300]}"})

    process = context.Process(target=work)
    process.start()
    sender.close()
    row: dict[str, Any] = {"failure": f"no result in {limit:.0f} s"}
    if receiver.poll(limit):
        try:
            row = receiver.recv()
        except EOFError:
            row = {"failure": "the process ended"}
    if process.is_alive():
        process.join(5)
        process.kill()
    process.join()
    return {"whole": False, "right": False} | row


def modules(folder: Path, is_aside: bool) -> Iterator[tuple[str, Path]]:
    for level in ("level1", "level2"):
        files = sorted(
            (folder / level).glob("*.py"), key=lambda file: int(file.name.partition("_")[0])
        )
        for number, file in enumerate(files):
            if (number % PARTS == PARTS - 1) == is_aside:
                yield level, file


def show(rows: list[dict[str, Any]]) -> None:
    for level in sorted({row["benchmark"] for row in rows}):
        of_level = [row for row in rows if row["benchmark"] == level]
        whole = sum(row["whole"] for row in of_level)
        both = sum(row["whole"] and row["right"] for row in of_level)
        ratios = [row["ratio"] for row in of_level if row.get("ratio")]
        line = f"{level}: {len(of_level)} modules, {whole} whole, {both} whole and right"
        if ratios:
            line += (
                f"; of {len(ratios)} the geometric mean to the better peer is {geometric_mean(ratios):.2f},"
                f" the least {min(ratios):.2f}, {sum(ratio < 1 for ratio in ratios)} losses"
            )
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--most", type=float, default=32, metavar="MB", help="of a tensor")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a module")
    parser.add_argument("--times", action="store_true", help="against eager calls and Inductor")
    parser.add_argument("--set-aside", action="store_true", help="the modules that are set aside")
    parser.add_argument("--quick", action="store_true", help="every twentieth module")
    parser.add_argument("--only", nargs="*", help="modules whose names begin so: level1/23_")
    options = parser.parse_args()
    os.environ |= dict.fromkeys(POOLS, str(options.threads))
    # Both tiers have the same results; a first call that is timed is a user's, with quick code and then full code.
    os.environ["TASKC_TIER"] = "quick"
    if options.times:
        del os.environ["TASKC_TIER"]
    import torch._dynamo  # noqa: F401  (here once, for the processes that are forked)

    import taskc.torch.dynamo  # noqa: F401

    rows: dict[str, dict[str, Any]] = {}
    if options.json.exists():
        rows = {row["case"]: row for row in json.loads(options.json.read_text())["rows"]}
    chosen = [*modules(options.folder, options.set_aside)][:: 20 if options.quick else 1]
    for level, file in chosen:
        case = f"{level}/{file.stem}"
        if options.only is not None and not case.startswith(tuple(options.only)):
            continue
        known = rows.get(case)
        is_known = known is not None and (
            "ratio" in known or not options.times or "failure" in known
        )
        if is_known:
            continue
        work = partial(measured, file, options.threads, int(options.most * 2**20), options.times)
        row = in_process(work, options.limit)
        rows[case] = {"benchmark": level, "case": case, "threads": options.threads} | row
        write(options.json, platform.processor() or platform.machine(), [*rows.values()])
        print(json.dumps(rows[case]), flush=True)
    show([*rows.values()])


if __name__ == "__main__":
    main()
