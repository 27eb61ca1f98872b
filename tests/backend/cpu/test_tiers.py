"""Quick code, and full code that replaces it: equal bits, whenever it happens."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f16, f32, i8, repeat, spatial
from taskc.backend.cpu import tiers
from taskc.backend.cpu.compile import CompiledObject, LoadedKernel, compile_kernel, llvm_text
from taskc.backend.cpu.processor import host, typical
from taskc.ir.signature import outputs_of
from taskc.kernels.attention import attention
from taskc.kernels.convolution import convolution
from taskc.kernels.matmul import batch_matmul, matmul
from taskc.kernels.rows import layer_norm, softmax
from taskc.kernels.transpose import transpose
from taskc.passes.pipeline import lower
from taskc.runtime.targets import kernel_cache
from tests.backend.cpu.test_products import product

KERNELS = {
    "matmul": lambda: matmul(37, 65, 41),
    "few rows": lambda: matmul(3, 130, 67),
    "half": lambda: matmul(19, 33, 20, dtype=f16),
    "bf16": lambda: matmul(19, 33, 20, dtype=bf16),
    "bytes": lambda: matmul(19, 33, 20, dtype=i8),
    "batches": lambda: batch_matmul(3, 17, 9, 21, activation=tc.gelu),
    "convolution": lambda: convolution(1, 9, 11, 5, 17, padding=1, dtype=f32),
    "softmax": lambda: softmax(7, 133),
    "transpose": lambda: transpose((35, 50)),
    "layer norm": lambda: layer_norm(5, 77),
    "attention": lambda: attention(1, 2, 19, 23, 32),
}
PROCESSORS = ("avx512_vnni", "avx2", "sse2", "neon")


def kernels_of(name: str) -> list[Any]:
    return [kernel.ir for kernel in KERNELS[name]().kernels]


def code_of(kernel: Any, *, is_quick: bool) -> CompiledObject:
    lean = lower(replace(kernel, target=host().target))
    return compile_kernel(lean, host(), is_quick=is_quick)


def run(loaded: LoadedKernel) -> list[bytes]:
    """The outputs' bits for the same random arguments."""
    parameters = loaded.kernel.parameters
    random = np.random.default_rng(7)
    values = [
        random.standard_normal(p.shape).astype(p.dtype.numpy)
        if p.dtype.is_float
        else random.integers(-9, 9, p.shape).astype(p.dtype.numpy)
        for p in parameters
    ]
    assert loaded.run(values, {}) == 0
    outputs = {tensor.name for tensor in outputs_of(parameters)}
    pairs = zip(parameters, values, strict=True)
    return [value.tobytes() for parameter, value in pairs if parameter.name in outputs]


@pytest.mark.parametrize("name", KERNELS)
def test_bits_are_equal(name: str) -> None:
    for kernel in kernels_of(name):
        quick, full = (code_of(kernel, is_quick=is_quick) for is_quick in (True, False))
        assert not full.text
        if not quick.text:  # a processor with AMX multiplies bf16 and i8 in tiles
            assert host().target == "avx512_amx"
            assert quick == full
            continue
        assert quick.code != full.code
        loaded = LoadedKernel(kernel, quick, stays_quick=True)
        expected = run(LoadedKernel(kernel, full))
        assert run(loaded) == expected
        loaded.complete()
        assert loaded.compiled == full
        assert run(loaded) == expected


@pytest.mark.parametrize("target", PROCESSORS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_processor_has_quick_code(name: str, target: str) -> None:
    for kernel in kernels_of(name):
        lean = lower(replace(kernel, target=target))
        assert compile_kernel(lean, typical(target), is_quick=True).code


def test_tiles_have_no_quick_code() -> None:
    for target, has_quick in (("avx512_amx", False), ("avx512_bf16", True)):
        kernel = product(repeat(16, 1) * spatial(1, 16), 16, 16, 32, bf16, bf16, f32)
        lean = lower(replace(kernel.ir, target=target))
        text, _ = llvm_text(lean, typical(target))
        assert ("@llvm.x86.t" not in text) == tiers.has_quick(lean) == has_quick
        assert bool(compile_kernel(lean, typical(target), is_quick=True).text) == has_quick


def test_quick_code_of_a_large_kernel_allocates_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, each of its values would have a place on the stack."""
    kernel = kernels_of("softmax")[-1]
    small = code_of(kernel, is_quick=True)
    monkeypatch.setattr(tiers, "_FRAME", 1 << 20)
    large = code_of(kernel, is_quick=True)
    assert large.text == small.text
    assert len(large.code) < len(small.code)
    full = LoadedKernel(kernel, code_of(kernel, is_quick=False))
    assert run(LoadedKernel(kernel, large, stays_quick=True)) == run(full)


@pytest.mark.parametrize("name", ["matmul", "attention"])
def test_an_object_keeps_its_text(name: str) -> None:
    """Full code from the text is the same as from the kernel itself."""
    kernel = kernels_of(name)[-1]
    quick = code_of(kernel, is_quick=True)
    kept = CompiledObject.from_bytes(quick.to_bytes())
    assert kept == quick
    assert kept.lean is None
    loaded = LoadedKernel(kernel, kept, stays_quick=True)
    loaded.complete()
    assert loaded.compiled == code_of(kernel, is_quick=False)


def test_loops_stay_loops_in_quick_code() -> None:
    """The text of a convolution doesn't grow with its register tile."""
    lean = lower(replace(kernels_of("convolution")[-1], target="avx512"))
    quick, full = (
        llvm_text(lean, typical("avx512"), is_quick=is_quick)[0].count("\n")
        for is_quick in (True, False)
    )
    assert 2 * quick < full


@tc.kernel(workers=1)
def checked(x: f32[4], y: tc.out[f32[4]]) -> None:
    for _ in spatial(1):
        for i in tc.range(4, unroll=True):
            if i < 2:
                assert x[i] > 0.0, "first half"
            else:
                tc.print("at {}", i)
                assert x[i] < 0.0, "second half"
            y[i] = x[i]


@pytest.mark.parametrize("is_read", [False, True])
def test_assertions_and_prints_have_the_same_numbers(
    is_read: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Full code may fail in a call that began with quick code's list of assertions."""
    quick = code_of(checked.ir, is_quick=True)
    kept = replace(quick, lean=None) if is_read else quick
    loaded = LoadedKernel(checked.ir, kept, stays_quick=True)
    results = []
    for is_quick in (True, False):
        if not is_quick:
            loaded.complete()
        for x in ((1, 1, -1, 1), (-1, 1, -1, -1)):
            number = loaded.run([np.array(x, "f"), np.zeros(4, "f")], {})
            results.append(quick.asserts[number - 1][0])
        results.append(capsys.readouterr().out)
    assert results == ["second half", "first half", "at 2\nat 3\n"] * 2
    assert loaded.compiled.asserts == quick.asserts


def test_full_code_that_needs_more_scratch_is_for_the_next_process() -> None:
    """Callers of quick code pass as much as that needs."""
    quick = code_of(doubled.ir, is_quick=True)
    loaded = LoadedKernel(doubled.ir, replace(quick, scratch=-1), stays_quick=True)
    loaded.complete()
    assert loaded.compiled.text


@tc.kernel(workers=16)
def doubled(x: f32[1 << 14], y: tc.out[f32[1 << 14]]) -> None:
    for (block,) in tc.tiles((1 << 14,), by=(256,)):
        for (i,) in repeat(16) * spatial(16):
            y[block + i] = x[block + i] * 2.0


@tc.kernel(workers=16)
def tripled(x: f32[1 << 14], y: tc.out[f32[1 << 14]]) -> None:
    for (block,) in tc.tiles((1 << 14,), by=(256,)):
        for (i,) in repeat(16) * spatial(16):
            y[block + i] = x[block + i] * 3.0


def test_full_code_is_what_runs() -> None:
    """Shown by full code that is another kernel's."""
    text = code_of(tripled.ir, is_quick=True).text
    quick = replace(code_of(doubled.ir, is_quick=True), text=text, lean=None)
    loaded = LoadedKernel(doubled.ir, quick, stays_quick=True)
    x, y = np.arange(1 << 14, dtype=np.float32), np.zeros(1 << 14, np.float32)
    loaded.run([x, y], {})
    assert np.array_equal(y, 2 * x)
    call = loaded.entry(lambda *args: 1 / 0, lambda number: None)
    assert call is not None
    loaded.complete()
    loaded.run([x, y], {})
    assert np.array_equal(y, 3 * x)
    del loaded
    assert np.array_equal(call(x), 3 * x)


def test_code_is_replaced_while_it_runs() -> None:
    """Calls from two threads see one result, before, while and after the code is replaced."""
    quick = code_of(doubled.ir, is_quick=True)
    x = np.arange(1 << 14, dtype=np.float32)
    for _ in range(20):
        loaded = LoadedKernel(doubled.ir, quick, stays_quick=True)
        ended, wrong = threading.Event(), []

        def call(loaded: LoadedKernel = loaded, ended: Any = ended, wrong: Any = wrong) -> None:
            while not ended.is_set():
                y = np.zeros_like(x)
                loaded.run([x, y], {})
                if not np.array_equal(y, 2 * x):
                    wrong.append(y)

        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        loaded.complete()
        ended.set()
        for thread in threads:
            thread.join()
        assert not wrong


def test_a_failure_is_reported(monkeypatch: Any, caplog: Any) -> None:
    quick = code_of(doubled.ir, is_quick=True)
    monkeypatch.setattr(LoadedKernel, "complete", lambda self: 1 / 0)
    loaded = LoadedKernel(doubled.ir, quick)
    with pytest.raises(ZeroDivisionError):
        tiers.finish()
    assert "goes on in quick code" in caplog.text
    tiers.finish()
    run(loaded)


# --- In processes that have both tiers ----------------------------------------------------------

_CALL = """
import numpy as np, taskc as tc
from taskc.kernels.matmul import matmul
from taskc.backend.cpu import tiers
kernel = matmul(37, 65, 41)
a = np.arange(37 * 41, dtype=np.float32).reshape(37, 41) % 7
b = np.arange(41 * 65, dtype=np.float32).reshape(41, 65) % 5
assert np.array_equal(kernel(a, b), a @ b)
"""


def python(code: str, folder: Path, **variables: str) -> str:
    folder.mkdir(mode=0o700, exist_ok=True)
    environment = {**os.environ, "TASKC_CACHE": str(folder), **variables}
    if "TASKC_TIER" not in variables:
        del environment["TASKC_TIER"]
    script = folder.with_name("script.py")
    script.write_text(code)
    command = [sys.executable, str(script)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    return f"{ended.returncode} {ended.stdout}{ended.stderr}".strip()


def entries(folder: Path, monkeypatch: Any) -> list[CompiledObject]:
    """The kernels in a cache."""
    monkeypatch.setenv("TASKC_CACHE", str(folder))
    names = sorted(path.name for path in (folder / "cpu").iterdir())
    contents = [kernel_cache().get(name) for name in names]
    return [CompiledObject.from_bytes(c) for c in contents if c and c.startswith(b"{")]


def test_a_process_that_ends_early_leaves_quick_code(tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "cache"
    # The thread waits while another call compiles, here for ever.
    assert python(f"from taskc.backend.cpu import tiers\ntiers._GRACE = 99\n{_CALL}", folder) == "0"
    assert [bool(code.text) for code in entries(folder, monkeypatch)] == [True]
    assert (
        python(
            f"{_CALL}\ntc.finish_compiling()\nassert np.array_equal(kernel(a, b), a @ b)", folder
        )
        == "0"
    )
    assert [bool(code.text) for code in entries(folder, monkeypatch)] == [False]
    assert python(f"{_CALL}\nassert not tiers._threads", folder) == "0"


@pytest.mark.parametrize(("tier", "is_quick"), [("quick", True), ("full", False)])
def test_one_tier_alone(tier: str, is_quick: bool, tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "cache"
    assert (
        python(
            f"{_CALL}\ntc.finish_compiling()\nassert not tiers._threads", folder, TASKC_TIER=tier
        )
        == "0"
    )
    assert [bool(code.text) for code in entries(folder, monkeypatch)] == [is_quick]
    assert python(_CALL, folder, TASKC_TIER="full") == "0"
    assert [bool(code.text) for code in entries(folder, monkeypatch)] == [False]


def test_no_such_tier(tmp_path: Path) -> None:
    said = python(_CALL, tmp_path / "cache", TASKC_TIER="best")
    assert "CompileError: error: TASKC_TIER is quick or full, not 'best'" in said


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_child_of_a_fork_makes_its_own_full_code(tmp_path: Path) -> None:
    child = """
import os
child = os.fork()
if not child:
    other = matmul(38, 65, 41)
    other(np.ones((38, 41), np.float32), b)
    tc.finish_compiling()
    assert np.array_equal(kernel(a, b), a @ b)
    os._exit(0 if len(tiers._threads) == 1 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    assert python(_CALL + child, tmp_path / "cache") == "0"


def test_a_program_takes_full_code_without_a_new_plan(tmp_path: Path) -> None:
    code = """
import numpy as np, taskc as tc
from taskc import f32
@tc.program
def both(x: f32[40, 30], y: f32[30, 20], z: tc.out[f32[40, 20]]):
    tc.op.Softmax(tc.op.MatMul(x, y), axis=-1, out=z)
x, y = np.random.default_rng(1).random((40, 30), "f"), np.ones((30, 20), "f")
first = both(x, y)
tc.finish_compiling()
assert np.array_equal(both(x, y), first)
"""
    assert python(code, tmp_path / "cache") == "0"


_MODEL = """
import numpy as np, taskc as tc
from onnx import helper, TensorProto
x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 20]) for n in "xy")
node = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
model = helper.make_model(helper.make_graph([node], "g", [x], [y]))
given = np.random.default_rng(1).random((40, 20), "f")
def tiers_of(compiled):
    return {bool(k.compiled.text) for k in whole_program(compiled.programs[0].program, "cpu").code.kernels}
from taskc.backend.cpu import tiers
from taskc.runtime.driver import whole_program
tiers._GRACE = 1
"""


@pytest.mark.parametrize(("wait", "is_quick"), [(False, True), (True, False)])
def test_a_model_that_waits(wait: bool, is_quick: bool, tmp_path: Path) -> None:
    code = f"""{_MODEL}
compiled = tc.compile(model.SerializeToString(), wait={wait})
compiled(given)
assert tiers_of(compiled) == {{{is_quick}}}
"""
    assert python(code, tmp_path / "cache") == "0"


def test_a_bundle_has_full_code(tmp_path: Path) -> None:
    code = f"""{_MODEL}
compiled = tc.compile(model.SerializeToString())
expected = compiled(given)
tc.save_bundle(compiled, "{tmp_path}/model.taskc", dict(x=given))
loaded = tc.load_bundle("{tmp_path}/model.taskc")
assert np.array_equal(loaded(given), expected)
assert tiers_of(compiled) == {{False}}
assert tiers._jobs.empty()
"""
    assert python(code, tmp_path / "cache") == "0"


def test_a_file_is_loaded_in_quick_code_that_goes_on(tmp_path: Path) -> None:
    """The model cache names kernels: what another process has completed is full in the next one."""
    start = f"""{_MODEL}
import pathlib
path = pathlib.Path("{tmp_path}/model.onnx")
if not path.exists():
    path.write_bytes(model.SerializeToString())
compiled = tc.compile(path)
compiled(given)
"""
    folder = tmp_path / "cache"
    assert python(start, folder) == "0"
    assert python(f"{start}\ntc.finish_compiling()\nassert tiers._threads", folder) == "0"
    assert python(f"{start}\nassert not tiers._threads", folder) == "0"


def test_an_interrupting_call_leaves_its_job_to_the_next() -> None:
    code = """
from taskc.backend.cpu import tiers
from taskc.ir.reentry import door
done = []
with door(), door():
    tiers.later(lambda: done.append(1))
    assert not tiers._threads
tiers.finish()
assert done == [1]
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
