"""Programs of `torch.export` as models: results, names, open sizes, bundles, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import CompileError

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:The tensor attributes"),  # PyTorch's, of its own LSTM
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def torch() -> Any:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch


def tagger(torch: Any, layer: str, **options: Any) -> Any:
    class Tagger(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(20, 4)
            self.layers = getattr(torch.nn, layer)(4, 3, **options)
            self.tags = torch.nn.Linear(3 * (1 + self.layers.bidirectional), 5)

        def forward(self, words: Any) -> Any:
            values, last = self.layers(self.embedding(words))
            return self.tags(values), last

    return Tagger().eval()


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
        ("LSTM", {"bias": False}),
        ("GRU", {"num_layers": 2}),
        ("RNN", {"bidirectional": True}),
        ("RNN", {"nonlinearity": "relu", "batch_first": True}),
    ],
)
def test_recurrent_layers(torch: Any, layer: str, options: dict[str, Any]) -> None:
    module, words = tagger(torch, layer, **options), torch.randint(0, 20, (2, 6))
    model = tc.torch.compile(torch.export.export(module, (words,)))
    values, last = module(words)
    expected = [values, *(last if isinstance(last, tuple) else [last])]
    results = model(words)
    assert len(results) == len(expected)
    for result, one in zip(results, expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), one.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_open_sizes_names_and_a_bundle(torch: Any, tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4))
    batch = torch.export.Dim("batch")
    exported = torch.export.export(module, (torch.randn(3, 8),), dynamic_shapes=({0: batch},))
    model = tc.torch.compile(exported)
    ((name, extents),) = [(value.name, value.shape) for value in model.inputs]
    assert name == "input"
    assert extents[1] == 8
    assert isinstance(extents[0], str)
    for count in (3, 5, 1, 7, 9):
        x = torch.randn(count, 8)
        np.testing.assert_allclose(
            np.asarray(model(**{name: x})), module(x).detach().numpy(), rtol=1e-4, atol=1e-6
        )
    file = tmp_path / "module.taskc"
    tc.save_bundle(model, file, {name: x.numpy()})
    assert np.array_equal(np.asarray(tc.load_bundle(file)(x)), np.asarray(model(x)))


def test_results_that_are_one_tensor_or_an_input(torch: Any) -> None:
    class Same(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, y: Any) -> Any:
            total = x + y
            return total, x, total

    x, y = torch.randn(4), torch.randn(4)
    model = tc.torch.compile(torch.export.export(Same(), (x, y)))
    first, same, second = model(x, y)
    assert np.array_equal(first, (x + y).numpy())
    assert np.array_equal(second, first)
    assert np.array_equal(same, x.numpy())


def test_operators_that_taskc_lacks(torch: Any) -> None:
    class Decomposed(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.linalg.qr(x)[0]

    exported = torch.export.export(Decomposed(), (torch.randn(4, 4),))
    with pytest.raises(CompileError, match=r"taskc doesn't compute aten\.linalg_qr") as caught:
        tc.torch.compile(exported)
    assert caught.value.location.text.strip() == "return torch.linalg.qr(x)[0]"


def test_buffers_that_are_written(torch: Any) -> None:
    class Counting(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.count.add_(1)
            return x + self.count

    exported = torch.export.export(Counting(), (torch.randn(4),))
    with pytest.raises(CompileError, match="writes to 'count', and a model keeps nothing"):
        tc.torch.compile(exported)


def test_a_module_in_place_of_a_program(torch: Any) -> None:
    with pytest.raises(CompileError, match=r"a program of torch\.export, not Linear"):
        tc.torch.compile(torch.nn.Linear(2, 2))
