"""Computations, scheduled by rule and run, against their own functions, which Python calls for each element.

All numbers are small integers, whatever their type: so no result depends on how sums are rounded.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import boolean, f8e4m3, f16, f32, f64, i8, i32, i64, repeat, u8
from taskc.errors import CheckError
from taskc.ir.nodes import Read
from taskc.ir.printer import to_text
from taskc.ir.rewrite import replace_tensors, walk
from taskc.lang.definition import KernelDefinition
from taskc.programs.definition import ProgramDefinition
from taskc.programs.ir import Computation, kernels_of
from taskc.programs.schedule import kernel_of
from taskc.runtime.checking import check
from taskc.runtime.driver import call, compile_ahead, scheduled
from taskc.runtime.machine import machine
from tests.backend.cpu.processors import NAMES, loaded_for

Body = Callable[..., Callable[..., Any]]
Shape = tuple[int, ...]


def array(*shape: int, dtype: tc.DType = f32, below: int = 8) -> np.ndarray:
    seed = sum(n * (place + 1) for place, n in enumerate(shape))
    numbers = np.random.default_rng(seed).integers(0, below, shape)
    return numbers.astype(dtype.numpy)


# --- what is computed: the output's shape, what each element is, and the inputs ----------------


def _sum(x: Any, y: Any) -> Any:
    return lambda *at: x[at] + y[at]


def _row_added(x: Any, b: Any) -> Any:
    return lambda i, j: x[i, j] + b[j]


def _column_added(x: Any, b: Any) -> Any:
    return lambda i, j: x[i, j] + b[i]


def _outer(x: Any, b: Any) -> Any:
    return lambda i, j: x[i] * b[j]


def _alternating(x: Any, b: Any) -> Any:
    return lambda i, j, k, n: x[i, 0, k, 0] + b[j, n]


def _turned(x: Any, b: Any) -> Any:
    return lambda i, j: x[j, i] + b[j]


def _turned_and_not(x: Any, y: Any) -> Any:
    return lambda i, j: x[j, i] - y[i, j]


def _turned_twice(x: Any, y: Any) -> Any:
    return lambda i, j: x[j, i] * x[j, i] + y[j, i]


def _turned_inside(x: Any) -> Any:
    return lambda n, h, w, c: x[n, c, h, w]


def _heads(x: Any) -> Any:
    return lambda i, j, k: x[j, i, k]


def _reversed(x: Any) -> Any:
    return lambda a, b, c, d: x[d, c, b, a]


def _eight(x: Any, y: Any) -> Any:
    return lambda a, b, c, d, e, f, g, h: x[a, b, c, d, e, f, g, h] + y[h, c, a]


def _constant() -> Any:
    return lambda i, j: i * 10 + j if i != j else 7


def _scalar(x: Any) -> Any:
    return lambda: x[()] + x[()]


def _picked(x: Any) -> Any:
    return lambda: x[2]


def _rows(x: Any, ids: Any) -> Any:
    return lambda i, j: x[ids[i], j]


def _columns(x: Any, ids: Any) -> Any:
    return lambda i, j: x[i, ids[j]]


def _elements(x: Any, ids: Any) -> Any:
    return lambda i, j: x[ids[i, j], j]


def _some_rows(x: Any, ids: Any) -> Any:
    return lambda i, j: x[ids[i], j] if ids[i] >= 0 else 0.0


def _some_elements(x: Any, ids: Any) -> Any:
    return lambda i, j: x[ids[i], j] if j < 3 else (0.0 if ids[i] < 2 else x[j % 2, ids[i]])


def _joined(x: Any, y: Any, z: Any) -> Any:
    return lambda i, j: x[i, j] if j < 5 else (y[i, j - 5] if j < 25 else z[i, j - 25])


def _joined_whole(x: Any, y: Any, z: Any) -> Any:
    return lambda i, j: x[i, j] if j < 16 else (y[i, j - 16] if j < 48 else z[i, j - 48])


def _stacked(x: Any, y: Any) -> Any:
    return lambda i, j: x[i, j] if i < 3 else y[i - 3, j]


def _padded(x: Any) -> Any:
    return lambda i, j: x[i - 1, j - 2] if 0 < i < 6 and 1 < j < 20 else 7.0


def _every_third(x: Any) -> Any:
    return lambda i, j: x[1 + 2 * i, 3 * j + 1]


def _backwards(x: Any) -> Any:
    return lambda i, j: x[i, 19 - j]


def _tiled(x: Any) -> Any:
    return lambda i, j: x[i % 3, j % 7]


def _resized(x: Any) -> Any:
    return lambda i, j: x[i // 2, j // 2]


def _split(x: Any) -> Any:
    return lambda i, j, k: x[i, j * 6 + k]


def _flat(x: Any) -> Any:
    return lambda i: x[i // 15, i % 15]


def _depth_to_space(x: Any) -> Any:
    return lambda c, h, w: x[(h % 2) * 6 + (w % 2) * 3 + c, h // 2, w // 2]


def _where(c: Any, x: Any, y: Any) -> Any:
    return lambda i, j: x[i, j] if c[i, j] else y[j]


def _copied(x: Any) -> Any:
    return lambda *at: x[at]


def _turned_bits(x: Any) -> Any:
    return lambda i, j: x[j, i]


def _shared(x: Any) -> Any:
    def chain(i: Any) -> Any:
        first = x[i] + 1.0
        second = first * first - first
        third = second - second * second
        return third + third

    return tc.function(chain)


def _shared_in_a_branch(x: Any) -> Any:
    def chain(i: Any) -> Any:
        part = x[i + 1] + 1.0 if i < 20 else 0.0
        more = part * part - part if i > 3 else part
        return more * more if x[i] > 2.0 else more + part

    return tc.function(chain)


@tc.function
def _same(part: Any) -> Any:
    return part * 0.5 + part * 0.5


@tc.function
def _same_after_five(part: Any) -> Any:
    return _same(_same(_same(_same(_same(part)))))


@tc.function
def _same_after_20(part: Any) -> Any:
    return _same_after_five(_same_after_five(_same_after_five(_same_after_five(part))))


def _halved(x: Any) -> Any:
    return lambda i: _same_after_20(x[i]) if i < 9 else 0.0


IDS = np.array([4, 0, 2, 4, 1, 3, 3])
CASES: dict[str, tuple[Body, Shape, tuple[np.ndarray, ...]]] = {
    "joined": (_sum, (3, 5, 7), (array(3, 5, 7), array(3, 5, 7))),
    "one element": (_sum, (1, 1), (array(1, 1), array(1, 1))),
    "ones between": (_sum, (3, 1, 40, 1), (array(3, 1, 40, 1), array(3, 1, 40, 1))),
    "empty": (_sum, (3, 0), (array(3, 0), array(3, 0))),
    "broadcast row": (_row_added, (9, 37), (array(9, 37), array(37))),
    "broadcast column": (_column_added, (9, 37), (array(9, 37), array(9))),
    "rows of three": (_outer, (50, 3), (array(50), array(3))),
    "rows of five": (_outer, (70, 5), (array(70), array(5))),
    "rows of four": (_outer, (50, 4), (array(50), array(4))),
    "one row of three": (_outer, (1, 3), (array(1), array(3))),
    "alternating": (_alternating, (3, 4, 5, 3), (array(3, 1, 5, 1), array(4, 3))),
    "turned": (_turned, (40, 70), (array(70, 40), array(70))),
    "turned, whole squares": (_turned, (32, 64), (array(64, 32), array(64))),
    "turned, long": (_turned, (300, 290), (array(290, 300), array(290))),
    "turned, not whole blocks": (_turned, (272, 272), (array(272, 272), array(272))),
    "turned and not": (_turned_and_not, (20, 35), (array(35, 20), array(20, 35))),
    "turned, one twice": (_turned_twice, (40, 37), (array(37, 40), array(37, 40, below=2))),
    "NCHW to NHWC": (_turned_inside, (2, 5, 6, 18), (array(2, 18, 5, 6),)),
    "NCHW to NHWC, three": (_turned_inside, (2, 5, 6, 3), (array(2, 3, 5, 6),)),
    "heads": (_heads, (12, 5, 24), (array(5, 12, 24),)),
    "reversed": (_reversed, (7, 2, 6, 9), (array(9, 6, 2, 7),)),
    "eight axes": (
        _eight,
        (2, 3, 2, 1, 2, 3, 1, 4),
        (array(2, 3, 2, 1, 2, 3, 1, 4), array(4, 2, 2)),
    ),
    "no input": (_constant, (20, 20), ()),
    "no axis": (_scalar, (), (array(),)),
    "picked": (_picked, (), (array(5),)),
    "rows by data": (_rows, (7, 21), (array(5, 21), IDS)),
    "columns by data": (_columns, (6, 7), (array(6, 5), IDS)),
    "elements by data": (_elements, (7, 40), (array(8, 40), array(7, 40, dtype=i64))),
    "some rows by data": (_some_rows, (7, 21), (array(5, 21), IDS - 2)),
    "some elements by data": (_some_elements, (7, 5), (array(5, 5), IDS)),
    "concatenation": (_joined, (6, 50), (array(6, 5), array(6, 20), array(6, 25))),
    "concatenation of vectors": (
        _joined_whole,
        (6, 70),
        (array(6, 16), array(6, 32), array(6, 22)),
    ),
    "concatenation of rows": (_stacked, (9, 20), (array(3, 20), array(6, 20))),
    "padded": (_padded, (8, 24), (array(5, 18),)),
    "steps": (_every_third, (4, 19), (array(9, 60),)),
    "backwards": (_backwards, (5, 20), (array(5, 20),)),
    "tiled": (_tiled, (7, 22), (array(3, 7),)),
    "resized": (_resized, (10, 38), (array(5, 19),)),
    "split": (_split, (4, 5, 6), (array(4, 30),)),
    "flat": (_flat, (60,), (array(4, 15),)),
    "depth to space": (_depth_to_space, (3, 8, 10), (array(12, 4, 5),)),
    "where": (_where, (6, 20), (array(6, 20, dtype=boolean, below=2), array(6, 20), array(20))),
    "shared": (_shared, (40,), (array(40, below=2),)),
    "shared in a branch": (_shared_in_a_branch, (40,), (array(41, below=4),)),
    **{
        f"turned {dtype}": (_turned_bits, (20, 37), (array(37, 20, dtype=dtype, below=2),))
        for dtype in (boolean, f8e4m3, f16, f64, i8, u8, i32)
    },
    **{
        f"copied {dtype}": (_copied, (4, 5, 3), (array(4, 5, 3, dtype=dtype, below=2),))
        for dtype in (boolean, f8e4m3, i8, f64)
    },
}


def program_of(body: Body, shape: Shape, inputs: tuple[np.ndarray, ...]) -> ProgramDefinition:
    types = {f"x{n}": _type_of(value) for n, value in enumerate(inputs)}
    return tc.trace("case", types, lambda *handles: tc.compute(shape, body(*handles)))


def _type_of(value: np.ndarray) -> Any:
    dtypes = (boolean, f8e4m3, f16, f32, f64, i8, i32, i64, u8)
    return next(t for t in dtypes if np.dtype(t.numpy) == value.dtype)[value.shape]


def expected(body: Body, shape: Shape, inputs: tuple[np.ndarray, ...], like: Any) -> np.ndarray:
    element = body(*inputs)
    result = np.empty(shape, like)
    for at in np.ndindex(*shape):
        result[at] = element(*at)
    return result


def ran(definition: ProgramDefinition, inputs: tuple[np.ndarray, ...], name: str) -> np.ndarray:
    """What compiled code for a processor makes of the one computation of a program."""
    target = None if name == "host" else name
    program, _ = scheduled(definition, target)
    (kernel,) = kernels_of(program).values()
    output = program.parameters[-1]
    result = np.zeros(output.shape, output.dtype.numpy)
    assert not loaded_for(kernel, name).run([*inputs, result], {})
    return result


@pytest.mark.parametrize("name", CASES)
def test_computations_are_what_their_functions_say(name: str) -> None:
    body, shape, inputs = CASES[name]
    definition = program_of(body, shape, inputs)
    result = definition(*inputs)
    np.testing.assert_array_equal(result, expected(body, shape, inputs, result.dtype))


@pytest.mark.parametrize("processor", [name for name in NAMES if name != "host"])
@pytest.mark.parametrize(
    "name", ["rows of five", "turned and not", "NCHW to NHWC", "concatenation", "alternating"]
)
def test_other_processors_compute_the_same(name: str, processor: str) -> None:
    body, shape, inputs = CASES[name]
    result = ran(program_of(body, shape, inputs), inputs, processor)
    np.testing.assert_array_equal(result, expected(body, shape, inputs, result.dtype))


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("rows of five", "avx512"),
        ("turned and not", "avx2"),
        ("some rows by data", "avx512"),
        ("concatenation of vectors", "avx512"),
        ("concatenation of rows", "sm_80"),
        ("joined", "sm_80"),
        ("turned and not", "sm_80"),
        ("rows of three", "sm_90a"),
        ("some elements by data", "sm_90a"),
    ],
)
def test_the_simulator_finds_nothing(name: str, target: str) -> None:
    body, shape, inputs = CASES[name]
    definition = program_of(body, shape, inputs)
    found = check(definition, inputs, target=target)
    assert [finding.message for finding in found if finding.severity != "note"] == []


def _blocked(shape: Shape, block: int) -> Any:
    n, c, h, w = shape
    return repeat(n, c // block, h, w) * repeat(1, block, 1, 1)


@pytest.mark.parametrize("block", [4, 8, 16, 24])
@pytest.mark.parametrize("sides", ["input", "output", "both"])
def test_images_in_blocks(sides: str, block: int) -> None:
    """What lies in blocks of channels is read and written where it lies."""
    shape = (2, 48, 5, 7)
    layout = _blocked(shape, block)
    x, y = array(*shape), array(*shape)
    definition = program_of(_sum, shape, (x, y))
    (computation,) = [call.callee for call in definition.ir.calls]
    assert isinstance(computation, Computation)
    x0, x1, out = computation.parameters
    laid = {
        tensor: replace(tensor, layout=layout)
        for tensor in ((x0,) if sides == "input" else (out,) if sides == "output" else (x0, out))
    }
    computation = replace(
        computation,
        parameters=tuple([laid.get(tensor, tensor) for tensor in (x0, x1, out)]),
        value=replace_tensors(computation.value, laid),
    )
    kernel = KernelDefinition.of(kernel_of(computation, machine()))
    np.testing.assert_array_equal(kernel(x, y), x + y)


def test_a_computation_writes_where_its_output_lies() -> None:
    layout = _blocked((2, 48, 5, 7), 16)

    @tc.program
    def twice(x: f32[2, 48, 5, 7], y: tc.out[f32[2, 48, 5, 7]]):
        laid = tc.empty(f32[2, 48, 5, 7].laid(layout))
        tc.compute(x.shape, lambda *at: x[at] + 1, out=laid)
        tc.compute(x.shape, lambda *at: laid[at] + laid[at], out=y)

    first, _ = (call.callee for call in twice.ir.calls)
    assert isinstance(first, Computation)
    assert first.output.layout == layout
    x = array(2, 48, 5, 7)
    np.testing.assert_array_equal(twice(x), 2 * x + 2)


def test_extents_of_a_call() -> None:
    n, m = tc.dim("n"), tc.dim("m", multiple=4)
    types = {"x": f32[n, m], "b": f32[3]}

    def several(x: Any, b: Any) -> Any:
        return {
            "joined": tc.compute((n, m), lambda i, j: x[i, j] + 1.0),
            "turned": tc.compute((m, n), lambda j, i: x[i, j] * 2.0),
            "short": tc.compute((n, 3), lambda i, j: x[i, 0] * b[j]),
            "half": tc.compute((n, m // 2), lambda i, j: x[n - 1 - i, 2 * j]),
        }

    definition = tc.trace("case", types, several)
    b = array(3)
    for shape in ((1, 4), (5, 20), (70, 36), (0, 4)):
        x = array(*shape)
        joined, turned, short, half = definition(x, b)
        np.testing.assert_array_equal(joined, x + 1)
        np.testing.assert_array_equal(turned, x.T * 2)
        np.testing.assert_array_equal(short, x[:, :1] * b)
        np.testing.assert_array_equal(half, x[::-1, ::2])


@pytest.mark.parametrize("name", ["rows by data", "some rows by data"])
def test_an_index_by_data_is_held_to_its_extent(name: str) -> None:
    body, shape, (x, ids) = CASES[name]
    definition = program_of(body, shape, (x, ids))
    wrong = ids.copy()
    wrong[3] = len(x)
    with pytest.raises(CheckError, match="an index of 'x0' is within its extent"):
        definition(x, wrong)


def test_what_is_used_in_many_places_is_computed_once() -> None:
    """Twenty sums of two halves are a million reads where none is named."""
    definition = tc.trace("case", {"x": f32[20]}, lambda x: tc.compute((20,), _halved(x)))
    x = array(20)
    np.testing.assert_array_equal(definition(x), np.where(np.arange(20) < 9, x, 0))


def test_equal_reads_are_turned_once() -> None:
    (kernel,) = kernels_of(scheduled(program_of(*CASES["turned, one twice"]))[0]).values()
    reads = [node.tensor.name for node in walk(kernel.body) if isinstance(node, Read)]
    assert sorted(name for name in reads if name.startswith("x")) == ["x0", "x1"]


def test_an_index_is_used_in_the_condition_that_it_is_under() -> None:
    """What both sides of an `and` read is read where that holds, too: its name comes before the condition's."""

    def body(table: Any, ids: Any) -> Any:
        @tc.function
        def element(i):  # type: ignore[no-untyped-def]
            at = ids[ids[i] % 7]
            return table[at - 1] if i < 38 and (at >= 1 and at < 6) else 0.0

        return tc.compute((40,), element)

    definition = tc.trace("case", {"table": f32[5], "ids": i64[40]}, body)
    table, ids = array(5), np.random.default_rng(0).integers(0, 40, 40)
    at = ids[ids % 7]
    expected = np.where(
        (np.arange(40) < 38) & (at >= 1) & (at < 6), table[np.clip(at - 1, 0, 4)], 0
    )
    np.testing.assert_array_equal(definition(table, ids), expected)


# --- random ones -------------------------------------------------------------------------------

EXTENTS = (1, 2, 3, 4, 5, 8, 16, 17, 20, 33)


class Generator:
    """A random function of indices, as text, and the inputs that it reads."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        rank = self.random.choice((1, 2, 2, 3, 3, 4))
        self.shape = tuple(self.random.choice(EXTENTS) for _ in range(rank))
        self.variables = "ijkl"[:rank]
        self.inputs: list[np.ndarray] = []
        self.text = self.value(self.random.randint(0, 3))

    def value(self, depth: int) -> str:
        if depth == 0:
            return self.read()
        kind = self.random.choice("++*-??")
        first, second = self.value(depth - 1), self.value(self.random.randrange(depth))
        if kind == "?":
            return f"({first} if {self.condition()} else {second})"
        return f"({first} {kind} {second})"

    def condition(self) -> str:
        if self.random.random() < 0.3:
            return f"{self.read()} > 3.0"
        axis = self.random.randrange(len(self.shape))
        sign = self.random.choice(("<", ">=", "=="))
        test = f"{self.variables[axis]} {sign} {self.random.randint(0, self.shape[axis])}"
        return f"({test} and {self.condition()})" if self.random.random() < 0.2 else test

    def read(self) -> str:
        axes = [axis for axis in range(len(self.shape)) if self.random.random() < 0.8]
        if self.random.random() < 0.3:
            self.random.shuffle(axes)
        indices, extents = [], []
        for axis in axes:
            text, extent = self.index(axis)
            indices.append(text)
            extents.append(extent)
        name = self.input(tuple(extents), 4)
        return f"{name}[{', '.join(indices)}]" if indices else f"{name}[()]"

    def input(self, shape: Shape, below: int, dtype: tc.DType = f32) -> str:
        self.inputs.append(array(*shape, dtype=dtype, below=below))
        return f"x{len(self.inputs) - 1}"

    def index(self, axis: int) -> tuple[str, int]:
        """An index along an axis of an input, and what extent that takes."""
        i, extent = self.variables[axis], self.shape[axis]
        kind = self.random.choice(("plain",) * 8 + ("shift", "back", "step", "%", "//", "data"))
        match kind:
            case "shift":
                return f"{i} + 2", extent + 3
            case "back":
                return f"{extent - 1} - {i}", extent
            case "step":
                return f"3 * {i} + 1", 3 * extent
            case "%":
                return f"{i} % 3", min(3, extent)
            case "//":
                return f"{i} // 2", (extent + 1) // 2
            case "data":
                return f"{self.input((extent,), 6, i64)}[{i}]", 6
        return i, extent

    def body(self, number: int) -> Body:
        names = ", ".join(f"x{n}" for n in range(len(self.inputs)))
        text = f"def body({names}):\n    return lambda {', '.join(self.variables)}: {self.text}\n"
        file = f"<random computation {number}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        names_of: dict[str, Any] = {}
        exec(compile(text, file, "exec"), names_of)
        made: Body = names_of["body"]
        return made


def _agrees(seed: int, *, simulated: bool = False) -> None:
    made = Generator(seed)
    body, inputs = made.body(seed), tuple(made.inputs)
    definition = program_of(body, made.shape, inputs)
    result = call(definition, inputs, {}, "sim") if simulated else definition(*inputs)
    wanted = expected(body, made.shape, inputs, result.dtype)
    np.testing.assert_array_equal(result, wanted, err_msg=made.text)


@pytest.mark.parametrize("seed", range(12))
def test_random_computations(seed: int) -> None:
    _agrees(seed, simulated=seed % 4 == 0)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(100, 600))
def test_more_random_computations(seed: int) -> None:
    _agrees(seed, simulated=seed % 5 == 0)


# --- texts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "target"),
    [("broadcast row", "avx512"), ("rows of three", "avx2"), ("turned and not", "sm_80")],
)
def test_texts(name: str, target: str, golden: Callable[[str, str], None]) -> None:
    body, shape, inputs = CASES[name]
    program, _ = scheduled(program_of(body, shape, inputs), target)
    (kernel,) = kernels_of(program).values()
    golden(f"schedule_{name.replace(' ', '_')}_{target}", to_text(kernel))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["no axis", "turned bool", "some rows by data"])
def test_gpus_have_code_without_spills(name: str, target: str) -> None:
    body, shape, inputs = CASES[name]
    for made in compile_ahead(program_of(body, shape, inputs), target):
        assert made.resources.spill_stores == 0
