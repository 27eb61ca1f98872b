"""The end of a segment: its program runs, and the arrays whose values it has get them."""

from __future__ import annotations

from sys import getrefcount

from taskc.errors import CheckError
from taskc.numpy.forms import call_of
from taskc.numpy.segment import Segment, here, located, recent

# References to an array that nobody needs: the segment's, the loop's, and that of the call that counts.
_UNNEEDED = 3


def end(segment: Segment, reason: str) -> None:
    """Run what a segment has noted, and give its arrays their values."""
    is_own = here.segment is segment
    if is_own:
        here.segment = Segment()
    count = len(segment.operations)
    waiting = [
        array
        for array in segment.arrays
        if getrefcount(array) > _UNNEEDED and array._segment is segment and array._number < count
    ]
    wanted = tuple(sorted({array._number for array in waiting}))
    if wanted:
        recent.append((reason, count, len(wanted), segment.sites[-1]))
        call, leaves, owned = call_of(segment, count, wanted)
        recorder = here.recorder
        before = {n: leaves[n].copy() for n in owned} if recorder is not None else {}
        try:
            results = call(leaves)
        except CheckError as error:
            raise _index_error(segment) from error
        if recorder is not None:
            recorder.ran(call, leaves, owned, results, before)
        values = dict(zip(wanted, results, strict=True))
        for array in waiting:
            if array._segment is segment:
                array._value = values[array._number]
                array._segment = None
    if is_own:
        segment.arrays.clear()  # they refer to the segment


def _index_error(segment: Segment) -> IndexError:
    """The error for an index that was computed, and is out of bounds: it names the lines that may have noted it."""
    sites = [
        site
        for (row, _, _), site in zip(segment.operations, segment.sites, strict=False)
        if row.name == "gather"
    ]
    lines = [f"{at.file}:{at.line}: {at.text.strip()}" for at in map(located, dict.fromkeys(sites))]
    return IndexError("\n".join(["a computed index is out of bounds, noted at", *lines]))
