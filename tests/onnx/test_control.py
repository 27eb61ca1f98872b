"""If, Loop and Scan where what decides is known only when a model runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import taskc as tc
from taskc import CompileError
from taskc.programs.ir import Branch, Loop, While, calls_of, steps_of
from tests.each_value import few

from .models import model, node, tensor
from .random_loops import loop_of

BOOL, INT = TensorProto.BOOL, TensorProto.INT64
many = np.arange(300, dtype=np.float32)  # more elements than may decide what is compiled


def graph(
    name: str,
    inputs: list[ValueInfoProto],
    nodes: list[Any],
    outputs: list[ValueInfoProto],
    **constants: Any,
) -> GraphProto:
    arrays = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    return helper.make_graph(nodes, name, inputs, outputs, initializer=arrays)


def compiled(proto: ModelProto) -> tc.onnx.Model:
    return tc.compile(proto)


def steps(model: tc.onnx.Model, kind: type, **feeds: Any) -> int:
    program = model.program(feeds).program.ir
    return sum(isinstance(step, kind) for step in steps_of(program.calls))


def chosen(then: list[Any], otherwise: list[Any], then_shape: Any = (300,)) -> ModelProto:
    """z of one of two branches, by the sign of a sum."""
    branches = {
        "then_branch": graph("then", [], then, [tensor("z", *then_shape)], two=np.float32(2)),
        "else_branch": graph("other", [], otherwise, [tensor("w", 300)], one=np.float32(1)),
    }
    return model(
        [
            node("ReduceSum", ["x"], ["total"], keepdims=0),
            node("Greater", ["total", "limit"], ["flag"]),
            node("Exp", ["x"], ["e"]),
            node("If", ["flag"], ["y"], name="choice", **branches),
            node("Neg", ["y"], ["r"]),
        ],
        [tensor("x", 300)],
        ["r"],
        initializer=[numpy_helper.from_array(np.float32(0), "limit")],
    )


def test_a_branch_by_data() -> None:
    """Each computes from what is around, and one hands on what it gets."""
    made = compiled(
        chosen(
            [node("Mul", ["x", "two"], ["t"]), node("Sub", ["t", "e"], ["z"])],
            [node("Identity", ["x"], ["w"])],
        )
    )
    x = many / 100
    for given in (x, -x):
        expected = given * 2 - np.exp(given) if given.sum() > 0 else given
        np.testing.assert_allclose(made(given), -expected, rtol=1e-6)
    assert steps(made, Branch, x=x) == 1


def test_branches_in_branches() -> None:
    inner = {
        "then_branch": graph("a", [], [node("Abs", ["x"], ["p"])], [tensor("p", 300)]),
        "else_branch": graph("b", [], [node("Neg", ["e"], ["q"])], [tensor("q", 300)]),
    }
    made = compiled(
        chosen(
            [
                node("ReduceMax", ["x"], ["top"], keepdims=0),
                node("Greater", ["top", "two"], ["high"]),
                node("If", ["high"], ["z"], **inner),
            ],
            [node("Add", ["x", "one"], ["w"])],
        )
    )
    for x in (many, many / 200, -many):
        expected = np.abs(x) if x.max() > 2 else -np.exp(x)
        expected = expected if x.sum() > 0 else x + 1
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(made(x), -expected, rtol=1e-6)


def test_branches_of_different_shapes() -> None:
    """What is computed up to the flag runs first: what is behind it is compiled for either."""
    other = [node("Identity", ["x"], ["w"])]
    reduced = [node("ReduceSum", ["x"], ["z"], keepdims=1)]
    made = compiled(chosen(reduced, other, (1,)))
    for x in (many, -many, many):
        expected = x.sum(keepdims=True) if x.sum() > 0 else x
        np.testing.assert_allclose(made(x), -expected, rtol=1e-5)


def test_a_flag_that_is_given_decides_ahead_of_the_run() -> None:
    """Where branches are alike, too: a sample rate chooses among programs, each without what the others do."""
    branches = {
        "then_branch": graph("a", [], [node("Abs", ["x"], ["p"])], [tensor("p", 4)]),
        "else_branch": graph("b", [], [node("Neg", ["x"], ["q"])], [tensor("q", 4)]),
    }
    made = compiled(
        model(
            [node("If", ["flag"], ["y"], **branches)],
            [tensor("flag", type=BOOL), tensor("x", 4)],
            ["y"],
        )
    )
    x = many[:4]
    for flag in (np.array(True), np.array(False)):
        assert made(flag, x).tolist() == (x if flag else -x).tolist()
        assert steps(made, Branch, flag=flag, x=x) == 0


def test_a_flag_that_is_given_chooses_a_program() -> None:
    """So its branches may have different shapes."""
    branches = {
        "then_branch": graph("a", [], [node("ReduceSum", ["x"], ["p"], keepdims=0)], [tensor("p")]),
        "else_branch": graph("b", [], [node("Neg", ["x"], ["q"])], [tensor("q", 4)]),
    }
    made = compiled(
        model(
            [node("If", ["flag"], ["y"], **branches)],
            [tensor("flag", type=BOOL), tensor("x", 4)],
            ["y"],
        )
    )
    x = many[:4]
    assert made(np.array(True), x) == 6
    assert made(np.array(False), x).tolist() == (-x).tolist()
    assert steps(made, Branch, flag=np.array(True), x=x) == 0


def loop(
    body: list[Any],
    outputs: list[Any],
    inputs: list[str],
    given: list[ValueInfoProto],
    **constants: Any,
) -> ModelProto:
    """A Loop that carries `s` and `n`, perhaps with parts to stack up."""
    carried = [tensor("s", 3), tensor("n", type=INT)]
    inside = [tensor("i", type=INT), tensor("keep", type=BOOL), *carried]
    made = graph("body", inside, body, outputs, **constants)
    names = ["s_last", "n_last", *[f"all_{k}" for k in range(len(outputs) - 3)]]
    return model([node("Loop", inputs, names, name="turns", body=made)], given, names)


CARRIED = [tensor("go", type=BOOL), tensor("s_new", 3), tensor("n_new", type=INT)]
# s is doubled and n counts, as long as the largest of s is small.
DOUBLING = [
    node("Add", ["s", "s"], ["s_new"]),
    node("Add", ["n", "one"], ["n_new"]),
    node("ReduceMax", ["s_new"], ["top"], keepdims=0),
    node("Less", ["top", "limit"], ["go"]),
]
CONSTANTS = {"one": np.int64(1), "limit": np.float32(100)}


def doubling(s: Any, most: int | None = None, goes_on: bool = True) -> tuple[Any, int]:
    n = 0
    while goes_on and (most is None or n < most):
        s, n = s + s, n + 1
        goes_on = s.max() < 100
    return s, n


def test_a_loop_until_data_says_so() -> None:
    """The first turn is known to be made; of the others it is seen when it runs."""
    made = compiled(
        loop(
            DOUBLING,
            CARRIED,
            ["", "", "x", "zero"],
            [tensor("x", 3), tensor("zero", type=INT)],
            **CONSTANTS,
        )
    )
    for top in (1, 60, 99.5, 1000):
        x = np.array([0.5, top, 1], np.float32)
        s, n = made(x, np.array(0))
        expected = doubling(x)
        assert (s.tolist(), int(n)) == (expected[0].tolist(), expected[1])
    assert steps(made, While, x=x, zero=np.array(0)) == 1


def test_a_loop_with_a_bound_and_a_flag_of_data() -> None:
    made = compiled(
        model(
            [
                node("ReduceSum", ["m"], ["most"], keepdims=0),
                node("ReduceMax", ["x"], ["top"], keepdims=0),
                node("Less", ["top", "limit"], ["go"]),
                node(
                    "Loop", ["most", "go", "x", "zero"], ["s_last", "n_last"],
                    body=graph(
                        "body",
                        [tensor("i", type=INT), tensor("keep", type=BOOL), tensor("s", 3), tensor("n", type=INT)],
                        [*DOUBLING[:2], node("ReduceMax", ["s_new"], ["t2"], keepdims=0),
                         node("Less", ["t2", "limit"], ["go2"])],
                        [tensor("go2", type=BOOL), *CARRIED[1:]],
                        one=np.int64(1),
                    ),
                ),
            ],
            [tensor("x", 3), tensor("m", 300, type=INT)],
            ["s_last", "n_last"],
            initializer=[
                numpy_helper.from_array(np.float32(100), "limit"),
                numpy_helper.from_array(np.int64(0), "zero"),
            ],
        )
    )  # fmt: skip
    for top, most in ((1, 0), (1, 3), (1, 50), (200, 5), (30, 2)):
        x, m = np.array([0.5, top, 1], np.float32), np.zeros(300, np.int64)
        m[7] = most
        s, n = made(x, m)
        expected = doubling(x, most, top < 100)
        assert (s.tolist(), int(n)) == (expected[0].tolist(), expected[1])


def test_turns_exchange_what_they_carry() -> None:
    """Each value becomes what the other one was."""
    body = graph(
        "body",
        [tensor("i", type=INT), tensor("keep", type=BOOL), tensor("a", 2), tensor("b", 2), tensor("last", type=INT)],
        [
            node("Identity", ["b"], ["a_new"]),
            node("Identity", ["a"], ["b_new"]),
            node("Identity", ["i"], ["last_new"]),
            node("Identity", ["keep"], ["go"]),
        ],
        [tensor("go", type=BOOL), tensor("a_new", 2), tensor("b_new", 2), tensor("last_new", type=INT)],
    )  # fmt: skip
    made = compiled(
        model(
            [
                node("ReduceSum", ["m"], ["most"], keepdims=1),
                node("Loop", ["most", "", "x", "z", "none"], ["p", "q", "r"], body=body),
            ],
            [tensor("x", 2), tensor("z", 2), tensor("m", 300, type=INT)],
            ["p", "q", "r"],
            initializer=[numpy_helper.from_array(np.int64(-1), "none")],
        )
    )
    x, z = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    for most in (0, 1, 2, 5):
        p, q, r = made(x, z, np.eye(1, 300, dtype=np.int64)[0] * most)
        a, b = (z, x) if most % 2 else (x, z)
        assert (p.tolist(), q.tolist(), int(r)) == (a.tolist(), b.tolist(), most - 1)


def test_a_loop_that_no_program_can_be() -> None:
    """Parts of which nobody knows how many there are, and what grows: the body is called for each turn."""
    given = [tensor("x", 3), tensor("zero", type=INT)]
    stacking = compiled(
        loop(
            [*DOUBLING, node("Neg", ["s_new"], ["part"])], [*CARRIED, tensor("part", 3)],
            ["", "", "x", "zero"], given, **CONSTANTS,
        )
    )  # fmt: skip
    growing = compiled(
        loop(
            [node("Concat", ["s", "s"], ["s_new"], axis=0), node("ReduceSum", ["s_new"], ["top"], keepdims=0),
             DOUBLING[1], DOUBLING[3]],
            CARRIED, ["", "", "x", "zero"], given, **CONSTANTS,
        )
    )  # fmt: skip
    for x in (many[:3], many[1:4], many[1:4] * 40):
        s, count, parts = stacking(x, np.array(0))
        assert (s.tolist(), int(count)) == (doubling(x)[0].tolist(), doubling(x)[1])
        assert parts.tolist() == [(-x * 2 ** (k + 1)).tolist() for k in range(count)]
        s, count = growing(x, np.array(0))
        assert s.tolist() == [*x] * 2**count
        assert s.sum() >= 100 > s.sum() / 2 or count == 1


def test_turns_of_a_loop_that_no_program_can_be() -> None:
    """As many as a number says, none, and parts of unlike shapes."""

    def with_turns(body: list[Any], most: int) -> tc.onnx.Model:
        stacks = graph(
            "body", [tensor("i", type=INT), tensor("keep", type=BOOL), tensor("v", 300)],
            [node("ReduceMax", ["v"], ["top"], keepdims=0), node("Greater", ["top", "one"], ["go"]), *body,
             node("Size", ["rows"], ["n"]), node("Cast", ["n"], ["part"], to=TensorProto.FLOAT),
             node("Div", ["v", "two"], ["w"])],
            [tensor("go", type=BOOL), tensor("w", 300), tensor("rows", type=INT)],
            one=np.float32(1), two=np.float32(2),
        )  # fmt: skip
        turns = node("Loop", ["most", "", "x"], ["y", "all"], name="turns", body=stacks)
        constant = numpy_helper.from_array(np.int64(most), "most")
        return compiled(model([turns], [tensor("x", 300)], ["y", "all"], initializer=[constant]))

    found = [node("NonZero", ["v"], ["places"]), node("Shape", ["places"], ["rows"])]
    y, rows = with_turns(found, 3)(many)
    assert np.array_equal(y, many / 8)
    assert rows.tolist() == [[1, 299]] * 3
    y, rows = with_turns(found, 0)(many)
    assert np.array_equal(y, many)
    assert rows.shape == (0, 2)
    unlike = [node("Cast", ["v"], ["t"], to=INT), node("NonZero", ["t"], ["rows"])]
    with pytest.raises(
        CompileError, match="Loop node 'turns': its steps make tensors of different"
    ):
        with_turns(unlike, 2)(many)


@pytest.mark.parametrize(
    ("operator", "reads", "takes", "makes", "message"),
    [
        ("If", ["flag"], [], [], "If node 'n': its body makes 0 tensors, and it needs 1"),
        ("If", ["flag"], [], ["x", "x"], "If node 'n': its body makes 2 tensors, and it needs 1"),
        ("If", ["flag"], ["v"], ["x"], "If node 'n': its body takes 1 tensors, and it gives 0"),
        ("Loop", ["", "flag", "x"], ["i", "v"], ["flag", "x"], "takes 2 tensors, and it gives 3"),
        ("Loop", ["", "flag", "x"], ["i", "go", "v"], ["go"], "makes 1 tensors, and it needs at least 2"),
        ("Loop", ["", "flag", "x"], ["i", "go", "v"], [], "makes 0 tensors, and it needs at least 2"),
        ("Scan", ["x", "rows"], ["v"], ["x"], "takes 1 tensors, and it gives 2"),
        ("Scan", ["x", "rows"], ["v", "r"], [], "makes 0 tensors, and it needs at least 1"),
    ],
)  # fmt: skip
def test_a_body_that_does_not_fit_its_node(
    operator: str, reads: list[str], takes: list[str], makes: list[str], message: str
) -> None:
    body = graph("body", [*map(tensor, takes)], [], [*map(tensor, makes)])
    names = ("then_branch", "else_branch") if operator == "If" else ("body",)
    attributes = {
        **dict.fromkeys(names, body),
        **({"num_scan_inputs": 1} if operator == "Scan" else {}),
    }
    broken = node(operator, reads, ["y"], name="n", **attributes)
    inputs = [tensor("flag", type=BOOL), tensor("x", 300), tensor("rows", 5)]
    with pytest.raises(CompileError, match=message):
        compiled(model([broken], inputs, ["y"]))


def test_a_constant_of_a_type_that_taskc_does_not_have() -> None:
    two_bits = TensorProto(name="c", data_type=TensorProto.INT2, dims=[2], int32_data=[0b0100])
    broken = node("Identity", ["c"], ["y"], name="n")
    with pytest.raises(CompileError, match="Identity node 'n': taskc doesn't compute with int2"):
        compiled(model([broken], [tensor("x", 3)], ["y"], initializer=[two_bits]))({"x": many[:3]})


def test_a_branch_that_says_how_much_there_is() -> None:
    made = compiled(
        chosen(
            [node("NonZero", ["x"], ["k"]), node("Cast", ["k"], ["z"], to=TensorProto.FLOAT)],
            [node("Identity", ["x"], ["w"])],
            (1, None),
        )
    )
    for x in (many, -many):
        assert np.array_equal(made(x), -np.arange(1, 300)[None] if x.sum() > 0 else -x)


def scanned(x: Any, z: Any, state: Any) -> tuple[Any, Any, Any]:
    """By columns of x, the last one first, and rows of z."""
    sums, products = [], []
    for t in range(len(z)):
        state = state + x[:, len(z) - 1 - t]
        sums.append(state * 2)
        products.append(state * z[t])
    return state, np.stack(sums[::-1], 1), np.stack(products)


@pytest.mark.parametrize("count", [0, 1, 2, 37])
def test_a_scan_is_a_loop(count: int) -> None:
    body = graph(
        "body",
        [tensor("s", 3), tensor("xt", 3), tensor("zt", 3)],
        [
            node("Add", ["s", "xt"], ["s_new"]),
            node("Add", ["s_new", "s_new"], ["twice"]),
            node("Mul", ["s_new", "zt"], ["product"]),
        ],
        [tensor("s_new", 3), tensor("twice", 3), tensor("product", 3)],
    )
    made = compiled(
        model(
            [
                node(
                    "Scan", ["s0", "x", "z"], ["s1", "sums", "products"], body=body, num_scan_inputs=2,
                    scan_input_axes=[1, 0], scan_input_directions=[1, 0], scan_output_axes=[-1, 0],
                    scan_output_directions=[1, 0],
                )
            ],
            [tensor("s0", 3), tensor("x", 3, None), tensor("z", None, 3)],
            ["s1", "sums", "products"],
        )
    )  # fmt: skip
    pick = np.random.default_rng(0)
    x, z, s = (pick.standard_normal(shape, np.float32) for shape in ((3, count), (count, 3), (3,)))
    found = made(s, x, z)
    if count:
        for one, other in zip(found, scanned(x, z, s), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
    assert [one.shape for one in found] == [(3,), (3, count), (count, 3)]
    assert steps(made, Loop, s0=s, x=x, z=z) == 1


def test_a_part_may_be_the_state_before_the_step() -> None:
    body = graph(
        "body",
        [tensor("s", 3), tensor("xt", 3)],
        [node("Add", ["s", "xt"], ["s_new"]), node("Identity", ["s"], ["part"])],
        [tensor("s_new", 3), tensor("part", 3)],
    )
    scan = node("Scan", ["s0", "x"], ["s1", "all"], body=body, num_scan_inputs=1)
    made = compiled(model([scan], [tensor("s0", 3), tensor("x", 4, 3)], ["s1", "all"]))
    s, x = many[:3], many[:12].reshape(4, 3)
    last, parts = made(s, x)
    sums = np.cumsum([s, *x], 0)
    assert np.array_equal(last, sums[-1])
    assert np.array_equal(parts, sums[:-1])


def test_a_scan_of_batches_is_a_loop_of_loops() -> None:
    body = graph(
        "body",
        [tensor("s", 3), tensor("xt", 3)],
        [node("Add", ["s", "xt"], ["s_new"]), node("Neg", ["s_new"], ["part"])],
        [tensor("s_new", 3), tensor("part", 3)],
    )
    scan = node(
        "Scan", ["", "s0", "x"], ["s1", "all"], body=body, num_scan_inputs=1, directions=[1]
    )
    made = compiled(
        model([scan], [tensor("s0", 2, 3), tensor("x", 2, 4, 3)], ["s1", "all"], opset=8)
    )
    s, x = many[:6].reshape(2, 3), many[:24].reshape(2, 4, 3)
    last, parts = made(s, x)
    sums = s[:, None] + np.cumsum(x[:, ::-1], 1)
    assert np.array_equal(last, sums[:, -1])
    assert np.array_equal(parts, -sums)
    assert steps(made, Loop, s0=s, x=x) == 2


def counted(count: int, body: list[Any], outputs: list[Any], **constants: Any) -> ModelProto:
    """A Loop of known count that carries `s` and the counter `n`, and reads `rows`."""
    constants = {"most": np.int64(count), "zero": np.int64(0), **constants}
    inside = [tensor("i", type=INT), tensor("keep", type=BOOL), tensor("s", 3), tensor("n", type=INT)]  # fmt: skip
    names = ["s_last", "n_last", *[f"all_{k}" for k in range(len(outputs) - 3)]]
    turns = node("Loop", ["most", "", "x", "zero"], names, name="turns",
                 body=helper.make_graph(body, "body", inside, outputs))  # fmt: skip
    arrays = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    return model([turns], [tensor("x", 3), tensor("rows", None, 3)], names, initializer=arrays)


# The counter counts by three, and chooses a row.
COUNTING = [
    node("Add", ["n", "three"], ["n_new"]),
    node("Mod", ["n", "five"], ["place"]),
    node("Gather", ["rows", "place"], ["row"]),
    node("Sub", ["row", "s"], ["s_new"]),
    node("Add", ["s_new", "row"], ["part"]),
]
COUNTED = {"three": np.int64(3), "five": np.int64(5)}


def counting(count: int, x: Any, rows: Any) -> tuple[Any, int, Any]:
    parts = []
    for step in range(count):
        row = rows[step * 3 % 5]
        x = row - x
        parts.append(x + row)
    return x, 3 * count, np.array(parts)


@pytest.mark.parametrize("ends", ["by the count", "by its counter"])
def test_the_body_of_a_loop_of_known_count_is_built_once(ends: str) -> None:
    """Counters are known in each step. A condition on them ends the loop before its count does."""
    is_counter = ends == "by its counter"
    going = node("Less", ["n_new", "end"], ["go"]) if is_counter else node("Identity", ["keep"], ["go"])  # fmt: skip
    calls = {}
    for count in (5, 50, 500):
        constants = {**COUNTED, "end": np.int64(3 * count - 1)}
        proto = counted(
            1 << 40 if is_counter else count,
            [*COUNTING, going],
            [*CARRIED, tensor("part", 3)],
            **constants,
        )
        made = compiled(proto)
        feeds = {"x": many[:3], "rows": many[:15].reshape(5, 3)}
        for one, other in zip(made(**feeds), counting(count, *feeds.values()), strict=True):
            assert np.array_equal(one, other)
        calls[count] = len([*calls_of(made.program(feeds).program.ir.calls)])
        assert steps(made, Loop, **feeds) == 1
    assert len({*calls.values()}) == 1


def test_a_counter_that_stops_counting() -> None:
    """It names row 0, then 2, and then 4 in all steps."""
    body = [
        node("Add", ["n", "two"], ["more"]),
        node("Min", ["more", "top"], ["n_new"]),
        node("Gather", ["rows", "n"], ["row"]),
        node("Sub", ["row", "s"], ["s_new"]),
        node("Identity", ["keep"], ["go"]),
    ]
    made = compiled(counted(9, body, CARRIED, two=np.int64(2), top=np.int64(4)))
    x, rows = many[:3], many[:15].reshape(5, 3)
    expected = x
    for step in range(9):
        expected = rows[min(2 * step, 4)] - expected
    s, n = made(x=x, rows=rows)
    assert (s.tolist(), int(n)) == (expected.tolist(), 4)
    assert steps(made, Loop, x=x, rows=rows) == 1


@pytest.mark.parametrize("turns", ["never", "every step"])
def test_a_flag_that_the_steps_carry(turns: str) -> None:
    """Flags are no sizes: those of all steps are a table."""
    turned = node("Not" if turns == "every step" else "Identity", ["flag"], ["other"])
    body = graph(
        "body",
        [tensor("i", type=INT), tensor("keep", type=BOOL), tensor("s", 3), tensor("flag", type=BOOL)],
        [
            turned,
            node("Neg", ["s"], ["minus"]),
            node("Where", ["flag", "x", "minus"], ["by"]),
            node("Add", ["s", "by"], ["s_new"]),
            node("Identity", ["keep"], ["go"]),
        ],
        [tensor("go", type=BOOL), tensor("s_new", 3), tensor("other", type=BOOL)],
    )  # fmt: skip
    loop = node("Loop", ["most", "", "x", "yes"], ["y", "last"], body=body)
    arrays = {"most": np.int64(9), "yes": np.array(True)}
    constants = [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()]
    made = compiled(model([loop], [tensor("x", 3)], ["y", "last"], initializer=constants))
    x = many[:3]
    y, last = made(x)
    assert y.tolist() == (x * 10 if turns == "never" else x).tolist()
    assert bool(last) == (turns == "never")
    assert steps(made, Loop, x=x) == 1


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_few_steps_are_built_one_by_one(count: int) -> None:
    made = compiled(
        counted(count, [*COUNTING, node("Identity", ["keep"], ["go"])], CARRIED, **COUNTED)
    )
    feeds = {"x": many[:3], "rows": many[:15].reshape(5, 3)}
    s, n = made(**feeds)
    expected = counting(count, *feeds.values())
    assert (s.tolist(), int(n)) == (expected[0].tolist(), expected[1])
    assert steps(made, Loop, **feeds) == 0


def test_steps_that_differ_in_type_are_built_one_by_one() -> None:
    """Three elements in the first step, and six in all that follow."""
    wide = graph(
        "body",
        [tensor("i", type=INT), tensor("keep", type=BOOL), tensor("s", None)],
        [
            node("Slice", ["s", "zero", "three"], ["low"]),
            node("Concat", ["low", "x"], ["s_new"], axis=0),
            node("Identity", ["keep"], ["go"]),
        ],
        [tensor("go", type=BOOL), tensor("s_new", None)],
        zero=np.array([0]),
        three=np.array([3]),
    )
    turns = node("Loop", ["most", "", "x"], ["y"], body=wide)
    most = numpy_helper.from_array(np.int64(9), "most")
    made = compiled(model([turns], [tensor("x", 3)], ["y"], initializer=[most]))
    x = many[:3]
    assert made(x).tolist() == [*x, *x]
    assert steps(made, Loop, x=x) == 0


def test_a_choice_by_the_step_is_a_branch() -> None:
    branches = {
        "then_branch": graph("a", [], [node("Sub", ["row", "s"], ["p"])], [tensor("p", 3)]),
        "else_branch": graph("b", [], [node("Add", ["row", "s"], ["q"])], [tensor("q", 3)]),
    }
    body = [
        *COUNTING[:3],
        node("Less", ["i", "three"], ["early"]),
        node("If", ["early"], ["s_new"], **branches),
        node("Identity", ["keep"], ["go"]),
    ]
    made = compiled(counted(40, body, CARRIED, **COUNTED))
    x, rows = many[:3], many[:15].reshape(5, 3)
    expected = x
    for step in range(40):
        row = rows[step * 3 % 5]
        expected = row - expected if step < 3 else row + expected
    assert made(x=x, rows=rows)[0].tolist() == expected.tolist()
    assert steps(made, Branch, x=x, rows=rows) == steps(made, Loop, x=x, rows=rows) == 1


def test_a_loop_in_a_branch() -> None:
    """It stays a loop, as does one in the body of a loop."""

    def times(name: str, inner: list[Any], given: str) -> Any:
        inside = [tensor(f"{name}i", type=INT), tensor(f"{name}c", type=BOOL), tensor(f"{name}v", 300)]  # fmt: skip
        nodes = [*inner, node("Identity", [f"{name}c"], [f"{name}k"])]
        outputs = [tensor(f"{name}k", type=BOOL), tensor(f"{name}w", 300)]
        body = helper.make_graph(nodes, name, inside, outputs)
        return node("Loop", [f"{name}n", "", given], [f"{name}y"], body=body)

    inner = times("b", [node("Sub", ["x", "bv"], ["bw"])], "av")
    outer = times("a", [inner, node("Add", ["by", "e"], ["aw"])], "x")
    proto = chosen([outer, node("Identity", ["ay"], ["z"])], [node("Identity", ["x"], ["w"])])
    proto.graph.initializer.extend(
        [numpy_helper.from_array(np.int64(count), name) for name, count in (("an", 7), ("bn", 9))]
    )
    made = compiled(proto)
    x = many / 1024
    expected = x
    for _ in range(7):
        expected = x - expected + np.exp(x)
    np.testing.assert_allclose(made(x), -expected, rtol=1e-5)
    np.testing.assert_array_equal(made(-x), x)
    assert steps(made, Loop, x=x) == 2


@pytest.mark.parametrize("seed", few(range(400), 12))
def test_random_loops(seed: int) -> None:
    """ONNX's evaluator joins parts of several axes along the first, so that shapes may differ."""
    proto, feeds = loop_of(seed)
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(proto).run(None, feeds)
    for one, other in zip(compiled(proto).run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(one.reshape(np.shape(other)), other, rtol=1e-4, atol=1e-4)


def grows(turns: int) -> ModelProto:
    """A Loop that adds a row in each turn."""
    body = graph(
        "body",
        [tensor("i", type=INT), tensor("go", type=BOOL), tensor("s", None, 2)],
        [node("Concat", ["s", "x"], ["t"], axis=0), node("Identity", ["go"], ["g"])],
        [tensor("g", type=BOOL), tensor("t", None, 2)],
    )
    loop = node("Loop", ["most", "", "x"], ["y"], body=body)
    constant = numpy_helper.from_array(np.int64(turns), "most")
    return model([loop], [tensor("x", None, 2)], ["y"], initializer=[constant])


@pytest.mark.parametrize("turns", [3, 300])
def test_tensors_that_grow_in_many_turns(turns: int) -> None:
    """They are written out up to a limit, and beyond it one program with dimensions serves all turns."""
    x = np.array([[1, 2]], np.float32)
    made = compiled(grows(turns))
    np.testing.assert_array_equal(made(x), np.repeat(x, turns + 1, axis=0))
    assert len(made.programs) <= 4


@pytest.mark.parametrize("backwards", [0, 1])
def test_a_scan_whose_steps_read_a_size_that_is_data(backwards: int) -> None:
    body = graph(
        "body",
        [tensor("s"), tensor("row", None)],
        [
            node("NonZero", ["row"], ["at"]), node("Transpose", ["at"], ["places"]),
            node("GatherND", ["row", "places"], ["v"]), node("ReduceProd", ["v"], ["p"], keepdims=0),
            node("Add", ["s", "p"], ["t"]), node("Identity", ["t"], ["seen"]),
        ],
        [tensor("t"), tensor("seen")],
    )  # fmt: skip
    scan = node(
        "Scan", ["zero", "x"], ["end", "all"], body=body, num_scan_inputs=1, scan_input_axes=[1],
        scan_input_directions=[backwards], scan_output_directions=[backwards],
    )  # fmt: skip
    zero = numpy_helper.from_array(np.float32(0), "zero")
    made = compiled(model([scan], [tensor("x", 3, None)], ["end", "all"], initializer=[zero]))
    x = np.array([[1, 0, 2, 0], [0, 3, 4, 0], [5, 0, 0, 7]], np.float32)
    for given in (x, x[:, :2]):
        columns = given.T[::-1] if backwards else given.T
        sums = np.cumsum([np.prod(one[one != 0]) for one in columns])
        end, seen = made(given)
        assert end == sums[-1]
        assert seen.tolist() == (sums[::-1] if backwards else sums).tolist()


@pytest.mark.parametrize("is_known", [False, True])
def test_no_turn_makes_no_parts(is_known: bool) -> None:
    """They have the shape that a turn would have made."""
    body = graph(
        "body",
        [tensor("i", type=INT), tensor("go", type=BOOL), tensor("s", None)],
        [node("Mul", ["s", "s"], ["t"]), node("Concat", ["s", "t"], ["u"], axis=0), node("Identity", ["go"], ["g"])],
        [tensor("g", type=BOOL), tensor("t", None), tensor("u", None)],
    )  # fmt: skip
    nodes = [node("Loop", ["most", "", "x"], ["y", "all"], body=body), node("Neg", ["all"], ["r"])]
    ends = [tensor("x", None)] if is_known else [tensor("x", None), tensor("most", type=INT)]
    constants = [numpy_helper.from_array(np.int64(0), "most")] if is_known else []
    made = compiled(model(nodes, ends, ["y", "r"], initializer=constants))
    for size in (2, 3, 5):
        x = np.ones(size, np.float32)
        y, r = made(x) if is_known else made(x, np.array(0))
        assert y.shape == (size,)
        assert r.shape == (0, 2 * size)
    if not is_known:
        assert made(x, np.array(2))[1].shape == (2, 2 * size)
