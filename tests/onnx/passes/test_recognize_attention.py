"""Attention is recognized however a model writes it, and what only looks like it isn't."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

import taskc as tc
from taskc.onnx.importer import import_graph, is_known
from taskc.onnx.passes.pipeline import rewritten
from taskc.onnx.passes.recognize_attention import recognize_attention
from taskc.onnx.reader import read
from taskc.onnx.session import compile
from taskc.programs.ir import kernels_of
from taskc.runtime.driver import scheduled
from tests.onnx.models import model, node, tensor
from tests.onnx.passes.recognition import Feeds, check, is_left_alone, operators

BATCHES, HEADS, SIDE = (
    2,
    4,
    4,
)  # as many heads as queries, keys and features: each lookalike has shapes that fit
LEAST = float(np.finfo(np.float32).min)
END = np.iinfo(np.int64).max


class Net:
    """Nodes on q, k and v; each method appends one and returns what it makes."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self.inputs: dict[str, tuple[int, ...]] = dict.fromkeys("qkv", (BATCHES, HEADS, SIDE, SIDE))
        self.masks: dict[str, tuple[int, ...]] = {}

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(value, dtype)
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(node(operator, [*inputs], [name], **attributes))
        return name

    def turned(self, k: str = "k", perm: tuple[int, ...] = (0, 1, 3, 2)) -> str:
        return self.add("Transpose", k, perm=[*perm])

    def extents(self, of: str, first: int, end: int) -> str:
        bounds = [self.constant([place], np.int64) for place in (first, end)]
        return self.add("Slice", self.add("Shape", of), *bounds)

    def by_width(self, name: str, of: str = "q", root: str = "Sqrt") -> str:
        """Scaled by sqrt(1 / sqrt(width)), with the width of a tensor."""
        width = self.add("Cast", self.extents(of, -1, END), to=TensorProto.FLOAT)
        inverse = self.add("Div", self.constant([1]), self.add(root, width))
        return self.add("Mul", name, self.add("Sqrt", inverse))

    def scores(self) -> str:
        return self.add("Mul", self.add("MatMul", "q", self.turned()), self.constant(0.5))

    def attended(self, scores: str) -> str:
        return self.add("MatMul", self.add("Softmax", scores, axis=-1), "v")

    def model(self, *outputs: str) -> ModelProto:
        weights = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        inputs = [tensor(name, *shape) for name, shape in self.inputs.items()]
        inputs += [tensor(it, *shape, type=TensorProto.BOOL) for it, shape in self.masks.items()]
        return model(self.nodes, inputs, [*outputs], initializer=weights)

    @property
    def feeds(self) -> Feeds:
        """Of masks, each query sees its own key at least."""
        random = np.random.default_rng(5)
        feeds: Feeds = {
            name: random.standard_normal(shape).astype(np.float32)
            for name, shape in self.inputs.items()
        }
        for name, shape in self.masks.items():
            feeds[name] = (random.random(shape) < 0.5) | np.eye(*shape[-2:], dtype=bool)
        return feeds


def plain(net: Net) -> str:
    return net.attended(net.add("MatMul", "q", net.turned()))


def scaled(net: Net) -> str:
    return net.attended(net.scores())


def divided(net: Net) -> str:
    return net.attended(net.add("Div", net.add("MatMul", "q", net.turned()), net.constant([1.5])))


def both_scaled(net: Net) -> str:
    q = net.add("Mul", net.constant(0.7), "q")
    k = net.add("Mul", net.turned(), net.constant(0.7))
    return net.attended(net.add("MatMul", q, k))


def added(net: Net) -> str:
    net.inputs["mask"] = (BATCHES, 1, 1, SIDE)
    return net.attended(net.add("Add", "mask", net.scores()))


def added_of_two_axes(net: Net) -> str:
    net.inputs["mask"] = (SIDE, SIDE)
    return net.attended(net.add("Add", net.scores(), "mask"))


def causal(net: Net) -> str:
    mask = net.constant(np.triu(np.full((SIDE, SIDE), LEAST), 1))
    return net.attended(net.add("Add", net.scores(), mask))


def boolean(net: Net) -> str:
    net.masks["mask"] = (BATCHES, 1, SIDE, SIDE)
    mask = net.add("Where", "mask", net.constant(0), net.constant(-np.inf))
    return net.attended(net.add("Add", net.scores(), mask))


def picked(net: Net) -> str:
    net.masks["mask"] = (1, 1, SIDE, SIDE)
    return net.attended(net.add("Where", "mask", net.scores(), net.constant(-np.inf)))


def picked_or_least(net: Net) -> str:
    net.masks["mask"] = (1, 1, SIDE, SIDE)
    return net.attended(net.add("Where", "mask", net.scores(), net.constant(LEAST)))


def guarded(net: Net, question: str = "IsNaN", instead: float = 0) -> str:
    net.masks["mask"] = (1, 1, SIDE, SIDE)
    mask = net.add("Where", "mask", net.constant(0), net.constant(-np.inf))
    shares = net.add("Softmax", net.add("Add", net.scores(), mask), axis=-1)
    asked = net.add(question, shares)
    return net.add("MatMul", net.add("Where", asked, net.constant(instead), shares), "v")


def behind_copies(net: Net) -> str:
    shares = net.add("Softmax", net.add("Identity", net.scores()), axis=3)
    return net.add("MatMul", net.add("Dropout", shares), "v")


def from_rows(net: Net) -> str:
    """Keys by [batch, key, head, feature], as BERT has them."""
    columns = net.turned(perm=(0, 2, 3, 1))
    return net.attended(net.add("MatMul", "q", columns))


def stacked(net: Net) -> str:
    """As PyTorch turns keys."""
    stack = net.add("Reshape", "k", net.constant([-1, SIDE, SIDE], np.int64))
    turned = net.add("Transpose", stack, perm=[0, 2, 1])
    shape = net.constant([BATCHES, HEADS, SIDE, SIDE], np.int64)
    return net.attended(net.add("MatMul", "q", net.add("Reshape", turned, shape)))


def stacked_by_shapes(net: Net, of: str = "k", ends: tuple[int, int] = (-1, -2)) -> str:
    """As PyTorch turns keys of open extents."""
    batches, rows, columns = (
        net.extents(of, *bounds) for bounds in ((-END - 1, -2), (-2, -1), (-1, END))
    )
    last = {-1: columns, -2: rows}
    whole = net.add("Concat", net.constant([-1], np.int64), rows, columns, axis=0)
    stack = net.add("Transpose", net.add("Reshape", "k", whole), perm=[0, 2, 1])
    shape = net.add("Concat", batches, *[last[end] for end in ends], axis=0)
    return net.attended(net.add("MatMul", "q", net.add("Reshape", stack, shape)))


def scaled_by_width(net: Net) -> str:
    """As PyTorch's older exporter writes the usual scale."""
    return net.attended(net.add("MatMul", net.by_width("q"), net.by_width(net.turned(), "q")))


def grouped(net: Net) -> str:
    """Two heads of keys and values for four of queries."""
    repeated = []
    for name in "kv":
        net.inputs[name] = (BATCHES, 2, SIDE, SIDE)
        one = net.add("Unsqueeze", name, net.constant([2], np.int64))
        two = net.add("Expand", one, net.constant([BATCHES, 2, 2, SIDE, SIDE], np.int64))
        shape = net.constant([BATCHES, HEADS, SIDE, SIDE], np.int64)
        repeated.append(net.add("Reshape", two, shape))
    shares = net.add("Softmax", net.add("MatMul", "q", net.turned(repeated[0])), axis=-1)
    return net.add("MatMul", shares, repeated[1])


WAYS = [
    plain, scaled, divided, both_scaled, added, added_of_two_axes, causal, boolean, picked,
    picked_or_least, guarded, behind_copies, from_rows, stacked, stacked_by_shapes, scaled_by_width,
    grouped,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_way_to_write_attention(way: Any) -> None:
    net = Net()
    made = net.model(way(net))
    found = operators(made)
    assert "taskc.Attention" in found
    assert not {"MatMul", "Softmax", "IsNaN"} & {*found}
    assert "Expand" not in found
    check(made, net.feeds)


def of_other_axis(net: Net) -> str:
    return net.add("MatMul", net.add("Softmax", net.scores(), axis=2), "v")


def of_logarithms(net: Net) -> str:
    return net.add("MatMul", net.add("LogSoftmax", net.scores(), axis=-1), "v")


def without_a_turn(net: Net) -> str:
    return net.attended(net.add("MatMul", "q", "k"))


def heads_turned(net: Net) -> str:
    return net.attended(net.add("MatMul", "q", net.turned(perm=(0, 3, 1, 2))))


def scaled_behind_the_mask(net: Net) -> str:
    net.inputs["mask"] = (SIDE, SIDE)
    sums = net.add("Add", net.add("MatMul", "q", net.turned()), "mask")
    return net.attended(net.add("Mul", sums, net.constant(0.5)))


def scaled_by_head(net: Net) -> str:
    by = net.constant(np.ones((HEADS, 1, 1)))
    return net.attended(net.add("Mul", net.add("MatMul", "q", net.turned()), by))


def divided_by_scores(net: Net) -> str:
    return net.attended(net.add("Div", net.constant(0.5), net.add("MatMul", "q", net.turned())))


def multiplied_mask(net: Net) -> str:
    net.inputs["mask"] = (SIDE, SIDE)
    return net.attended(net.add("Mul", net.scores(), "mask"))


def mask_taken_off(net: Net) -> str:
    net.inputs["mask"] = (SIDE, SIDE)
    return net.attended(net.add("Sub", net.scores(), "mask"))


def two_masks(net: Net) -> str:
    net.inputs["mask"] = (SIDE, SIDE)
    return net.attended(net.add("Add", net.add("Add", net.scores(), "mask"), "mask"))


def picked_where_false(net: Net) -> str:
    net.masks["mask"] = (1, 1, SIDE, SIDE)
    return net.attended(net.add("Where", "mask", net.constant(LEAST), net.scores()))


def picked_or_few(net: Net) -> str:
    net.masks["mask"] = (1, 1, SIDE, SIDE)
    return net.attended(net.add("Where", "mask", net.scores(), net.constant(-10)))


def guarded_against_infinity(net: Net) -> str:
    return guarded(net, "IsInf")


def guarded_by_one(net: Net) -> str:
    return guarded(net, instead=1)


def values_first(net: Net) -> str:
    return net.add("MatMul", "v", net.add("Softmax", net.scores(), axis=-1))


def shares_moved(net: Net) -> str:
    shares = net.add("Softmax", net.scores(), axis=-1)
    return net.add("MatMul", net.add("Add", shares, net.constant(1)), "v")


def stacked_by_other_shapes(net: Net) -> str:
    return stacked_by_shapes(net, of="v")


def stacked_and_reshaped(net: Net) -> str:
    return stacked_by_shapes(net, ends=(-2, -1))


def scaled_by_other_width(net: Net) -> str:
    return net.attended(net.add("MatMul", net.by_width("q"), net.by_width(net.turned(), "v")))


def scaled_by_exponential(net: Net) -> str:
    q = net.by_width("q", root="Exp")
    return net.attended(net.add("MatMul", q, net.by_width(net.turned(), root="Exp")))


LOOKALIKES = [
    stacked_by_other_shapes, stacked_and_reshaped,
    of_other_axis, of_logarithms, without_a_turn, scaled_behind_the_mask, scaled_by_head,
    divided_by_scores, multiplied_mask, mask_taken_off, picked_where_false, picked_or_few,
    guarded_against_infinity, guarded_by_one, values_first, shares_moved, two_masks,
]  # fmt: skip


@pytest.mark.parametrize("way", LOOKALIKES, ids=lambda way: way.__name__)
def test_what_looks_like_attention(way: Any) -> None:
    net = Net()
    assert is_left_alone(net.model(way(net)), recognize_attention)


def test_keys_turned_another_way_are_other_keys() -> None:
    net = Net()
    made = net.model(heads_turned(net))
    check(made, net.feeds)


def test_shares_that_others_read_are_computed() -> None:
    net = Net()
    shares = net.add("Softmax", net.scores(), axis=-1)
    made = net.model(net.add("MatMul", shares, "v"), shares)
    assert is_left_alone(made, recognize_attention)


@pytest.mark.parametrize("shape", [(HEADS, SIDE, SIDE), (1, HEADS, SIDE, SIDE), (SIDE, SIDE)])
@pytest.mark.parametrize("name", ["q", "v"])
def test_operands_that_are_repeated(name: str, shape: tuple[int, ...]) -> None:
    """The products broadcast, which the library's attention doesn't."""
    net = Net()
    net.inputs[name] = shape
    net.masks["mask"] = (1, 1, SIDE, SIDE)
    made = net.model(picked(net))
    assert "taskc.Attention" in operators(made)
    check(made, net.feeds)


def test_a_mask_of_more_rows_than_there_are_queries() -> None:
    net = Net()
    net.inputs |= {"q": (BATCHES, HEADS, 1, SIDE), "mask": (SIDE, SIDE)}
    made = net.model(net.attended(net.add("Add", net.scores(), "mask")))
    check(made, net.feeds)


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    net = Net()
    made = net.model(guarded(net))
    feeds = {**net.feeds, "mask": np.zeros((1, 1, SIDE, SIDE), bool)}
    check(made, feeds)


def test_exact_sums_are_those_that_the_model_writes() -> None:
    net = Net()
    made = read(net.model(causal(net)), is_known)
    assert rewritten(made, exact=True).nodes == made.nodes


def test_a_causal_mask_that_the_model_holds_is_no_operand() -> None:
    net = Net()
    program = compile(net.model(causal(net))).program(net.feeds).program
    (attention,) = kernels_of(scheduled(program)[0]).values()
    assert len(attention.parameters) == 4  # q, k, v and y


def test_of_extents_that_only_a_call_says() -> None:
    net = Net()
    made = net.model(added(net))
    graph = recognize_attention(read(made, is_known))
    n, m = tc.dim("n"), tc.dim("m")
    types = dict.fromkeys("qkv", tc.f32[n, HEADS, m, SIDE]) | {"mask": tc.f32[n, 1, 1, m]}
    program = import_graph(graph, types).program
    random = np.random.default_rng(2)
    feeds = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in {
            **dict.fromkeys("qkv", (3, HEADS, 5, SIDE)),
            "mask": (3, 1, 1, 5),
        }.items()
    }
    (expected,) = ReferenceEvaluator(made).run(None, feeds)
    assert np.abs(program(**feeds) - expected).max() < 1e-5
