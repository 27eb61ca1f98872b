"""One discipline for calls that interrupt others, and other threads: no locks but those listed, and no deadlock."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskc.ir.reentry import NOBODYS, Turn, door, for_another_thread, may_wait

ROOT = Path(__file__).parents[2]
MODULES = {"threading", "_thread", "queue", "multiprocessing"}
NAMES = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "Event"}
NAMES |= {"allocate_lock", "Queue", "SimpleQueue"}

# Where there is a lock, and why nobody waits there for itself.
LISTED = {
    "taskc/ir/reentry.py": "the discipline itself",
    "taskc/tune/database.py": "re-entrant, for SQLite's connection; whoever comes in while it is held interrupts",
    "taskc/tune/workers.py": "of the tuner's workers, which no call of a kernel asks",
    "taskc/backend/cpu/tiers.py": "the end of the background's work, for which only `finish` waits, which no call does",
    "taskc/backend/cpu/processes.py": "the requests of a process that compiles, which makes no calls",
    "taskc/backend/sim/breakpoints.py": "the end of a session of pdb, for which its own thread waits",
}


def _locks(text: str) -> Iterator[str]:
    if not any(module in text for module in MODULES):
        return
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield from NAMES.intersection(name.name for name in node.names)
        elif (
            isinstance(node, ast.Attribute)
            and node.attr in NAMES
            and isinstance(node.value, ast.Name)
            and node.value.id in MODULES
        ):
            yield node.attr


def test_there_are_no_other_locks() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "taskc").rglob("*.py"))
        if any(_locks(path.read_text("utf-8")))
    }
    assert found == {*LISTED}


def test_a_turn_is_one_calls() -> None:
    turn, order = Turn(), list[int]()

    def second() -> None:
        with turn.taken() as is_alone:
            assert is_alone
            order.append(2)

    thread = threading.Thread(target=second)
    with turn.taken() as is_alone:
        assert is_alone
        thread.start()
        order.append(1)
    thread.join()
    assert order == [1, 2]


def test_who_has_a_turn_isnt_alone_in_it_again() -> None:
    turn = Turn()
    with turn.taken(), turn.taken() as is_alone:
        assert not is_alone
    with turn.taken() as is_alone:
        assert is_alone
    with NOBODYS.taken(), NOBODYS.taken() as is_alone:
        assert is_alone


def test_who_interrupts_waits_for_nobody() -> None:
    """Two threads have a turn each, and what interrupts them asks for the other one's."""
    turns = Turn(), Turn()
    both, answers = threading.Barrier(2), list[bool]()

    def run(own: Turn, other: Turn) -> None:
        with door(), own.taken():
            both.wait(10)
            with door():
                assert not may_wait()
                with other.taken() as is_alone:
                    answers.append(is_alone)
            assert may_wait()
            both.wait(10)

    threads = [threading.Thread(target=run, args=pair) for pair in (turns, turns[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert answers == [False, False]


def test_a_part_of_a_call_in_another_thread_is_in_it() -> None:
    def interrupting() -> bool:
        with door():
            return may_wait()

    assert interrupting()
    answers = list[bool]()
    part = for_another_thread(lambda: answers.append(interrupting()))
    thread = threading.Thread(target=part)
    thread.start()
    thread.join()
    assert answers == [False]


def test_an_error_gives_a_turn_back() -> None:
    turn = Turn()
    with pytest.raises(KeyError), door(), turn.taken():
        raise KeyError
    with turn.taken() as is_alone:
        assert is_alone
        assert may_wait()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_child_waits_for_nobody_who_isnt_there() -> None:
    turn, taken, over = Turn(), threading.Event(), threading.Event()

    def hold() -> None:
        with turn.taken():
            taken.set()
            over.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(10)
    child = os.fork()
    if child == 0:
        with turn.taken() as is_alone:
            os._exit(0 if is_alone else 1)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def _moments(count: int, seed: int, tmp_path: Path) -> None:
    """A deadlock ends the process by itself, and shows where."""
    ways = ["signal", "finalize", "settrace", "threading"]
    command = [sys.executable, "-m", "tests.moments", *ways, "--count", str(count)]
    environment = {**os.environ, "TASKC_CACHE": str(tmp_path)}
    done = subprocess.run(
        [*command, "--seed", str(seed)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Exception ignored" not in done.stderr, done.stderr[-4000:]


def test_calls_at_random_moments(tmp_path: Path) -> None:
    _moments(150, 0, tmp_path)  # each way, 600 in all


@pytest.mark.sweep
def test_calls_at_many_random_moments(tmp_path: Path) -> None:
    _moments(2500, 1, tmp_path)
