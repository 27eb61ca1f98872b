"""Cubins for every architecture, without a GPU: what they take, and what is in them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import CompileError, bf16, device, f32, repeat, spatial
from taskc.backend.cache import Cache
from taskc.backend.cuda import compile as compiling
from taskc.backend.cuda.compile import (
    compile_kernel,
    compile_many,
    compile_source,
    disassembler,
    ptx_of,
    resources_of,
    sass_of,
)
from taskc.backend.cuda.compiled import CompiledCubin, TensorMap, count
from taskc.backend.cuda.emit import emit
from taskc.ir.target import TARGETS
from taskc.ir.types import DTYPES
from taskc.kernels.convolution import convolution
from taskc.kernels.matmul import Tiling, matmul as library_matmul
from taskc.kernels.rows import softmax
from taskc.passes.pipeline import lower
from taskc.runtime.driver import compile_ahead
from tests.backend.cuda import examples
from tests.backend.cuda.conftest import Start
from tests.lang.test_warpgroups import matmul, product
from tests.random_programs.generator import program as generate
from tests.random_programs.runner import parsed, small_machine

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")

FRAGMENT = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)

needs_nvdisasm = pytest.mark.skipif(disassembler() is None, reason="there is no nvdisasm")


@pytest.mark.parametrize("target", examples.TARGETS)
def test_examples_compile_without_spills(target: str) -> None:
    kernels = [kernel for name in examples.NAMES for kernel in examples.lean(name, target)]
    for kernel, made in zip(kernels, compile_many(kernels), strict=True):
        taken = made.resources
        assert made.cubin[:4] == b"\x7fELF"
        assert made.arch == target
        assert 0 < taken.registers <= 255
        assert (taken.spill_stores, taken.spill_loads, taken.stack) == (0, 0, 0), made.name
        assert made.shared <= TARGETS[target].shared_bytes
        assert not taken.remarks, (kernel.name, taken.remarks)
        assert CompiledCubin.from_bytes(made.to_bytes()) == made


def test_asynchronous_products_compile() -> None:
    made = compile_many([lower(product(bf16, f32, 256, 16, 32).ir), lower(matmul(129, 36, 200).ir)])
    for one in made:
        assert one.resources.spill_loads == 0
        assert not one.resources.serializes_products
    boxes = (TensorMap(0, "bf16", (128, 64), 128), TensorMap(1, "bf16", (32, 64), 128))
    assert set(made[1].maps) == {*boxes, TensorMap(2, "f32", (128, 32), 0)}
    assert [argument.kind for argument in made[1].arguments] == ["tensor"] * 3 + ["map"] * 3


def test_one_thread_prefetches_each_tensor_map() -> None:
    """At the start, before anything waits for a copy."""
    source = emit(lower(matmul(129, 36, 200).ir))
    words = [line.text.strip() for line in source.lines]
    at = words.index("if (worker == 0) {")
    first = min(at for at, text in enumerate(words) if "barrier" in text or "tma" in text)
    assert at < first
    names = [f"tc::tensor_map_prefetch(&{name}_map);" for name in ("a", "b", "c")]
    assert sorted(words[at + 1 : at + 4]) == names
    assert sum("prefetch" in text for text in words) == len(source.maps) == 3
    (saxpy,) = examples.lean("01_vector_add.py", "sm_90a")
    assert "prefetch" not in emit(saxpy).text()


@pytest.mark.parametrize(
    "size",
    [
        (4096, 4096, 4096), (8192, 8192, 1024), (2039, 2039, 2039), (128, 768, 3072),
        (2048, 2048, 512), (8192, 512, 2048),
    ],
    ids=str,
)  # fmt: skip
def test_large_products_are_not_serialized(size: tuple[int, int, int]) -> None:
    """What ptxas can't see through has each product wait for the one before, and ptxas says so."""
    definition = library_matmul(
        *size, dtype=bf16, total=f32, result=bf16, machine=tc.machine("sm_90a")
    )
    kernels = [lower(replace(kernel.ir, target="sm_90a")) for kernel in definition.kernels]
    made = compile_many(kernels)
    assert any("wgmma" in emit(kernel).text() for kernel in kernels)
    for one in made:
        assert (one.resources.remarks, one.resources.spill_loads) == ((), 0)


def test_loops_stay_where_unrolling_buys_nothing() -> None:
    """160 sigmoids in a row took 216 KB; sixteen are under way as it is."""
    own = repeat(2) * spatial(256)

    @tc.kernel(workers=256)
    def activate(x: f32[8, 10, 4096], y: tc.out[f32[8, 10, 4096]]):  # type: ignore[no-untyped-def]
        for image in tc.tiles(8, by=1):
            for channel in range(10):
                for first in range(0, 4096, 512):
                    for j in own:
                        value = x[image, channel, first + j]
                        y[image, channel, first + j] = value * tc.sigmoid(value)

    kernel = lower(replace(activate.ir, target="sm_80"))
    words = [line.text.split(" {")[0] for line in emit(kernel).lines]
    at = next(at for at, text in enumerate(words) if text.startswith("for (i32 channel"))
    assert words[at - 1] == "#pragma unroll 1"  # the compiler's own idea would be to copy it, too
    made = compile_kernel(kernel)
    assert len(made.cubin) < 1 << 16


@needs_nvdisasm
@pytest.mark.parametrize("dtype", [tc.f16, tc.f32], ids=str)
def test_accesses_at_offsets_of_64_bits_stay_whole(dtype: tc.DType) -> None:
    """Of so many rows that nobody knows how far the last one is."""
    kernel = softmax(tc.dim("rows"), 1024, dtype=dtype, machine=tc.machine("sm_90a"))
    text = sass_of(compile_kernel(lower(replace(kernel.ir, target="sm_90a"))).cubin)
    accesses = re.findall(r"\b(LDG|STG)([.\w]*)", text)
    assert {name for name, _ in accesses} == {"LDG", "STG"}
    assert all(".128" in kind for _, kind in accesses)


@pytest.mark.parametrize("target", examples.TARGETS)
def test_bits_of_all_types(target: str) -> None:
    def of_bits(dtype: tc.DType, same_size: tc.DType) -> tc.KernelDefinition:
        @tc.kernel(workers=32)
        def kernel(x: same_size[32], y: tc.out[dtype[4, 32]], z: tc.out[same_size[32]]):  # type: ignore[no-untyped-def, valid-type]
            for i in spatial(32):
                bits = x[i].bitcast(dtype)
                y[0, i] = tc.popcount(bits)
                y[1, i] = tc.leading_zeros(bits)
                y[2, i] = tc.trailing_zeros(bits)
                y[3, i] = tc.reverse_bits(bits)
                z[i] = (~bits).bitcast(same_size)

        return kernel

    scalars = [dtype for dtype in DTYPES.values() if not dtype.is_sub_byte]
    pairs = [
        (dtype, other)
        for dtype in scalars
        for other in scalars
        if dtype.is_integer and dtype.bits == other.bits and other is not tc.boolean
    ]
    kernels = [lower(replace(of_bits(*pair).ir, target=target)) for pair in pairs]
    for one in compile_many(kernels):
        assert (one.resources.remarks, one.resources.spill_loads) == ((), 0)


@needs_nvdisasm
def test_instructions_are_what_was_asked_for() -> None:
    (tensor_cores,) = examples.lean("03_matmul.py:tensor_cores", "sm_80")
    text = sass_of(compile_kernel(tensor_cores).cubin)
    assert "HMMA.16816.F32" in text
    assert "LDGSTS.E" in text  # cp.async
    text = sass_of(compile_kernel(lower(matmul(128, 64, 256).ir)).cubin)
    for word in ("HGMMA.64x32x16.F32.BF16", "UTMALDG.2D", "UTMASTG.2D", "SYNCS"):
        assert word in text
    assert len(re.findall(r"\bUTMACCTL\.PF\b", text)) == 3  # a tensor map each
    of_pixels = convolution(
        1, 7, 7, 64, 64, padding=1, machine=tc.machine("sm_90a"),
        tiling=Tiling(spatial(4, 1) * repeat(1, 8) * FRAGMENT, 64, 3, specialize=True),
    )  # fmt: skip
    (kernel,) = of_pixels.kernels
    text = sass_of(compile_kernel(lower(replace(kernel.ir, target="sm_90a"))).cubin)
    for word in ("HGMMA.64x64x16.F32", "UTMALDG.4D.IM2COL", "UTMASTG.2D"):
        assert word in text
    (add,) = examples.lean("01_vector_add.py", "sm_80")
    text = sass_of(compile_kernel(add).cubin)
    assert len(re.findall(r"LDG\.E\.128", text)) == 2
    assert len(re.findall(r"STG\.E\.128", text)) == 1


def test_what_others_have_written_is_read_again() -> None:
    """The compiler knows that no worker stores what it reads itself; its neighbour does, before the barrier."""

    @tc.kernel(workers=64)
    def shifted(x: tc.inout[f32[65]], y: tc.out[f32[64]]):
        before = tc.tile(f32, spatial(64))
        for i in spatial(64):
            before[i] = x[i]
        for i in spatial(64):
            x[i + 1] = before[i]
        for i in spatial(64):
            y[i] = x[i] + before[i]

    text = ptx_of(emit(lower(replace(shifted.ir, target="sm_90a"))))
    found = re.findall(r"bar\.sync|(?:ld|st)\.global", text.replace("barrier.sync", "bar.sync"))
    assert found == ["ld.global", "bar.sync", "st.global", "bar.sync", "ld.global", "st.global"]


def test_registers_are_handed_over() -> None:
    @tc.cuda.kernel(workers=384)
    def kernel(x: f32[384], y: tc.out[f32[384]]):
        w = tc.worker()
        with tc.cuda.roles():
            with tc.cuda.role("few", warps=4):
                tc.cuda.setmaxnreg(24)
                y[w] = x[w]
            with tc.cuda.role("many", warps=8):
                tc.cuda.setmaxnreg(240)
                y[w] = x[w] + 1.0

    source = emit(lower(replace(kernel.ir, target="sm_90a")))
    text = source.text()
    assert "tc::give_up_registers<24>();" in text
    assert "tc::take_registers<240>();" in text
    made = compile_source(source)
    assert not made.resources.ignores_setmaxnreg
    if disassembler() is not None:
        assert "USETMAXREG" in sass_of(made.cubin)


def test_what_is_refused_is_named_by_its_line() -> None:
    @tc.cuda.kernel(workers=32)
    def kernel(x: f32[32], y: tc.out[f32[32]]):
        for i in spatial(32):
            y[i] = tc.cuda.ptx(f32, "nonsense.f32 %0, %1;", x[i], meaning=lambda x: x)

    source = emit(lower(replace(kernel.ir, target="sm_80")))
    (line,) = (line for line in source.lines if "tc::ptx" in line.text)
    with pytest.raises(CompileError, match=r"ptxas refuses kernel: .*nonsense") as caught:
        compile_source(source)
    assert caught.value.location.line == line.loc.line
    assert Path(caught.value.location.file) == Path(__file__)
    wrong = replace(line, text=line.text.replace("tc::ptx", "tc::ptz"))
    lines = tuple([wrong if one is line else one for one in source.lines])
    with pytest.raises(CompileError, match=r"NVRTC refuses kernel: .*ptz") as caught:
        compile_source(replace(source, lines=lines))
    assert caught.value.location.line == line.loc.line
    assert Path(caught.value.location.file) == Path(__file__)


def test_a_cubin_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = replace(examples.definition("07_histogram.py").ir, target="sm_80")  # type: ignore[type-var]
    cache = Cache(tmp_path / "cuda")
    first = compiling.compiled(kernel, lower, cache, "1")

    def never(lean: Any) -> CompiledCubin:
        raise AssertionError("it is compiled again")

    monkeypatch.setattr(compiling, "compile_kernel", never)
    assert compiling.compiled(kernel, lower, cache, "1") == first
    for other in (lambda: (kernel, "2"), lambda: (replace(kernel, target="sm_89"), "1")):
        changed, version = other()
        with pytest.raises(AssertionError, match="compiled again"):
            compiling.compiled(changed, lower, cache, version)


def test_a_call_finds_what_was_compiled_ahead(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKC_CACHE", str(tmp_path))
    (kernel,) = examples.definition("02_transpose.py:transpose").kernels
    (made,) = compile_ahead(kernel, "sm_89")
    taken = made.resources
    assert taken.registers > 0
    monkeypatch.setattr(compiling, "compile_kernel", None)
    x = np.zeros(tuple(map(int, kernel.ir.parameters[0].shape)), np.float32)
    fake = start(capability=(8, 9))
    fake.arguments_of = {"transpose": 2}
    kernel(device.array(x))
    assert [launch["name"] for launch in fake.launches] == ["transpose"]


def test_without_nvrtc_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling._nvrtc.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(CompileError, match="NVRTC, which can't be loaded") as caught:
        compiling.nvrtc_version()
    compiling._nvrtc.cache_clear()
    assert caught.value.hint is not None
    assert "pip install 'cuda-python==13.0.*'" in caught.value.hint


def test_the_assemblers_words() -> None:
    taken = resources_of(
        "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum"
        " register requirements.\nptxas info    : 0 bytes gmem\n"
        "ptxas info    : Function properties for kernel\n"
        "    24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 3 barriers, 24 bytes cumulative stack size, 64 bytes smem\n"
    )
    assert (taken.registers, taken.stack, taken.spill_stores, taken.spill_loads) == (
        168,
        24,
        16,
        20,
    )
    assert (taken.barriers, taken.shared) == (3, 64)
    assert taken.ignores_setmaxnreg


def test_the_grid_is_computed_at_the_launch() -> None:
    (add,) = examples.lean("01_vector_add.py", "sm_80")
    blocks = emit(add).blocks  # each of eight small ones
    assert [count(blocks, [n]) for n in (0, 1, 1024, 1025, 1 << 40)] == [0, 1, 1, 2, 1 << 30]


def check_programs(numbers: range) -> None:
    kernels = []
    for number in numbers:
        kernel = parsed(generate(11, number), f"<program {number}>")
        target = examples.TARGETS[number % 3]
        if kernel.target == "sm_90a" or not kernel.target.startswith("sm_"):
            target = "sm_90a"
        with small_machine():
            kernels.append(lower(replace(kernel, target=target)))
    compile_many(kernels)


def test_random_programs_compile() -> None:
    check_programs(range(9))


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(9, 309, 30))
def test_more_random_programs_compile(first: int) -> None:
    check_programs(range(first, first + 30))


@pytest.mark.parametrize(
    "name", ["01_vector_add.py", "03_matmul.py:tensor_cores", "07_histogram.py"]
)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    (kernel,) = examples.lean(name, "sm_80")
    text = emit(kernel).text(with_places=False)
    golden(f"cuda/{kernel.name}", text[text.index('extern "C"') :])


def test_lines_are_those_of_python() -> None:
    (kernel,) = examples.lean("01_vector_add.py", "sm_80")
    lines = emit(kernel).text().splitlines()
    (at,) = (i for i, line in enumerate(lines) if "x_lanes[s] + y_lanes[s]" in line)
    found = re.fullmatch(r'#line (\d+) ".*01_vector_add.py"', lines[at - 1])
    assert found is not None
    source = (examples.FOLDER / "01_vector_add.py").read_text().splitlines()
    assert "x[start + i] + y[start + i]" in source[int(found[1]) - 1]


@pytest.mark.parametrize("arch", ["sm_86", "sm_87", "sm_120a"])
def test_newer_rows_compile_without_spills(arch: str) -> None:
    """A product by mma.sync, and rows of reductions."""
    machine = tc.machine(arch)
    for kernel in (
        library_matmul(300, 200, 130, dtype=bf16, total=f32, result=bf16, machine=machine),
        softmax(33, 1000, dtype=f32, machine=machine),
    ):
        (made,) = compile_ahead(kernel, arch)
        assert made.arch == arch
        assert made.shared <= TARGETS[arch].shared_bytes
        taken = made.resources
        assert (taken.spill_stores, taken.spill_loads, taken.remarks) == (0, 0, ())
