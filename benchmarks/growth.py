"""How the time of compilation grows with a kernel: for each kind of growth, sizes that double.

    python benchmarks/compile_time.py --growth [--quick] [--json FILE]

CPU time of one process, the least of three, from source to stage lean and from there to code for this processor.
Where the microseconds for each unit stay what they are, time grows as the kernel does.
"""

from __future__ import annotations

import importlib.util
import linecache
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from report import Row, record

from taskc.backend.cpu.compile import compile_kernel
from taskc.backend.cpu.processor import host
from taskc.format import time_text
from taskc.ir.nodes import Kernel
from taskc.passes.pipeline import lower

_HEAD = ("import taskc as tc", "from taskc import *")


@dataclass(frozen=True)
class Growth:
    """A kind of kernel of any size; `body` gives its lines, of which each worker's task is `i`."""

    name: str
    sizes: tuple[int, ...]
    body: Callable[[int], list[str]]
    elements: Callable[[int], int] = lambda size: 16


def _each(lines: list[str]) -> list[str]:
    return ["for i in spatial(16):", *[f"    {line}" for line in lines]]


def _slots(size: int) -> list[str]:
    """Elements of a tile that each worker holds."""
    total = 16 * size
    return [
        f"t = tc.tile(f32, spatial(16) * repeat({size}), 0)",
        f"tc.copy(t, x[0:{total}])",
        f"tc.store(y[0:{total}], t)",
    ]


def _lines(size: int) -> list[str]:
    names = [f"t{j} = t{j - 1} * 0.5 + t{j - 1}" for j in range(1, size)]
    return _each(["t0 = x[i]", *names, f"y[i] = t{size - 1}"])


def _phases(size: int) -> list[str]:
    """There and back between two shared arrays, turned around."""
    steps = _each(["r[i] = s[15 - i] + 1.0"]) + _each(["s[i] = r[15 - i] * 0.5"])
    shared = ["s = tc.shared(f32[16])", "r = tc.shared(f32[16])"]
    first, last = _each(["s[i] = x[i]"]), _each(["y[i] = s[i]"])
    return [*shared, *first, *steps * (size // 2), *last]


def _terms(size: int) -> list[str]:
    return _each([f"y[i] = {' + '.join(['x[i]'] * size)}"])


def _branches(size: int) -> list[str]:
    lines = ["if x[i] < 0.0:", "    y[i] = 0.0"]
    for j in range(1, size):
        lines += [f"elif x[i] < {j}.0:", f"    y[i] = {j}.0"]
    return _each([*lines, "else:", "    y[i] = -1.0"])


def _many(size: int) -> int:
    return 16 * size


KINDS = (
    Growth("slots", (64, 128, 256, 512, 1024, 2048), _slots, _many),
    Growth("lines", (64, 128, 256, 512, 1024), _lines),
    Growth("phases", (12, 24, 48, 96, 192), _phases),
    Growth("terms", (50, 100, 200, 400, 800), _terms),
    Growth("elifs", (25, 50, 100, 200, 400), _branches),
)


def growth(*, quick: bool, file: Path | None) -> None:
    """Measures, prints one table, and writes the rows."""
    rows = []
    print(f"{'kind':8} {'size':>5} {'to lean':>10} {'to code':>10} {'each':>10}")
    for kind in KINDS:
        for size in kind.sizes[:3] if quick else kind.sizes:
            lean, code = _least(kind, size)
            texts = [
                time_text(lean, "ms", "7.0f"),
                time_text(code, "ms", "7.0f"),
                time_text((lean + code) / size, "µs", "7.0f"),
            ]
            print(f"{kind.name:8} {size:5} {' '.join(texts)}", flush=True)
            rows.append(Row("growth, to lean", f"{kind.name} {size}", 1, 1e3 * lean))
            rows.append(Row("growth, to code", f"{kind.name} {size}", 1, 1e3 * code))
    record(rows, file)


def _least(kind: Growth, size: int) -> tuple[float, float]:
    runs = [_seconds(kind, size) for _ in range(3)]
    return min(lean for lean, _ in runs), min(code for _, code in runs)


def _seconds(kind: Growth, size: int) -> tuple[float, float]:
    start = time.process_time()
    lean = lower(_parsed(kind, size))
    middle = time.process_time()
    compile_kernel(lean, host())
    return middle - start, time.process_time() - middle


def _parsed(kind: Growth, size: int) -> Kernel:
    shape = f"f32[{kind.elements(size)}]"
    head = f"def k(x: {shape}, y: tc.out[{shape}]):"
    lines = [*_HEAD, "@tc.kernel(workers=16)", head, *[f"    {line}" for line in kind.body(size)]]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "growing.py"
        file.write_text("\n".join(lines) + "\n")
        linecache.clearcache()
        specification = importlib.util.spec_from_file_location("growing", file)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
    kernel = module.k.ir
    assert isinstance(kernel, Kernel)
    return kernel
