"""The attentions that `mutants.py` breaks: small ones of each form, as they are for sm_80 and sm_90a."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import taskc as tc
from taskc import f16, f32
from taskc.kernels.attention import Plan, attention
from taskc.lang.definition import Definition
from taskc.mutation import inputs_of

# Target; batches, heads, queries, keys, features. Tiles stick out, rings go round more than once, and the last
# step has the slot where the results lie afterwards.
_FORMS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "causal": (
        "sm_80", (1, 2, 40, 70, 16),
        {"kv_heads": 1, "causal": True, "dtype": f16, "plan": Plan(2, 1, 16, 3)},
    ),
    "mask": (
        "sm_80", (1, 1, 33, 70, 16),
        {"mask": f32[33, 70], "dtype": f16, "plan": Plan(2, 1, 16, 3)},
    ),
    "f32": ("sm_80", (1, 1, 40, 40, 32), {"dtype": f32, "plan": Plan(2, 1, 32, 1)}),
    "in parts": (
        "sm_80", (1, 8, 8, 90, 16),
        {"kv_heads": 2, "causal": True, "dtype": f16, "plan": Plan(2, 1, 16, 3, part=64)},
    ),
    "loads ahead": (
        "sm_90a", (1, 1, 70, 70, 16),
        {"causal": True, "dtype": f16, "plan": Plan(4, 1, 32, 2, specialize=True)},
    ),
    # On two processors, one of them has a second tile: some waits are for that one.
    "turns": (
        "sm_90a", (1, 1, 300, 40, 16),
        {"dtype": f16, "plan": Plan(8, 1, 32, 2, specialize=True, alternate=True)},
    ),
}  # fmt: skip


def attentions() -> Iterator[tuple[str, Definition, str]]:
    """With the target that each is for."""
    for name, (target, (batches, heads, length, keys, features), options) in _FORMS.items():
        made = attention(
            batches, heads, length, keys, features, machine=tc.machine(target), **options
        )
        yield f"attention: {name}", made, target


def inputs_of_attention(definition: Definition) -> list[Sequence[Any]]:
    """The inputs for `mutate`, and two whose scores rise with the key, so that each step changes the largest one.

    Their powers overflow in the second one, unless the largest is subtracted.
    """
    inputs = inputs_of(definition)
    for steepness in (1, 100):
        queries, keys, *others = (np.copy(array) for array in inputs[0])
        rising = np.linspace(0, steepness, keys.shape[2])[:, None]
        keys = (np.abs(keys) * rising).astype(keys.dtype)
        inputs.append([np.abs(queries), keys, *others])
    return inputs
