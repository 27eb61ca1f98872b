"""States that a session keeps: what it computes, how many programs and plans there are, and what is refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import taskc as tc
from taskc import CompileError
from taskc.arrays.arguments import ArgumentError
from taskc.backend.cpu.program import LoadedProgram
from taskc.errors import CheckError
from taskc.operators.files import MICROSOFT

from .decoder import decoder, greedy, grouped_decoder
from .models import model, node, tensor

STATES = {"present.*": "past_key_values.*"}
PROMPT = np.array([3, 14, 15, 9, 2])


PROTO = decoder(layers=1)


@cache
def compiled() -> Any:
    return tc.compile(PROTO, states=STATES, capacity=400)


def feeds_of(ids: Any, before: int) -> dict[str, Any]:
    """The inputs for some tokens after so many."""
    ids = np.atleast_2d(ids)
    batch, count = ids.shape
    return {
        "input_ids": ids,
        "attention_mask": np.ones((batch, before + count), np.int64),
        "position_ids": np.broadcast_to(np.arange(before, before + count), (batch, count)).copy(),
    }


def write(sequence: Any, prompt: Any, count: int) -> list[int]:
    """The likeliest tokens, one after another."""
    tokens: list[int] = []
    ids = np.asarray(prompt)
    for _ in range(count):
        logits = sequence(feeds_of(ids, sequence.length))
        tokens.append(int(logits[0, -1].argmax()))
        ids = np.array(tokens[-1:])
    return tokens


def test_a_decoder_writes_the_reference_s_tokens() -> None:
    session = compiled().sequence()
    assert [value.name for value in session.inputs] == [
        "input_ids",
        "attention_mask",
        "position_ids",
    ]
    assert [value.name for value in session.outputs] == ["logits"]
    assert write(session, PROMPT, 20) == greedy(PROTO, PROMPT, 20)
    assert repr(session) == "<sequence of 'main': 24 of 400 places>"


def test_after_the_first_token_nothing_is_compiled_or_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned: list[str] = []
    plan = LoadedProgram.plan

    def noted(program: LoadedProgram, *arguments: Any) -> Any:
        planned.append(program.program.name)
        return plan(program, *arguments)

    monkeypatch.setattr(LoadedProgram, "plan", noted)
    session = tc.compile(PROTO, states=STATES, capacity=400)
    write(session, PROMPT, 2)
    memory = {name: array.ctypes.data for name, array in session.memory.items()}
    programs, plans = len(session.model.programs), len(planned)
    assert (programs, plans) == (2, 2)  # of a prompt, and of a token
    monkeypatch.setattr(LoadedProgram, "run", None)  # what a call takes that compiled code doesn't
    write(session, [1], 380)
    monkeypatch.undo()
    assert (len(session.model.programs), len(planned)) == (programs, plans)
    assert {name: array.ctypes.data for name, array in session.memory.items()} == memory
    for length in (3, 8):  # other prompts
        session.reset()
        write(session, PROMPT[:1].repeat(length), 2)
    assert len(session.model.programs) == programs


def test_a_state_is_written_in_place_and_read_by_others() -> None:
    """Along any axis, and where a shape depends on it."""
    proto = model(
        [
            node("Concat", ["past", "x"], ["present"], axis=-1),
            node("ReduceSum", ["present"], ["sum"], keepdims=0),
            node("Shape", ["present"], ["shape"]),
        ],
        [tensor("past", 2, "n"), tensor("x", 2, "m")],
        ["present", "sum", "shape"],
    )
    session = tc.compile(proto, states={"present": "past"}, capacity=7)
    total = 0.0
    for step, count in enumerate((2, 1, 1, 3), start=1):
        x = np.full((2, count), step, np.float32)
        total += x.sum()
        found, shape = session(x)
        assert found == total
        assert shape.tolist() == [2, session.length]
    assert session.memory["past"].tolist() == [[1, 1, 2, 3, 4, 4, 4]] * 2


def test_sequences_have_states_of_their_own() -> None:
    first, second = compiled().sequence(), compiled().sequence()
    prompts = PROMPT, PROMPT[::-1].copy()
    expected = [greedy(PROTO, prompt, 6) for prompt in prompts]
    tokens = [[write(first, prompts[0], 1)[0]], [write(second, prompts[1], 1)[0]]]
    for _ in range(5):
        for sequence, own in zip((first, second), tokens, strict=True):
            own += write(sequence, own[-1:], 1)
    assert tokens == expected
    first.reset()
    assert (first.length, second.length) == (0, 10)
    assert write(first, prompts[1], 6) == expected[1]


def test_a_prompt_may_come_in_parts_and_sequences_in_a_batch() -> None:
    session = compiled().sequence()
    whole = session(feeds_of(PROMPT, 0))
    session.reset()
    parts = [session(feeds_of(PROMPT[:2], 0)), session(feeds_of(PROMPT[2:], 2))]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-5)
    session.reset()
    both = session(feeds_of([PROMPT, PROMPT[::-1]], 0))
    np.testing.assert_allclose(both[:1], whole, atol=1e-5)
    both = session(feeds_of([[4], [4]], 5))
    assert both.shape[:2] == (2, 1)
    with pytest.raises(ArgumentError, match="'batch_size' is 1 by 'input_ids', and 2 by 'past_key"):
        session(feeds_of([4], 6))


@pytest.mark.parametrize("shorter", [(0,), (0, 0), (2, 0, 3)])
def test_grouped_queries(shorter: tuple[int, ...]) -> None:
    """The states of ONNX Runtime's operator are as its caches, of several sequences, too, of their own lengths."""
    random, batch = np.random.default_rng(0), len(shorter)
    proto, ids = grouped_decoder(random), random.integers(0, 9, (batch, 9))
    session = tc.compile(proto, states={"present_*": "past_*"}, capacity=16)
    caches = [np.zeros((batch, 1, 0, 16), np.float32)] * 2
    runtime: Any = pytest.importorskip("onnxruntime")
    peer = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    # ONNX Runtime takes several rows after a cache of one sequence only.
    for start, end in ((0, 4), (4, 5), (5, 6), *([(6, 9)] if batch == 1 else [(6, 7), (7, 8)])):
        mask = np.arange(end) < end - np.array(shorter)[:, None]
        feeds = {"ids": ids[:, start:end].copy(), "mask": mask.astype(np.int64)}
        expected, *caches = peer.run(None, {**feeds, "past_k": caches[0], "past_v": caches[1]})
        found, lengths = session(feeds), mask.sum(1)
        for b, length in enumerate(lengths):
            rows = (
                slice(None) if start else slice(length)
            )  # those after a prompt's end aren't its own
            np.testing.assert_allclose(found[b, rows], expected[b, rows], rtol=1e-4, atol=1e-4)
    for b, length in enumerate(lengths):
        own = session.memory["past_k"][b, :, :length]
        np.testing.assert_allclose(own, caches[0][b, :, :length], atol=1e-5)
    assert len(session.model.programs) == (3 if batch == 1 else 2)
    with pytest.raises(CompileError, match="its total length isn't that of its states"):
        session({"ids": ids[:, :1].copy(), "mask": np.ones((batch, 12), np.int64)})
    assert session.length == end
    mask = np.ones((batch, end + 5), np.int64)
    mask[-1] = 0
    if batch > 1:
        with pytest.raises(CheckError, match="or a sequence is shorter than its new rows"):
            session({"ids": ids[:, :5].copy(), "mask": mask})
    with pytest.raises(CheckError, match="room for 16 places"):
        session({"ids": ids, "mask": np.ones((batch, end + 9), np.int64)})


def test_a_total_length_that_is_data_makes_no_programs() -> None:
    heads = {"num_heads": 2, "kv_num_heads": 1}
    proto = model(
        [
            node(
                "GroupQueryAttention",
                ["q", "k", "v", "past_k", "past_v", "lengths", "total"],
                ["y", "present_k", "present_v"],
                domain=MICROSOFT,
                **heads,
            )
        ],
        [
            tensor("q", 1, "m", 8),
            *[tensor(name, 1, "m", 4) for name in "kv"],
            *[tensor(f"past_{name}", 1, 1, "n", 4) for name in "kv"],
            tensor("lengths", 1, type=TensorProto.INT32),
            tensor("total", type=TensorProto.INT32),
        ],
        ["y", "present_k", "present_v"],
        domains=(MICROSOFT,),
    )
    random = np.random.default_rng(0)
    session = tc.compile(proto, states={"present_*": "past_*"}, capacity=16)
    q, k, v = (random.standard_normal((1, 12, n)).astype(np.float32) for n in (8, 4, 4))
    for start, end in ((0, 4), *[(n, n + 1) for n in range(4, 12)]):
        last, total = np.array([end - 1], np.int32), np.array(end, np.int32)
        found = session(q[:, start:end], k[:, start:end], v[:, start:end], last, total)
        for i in range(start, end):
            weights = np.exp(q[0, i].reshape(2, 4) @ k[0, : i + 1].T / 2)
            expected = weights @ v[0, : i + 1] / weights.sum(1, keepdims=True)
            np.testing.assert_allclose(found[0, i - start], expected.reshape(-1), rtol=1e-4)
    assert len(session.model.programs) == 2


@pytest.mark.parametrize(("softcap", "window"), [(0.0, -1), (2.0, 3)])
def test_attention_reads_a_state_where_it_is(softcap: float, window: int) -> None:
    """The same as with all rows at once, and no kernel copies the state's rows."""
    random = np.random.default_rng(0)
    nodes = [
        node("Shape", ["mask"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"]),
        node("Cast", ["length"], ["total"], to=6),
        node("Sub", ["total", "one_i32"], ["last"]),
        node("Reshape", ["last", "minus"], ["ends"]),
        node(
            "GroupQueryAttention",
            ["q", "k", "v", "past_k", "past_v", "ends", "total"],
            ["y", "present_k", "present_v"],
            domain="com.microsoft",
            num_heads=4,
            kv_num_heads=2,
            softcap=softcap,
            local_window_size=window,
        ),
    ]
    proto = model(
        nodes,
        [
            tensor("q", 1, "n", 32), *[tensor(name, 1, "n", 16) for name in "kv"],
            *[tensor(f"past_{name}", 1, 2, "past", 8) for name in "kv"], tensor("mask", 1, "all", type=7),
        ],
        ["y", "present_k", "present_v"],
        domains=("com.microsoft",),
        initializer=[
            numpy_helper.from_array(np.array(1), "one"),
            numpy_helper.from_array(np.array(1, np.int32), "one_i32"),
            numpy_helper.from_array(np.array([-1]), "minus"),
        ],
    )  # fmt: skip
    q, k, v = (random.standard_normal((1, 9, width), np.float32) for width in (32, 16, 16))
    empty = np.zeros((1, 2, 0, 8), np.float32)
    whole, *_ = tc.compile(proto).run(
        None,
        {
            "q": q,
            "k": k,
            "v": v,
            "past_k": empty,
            "past_v": empty,
            "mask": np.ones((1, 9), np.int64),
        },
    )
    session = tc.compile(proto, states={"present_*": "past_*"}, capacity=20)
    for begin, end in ((0, 4), (4, 5), (5, 6), (6, 9)):
        x = (part[:, begin:end] for part in (q, k, v))
        y = session(*x, np.ones((1, end), np.int64))
        np.testing.assert_allclose(y, whole[:, begin:end], rtol=1e-4, atol=1e-5)
    calls = [call for imported in session.model.programs for call in imported.program.ir.calls]
    assert "rows" not in {
        getattr(call.callee, "name", "") for call in calls if hasattr(call, "callee")
    }


def _of(*nodes: Any, shape: Any = ("batch", "n")) -> Any:
    nodes = (*nodes, node("Neg", ["x"], ["y"]))
    return model([*nodes], [tensor("past", *shape), tensor("x", "batch", "m")], ["y", "present"])


_APPENDED = node("Concat", ["past", "x"], ["present"], axis=1)


def test_a_full_state_is_an_error_and_stays_as_it_is() -> None:
    session = tc.compile(_of(_APPENDED), states={"present": "past"}, capacity=6)
    session(np.ones((1, 5), np.float32))
    for count in (2, 7):
        with pytest.raises(CheckError, match="states have room for 6 places"):
            session(np.full((1, count), 2, np.float32))
    assert session.length == 5
    assert session.memory["past"].tolist() == [[1, 1, 1, 1, 1, 0]]
    session(np.full((1, 1), 3, np.float32))
    assert session.memory["past"].tolist() == [[1, 1, 1, 1, 1, 3]]


@pytest.mark.parametrize(
    ("proto", "states", "capacity", "message"),
    [
        (_of(_APPENDED), {"present": "past"}, None, "states have a capacity"),
        (_of(_APPENDED), {"presents.*": "past.*"}, 8, "no output of the model matches the state 'presents.*'"),
        (_of(_APPENDED), {"pres*": "pas*"}, 8, "is the input 'pasent', which the model doesn't have"),
        (_of(_APPENDED), {"present*": "past"}, 8, "'present*' and 'past' don't have as many *"),
        (_of(_APPENDED, shape=("batch", 5)), {"present": "past"}, 8, "has 5 along axis 1, to which"),
        (_of(node("Add", ["past", "x"], ["present"])), {"present": "past"}, 8,
         "the state 'present' isn't 'past' with more appended along one axis"),
        (_of(node("Concat", ["x", "past"], ["present"], axis=1)), {"present": "past"}, 8,
         "the state 'present' isn't 'past' with more appended"),
    ],
)  # fmt: skip
def test_what_is_refused(proto: Any, states: Any, capacity: Any, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        tc.compile(proto, states=states, capacity=capacity)
    assert message in caught.value.message


def test_what_a_session_refuses(tmp_path: Path) -> None:
    """Its own inputs and outputs don't show."""
    session = tc.compile(_of(_APPENDED), states={"present": "past"}, capacity=6)
    x = np.ones((1, 1), np.float32)
    for names, feeds, message in (
        (None, {"x": x, "past": x}, "the model has no input 'past'; it has 'x'"),
        (["length"], {"x": x}, "the model has no output 'length'; it has 'y'"),
        (None, {}, "the model's input 'x' is missing"),
        (None, {"x": x.astype(np.float64)}, "the input 'x' is of f32, not f64"),
    ):
        with pytest.raises(ArgumentError) as caught:
            session.run(names, feeds)
        assert str(caught.value) == message
    assert session.length == 0
    with pytest.raises(ArgumentError, match="is saved for calls of a sequence"):
        tc.save_bundle(session, tmp_path / "bundle.taskc")


def test_a_saved_decoder_writes_texts_of_any_length(tmp_path: Path) -> None:
    path = tmp_path / "decoder.taskc"
    tc.save_bundle(compiled(), path, feeds_of(PROMPT, 0), feeds_of([7], len(PROMPT)))
    session = tc.load_bundle(path, verify=True)
    assert isinstance(session, type(compiled()))
    other = session.sequence()
    for prompt in (PROMPT, PROMPT[::-1].repeat(4)):
        session.reset()
        assert write(session, prompt, 20) == greedy(PROTO, prompt, 20)
    assert write(other, PROMPT, 3) == greedy(PROTO, PROMPT, 3)
    assert len(session.model.programs) == 2
    with pytest.raises(ArgumentError, match="the bundle has no program for position: u8"):
        write(session, PROMPT, 1)  # several tokens after others


def test_an_extent_of_a_state_comes_from_other_inputs() -> None:
    session = tc.compile(
        _of(_APPENDED, shape=("other", "n")), states={"present": "past"}, capacity=8
    )
    with pytest.raises(
        ArgumentError, match=r"no input tells how large the state past: f32\[other, 8\] is"
    ):
        session(np.ones((1, 1), np.float32))


# --- Encoder-decoders ---------------------------------------------------------------------------


KEY, CROSS = "0.decoder.key", "0.encoder.key"


def _nodes(is_first: bool) -> list[Any]:
    """A layer that attends to the tokens so far, and to the encoder's states: at a first call, or at a later one."""
    return [
        node("Gather", ["table", "ids"], ["x"]),
        node("MatMul", ["x", "w"], ["new"]),
        *(
            [
                node("Identity", ["new"], ["all"]),
                node("MatMul", ["hidden", "v"], ["cross"]),
            ]
            if is_first
            else [
                node("Concat", [f"past.{KEY}"], ["copy"], axis=1),  # as PyTorch exports it
                node("Concat", ["copy", "new"], ["all"], axis=1),
                node("Identity", [f"past.{CROSS}"], ["cross"]),
            ]
        ),
        *_attention("x", "all", "own"),
        *_attention("own", "cross", "seen"),
        node("Add", ["own", "seen"], ["both"]),
        node("MatMul", ["both", "head"], ["logits"]),
    ]


def _attention(queries: str, keys: str, output: str) -> list[Any]:
    names = [f"{output}_{part}" for part in ("columns", "scores", "shares")]
    return [
        node("Transpose", [keys], [names[0]], perm=[0, 2, 1]),
        node("MatMul", [queries, names[0]], [names[1]]),
        node("Softmax", [names[1]], [names[2]], axis=-1),
        node("MatMul", [names[2], keys], [output]),
    ]


def _weights() -> list[Any]:
    random = np.random.default_rng(0)
    sizes = {"table": (30, 8), "w": (8, 8), "v": (6, 8), "head": (8, 30)}
    return [
        numpy_helper.from_array(random.standard_normal(size).astype(np.float32), name)
        for name, size in sizes.items()
    ]


IDS = tensor("ids", "batch", "new", type=TensorProto.INT64)
HIDDEN = tensor("hidden", "batch", "heard", 6)
PASTS = [tensor(f"past.{KEY}", "batch", "past", 8), tensor(f"past.{CROSS}", "batch", "heard", 8)]
PRESENTS = [f"present.{KEY}", f"present.{CROSS}"]
OF_LAYER = {"present.*": "past.*"}


def decoder_of(is_first: bool) -> Any:
    """decoder_model.onnx or decoder_with_past_model.onnx."""
    returned = zip(("all", "cross"), PRESENTS, strict=True)
    nodes = _nodes(is_first) + [node("Identity", [name], [output]) for name, output in returned]
    inputs = [IDS, HIDDEN] if is_first else [IDS, *PASTS]
    return model(nodes, inputs, ["logits", *PRESENTS], initializer=_weights())


def merged_decoder() -> Any:
    """decoder_model_merged.onnx: later calls return nothing for the encoder's keys."""
    nothing = node("Constant", [], ["nothing"], value_floats=[0.0])
    ends = [["logits", "all", "cross"], ["logits", "all", "nothing"]]
    branches = []
    for kind, nodes, outputs in zip(
        "fl", (_nodes(True), [nothing, *_nodes(False)]), ends, strict=True
    ):
        made = {name for one in nodes for name in one.output}
        for one in nodes:  # names differ between branches and graphs
            for names in (one.input, one.output):
                names[:] = [f"{kind}_{name}" if name in made else name for name in names]
        values = [
            tensor(f"{kind}_{name}", *[None] * (1 if name == "nothing" else 3)) for name in outputs
        ]
        branches.append(helper.make_graph(nodes, kind, [], values))
    choice = node(
        "If", ["use_cache_branch"], ["logits", *PRESENTS], else_branch=branches[0], then_branch=branches[1]
    )  # fmt: skip
    flag = tensor("use_cache_branch", 1, type=TensorProto.BOOL)
    inputs = [IDS, HIDDEN, *PASTS, flag]
    return model([choice], inputs, ["logits", *PRESENTS], initializer=_weights())


def expected_logits(hidden: Any, parts: list[Any]) -> list[Any]:
    """The logits of calls for parts of a text, by the package onnx."""
    first, later = (ReferenceEvaluator(decoder_of(is_first)) for is_first in (True, False))
    feeds, logits = {"hidden": hidden}, []
    for ids in parts:
        evaluator = later if logits else first
        result, key, cross = evaluator.run(None, {"ids": ids, **feeds})  # type: ignore[misc]
        feeds = {f"past.{KEY}": key, f"past.{CROSS}": cross}
        logits.append(result)
    return logits


@pytest.mark.parametrize("form", ["two models", "merged"])
def test_an_encoder_decoder_computes_as_the_reference_does(form: str) -> None:
    """The first call computes the states; one program serves all later ones, whatever was heard."""
    if form == "merged":
        session = tc.compile(merged_decoder(), states=OF_LAYER, capacity=40)
    else:
        session = tc.compile(
            decoder_of(False), first=decoder_of(True), states=OF_LAYER, capacity=40
        )
    assert [value.name for value in session.inputs] == ["ids", "hidden"]
    assert [value.name for value in session.outputs] == ["logits"]
    random = np.random.default_rng(1)
    other = session.sequence()
    for heard, prompt in ((9, 1), (5, 3), (12, 2)):
        hidden = random.standard_normal((1, heard, 6)).astype(np.float32)
        parts = [random.integers(0, 30, (1, count)) for count in (prompt, *[1] * 8)]
        expected = expected_logits(hidden, parts)
        for sequence in (session, other):
            sequence.reset()
            results = [sequence(ids=parts[0], hidden=hidden)]
            held, memory = sequence.given[f"past.{CROSS}"], sequence.memory[f"past.{KEY}"]
            assert (held.shape, sequence.length) == ((1, heard, 8), prompt)
            results += [sequence(ids) for ids in parts[1:]]
            for result, logits in zip(results, expected, strict=True):
                np.testing.assert_allclose(result, logits, rtol=1e-4, atol=1e-4)
            assert sequence.given[f"past.{CROSS}"] is held
            assert sequence.memory[f"past.{KEY}"] is memory
    assert len(session.model.programs) == 1


def test_a_model_of_two_graphs_is_not_saved(tmp_path: Path) -> None:
    session = tc.compile(decoder_of(False), first=decoder_of(True), states=OF_LAYER, capacity=40)
    with pytest.raises(CompileError, match="its first call runs a graph of its own"):
        tc.save_bundle(session, tmp_path / "bundle.taskc", {"ids": np.array([[1]])})
    assert not [*tmp_path.iterdir()]


def test_an_input_that_no_output_appends_to_is_given_once() -> None:
    """Without a first model, by the caller."""
    session = tc.compile(decoder_of(False), states=OF_LAYER, capacity=8)
    random, ids = np.random.default_rng(2), np.array([[3, 5]])
    cross = random.standard_normal((1, 4, 8)).astype(np.float32)
    assert [value.name for value in session.inputs] == ["ids", f"past.{CROSS}"]
    assert [value.name for value in session.outputs] == ["logits"]
    pasts = {f"past.{KEY}": np.zeros((1, 0, 8), np.float32), f"past.{CROSS}": cross}
    later: Any = ReferenceEvaluator(decoder_of(False))
    for feeds in ({"ids": ids, f"past.{CROSS}": cross}, {"ids": ids[:, :1]}):
        expected, pasts[f"past.{KEY}"], _ = later.run(None, {**pasts, "ids": feeds["ids"]})
        np.testing.assert_allclose(session(feeds), expected, rtol=1e-4, atol=1e-5)
    session.reset()
    with pytest.raises(ArgumentError, match=f"the model's input 'past.{CROSS}' is missing"):
        session(ids)


def test_what_encoder_decoders_refuse() -> None:
    first, later = decoder_of(True), decoder_of(False)
    with pytest.raises(CompileError, match="the model appends to no state"):
        tc.compile(later, states={f"present.{CROSS}": f"past.{CROSS}"}, capacity=8)
    with pytest.raises(CompileError, match="the model of a first call computes states"):
        tc.compile(later, first=first)
    del first.graph.output[1]
    with pytest.raises(CompileError, match=f"first call has no output for the state 'past.{KEY}'"):
        tc.compile(later, first=first, states=OF_LAYER, capacity=8)
    session = tc.compile(later, first=decoder_of(True), states=OF_LAYER, capacity=3)
    hidden = np.ones((1, 2, 6), np.float32)
    with pytest.raises(ArgumentError, match=r"room for 3 places, .* the first call fills 4"):
        session(np.ones((1, 4), np.int64), hidden)
    with pytest.raises(ArgumentError, match="the model's input 'hidden' is missing"):
        session(np.ones((1, 3), np.int64))
    assert session.length == 0
