"""Compiled code in a process: it works wherever it is put, and goes when nobody needs it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from taskc.backend.cpu.jit import load_object
from taskc.backend.cpu.module import optimized
from taskc.backend.cpu.processor import host

ROOT = Path(__file__).parents[3]
PAGE = os.sysconf("SC_PAGE_SIZE")

# Constants, data and code, all of which name each other, and a function of the process.
TEXT = """
@table = internal constant [8 x i64] [i64 2, i64 3, i64 5, i64 7, i64 11, i64 13, i64 17, i64 19]
@sum = global i64 0
@text = internal global [2 x i8] c"x\\00"
declare i64 @strlen(ptr)
define i64 @add(i64 %k) {
  %masked = and i64 %k, 7
  %place = getelementptr [8 x i64], ptr @table, i64 0, i64 %masked
  %prime = load i64, ptr %place
  %length = call i64 @strlen(ptr @text)
  %before = load i64, ptr @sum
  %more = add i64 %prime, %length
  %after = add i64 %before, %more
  store i64 %after, ptr @sum
  ret i64 %after
}
"""


def code() -> bytes:
    made: bytes = host().machine.emit_object(optimized(TEXT, host()))
    return made


def run(program: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_code_is_loaded_wherever_there_is_room() -> None:
    """Libraries that come after 5 GB leave holes in front of them, and not all of an object may fit into one."""
    program = """
import ctypes, mmap
NORESERVE = 0x4000  # untouched pages are nobody's
before = mmap.mmap(-1, 5 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
from tests.backend.cpu.test_jit import code, load_object
content = code()
for number in range(6):
    loaded = load_object(content, "primes", ["add", "sum"])
    add = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(loaded["add"])
    near = abs(loaded["add"] - loaded["sum"]) < 1 << 20
    print(add(3) + add(4), ctypes.c_int64.from_address(loaded["sum"]).value, near, flush=True)
"""
    assert run(program) == "28 20 True\n" * 6


def mappings() -> int:
    """Those of code, by nobody's file."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(line.split()[1:] == ["r-xp", "00000000", "00:00", "0"] for line in lines)


def test_code_goes_with_its_library() -> None:
    content = code()
    before = mappings()
    kept = [load_object(content, "primes", ["add"]) for _ in range(70)]
    assert mappings() >= before + 70
    last = kept[-1]
    del kept
    assert mappings() <= before + 8
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(last["add"])(7) == 20


def test_code_that_outlives_all_modules_goes_in_silence() -> None:
    program = """
from taskc.backend.cpu import jit
from tests.backend.cpu.test_jit import code
jit.last = jit.load_object(code(), "primes", ["add"])
jit.itself = jit  # a cycle, so that its globals go one by one, in their order
"""
    assert run(program) == ""


def test_compiling_leaves_no_memory_behind() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE

    def optimize(count: int) -> None:
        for _ in range(count):
            optimized(TEXT, host())

    optimize(20)
    before = resident()
    optimize(60)
    assert resident() - before < 60 * 15_000  # it was 60,000 each
