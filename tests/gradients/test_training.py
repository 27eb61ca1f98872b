"""The example that trains a small GPT: its losses fall, are the same in every run, and follow PyTorch's."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import numpy as np
import pytest

from taskc.backend.cpu.pool import pool

PATH = Path(__file__).parents[2] / "examples" / "training" / "characters.py"
EXAMPLE = SimpleNamespace(**run_path(str(PATH)))


def test_the_text_is_learned() -> None:
    losses = EXAMPLE.train(60)
    assert losses[0] == pytest.approx(np.log(len(EXAMPLE.LETTERS)), abs=0.3)
    assert losses[-1] < losses[0] / 2


@pytest.mark.sweep
def test_the_same_bits_on_any_number_of_threads() -> None:
    found = []
    for threads in (1, 2):
        pool().limit(threads)
        found.append(EXAMPLE.train(20))
    assert found[0] == found[1]


@pytest.mark.torch
def test_losses_follow_pytorch() -> None:
    """With a constant rate of 3e-3 PyTorch's own losses in f32 leave those in f64 by 2e-3 near the end."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    torch.set_num_threads(1)
    gpt, count = EXAMPLE, 300
    w = {name: torch.tensor(x, requires_grad=True) for name, x in gpt.first_weights().items()}

    def attended(x, n):
        shape = gpt.BATCH, gpt.LENGTH, gpt.HEADS, gpt.SIZE
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in (x @ w[f"qkv{n}"]).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(gpt.ROWS, gpt.WIDTH) @ w[f"joined{n}"]

    def norm(x, after=""):
        scale, shift = w[f"scale{after}"], w[f"shift{after}"]
        return functional.layer_norm(x, (gpt.WIDTH,), scale, shift, 1e-5)

    optimizer = torch.optim.AdamW([*w.values()], 3e-3, weight_decay=0.01)
    theirs = []
    for (ids, labels), rate in zip(gpt.batches(count), gpt.rates(count), strict=True):
        optimizer.param_groups[0]["lr"] = rate
        x = w["letters"][torch.tensor(ids)] + w["places"].repeat(gpt.BATCH, 1)
        for n in range(gpt.LAYERS):
            x = x + attended(norm(x, f"{n}a"), n)
            x = x + functional.gelu(norm(x, f"{n}b") @ w[f"wide{n}"]) @ w[f"narrow{n}"]
        loss = functional.cross_entropy(norm(x) @ w["letters"].T, torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*w.values()], 1.0)
        optimizer.step()
        theirs.append(loss.item())
    mine = gpt.train(count)
    differences = np.abs(np.subtract(mine, theirs))
    assert differences.max() < 1e-3, differences.argmax()
