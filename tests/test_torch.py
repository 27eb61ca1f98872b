"""Kernels as operators of PyTorch: what is registered, what is refused; with PyTorch itself, what it does with them."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i32, spatial
from taskc.arrays.dlpack import as_array
from tests.torch_stand_in import stand_in, torch

__all__ = ["stand_in", "torch"]  # fixtures

m, n = tc.dim("m", example=8), tc.dim("n", example=16)


@tc.kernel(workers=16)
def swish(x: f32[m, n], beta: f32[n], y: tc.out[f32[m, n]]):
    for r, start in tc.tiles((m, n), by=(1, 16)):
        for i in spatial(16):
            if start + i < n:
                y[r, start + i] = x[r, start + i] * tc.sigmoid(beta[start + i] * x[r, start + i])


@tc.kernel(workers=16)
def swish_gradient(
    x: f32[m, n],
    beta: f32[n],
    grad_y: f32[m, n],
    grad_x: tc.out[f32[m, n]],
    grad_beta: tc.out[f32[n]],
):
    for (start,) in tc.tiles((n,), by=(16,)):
        for i in spatial(16):
            if start + i < n:
                total = f32(0)
                for r in range(m):
                    v, g = x[r, start + i], grad_y[r, start + i]
                    p = tc.sigmoid(beta[start + i] * v)
                    slope = p * (1.0 - p)
                    grad_x[r, start + i] = g * (p + v * beta[start + i] * slope)
                    total += g * v * v * slope
                grad_beta[start + i] = total


def make_scaled(size: Any, *, by: float) -> Any:
    """A template: its results are kernels."""

    @tc.kernel(workers=16)
    def scaled(x: f32[size], y: tc.out[f32[size]]):
        for (start,) in tc.tiles((size,), by=(16,)):
            for i in spatial(16):
                if start + i < size:
                    y[start + i] = x[start + i] * by

    return scaled


@tc.program
def both(
    x: f32[n], times: i32, offset: f32, is_on: tc.boolean, s: tc.out[f32[n]], t: tc.out[f32[n + 1]]
):
    tc.compute(x.shape, lambda i: x[i] * times.to(f32) + offset, out=s)
    tc.compute((n + 1,), lambda i: tc.where(is_on, i.to(f32), 0.0), out=t)


@tc.kernel(workers=4)
def count(x: tc.inout[i32[4]], old: tc.out[i32[4]]):
    for i in spatial(4):
        old[i] = x[i]
        x[i] = x[i] + 1


# --- what is registered ----------------------------------------------------------------------


def test_operators_by_their_schemas(stand_in: Any) -> None:
    made = [
        tc.torch.operator(kernel, "test::made").schema
        for kernel in (swish, both, count, make_scaled(8, by=2.0))
    ]
    assert made == [
        "(Tensor x, Tensor beta) -> Tensor",
        "(Tensor x, SymInt times, float offset, bool is_on) -> (Tensor, Tensor)",
        "(Tensor(a0!) x) -> Tensor",
        "(Tensor x) -> Tensor",
    ]
    assert tc.torch.operator(count, "test::made").mutates_args == ["x"]


def test_types_and_shapes_without_elements(stand_in: Any) -> None:
    made = tc.torch.operator(both, "test::both")
    x = stand_in.Tensor(np.ones(5, np.float32), device="meta")
    s, t = made.fake(x, 1, 0.5, True)
    assert (s.shape, t.shape) == ((5,), (6,))
    assert s.dtype is t.dtype is stand_in.float32
    (old,) = [tc.torch.operator(count, "test::count").fake(stand_in.Tensor(np.ones(4, np.int32)))]
    assert old.dtype is stand_in.int32
    wrong = stand_in.Tensor(np.ones((3, 4), np.float32)), stand_in.Tensor(np.ones(5, np.float32))
    with pytest.raises(tc.ArgumentError) as caught:
        tc.torch.operator(swish, "test::swish").fake(*wrong)
    said = "swish(): argument 'beta' must be f32[n] with n = 4 (from 'x'), not f32[5]"
    assert str(caught.value) == said


def test_strided_tensors_are_copied_without_a_warning(stand_in: Any) -> None:
    table = np.arange(16, dtype=np.float32).reshape(8, 2)
    made = tc.torch.operator(make_scaled(8, by=3.0), "test::scaled")
    y = made(stand_in.Tensor(table[:, 1], requires_grad=True))
    np.testing.assert_array_equal(as_array(y), table[:, 1] * 3)


def test_a_backward_gets_what_it_is_named_after(stand_in: Any) -> None:
    seen = []

    @tc.program
    def gradient(
        offset: f32, grad_t: f32[n + 1], times: i32, x: f32[n], s: f32[n], grad_x: tc.out[f32[n]]
    ):
        tc.compute(
            (n,),
            lambda i: x[i] * 1000.0 + s[i] * 100.0 + grad_t[i] * 10.0 + offset + times.to(f32),
            out=grad_x,
        )

    made = tc.torch.operator(both, "test::both", backward=gradient)
    x = stand_in.Tensor(np.arange(1, 3, dtype=np.float32))
    context = SimpleNamespace(save_for_backward=lambda *tensors: seen.extend(tensors))
    outputs = made(x, 3, 0.5, True)
    made.keep(context, (x, 3, 0.5, True), outputs)
    assert seen == [x, outputs[0]]
    context.saved_tensors = tuple(seen)
    grad_t = stand_in.Tensor(np.arange(3, dtype=np.float32))
    found = made.gradients(context, stand_in.Tensor(np.zeros(2, np.float32)), grad_t)
    assert found[1:] == (None, None, None)
    expected = [1000 + 350 + 0 + 0.5 + 3, 2000 + 650 + 10 + 0.5 + 3]
    assert as_array(found[0]).tolist() == expected


# --- what is refused -------------------------------------------------------------------------


def test_pytorch_is_not_imported() -> None:
    """Neither by the module's name, nor by calls; an operator says what is missing."""
    program = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] != "torch", "torch was imported"

sys.meta_path.insert(0, Refuse())
import numpy as np
import taskc as tc
from taskc.kernels.matmul import matmul
kernel = matmul(3, 5, 7)
kernel(np.ones((3, 7), np.float32), np.ones((7, 5), np.float32))
try:
    tc.torch.operator(kernel, "mine::matmul")
except tc.CompileError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == (
        "error: torch isn't imported\n  hint: import torch before tc.torch.operator()\n"
    ), done.stderr


def error_of(*args: Any, **keywords: Any) -> tuple[str, str | None]:
    with pytest.raises(tc.CompileError) as caught:
        tc.torch.operator(*args, **keywords)
    return caught.value.message, caught.value.hint


@pytest.mark.parametrize("name", ["double", "a::b::c", "::x", "a::", "a b::c", "a.b", 7, "ä::b"])
def test_a_name_that_is_none(name: Any, stand_in: Any) -> None:
    assert error_of(swish, name)[0] == f"an operator's name is 'namespace::name', and not {name!r}"


def test_what_is_no_kernel(stand_in: Any) -> None:
    said, hint = error_of(make_scaled, "test::x")
    assert said == "an operator is made from a kernel or a program, and not a function"
    assert hint == "it returns one, perhaps: call it first"
    said, hint = error_of(swish, "test::x", backward=7)
    assert (said, hint) == ("a backward is made from a kernel or a program, and not a int", None)


def test_a_name_that_torch_cannot_write(stand_in: Any) -> None:
    @tc.kernel(workers=4)
    def scaled(größe: f32[4], y: tc.out[f32[4]]):
        for i in spatial(4):
            y[i] = 2 * größe[i]

    said = "'größe' is no name for torch, which has ASCII ones"
    assert error_of(scaled, "test::scaled")[0] == said


def test_no_tensor_says_where_it_runs(stand_in: Any) -> None:
    @tc.kernel(workers=4)
    def ones(y: tc.out[f32[4]]):
        for i in spatial(4):
            y[i] = 1.0

    said = "'ones' takes no tensor, which would tell torch where it runs"
    assert error_of(ones, "test::ones")[0] == said


# --- backwards that don't fit ----------------------------------------------------------------


def gradients() -> dict[str, Any]:
    """By what is wrong with them; each is the backward of swish."""

    @tc.program
    def unknown(weight: f32[n], grad_y: f32[m, n], grad_x: tc.out[f32[m, n]]):
        tc.compute((m, n), lambda i, j: grad_y[i, j] * weight[j], out=grad_x)

    @tc.program
    def unknown_result(grad_y: f32[m, n], grad_z: tc.out[f32[m, n]]):
        tc.compute((m, n), lambda i, j: grad_y[i, j], out=grad_z)

    @tc.program
    def other_type(grad_y: tc.f64[m, n], grad_x: tc.out[f32[m, n]]):
        tc.compute((m, n), lambda i, j: grad_y[i, j].to(f32), out=grad_x)

    @tc.program
    def other_rank(grad_y: f32[m, n], beta: f32[n], grad_beta: tc.out[f32[1, n]]):
        tc.compute((1, n), lambda i, j: beta[j], out=grad_beta)

    @tc.program
    def no_number(x: f32[m, n], grad_y: f32, grad_x: tc.out[f32[m, n]]):
        tc.compute((m, n), lambda i, j: x[i, j] * grad_y, out=grad_x)

    @tc.kernel(workers=1)
    def nothing(grad_y: tc.inout[f32[m, n]]):
        for i in spatial(1):
            if m > 0 and n > 0:
                grad_y[i, 0] = 0.0

    return {
        it.name: it for it in (unknown, unknown_result, other_type, other_rank, no_number, nothing)
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "unknown",
            """error: the backward of 'test::swish' takes no 'weight'
      def unknown(weight: f32[n], grad_y: f32[m, n], grad_x: tc.out[f32[m, n]]):
                  ^^^^^^^^^^^^^^
  hint: there is x, beta, y, grad_y""",
        ),
        (
            "unknown_result",
            """error: the backward of 'test::swish' returns no 'grad_z'
      def unknown_result(grad_y: f32[m, n], grad_z: tc.out[f32[m, n]]):
                                            ^^^^^^^^^^^^^^^^^^^^^^^^^
  hint: there is grad_x, grad_beta""",
        ),
        (
            "other_type",
            """error: 'grad_y' of the backward 'other_type' is f64[m, n], and 'y' of the kernel is f32[m, n]
      def other_type(grad_y: tc.f64[m, n], grad_x: tc.out[f32[m, n]]):
                     ^^^^^^^^^^^^^^^^^^^^""",
        ),
        (
            "other_rank",
            """error: 'grad_beta' of the backward 'other_rank' is f32[1, n], and 'beta' of the kernel is f32[n]
      def other_rank(grad_y: f32[m, n], beta: f32[n], grad_beta: tc.out[f32[1, n]]):
                                                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^""",
        ),
        (
            "no_number",
            """error: 'grad_y' of the backward 'no_number' is f32, and 'y' of the kernel is f32[m, n]
      def no_number(x: f32[m, n], grad_y: f32, grad_x: tc.out[f32[m, n]]):
                                  ^^^^^^^^^^^""",
        ),
        (
            "nothing",
            """error: the backward of 'test::swish' takes 'grad_y', which it may not write in place
      def nothing(grad_y: tc.inout[f32[m, n]]):
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^""",
        ),
    ],
)
def test_a_backward_that_does_not_fit(name: str, said: str, stand_in: Any) -> None:
    with pytest.raises(tc.CompileError) as caught:
        tc.torch.operator(swish, "test::swish", backward=gradients()[name])
    assert str(caught.value).partition(": ")[2] == said


def test_what_writes_in_place_has_no_gradient(stand_in: Any) -> None:
    with pytest.raises(tc.CompileError) as caught:
        tc.torch.operator(count, "test::count", backward=swish_gradient)
    said = "error: 'count' writes 'x' in place, and torch takes no gradient of such operators"
    assert str(caught.value).partition(": ")[2].startswith(said)


def test_a_backward_without_gradients(stand_in: Any) -> None:
    @tc.kernel(workers=1)
    def empty(x: f32[m, n]):
        for i in spatial(1):
            assert i == 0

    said = "the backward of 'test::swish' returns no gradient; there is grad_x, grad_beta"
    assert error_of(swish, "test::swish", backward=empty)[0] == said


# --- with PyTorch ----------------------------------------------------------------------------


def inputs(library: Any, **options: Any) -> tuple[Any, Any]:
    library.manual_seed(3)
    return library.randn(8, 24, **options), library.ones(24, **options)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # which opcheck itself meets
@pytest.mark.parametrize("torch", ["PyTorch"], indirect=True)
def test_pytorch_s_own_checks_of_operators(torch: Any) -> None:
    made = tc.torch.operator(swish, "taskc_tests::swish", backward=swish_gradient)
    x, beta = inputs(torch, requires_grad=True)
    torch.library.opcheck(made, (x, beta))
    torch.library.opcheck(made, (x.detach().mT.contiguous().mT, beta.detach()))
    torch.library.opcheck(
        tc.torch.operator(both, "taskc_tests::both"), (beta.detach(), 2, 0.5, True)
    )
    torch.library.opcheck(
        tc.torch.operator(count, "taskc_tests::count"), (torch.ones(4, dtype=torch.int32),)
    )
    expected = x * torch.sigmoid(beta * x)
    torch.testing.assert_close(made(x, beta), expected)
    for tensors in zip(
        torch.autograd.grad(made(x, beta).square().sum(), (x, beta)),
        torch.autograd.grad(expected.square().sum(), (x, beta)),
        strict=True,
    ):
        torch.testing.assert_close(*tensors)


@pytest.mark.torch
@pytest.mark.parametrize("torch", ["PyTorch"], indirect=True)
def test_lazy_bits_and_unused_outputs(torch: Any) -> None:
    """PyTorch's dispatcher resolves the former, and gives zeros for the gradients of the latter."""
    made = tc.torch.operator(swish, "taskc_tests::swish", backward=swish_gradient)
    x, beta = inputs(torch)
    torch.testing.assert_close(made(torch._neg_view(x), beta), made(-x, beta))

    @tc.program
    def gradient(grad_s: f32[n], grad_t: f32[n + 1], times: i32, grad_x: tc.out[f32[n]]):
        tc.compute((n,), lambda i: grad_s[i] * times.to(f32) + grad_t[i], out=grad_x)

    two = tc.torch.operator(both, "taskc_tests::both", backward=gradient)
    x = torch.ones(5, requires_grad=True)
    two(x, 3, 0.5, True)[0].sum().backward()
    assert x.grad.tolist() == [3] * 5


@pytest.mark.torch
@pytest.mark.parametrize("torch", ["PyTorch"], indirect=True)
def test_a_compiled_module_sees_one_node(torch: Any) -> None:
    made, seen = tc.torch.operator(swish, "taskc_tests::swish"), []

    def keep(graph: Any, example: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    run = torch.compile(lambda x, beta: made(x, beta), backend=keep, fullgraph=True, dynamic=True)
    for rows in (8, 5, 13):
        x, beta = torch.randn(rows, 24), torch.ones(24)
        assert torch.equal(run(x, beta), made(x, beta))
    assert seen == ["taskc_tests.swish.default"]  # and sizes aren't fixed
    with pytest.raises(Exception, match=r"'beta' must be f32\[n\] with n = "):
        run(torch.randn(8, 24), torch.ones(23))


@pytest.mark.torch
@pytest.mark.parametrize("torch", ["PyTorch"], indirect=True)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_compiled_module_trains_as_an_eager_one(is_dynamic: bool, torch: Any) -> None:
    made = tc.torch.operator(swish, "taskc_tests::swish", backward=swish_gradient)

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, act: Any) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(32, 24), torch.nn.Linear(24, 1)
            self.beta, self.act = torch.nn.Parameter(torch.ones(24)), act

        def forward(self, x: Any) -> Any:
            return self.last(self.act(self.first(x), self.beta))

    def trained(act: Any, is_compiled: bool) -> tuple[list[float], list[Any]]:
        torch.manual_seed(0)
        net = Net(act)
        run = torch.compile(net, fullgraph=True, dynamic=is_dynamic) if is_compiled else net
        x = torch.randn(64, 32)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = (run(x) - x[:, :1].sin()).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, list(net.parameters())

    compiled = trained(made, True)
    eager, plain = trained(made, False), trained(lambda x, b: x * torch.sigmoid(b * x), False)
    assert compiled[0][-1] < 0.5 * compiled[0][0]
    for other in (eager, plain):
        np.testing.assert_allclose(compiled[0], other[0], rtol=1e-5)
        for a, b in zip(compiled[1], other[1], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("torch", ["PyTorch"], indirect=True)
def test_without_a_backward_autograd_says_so(torch: Any) -> None:
    made = tc.torch.operator(make_scaled(n, by=2.0), "taskc_tests::scaled")
    y = made(torch.ones(5, requires_grad=True))
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        y.sum().backward()
