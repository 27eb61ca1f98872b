"""The mistake shown by `taskc demo`: an element is read in the phase in which its neighbour writes it."""

# mypy: ignore-errors

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=128)
def differences(x: f32[1024], y: tc.out[f32[1024]]):
    for start in tc.tiles(1024, by=128):
        s = tc.shared(f32[128])
        for i in spatial(128):
            s[i] = x[start + i]
            y[start + i] = s[i] - s[max(i - 1, 0)]
