"""Random Loops and Scans: counters, conditions, stacked parts, branches by step or data, nested loops, new shapes."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from .models import model, node, tensor

F, INT, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
ROWS = 7
_COUNTS = (0, 1, 2, 3, 5, 6, 9, 12)


def _constant(name: str, value: Any) -> Any:
    return node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)))


class _Body:
    """The nodes of one body. It reads `x`, f32[4], `rows`, f32[7, 4], and `flag`, f32 of one element."""

    def __init__(self, random: Random, prefix: str) -> None:
        self.random = random
        self.prefix = prefix
        self.nodes: list[Any] = []
        self.count = 0

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        self.count += 1
        name = f"{self.prefix}_{self.count}"
        self.nodes.append(node(operator, [*inputs], [name], **attributes))
        return name

    def constant(self, value: Any) -> str:
        return self.add("Constant", value=numpy_helper.from_array(np.asarray(value)))

    def integer(self, numbers: list[str]) -> str:
        """A number of some numbers, small again."""
        one = self.random.choice(numbers)
        by = self.constant(np.int64(self.random.choice((1, 1, 2, 3))))
        kind = self.random.choice(("Add", "Add", "Add", "Mul", "Mod", "Max"))
        result = self.add("Add" if kind in ("Mul", "Mod") else kind, one, by)
        if kind == "Mul":
            result = self.add("Mul", result, by)
        return result if kind == "Add" else self.add("Mod", result, self.constant(np.int64(50)))

    def row(self, number: str) -> str:
        """A row of `rows`, by a number."""
        place = self.add("Mod", number, self.constant(np.int64(ROWS)))
        kind = self.random.choice(("Gather", "Gather", "Slice"))
        if kind == "Gather":
            return self.add("Gather", "rows", place)
        zero = self.constant(np.array([0]))
        start = self.add("Unsqueeze", place, zero)
        stop = self.add("Add", start, self.constant(np.array([1])))
        return self.add("Squeeze", self.add("Slice", "rows", start, stop, zero), zero)

    def flag(self, numbers: list[str]) -> str:
        if self.random.random() < 0.6:
            limit = self.constant(np.int64(self.random.randrange(8)))
            return self.add(
                self.random.choice(("Less", "Equal")), self.random.choice(numbers), limit
            )
        return self.add("Greater", "flag", self.constant(np.float32(0)))

    def floats(self, vectors: list[str], numbers: list[str], depth: int) -> str:
        """A f32[4] of some others, and of numbers."""
        one, other = (self.random.choice(vectors) for _ in range(2))
        kind = self.random.choice(
            ("Add", "Sub", "Tanh", "Row", "Row", "Number", "Exchange", "If", "Loop", "Scan")
        )
        if kind in ("If", "Loop", "Scan") and depth > 1:
            kind = "Sub"
        match kind:
            case "Tanh":
                return self.add("Tanh", one)
            case "Row":
                return self.add("Sub", self.row(self.random.choice(numbers)), one)
            case "Number":
                cast = self.add("Cast", self.random.choice(numbers), to=F)
                return self.add("Sub", one, cast)
            case "Exchange":
                return other
            case "If":
                branches = {}
                flag = self.flag(numbers)
                for name in ("then_branch", "else_branch"):
                    inner = _Body(self.random, f"{self.prefix}_{self.count}{name[0]}")
                    result = inner.add("Identity", inner.floats(vectors, numbers, depth + 1))
                    branches[name] = helper.make_graph(inner.nodes, name, [], [tensor(result, 4)])
                return self.add("If", flag, **branches)
            case "Loop" | "Scan":
                return self.loop(vectors, numbers, depth, is_scan=kind == "Scan")
        return self.add(kind, one, other)

    def loop(
        self, vectors: list[str], numbers: list[str], depth: int, *, is_scan: bool = False
    ) -> str:
        prefix = f"{self.prefix}_{self.count}b"
        start = self.random.choice(vectors)
        inner = _Body(self.random, prefix)
        v, i, c = f"{prefix}_v", f"{prefix}_i", f"{prefix}_c"
        if is_scan:
            last = inner.floats([*vectors, v, f"{prefix}_row"], numbers, depth + 1)
            outputs = [tensor(inner.add("Identity", last), 4)]
            body = helper.make_graph(
                inner.nodes, prefix, [tensor(v, 4), tensor(f"{prefix}_row", 4)], outputs
            )
            return self.add("Scan", start, "rows", body=body, num_scan_inputs=1)
        result = inner.floats([*vectors, v], [*numbers, i], depth + 1)
        goes_on = inner.add("Identity", c)
        outputs = [tensor(goes_on, type=B), tensor(inner.add("Identity", result), 4)]
        inputs = [tensor(i, type=INT), tensor(c, type=B), tensor(v, 4)]
        body = helper.make_graph(inner.nodes, prefix, inputs, outputs)
        count = self.constant(np.int64(self.random.choice(_COUNTS)))
        return self.add("Loop", count, "true", start, body=body)


def loop_of(seed: int) -> tuple[ModelProto, dict[str, Any]]:
    """A model of one Loop, around others perhaps, and its inputs."""
    random = Random(seed)
    body = _Body(random, "b")
    carried: list[tuple[str, str, int]] = []  # names inside, initial values and types
    numbers, vectors = ["i"], ["x"]
    for place in range(random.randrange(1, 4)):
        is_number = random.random() < 0.5
        start = random.choice(("two", "zero") if is_number else ("x", "ones"))
        carried.append((f"s{place}", start, INT if is_number else F))
        (numbers if is_number else vectors).append(f"s{place}")
    grows = random.random() < 0.15
    depth = 2 if grows else 0  # of one element in the first step, which bodies within can't carry
    results = []
    for name, _, kind in carried:
        values = numbers if kind == INT else vectors
        made = body.integer(numbers) if kind == INT else body.floats(vectors, numbers, depth)
        if grows and kind == F and name == vectors[-1]:
            made = body.add("Concat", name, body.random.choice(vectors), axis=0)
            made = body.add("ReduceMax", made, keepdims=1)
        values.append(made)
        results.append(body.add("Identity", made))
    count = 0 if grows else random.randrange(3)  # the evaluator joins no parts of different shapes
    parts = [body.add("Identity", body.floats(vectors, numbers, 0)) for _ in range(count)]
    ends = random.choice(("never", "never", "never", "count", "data"))
    if ends == "never":
        goes_on = body.add("Identity", "c")
    elif ends == "count":
        limit = body.constant(np.int64(random.choice((1, 4, 9, 30))))
        goes_on = body.add("Less", random.choice(numbers), limit)
    else:
        top = body.add("ReduceMax", random.choice(vectors), keepdims=0)
        goes_on = body.add("Less", top, body.constant(np.float32(random.choice((0.5, 1, 2)))))
    shape = (None,) if grows else (4,)
    kinds = [tensor(name, *(() if kind == INT else shape), type=kind) for name, _, kind in carried]
    made_kinds = [
        tensor(name, *(() if kind == INT else shape), type=kind)
        for name, (_, _, kind) in zip(results, carried, strict=True)
    ]
    graph: GraphProto = helper.make_graph(
        body.nodes,
        "body",
        [tensor("i", type=INT), tensor("c", type=B), *kinds],
        [tensor(goes_on, type=B), *made_kinds, *[tensor(part, 4) for part in parts]],
    )
    count = random.choice(_COUNTS[1:] if parts else _COUNTS)
    names = [*[f"last{place}" for place in range(len(carried))], *[f"all{n}" for n in range(len(parts))]]  # fmt: skip
    loop = node("Loop", ["n", "true", *[start for _, start, _ in carried]], names, body=graph)
    constants = {
        "n": np.int64(count), "two": np.int64(2), "zero": np.int64(0), "ones": np.ones(4, np.float32),
        "true": np.array(True),
    }  # fmt: skip
    proto = model(
        [loop],
        [tensor("x", 4), tensor("rows", ROWS, 4), tensor("flag")],
        names,
        initializer=[numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    values = np.random.default_rng(seed)
    feeds = {
        "x": values.standard_normal(4, np.float32),
        "rows": values.standard_normal((ROWS, 4), np.float32),
        "flag": np.float32(values.choice([-1, 1])),
    }
    return proto, feeds
