"""Processes that compile beside this one: equal code and errors, whatever happens to them or to their parent."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskc.backend.cpu import processes
from taskc.errors import CompileError, Location
from taskc.ir.spans import recorded, span
from taskc.runtime.machine import machine

ROOT = Path(__file__).parents[3]
HERE = os.getpid()

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes need forks")
needs_threads = pytest.mark.skipif(machine().threads < 2, reason="one thread asks nobody")


# --- functions that processes call --------------------------------------------------------------


def ready() -> str:
    return "the same"


def other_there() -> int:
    return os.getpid()


def number_of(value: Any) -> int:
    return os.getpid()


def fails(number: int) -> int:
    raise CompileError(f"{number} is wrong", Location("f.py", number, 2, 3, 4, "text"), "a hint")


def fails_there(parent: int) -> int:
    if os.getpid() != parent:
        raise MemoryError
    return 7


def ends_there(parent: int) -> int:
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return 7


def sleeps_there(parent: int, path: Path) -> int:
    if os.getpid() != parent:
        path.write_text(str(os.getpid()))
        time.sleep(100)
    return 7


def timed() -> int:
    with span("part/of the work"):
        return sum(range(1 << 16))


# --- in this process ----------------------------------------------------------------------------


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for a condition, and return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)
    return value


def is_running(process: int) -> bool:
    """Whether a process runs: one that has ended and wasn't waited for doesn't."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def helped(monkeypatch: Any) -> Iterator[Callable[..., None]]:
    """Starts processes, and has this thread ask them."""
    monkeypatch.setattr(processes, "_ready", [])
    monkeypatch.setitem(processes._times, "ended", -100.0)

    def start(count: int, first: Callable[[], Any] = ready) -> None:
        processes.begin_with(first)
        processes.start(count)
        processes.help_with(1, 0)

    processes.stop()
    yield start
    processes.stop()
    processes._here.kernels = None


def there() -> int:
    """The number of a process that answers."""
    return until(lambda: (it := processes.call(os.getpid)) != HERE and it)


def test_a_process_is_asked(helped: Any) -> None:
    helped(1)
    assert there() == there() != HERE
    processes.help_with(0, 0)
    assert processes.call(os.getpid) != HERE
    processes._here.kernels = None
    assert processes.call(os.getpid) == HERE


def test_busy_processes_are_not_waited_for(helped: Any, tmp_path: Path) -> None:
    """One has a request that it works on, and the next one."""
    helped(1)
    process = there()
    until(processes._idle[1].is_ready)
    path = tmp_path / "number"
    threads = [threading.Thread(target=sleeping, args=(path,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: not processes._idle)
    assert processes.call(os.getpid) == HERE
    until(path.exists)
    os.kill(process, signal.SIGKILL)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert not processes._processes


def sleeping(path: Path) -> None:
    processes.help_with(1, 0)
    assert processes.call(sleeps_there, HERE, path) == 7


def test_the_first_process_forks_the_others(helped: Any) -> None:
    helped(3)
    found: set[int] = set()
    until(lambda: found.add(there()) or len(found) == 3)
    processes.stop()
    until(lambda: not any(map(is_running, found)))


def test_an_error_is_raised_as_here(helped: Any) -> None:
    helped(1)
    there()
    with pytest.raises(CompileError) as caught:
        processes.call(fails, 4)
    with pytest.raises(CompileError) as expected:
        fails(4)
    assert str(caught.value) == str(expected.value)
    assert processes.call(fails_there, HERE) == 7
    assert processes.call(os.getpid) != HERE  # it goes on


def test_unpicklable_things_are_computed_here(helped: Any) -> None:
    helped(1)
    process = there()
    assert processes.call(lambda: os.getpid()) == HERE
    assert processes.call(number_of, lambda: 1) == HERE
    assert processes.call(number_of, 1) == process


def test_a_killed_process_costs_time_alone(helped: Any, caplog: Any) -> None:
    helped(1)
    there()
    assert processes.call(ends_there, HERE) == 7
    assert "a process that compiles has ended (EOFError): its work is done here" in caplog.text
    assert processes.call(os.getpid) == HERE
    assert not processes._processes
    processes.start(1)
    assert not processes._processes  # not again at once
    processes._times["ended"] = -100.0
    processes.start(1)
    process = there()
    os.kill(process, signal.SIGKILL)
    until(lambda: not is_running(process))
    assert processes.call(os.getpid) == HERE


def test_collections_there_skip_what_is_imported(helped: Any) -> None:
    helped(1)
    there()
    assert processes.call(gc.get_freeze_count) > 10_000
    assert gc.get_freeze_count() == 0


def test_another_compiler_is_not_asked(helped: Any, caplog: Any) -> None:
    helped(1, other_there)
    until(lambda: processes.call(os.getpid) == HERE and not processes._processes)
    assert "another compiler" in caplog.text


def test_spans_are_added(helped: Any) -> None:
    helped(1)
    there()
    with recorded() as spans:
        processes.call(timed)
    total = spans["part/of the work"]
    assert total.count == 1
    assert total.seconds == total.elsewhere > 0
    assert spans["processes/ask"].elsewhere == 0


def test_idle_processes_end(helped: Any, monkeypatch: Any) -> None:
    helped(2)
    process = there()
    monkeypatch.setattr(processes, "_IDLE", 0.0)
    until(lambda: not is_running(process))
    until(lambda: not processes._first)
    assert processes.call(os.getpid) == HERE
    monkeypatch.setattr(processes, "_IDLE", 20.0)
    processes.start(1)
    assert there() != process


def test_nothing_is_started(helped: Any, monkeypatch: Any) -> None:
    def started(count: int = 1) -> bool:
        helped(count)
        was_started = bool(processes._processes)
        processes.stop()
        return was_started

    assert started()
    assert not started(0)
    with monkeypatch.context() as patch:
        patch.setenv("TASKC_DUMP", "folder")
        assert not started()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/usr/bin/editor")
        assert not started()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python3")
        assert not started()
        assert time.monotonic() - processes._times["ended"] < 60


def test_a_fork_has_no_processes(helped: Any) -> None:
    """Its copies of connections keep none alive."""
    helped(2)
    process = there()
    child = os.fork()
    if not child:
        same = processes.call(os.getpid) == os.getpid() and not processes._processes
        time.sleep(0.5)
        os._exit(0 if same else 1)
    processes.stop()
    until(lambda: not is_running(process), 30)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- in processes of their own ------------------------------------------------------------------

# A program of different kernels; `run` computes it, with processes from the first kernel on.
_PROGRAM = """
import os, sys, numpy as np, taskc as tc
from taskc import f32, repeat, spatial
from taskc.backend.cpu import processes
from taskc.runtime import targets
processes.LEAST = 2
targets.find_target("cpu")
start = processes.start
processes.start = lambda most: start(COUNT)

def scaled(number):
    @tc.kernel(workers=16)
    def kernel(x: f32[1 << 12], y: tc.out[f32[1 << 12]]):
        for (block,) in tc.tiles((1 << 12,), by=(256,)):
            for (i,) in repeat(16) * spatial(16):
                y[block + i] = x[block + i] + number
    return kernel

def run(first, count):
    kernels = [scaled(first + number) for number in range(count)]
    @tc.program(fuse=False)
    def program(x: f32[1 << 12], y: tc.out[f32[1 << 12]]):
        for kernel in kernels[:-1]:
            x = kernel(x)
        kernels[-1](x, out=y)
    y = program(np.zeros(1 << 12, np.float32))
    assert np.array_equal(y, np.full(1 << 12, sum(range(first, first + count)), np.float32))
"""


_scripts: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _ended_scripts() -> Iterator[None]:
    """Whatever a test leaves of its scripts is ended, and their pipes are closed."""
    yield
    while _scripts:
        script = _scripts.pop()
        script.kill()
        with script:
            pass  # closes the pipes, which a child of it may have, too


def script(code: str, folder: Path, count: int = 1) -> subprocess.Popen[str]:
    """A process that runs code after `_PROGRAM`, with its cache in a folder."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder.with_name(f"{folder.name}.{count}.py")
    path.write_text(_PROGRAM.replace("COUNT", str(count)) + textwrap.dedent(code))
    environment = {**os.environ, "TASKC_CACHE": str(folder), "TASKC_TIER": "full"}
    environment |= {"PYTHONPATH": str(ROOT)}  # it imports functions of this file
    environment.pop("TASKC_THREADS", None)
    process = subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    _scripts.append(process)
    return process


def output_of(process: subprocess.Popen[str]) -> str:
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return said


def children_of(process: int) -> list[int]:
    try:
        files = [*Path(f"/proc/{process}/task").glob("*/children")]
        return [int(number) for path in files for number in path.read_text().split()]
    except OSError:
        return []


_WAIT = """
processes.start(1)
import time
while not processes._idle[0].is_ready():
    time.sleep(0.01)
"""


@needs_threads
def test_code_and_cache_are_equal(tmp_path: Path) -> None:
    code = """
    taken = []
    ask = processes._Process.ask
    processes._Process.ask = lambda self, message: taken.append(1) or ask(self, message)
    run(1, 6)
    print(len(taken))
    """
    alone, helped = tmp_path / "alone", tmp_path / "helped"
    assert output_of(script(code, alone, 0)) == "0\n"
    assert int(output_of(script(_WAIT + textwrap.dedent(code), helped, 1))) > 0
    entries = [
        {path.name: path.read_bytes() for path in (folder / "cpu").iterdir()}
        for folder in (alone, helped)
    ]
    assert len(entries[0]) >= 6
    assert entries[0] == entries[1]
    warm = """
    run(1, 6)
    assert not processes._processes
    """
    output_of(script(warm, helped, 1))


def test_one_thread_asks_nobody(tmp_path: Path) -> None:
    code = """
    from taskc.backend.limits import Limits, limited
    with limited(Limits(threads=1)):
        run(1, 3)
    assert not processes._processes
    scaled(9)(np.zeros(1 << 12, np.float32))
    assert not processes._processes
    """
    output_of(script(code, tmp_path / "cache"))


def test_no_process_outlives_its_parent(tmp_path: Path) -> None:
    """While one works, and whatever other children the parent has."""
    code = """
    from pathlib import Path
    from tests.backend.cpu.test_processes import sleeps_there
    sleeper = os.fork()
    if not sleeper:
        time.sleep(60)
        os._exit(0)
    processes.help_with(1, 0)
    print(sleeper, flush=True)
    processes.call(sleeps_there, os.getpid(), Path(sys.argv[0]).with_suffix(".number"))
    """
    parent = script(_WAIT + textwrap.dedent(code), tmp_path / "cache", 3)
    assert parent.stdout is not None
    sleeper = int(parent.stdout.readline())
    number = tmp_path / "cache.3.number"
    until(lambda: number.exists() and number.read_text())
    first = [child for child in children_of(parent.pid) if child != sleeper]
    started = [*first, *children_of(first[0])]
    assert len(started) == 3
    assert int(number.read_text()) in started
    parent.kill()
    until(lambda: not any(map(is_running, started)), 30)
    os.kill(sleeper, signal.SIGKILL)
    parent.communicate()


@needs_threads
def test_an_interrupt_arrives_at_once(tmp_path: Path) -> None:
    code = """
    import signal
    from taskc.backend.cpu import target
    compiled = target._compiled
    def slow(kernel, lower, *, is_quick):
        time.sleep(0.2)
        os.write(1, b"compiling\\n")
        return compiled(kernel, lower, is_quick=is_quick)
    target._compiled = slow
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:  # threads write whole lines
        run(1, 100)
    except KeyboardInterrupt:
        os.write(1, b"interrupted\\n")
        target._compiled = compiled
        run(1, 4)
        os.write(1, b"and right\\n")
    """
    parent = script(_WAIT + textwrap.dedent(code), tmp_path / "cache", 1)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "compiling\n"
    started = children_of(parent.pid)
    sent = time.monotonic()
    parent.send_signal(signal.SIGINT)
    said = iter(parent.stdout.readline, "")
    assert "interrupted\n" in said
    assert time.monotonic() - sent < 10  # of 20 seconds of work
    assert "and right\n" in said
    parent.communicate(timeout=60)
    assert parent.returncode == 0
    until(lambda: not any(map(is_running, started)), 30)


def _kills(count: int, seed: int, tmp_path: Path) -> None:
    """Kill processes at random moments, every third time the parent; the next run is right."""
    chosen = random.Random(seed)
    code = """
    import shutil
    processes._AGAIN = 0.0
    for turn in range(100_000):
        run(turn % 9 * 10 + 1, 3)
        if turn % 9 == 8:
            shutil.rmtree(os.environ["TASKC_CACHE"] + "/cpu", ignore_errors=True)
    """
    folder = tmp_path / "cache"
    killed, parent = 0, script(code, folder)
    seen = {parent.pid}
    while killed < count:
        time.sleep(chosen.uniform(0.0, 0.6))
        assert parent.poll() is None, parent.communicate()
        started = children_of(parent.pid)
        seen.update(started)
        victim = parent.pid if killed % 3 == 2 or not started else chosen.choice(started)
        os.kill(victim, signal.SIGKILL)
        killed += 1
        if victim == parent.pid:
            parent.communicate()
            parent = script(code, folder)
            seen.add(parent.pid)
    parent.kill()
    parent.communicate()
    until(lambda: not any(map(is_running, seen)), 30)
    output_of(script("run(1, 6)\nrun(11, 6)", folder))


@needs_threads
def test_kills_at_random_moments(tmp_path: Path) -> None:
    _kills(20, 0, tmp_path)


@needs_threads
@pytest.mark.sweep
def test_kills_at_many_random_moments(tmp_path: Path) -> None:
    _kills(200, 1, tmp_path)
