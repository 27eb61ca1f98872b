"""The command line: what each command writes, its exit codes, and what is around it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import taskc as tc
from taskc.cli import main
from taskc.commands import check as check_command, mutate as mutate_command, show as show_command
from taskc.errors import Finding, Location
from taskc.mutation import Mutant
from tests.backend.cuda.conftest import start

__all__ = ["start"]  # a fixture

KERNELS = """\
import taskc as tc
from taskc import f16, f32, repeat, spatial

from a_helper import WORKERS


@tc.kernel(workers=WORKERS)
def add(a: f32[64], b: f32[64], c: tc.out[f32[64]]):
    for i in spatial(32) * repeat(2):
        c[i] = a[i] + b[i]


@tc.kernel(workers=32)
def racy(x: f32[64], y: tc.out[f32[64]]):
    s = tc.shared(f32[64])
    for i in spatial(32) * repeat(2):
        s[i] = x[i]
        y[i] = s[63 - i]


def doubled(n=32, dtype=f32, *, stages=2):
    own = spatial(4, 8)

    @tc.kernel(workers=32)
    def kernel(a: dtype[n, n], c: tc.out[dtype[n, n]]):
        for row, col in tc.tiles((n, n), by=own.shape):
            acc = tc.tile(dtype, own, 0)
            for p in tc.pipeline(n, by=8, stages=stages):
                part = tc.load(a[row : row + 4, p : p + 8])
                for q in range(8):
                    for i, j in own:
                        acc[i, j] += part[i, q]
            tc.store(c[row : row + 4, col : col + 8], acc)

    return kernel


def sized(n):
    return doubled(n)


def example_that_fails(random):
    raise ValueError("no such data")


@tc.kernel(workers=4, example=example_that_fails)
def unlucky(x: tc.inout[f32[4]]):
    for i in spatial(4):
        x[i] = 1.0


number = 5
"""

RUNNING = """\
import taskc as tc
from taskc import f32, repeat, spatial


@tc.kernel(workers=4)
def bump(x: tc.inout[f32[4]]):
    for i in spatial(4):
        x[i] += 1.0


@tc.kernel(workers=32)
def exponential(x: f32[64], y: tc.out[f32[64]]):
    for i in spatial(32) * repeat(2):
        y[i] = tc.exp(x[i])
"""

PROGRAMS = """\
import taskc as tc
from taskc import f32, spatial


def make_twice(size, by=4):
    @tc.kernel(workers=4)
    def step(x: f32[size], y: tc.out[f32[size]]):
        s = tc.shared(f32[size])
        for i in spatial(4):
            s[i] = x[i]
        for i in spatial(by):
            y[i] = s[3 - i]

    @tc.program
    def twice(x: f32[size], y: tc.out[f32[size]]):
        t = tc.empty(f32[size])
        step(x, out=t)
        step(t, out=y)

    return twice


twice = make_twice(4)


def refused():
    @tc.program
    def program(x: f32[4], y: tc.out[f32[4]]):
        twice(y, out=y)


def unlucky():
    @tc.program
    def program(x: f32[4]):
        [].pop()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "03_kernels.py").write_text(KERNELS)
    (folder / "running.py").write_text(RUNNING)
    (folder / "programs.py").write_text(PROGRAMS)
    (folder / "a_helper.py").write_text("WORKERS = 32\n")
    (folder / "empty.py").write_text("x = 1\n")
    (folder / "broken.py").write_text("import taskc\n\ndef f(:\n    pass\n")
    (folder / "failing.py").write_text("def f():\n    return 1 / 0\n\nf()\n")
    (folder / "rejected.py").write_text(
        "import taskc as tc\n\n@tc.kernel(workers=4)\ndef f(x: tc.inout[tc.f32[4]]):\n    y = z\n"
    )
    return folder


@pytest.fixture(autouse=True)
def _in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for name in ("NO_COLOR", "TASKC_TARGET", "TASKC_CACHE", "TASKC_DUMP"):
        monkeypatch.delenv(name, raising=False)


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> Ran:
        try:
            code = main(arguments)
        except SystemExit as end:  # of argparse
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "taskc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


# --- the command line itself -----------------------------------------------------------------


def test_version_and_help(run: Any) -> None:
    assert run("--version").out == f"taskc {tc.__version__}\n"
    text = run("--help").out
    for command in ("demo", "show", "run", "check", "map", "mutate", "doctor"):
        assert re.search(rf"^    {command} ", text, re.MULTILINE)
        assert run(command, "--help").code == 0


def test_a_wrong_command_line_is_code_2(run: Any) -> None:
    assert run().code == 2
    assert run("dance").code == 2
    assert run("check", "03_kernels.py:add", "--seeds", "0").code == 2
    assert run("show", "03_kernels.py:add", "--stage", "late").code == 2


def test_no_name_has_a_character_of_number_0(run: Any) -> None:
    ran = run("map", "spatial(4)", "--svg", "a\0.svg")
    assert ran.code == 2
    assert ran.err == "error: an argument has a character of number 0\n"


def test_an_interrupt_is_code_130(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(show_command, "run", interrupted)
    ended = run("show", "03_kernels.py:add")
    assert (ended.code, ended.out, ended.err) == (130, "", "interrupted\n")


def test_an_internal_error_shows_the_program(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(options: object) -> int:
        raise tc.InternalError("a pass lost its way", "kernel f():")

    monkeypatch.setattr(show_command, "run", wrong)
    ended = run("show", "03_kernels.py:add")
    assert ended.code == 1
    assert ended.err.startswith("internal error: a pass lost its way (this is a bug in taskc; ")
    assert ended.err.endswith("kernel f():\n")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = [sys.executable, "-m", "taskc", "show", "03_kernels.py:doubled", "--all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.close()
        assert started.stderr.read() == b""
        assert started.wait() == 141


NO_SPACE = "error: the output can't be written: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    ("arguments", "streams", "code", "said"),
    [
        ("map 'spatial(4)'", ">&-", 3, "error: the standard output is closed\n"),
        ("map 'spatial(4)'", ">/dev/full", 3, NO_SPACE),
        (
            "map 'mapping((2,), 1, [[(0,), (1,)]]).spatial(900)' --worker 7",
            ">/dev/full",
            3,
            NO_SPACE,
        ),
        ("--help", ">/dev/full", 3, NO_SPACE),
        ("map 'spatial(4)'", ">/dev/full 2>&-", 3, ""),
        ("map 'spatial(4)'", ">/dev/null 2>&-", 0, ""),
        ("map 'spatiall(4)'", "2>/dev/full", 1, ""),
        ("map 'spatiall(4)'", "2>&-", 1, ""),
    ],
)
def test_an_output_that_takes_nothing(arguments: str, streams: str, code: int, said: str) -> None:
    ended = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m taskc {arguments} {streams}"],
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (code, said)


def on_a_terminal(command: list[str], **environment: str) -> str:
    """What a command writes to a terminal, standard error included."""
    pty = pytest.importorskip("pty")
    own, theirs = pty.openpty()
    names = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    variables = {**names, "TERM": "xterm", **environment}
    started = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=variables)
    os.close(theirs)
    pieces = []
    try:
        while piece := os.read(own, 65536):
            pieces.append(piece)
    except OSError:  # Linux says so when the other side has closed
        pass
    os.close(own)
    started.wait()
    return b"".join(pieces).decode()


def test_colours_and_progress_are_for_terminals_only() -> None:
    command = [sys.executable, "-m", "taskc", "check", "03_kernels.py:racy"]
    coloured = on_a_terminal(command)
    assert "\x1b[1;31merror:\x1b[0m race" in coloured
    assert "proving …" in coloured
    plain = on_a_terminal(command, NO_COLOR="1").replace("\r\x1b[K", "")
    assert "\x1b" not in plain
    assert "error: race" in plain
    piped = process("check", "03_kernels.py:racy", env={**os.environ, "FORCE_COLOR": "1"})
    assert "\x1b" not in piped.stdout + piped.stderr
    assert "proving" not in piped.stderr


def test_a_terminal_without_unicode_still_gets_an_answer() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = process("map", "repeat(2) * spatial(40)", env=environment)
    assert ended.returncode == 0
    assert "mapping" in ended.stdout


def test_starting_loads_neither_compiler_nor_colours() -> None:
    heavy = ["rich", "lark", "taskc.backend.sim", "taskc.passes.pipeline", "taskc.checking"]
    program = f"import sys, taskc; print([name for name in {heavy} if name in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"


# --- FILE:KERNEL -----------------------------------------------------------------------------

OFFER = "it has add, racy, unlucky, doubled"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none.py:add", "there is no file 'none.py'"),
        ("none", "there is no file 'none'"),
        ("03_kernels.py", f"which kernel of 03_kernels.py? {OFFER}"),
        ("03_kernels.py:", f"which kernel of 03_kernels.py? {OFFER}"),
        ("03_kernels.py:ad", f"03_kernels.py has no kernel 'ad'; did you mean 'add'? {OFFER}"),
        ("03_kernels.py:zzzzz", f"03_kernels.py has no kernel 'zzzzz'; {OFFER}"),
        ("03_kernels.py:number", f"number is not a kernel but a int; {OFFER}"),
        (
            "03_kernels.py:sized",
            "sized is a template and needs n: 03_kernels.py:sized(64), for example",
        ),
        ("03_kernels.py:add +", "'add +' is neither a name nor a call, such as matmul(64, bk=8)"),
        ("03_kernels.py:1", "'1' is neither a name nor a call, such as matmul(64, bk=8)"),
        ("empty.py", "which kernel of empty.py? it has no kernels"),
    ],
)
def test_a_kernel_that_is_not_there(run: Any, text: str, expected: str) -> None:
    ended = run("show", text)
    assert (ended.code, ended.out, ended.err) == (2, "", f"error: {expected}\n")


def test_the_only_kernel_of_a_file_needs_no_name(run: Any) -> None:
    alone = "import taskc as tc\n\n\n@tc.kernel(workers=4)\ndef alone(x: tc.f32[4]):\n    pass\n"
    Path("alone.py").write_text(alone, encoding="utf-8")
    ended = run("show", "alone.py")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("kernel alone(x: f32[4]) workers=4")


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("doubled", "f32[32, 32]"),
        ("doubled()", "f32[32, 32]"),
        ("doubled(16)", "f32[16, 16]"),
        ("doubled(number * 8, f16, stages=1)", "f16[40, 40]"),
        ("sized(24)", "f32[24, 24]"),
    ],
)
def test_a_template_is_called(run: Any, text: str, shape: str) -> None:
    ended = run("show", f"03_kernels.py:{text}")
    assert ended.code == 0
    assert ended.out.startswith(f"kernel kernel(a: {shape}, c: out {shape}) workers=32")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (
            "broken.py",
            "broken.py:3:7: error: this is not Python: invalid syntax\n"
            "      def f(:\n            ^\n",
        ),
        (
            "failing.py",
            "failing.py:2:5: error: ZeroDivisionError: division by zero\n"
            "      return 1 / 0\n      ^^^^^^^^^^^^\n",
        ),
        (
            "rejected.py",
            "rejected.py:5:9: error: ",
        ),
    ],
)
def test_a_file_that_cannot_be_loaded(run: Any, file: str, expected: str) -> None:
    ended = run("show", f"{file}:f")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(expected)
    assert "Traceback" not in ended.err


def test_errors_of_a_template_and_of_an_example_are_the_users(run: Any) -> None:
    ended = run("show", "03_kernels.py:sized(-1)")
    assert ended.code == 1
    assert ended.err.startswith("03_kernels.py:")
    ended = run("check", "03_kernels.py:unlucky")
    assert ended.code == 1
    assert re.match(r"03_kernels.py:\d+:\d+: error: ValueError: no such data\n", ended.err)


def test_a_file_finds_what_lies_beside_it_from_anywhere(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert run("show", f"{folder / '03_kernels.py'}:add").code == 0
    assert sys.path == before


# --- show ------------------------------------------------------------------------------------


def test_show_prints_the_program_as_it_was_parsed(run: Any) -> None:
    ended = run("show", "03_kernels.py:add")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "kernel add(a: f32[64], b: f32[64], c: out f32[64]) workers=32 stage=parsed:\n"
        "    each i in spatial(32).repeat(2):\n"
        "        c[i] = a[i] + b[i]\n"
    )


def test_show_a_stage_for_a_target(run: Any) -> None:
    name = "03_kernels.py:doubled(stages=3)"
    ended = run("show", name, "--stage", "pipelined", "--target", "sm_80")
    assert "stage=pipelined target=sm_80" in ended.out
    assert "stages=3 transport=cp.async" in ended.out
    assert run("show", "03_kernels.py:doubled", "--target", "abacus").code == 2


def test_show_all_has_every_pass_with_its_time(run: Any) -> None:
    ended = run("show", "03_kernels.py:doubled", "--all")
    headings = [line for line in ended.out.splitlines() if line.startswith("# ")]
    assert headings[0] == "# parse: (parsed)"
    assert all(re.match(r"# \w+: \d+\.\d\d ms \(\w+\)( \(unchanged\))?$", h) for h in headings[1:])
    assert any(heading.startswith("# prove: ") and "(unchanged)" in heading for heading in headings)
    assert headings[-1].partition(" ms ")[2].startswith("(lean)")
    assert ended.out.count("kernel kernel(") == sum("(unchanged)" not in h for h in headings)


def test_show_diff_has_what_a_pass_changes(run: Any) -> None:
    ended = run("show", "03_kernels.py:doubled", "--diff", "--stage", "selected")
    assert "+" + "kernel kernel(a: f32[32, 32], c: out f32[32, 32]) workers=32 stage=selected:" in (
        ended.out.splitlines()
    )
    assert "stage=pipelined" not in ended.out
    assert "\n--- " not in ended.out


def test_show_ends_with_the_notes(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    original = show_command.lower
    place = Location("k.py", 3, 5, 3, 9, "    here")

    def noted(kernel: Any, stage: str) -> Any:
        notes = (("it became an fma", place),) * 2
        return replace(original(kernel, stage), notes=notes)

    monkeypatch.setattr(show_command, "lower", noted)
    ended = run("show", "03_kernels.py:add")
    assert ended.out.endswith("k.py:3:5: note: it became an fma\n      here\n      ^^^^\n")
    assert ended.out.count("note:") == 1


# --- check -----------------------------------------------------------------------------------


def test_check_a_correct_kernel(run: Any) -> None:
    ended = run("check", "03_kernels.py:doubled", "--seeds", "2")
    assert (ended.code, ended.err) == (0, "")
    first, second = ended.out.splitlines()
    assert re.fullmatch(r"03_kernels.py:doubled: no findings, \d+ programs run", first)
    assert re.match(r"  3 phases, 32 blocks of 32 workers, \d+ bytes of shared memory", second)


def test_check_a_race(run: Any) -> None:
    ended = run("check", "03_kernels.py:racy")
    assert (ended.code, ended.err) == (1, "")
    lines = ended.out.splitlines()
    assert re.match(r"03_kernels.py:18:16: error: race: worker \d+ .* reads s\[", lines[0])
    assert lines[1:3] == ["      y[i] = s[63 - i]", "             ^^^^^^^^^"]
    assert lines[-2] == "03_kernels.py:racy: 1 error, not run"


def test_check_as_json(run: Any, folder: Path) -> None:
    ended = run("check", "03_kernels.py:racy", "--json")
    answer = json.loads(ended.out)
    assert ended.code == 1
    assert answer["ok"] is False
    (finding,) = answer["findings"]
    assert finding["severity"] == "error"
    assert finding["location"]["line"] == 18
    assert Path(finding["location"]["file"]) == (folder / "03_kernels.py").resolve()
    answer = json.loads(run("check", "03_kernels.py:add", "--json").out)
    assert answer["ok"] is True
    assert answer["findings"] == []
    assert answer["summary"]["workers"] == 32
    assert answer["summary"]["blocks"] == 1
    assert answer["summary"]["programs"] > 3


def test_a_warning_is_no_failure(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    original = check_command.examine
    warning = Finding("bank-conflict", "warning", "2-way", Location("k.py", 3, 5, 3, 9, "    s[i]"))

    def examine(*args: Any, **keywords: Any) -> Any:
        return replace(original(*args, **keywords), findings=(warning,))

    monkeypatch.setattr(check_command, "examine", examine)
    ended = run("check", "03_kernels.py:add")
    assert ended.code == 0
    assert ended.out.startswith("k.py:3:5: bank-conflict: 2-way\n")
    assert "03_kernels.py:add: 1 warning, " in ended.out


# --- map -------------------------------------------------------------------------------------


def test_map_draws_a_mapping(run: Any, tmp_path: Path) -> None:
    svg = tmp_path / "picture.svg"
    ended = run("map", "spatial(2,4).repeat(2,2)", "--worker", "3", "--svg", str(svg))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[:2] == [
        "0:0  0:1  1:0  1:1  2:0  2:1  3:0  3:1",
        "0:2  0:3  1:2  1:3  2:2  2:3  3:2  3:3",
    ]
    assert re.search(r"^workers +8$", ended.out, re.MULTILINE)
    assert re.search(r"^shape +4 × 8$", ended.out, re.MULTILINE)
    assert re.search(r"^covers +every task once$", ended.out, re.MULTILINE)
    assert ended.out.endswith("worker 3: (0, 6), (0, 7), (1, 6), (1, 7)\n")
    assert svg.read_text(encoding="utf-8").startswith("<svg")


def test_map_says_what_is_replicated_and_what_is_left_out(run: Any) -> None:
    assert re.search(r"replicated +yes", run("map", "replicate(2) * spatial(4)").out)
    partial = run("map", "mapping((3,), 2, [[(0,)], [(2,)]])").out
    assert re.search(r"covers +2 of the 3 tasks", partial)


@pytest.mark.parametrize(
    ("text", "column"), [("spatial(4,8).repeat(2,2", 24), ("spatial(4) + repeat(2)", 12)]
)
def test_map_points_at_a_mistake(run: Any, text: str, column: int) -> None:
    ended = run("map", text)
    assert (ended.code, ended.out) == (1, "")
    first, source, caret = ended.err.splitlines()
    assert first.startswith(f"mapping:1:{column}: error: expected ")
    assert source == f"      {text}"
    assert caret.index("^") == 6 + column - 1


def test_map_refuses_a_worker_that_is_not_there(run: Any) -> None:
    ended = run("map", "spatial(4)", "--worker", "4")
    assert (ended.code, ended.err) == (2, "error: there is no worker 4: they are 0 to 3\n")


# --- mutate ----------------------------------------------------------------------------------


def mutants(reported: int, silent: int, reason: str) -> list[Mutant]:
    place = Location("k.py", 3, 5, 3, 9, "    s[i]")
    race = Finding("race", "error", "a race", place)
    return [
        *(
            Mutant("delete", "synchronized", "barrier deleted", place, race)
            for _ in range(reported)
        ),
        *(Mutant("move", "lean", "barrier moved", place, None, reason) for _ in range(silent)),
    ]


@pytest.mark.parametrize(
    ("reported", "silent", "reason", "code"),
    [(19, 1, "", 0), (18, 1, "", 1), (18, 1, "proved", 0), (0, 0, "", 0)],
)
def test_mutate_counts_what_is_reported(
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
    reported: int,
    silent: int,
    reason: str,
    code: int,
) -> None:
    made = mutants(reported, silent, reason)
    monkeypatch.setattr(mutate_command, "mutate", lambda *args, **keywords: iter(made))
    ended = run("mutate", "03_kernels.py:add")
    assert ended.code == code
    if made:
        assert re.search(
            rf"^delete +synchronized +{reported} +{reported}$", ended.out, re.MULTILINE
        )
        assert re.search(rf"^move +lean +0 +{silent}$", ended.out, re.MULTILINE)
        expected = reason or "not reported, and not known to be equivalent"
        assert f"k.py:3:5: barrier moved, at lean: {expected}\n" in ended.out
        assert f"{reported} of {reported + silent} mutants reported, " in ended.out
    answer = json.loads(run("mutate", "03_kernels.py:add", "--json").out)
    assert (answer["total"], answer["reported"]) == (reported + silent, reported)


def test_mutate_breaks_a_real_kernel(run: Any) -> None:
    ended = run("mutate", "03_kernels.py:doubled(8)", "--seeds", "1", "--json")
    answer = json.loads(ended.out)
    assert {mutant["kind"] for mutant in answer["mutants"]} >= {"delete", "mapping", "buffer"}
    barriers = [mutant for mutant in answer["mutants"] if mutant["kind"] == "delete"]
    assert all(mutant["reported"] for mutant in barriers)


# --- run -------------------------------------------------------------------------------------


def test_run_says_what_comes_out_and_how_long_it_takes(run: Any) -> None:
    ended = run("run", "03_kernels.py:add", "--repeat", "5", "--check")
    assert (ended.code, ended.err) == (0, "")
    output, took, compared = ended.out.splitlines()
    assert re.fullmatch(r"c: f32\[64\], digest [0-9a-f]{12}", output)
    assert re.fullmatch(r"[\d.e-]+ ms, the median of 5 calls \(cpu, \d+ threads?\)", took)
    assert compared == "the same bits as in the simulator"
    simulated = run("run", "03_kernels.py:add", "--repeat", "1", "--target", "sim").out
    assert simulated.splitlines()[0] == output
    assert simulated.endswith("the median of 1 call (sim, 1 thread)\n")


def test_run_a_program_and_what_it_modifies(run: Any) -> None:
    ended = run("run", "programs.py:twice", "--check")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("y: f32[4], digest ")
    answer = json.loads(run("run", "running.py:bump", "--json", "--check").out)
    assert answer["outputs"][0]["name"] == "x"
    assert answer["outputs"][0]["shape"] == [4]
    assert answer["calls"] == 20
    assert (answer["comparison"], answer["difference"]) == ("exact", "")
    # Each call has arrays of its own, so that the result is that of one call.
    again = json.loads(run("run", "running.py:bump", "--json", "--repeat", "3").out)
    assert again["outputs"] == answer["outputs"]
    assert "comparison" not in again


def test_run_allows_for_the_rounding_of_mathematical_functions(run: Any) -> None:
    ended = run("run", "running.py:exponential", "--check")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[-1].startswith("close to what the simulator gives: ")


def test_run_reports_what_the_simulator_gives_otherwise(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taskc.commands import run as run_command

    def wrong(definition: Any, args: Any, keywords: Any, target: str) -> Any:
        made = call(definition, args, keywords, target)
        made[5] += 1
        return made

    call = run_command.call
    monkeypatch.setattr(run_command, "call", wrong)
    ended = run("run", "03_kernels.py:add", "--check")
    assert ended.code == 1
    last = ended.out.splitlines()[-1]
    assert re.fullmatch(r"not what the simulator gives: c\[5\] is \S+ and not \S+", last)
    answer = json.loads(run("run", "03_kernels.py:add", "--check", "--json").out)
    assert answer["difference"].startswith("c[5] is ")


def test_run_what_goes_wrong(run: Any) -> None:
    ended = run("run", "03_kernels.py:unlucky")
    assert ended.code == 1
    assert "ValueError: no such data" in ended.err
    assert run("run", "03_kernels.py:add", "--repeat", "0").code == 2
    assert run("run", "03_kernels.py:add", "--target", "sm_80").code == 2
    ended = run("run", "03_kernels.py:racy", "--target", "sim")
    assert ended.code == 1
    assert ": error: " in ended.err


def test_show_what_the_processor_runs(run: Any) -> None:
    ended = run("show", "03_kernels.py:add", "--stage", "llvm", "--target", "avx512")
    assert (ended.code, ended.err) == (0, "")
    assert "fadd <16 x float>" in ended.out
    note = "note: add for avx512: 16 lanes; a worker keeps 0 bytes in memory across barriers"
    assert ended.out.splitlines()[-1] == note
    assert (
        "<8 x float>" in run("show", "03_kernels.py:add", "--stage", "llvm", "--target", "avx2").out
    )
    assembly = run("show", "03_kernels.py:add", "--stage", "asm", "--target", "avx2").out
    assert "vaddps" in assembly
    assert "%ymm" in assembly
    assert "fadd\tv" in run("show", "03_kernels.py:add", "--stage", "asm", "--target", "neon").out
    assert run("show", "03_kernels.py:add", "--stage", "asm").code == 0
    ended = run("show", "03_kernels.py:add", "--stage", "asm", "--target", "sm_80")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "error: --stage asm is for CPUs: "
        "avx512, avx512_vnni, avx512_bf16, avx512_amx, avx2, avx2_vnni, neon, sse2\n"
    )
    assert run("show", "03_kernels.py:add", "--stage", "llvm", "--all").code == 2


def test_show_what_is_made_for_a_gpu(run: Any) -> None:
    ended = run("show", "03_kernels.py:add", "--stage", "cuda")
    assert (ended.code, ended.err) == (0, "")
    assert 'extern "C" __global__ void __launch_bounds__(' in ended.out
    assert ended.out.splitlines()[-1] == "note: add for sm_90a"
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    text = run("show", "03_kernels.py:add", "--stage", "ptx", "--target", "sm_80").out
    assert ".target sm_80" in text
    assert "add.rn.f32" in text
    lines = run("show", "03_kernels.py:add", "--stage", "resources", "--target", "sm_80").out
    assert re.search(r"^registers     [1-9]\d*$", lines, re.M)
    assert re.search(r"^spill loads   0$", lines, re.M)
    ended = run("show", "03_kernels.py:add", "--stage", "cuda", "--target", "avx2")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "error: --stage cuda is for GPUs: sm_80, sm_89, sm_90a\n"
    assert run("show", "03_kernels.py:add", "--stage", "sass", "--diff").code == 2


def test_show_machine_code(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from taskc.backend.cuda import disassemble

    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    if disassemble.disassembler() is not None:
        assert "FADD" in run("show", "03_kernels.py:add", "--stage", "sass").out
    monkeypatch.setattr(disassemble, "disassembler", lambda: None)
    ended = run("show", "03_kernels.py:add", "--stage", "sass")
    assert ended.code == 1
    assert "machine code is shown by nvdisasm, and there is none" in ended.err
    assert "hint: pip install nvidia-cuda-nvdisasm" in ended.err


# --- doctor and demo -------------------------------------------------------------------------


def test_doctor_says_what_is_there(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TASKC_CACHE", str(tmp_path))
    ended = run("doctor")
    assert ended.code == 0
    assert re.search(rf"^  taskc +{re.escape(tc.__version__)} ", ended.out, re.MULTILINE)
    assert re.search(rf"^  cache +{re.escape(str(tmp_path))}$", ended.out, re.MULTILINE)
    assert re.search(r"^  target +\w+: \d+ lanes of f32, \d+ threads?, \d+ KiB", ended.out, re.M)
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "entry").write_bytes(bytes(1 << 20))
    assert re.search(r"^  cache .* \(1 file, 1\.0 MiB\)$", run("doctor").out, re.MULTILINE)
    for word in ("numpy", "cores", "driver", "TASKC_DUMP", "TASKC_TARGET", "TASKC_CACHE"):
        assert re.search(rf"^  {word}\b", ended.out, re.MULTILINE)


def cuda_lines(run: Any) -> dict[str, str]:
    """What doctor says of CUDA."""
    lines = run("doctor").out.partition("\nCUDA\n")[2].partition("\nfolders\n")[0].splitlines()
    return {
        found[1]: found[2] for line in lines if (found := re.match(r"  (\S+(?: \d)?) +(.*)$", line))
    }


def test_doctor_says_which_gpu_there_is(run: Any, start: Any) -> None:
    start(version=13010, devices=1)
    found = cuda_lines(run)
    assert re.fullmatch(r"\d+\.\d+", found.pop("NVRTC"))
    assert found == {
        "driver": "for CUDA 13.1",
        "device 0": "Fake GPU, compute capability 9.0, 1.0 GiB: kernels are compiled for sm_90a",
    }


def test_doctor_says_why_there_is_no_gpu(run: Any, start: Any) -> None:
    start(devices=0)
    reason = "there is an NVIDIA driver on this machine, but no GPU that it can use"
    assert cuda_lines(run)["driver"] == f"none: {reason}"
    start(capability=(12, 0))
    assert cuda_lines(run)["device 0"].endswith("12.0, 1.0 GiB: taskc doesn't compile for it")


def test_every_environment_variable_that_is_read_is_in_the_table() -> None:
    from taskc.settings import VARIABLES

    sources = (path.read_text(encoding="utf-8") for path in Path(tc.__file__).parent.rglob("*.py"))
    read = {name for source in sources for name in re.findall(r"TASKC_[A-Z]+", source)}
    assert read == {name for name, _ in VARIABLES}
    assert len(VARIABLES) <= 5


def test_the_demo_works_anywhere(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("demo")
    assert (ended.code, ended.err) == (0, "")
    assert "def linear(x: f32[m, k], w: f32[k, n]" in ended.out
    assert "0:0   0:1   1:0" in ended.out
    assert re.search(r"^    lean +the same bits after ", ended.out, re.MULTILINE)
    assert re.search(
        r"^    linear: (no findings|\d+ warnings?), \d+ programs run$", ended.out, re.M
    )
    assert "whole numbers:  equal, bit for bit" in ended.out
    assert re.search(r"^    sm_90a, by NVRTC: \d+ bytes in \d+ ms$", ended.out, re.MULTILINE)
    assert "and spills 0 bytes;" in ended.out
    assert re.search(r"^    demo_race.py:\d+:\d+: error: race: ", ended.out, re.MULTILINE)
    assert re.search(r"^ +\^+$", ended.out, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


# --- programs --------------------------------------------------------------------------------

TWICE = """\
program twice(x: f32[4], y: out f32[4]):
    temporary t: f32[4]
    step(x, out=t)
    step(t, out=y)

kernel step(x: f32[4], y: out f32[4]) workers=4 stage=parsed:
    shared s: f32[4]
    each i in spatial(4):
        s[i] = x[i]
    each i_1 in spatial(4):
        y[i_1] = s[3 - i_1]
"""


def test_show_prints_a_program_and_each_of_its_kernels_once(run: Any) -> None:
    ended = run("show", "programs.py")
    assert (ended.code, ended.out, ended.err) == (0, TWICE, "")
    assert run("show", "programs.py:make_twice(4)").out == TWICE
    staged = run("show", "programs.py:twice", "--stage", "lean", "--target", "sm_80").out
    assert staged.startswith(TWICE.partition("kernel")[0])
    assert staged.count("kernel step(") == staged.count("stage=lean target=sm_80:") == 1
    every = run("show", "programs.py:twice", "--all").out
    assert every.count("# parse: (parsed)") == 1
    assert every.count("program twice(") == 1


def test_check_a_program(run: Any) -> None:
    ended = run("check", "programs.py:twice")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "programs.py:twice: no findings, 2 calls"
    assert len(lines) == 5
    for first, second in (lines[1:3], lines[3:5]):
        assert re.fullmatch(r"  step: no findings, \d+ programs run", first)
        assert re.match(r"    2 phases, 1 block of 4 workers, 16 bytes of shared memory", second)
    answer = json.loads(run("check", "programs.py:twice", "--json").out)
    assert (answer["ok"], answer["findings"]) == (True, [])
    assert [call["kernel"] for call in answer["calls"]] == ["step", "step"]
    assert answer["calls"][1]["summary"]["workers"] == 4


def test_check_a_program_with_a_mistake(run: Any) -> None:
    name = "programs.py:make_twice(3)"
    ended = run("check", name)
    assert (ended.code, ended.err) == (1, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("programs.py:10:13: error: index 3 is outside `s` (extent 3)")
    assert f"{name}: {ended.out.count('error: ')} errors, 1 of 2 calls" in lines
    assert lines[-2].startswith("  step: ")
    answer = json.loads(run("check", name, "--json").out)
    assert answer["ok"] is False
    assert len(answer["calls"]) == 1


def test_mutate_a_program(run: Any) -> None:
    ended = run("mutate", "programs.py:twice", "--seeds", "1", "--json", "--target", "sm_80")
    answer = json.loads(ended.out)
    assert ended.code == 0
    assert answer["total"] == answer["reported"] + answer["equivalent"]
    deleted = [mutant for mutant in answer["mutants"] if mutant["kind"] == "delete"]
    assert deleted
    assert all(mutant["reported"] for mutant in deleted)


def test_a_program_that_cannot_be_traced(run: Any) -> None:
    ended = run("show", "programs.py:refused")
    assert ended.code == 1
    assert ended.err.startswith(
        "programs.py:29:9: error: twice(): argument 'x' is read, and no call has written the output"
        " 'y' before\n      twice(y, out=y)\n      ^^^^^^^^^^^^^^^\n"
    )
    ended = run("show", "programs.py:unlucky")
    assert ended.err.startswith("programs.py:35:9: error: IndexError: pop from empty list\n")
    ended = run("show", "programs.py:twic")
    assert ended.err.startswith(
        "error: programs.py has no kernel 'twic'; did you mean 'twice'? it has"
    )
