"""The examples: each one runs, is proved, and means the same after every pass, on every target."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.ir import nodes as ir
from taskc.ir.printer import to_text
from taskc.ir.rewrite import statements, walk
from taskc.lang.definition import Definition, KernelDefinition
from taskc.passes.pipeline import lower_steps
from tests.example_files import FILES, definitions_of, example
from tests.stages import results, same_after_every_pass

TARGETS = ("generic", "sm_80", "sm_90a")

Make = Callable[..., Definition]


def kernels_of(module: ModuleType) -> dict[str, KernelDefinition]:
    """Those at the top of a file, and those that the programs there call."""
    return {
        name if it is kernel else f"{name}.{kernel.name}": kernel
        for name, it in definitions_of(module).items()
        for kernel in it.kernels
    }


# --- running a kernel at every stage ---------------------------------------------------------


def arguments_of(definition: KernelDefinition) -> list[Any]:
    """The kernel's own example arguments, and arrays for its outputs."""
    parameters = definition.ir.parameters
    is_given = [isinstance(p, ir.Variable) or p.role != "out" for p in parameters]
    given = iter(definition.example())
    arguments = [next(given) if present else None for present in is_given]
    sizes: dict[Any, int] = {}
    for parameter, argument in zip(parameters, arguments, strict=True):
        if isinstance(parameter, ir.Tensor) and argument is not None:
            sizes |= dict(zip(parameter.shape, argument.shape, strict=True))
    for position, parameter in enumerate(parameters):
        if isinstance(parameter, ir.Tensor) and parameter.role == "out":
            shape = [n if isinstance(n, int) else sizes[n] for n in parameter.shape]
            arguments[position] = np.zeros(shape, parameter.dtype.numpy)
    return arguments


def on(target: str, definition: KernelDefinition) -> ir.Kernel:
    return replace(definition.ir, target=target)


def check_every_stage(definition: KernelDefinition, targets: Sequence[str] = TARGETS) -> None:
    """The kernel after each pass, on each target, computes what it computes as it is written."""
    arguments = arguments_of(definition)
    expected = results(definition.ir, arguments)
    seen: set[str] = set()
    for target in targets:
        kernel = on(target, definition)
        kernels = same_after_every_pass(kernel, arguments, expected=expected, seen=seen)
        assert kernels[-1].stage == "lean"


# --- the files -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_an_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = path.stem.partition("_")[2]
    example(name).main()
    (line,) = capsys.readouterr().out.splitlines()
    start, said, errors = line.partition(": largest error ")
    assert start == name
    assert said
    numbers = [float(text) for text in re.findall(r"\d\S*[\d]|\b\d\b", errors)]
    assert numbers
    assert max(numbers) < 1e-2


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_an_example_says_what_its_mappings_say(path: Path) -> None:
    module = example(path.stem.partition("_")[2])
    assert module.__doc__ is not None
    summary, _, rest = module.__doc__.partition("\n\n")
    assert summary.endswith(".")
    sentence = re.fullmatch(r"`[^`]+` says: [^.]+(\.[^. ][^.]*)*\.\n", rest)
    assert sentence, f"one sentence on the mappings, not: {rest}"


def test_all_are_here() -> None:
    names = (
        *("vector_add", "transpose", "matmul", "softmax", "layer_norm", "convolution"),
        *("histogram", "attention", "split_k", "epilogue", "operator", "tuning"),
        *("program", "onnx", "combine", "scan", "look_back", "four_bits"),
        *("complex_pairs", "sequential", "arrays"),
    )
    assert [path.stem for path in FILES] == [
        f"{number:02}_{name}" for number, name in enumerate(names, 1)
    ]
    for path in FILES:
        assert kernels_of(example(path.stem.partition("_")[2]))


# --- every stage, many shapes ----------------------------------------------------------------


def dims(*sizes: int) -> list[Any]:
    """Symbolic dimensions, with these sizes in the example; what is no dimension stays."""
    return [
        *(tc.dim(name, example=size) for name, size in zip("mnk", sizes, strict=False)),
        *sizes[3:],
    ]


def _cases() -> Iterator[tuple[str, Callable[[], Definition]]]:
    for path in FILES:
        name = path.stem.partition("_")[2]
        for kernel in definitions_of(example(name)):
            yield kernel, lambda name=name, kernel=kernel: getattr(example(name), kernel)
    for name, maker, shapes in SHAPES:
        make: Make = getattr(example(name), f"make_{maker}")
        for shape, options in shapes:
            text = ",".join([*map(str, shape), *(f"{k}={v}" for k, v in options.items())])
            arguments = dims(*shape) if options.pop("symbolic", False) else shape
            yield f"{maker}({text})", lambda m=make, a=arguments, o=options: m(*a, **o)


PRODUCTS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 1, 1), {}),
    ((13, 17, 19), {}),
    ((33, 1, 37), {"symbolic": True}),
]
SHAPES: list[tuple[str, str, list[tuple[tuple[int, ...], dict[str, Any]]]]] = [
    (
        "vector_add",
        "vector_add",
        [((1,), {}), ((127,), {}), ((128,), {"workers": 64}), ((131,), {"symbolic": True})],
    ),
    (
        "look_back",
        "scan",
        [((1,), {}), ((127,), {}), ((257,), {"warps": 1}), ((600,), {"warps": 8})],
    ),
    (
        "transpose",
        "transpose",
        [
            ((1, 1), {}),
            ((1, 37), {}),
            ((64, 32), {}),
            ((41, 67), {"symbolic": True}),
            ((19, 23), {"size": 16, "rows": 4}),
        ],
    ),
    ("complex_pairs", "mandelbrot", [((2, 1), {}), ((1, 19), {"lanes": 4})]),
    ("complex_pairs", "stage", [((3, 5), {}), ((1, 1), {"lanes": 4})]),
    ("sequential", "lu", [((1,), {}), ((17,), {"workers": 8})]),
    ("arrays", "limited", [((1,), {}), ((130,), {"workers": 8})]),
    ("matmul", "naive", PRODUCTS),
    ("matmul", "mapped", PRODUCTS),
    (
        "matmul",
        "pipelined",
        [
            *PRODUCTS,
            ((13, 17, 19), {"stages": 1}),
            ((13, 20, 36), {"stages": 3}),
            ((13, 17, 19), {"stages": 4, "bk": 4}),
            ((33, 20, 36), {"stages": 3, "symbolic": True}),
        ],
    ),
    (
        "matmul",
        "tensor_cores",
        [
            ((1, 1, 1), {}),
            ((33, 40, 104), {}),
            ((37, 41, 67), {}),
            ((37, 41, 67), {"symbolic": True}),
            ((16, 8, 16), {"warps": (1, 1), "tile": (1, 1), "bk": 16}),
        ],
    ),
    (
        "softmax",
        "softmax",
        [
            ((1, 1), {}),
            ((5, 31), {}),
            ((3, 64), {}),
            ((7, 67), {"warps": 2}),
            ((4, 33), {"warps": 1}),
        ],
    ),
    (
        "layer_norm",
        "layer_norm",
        [((1, 1), {}), ((2, 97), {"workers": 32}), ((3, 256), {}), ((2, 300), {"vector": 1})],
    ),
    (
        "convolution",
        "convolution",
        [
            ((1, 1, 1, 1, 1), {}),
            ((1, 5, 7, 3, 33), {"stride": 2}),
            ((2, 4, 4, 8, 32), {"size": 1, "padding": 0}),
            ((1, 6, 5, 4, 8), {"size": 5, "padding": 2, "stages": 3}),
            ((1, 7, 3, 2, 5), {"padding": 0, "bk": 4, "stages": 1}),
        ],
    ),
    (
        "histogram",
        "histogram",
        [((1, 1), {}), ((257, 7), {}), ((131, 13), {"symbolic": False, "workers": 32})],
    ),
    (
        "attention",
        "attention",
        [
            ((1, 1, 1), {}),
            ((1, 37, 8), {"stages": 1}),
            ((2, 19, 5), {"queries": 1, "bk": 8}),
            ((1, 80, 16), {"stages": 3}),
        ],
    ),
    (
        "split_k",
        "split_k",
        [
            ((1, 1, 1, 1), {}),
            ((13, 17, 19, 3), {}),
            ((5, 9, 3, 7), {"stages": 1}),
            ((9, 5, 40, 2), {"symbolic": True, "stages": 3}),
        ],
    ),
    (
        "epilogue",
        "layer",
        [
            ((1, 1, 1), {}),
            ((19, 35, 13), {"transpose_a": True}),
            ((35, 19, 13), {"transpose_a": True, "transpose_b": True, "biased": False}),
            ((19, 35, 13), {"symbolic": True, "transpose_b": True, "stages": 3}),
        ],
    ),
]
CASES = list(_cases())


@pytest.mark.parametrize(
    ("make", "targets"),
    [
        # Every second of the other shapes takes one of the targets, in turn, and the sweep has the rest. What is folded
        # four tiles at a time takes minutes in the choice of layouts; other folds run here.
        *(
            pytest.param(
                make, TARGETS, id=name, marks=pytest.mark.sweep if name == "top_two" else []
            )
            for name, make in CASES
            if "(" not in name
        ),
        *(
            pytest.param(
                make,
                [target],
                id=f"{name}-{target}",
                marks=[]
                if (place + turn) % len(TARGETS) == 0 and place % 2 == 0
                else pytest.mark.sweep,
            )
            for place, (name, make) in enumerate(CASES)
            for turn, target in enumerate(TARGETS)
            if "(" in name
        ),
    ],
)
def test_every_stage_means_the_same(make: Callable[[], Definition], targets: Sequence[str]) -> None:
    made = make()
    for kernel in made.kernels:
        check_every_stage(kernel, targets)
    if isinstance(made, tc.ProgramDefinition):  # its kernels on what they get from each other
        findings = tc.check(made, target=targets[-1])  # the one with the most passes
        assert [finding for finding in findings if finding.severity == "error"] == []


# --- pipelined: the same result however the operands travel ----------------------------------

TRANSPORTS: list[tuple[str, dict[str, Any], str]] = [
    ("generic", {"stages": 2}, "registers"),
    ("generic", {"stages": 3}, "registers"),
    ("sm_80", {"stages": 2}, "registers"),
    ("sm_80", {"stages": 3}, "cp.async"),
    ("sm_80", {"stages": 4}, "cp.async"),
    ("sm_80", {"stages": 3, "specialize": True}, "registers"),
    ("sm_90a", {"stages": 3}, "cp.async"),
    ("sm_90a", {"stages": 2, "transport": "tma"}, "tma"),
    ("sm_90a", {"stages": 4, "transport": "tma"}, "tma"),
    ("sm_90a", {"stages": 2, "specialize": True}, "tma"),
    ("sm_90a", {"stages": 3, "specialize": True}, "tma"),
]


@pytest.mark.parametrize(
    ("target", "how", "transport"),
    TRANSPORTS,
    ids=["-".join([t, *map(str, how.values()), r]) for t, how, r in TRANSPORTS],
)
def test_pipelines_give_the_same_bits(target: str, how: dict[str, Any], transport: str) -> None:
    # Two blocks, both ragged, of two warps; six steps, the last one ragged; rows of 16 bytes.
    make: Make = partial(
        example("matmul").make_pipelined, 10, 28, 44, warps=(1, 2), lanes=(4, 8), regs=(2, 2)
    )
    plain = make(stages=1)
    arguments = arguments_of(plain)
    kernels = same_after_every_pass(
        on(target, make(**how)), arguments, expected=results(plain.ir, arguments)
    )
    steps = [n for kernel in kernels for n in walk(kernel.body) if type(n) is ir.RingStep]
    assert {step.ring.transport for step in steps} == {transport}


# The steady loop, the prologue and what stands between, in few lines.
SMALL = {"m": 16, "n": 16, "k": 80, "warps": (1, 2), "regs": (4, 1), "bk": 16}


def small_stages(target: str, **how: Any) -> dict[str, ir.Kernel]:
    """The kernel after each pass; of passes that run more than once, after the last time."""
    kernel = on(target, example("matmul").make_pipelined(**SMALL, **how))
    return {step.name: step.kernel for step in lower_steps(kernel)}


@pytest.mark.parametrize(
    ("name", "target", "how"),
    [
        ("two_stages", "generic", {"stages": 2}),
        ("cp_async", "sm_80", {"stages": 3}),
        ("tma", "sm_90a", {"stages": 3, "transport": "tma"}),
    ],
)
def test_how_a_pipeline_is_lowered(
    name: str, target: str, how: dict[str, Any], golden: Callable[[str, str], None]
) -> None:
    stages = small_stages(target, **how)
    parts = []
    for title, last in (("overlap", "overlap"), ("synchronize", "synchronize"), ("lean", "hoist")):
        # Barriers name lines of the example; its text may move.
        text = re.sub(r"in line \d+", "in line ...", to_text(stages[last]))
        parts.append(f"# {title}\n{text.rstrip()}\n")
    golden(f"pipeline/{name}", "\n".join(parts))


def test_two_stages_need_one_barrier_a_step() -> None:
    """And the loads of step k + 1 are issued before the work of step k."""
    stages = small_stages("generic", stages=2)
    for name in ("synchronize", "hoist"):
        (steady,) = [
            node
            for node in walk(stages[name].body)
            if type(node) is ir.For and any(type(inner) is ir.Barrier for inner in walk(node))
        ]
        order = [kind for node in in_order(steady.body) if (kind := kind_of(node))]
        assert order.count("barrier") == 1
        assert order.index("load") < order.index("barrier") < order.index("work")
        assert order.index("work") < order.index("deliver")
    barriers = [node for node in walk(stages["hoist"].body) if type(node) is ir.Barrier]
    assert [barrier.scope for barrier in barriers] == ["block"]


def in_order(statement: ir.Statement) -> Iterator[ir.Statement]:
    """A statement and those inside it, from the first to the last."""
    yield statement
    for inner in statements(statement):
        yield from in_order(inner)


def kind_of(statement: ir.Statement) -> str | None:
    """What a statement of a pipelined loop does: load an operand, deliver it to a slot, work."""
    if isinstance(statement, ir.Barrier):
        return "barrier"
    if not isinstance(statement, (ir.Store, ir.Move)):
        return None
    if any(type(node) is ir.Read and node.tensor.scope == ir.GLOBAL for node in walk(statement)):
        return "load"
    return {"acc": "work", "sa": "deliver", "sb": "deliver"}.get(statement.tensor.name)
