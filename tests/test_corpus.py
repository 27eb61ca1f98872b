"""The corpus of planted bugs: each is reported at its line, and its correct twin is not.

tests/corpus/README.md says what a case looks like, and lists them all.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from taskc.backend import sim
from taskc.errors import CompileError, Finding
from taskc.ir import nodes as ir
from taskc.ir.parser import parse
from taskc.ir.target import TARGETS
from taskc.lang.definition import KernelDefinition
from taskc.passes.prove import findings as proof_errors

CORPUS = Path(__file__).parent / "corpus"
README = CORPUS / "README.md"
SEEDS = (0, 1, 2, 3, 4)
KINDS = {
    *(
        "race",
        "unwaited-copy",
        "unwaited-product",
        "missing-fence",
        "uninitialized",
        "out-of-bounds",
        "misaligned",
    ),
    *("not-written", "written-twice", "not-owned", "division-by-zero", "assertion", "divergence"),
    *("barrier-divergence", "inactive-lane", "deadlock", "over-arrival", "several-issuers"),
    *("stale-stage", "early-release", "slot-in-use", "not-acquired", "out-of-turn"),
    "shared-memory",
    *(f"bank-conflict {ways}" for ways in (2, 4, 8, 16, 32)),
    *("unstarted-peer", "ended-peer", "unexpected-bytes"),
    *("uncoalesced", "not-a-vector"),
    *("registers", "out-of-range"),
}
_MARKS = "expect|proof|fix|fix-out"
_MARK = re.compile(rf"#\s*(\^\s*)?({_MARKS}):\s*(.*?)\s*(?=#\s*(?:{_MARKS}):|$)")


@dataclass(frozen=True, slots=True)
class Case:
    """A file of the corpus, read.

    title   what is wrong, from its first line
    expect  the (line, kind) of the simulator's findings; for traffic the kind is "bank-conflict 8"
    proof   the (line, part of the message) of the proofs' errors
    twin    the text with the bug mended
    """

    path: Path
    title: str
    expect: frozenset[tuple[int, str]]
    proof: frozenset[tuple[int, str]]
    twin: str

    @property
    def name(self) -> str:
        return self.path.relative_to(CORPUS).as_posix()

    @property
    def statistics(self) -> bool:
        return self.path.parent.name == "traffic"


def read(path: Path) -> Case:
    lines = path.read_text(encoding="utf-8").splitlines()
    expect, proof, twin = set(), set(), list(lines)
    last = 0
    for number, line in enumerate(lines, 1):
        found = list(_MARK.finditer(line))
        if not found:
            last = number if line.strip() else last
            continue
        code = line[: found[0].start()].rstrip()
        about = number
        if found[0].group(1):
            about = last
        elif code:
            last = number
        for mark in found:
            _, kind, text = mark.groups()
            if kind == "expect":
                expect.add((about, text))
            elif kind == "proof":
                proof.add((about, text))
            else:
                old = lines[about - 1]
                indent = len(old) - len(old.lstrip()) - (4 if kind == "fix-out" else 0)
                twin[about - 1] = " " * indent + text if text else ""
    title = lines[0].strip('"# ')
    return Case(path, title, frozenset(expect), frozenset(proof), "\n".join(twin) + "\n")


CASES = [read(path) for path in sorted(CORPUS.glob("*/*")) if path.suffix in (".py", ".txt")]


@dataclass(frozen=True, slots=True)
class Loaded:
    kernel: ir.Kernel
    definition: KernelDefinition | None

    def arguments(self, seed: int) -> list[Any]:
        random = np.random.default_rng(seed)
        given = iter(() if self.definition is None else self.definition.example(seed))
        sizes: dict[ir.Variable, int] = {}
        if self.definition is not None:
            sizes = {v: dimension.example for dimension, v in self.definition.dimensions.items()}
        arguments: list[Any] = []
        for parameter in self.kernel.parameters:
            if self.definition is not None and (
                isinstance(parameter, ir.Variable) or parameter.role != "out"
            ):
                arguments.append(next(given))
                continue
            assert isinstance(parameter, ir.Tensor)
            shape = [n if isinstance(n, int) else sizes[n] for n in parameter.shape]  # type: ignore[index]
            values = random.integers(1, 9, shape)
            arguments.append(values.astype(parameter.dtype.numpy))
        return arguments


def load(path: Path) -> Loaded:
    if path.suffix == ".txt":
        return Loaded(parse(path.read_text(encoding="utf-8"), str(path)), None)
    definition = module(path).kernel
    assert isinstance(definition, KernelDefinition)
    return Loaded(definition.ir, definition)


def module(path: Path) -> ModuleType:
    name = "corpus_" + re.sub(r"\W", "_", str(path))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def schedules(loaded: Loaded) -> tuple[int, ...]:
    """There are none before stage synchronized: phases take effect one after another."""
    by_phases = ir.STAGES.index(loaded.kernel.stage) < ir.STAGES.index("synchronized")
    return () if by_phases else SEEDS


def simulate(loaded: Loaded, case: Case, seed: int | None) -> tuple[Finding, ...]:
    kernel = loaded.kernel
    report = sim.run(
        kernel,
        loaded.arguments(0),
        seed=seed,
        statistics=case.statistics,
        shared_limit=TARGETS.get(kernel.target, TARGETS["sm_90a"]).shared_bytes,
    )
    return report.findings


def observed(findings: tuple[Finding, ...]) -> frozenset[tuple[int, str]]:
    return frozenset((finding.location.line, kind_of(finding)) for finding in findings)


def kind_of(finding: Finding) -> str:
    ways = dict(finding.details).get("ways")
    return finding.kind if ways is None else f"{finding.kind} {ways}"


def prove(path: Path) -> tuple[CompileError, ...]:
    """The errors of the language and of the proofs."""
    try:
        kernel = load(path).kernel
    except CompileError as error:
        return (error,)
    return proof_errors(kernel) if kernel.stage == "parsed" else ()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_bug_is_reported(case: Case) -> None:
    errors = prove(case.path)
    shown = "\n".join(map(str, errors))
    assert {error.location.line for error in errors} == {line for line, _ in case.proof}, shown
    for line, part in case.proof:
        assert any(e.location.line == line and part in e.message for e in errors), shown
    assert case.expect or case.proof
    if not case.expect:
        return
    loaded = load(case.path)
    findings = simulate(loaded, case, None)
    assert observed(findings) == case.expect, "\n".join(map(str, findings))
    for finding in findings:
        places = [finding.location, *(place for _, place in finding.notes)]
        assert all(Path(place.file) == case.path and place.line for place in places)
        assert finding.notes or finding.kind != "deadlock", "there is no witness"
    for seed in schedules(loaded):  # what follows from the bug depends on them
        assert simulate(loaded, case, seed), f"nothing is reported with the schedule {seed}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_is_reported_for_the_twin(case: Case, tmp_path: Path) -> None:
    assert case.twin != case.path.read_text(encoding="utf-8"), "the case says no fix"
    path = tmp_path / case.path.name
    path.write_text(case.twin, encoding="utf-8")
    assert not (errors := prove(path)), "\n".join(map(str, errors))
    loaded = load(path)
    for seed in (None, *schedules(loaded)):
        findings = simulate(loaded, case, seed)
        assert not findings, f"seed {seed}\n" + "\n".join(map(str, findings))


def table() -> str:
    rows = ["| case | reported | what is wrong |", "| --- | --- | --- |"]
    for case in CASES:
        kinds = Counter(kind for _, kind in case.expect)
        reported = [*sorted(kinds), *(["proof"] if case.proof else [])]
        rows.append(f"| {case.name} | {', '.join(reported)} | {case.title} |")
    return "\n".join(rows) + "\n"


def test_the_table_lists_the_cases(request: pytest.FixtureRequest) -> None:
    text = README.read_text(encoding="utf-8")
    head, rule, _ = text.partition("| case |")
    assert rule, "the table is gone"
    if request.config.getoption("--update-golden"):
        README.write_text(head + table(), encoding="utf-8", newline="\n")
        return
    assert text == head + table(), f'run: pytest --update-golden "{request.node.nodeid}"'


def test_every_kind_of_bug_is_planted() -> None:
    planted = {kind for case in CASES for _, kind in case.expect}
    assert planted >= KINDS
    assert len(CASES) >= 100
