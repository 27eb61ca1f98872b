"""A small GPT learns its text, character by character: one program is a step of training.

python examples/training/characters.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import taskc as tc
from taskc import f32, i64, op
from taskc.kernels.attention import attention
from taskc.kernels.losses import cross_entropy

TEXT = (
    "A worker is a thread or a lane. A mapping says which worker does which task, and in which order. "
    "A mapping is a function with finitely many values, so the compiler proves that each element is written once. "
    "What it can't prove it rejects, with the line and the reason. A program calls kernels one after another. "
)
LETTERS = sorted({*TEXT})
BATCH, LENGTH, WIDTH, HEADS, LAYERS = 8, 32, 64, 4, 2
ROWS, SIZE = BATCH * LENGTH, WIDTH // HEADS
HEADED = BATCH, HEADS, LENGTH, SIZE


def shapes() -> dict[str, tuple[int, ...]]:
    """The weights by name."""
    found: dict[str, tuple[int, ...]] = {
        "letters": (len(LETTERS), WIDTH),
        "places": (LENGTH, WIDTH),
        "scale": (WIDTH,),
        "shift": (WIDTH,),
    }
    for n in range(LAYERS):
        found |= {f"scale{n}a": (WIDTH,), f"shift{n}a": (WIDTH,), f"qkv{n}": (WIDTH, 3 * WIDTH)}
        found |= {f"joined{n}": (WIDTH, WIDTH), f"scale{n}b": (WIDTH,), f"shift{n}b": (WIDTH,)}
        found |= {f"wide{n}": (WIDTH, 4 * WIDTH), f"narrow{n}": (4 * WIDTH, WIDTH)}
    return found


def first_weights(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    made = {}
    for name, shape in shapes().items():
        values = random.standard_normal(shape) * 0.05 if len(shape) > 1 else np.zeros(shape)
        made[name] = (values + name.startswith("scale")).astype(np.float32)
    return made


def batches(count: int, seed: int = 1) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Parts of the text as numbers of letters, and each letter's next one."""
    numbers = np.array([LETTERS.index(letter) for letter in TEXT])
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        first = random.integers(0, len(numbers) - LENGTH, BATCH)
        parts = numbers[first[:, None] + np.arange(LENGTH + 1)]
        found.append((parts[:, :-1].reshape(-1), parts[:, 1:].reshape(-1)))
    return found


def attended(x: Any, qkv: Any) -> Any:
    """Causal attention of x[rows, width], whose products with q, k and v are one."""
    all_three = op.MatMul(x, qkv)
    heads = [
        tc.compute(HEADED, lambda b, h, t, f: all_three[b * LENGTH + t, n * WIDTH + h * SIZE + f])
        for n in range(3)
    ]
    mixed = attention(BATCH, HEADS, LENGTH, LENGTH, SIZE, causal=True)(*heads)
    return tc.compute(
        (ROWS, WIDTH), lambda r, c: mixed[r // LENGTH, c // SIZE, r % LENGTH, c % SIZE]
    )


def network() -> tc.ProgramDefinition:
    """The program of the mean loss of a batch."""

    def body(ids: Any, labels: Any, *weights: Any) -> Any:
        w = dict(zip(shapes(), weights, strict=True))
        letters, places = w["letters"], w["places"]
        x = tc.compute((ROWS, WIDTH), lambda r, c: letters[ids[r], c] + places[r % LENGTH, c])
        for n in range(LAYERS):
            h = op.LayerNormalization(x, w[f"scale{n}a"], w[f"shift{n}a"], axis=-1)
            x = op.Add(x, op.MatMul(attended(h, w[f"qkv{n}"]), w[f"joined{n}"]))
            h = op.LayerNormalization(x, w[f"scale{n}b"], w[f"shift{n}b"], axis=-1)
            x = op.Add(x, op.MatMul(op.Gelu(op.MatMul(h, w[f"wide{n}"])), w[f"narrow{n}"]))
        h = op.LayerNormalization(x, w["scale"], w["shift"], axis=-1)
        logits = op.Gemm(h, letters, transB=1)
        loss = cross_entropy(ROWS, len(LETTERS))(logits, labels)
        return {"loss": tc.compute(1, lambda i: loss[()])}

    types = {name: f32[shape] for name, shape in shapes().items()}
    return tc.trace("gpt", {"ids": i64[ROWS], "labels": i64[ROWS], **types}, body)


def rates(count: int, first: float = 3e-3) -> list[float]:
    """A learning rate for each step, down to 0."""
    return [first * (1 - n / count) for n in range(count)]


def train(count: int) -> list[float]:
    """The losses of so many steps from the weights of a seed."""
    weights = first_weights()
    optimizer = tc.AdamW(weight_decay=0.01)
    step = tc.training_step(network(), wrt=[*weights], optimizer=optimizer, clip=1.0)
    state = tc.optimizer_state(optimizer, **weights)
    return [
        float(step(ids=ids, labels=labels, rate=rate, **weights, **state)[0])
        for (ids, labels), rate in zip(batches(count), rates(count), strict=True)
    ]


if __name__ == "__main__":
    losses = train(300)
    for number in range(0, 300, 20):
        print(f"{number:4} {losses[number]:6.3f} {'#' * round(12 * losses[number])}")
