"""A file's model that was compiled before: it is found again as long as nothing that it depends on is another."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

import taskc as tc
from taskc.backend.cpu.program import LoadedProgram
from taskc.ir.nodes import Unary
from taskc.onnx import model_cache, reader
from taskc.onnx.passes import pipeline
from taskc.operators import call as operators
from taskc.operators.call import operator
from taskc.programs.ir import Computation, Program, map_callees
from taskc.tune.database import Database

from .decoder import decoder, greedy
from .models import model, node, tensor
from .test_states import STATES, write


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TASKC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture(autouse=True)
def _nothing_is_registered_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests in the process have registered operators and passes, which stay."""
    for module in (operators, pipeline):
        now: Callable[[], Sequence[Any]] = module.registered
        before = [*now()]

        def registered(now: Any = now, before: Any = before) -> list[Any]:
            return [one for one in now() if one not in before]

        monkeypatch.setattr(module, "registered", registered)


@pytest.fixture(autouse=True)
def _written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_cache, "_aside", lambda write: write())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "model.onnx")


def written(path: Path, bias: float = 1.0) -> Path:
    proto = model(
        [node("Add", ["x", "b"], ["s"]), node("Mul", ["s", "s"], ["y"])],
        [tensor("x", "n", 3)],
        ["y", "b"],
        initializer=[numpy_helper.from_array(np.float32([bias] * 3), "b")],
    )
    path.write_bytes(proto.SerializeToString())
    return path


class Reads:
    """How often a model was read."""

    count = 0


@pytest.fixture(autouse=True)
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counted, read = Reads(), reader.read

    def counting(*given: Any) -> Any:
        counted.count += 1
        return read(*given)

    monkeypatch.setattr(reader, "read", counting)
    return counted


_X = np.ones((2, 3), np.float32)


def bundles_in(cache: Path) -> list[Path]:
    entries = [*cache.iterdir()] if cache.exists() else []
    return [it for it in entries if it.read_bytes().startswith(b"taskc bundle")]


def called(path: Path, rows: int = 2, **options: Any) -> float:
    y, bias = tc.compile(path, **options)(np.ones((rows, 3), np.float32))
    assert y.shape == (rows, 3)
    assert y[0, 0] == (1 + bias[0]) ** 2
    return float(y[0, 0])


def test_the_second_time_nothing_is_read(path: Path, reads: Reads, cache: Path) -> None:
    assert [called(path) for _ in range(3)] == [4, 4, 4]
    assert reads.count == 1
    found = tc.compile(str(path))
    assert (found.name, str(found.inputs[0])) == ("main", "x: f32[n, 3]")
    assert reads.count == 1
    assert cache.stat().st_mode & 0o777 == 0o700
    assert all(it.stat().st_mode & 0o777 == 0o600 for it in cache.iterdir())


def test_processes_start_before_a_large_model_is_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its nodes: the kernels that are left of them are known later. A model in the cache needs none."""
    names = ["x", *[f"t{number}" for number in range(160)], "y"]
    nodes = [node("Relu", [one], [after]) for one, after in pairwise(names)]
    path = tmp_path / "large.onnx"
    path.write_bytes(model(nodes, [tensor("x", 3)], ["y"]).SerializeToString())
    expected: list[int] = []
    monkeypatch.setattr(model_cache, "expect_kernels", expected.append)
    tc.compile(path)(np.float32([-1, 0, 1]))
    assert expected[0] == 20
    expected.clear()
    tc.compile(path)(np.float32([-1, 0, 1]))
    assert expected == []


def test_other_shapes_are_traced_of_the_file(path: Path, reads: Reads) -> None:
    found = tc.compile(path)
    found(_X)
    again = tc.compile(path)
    assert again(_X[:1])[0].shape == (1, 3)
    assert again(_X)[0].shape == (2, 3)
    assert reads.count == 2
    assert called(path, 1) == 4
    assert reads.count == 2
    assert len(again.graph.nodes) == 2
    assert again.program({"x": _X}).program.ir.calls


def test_what_was_prepared_is_there(path: Path, reads: Reads) -> None:
    tc.compile(path).prepare({"x": _X})
    assert called(path) == 4
    assert reads.count == 1


def test_only_the_first_shapes_are_kept(path: Path, cache: Path) -> None:
    found = tc.compile(path)
    for rows in (1, 2, 3, 4, 3, 2):
        found(np.ones((rows, 3), np.float32))
    assert len(bundles_in(cache)) == 2


def test_another_content_is_another_model(path: Path, reads: Reads) -> None:
    assert called(path) == 4
    written(path, 2.0)
    assert called(path) == 9
    written(path, 1.0)
    assert called(path) == 4
    assert reads.count == 2


def test_a_file_that_changes_under_a_model_is_told(path: Path) -> None:
    called(path)
    found = tc.compile(path)
    written(path, 5.0)
    assert found(_X)[0][0, 0] == 4  # what was compiled of the one that it was
    with pytest.raises(tc.CompileError, match="has changed since the model was compiled"):
        found(_X[:1])


def test_a_file_is_hashed_anew_until_it_has_settled(
    path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = hashes_in(monkeypatch)
    assert [called(path), called(path)] == [4, 4]
    assert len(hashes) == 2
    monkeypatch.setattr(model_cache, "_SETTLED", 0)
    assert [called(path), called(path), called(path)] == [4, 4, 4]
    assert (len(hashes), reads.count) == (3, 1)
    written(path, 2.0)
    assert called(path) == 9
    assert len(hashes) == 4


def hashes_in(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are hashed from now on."""
    hashes, hashed = list[Path](), model_cache._hashed

    def noted(path: Path) -> str:
        hashes.append(path)
        return hashed(path)

    monkeypatch.setattr(model_cache, "_hashed", noted)
    return hashes


def test_a_file_that_cannot_be_in_the_cache_is_hashed_later(
    path: Path, tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a size that the cache has is hashed first: it may be a copy."""
    monkeypatch.setattr(model_cache, "_SETTLED", 0)
    hashes = hashes_in(monkeypatch)
    found = tc.compile(path)
    assert not hashes
    assert found(_X)[0][0, 0] == 4
    assert hashes == [path]
    copy, other = tmp_path / "copy.onnx", written(tmp_path / "other.onnx", 2.0)
    copy.write_bytes(path.read_bytes())
    assert (called(copy), reads.count) == (4, 1)
    tc.compile(other)
    assert hashes == [path, copy, other]
    assert (called(other), called(other), reads.count) == (9, 9, 3)
    assert len(hashes) == 3


@pytest.mark.parametrize("change", [Path.unlink, lambda path: written(path, 2.0)])
def test_a_file_that_changes_before_it_is_hashed_is_not_kept(
    change: Callable[[Path], object], path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cache, "_SETTLED", 0)
    found = tc.compile(path)
    change(path)
    assert found(_X)[0][0, 0] == 4
    assert not bundles_in(cache)


def _registered_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_registered", [lambda graph: graph])


def _registered_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_builders", {**operators._builders})
    operator("Own", domain="own")(lambda call: call.tensor(0))


def _dumps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKC_DUMP", "")
    monkeypatch.setenv("TASKC_TARGET", "sim")


@pytest.mark.parametrize("change", [_registered_pass, _registered_operator, _dumps])
def test_what_a_hash_does_not_tell_is_not_kept(
    change: Callable[[pytest.MonkeyPatch], None],
    path: Path,
    reads: Reads,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called(path)
    with monkeypatch.context() as patched:
        change(patched)
        called(path)
        assert reads.count == 2
    called(path)
    assert reads.count == 2


def test_what_is_compiled_depends_on_is_in_the_hash(
    path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called(path)
    called(path, exact=True)
    assert reads.count == 2
    own = [*model_cache._surroundings()]
    for number in range(len(own)):
        other = [*own[:number], "another", *own[number + 1 :]]
        with monkeypatch.context() as patched:
            patched.setattr(model_cache, "_surroundings", lambda other=other: other)
            called(path)
        assert reads.count == 3 + number
    tuned = Database(tmp_path / "tuning.sqlite3")
    monkeypatch.setattr(model_cache, "database", lambda: tuned)
    before = [*model_cache._surroundings()]
    tuned.set_fact("a machine", "a fact", 1.0)
    assert [*model_cache._surroundings()] != before


def test_the_version_of_onnx_is_in_the_hash() -> None:
    assert f"onnx-{version('onnx')}.dist-info" in model_cache._surroundings()
    assert model_cache._installed("nothing_of_this_name") == ""


def test_the_precision_is_in_the_hash(tmp_path: Path, reads: Reads) -> None:
    weights = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    proto = model(
        [node("MatMul", ["x", "w"], ["y"])],
        [tensor("x", 2, 64)],
        ["y"],
        initializer=[numpy_helper.from_array(weights, "w")],
    )
    path, x = tmp_path / "product.onnx", weights.T[:2].copy()
    path.write_bytes(proto.SerializeToString())
    made = [[tc.compile(path, precision=it)(x) for it in ("f32", "bf16")] for _ in range(2)]
    assert reads.count == 2
    assert not np.array_equal(*made[0])
    assert np.array_equal(made[0], made[1])


def _negated(program: Program) -> Program:
    """A user's pass by which one sees that it ran."""

    def one(callee: Any) -> Any:
        if isinstance(callee, Computation):
            return replace(callee, value=Unary("-", callee.value))
        return callee

    return map_callees(program, one)


def test_passes_over_programs_run_on_what_is_in_the_cache(
    path: Path, reads: Reads, cache: Path
) -> None:
    called(path)
    before = len(bundles_in(cache))
    found = tc.compile(path)
    assert found(_X)[0][0, 0] == 4
    with tc.register_pass(_negated, at="traced"):
        assert found(_X)[0][0, 0] == -4  # one that was opened before
        assert tc.compile(path)(_X)[0][0, 0] == -4
        assert found(_X[:1])[0][0, 0] == -4
        opened = tc.compile(path)
    assert len(bundles_in(cache)) == before
    for again in (found, opened, tc.compile(path)):
        assert again(_X)[0][0, 0] == again(_X[:1])[0][0, 0] == 4


def test_what_data_selects_is_counted(tmp_path: Path, reads: Reads) -> None:
    path = tmp_path / "selects.onnx"
    proto = model([node("NonZero", ["x"], ["n"])], [tensor("x", 2, 3)], ["n"])
    path.write_bytes(proto.SerializeToString())
    for array in (_X, 0 * _X, np.eye(2, 3, dtype=np.float32)):
        assert np.array_equal(tc.compile(path)(array), np.array(np.nonzero(array)))
    assert reads.count == 1


def test_a_model_that_runs_in_parts_is_not_kept(tmp_path: Path, reads: Reads, cache: Path) -> None:
    path = tmp_path / "parts.onnx"
    nodes = [
        node("NonZero", ["x"], ["n"]),
        node("Transpose", ["n"], ["t"]),
        node("GatherND", ["x", "t"], ["y"]),
    ]
    path.write_bytes(model(nodes, [tensor("x", 2, 3)], ["y"]).SerializeToString())
    for count, array in enumerate((_X, 0 * _X, np.eye(2, 3, dtype=np.float32)), start=1):
        found = tc.compile(path)
        found.prepare({"x": array})
        assert np.array_equal(found(array), array[array != 0])
        assert len(found.programs) == 2
        assert reads.count == count
    assert not bundles_in(cache)


@pytest.mark.parametrize("damage", ["first code", "last code", "cut", "exchanged"])
def test_what_is_damaged_is_made_again(
    damage: str, path: Path, reads: Reads, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    called(path, 1)
    called(path, 2)
    bundles = bundles_in(cache)
    assert len(bundles) == 2
    contents = [it.read_bytes() for it in bundles]
    for file, content, other in zip(bundles, contents, reversed(contents), strict=True):
        places = content.index(b"\x7fELF") + 100, content.rindex(b"\x7fELF") + 100
        first, last = (content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in places)
        damaged = {"first code": first, "last code": last, "cut": content[:-9], "exchanged": other}
        file.write_bytes(damaged[damage])
    before = reads.count
    with caplog.at_level(logging.WARNING):
        assert called(path, 1) == called(path, 2) == 4
    assert reads.count == before + 2
    assert "is made again" in caplog.text
    assert called(path, 1) == called(path, 2) == 4
    assert reads.count == before + 2


def with_bias_elsewhere(path: Path, name: str = "weights") -> Path:
    """A model whose bias is in another file."""
    bias = TensorProto(
        name="b", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL
    )
    bias.external_data.add(key="location", value=name)
    proto = model(
        [node("Add", ["x", "b"], ["s"]), node("Mul", ["s", "s"], ["y"])],
        [tensor("x", "n", 3)],
        ["y", "b"],
        initializer=[bias],
    )
    path.write_bytes(proto.SerializeToString())
    (path.parent / name).write_bytes(np.float32([1, 1, 1]).tobytes())
    return path


def test_tensors_in_other_files_are_hashed_too(
    tmp_path: Path, reads: Reads, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cache, "_SETTLED", 0)
    path, hashes = with_bias_elsewhere(tmp_path / "elsewhere.onnx"), hashes_in(monkeypatch)
    assert [called(path), called(path), called(path)] == [4, 4, 4]
    assert (reads.count, hashes) == (1, [path, tmp_path / "weights"])
    found = tc.compile(path)
    (tmp_path / "weights").write_bytes(np.float32([2, 2, 2]).tobytes())
    assert found(_X)[0][0, 0] == 4  # from the cache, as the model was compiled
    with pytest.raises(tc.CompileError, match="has changed since the model was compiled"):
        found(_X[:1])
    assert [called(path), called(path)] == [9, 9]
    assert (reads.count, hashes[2:]) == (3, [tmp_path / "weights"])


def test_tensors_that_change_after_they_are_read_are_not_kept(
    tmp_path: Path, reads: Reads, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cache, "_SETTLED", 0)
    path, read = with_bias_elsewhere(tmp_path / "elsewhere.onnx"), reader.read

    def read_and_changed(*given: Any) -> Any:
        graph = read(*given)
        (tmp_path / "weights").write_bytes(np.float32([2, 2, 2]).tobytes())
        return graph

    with monkeypatch.context() as patch:
        patch.setattr(reader, "read", read_and_changed)
        assert called(path) == 4
    assert not bundles_in(cache)
    assert [called(path), called(path)] == [9, 9]


def test_a_model_with_tensors_in_a_file_of_a_long_name_is_not_kept(
    tmp_path: Path, reads: Reads, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cache, "_SETTLED", 0)
    path = with_bias_elsewhere(tmp_path / "elsewhere.onnx", "w" * 200)
    assert [called(path), called(path)] == [4, 4]
    assert reads.count == 2
    assert not bundles_in(cache)


def test_a_decoder_with_states_is_traced_once(
    tmp_path: Path, reads: Reads, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A prompt and tokens are in one bundle, which serves all lengths; other calls add another one."""
    proto, path = decoder(layers=1), tmp_path / "decoder.onnx"
    path.write_bytes(proto.SerializeToString())

    def is_right(*prompts: Sequence[int]) -> bool:
        session, before = tc.compile(path, states=STATES, capacity=60), list[int]()
        for prompt in prompts:
            ids = [*before, *prompt]
            expected = greedy(proto, np.array(ids), 4)
            if write(session, np.array(prompt), 4) != expected:
                return False
            before = [*ids, *expected[:-1]]  # the last token was not read
        return True

    assert all(is_right([3, 14, 15]) for _ in range(3))
    assert (reads.count, len(bundles_in(cache))) == (1, 1)
    assert is_right([9, 2, 7, 1, 8])
    assert reads.count == 1
    assert is_right([5, 6], [7, 8, 9])  # several tokens after others take a program of their own
    assert (reads.count, len(bundles_in(cache))) == (2, 2)
    assert is_right([5], [6, 4])
    assert reads.count == 2
    tc.compile(path, states=STATES, capacity=61)
    assert reads.count == 3
    assert not caplog.records


def test_what_is_no_model_is_told_as_before(tmp_path: Path) -> None:
    with pytest.raises((FileNotFoundError, tc.CompileError)):
        tc.compile(tmp_path / "nothing.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(tc.CompileError, match="no ONNX model"):
        tc.compile(tmp_path / "empty.onnx")


def test_a_cache_that_cannot_be_written_is_no_error(
    path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TASKC_CACHE", str(tmp_path / "file"))
    assert [called(path), called(path)] == [4, 4]
    assert reads.count == 2


def test_a_call_does_not_wait_for_the_disk(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the process does, when it ends: nobody asked the thread to die with it."""
    waiting: list[threading.Thread] = []

    def aside(write: Callable[[], None]) -> None:
        waiting.append(threading.Thread(target=write))

    monkeypatch.setattr(model_cache, "_aside", aside)
    assert called(path, 1) == 4
    assert not bundles_in(cache)
    (thread,) = waiting
    thread.start()
    thread.join()
    assert len(bundles_in(cache)) == 1


def test_programs_are_written_after_the_first_result(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    run = LoadedProgram.run

    def noted(program: LoadedProgram, *args: Any) -> int:
        events.append("run")
        return run(program, *args)

    monkeypatch.setattr(LoadedProgram, "run", noted)
    monkeypatch.setattr(model_cache, "_aside", lambda write: events.append("write"))
    found = tc.compile(path)
    found(_X)
    assert events == ["run", "write"]
    found.prepare({"x": _X[:1]})
    assert events == ["run", "write", "write"]


def test_a_process_that_ends_at_once_has_kept_it(path: Path, cache: Path) -> None:
    code = (
        f"import taskc as tc, numpy as np; tc.compile({str(path)!r})(np.ones((1, 3), np.float32))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(bundles_in(cache)) == 1
