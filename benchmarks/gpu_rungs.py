"""The ladder of `gpu.py --bring-up`: a GPU's features one after another, from nothing to everything at once.

A rung is a process of its own, with a limit of its own and a line of its own. It stands on the rungs that have the
same features with fewer beside them: where one of those isn't right, it is left out, and what is wrong is known to
be there. So a hang costs one rung, and what stands on it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_cases import FAMILIES, MATMUL_LADDER, SINGLES, Family, Size, name_of
from gpu_failures import bisected
from gpu_jobs import run_process

Job = dict[str, Any]

SECONDS = 40.0  # that a rung may take once its process is ready
LIMIT = 540.0  # all of them
_TIMES = ("ours_ms", "peer_ms", "ratio", "tflops", "fraction_of_copy")
REPEATS = 20  # calls that have to give the same bits

# What a kernel uses, by the text that it is lowered to.
FEATURES = {
    "shuffle": r"\bshuffle\.",
    "ldmatrix": r"\bldmatrix\.",
    "cp.async": r"\bcp\.async\(",
    "mma.sync": r"\bmma\.sync\.m\d+n\d+k\d+\.(\w+)",
    "barrier of the grid": r"\bbarrier grid\b",
    "wgmma": r"\bwgmma\.m64n\d+k\d+\.(\w+)",
    "TMA load": r"\btma\.load\(",
    "TMA store": r"\btma\.store\(",
    "mbarrier": r"\bmbarrier\.wait\(",
    "128-byte swizzle": r"\.swizzled\(3, ",
    "producer": r"\brole producer\b",
    "split-k": r"\bsums: out \w+\[",
    "setmaxnreg": r"\bsetmaxnreg\(",
    "stmatrix": r"\bstmatrix\.",
    "persistent": r"\bprocessors\b",
    "turns of warpgroups": r"\bbarrier\.arrive\(",
    "cluster": r"\bcluster=[2-8]\b",
    "multicast": r"\btma\.load\.multicast\(",
    "residual by TMA": r"\btma\.load\(&\w+_out\[",
    "turns": r"\brole consumer_1\b",
    "im2col": r"\btma\.load\.pixels\(",
}
RAGGED = "ragged"  # a box of a bulk copy reaches over an edge


@dataclass(frozen=True)
class Step:
    """A check of a family's size; or, where no family is named, what `gpu_first` has under that kind."""

    family: str
    size: Size = ()
    kind: str = "check"


@dataclass(frozen=True)
class Rung:
    """number    as in "12b"
    needs     rungs that it stands on
    features  that its kernels use, all together; and `without` those that they don't
    repeats   calls of each kernel, all with the same bits
    tools     its steps run under these, one after another, each for as long as a rung
    """

    number: str
    name: str
    needs: tuple[str, ...]
    steps: tuple[Step, ...]
    features: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    repeats: int = 1
    tools: tuple[str, ...] = ()


def _checks(*names: str) -> tuple[Step, ...]:
    """The first check of each family."""
    sizes = {family.name: family.checks[0] for family in FAMILIES}
    return tuple([Step(name, sizes[name]) for name in names])


def _ladder(name: str, number: int = 0) -> Step:
    (sizes,) = [family.ladder for family in FAMILIES if family.name == name]
    return Step(name, sizes[number])


def _singles(group: str) -> tuple[Step, ...]:
    """The kernels of one instruction each whose names begin so."""
    return tuple([Step(one.name, one.checks[0]) for one in SINGLES if one.name.split()[0] == group])


def _kinds(*kinds: str) -> tuple[Step, ...]:
    return tuple([Step(kind, kind=kind) for kind in kinds])


def _timed(*names: str) -> tuple[Step, ...]:
    sizes = {family.name: family.sizes[0] for family in FAMILIES if family.name in names}
    return tuple([Step(name, sizes[name], "timing") for name in names])


def _types(instruction: str) -> tuple[str, ...]:
    """Families of an instruction, one for each type; they are its features, too."""
    return tuple([family.name for family in FAMILIES if family.name.startswith(f"{instruction} ")])


_BY_TMA = ("TMA load", "TMA store", "mbarrier", "128-byte swizzle", "producer", "wgmma bf16")
_SPLIT, _REGISTERS, _PERSISTENT, _CLUSTER, _ALL, _TURNS = range(len(MATMUL_LADDER))

LADDER = (
    Rung("1", "the device, its driver, torch", (), (Step("the device", kind="device"),)),
    Rung("2", "a vector add, carried here", ("1",), (*_checks("vector add"), Step("its code", kind="carried"))),
    Rung(
        "3", "streams, assertions, torch's memory, graphs, programs", ("2",),
        _kinds("streams", "assertions", "DLPack", "graphs", "programs"),
    ),
    Rung("3a", "side streams, another library's capture", ("3",), _kinds("side streams", "foreign capture")),
    Rung(
        "4", "ordinary kernels, cp.async", ("2",),
        _checks("transpose", "softmax f32", "layer_norm f32", "matmul f32"),
        ("shuffle", "cp.async"), ("wgmma", "mma.sync", "TMA load", "mbarrier"),
    ),
    Rung(
        "4a", "scans, reductions, pooling, depthwise, 8 bits", ("4",),
        _checks("scan", "reduction", "max_pool", "depthwise conv2d", "quantized matmul"),
    ),
    Rung(
        "4b", "look-back over 100,000 blocks", ("4",), (*_checks("look-back"), Step("scan", (1, 50_000))), ("shuffle",)
    ),
    Rung("4c", "four bits, a small ONNX model", ("4",), _kinds("four bits", "ONNX")),
    Rung(
        "5", "mma.sync", ("4",), _checks(*_types("mma.sync")),
        ("cp.async", *_types("mma.sync")), ("wgmma", "mbarrier"),
    ),
    Rung("5a", "each move of matrices", ("5",), _singles("move"), ("ldmatrix", "stmatrix"), ("mbarrier",)),
    Rung("5b", "gelu behind a product, W4A16", ("5",), _checks("matmul bf16, bias and gelu", "W4A16"), ("mma.sync",)),
    Rung("6", "a cooperative launch", ("2",), _checks("sum in one launch"), ("barrier of the grid",)),
    Rung(
        "7", "wgmma, by ordinary copies", ("4",), _checks(*_types("wgmma")),
        ("cp.async", "128-byte swizzle", *_types("wgmma")), ("TMA load", "TMA store", "mbarrier", "setmaxnreg"),
    ),
    Rung("7a", "each descriptor of wgmma", ("7",), _singles("descriptor"), ("wgmma bf16", "wgmma i8"), ("TMA load",)),
    Rung(
        "8", "bulk copies, both ways", ("2",), _checks("bulk copies"),
        ("TMA load", "TMA store", "mbarrier", "128-byte swizzle", RAGGED), ("wgmma", "producer"),
    ),
    Rung(
        "8a", "each box of a bulk copy", ("8",), _singles("TMA"),
        ("TMA load", "TMA store", "128-byte swizzle", RAGGED), ("wgmma", "multicast"),
    ),
    Rung(
        "8b", "clusters, multicast, setmaxnreg alone", ("8",), _singles("cluster"),
        ("cluster", "multicast", "setmaxnreg"), ("wgmma",),
    ),
    Rung("8c", "tensor maps in graphs, on other arrays", ("3", "8"), _kinds("maps in graphs")),
    Rung(
        "9", "a product by TMA and wgmma, split-k", ("7", "8"), (_ladder("matmul bf16", _SPLIT),),
        ("TMA load", "mbarrier", "128-byte swizzle", "producer", "wgmma bf16", "split-k"),
        ("setmaxnreg", "stmatrix", "persistent", "cluster"), REPEATS,
    ),
    Rung(
        "10", "setmaxnreg and stmatrix", ("9",), (_ladder("matmul bf16", _REGISTERS),),
        (*_BY_TMA, "setmaxnreg", "stmatrix", RAGGED), ("persistent", "cluster"), REPEATS,
    ),
    Rung("10a", "three timings", ("10",), _timed("matmul bf16", "softmax f32", "vector add"), (), (), REPEATS),
    Rung(
        "11", "persistent, over ragged edges", ("10",), (_ladder("matmul bf16", _PERSISTENT),),
        (*_BY_TMA, "setmaxnreg", "stmatrix", "persistent", RAGGED), ("cluster",), REPEATS,
    ),
    Rung(
        "12a", "clusters with multicast", ("10",), (_ladder("matmul bf16", _CLUSTER),),
        (*_BY_TMA, "setmaxnreg", "stmatrix", "cluster", "multicast", RAGGED), ("persistent",), REPEATS,
    ),
    Rung(
        "12b", "all of that together", ("11", "12a"), (_ladder("matmul bf16", _ALL),),
        (*_BY_TMA, "setmaxnreg", "stmatrix", "persistent", "cluster", "multicast", RAGGED), (), REPEATS,
    ),
    Rung(
        "12c", "tf32", ("10",), (_ladder("matmul tf32"),),
        ("TMA load", "mbarrier", "producer", "wgmma tf32", RAGGED), (), REPEATS,
    ),
    Rung(
        "12d", "a residual where the result leaves", ("11",), (_ladder("matmul bf16 and a residual"),),
        (*_BY_TMA, "setmaxnreg", "stmatrix", "ldmatrix", "persistent", "residual by TMA", RAGGED),
        ("cluster",), REPEATS,
    ),
    Rung(
        "12e", "two consumers in turn", ("12b",), (_ladder("matmul bf16", _TURNS),),
        (*_BY_TMA, "setmaxnreg", "stmatrix", "persistent", "cluster", "multicast", "turns", RAGGED), (), REPEATS,
    ),
    Rung(
        "13", "im2col", ("10",), (_ladder("conv2d f16, stride 1"), _ladder("conv2d f16, stride 2")),
        ("im2col", "TMA load", "TMA store", "wgmma f16", "producer", "setmaxnreg"), (), REPEATS,
    ),
    Rung(
        "14", "attention with a producer", ("10",),
        (_ladder("attention bf16, at one time"), _ladder("attention bf16, causal, at one time")),
        (*_BY_TMA, "setmaxnreg", "stmatrix", "shuffle", RAGGED), ("turns of warpgroups",), REPEATS,
    ),
    Rung(
        "14a", "warpgroups by turns", ("14",), (_ladder("attention bf16"), _ladder("attention bf16, causal")),
        (*_BY_TMA, "setmaxnreg", "stmatrix", "shuffle", "turns of warpgroups", RAGGED), ("persistent",), REPEATS,
    ),
    Rung(
        "14b", "tiles of different lengths", ("11", "14a"), (_ladder("attention bf16, causal, persistent"),),
        (*_BY_TMA, "setmaxnreg", "stmatrix", "shuffle", "turns of warpgroups", "persistent", RAGGED), ("cluster",),
        REPEATS,
    ),
)  # fmt: skip
WATCHED = ("9", "10", "11", "12a", "12b", "12c", "12d", "12e", "13", "14", "14a", "14b")
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SANITIZED = tuple(
    [
        Rung(f"15-{rung.number}", f"{tool}: {rung.name}", (), rung.steps, tools=(tool,))
        for tool in TOOLS
        for rung in LADDER
        if rung.number in WATCHED
    ]
)


# --- what it uses ----------------------------------------------------------------------------


def features_of(text: str) -> set[str]:
    """The instructions in a lowered kernel's text; one for several types is listed with each of them."""
    found = set()
    for name, pattern in FEATURES.items():
        for match in re.finditer(pattern, text):
            found.add(f"{name} {match[1]}" if match.groups() else name)
            if match.groups():
                found.add(name)
    return found


def used_by(step: Step, target: str) -> set[str]:
    """The instructions that the kernels of a step use, lowered for a target."""
    import taskc as tc
    from taskc.backend.cuda.emit import emit
    from taskc.ir.printer import to_text
    from taskc.passes.pipeline import lower

    found: set[str] = set()
    if step.kind not in ("check", "timing"):
        return found
    family = family_named(step.family)
    for kernel in family.build(tc.machine(target), *step.size).kernels:
        lean = lower(replace(kernel.ir, target=target))
        found |= features_of(to_text(lean))
        for asked in emit(lean).maps:
            extents = lean.parameters[asked.parameter].shape[-len(asked.box) :]
            is_whole = all(int(n) % by == 0 for n, by in zip(extents, asked.box, strict=True))
            found |= set() if is_whole or asked.pixels else {RAGGED}
    return found


def family_named(name: str) -> Family:
    (family,) = [family for family in (*FAMILIES, *SINGLES) if family.name == name]
    return family


def listed(rungs: Iterable[Rung], target: str) -> Iterator[str]:
    """The table: each rung, what it stands on, its sizes, and what they use, from lowered text."""
    for rung in rungs:
        needs = f", on {' and '.join(rung.needs)}" if rung.needs else ""
        yield f"{rung.number:4} {rung.name}{needs}"
        for step in rung.steps:
            used = used_by(step, target)
            generic = {
                one.partition(" ")[0] for one in used if one.startswith(("wgmma ", "mma.sync "))
            }
            line = f"       {step.family} {name_of(step.size)}".rstrip()
            yield f"{line}: {', '.join(sorted(used - generic))}" if used else line


# --- climbing --------------------------------------------------------------------------------


def chosen(only: str) -> tuple[Rung, ...]:
    """Of "9-14" or "8"; everything but the tools if nothing is said. A rung counts with its letters."""
    if not only:
        return LADDER
    first, _, last = only.partition("-")
    low, high = int(first), int(last or first)
    numbered = [rung for rung in LADDER if low <= int(re.sub(r"\D", "", rung.number)) <= high]
    return tuple(numbered) + (SANITIZED if low <= 15 <= high else ())


def jobs_of_rung(rung: Rung) -> list[Job]:
    return [
        {
            "kind": rung.tools[0] if rung.tools else step.kind, "family": step.family, "size": step.size,
            "case": name_of(step.size), "repeats": rung.repeats, "rung": rung.number,
        }
        for step in rung.steps
    ]  # fmt: skip


def climb(
    rungs: Sequence[Rung],
    program: Path,
    end: float,
    note: Callable[[Job], None],
    tool: str | None = None,
    folder: Path | None = None,
    target: str = "",
) -> list[Job]:
    """A row for each rung, in order. What isn't among them is taken to be right.

    tool    compute-sanitizer
    folder  where a wrong result leaves what is known of it
    target  for which a wrong product's plan is taken apart; none if it is empty
    """
    rows: list[Job] = []
    wrong: dict[str, str] = {}  # rungs, and how they ended
    for rung in rungs:
        row: Job = {"kind": "rung", "family": rung.name, "case": rung.number, "steps": []}
        # Under a tool it is known what would hang again; what was wrong is what it is for.
        before = rung.number.removeprefix("15-")
        failed = [number for number in rung.needs if number in wrong]
        hung = rung.tools and wrong.get(before) == "hung"
        if failed or hung:
            number = before if hung else failed[0]
            row["left_out"] = f"rung {number} {wrong[number]}"
        elif rung.tools and tool is None:
            row["left_out"] = "compute-sanitizer isn't installed"
        else:
            row |= _climbed(rung, program, end, tool, folder, target)
        if "error" in row or "left_out" in row:
            wrong[rung.number] = row.pop("ended", "was left out")
        note(row)
        rows.append(row)
    return rows


def _climbed(
    rung: Rung, program: Path, end: float, tool: str | None, folder: Path | None, target: str
) -> Job:
    """The outcome of a rung, step by step. A rung that breaks the device costs the others only their process."""
    start = time.monotonic()
    under = [str(tool), f"--tool={rung.tools[0]}", "--error-exitcode=9"] if rung.tools else ()
    extra = {} if folder is None else {"folder": str(folder)}
    jobs = [{**job, **extra} for job in jobs_of_rung(rung)]
    steps: list[Job] = []
    while len(steps) < len(jobs):
        steps += run_process(jobs[len(steps) :], program, end, under, together=SECONDS)
        if steps[-1].get("broken") == "hung":
            break
    if target and not rung.tools:
        _take_apart(steps, program, end, target)
    kept = ("family", "case", "error", "left_out", "error_of_bound", "said", "broken", *_TIMES)
    row: Job = {"seconds": time.monotonic() - start}
    row["steps"] = [{key: step[key] for key in kept if key in step} for step in steps]
    for step in steps:
        if "error" in step:
            row |= {"error": step["error"], "ended": step.get("broken", "failed")}
        elif "left_out" in step:
            row |= {"left_out": step["left_out"], "ended": "was left out"}
    return row


def _take_apart(steps: Sequence[Job], program: Path, end: float, target: str) -> None:
    """Says of a wrong product which switches of its plan, turned off, make it right."""
    for step in steps:
        if "error" not in step or step["kind"] != "check":
            continue
        said = []
        for job in bisected(step, target):
            plain = {
                key: job[key]
                for key in ("kind", "family", "size", "case", "repeats", "rung", "switch")
            }
            (found, *_) = run_process([plain], program, end, together=SECONDS)
            how = "wrong" if "error" in found else "left out" if "left_out" in found else "right"
            said.append(f"{job['switch']}: {how}")
        if said:
            step["error"] += f"; with {', '.join(said)}"
