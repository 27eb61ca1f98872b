"""The chart of the README, drawn from benchmarks/results, and its table; no figure is written by hand.

    python benchmarks/chart.py             writes docs/measured.svg, and prints the table

A bar is the geometric mean of its group: in each case, the ratio to the fastest peer. The dot is the lowest ratio of
the group, on either number of threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import log2
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "docs" / "measured.svg"
THREADS = (1, 2)
SHORT_MS = 0.5  # models.py lists such models, and doesn't average them

Row = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Some rows of a file of results.

    instead  a benchmark whose rows replace those of the same cases
    only     which peers count; all, if none are named
    """

    title: str
    peer: str
    file: str
    benchmarks: tuple[str, ...]
    instead: str = ""
    only: tuple[str, ...] = ()
    counts: Callable[[Row], bool] = lambda row: True

    def ratios(self, threads: int) -> list[float]:
        """For each case, the ratio to its fastest peer."""
        cases: dict[tuple[str, str], float] = {}
        for benchmark in (*self.benchmarks, self.instead):
            found: dict[tuple[str, str], float] = {}
            for row in rows_of(self.file):
                is_of = row["benchmark"] == benchmark and row["threads"] == threads
                is_peer = not self.only or row["peer"] in self.only
                if is_of and is_peer and self.counts(row):
                    name = self.benchmarks[0] if benchmark == self.instead else benchmark
                    case = name, row["case"]
                    found[case] = min(row["ratio"], found.get(case, row["ratio"]))
            cases |= found
        return [*cases.values()]

    @property
    def means(self) -> list[float]:
        return [geometric_mean(self.ratios(threads)) for threads in THREADS]

    @property
    def lowest(self) -> float:
        return min(min(self.ratios(threads)) for threads in THREADS)


@cache
def rows_of(file: str) -> list[Row]:
    text = (ROOT / "benchmarks" / "results" / f"{file}.json").read_text(encoding="utf-8")
    rows: list[Row] = [row for row in json.loads(text)["rows"] if row.get("peer")]
    return rows


def is_exported(row: Row) -> bool:
    return row["case"] in ("bert_base", "gpt2", "minilm", "mobilenet_v2", "resnet50")


ORT, FASTEST = "ONNX Runtime", "the fastest of NumPy, PyTorch, ONNX Runtime"
TWO = "the faster of ONNX Runtime and PyTorch"

GROUPS = (
    Group(
        *("ResNet-50, MobileNetV2, BERT-base, GPT-2, MiniLM", ORT, "models", ("models",)),
        counts=is_exported,
    ),
    Group(
        *("models of 27 packages, calls over 0.5 ms", ORT, "models", ("models",)),
        counts=lambda row: not is_exported(row) and row["ours_ms"] >= SHORT_MS,
    ),
    Group(
        *("transformers in bf16", "PyTorch in bf16", "models_bf16", ("bf16, 128 tokens",)),
        only=("torch bf16",),
    ),
    Group(
        *("matrix products, tuned, both operands new", "the faster of NumPy and PyTorch"),
        *("cpu_products_tuned", ("matmul",)),
    ),
    Group(
        *("matrix products, tuned, one operand packed", FASTEST),
        *("cpu_products_tuned", ("matmul, constant b",)),
    ),
    Group(
        *("convolutions of ResNet-50, Winograd allowed", TWO, "cpu_convolutions"),
        *(("convolution, chain",), "convolution, chain, exact=False"),
    ),
    Group(
        *("convolutions of MobileNetV2 and EfficientNet-B0", TWO, "cpu_convolutions"),
        ("depthwise and 1x1, chain",),
    ),
    Group("LSTM and GRU", ORT, "recurrent", ("LSTM", "GRU")),
    Group(
        *("products with 4-bit weights, sums in f32", ORT, "quantized", ("w4",)),
        only=("onnxruntime",),
    ),
    Group(
        *("the same, against activations of 8 bits", ORT, "quantized", ("w4",)),
        only=("onnxruntime, int8",),
    ),
    Group("argmax of rows", FASTEST, "scans", ("argmax",)),
    Group(
        *("cumulative sum of 2²⁴ numbers", "the faster of NumPy and PyTorch", "scans", ("cumsum",)),
        only=("numpy", "torch"),
    ),
    Group(
        *("eight elementwise steps", "torch.compile", "programs", ("eight steps",)),
        only=("torch",),
    ),
)

LEFT, WIDTH, TOP, STEP = 330, 380, 44, 30
FIRST, LAST = 0.19, 4.5  # ratios at the ends of the axis, which is logarithmic
GREY, LOWEST = "#7d8590", "#d0743c"  # these read on white and on black
COLOURS = "#8fb4dd", "#3c78b4"


def place(ratio: float) -> float:
    return LEFT + WIDTH * (log2(ratio) - log2(FIRST)) / (log2(LAST) - log2(FIRST))


def chart() -> str:
    """The SVG. It has no background, and colours for light and dark pages."""
    height = TOP + STEP * len(GROUPS) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 60} {height}"'
        f' font-family="sans-serif" font-size="12" fill="{GREY}">',
        "<title>taskc's speed relative to its fastest peer, by group of benchmarks</title>",
        f'<text x="{LEFT}" y="14">times as fast as the fastest peer:</text>',
    ]
    for number, colour in enumerate(COLOURS):
        x = LEFT + 200 + 72 * number
        parts.append(f'<rect x="{x}" y="5" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="14">{("1 thread", "2 threads")[number]}</text>')
    x = LEFT + 350
    parts.append(f'<circle cx="{x}" cy="10" r="3" fill="{LOWEST}"/>')
    parts.append(f'<text x="{x + 8}" y="14">lowest row</text>')
    for ratio in (0.25, 0.5, 1, 2, 4):
        x, width = place(ratio), 2 if ratio == 1 else 0.5
        parts.append(
            f'<path d="M{x:.1f} {TOP - 8}V{height - 8}" stroke="{GREY}" stroke-width="{width}"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{TOP - 12}" text-anchor="middle">{ratio}</text>')
    for number, group in enumerate(GROUPS):
        y = TOP + STEP * number
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(group.title)}</text>'
        )
        for bar, mean in enumerate(group.means):
            start, end = sorted((place(1), place(mean)))
            top = y + 11 * bar
            parts.append(
                f'<rect x="{start:.1f}" y="{top}" width="{end - start:.1f}" height="10" fill="{COLOURS[bar]}"/>'
            )
            parts.append(
                f'<text x="{max(end, place(1)) + 4:.1f}" y="{top + 9}" font-size="10">{mean:.2f}</text>'
            )
        parts.append(
            f'<circle cx="{place(group.lowest):.1f}" cy="{y + 10.5}" r="3" fill="{LOWEST}"/>'
        )
    return "\n".join([*parts, "</svg>", ""])


def table() -> str:
    lines = ["| f32, unless stated | compared with | 1 thread | 2 threads | lowest |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for group in GROUPS:
        cells = (
            group.title,
            group.peer,
            *(f"{ratio:.2f}" for ratio in (*group.means, group.lowest)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    CHART.write_text(chart(), encoding="utf-8", newline="\n")
    print(table())
