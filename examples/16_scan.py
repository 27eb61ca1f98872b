"""Sums of all numbers so far, of as many as there are: one range of them for each thread.

`repeat(16) * spatial(16)` says: 16 workers side by side, which are a vector's lanes on a processor, take 16
neighbouring numbers, 16 times.
"""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial


def make_cumsum(
    n: int, *, ranges: int = 2, lanes: int = 16, times: int = 16, chunk: int = 1 << 14
) -> tc.ProgramDefinition:
    own = repeat(times) * spatial(lanes)
    (step,) = own.shape
    each = tc.cdiv(tc.cdiv(n, ranges), chunk)  # chunks of a range
    chunks = max(1, each * (ranges - 1))  # those with others behind their range

    @tc.kernel(workers=lanes)
    def chunk_sums(x: f32[n], sums: tc.out[f32[chunks]]) -> None:
        for c in tc.tiles(chunks, by=1):
            total = tc.tile(f32, own, 0)
            for at in range(0, chunk, step):
                for i in own:
                    if c * chunk + at + i < n:
                        total[i] += x[c * chunk + at + i]
            tc.store(sums[c : c + 1], tc.reduce(total, 0, "+"))

    @tc.kernel(workers=lanes)
    def range_prefixes(x: f32[n], sums: f32[chunks], y: tc.out[f32[n]]) -> None:
        for first in tc.tiles(n, by=each * chunk):
            before = f32(0)
            if ranges > 1:
                for c in range(first // chunk):
                    before += sums[c]
            last = tc.shared(f32[1])
            for i in spatial(lanes):
                if i == 0:
                    last[0] = before
            for at in range(0, each * chunk, step):
                t = tc.tile(f32, own, 0)
                for i in own:
                    if first + at + i < n:
                        t[i] = x[first + at + i]
                prefixes = tc.scan(t, 0, "+")
                start = last[0]
                for i in own:
                    prefixes[i] += start
                    if first + at + i < n:
                        y[first + at + i] = prefixes[i]
                for i in own:
                    if i == step - 1:
                        last[0] = prefixes[i]

    # All ranges but the last are summed up first, so that each knows where it begins; a single one is read once.
    @tc.program
    def cumsum(x: f32[n], y: tc.out[f32[n]]) -> None:
        sums = tc.empty(f32[chunks])
        if ranges > 1:
            chunk_sums(x, out=sums)
        else:
            tc.compute((1,), lambda i: f32(0), out=sums)
        range_prefixes(x, sums, out=y)

    return cumsum


cumsum = make_cumsum(1300, times=2, chunk=256)


def main() -> None:
    x = np.random.default_rng(0).standard_normal(1300).astype(np.float32)
    error = np.abs(cumsum(x) - np.cumsum(x.astype(np.float64))).max()
    print(f"scan: largest error {error:.1e}")


if __name__ == "__main__":
    main()
