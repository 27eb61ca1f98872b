"""The convolutions that `mutants.py` breaks: small ones of each form, as they are for sm_80 and sm_90a."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import taskc as tc
from taskc import repeat, spatial
from taskc.ir.target import SM_90A, TARGETS
from taskc.kernels.convolution import Tiling, convolution
from taskc.lang.definition import Definition

_FRAGMENT = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
_BY_WARPS = Tiling(spatial(2, 1) * repeat(1, 2) * _FRAGMENT, 16, 3)
_BY_WARPGROUPS = Tiling(spatial(8, 1) * repeat(1, 2) * _FRAGMENT, 16, 3)
# A producer loads, in bulk.
_AHEAD = Tiling(spatial(4, 1) * repeat(1, 2) * _FRAGMENT, 64, 2, specialize=True)
_SWAPPED = replace(_AHEAD, swap_ab=True)

# Images, height, width, channels, features; mostly 128 pixels, with more steps than a ring has slots.
_SHAPE = (2, 8, 8, 32, 16)
_FORMS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "NHWC": (_SHAPE, {"size": (1, 3), "padding": (0, 1)}),
    # An image's pixels and a filter's channels fill what transposes take at a time.
    "NCHW": (
        (1, 8, 16, 64, 16),
        {"size": (1, 3), "padding": (0, 1), "order": "NCHW", "filters": "OIHW"},
    ),
    "strided": (_SHAPE, {"size": 2, "stride": 2}),
    "grouped": ((2, 8, 8, 32, 32), {"size": 2, "padding": (0, 0, 1, 1), "groups": 2}),
    "depthwise": ((1, 5, 4, 40, 40), {"size": 3, "padding": 1, "groups": 40}),
}
# Of these blocks have several tiles.
_IN_BULK: dict[str, tuple[tuple[int, ...], dict[str, Any], Tiling]] = {
    "pixels in bulk": ((4, 8, 8, 64, 16), {"size": (1, 3), "padding": (0, 1)}, _AHEAD),
    "strided pixels in bulk": ((9, 6, 6, 64, 24), {"size": 2, "stride": 2, "padding": 1}, _AHEAD),
    "few pixels": ((1, 4, 4, 64, 136), {"size": (1, 3), "padding": (0, 1)}, _SWAPPED),
    "NCHW in bulk": ((2, 8, 17, 64, 16), {"size": (1, 2), "order": "NCHW"}, _AHEAD),
}


def convolutions() -> Iterator[tuple[str, Definition, str]]:
    """With the target that each is for."""
    for target, tiling in (("sm_80", _BY_WARPS), ("sm_90a", _BY_WARPGROUPS)):
        machine = tc.machine(target)
        for name, (shape, options) in _FORMS.items():
            chosen = None if name == "depthwise" else tiling
            made = convolution(*shape, tiling=chosen, machine=machine, **options)
            yield f"convolution: {name}", made, target
    for name, (shape, options, tiling) in _IN_BULK.items():
        made = convolution(*shape, tiling=tiling, machine=tc.machine("sm_90a"), **options)
        yield f"convolution: {name}", made, "sm_90a"


@contextmanager
def two_processors() -> Iterator[None]:
    """A target of few processors, so that a block has several tiles: some bugs show only in later ones."""
    before = TARGETS["sm_90a"]
    TARGETS["sm_90a"] = replace(SM_90A, processors=2)
    try:
        yield
    finally:
        TARGETS["sm_90a"] = before
