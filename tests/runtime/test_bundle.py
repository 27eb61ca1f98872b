"""Programs in bundles: called as they were, in another process too, and never run where anything is wrong."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import boolean, f32, i64
from taskc.arrays.arguments import ArgumentError, CopyWarning
from taskc.backend.cpu.pool import pool
from taskc.kernels.matmul import matmul
from taskc.runtime import bundle as bundles
from taskc.runtime.bundle import Bundle, BundleError, BundleFile, Sections
from taskc.runtime.driver import scheduled, whole_program

n = tc.dim("n")
_WEIGHTS = np.random.default_rng(0).standard_normal((16, 48)).astype(np.float32)


@tc.kernel(workers=4)
def positive(x: f32[n, 48], y: tc.out[f32[n, 48]]):
    for row, col in tc.tiles((n, 48), by=(1, 48)):
        for i, j in tc.spatial(1, 4) * tc.repeat(1, 12):
            assert x[row + i, col + j] < 1e30, "too large"
            y[row + i, col + j] = max(x[row + i, col + j], 0.0)


@tc.program
def layer(x: f32[n, 16], by: f32, times: i64, y: tc.out[f32[n, 48]], z: tc.out[f32[n + 2]]):
    hidden = matmul(n, 48, 16)(x, tc.constant(_WEIGHTS))
    whole = positive(tc.compute((n, 48), lambda i, j: hidden[i, j] * by, name="scaled"))
    for step in tc.steps(3):
        tc.compute(n, lambda i: whole[i, 0] + step.to(f32), name="unused")
    tc.compute((n, 48), lambda i, j: whole[i, j] + times.to(f32), out=y)
    tc.compute(n + 2, lambda i: tc.exp(by * i.to(f32) / 64), out=z)


def x(rows: int) -> Any:
    return np.random.default_rng(rows).standard_normal((rows, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "layer.taskc"
    bundles.write(layer, path)
    return path


def equal(some: Any, others: Any) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("rows", [1, 2, 7, 64, 0])
def test_a_program_gives_the_same_bits_at_all_sizes(path: Path, rows: int) -> None:
    found = Bundle.open(path, verify=True).program(0)
    assert equal(found(x(rows), 2.0, 3), layer(x(rows), 2.0, 3))


def test_arguments_are_checked_as_the_program_s(path: Path) -> None:
    found = Bundle.open(path).program(0)
    wide = np.zeros((4, 32), np.float32)
    with pytest.warns(CopyWarning):
        assert found(wide[:, ::2], 1.0, 0)[0].shape == (4, 48)
    y, z = np.empty((3, 48), np.float32), np.empty(5, np.float32)
    assert found(x(3), by=2.0, times=1, out=(y, z))[0] is y
    assert equal((y, z), layer(x(3), 2.0, 1))
    for arguments, message in (
        ((x(3)[:, :5], 1.0, 1), r"argument 'x' must be f32\[n, 16\], not f32\[3, 5\]"),
        ((x(3), "a", 1), "argument 'by' must be a number of type f32"),
        ((x(3), 1.0), "misses the argument 'times'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            found(*arguments)


def test_an_assertion_says_what_it_said(path: Path) -> None:
    found = Bundle.open(path).program(0)
    with pytest.raises(tc.CheckError, match="too large") as caught:
        found(x(3), 1e38, 1)
    (finding,) = caught.value.findings
    assert finding.location.file == __file__


def test_constants_are_mapped_and_not_read(path: Path) -> None:
    found = Bundle.open(path).program(0)
    own = [memory for _, memory in scheduled(layer)[0].constants]
    assert [memory.nbytes for _, memory in found.ir.constants] == [it.nbytes for it in own]
    for _, memory in found.ir.constants:
        assert not memory.flags.owndata
        assert not memory.flags.writeable
        assert memory.ctypes.data % 64 == 0


_ELSEWHERE = """
import sys
import llvmlite.binding as llvm
def parse_assembly(*given):
    raise AssertionError("LLVM's text is parsed")
import numpy as np
import taskc as tc
llvm.parse_assembly = parse_assembly
found = tc.load_bundle(sys.argv[1])
x = np.linspace(-1, 1, 5 * 16, dtype=np.float32).reshape(5, 16)
y, z = found(x, 2.0, 3)
print(float(y.astype(np.float64).sum()), float(z.astype(np.float64).sum()))
print(sorted({"lark", "onnx", "taskc.kernels", "taskc.operators.call"} & {*sys.modules}))
"""


def test_another_process_compiles_and_parses_nothing(path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TASKC_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, str(path)],
        check=True, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    x = np.linspace(-1, 1, 5 * 16, dtype=np.float32).reshape(5, 16)
    y, z = layer(x, 2.0, 3)
    sums = [float(it.astype(np.float64).sum()) for it in (y, z)]
    assert done.stdout.splitlines() == [" ".join(map(str, sums)), "[]"]


@tc.program
def halvings(x: f32[n], flag: boolean[1], y: tc.out[f32[n]]):
    """Twice x; or x halved until its first element is at most 1."""
    with tc.branch(flag):
        tc.compute(n, lambda i: x[i] * 2, name="twice", out=y)
    with tc.otherwise():
        value = tc.compute(n, lambda i: x[i], name="copy")
        large = tc.compute(1, lambda i: value[0] > 1, name="large")
        turns = tc.compute(1, lambda i: i, name="zero")
        for _ in tc.steps_while(large):
            half = tc.compute(n, lambda i: value[i] / 2, name="half")
            tc.compute(n, lambda i: half[i], name="copy", out=value)
            more = tc.compute(1, lambda i: turns[0] + 1, name="more")
            tc.compute(1, lambda i: more[i], name="copy", out=turns)
            tc.compute(1, lambda i: value[0] > 1, name="large", out=large)
        tc.compute(n, lambda i: value[i] + turns[0].to(f32), name="sum", out=y)


def test_branches_and_whiles_are_taken_as_the_flags_say(tmp_path: Path) -> None:
    bundles.write(halvings, tmp_path / "halvings.taskc")
    found = Bundle.open(tmp_path / "halvings.taskc").program(0)
    for size in (1, 7, 300):
        x = np.linspace(20, 21, size, dtype=np.float32)
        assert np.array_equal(found(x, np.array([True])), 2 * x)
        assert np.array_equal(found(x, np.array([False])), x / 32 + np.float32(5))
        small = x / 32
        assert np.array_equal(found(small, np.array([False])), small)


def test_independent_chains_are_beside_each_other(tmp_path: Path) -> None:
    step = matmul(n, 48, 48)
    weights = np.random.default_rng(1).standard_normal((6, 48, 48)).astype(np.float32)

    @tc.program
    def chains(x: f32[n, 48], y: tc.out[f32[n, 48]], z: tc.out[f32[n, 48]]):
        a, b = tc.constant(weights[0]), tc.constant(weights[1])
        step(step(step(x, a), a), a, out=y)
        step(step(step(x, b), b), b, out=z)

    bundles.write(chains, tmp_path / "chains.taskc")
    found = Bundle.open(tmp_path / "chains.taskc").program(0)
    own, other = whole_program(chains), found._runner
    assert own is not None
    for threads in (1, 2):
        plans = [runner.code.plan(dict.fromkeys(program.dimensions, 48), threads)
                 for runner, program in ((own, chains.ir), (other, found.ir))]  # fmt: skip
        assert plans[0] == plans[1]
        assert any(call.beside for call in plans[1].calls) == (threads > 1)
    x = np.random.default_rng(2).standard_normal((48, 48)).astype(np.float32)
    assert equal(found(x), chains(x))


def changed(path: Path, to: Path, **content: Any) -> Path:
    """A copy that says something else, under hashes that are right."""
    file = BundleFile.open(path)
    sections = Sections()
    for number in range(file.sections):
        assert sections.add(bytes(file.section(number))) == number
    sections.write(to, {**file.content, **content})
    return to


def test_code_for_another_processor_is_refused(path: Path, tmp_path: Path) -> None:
    own = BundleFile.open(path).content["processor"]
    other = {"name": "future", "triple": own["triple"], "features": [*own["features"], "avx99"]}
    with pytest.raises(
        BundleError, match=r"another processor: 'future' has avx99, and '.*' has not"
    ):
        Bundle.open(changed(path, tmp_path / "a", processor=other))
    arm = {**own, "triple": "riscv64-unknown-linux-gnu"}
    with pytest.raises(
        BundleError, match="it is for riscv64-unknown-linux-gnu, and this is"
    ) as caught:
        Bundle.open(changed(path, tmp_path / "b", processor=arm))
    assert "compile it anew" in str(caught.value)
    fewer = {**own, "features": own["features"][:3]}
    found = Bundle.open(changed(path, tmp_path / "c", processor=fewer)).program(0)
    assert equal(found(x(2), 1.0, 0), layer(x(2), 1.0, 0))


def test_no_flipped_bit_is_run(path: Path, tmp_path: Path) -> None:
    whole, draw, broken = path.read_bytes(), random.Random(0), tmp_path / "broken"
    expected = layer(x(2), 1.0, 0)
    refused = 0
    for _ in range(120):
        place, bit = draw.randrange(len(whole)), 1 << draw.randrange(8)
        broken.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            assert equal(Bundle.open(broken).program(0)(x(2), 1.0, 0), expected)
        except BundleError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    "content",
    [
        {"programs": []},
        {"programs": [{}]},
        {"programs": None},
        {"objects": {"a": 99}},
        {"objects": [1]},
        {"processor": {}},
        {"processor": None},
    ],
)
def test_a_manifest_that_says_something_else_is_an_error(
    path: Path, tmp_path: Path, content: dict[str, Any]
) -> None:
    with pytest.raises(BundleError, match="says what it can't"):
        Bundle.open(changed(path, tmp_path / "other", **content)).program(0)


@pytest.mark.each_value
@pytest.mark.parametrize("key", ["steps", "kernels", "constants", "tuples"])
@pytest.mark.parametrize("value", [None, 10**6, -1e9, "a", [[1, 2, 3]], [], {"a": "b"}])
def test_a_program_that_says_something_else_is_an_error(
    path: Path, tmp_path: Path, key: str, value: Any
) -> None:
    (program,) = json.loads(json.dumps(BundleFile.open(path).content["programs"]))
    other = changed(path, tmp_path / "other", programs=[{**program, key: value}])
    if (key, value) == ("tuples", {"a": "b"}):
        assert equal(Bundle.open(other).program(0)(x(2), 1.0, 0), layer(x(2), 1.0, 0))
        return
    with pytest.raises(BundleError, match="says what it can't"):
        Bundle.open(other).program(0)


def test_a_flipped_bit_of_large_weights_is_found(tmp_path: Path) -> None:
    weights = np.arange(1 << 19, dtype=np.float32)

    @tc.program
    def added(x: f32[1 << 19], y: tc.out[f32[1 << 19]]):
        known = tc.constant(weights)
        tc.compute(1 << 19, lambda i: x[i] + known[i], out=y)

    path = tmp_path / "added.taskc"
    bundles.write(added, path)
    whole = path.read_bytes()
    assert equal(Bundle.open(path).program(0)(weights * 0), weights)
    start = whole.index(weights.tobytes())
    for bit in range(8):
        place = start + random.Random(bit).randrange(weights.nbytes)
        flipped = whole[place] ^ 1 << bit
        path.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
        with pytest.raises(BundleError, match="is damaged"):
            Bundle.open(path).program(0)
        with pytest.raises(BundleError, match="is damaged"):
            Bundle.open(path, verify=True)


def test_checksums_depend_on_every_bit_on_order_and_on_length() -> None:
    draw = random.Random(0)
    sums = set()
    for size in [*range(0, 1030, 103), 4096]:
        content = bytearray(draw.randbytes(size))
        others = [bytes(content), bytes(content) + b"\0", bytes(content[256:] + content[:256])]
        for _ in range(200 if size else 0):
            place, bit = draw.randrange(size), 1 << draw.randrange(8)
            # The same bit of two words that go into one sum, too: neither hides the other.
            for places in ((place,), (place, place - 256) if place >= 256 else ()):
                for at in places:
                    content[at] ^= bit
                others.append(bytes(content))
                for at in places:
                    content[at] ^= bit
        unlike = {*others}
        sums |= {pool().checksum(memoryview(one)) for one in unlike}
        assert len({pool().checksum(memoryview(one)) for one in unlike}) == len(unlike)
    assert len(sums) > 1000


@pytest.mark.parametrize("how", ["cut", "other"])
def test_what_becomes_of_a_loaded_file_is_nothing_to_the_bundle(
    path: Path, tmp_path: Path, how: str
) -> None:
    copy = tmp_path / "copy.taskc"
    copy.write_bytes(path.read_bytes())
    found = Bundle.open(copy)
    with open(copy, "r+b") as file:
        file.truncate(100) if how == "cut" else file.write(bytes(path.stat().st_size))
    assert equal(found.program(0)(x(2), 1.0, 0), layer(x(2), 1.0, 0))


def test_tuples_and_scalars_are_parameters_as_before(tmp_path: Path) -> None:
    @tc.program
    def total(parts: (f32[n], f32[n]), y: tc.out[f32[n]]):
        a, b = parts
        tc.compute(n, lambda i: a[i] + b[i], out=y)

    bundles.write(total, tmp_path / "total.taskc")
    found = Bundle.open(tmp_path / "total.taskc").program(0)
    a = np.arange(3, dtype=np.float32)
    names = [item.name for item in total.ir.parameters]
    given = dict(zip(names, (a, a), strict=False))
    assert found(**given).tolist() == total(**given).tolist() == [0, 2, 4]


def test_parameters_keep_their_layouts(tmp_path: Path) -> None:
    laid = f32[4, 8].laid(tc.repeat(1, 2) * tc.repeat(4, 4))

    @tc.kernel(workers=4)
    def turned(x: laid, y: tc.out[f32[4, 8]]):
        for i, j in tc.spatial(4, 1) * tc.repeat(1, 8):
            y[i, j] = x[i, j] + 1

    @tc.program
    def program(x: laid, y: tc.out[f32[4, 8]]):
        turned(x, out=y)

    bundles.write(program, tmp_path / "laid.taskc")
    found = Bundle.open(tmp_path / "laid.taskc").program(0)
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    assert np.array_equal(found(x), x + 1)
    assert np.array_equal(found(tc.pack(x, laid)), x + 1)
