"""Fuse two callees into one, once for equal pairs of calls.

A fused kernel is proved as hand-written ones are, and one that can't be proved isn't used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from taskc.ir.nodes import Kernel, Tensor
from taskc.ir.spans import span
from taskc.passes.prove import problem
from taskc.programs.calls import Calls, Joined
from taskc.programs.inlining import sizes_of
from taskc.programs.ir import Call, Callee, Computation, joined_origins

logger = logging.getLogger(__name__)


class UnfusedError(Exception):
    """The reason why two callees aren't fused."""


class UnprovedError(UnfusedError):
    """A fused kernel isn't proved."""


def is_fusible_kernel(call: Call | None) -> bool:
    """Whether a call is of a kernel at stage parsed whose sizes follow from the arguments."""
    return (
        call is not None
        and not call.apart
        and isinstance(call.callee, Kernel)
        and call.callee.stage == "parsed"
        and sizes_of(call) is not None
    )


Made = tuple[Callee, Joined]


class Pairs:
    """A cache of fused callees, by the two original callees and by which of their arguments are the same."""

    def __init__(self) -> None:
        self.made: dict[object, tuple[Callee, Callee, Made | None]] = {}

    def call(
        self, calls: Calls, kept: Call, added: Call, what: object, make: Callable[[], Made]
    ) -> Call | None:
        """The call of the callee that `make` returns.

        what  whatever else the callee depends on
        """
        key = (id(kept.callee), id(added.callee), what, _pattern(calls, kept, added))
        if key not in self.made:
            self.made[key] = kept.callee, added.callee, _made(make, kept, added)
        fused = self.made[key][-1]
        if fused is None:
            return None
        callee, joined = fused
        arguments = [(kept, added)[side].arguments[place] for side, place in joined.sources]
        # A computation is substituted into the kept one, so its origins come first.
        in_order = (added, kept) if isinstance(callee, Computation) else (kept, added)
        parts = joined_origins(*in_order)
        return Call(callee, tuple(arguments), loc=kept.loc, parts=parts)


def _made(make: Callable[[], Made], kept: Call, added: Call) -> Made | None:
    try:
        return make()
    except UnfusedError as reason:
        level = logging.INFO if isinstance(reason, UnprovedError) else logging.DEBUG
        about = f"{kept.callee.name} and {added.callee.name} stay two calls"
        logger.log(level, "%s: %s", about, reason)
    return None


def proved(kernel: Kernel) -> Kernel:
    """A fused kernel, if it is proved."""
    with span("proofs/fused kernels"):
        error = problem(kernel)
    if error is not None:
        raise UnprovedError(f"it isn't proved that one is right: {error}")
    return kernel


def _pattern(calls: Calls, *both: Call) -> tuple[object, ...]:
    """The sizes, and which of the tensors are the same, or parts of the same memory."""
    given = [item for call in both for item in call.arguments if isinstance(item, Tensor)]
    tensors: dict[Tensor, int] = {}
    pattern: list[object] = [tuple((sizes_of(call) or {}).values()) for call in both]
    for tensor in given:
        view = calls.view(tensor)
        same = [tensors.setdefault(one, len(tensors)) for one in (tensor, view.of)]
        pattern.append((*same, view.offset, tensor.shape))
    return tuple(pattern)
