"""Every f32 through each function of one operand, against NumPy's f64.

    python -m tests.backend.cpu.exhaustive_math [function …]

2**32 results a function take minutes on all cores. Prints the largest error in ulps, where it is, and how
many results are off by more than one ulp. Fails if any is off by more than two.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from taskc.backend.cpu.processor import host
from taskc.ir.arithmetic import MATH_FUNCTIONS
from taskc.ir.types import f32
from tests.backend.cpu.math_kernel import evaluate
from tests.backend.cpu.math_reference import in_double, single_errors

CHUNK = 2**20
BOUND = 2.0


@dataclass(frozen=True)
class Worst:
    error: float
    bits: int
    over_one: int


def check(task: tuple[str, int]) -> Worst:
    name, first = task
    bits = np.arange(first, first + CHUNK, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    errors = single_errors(evaluate(name, f32, host().lanes, x), in_double(name, x))
    worst = int(np.argmax(errors))
    return Worst(float(errors[worst]), int(bits[worst]), int(np.count_nonzero(errors > 1)))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    names = sys.argv[1:] or sorted(MATH_FUNCTIONS - {"pow", "atan2"})
    failed = False
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        for name in names:
            start, shown = time.monotonic(), time.monotonic()
            worst, over_one = Worst(-1.0, 0, 0), 0
            tasks = [(name, first) for first in range(0, 2**32, CHUNK)]
            for done, found in enumerate(pool.imap_unordered(check, tasks), 1):
                worst = max(worst, found, key=lambda each: each.error)
                over_one += found.over_one
                if time.monotonic() - shown > 20:
                    shown = time.monotonic()
                    say(f"  {name}: {done / len(tasks):.0%}, so far {worst.error:.3f}")
            at = np.uint32(worst.bits).view(np.float32)
            seconds = time.monotonic() - start
            say(
                f"{name}: at most {worst.error:.3f} ulps, at {at!r} (0x{worst.bits:08X});"
                f" {over_one / 2**32:.2%} above 1; {seconds:.0f} s"
            )
            failed |= worst.error > BOUND
    sys.exit(failed)


if __name__ == "__main__":
    main()
