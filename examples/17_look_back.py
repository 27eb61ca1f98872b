"""Prefix sums in one launch: each block looks back at what the blocks before it have come to.

`tc.tiles(n, by=workers)` says: each block publishes its own sum at once, and its prefix when it knows that, so that who
looks back adds sums until it finds a prefix, and waits for nobody who has published either.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import taskc as tc
from taskc import i32, i64

OWN, PREFIX = 1, 2  # what a word's sum is of, in its two lowest bits; 0 is nothing yet


def make_scan(n: int, *, warps: int = 4) -> tc.KernelDefinition:
    workers = 32 * warps
    blocks = tc.cdiv(n, workers)

    def example(random: np.random.Generator) -> tuple[Any, Any]:
        return random.integers(-9, 10, n, np.int32), np.zeros(blocks, np.int64)

    @tc.cuda.kernel(workers=workers, example=example)
    def scan(x: i32[n], state: tc.inout[i64[blocks]], y: tc.out[i32[n]]) -> None:
        for start in tc.tiles(n, by=workers):
            block, w = start // workers, tc.worker()
            sums, before = tc.shared(i32[warps]), tc.shared(i32[1])
            prefix = x[start + w] if start + w < n else i32(0)
            for distance in tc.static([1, 2, 4, 8, 16]):
                other = tc.cuda.shuffle_up(prefix, distance)
                if w % 32 >= distance:
                    prefix += other
            if w % 32 == 31:
                sums[w // 32] = prefix
            tc.sync()
            for warp in range(warps):
                if warp < w // 32:
                    prefix += sums[warp]
            if w == workers - 1:  # whose prefix is the sum of the block
                tc.cuda.store_release(state[block], prefix.to(i64) * 4 + OWN)
                seen = i32(0)
                for back in range(1, block + 1):
                    word = i64(0)
                    while word == 0:
                        word = tc.cuda.load_acquire(state[block - back])
                    seen += (word >> 2).to(i32)
                    if word & 3 == PREFIX:
                        break
                tc.cuda.store_release(state[block], (seen + prefix).to(i64) * 4 + PREFIX)
                before[0] = seen
            tc.sync()
            if start + w < n:
                y[start + w] = before[0] + prefix

    return scan


scan = make_scan(1000)


def main() -> None:
    x, state = scan.example()
    print(f"look_back: largest error {np.abs(scan(x, state) - np.cumsum(x)).max()}")


if __name__ == "__main__":
    main()
