"""`torch.compile` with taskc's backend: results, constants that change, shapes that change, and PyTorch's own nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from taskc.arrays.arguments import ArgumentError
from taskc.torch import dynamo

pytestmark = pytest.mark.torch


@pytest.fixture
def torch() -> Iterator[Any]:
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    torch.manual_seed(0)
    dynamo._named.clear()
    yield torch
    torch._dynamo.reset()


def compiled(torch: Any, function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=dynamo.backend, **options)


def close(torch: Any, result: Any, expected: Any) -> None:
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were translated since the test began."""
    seen: list[Any] = []
    translated = dynamo.translated

    def counted(module: Any, constants: Any, name: str) -> Any:
        seen.append(constants)
        return translated(module, constants, name)

    monkeypatch.setattr(dynamo, "translated", counted)
    return seen


def network(torch: Any) -> Any:
    nn = torch.nn
    layers = (nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    return nn.Sequential(*layers).eval()


def test_a_network_with_its_parameters_as_constants(torch: Any, traced: list[Any]) -> None:
    model, x = network(torch), torch.randn(5, 8)
    with torch.no_grad():
        run = compiled(torch, model)
        for _ in range(2):
            close(torch, run(x), model(x))
    assert [len(constants) for constants in traced] == [6]


def test_a_parameter_that_changes_in_place(torch: Any, traced: list[Any]) -> None:
    model, x = torch.nn.Linear(8, 4), torch.randn(3, 8)
    with torch.no_grad():
        run = compiled(torch, model)
        run(x)
        for change in (
            lambda: model.weight.mul_(2),
            lambda: setattr(model.weight, "data", torch.randn(4, 8)),
            lambda: model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}),
        ):
            change()
            close(torch, run(x), model(x))
        for _ in range(4):  # keeps changing: an input from now on
            model.weight.add_(1)
            close(torch, run(x), model(x))
    assert len(traced) < 6
    assert not traced[-1]


def test_modules_that_share_a_graph(torch: Any) -> None:
    first, second, x = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4), torch.randn(3, 8)
    run = compiled(torch, lambda model, x: model(x).relu())
    with torch.no_grad():
        for model in (first, second, first):
            close(torch, run(model, x), model(x).relu())


def test_shapes_that_change_are_dimensions(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    count = []
    program = dynamo.Kind.program

    def counted(kind: Any, feeds: Any) -> Any:
        runnable = program(kind, feeds)
        count.append(id(runnable))
        return runnable

    monkeypatch.setattr(dynamo.Kind, "program", counted)
    run = compiled(torch, lambda x: (x.softmax(-1) + x.shape[0]).reshape(-1))
    for length in (3, 5, 6, 7, 9, 12, 17):
        x = torch.randn(length, 4)
        close(torch, run(x), (x.softmax(-1) + length).reshape(-1))
    assert len({*count}) <= 4  # PyTorch's one, two for shapes, and one for all others


def test_results_that_share_memory(torch: Any) -> None:
    def function(x: Any) -> Any:
        y = x + 1
        return y, y.view(-1), x, x.t()

    x = torch.randn(2, 3)
    y, flat, same, turned = compiled(torch, function)(x)
    flat[0] = 7
    assert float(y[0, 0]) == 7
    same[0, 1] = 5
    assert float(x[0, 1]) == 5
    assert float(turned[1, 0]) == 5


@pytest.mark.parametrize(
    ("name", "fault", "check"),
    [
        ("_state", lambda tensors: (), "test_a_parameter_that_changes_in_place"),
        ("_shared", lambda module: set(), "test_results_that_share_memory"),
    ],
)
def test_a_planted_fault_is_noticed(
    torch: Any, monkeypatch: pytest.MonkeyPatch, name: str, fault: Any, check: str
) -> None:
    """A stale weight, and a result that no longer shares its memory."""
    monkeypatch.setattr(dynamo, name, fault)
    arguments = (torch, []) if "parameter" in check else (torch,)
    with pytest.raises(AssertionError):
        globals()[check](*arguments)


def test_a_program_for_other_shapes_is_noticed(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong guard: a call is served by the program of the first shapes."""

    class First(dict[Any, Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            return next(iter(self.values()), default)

    made = dynamo.Constants
    monkeypatch.setattr(dynamo, "Constants", lambda *args: made(*args, First()))
    with pytest.raises(ArgumentError, match="must be f32"):
        test_shapes_that_change_are_dimensions(torch, monkeypatch)


def test_autocast(torch: Any) -> None:
    model, x = network(torch), torch.randn(5, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result, expected = compiled(torch, model)(x), model(x)
    assert result.dtype is expected.dtype
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)


def test_an_input_written_in_place(torch: Any) -> None:
    def function(x: Any) -> Any:
        x.mul_(2)
        x[0] = 1
        return x.sum()

    x, y = torch.ones(3, 4), torch.ones(3, 4)
    close(torch, compiled(torch, function)(x), function(y))
    close(torch, x, y)


def test_operators_that_stay_pytorch_s(torch: Any, caplog: pytest.LogCaptureFixture) -> None:
    def function(x: Any) -> Any:
        y = (x @ x.t()).exp() + 1
        return torch.linalg.cholesky(y @ y.t() + torch.eye(3)).sum(0) * 2, y.relu()

    x = torch.randn(3, 4)
    with caplog.at_level(logging.WARNING, dynamo.__name__):
        run = compiled(torch, function)
        for _ in range(2):
            for result, expected in zip(run(x), function(x), strict=True):
                close(torch, result, expected)
    assert [record.getMessage() for record in caplog.records if "cholesky" in record.getMessage()]
    assert "test_dynamo.py" in caplog.text


def test_strides_of_inputs_and_results(torch: Any) -> None:
    conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        result, expected = compiled(torch, conv)(x), conv(x)
    close(torch, result, expected)
    assert result.stride() == expected.stride()
    strided = torch.randn(8, 6)[::2, 1::2]
    close(torch, compiled(torch, torch.neg)(strided), -strided)


@pytest.mark.parametrize("batch", [1, 3])
def test_pooling_of_channels_last_is_whole(
    torch: Any, caplog: pytest.LogCaptureFixture, batch: int
) -> None:
    """PyTorch writes the strides of the pooled images, by as_strided, where all but one are of axes of one."""
    x = torch.randn(batch, 6, 5, 5).to(memory_format=torch.channels_last)
    pool = torch.nn.AdaptiveAvgPool2d(1)
    with torch.no_grad(), caplog.at_level(logging.WARNING, dynamo.__name__):
        result, expected = compiled(torch, lambda x: pool(x * 2) + 1)(x), pool(x * 2) + 1
    close(torch, result, expected)
    assert not [one for one in caplog.records if one.name == dynamo.__name__]


@pytest.mark.parametrize("name", ["bfloat16", "float16", "int64"])
def test_other_element_types(torch: Any, name: str) -> None:
    x = (torch.randn(4, 8) * 3).to(getattr(torch, name))
    result, expected = compiled(torch, lambda x: (x * 2 + 1).abs())(x), (x * 2 + 1).abs()
    assert result.dtype is expected.dtype
    torch.testing.assert_close(result, expected)


def test_training(torch: Any) -> None:
    losses = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model, x = network(torch).train(), torch.randn(16, 8)
        run = compiled(torch, model) if is_compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = (run(x) - x[:, :4]).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[5:] == pytest.approx(losses[:5], abs=1e-5)
    assert losses[4] < losses[0]


def test_an_option_is_an_error(torch: Any) -> None:
    run = torch.compile(torch.neg, backend=dynamo.backend, options={"fast": True})
    with pytest.raises(Exception, match="taskc's backend takes no 'options'"):
        run(torch.ones(2))
