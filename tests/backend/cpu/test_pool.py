"""Threads that share blocks: forks, exits, signals, many callers, and how many there are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.backend.cpu import pool as pools
from taskc.backend.cpu.pool import container_limit, pool, pool_text, thread_count
from taskc.backend.cpu.target import load
from taskc.ir.reentry import door
from taskc.runtime.settings import thread_limit
from taskc.runtime.targets import expect_kernels

ROOT = Path(__file__).parents[3]

BLOCKS, SIZE = 64, 1024


@tc.kernel(workers=16)
def mixed(x: tc.f32[BLOCKS, SIZE], rounds: tc.i32, y: tc.out[tc.f32[BLOCKS, SIZE]]):
    """Shared memory that every block writes and reads, so that one thread's would show in another's."""
    for row, _ in tc.tiles((BLOCKS, SIZE), by=(1, SIZE)):
        s = tc.shared(tc.f32[SIZE])
        for i in tc.spatial(16).repeat(SIZE // 16):
            s[i] = x[row, i]
        for _ in range(rounds):
            for i in tc.spatial(16).repeat(SIZE // 16):
                s[i] = tc.fma(s[i], 0.5, 1.0)
        for i in tc.spatial(16).repeat(SIZE // 16):
            y[row, i] = s[SIZE - 1 - i]


def expected(x: np.ndarray, rounds: int) -> np.ndarray:
    for _ in range(rounds):
        x = (x * np.float32(0.5) + np.float32(1)).astype(np.float32)  # the product is exact
    return x[:, ::-1]


def example(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((BLOCKS, SIZE)).astype(np.float32)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that make pools, of which there seem to be none so far."""
    names: list[str] = []
    monkeypatch.setattr(pools, "_pool", [])
    monkeypatch.setattr(pools, "_ahead", [])
    monkeypatch.setattr(pools, "thread_count", lambda: 2)
    monkeypatch.setattr(pools, "Pool", lambda: names.append(threading.current_thread().name))
    return names


def test_a_thread_makes_the_pool_while_kernels_are_lowered(made: list[str]) -> None:
    expect_kernels(1)
    expect_kernels(1)
    [thread] = pools._ahead
    thread.join()
    pool()
    assert made == ["taskc pool"]


def test_what_fails_in_that_thread_fails_again_at_the_first_call(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        made.append(threading.current_thread().name)
        raise OSError("no memory")

    monkeypatch.setattr(pools, "Pool", fail)
    expect_kernels(1)
    with pytest.raises(OSError, match="no memory"):
        pool()
    pools._ahead[0].join()
    assert sorted(made) == ["MainThread", "taskc pool"]


def test_neither_a_call_that_interrupts_nor_a_single_thread_starts_another(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with door(), door():
        expect_kernels(1)
    monkeypatch.setattr(pools, "thread_count", lambda: 1)
    expect_kernels(1)
    assert (pools._ahead, made) == ([], [])


@pytest.fixture
def threads() -> Iterator[Any]:
    """Sets how many threads run blocks, whatever there is."""
    yield pool().limit
    pool().limit(thread_count())


@pytest.mark.parametrize("count", [1, 2, 5, 3])
def test_the_same_bits_on_any_number_of_threads(threads: Any, count: int) -> None:
    threads(count)
    assert pool().threads == count
    for seed in range(5):
        x = example(seed)
        np.testing.assert_array_equal(mixed(x, 9), expected(x, 9))


@tc.kernel(workers=16)
def in_line(
    done: tc.inout[tc.i64[BLOCKS]],
    turn: tc.inout[tc.i64[1]],
    rounds: tc.i32,
    y: tc.out[tc.i64[BLOCKS, SIZE]],
):
    """Each block waits for the one before it, and stores the how many-eth it was to begin."""
    for b in tc.tiles(BLOCKS, by=1):
        mine = tc.shared(tc.i64[1])
        for w in tc.spatial(16):
            if w == 0:
                begun = tc.atomic_add(turn[0], 1)
                mine[0] = begun
                if b > 0:
                    seen = tc.atomic_add(done[b - 1], 0)
                    while seen == 0:
                        seen = tc.atomic_add(done[b - 1], 0)
                tc.atomic_exchange(done[b], 1)
        for i in tc.spatial(16).repeat(SIZE // 16):
            more = i
            for _ in range(rounds):
                more = (more * 3 + 1) % 1000
            y[b, i] = mine[0] + more // 1000


@pytest.mark.parametrize("count", [1, 2, 5])
def test_blocks_that_wait_for_those_before_them_are_taken_in_order(
    threads: Any, count: int
) -> None:
    """A part of its own for each thread would have all of them wait for the first one's end."""
    threads(count)
    for _ in range(5):
        y = in_line(np.zeros(BLOCKS, np.int64), np.zeros(1, np.int64), 9)
        begun = y[:, 0]
        assert np.abs(begun - np.arange(BLOCKS)).max() < count


def tasks() -> dict[str, tuple[str, int]]:
    """Of each thread of this process but Python's the state, and how often it has gone to sleep."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        facts = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        if int(task.name) != os.getpid():
            found[task.name] = (facts["State"].split()[0], int(facts["voluntary_ctxt_switches"]))
    return found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are read from /proc")
def test_fewer_threads_leave_the_others_asleep() -> None:
    program = """
pool().limit(1)
mixed(example(), 50)  # which is watched
others = tasks()
def helpers():
    return {name: facts for name, facts in tasks().items() if name not in others}
pool().limit(5)
mixed(example(), 50)
pool().limit(1)
before = helpers()
assert len(before) == 4
while any(state != "S" for state, _ in before.values()):
    before = helpers()
for _ in range(20):
    mixed(example(), 50)
    assert helpers() == before
"""
    succeeds(program)


def test_many_threads_call_at_once_and_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def counting(*args: Any) -> Any:
        compiled.append(args)
        return load(*args)

    monkeypatch.setattr("taskc.backend.cpu.target.load", counting)

    @tc.kernel(workers=8)
    def add(a: tc.f32[64], b: tc.f32, c: tc.out[tc.f32[64]]):
        for i in tc.spatial(8).repeat(8):
            c[i] = a[i] + b

    start = threading.Barrier(8)

    def work(number: int) -> int:
        a = np.full(64, number, np.float32)
        start.wait()
        return sum(int(add(a, float(k))[k % 64] == number + k) for k in range(10_000))

    with ThreadPoolExecutor(8) as executor:
        assert list(executor.map(work, range(8))) == [10_000] * 8
    assert len(compiled) == 1


def test_many_threads_share_the_pool_while_it_grows(threads: Any) -> None:
    threads(3)
    done = threading.Event()

    def grow() -> None:
        size = 1 << 20
        while not done.is_set():
            pool().prepare(size)
            size = size + (1 << 16) if size < 1 << 23 else size
            time.sleep(0)

    def work(number: int) -> None:
        x = example(number)
        y = expected(x, number)
        for _ in range(100):
            np.testing.assert_array_equal(mixed(x, number), y)

    growing = threading.Thread(target=grow)
    growing.start()
    try:
        with ThreadPoolExecutor(4) as executor:
            list(executor.map(work, range(4)))
    finally:
        done.set()
        growing.join()


def test_more_scratch_than_there_is_memory() -> None:
    with pytest.raises(MemoryError):
        pool().prepare(1 << 60)
    np.testing.assert_array_equal(mixed(example(), 1), expected(example(), 1))


# --- processes -------------------------------------------------------------------------------


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    head = (
        "import os, signal, sys, threading, time\n"
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from tests.backend.cpu.test_pool import mixed, expected, example, pool, tasks\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, "-c", head + program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def succeeds(program: str, **variables: str) -> str:
    ended = run(program, **variables)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_each_thread_begins_with_its_own_part() -> None:
    """The same blocks each time, as long as nobody is late; and each block is done once, by whomever."""
    succeeds("""
import ctypes
taken, began = {}, threading.Event()
me = threading.get_ident()

@ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
def job(first, stop, arguments, scratch):
    taken.setdefault(threading.get_ident(), []).extend(range(first, stop))
    if threading.get_ident() != me:
        began.set()
    elif arguments:  # a helper takes as long as it takes
        began.wait(60)

kinds = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool
run = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(pool().run)
address = ctypes.cast(job, ctypes.c_void_p)
pool().limit(2)
for _ in range(3):
    assert run(address, 9, 1, 0, True) == 0
    assert taken.pop(me)[0] == 0
    (others,) = taken.values()
    assert others[0] == 4
    taken.clear()
    began.clear()
for threads in (2, 3, 5):
    pool().limit(threads)
    for blocks in (2, 3, 4, 5, 7, 40, 41, 200):
        assert run(address, blocks, 0, 0, True) == 0
        assert sorted(sum(taken.values(), [])) == list(range(blocks))
        taken.clear()
""")


def in_child(seed: int) -> bool:
    x = example(seed)
    return bool((mixed(x, 7) == expected(x, 7)).all())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(method: str) -> None:
    # In a process of its own: a fork of this one, with its threads, is what Python 3.12 warns of.
    program = f"""
import multiprocessing, warnings
from tests.backend.cpu.test_pool import in_child
if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    pool().limit(3)
    assert in_child(0)
    with multiprocessing.get_context("{method}").Pool(2) as workers:
        print(workers.map(in_child, range(8)))
    assert in_child(1)
"""
    assert succeeds(program) == f"{[True] * 8}\n"


def test_a_fork_while_other_threads_run() -> None:
    program = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
pool().limit(3)
x = example()
y = mixed(x, 30)
done = False
def work():
    while not done:
        mixed(x, 30)
        pool().prepare(0)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(20):
    child = os.fork()
    if not child:
        signal.alarm(30)
        for _ in range(3):
            if not (mixed(x, 30) == y).all():
                os._exit(1)
        os._exit(0 if pool().threads > 1 else 2)
    status = os.waitpid(child, 0)[1]
    if status:
        break
done = True
for thread in threads:
    thread.join()
sys.exit(status)
"""
    succeeds(program)


def test_a_fork_while_another_thread_is_within_llvm() -> None:
    program = """
import llvmlite.binding as llvm
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
inside = threading.Event()
def once():
    if not inside.is_set():
        inside.set()
        time.sleep(0.5)
def compiling():
    llvm.ffi.register_lock_callback(once, lambda: None)
    llvm.parse_assembly("")
threading.Thread(target=compiling).start()
inside.wait()
child = os.fork()
if not child:
    signal.alarm(30)
    x = example()
    np.testing.assert_array_equal(mixed(x, 3), expected(x, 3))
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""
    succeeds(program)


@pytest.mark.parametrize("pause", ["0", "0.02"])
def test_exit_while_helpers_spin_sleep_and_work(pause: str) -> None:
    program = f"""
pool().limit(4)
x = example()
mixed(x, 3)
def work():
    while True:
        mixed(x, 2000)
if {pause}:
    for _ in range(2):
        threading.Thread(target=work, daemon=True).start()
    time.sleep({pause})
"""
    for _ in range(2):
        succeeds(program)


def test_signals_are_for_threads_of_python() -> None:
    pool().limit(3)
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        pytest.skip("the masks of threads are read from /proc")
    blocked = 0
    for task in tasks.iterdir():
        status = dict(
            line.split(":\t", 1)
            for line in (task / "status").read_text().splitlines()
            if ":\t" in line
        )
        blocked += int(status["SigBlk"], 16) >> (signal.SIGINT - 1) & 1
    pool().limit(thread_count())
    assert blocked >= 2


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="two processors are needed",
)
def test_helpers_are_woken_on_other_processors() -> None:
    program = """
from pathlib import Path
there = sorted(os.sched_getaffinity(0))
pool().limit(2)
main = str(threading.get_native_id())

def wakes_elsewhere(cpu):
    time.sleep(0.05)  # helpers are asleep by now, if they had a moment
    os.sched_setaffinity(0, {cpu})
    np.testing.assert_array_equal(mixed(example(), 50), expected(example(), 50))
    os.sched_setaffinity(0, there)
    tasks = [int(task.name) for task in Path("/proc/self/task").iterdir() if task.name != main]
    return any(os.sched_getaffinity(task) == {*there} - {cpu} for task in tasks)

for cpu in (there[0], there[1], there[0]):
    print(any(wakes_elsewhere(cpu) for _ in range(100)))
"""
    assert succeeds(program) == "True\nTrue\nTrue\n"


# --- how many --------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "most"), [("1", 1), ("2", 2), ("64", 10**6), ("", 10**6)])
def test_the_variable_lowers_the_number_of_threads(given: str, most: int) -> None:
    program = "mixed(example(), 100)\nimport taskc\nprint(pool().threads, taskc.machine().threads)"
    used, told = map(int, succeeds(program, TASKC_THREADS=given).split())
    assert used == told == min(most, len(os.sched_getaffinity(0)), used)
    told_first = "import taskc\nprint(taskc.machine().threads)"
    assert int(succeeds(told_first, TASKC_THREADS=given)) == told


def test_a_number_of_threads_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run("mixed(example(), 1)", TASKC_THREADS="0")
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.endswith("TASKC_THREADS is a number of at least 1, not '0'")
    assert "CompileError" in last
    for given in ("0", "-1", "two", "1.5", " "):
        monkeypatch.setenv("TASKC_THREADS", given)
        with pytest.raises(tc.CompileError, match=f"at least 1, not {given!r}"):
            thread_limit()


def test_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "container_limit", lambda folder: None)
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert thread_count() == 7
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert thread_count() == 1
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    monkeypatch.setattr(pools, "container_limit", lambda folder: 3)
    assert thread_count() == 3


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "nonsense"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "0\n"}, None),
    ],
)
def test_limits_of_a_container(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert container_limit(tmp_path) == limit


def test_a_pause_is_the_processors() -> None:
    assert 'asm sideeffect "yield"' in pool_text("aarch64")
    assert 'asm sideeffect "pause"' not in pool_text("aarch64")
    assert 'asm sideeffect ""' in pool_text("riscv64")


def test_where_there_is_no_futex() -> None:
    """Helpers nap and look again."""
    program = """
from taskc.backend.cpu import pool as pools
pools.has_futex = lambda *_: False
x = example()
pool().limit(1)
mixed(x, 1)  # which is watched
others = tasks().keys() if Path("/proc").exists() else {}
pool().limit(3)
for rounds in range(20):
    np.testing.assert_array_equal(mixed(x, rounds), expected(x, rounds))
    time.sleep(0.002)
if Path("/proc").exists():
    helpers = tasks().keys() - others
    assert len(helpers) == 2
    before = tasks()
    while any(tasks()[helper][1] < before[helper][1] + 100 for helper in helpers):
        time.sleep(0.01)  # one that never naps still looks when this process's time is over
"""
    succeeds(program)
