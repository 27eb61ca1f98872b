"""How the compiler's work grows with a kernel: in calls of Python functions, which no other load changes."""

from __future__ import annotations

import importlib.util
import linecache
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import taskc as tc
from taskc import CompileError
from taskc.backend.cpu.compile import llvm_text
from taskc.backend.cpu.processor import host, typical
from taskc.backend.cuda.emit import emit
from taskc.backend.sim import run
from taskc.ir import code_size, nodes as ir, parse, to_text
from taskc.ir.mapping import Mapping
from taskc.ir.mapping_forms import MappingError
from taskc.ir.rewrite import walk
from taskc.lang.definition import KernelDefinition
from taskc.passes.pipeline import lower
from taskc.passes.prove import prove
from tests.counting import calls

_numbers = count()


def made(
    path: Path, body: list[str], parameters: str = "x: f32[16], y: tc.out[f32[16]]"
) -> ir.Kernel:
    """The kernel of 16 workers with these lines, which each stand at the top level of its body."""
    lines = ["import taskc as tc", "from taskc import *", "@tc.kernel(workers=16)"]
    lines += [f"def k({parameters}):", *(f"    {line}" for line in body)]
    name = f"growing_{next(_numbers)}"
    file = path / f"{name}.py"
    file.write_text("\n".join(lines) + "\n")
    specification = importlib.util.spec_from_file_location(name, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    kernel = module.k.ir
    linecache.cache.pop(str(file), None)  # other tests' sources stay
    assert isinstance(kernel, ir.Kernel)
    return kernel


def each(body: list[str]) -> list[str]:
    return ["for i in spatial(16):", *(f"    {line}" for line in body)]


def all_of_it(kernel: ir.Kernel) -> None:
    """Everything but LLVM and NVRTC."""
    lean = lower(kernel)
    llvm_text(lean, host())
    emit(lean)
    zeros = [
        np.zeros([size for size in tensor.shape if isinstance(size, int)], tensor.dtype.numpy)
        for tensor in kernel.parameters
        if isinstance(tensor, ir.Tensor)
    ]
    run(kernel, zeros)


def names_of_floats(n: int) -> list[str]:
    lines = [f"t{j} = t{j - 1} + t{j - 1} * 0.5" for j in range(1, n)]
    return each(["t0 = x[i]", *lines, f"y[i] = t{n - 1}"])


def names_of_indices(n: int) -> list[str]:
    lines = [f"t{j} = (t{j - 1} + t{j - 1} // 2) % 16" for j in range(1, n)]
    return each(["t0 = i", *lines, f"y[i] = x[t{n - 1}]"])


def names_of_sums(n: int) -> list[str]:
    lines = [f"t{j} = (t{j - 1} + t{j - 1}) % 16" for j in range(1, n)]
    return each(["t0 = i", *lines, f"y[i] = x[t{n - 1}]"])


def names_of_conditions(n: int) -> list[str]:
    lines = [f"t{j} = t{j - 1} and x[i] < {j}.0 or t{j - 1}" for j in range(1, n)]
    return each(["t0 = i < 3", *lines, f"y[i] = 1.0 if t{n - 1} else 0.0"])


@pytest.mark.parametrize(
    "body", [names_of_floats, names_of_indices, names_of_sums, names_of_conditions]
)
def test_names_that_use_the_one_before_twice(
    tmp_path: Path, body: Callable[[int], list[str]]
) -> None:
    all_of_it(made(tmp_path, body(2)))  # what is loaded and cached once
    few = calls(lambda: all_of_it(made(tmp_path, body(25))))
    many = calls(lambda: all_of_it(made(tmp_path, body(50))))
    assert many < 2.5 * few


def test_what_is_emitted_for_such_names_is_as_long_as_they_are_many(tmp_path: Path) -> None:
    few, many = (lower(made(tmp_path, names_of_indices(n))) for n in (20, 40))
    assert len(str(emit(many))) < 2.2 * len(str(emit(few)))
    assert len(list(walk(many.body))) < 2.2 * len(list(walk(few.body)))


def sum_of(n: int) -> list[str]:
    return each([f"y[i] = {' + '.join(['x[i]'] * n)}"])


def sum_of_products(n: int) -> list[str]:
    return each([f"y[i] = {' + '.join(['x[i] * x[i]'] * n)}"])


def all_different(n: int) -> list[str]:
    conditions = " and ".join(f"x[i] != {j}.5" for j in range(n))
    return each([f"y[i] = 1.0 if {conditions} else 0.0"])


def one_of(n: int) -> list[str]:
    conditions = " or ".join(f"i == {3 * j}" for j in range(n))
    return each([f"y[i] = 1.0 if {conditions} else 0.0"])


def chain_of_names(n: int) -> list[str]:
    lines = [f"t{j} = (t{j - 1} * 3 + 1) % 16" for j in range(1, n)]
    return each(["t0 = i", *lines, f"y[i] = x[t{n - 1}]"])


def elifs(n: int) -> list[str]:
    lines = ["if x[i] < 0.0:", "    y[i] = 0.0"]
    for j in range(1, n):
        lines += [f"elif x[i] < {j}.0:", f"    y[i] = {j}.0"]
    return each([*lines, "else:", "    y[i] = -1.0"])


LONG = [
    (sum_of, 400),
    (sum_of_products, 400),
    (all_different, 500),
    (one_of, 500),
    (chain_of_names, 600),
    (elifs, 300),
]


@pytest.mark.parametrize(("body", "n"), LONG)
def test_what_is_long_is_not_too_deep(
    tmp_path: Path, body: Callable[[int], list[str]], n: int
) -> None:
    kernel = made(tmp_path, body(n))
    assert to_text(parse(to_text(kernel))) == to_text(kernel)
    lean = lower(kernel)
    llvm_text(lean, host())
    emit(lean)
    x = np.arange(16, dtype=np.float32)
    few, many = np.zeros(16, np.float32), np.zeros(16, np.float32)
    run(kernel, [x, few])
    run(lean, [x, many])
    assert np.array_equal(few, many)
    assert sys.getrecursionlimit() < code_size.CALLS


def test_long_kernels_run(tmp_path: Path) -> None:
    x = np.arange(16, dtype=np.float32)
    for body, n, expected in (
        (sum_of, 400, 400 * x),
        (all_different, 50, np.ones(16, np.float32)),
        (elifs, 50, x + 1),
    ):
        definition = KernelDefinition(made(tmp_path, body(n)), {})
        assert np.array_equal(definition(x), expected)


@pytest.mark.parametrize("body", [sum_of, all_different, chain_of_names])
def test_what_is_long_takes_time_for_its_length(
    tmp_path: Path, body: Callable[[int], list[str]]
) -> None:
    lower(made(tmp_path, body(2)))
    few = calls(lambda: lower(made(tmp_path, body(60))))
    assert calls(lambda: lower(made(tmp_path, body(120)))) < 2.8 * few


def test_a_chain_of_choices_takes_time_for_its_length(tmp_path: Path) -> None:
    def texts(n: int) -> int:
        kernel = made(tmp_path, elifs(n))
        return calls(lambda: llvm_text(lower(kernel), host()))

    texts(2)
    assert texts(200) < 2.3 * texts(100)


def test_what_python_calls_is_as_long_as_the_outputs_are_many(tmp_path: Path) -> None:
    def lines(n: int) -> int:
        outputs = ", ".join(f"y{j}: tc.out[f32[16]]" for j in range(n))
        stores = each([f"y{j}[i] = x[i] + {j}.0" for j in range(n)])
        kernel = made(tmp_path, stores, f"x: f32[16], {outputs}")
        return llvm_text(lower(kernel), host())[0].count("\n")

    assert lines(80) < 2.2 * lines(40)


def test_halves_of_and_are_evaluated_from_left_to_right(tmp_path: Path) -> None:
    """Each right side is evaluated only where what is before it holds."""
    guards = [f"i < {n}" for n in range(16, 4, -1)]
    lines = each([f"y[i] = 1.0 if {' and '.join([*guards, 'x[i + 11] > 3.0'])} else 0.0"])
    prove(made(tmp_path, lines))
    late = each([f"y[i] = 1.0 if {' and '.join(['x[i + 11] > 3.0', *guards])} else 0.0"])
    with pytest.raises(CompileError, match="is outside `x`"):
        prove(made(tmp_path, late))


def test_what_is_nested_too_deeply_is_told_where_it_stands(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="this is nested too deeply") as told:
        made(tmp_path, sum_of(2500))
    assert told.value.location.line == 6
    assert told.value.hint is not None
    head = "kernel k(x: f32[4], y: out f32[4]) workers=1 stage=parsed:\n    "
    for deep in (f"y[0] = {'(' * 4000}x[0]{')' * 4000}", f"y[0] = {'-' * 4000}x[0]"):
        with pytest.raises(CompileError, match="this is nested too deeply") as told:
            parse(f"{head}{deep}\n")
        assert (told.value.location.line, told.value.location.column) == (2, 5)
    with pytest.raises(MappingError, match="this chain is too long to be read"):
        Mapping.parse("spatial(2)" + ".repeat(1)" * 3000)


def test_a_pass_that_goes_too_deep_tells_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = made(tmp_path, sum_of(400))
    lean = lower(kernel)
    monkeypatch.setattr(code_size, "CALLS", 1000)
    doors: tuple[Callable[[], object], ...] = (lambda: lower(kernel), lambda: emit(lean))
    for door in doors:
        with pytest.raises(CompileError, match="this is nested too deeply") as told:
            door()
        assert told.value.location == kernel.loc


def choices(n: int, other: str = "{0} + i") -> list[str]:
    lines = []
    for j in range(n):
        lines += [f"if p < {j + 3}:", "    for i in spatial(16):", f"        y[{16 * j} + i] = 1.0"]
        place = other.format(16 * j)
        lines += ["else:", "    for i in spatial(16):", f"        y[{place}] = 2.0"]
    return lines


@pytest.mark.parametrize("other", ["{0} + i", "{0} + 15 - i"])
def test_conditions_that_choose_what_fills_a_part_of_an_output(tmp_path: Path, other: str) -> None:
    few, many = (
        made(tmp_path, choices(n, other), f"p: i32, y: tc.out[f32[{16 * n}]]") for n in (8, 16)
    )
    calls(lambda: prove(few))
    assert calls(lambda: prove(many)) < 4 * calls(lambda: prove(few))


def test_sides_that_take_different_loops_to_fill_a_part(tmp_path: Path) -> None:
    lines = []
    for j in range(16):
        lines += [f"if p < {j}:", "    for i in spatial(16):"]
        lines += [f"        y[{32 * j} + i] = 1.0", f"        y[{32 * j + 16} + i] = 1.0", "else:"]
        lines += ["    for i in repeat(2) * spatial(16):", f"        y[{32 * j} + i] = 2.0"]
    kernel = made(tmp_path, lines, "p: i32, y: tc.out[f32[512]]")
    calls(lambda: prove(kernel))


def test_conditions_that_choose_in_too_many_ways(tmp_path: Path) -> None:
    """What is stored in no boxes is counted, for each combination."""

    def strided(n: int) -> ir.Kernel:
        lines = []
        for j in range(n):
            loop = ["    for i in spatial(16):", f"        y[i * {n} + {j}] = {j}.0"]
            lines += [f"if p < {j + 3}:", *loop, "else:", *loop]
        return made(tmp_path, lines, f"p: i32, y: tc.out[f32[{16 * n}]]")

    prove(strided(3))
    many = strided(7)
    with pytest.raises(CompileError, match="choose between its stores in more than 64 ways"):
        calls(lambda: prove(many))


def scanned(slots: int) -> ir.Kernel:
    own = tc.spatial(16) * tc.repeat(slots)

    @tc.kernel(workers=16)
    def sums(x: tc.f32[16 * slots], y: tc.out[tc.f32[16 * slots]]):
        t = tc.tile(tc.f32, own, 0)
        tc.copy(t, x[0 : 16 * slots])
        tc.store(y[0 : 16 * slots], tc.scan(t, 0, "+"))

    assert isinstance(sums.ir, ir.Kernel)
    return sums.ir


def copied(slots: int) -> ir.Kernel:
    own = tc.spatial(16) * tc.repeat(slots)

    @tc.kernel(workers=16)
    def copy(x: tc.f32[16 * slots], y: tc.out[tc.f32[16 * slots]]):
        t = tc.tile(tc.f32, own, 0)
        tc.copy(t, x[0 : 16 * slots])
        tc.store(y[0 : 16 * slots], t)

    assert isinstance(copy.ir, ir.Kernel)
    return copy.ir


def filled(size: int) -> ir.Kernel:
    @tc.kernel(workers=16)
    def kernel(x: tc.f32[16], y: tc.out[tc.f32[16]]):
        for i in tc.spatial(16):
            own = tc.local(tc.f32[size], 0)
            for q in range(size):
                own[q] = x[i] + 1.0
            y[i] = own[size - 1] + own[0]

    assert isinstance(kernel.ir, ir.Kernel)
    return kernel.ir


def sorting(steps: int) -> ir.Kernel:
    """Phases of a bitonic sort: 32 tasks a worker each."""
    pairs = tc.repeat(32) * tc.spatial(16)

    @tc.kernel(workers=16)
    def sort(x: tc.f32[1024], y: tc.out[tc.f32[1024]]):
        s = tc.shared(tc.f32[1024])
        tc.copy(s, x[0:1024])
        for j in tc.static([2 ** (k % 10) for k in range(steps)]):
            for p in pairs:
                low = p // j * (2 * j) + p % j
                a, b = s[low], s[low + j]
                if (a > b) == (low & 4 == 0):
                    s[low] = b
                    s[low + j] = a
        tc.store(y[0:1024], s)

    assert isinstance(sort.ir, ir.Kernel)
    return sort.ir


@pytest.mark.parametrize("target", ["avx512", "avx2", "sse2"])
@pytest.mark.parametrize(
    ("make", "sizes"), [(scanned, (256, 4096)), (copied, (64, 512)), (filled, (500, 16000))]
)
def test_code_for_a_processor_is_bounded_however_much_a_worker_holds(
    make: Callable[[int], ir.Kernel], sizes: tuple[int, int], target: str
) -> None:
    texts = [llvm_text(lower(make(size)), typical(target))[0] for size in sizes]
    assert texts[1].count("\n") < 1.2 * texts[0].count("\n") + 100


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_code_for_a_processor_is_bounded_however_many_phases_there_are(target: str) -> None:
    _, emitter = llvm_text(lower(sorting(6)), typical(target))
    assert emitter.builder.weight(0) < 12_000


def test_loops_that_are_partly_written_out_compute_the_same() -> None:
    own = tc.spatial(16) * tc.repeat(200)

    @tc.kernel(workers=16)
    def sums(x: tc.f32[3200], y: tc.out[tc.f32[3200]]):
        t = tc.tile(tc.f32, own, 0)
        tc.copy(t, x[0:3200])
        tc.store(y[0:3200], tc.scan(t, 0, "+"))

    x = np.arange(3200, dtype=np.float32) % 7
    assert np.array_equal(sums(x), np.cumsum(x))


def one_array(n: int) -> list[str]:
    step = each(["s[i] = s[i] + 1.0"])
    first, last = each(["s[i] = x[i]"]), each(["y[i] = s[i]"])
    return ["s = tc.shared(f32[16])", *first, *step * n, *last]


def two_arrays(n: int) -> list[str]:
    step = [*each(["r[i] = s[15 - i] + 1.0"]), *each(["s[i] = r[15 - i] * 0.5"])]
    shared = ["s = tc.shared(f32[16])", "r = tc.shared(f32[16])"]
    return [*shared, *each(["s[i] = x[i]"]), *step * n, *each(["y[i] = s[i]"])]


@pytest.mark.parametrize("body", [one_array, two_arrays])
def test_phases_are_ordered_in_time_that_grows_with_their_number(
    tmp_path: Path, body: Callable[[int], list[str]]
) -> None:
    lower(made(tmp_path, body(1)))
    few = calls(lambda: lower(made(tmp_path, body(40))))
    assert calls(lambda: lower(made(tmp_path, body(80)))) < 2.2 * few
