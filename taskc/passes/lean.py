"""Stage lean: from scalar loops and index arithmetic to linear, mostly 32-bit offsets.

The order, and why:

1. simplify    First on what lowering wrote: guards that are decided and loops that run once are
               gone before anything looks at them.
2. flatten     Everything after it sees one offset for each access, whatever its layout. It binds
               loop variables again as i32, so no later pass has to choose a type.
3. simplify    Offsets of several dimensions, quotients by layouts and casts fold into each other.
               Now and not later, since it sees sums as they are, not cut in pieces by hoist.
4. unroll      It chooses loops by the size that their simplified bodies have.
5. vectorize   It splits loops of constant bounds, those of unroll among them, and needs whole
               offsets to prove alignment.
6. hoist       Last: it takes offsets apart, by the loops that the passes before have left. A
               condition that vectorize made uniform is invariant only now.
"""

from __future__ import annotations

from collections.abc import Callable

from taskc.ir.nodes import Kernel
from taskc.passes.flatten import flatten
from taskc.passes.hoist import hoist
from taskc.passes.simplify import simplify
from taskc.passes.unroll import unroll
from taskc.passes.vectorize import vectorize

LEAN_PASSES: tuple[Callable[[Kernel], Kernel], ...] = (
    simplify,
    flatten,
    simplify,
    unroll,
    vectorize,
    hoist,
)
