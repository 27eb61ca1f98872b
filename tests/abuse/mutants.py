"""Mutants of what users write: sources of kernels, texts of the IR, mappings, command lines.

Each is accepted, or refused by an error that was meant: never a crash, a hang or an exception of Python's own. What
is accepted keeps its promises: a kernel gives the same on the processor as in the simulator, a text is read back.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import re
import sys
import tempfile
import traceback
import warnings
from functools import cache
from math import prod
from pathlib import Path
from random import Random
from unittest import mock

import numpy as np

import taskc
from taskc.arrays.arguments import ArgumentError
from taskc.backend import sim
from taskc.cli import main
from taskc.errors import CompileError, InternalError
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.mapping_forms import MappingError
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.markup import visible
from taskc.passes.pipeline import lower
from taskc.passes.prove import prove
from tests.abuse.calls import run_source, same

_TOKEN = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?|\s+|==|<=|>=|//|<<|>>|\*\*|\+=|.", re.DOTALL)
_PACKAGE = str(Path(taskc.__file__).parent)
_GOLDEN = Path(__file__).parents[1] / "golden"

_ODD = (
    *("0", "1", "-1", "2", "3", "7", "64", "4096", "True", "None", "nan", "1.5", "''", "()", "x"),
    *(
        "(",
        ")",
        "[",
        "]",
        ":",
        ",",
        ".",
        "*",
        "//",
        "%",
        "<<",
        "and",
        "not",
        "if",
        "for",
        "lambda i: i",
    ),
)
_HUGE = (
    "1 << 31",
    "2 ** 63",
    "10 ** 30",
    "9" * 5000,
    "-9223372036854775809",
    "1e400",
    "\u00e9",
    "\x00",
)


def mutated(text: str, random: Random, others: tuple[str, ...], odd: tuple[str, ...]) -> str:
    """One to three tokens deleted, doubled, exchanged, or replaced by others."""
    tokens = _TOKEN.findall(text)
    for _ in range(random.randint(1, 3)):
        at, other = random.randrange(len(tokens)), random.randrange(len(tokens))
        match random.randrange(6):
            case 0:
                tokens[at] = ""
            case 1:
                tokens[at] *= 2
            case 2:
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case 3:
                tokens[at] = tokens[other]
            case 4:
                tokens[at] = random.choice(odd)
            case 5:
                tokens[at] = random.choice(_TOKEN.findall(random.choice(others)))
    return "".join(tokens)


def is_meant(error: BaseException) -> bool:
    """It is an error for users, or was raised by our own `raise`, or comes from code of the mutant itself."""
    if isinstance(error, (CompileError, MappingError, ArgumentError)):
        return True
    frame = traceback.extract_tb(error.__traceback__)[-1]
    if not frame.filename.startswith(_PACKAGE):
        return not any(
            f.filename.startswith(_PACKAGE) for f in traceback.extract_tb(error.__traceback__)
        )
    raised = (frame.line or "").lstrip().startswith("raise ")
    return raised and isinstance(error, (TypeError, ValueError, AttributeError))


# --- sources -----------------------------------------------------------------------------------

_HEADER = "import taskc as tc\nfrom taskc import *\nn = 24\n"
SOURCES = (
    """@tc.kernel(workers=8)
def kernel(x: f32[n], y: tc.out[f32[n]]):
    for (at,) in tc.tiles(n, by=16):
        for i in repeat(2) * spatial(8):
            if at + i < n:
                y[at + i] = max(x[at + i] * 2, 0) + 1
""",
    """@tc.kernel(workers=8)
def kernel(a: f32[n, 6], b: f32[6, 10], c: tc.out[f32[n, 10]]):
    own = repeat(4, 1) * spatial(1, 8)
    for row, col in tc.tiles((n, 10), by=(4, 8)):
        acc = tc.tile(f32, own, 0)
        for p in tc.pipeline(6, by=3, stages=2):
            sa = tc.load(a[row : row + 4, p : p + 3])
            sb = tc.load(b[p : p + 3, col : col + 8])
            for q in range(3):
                for i, j in own:
                    acc[i, j] += sa[i, q] * sb[q, j]
        tc.store(c[row : row + 4, col : col + 8], acc)
""",
    """@tc.kernel(workers=4)
def kernel(x: i32[n], y: tc.out[i64[4]]):
    s = tc.shared(i64[4])
    for i in spatial(4):
        s[i] = 0
        for k in range(i, n, 4):
            if x[k] % 3 == 1 or x[k] < 5:
                s[i] += x[k].to(i64)
    for i in spatial(4):
        y[i] = s[(i + 1) % 4] - s[i]
""",
    """m = tc.dim("m")
@tc.kernel(workers=4)
def kernel(x: f32[m, 5], y: tc.out[f32[m]]):
    for (row,) in tc.tiles(m, by=4):
        t = tc.tile(f32, spatial(4, 1) * repeat(1, 5), 0)
        for i, j in spatial(4, 1) * repeat(1, 5):
            if row + i < m:
                t[i, j] = tc.exp(x[row + i, j])
        total = tc.reduce(t, 1, "+")
        for i in spatial(4):
            if row + i < m:
                y[row + i] = total[i]
""",
    """@tc.function
def put(y, at, value):
    if at < n:
        y[at] = value
@tc.kernel(workers=8)
def kernel(x: u8[n], k: i32, y: tc.out[u8[n]]):
    table = tc.local(u8[4], 0)
    for (at,) in tc.tiles(n, by=8):
        for i in spatial(8):
            value = x[min(at + i, n - 1)]
            while value > 9:
                value = value // u8(2)
            put(y, at + i, tc.where(k > 0, value, value + u8(1)))
""",
    """@tc.function
def summed(place, *tensors):
    total = f32(0)
    for number, x in enumerate(tensors):
        total += x[(*place,)] * (number + 1)
    return total
@tc.kernel(workers=8)
def kernel(xs: (f32[n, 6], f32[n, 6]), bias: (f32[6],), y: tc.out[f32[n, 6]]):
    axes = range(2)
    for (*first,) in tc.tiles((n, 6), by=(4, 2)):
        for i, *rest in spatial(4, 2):
            there = [first[d] + (i, *rest)[d] for d in axes]
            if all([there[d] < y.shape[d] for d in axes]):
                value = summed(there, *xs)
                y[(*there,)] = value + bias[0][there[1]] if bias else value
""",
    """@tc.kernel(workers=8)
def kernel(a: f32[6, n], b: f32[10, 6], c: tc.out[f32[10, n]]):
    own = repeat(4, 1) * spatial(1, 8)
    left, right = a.T, b.T
    for row, col in tc.tiles((n, 10), by=own.shape):
        acc = tc.tile(f32, own, 0)
        for p in tc.pipeline(left.shape[1], by=3, stages=2):
            sa = tc.load(left[row : row + 4, p : p + 3])
            sb = tc.load((3, 8), lambda *place: right[p + place[0], col + place[1]], fill=0)
            tc.mma(acc, sa, sb.T.T)
        tc.store(c.T[row : row + 4, col : col + 8], acc)
""",
)


def source(number: int) -> str:
    """A mutated source that Python can read."""
    random = Random(number)
    base = random.choice(SOURCES)
    while True:
        text = _HEADER + mutated(
            base, random, SOURCES, _ODD + (_HUGE if random.random() < 0.2 else ())
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(text, "<mutant>", "exec")
        except (SyntaxError, ValueError):
            continue
        return text


def run_mutant_of_a_source(number: int) -> int:
    text = source(number)
    scope = run_source(text, f"<mutant {number}>")
    kernel = scope.get("kernel")
    if not isinstance(kernel, taskc.KernelDefinition):
        return 1
    kernel.ir = prove(kernel.ir)
    if not _is_small(kernel.ir):
        return 1
    lower(kernel.ir)
    _hold_to_the_simulator(kernel, text)
    return 1


def _is_small(kernel: ir.Kernel) -> bool:
    """It runs in the simulator in no time: no loop on a condition, and no large number."""
    for node in walk(kernel.body):
        if isinstance(node, ir.While):
            return False
        if isinstance(node, ir.Constant) and isinstance(node.value, int) and abs(node.value) > 4096:
            return False
    tensors = [item for item in kernel.parameters if isinstance(item, ir.Tensor)]
    extents = [[n for n in tensor.shape if isinstance(n, int)] for tensor in tensors]
    return kernel.workers <= 64 and all(prod(known) < 4096 for known in extents)


def _hold_to_the_simulator(kernel: taskc.KernelDefinition, text: str) -> None:
    given = [np.array(value) for value in kernel.example()]
    made = kernel(*[value.copy() if value.ndim else value[()] for value in given])
    made = made if isinstance(made, tuple) else (made,)
    made = tuple(out for out in made if out is not None)
    values = [value.copy() if value.ndim else value[()] for value in given]
    outputs = [np.zeros_like(out) for out in made]
    whole = iter(values), iter(outputs)
    bound = [
        next(whole[isinstance(item, ir.Tensor) and item.role == "out"])
        for item in kernel.ir.parameters
    ]
    report = sim.run(kernel.ir, bound)
    if any(finding.severity == "error" for finding in report.findings):
        return
    has_math = any(
        isinstance(node, ir.Unary) and node.operator == "exp" for node in walk(kernel.ir.body)
    )
    for found, expected in zip(made, outputs, strict=True):
        if has_math:
            close = np.isclose(found, expected, rtol=1e-5, atol=0, equal_nan=True)
            assert close.all(), f"{found} is not the simulator's {expected}:\n{text}"
        else:
            assert same(found, expected), f"{found} is not the simulator's {expected}:\n{text}"


# --- texts of the IR -----------------------------------------------------------------------------


@cache
def texts() -> tuple[str, ...]:
    """The golden texts that are whole kernels, and not too long."""
    found = []
    for path in sorted(_GOLDEN.rglob("*.txt")):
        text = path.read_text(encoding="utf-8")
        if len(text) > 4000:
            continue
        with contextlib.suppress(CompileError, InternalError):
            parse(text)
            found.append(text)
    return tuple(found)


def run_mutant_of_a_text(number: int) -> int:
    random = Random(number)
    text = mutated(random.choice(texts()), random, texts(), _ODD + _HUGE)
    try:
        kernel = parse(text)
    except InternalError:
        return 1  # it is no kernel of its stage
    again = to_text(kernel)
    assert to_text(parse(again)) == again, f"not read back:\n{again}"
    return 1


# --- mappings ------------------------------------------------------------------------------------

MAPPINGS = (
    "spatial(4, 8).repeat(2, 2)",
    "repeat(2, 1) * spatial(8, 16) * repeat(1, 4)",
    "spatial(2, 3, order=(1, 0)).repeat(2, 1, order=(1, 0))",
    "replicate(4) * spatial(2)",
    "auto_map(8, 9, workers=32, vector=4)",
    "mapping((2, 2), ((0, 0), (0, 1)), ((1, 0), (1, 1)))",
)


def run_mutant_of_a_mapping(number: int) -> int:
    random = Random(number)
    text = mutated(random.choice(MAPPINGS), random, MAPPINGS, _ODD + _HUGE)
    made = Mapping.parse(text)
    if made.workers * made.slots < 1 << 14:
        assert Mapping.parse(str(made)) == made, f"{text}: {made}"
        assert len(made(made.workers - 1)) == made.slots
    return 1


# --- command lines -------------------------------------------------------------------------------

COMMANDS = (
    "show add.py:kernel --stage lean --target sm_80",
    "show add.py --diff",
    "show add.py:kernel --stage cuda --target sm_90a",
    "run add.py:kernel --repeat 2 --check --json",
    "run add.py:make(3) --target sim --repeat 1",
    "check add.py:kernel --seeds 2 --json --target cpu",
    "map spatial(4,8).repeat(2,2) --worker 3 --svg picture.svg",
    "mutate add.py:make(2) --seeds 1",
    "doctor",
    "--version",
    "show --help",
    "map spatial(2000000000) --worker 7",
    "explain tiny.onnx --json",
    "compile tiny.onnx -o tiny.taskc --shape x=2,4",
    "run tiny.onnx --repeat 1",
    "verify tiny.onnx --tolerance 1e-3",
    "profile tiny.onnx --json",
    "bench tiny.onnx --shape x=1,4",
    "run tiny.taskc --repeat 1",
    "db import rows.jsonl",
    "db merge rows.sqlite3",
    "db list matmul --json",
    "db best matmul m=48",
    "db show --machine x",
    "db export out.jsonl",
    "db prune --older-than 3",
    "best matmul --m 8 --n 8 --k 8",
    "tune matmul --m 8 --n 8 --k 8 --dry-run --most 2",
)
_EVIL = "x\x1b]0;pwned\x07\x1b[31m\u202e[red]"
_FILE = f"""{_HEADER}
{SOURCES[0]}
def make(size):
    @tc.kernel(workers=4)
    def made(x: f32[size], y: tc.out[f32[size]]):
        for i in repeat(8) * spatial(4):
            if i < size:
                y[i] = x[i]
    return made
"""
_WORDS = (
    "",
    "-",
    "--",
    "--json",
    "--target",
    "sm_80",
    "cpu",
    "0",
    "-1",
    "3",
    "x",
    ":",
    "nothing.py",
    "/",
    "\u00e9",
    "\x00",
    "\x1b[2J",
    "\udc80",
    "\u202eevil",
    "[red]x[/red]",
    "tiny.onnx",
    "1e999",
    "9" * 5000,
    "/dev/zero",
    "/dev/full",
    ".",
)


@cache
def _model() -> bytes:
    """A model whose names would move a terminal's cursor."""
    from onnx import TensorProto, helper

    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 4])
        for name, rows in (("x", "n" + _EVIL), ("y" + _EVIL, "n" + _EVIL))
    )
    node = helper.make_node("Relu", ["x"], ["y" + _EVIL], name="node" + _EVIL)
    graph = helper.make_graph([node], "graph" + _EVIL, [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    content: bytes = made.SerializeToString()
    return content


_ROW = (
    '{"operator": "matmul", "problem": "{\\"k\\":48,\\"m\\":48}", "plan": "{}", "machine": "m", "version": "0.1.0",'
    ' "outcome": "chosen", "seconds": 1e-6, "spread": 0.1, "samples": 3, "predicted": 1e-6,'
    ' "date": "2026-01-01T00:00:00+00:00", "note": "\\u001b[2J", "digest": ""}\n'
)


def _write_files(folder: Path, random: Random) -> None:
    """What the commands name, half of it damaged."""
    rows = mutated(_ROW, random, (_ROW,), _HUGE) if random.random() < 0.5 else _ROW
    files = {"add.py": _FILE.encode(), "tiny.onnx": _model(), "rows.jsonl": rows.encode()}
    files["rows.sqlite3"] = random.randbytes(500)
    files["tiny.taskc"] = b"taskc bundle".ljust(16, b"\0") + random.randbytes(100)
    for name, content in files.items():
        damaged = bytearray(content)
        if name != "add.py" and random.random() < 0.5:
            for _ in range(random.randint(1, 3)):
                damaged[random.randrange(len(damaged))] = random.randrange(256)
        (folder / name).write_bytes(damaged)


def run_mutant_of_a_command(number: int) -> int:
    random = Random(number)
    words = random.choice(COMMANDS).split()
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(words))
        match random.randrange(5):
            case 0:
                del words[at]
                words = words or [""]
            case 1:
                words.insert(at, random.choice(_WORDS))
            case 2:
                words[at] = random.choice(_WORDS)
            case 3:
                words[at] = random.choice(random.choice(COMMANDS).split())
            case 4:
                words[at] = mutated(words[at], random, COMMANDS, _WORDS) if words[at] else "x"
    # Hundreds of repetitions or elements of a simulation would take as long as they say.
    words = [re.sub(r"(?<!\d)\d{3,9}(?!\d)", lambda digits: digits[0][-2:], word) for word in words]
    out, err = io.StringIO(), io.StringIO()
    with _folder(random), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: object = main(words)
        except SystemExit as error:
            code = error.code
    assert code in (0, 1, 2, 130), f"exit code {code} of {words}"
    assert code == 0 or err.getvalue() or out.getvalue(), f"{words} fails in silence"
    assert "Traceback" not in err.getvalue(), f"{words}: {err.getvalue()}"
    assert "internal error" not in err.getvalue(), f"{words}: {err.getvalue()}"
    written = out.getvalue() + err.getvalue()
    assert visible(written) == written, f"{words}: {written!r}"
    return 1


@cache
def _cache() -> str:
    """The cache folder of all cases of a process."""
    made = tempfile.TemporaryDirectory()
    atexit.register(made.cleanup)
    return made.name


@contextlib.contextmanager
def _folder(random: Random):  # type: ignore[no-untyped-def]
    """A folder of its own, with the files that the commands name."""
    before, modules = os.getcwd(), set(sys.modules)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {"TASKC_CACHE": _cache()}),
    ):
        _write_files(Path(folder), random)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
            for name in set(sys.modules) - modules:
                if name.startswith("taskc_file_"):
                    sys.modules.pop(name, None)
