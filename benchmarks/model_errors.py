"""How far models are off from ONNX Runtime, on inputs of three kinds and of two sets of shapes where extents are open.

    python benchmarks/model_errors.py --models FOLDER [--list public.json] [--only TEXT] [--json FILE]

An error is the largest difference over the standard deviation of the output, and at least 1e-6; of integers and flags,
the difference alone. Inputs are seeded noise, tones, and rendered text (of sound: syllables of noise), each in the
range of noise, so that outputs are neither empty nor constant: one that is gets named.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from models import Extents, cases, feeds_of

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]

LIMIT = 1e-3
# Digits of five columns and seven rows, a bit each.
_DIGITS = (
    (14, 17, 19, 21, 25, 17, 14), (4, 12, 4, 4, 4, 4, 14), (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14), (2, 6, 10, 18, 31, 2, 2), (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14), (31, 1, 2, 4, 8, 8, 8), (14, 17, 14, 17, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)  # fmt: skip


def tones(shape: tuple[int, ...]) -> Array:
    """Along the last axis of more than one element, of another pitch for each element of the others."""
    axis = max((at for at, n in enumerate(shape) if n > 1), default=0)
    if not shape:
        return np.array(0.5)
    number = np.arange(int(np.prod(shape))).reshape(shape) // max(1, shape[axis]) % 17
    time = np.arange(shape[axis]).reshape([-1 if at == axis else 1 for at in range(len(shape))])
    return np.sin(time * 2 * np.pi * (220 + 55 * number) / 16_000) + 0.3 * np.sin(time * 0.9)


def text(shape: tuple[int, ...]) -> Array:
    """Dark digits on white, on the two longest axes; of what isn't an image, syllables of noise."""
    random = np.random.default_rng(3)
    long = sorted(sorted(range(len(shape)), key=lambda at: shape[at])[-2:])
    if len(shape) < 3 or shape[long[0]] < 24:
        loud = np.sin(np.arange(int(np.prod(shape))) / 900).reshape(shape) ** 2
        return loud * random.standard_normal(shape)
    rows, columns = (shape[at] for at in long)
    page = np.full((rows, columns), 0.9)
    scale = max(1, rows // 24)
    for top in range(scale, rows - 8 * scale, 12 * scale):
        for left in range(2 * scale, columns - 6 * scale, 7 * scale):
            digit = _DIGITS[int(random.integers(10))]
            glyph = np.array([[row >> (4 - at) & 1 for at in range(5)] for row in digit])
            ink = np.kron(glyph, np.ones((scale, scale)))
            page[top : top + 7 * scale, left : left + 5 * scale] -= 1.6 * ink
    view = [shape[at] if at in long else 1 for at in range(len(shape))]
    return np.broadcast_to(page.reshape(view), shape)


def inputs_of(model: Any, extents: Extents) -> dict[str, Feeds]:
    """Arrays for a model by the kind of what is in them."""
    noise = feeds_of(model, extents)
    found = {
        "noise": noise,
        "tones": feeds_of(model, extents, 1),
        "text": feeds_of(model, extents, 2),
    }
    for name, make in (("tones", tones), ("text", text)):
        for key, array in noise.items():
            if array.dtype.kind == "f" and array.size > 8:
                found[name][key] = make(array.shape).astype(array.dtype)
    return found


def larger(model: Any, extents: Extents) -> list[Extents]:
    """Other extents that a model may take, where some are open: all doubled, or those beyond one, or the first ones."""
    open_axes = {
        value.name: [at for at, n in enumerate(value.shape) if not isinstance(n, int)]
        for value in model.inputs
    }
    whole = {name: list(feed.shape) for name, feed in feeds_of(model, extents).items()}

    def doubled(rule: Any) -> Extents:
        return {
            name: [
                2 * n if at in open_axes[name] and rule(at, n) else n for at, n in enumerate(own)
            ]
            for name, own in whole.items()
        }

    found = [
        doubled(rule) for rule in (lambda at, n: n > 1, lambda at, n: True, lambda at, n: at == 0)
    ]
    return [one for one in found if one != whole]


def constant_outputs(outputs: list[Array]) -> int:
    return sum(it.size > 1 and it.dtype.kind == "f" and float(it.std()) < 1e-6 for it in outputs)


def measured(path: Path, extents: Extents) -> list[dict[str, Any]]:
    """Rows of one model."""
    import taskc as tc
    from taskc import CompileError
    from taskc.commands.verify import error_of
    from taskc.onnx.partitions import RuntimeSession

    model, session = tc.compile(path), RuntimeSession(str(path), None)
    tries = [(kind, [feeds]) for kind, feeds in inputs_of(model, extents).items()]
    others = [feeds_of(model, one, 4) for one in larger(model, extents)]
    rows = []
    for kind, choices in [*tries, ("other shapes", others)]:
        for feeds in choices:
            try:
                expected = session.run(feeds)
            except CompileError:
                continue  # the model's own limits
            made = model.run(None, feeds)
            errors = [error_of(a, b) for a, b in zip(made, expected, strict=True)]
            shapes = {name: list(array.shape) for name, array in feeds.items()}
            row = {"input": kind, "error": max(errors, default=0.0), "shapes": shapes}
            row |= {"constant_outputs": constant_outputs(expected), "outputs": len(expected)}
            row |= {"empty_outputs": sum(not it.size for it in expected)}
            rows.append(row)
            break
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", type=Path, metavar="FOLDER", required=True)
    parser.add_argument("--list", type=Path, metavar="FILE", help="which, and their inputs")
    parser.add_argument("--only", metavar="TEXT", default="", help="models of such names")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    options = parser.parse_args()
    rows, beyond = [], 0
    for name, path, extents in cases(options.models, options.list):
        if options.only not in name:
            continue
        for row in measured(path, extents):
            row["model"] = name
            rows.append(row)
            beyond += row["error"] > LIMIT
            notes = [f"{row[key]} of {row['outputs']} {key.split('_')[0]}"
                     for key in ("constant_outputs", "empty_outputs") if row[key]]  # fmt: skip
            mark = "  BEYOND" if row["error"] > LIMIT else ""
            print(
                f"{name:45} {row['input']:12} {row['error']:.1e}{mark}  {', '.join(notes)}",
                flush=True,
            )
    print(
        f"{len(rows)} inputs of {len({row['model'] for row in rows})} models, {beyond} beyond {LIMIT}"
    )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(bool(beyond))


if __name__ == "__main__":
    main()
