"""Tensors of PyTorch as arguments: the first call and later ones, which compiled code takes."""

from __future__ import annotations

import gc
import sys
import warnings
from math import prod
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.arrays.dlpack import as_array
from taskc.runtime import driver
from tests import guards
from tests.counting import instructions
from tests.runtime.test_driver import arrays, compiled
from tests.torch_stand_in import FakeTensor, stand_in, tensor_of, torch

__all__ = ["compiled", "stand_in", "torch"]  # fixtures

n = tc.dim("n")
A, B = arrays(37, 37)


def make_add(dtype: Any = tc.f32) -> Any:
    @tc.kernel(workers=16)
    def add(a: dtype[n], b: dtype[n], c: tc.out[dtype[n]]):
        for start in tc.tiles(n, by=16):
            for i in tc.spatial(16):
                if start + i < n:
                    c[start + i] = a[start + i] + b[start + i]

    return add


def make_copy(dtype: Any) -> Any:
    @tc.kernel(workers=4)
    def copied(x: dtype[n], y: tc.out[dtype[n]]):
        for start in tc.tiles(n, by=4):
            for i in tc.spatial(4):
                if start + i < n:
                    y[start + i] = x[start + i]

    return copied


@tc.kernel(workers=4)
def swap(x: tc.inout[tc.i32[4]], by: tc.i32, y: tc.out[tc.i32[4]], z: tc.out[tc.f32[2, 2]]):
    for i in tc.spatial(4):
        y[i] = x[i]
        z[i // 2, i % 2] = x[i].to(tc.f32)
        x[i] = x[i] + by


def quick(kernel: Any, *args: Any) -> Any:
    """A kernel whose calls compiled code takes, tensors too."""
    for _ in range(2):
        kernel(*args)
    assert kernel.direct is not None
    return kernel


def same(made: Any, expected: np.ndarray) -> None:
    array = as_array(made)
    assert array.dtype == expected.dtype
    np.testing.assert_array_equal(array, expected)


def refused(kernel: Any, *args: Any, **keywords: Any) -> str:
    """What the first call is told as later ones are."""
    told = []
    for call in (kernel.call, kernel):
        with pytest.raises(tc.ArgumentError) as caught:
            call(*args, **keywords)
        told.append(str(caught.value))
    assert told[0] == told[1]
    return told[0]


TYPES = "boolean i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2".split()


@pytest.mark.parametrize("name", TYPES)
def test_tensors_in_tensors_out(name: str, torch: Any) -> None:
    dtype = getattr(tc, name)
    array = np.arange(37).astype(dtype.numpy)
    kernel, x = make_copy(dtype), tensor_of(torch, array)
    for _ in range(3):
        made = kernel(x)
        assert type(made) is torch.Tensor
        assert made.dtype == x.dtype
        same(made, array)
    assert kernel.direct is not None
    out = tensor_of(torch, np.zeros_like(array))
    assert kernel(x, out=out) is out
    same(out, array)


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (2, 0, 3), ()])
def test_shapes_of_what_is_made(shape: tuple[int, ...], torch: Any) -> None:
    extents = [tc.dim(f"n{k}") for k in range(len(shape))]
    kind = tc.f32[tuple(extents)] if shape else tc.f32[()]

    @tc.program
    def doubled(x: kind, y: tc.out[kind]):
        tc.compute(x.shape, lambda *at: x[at] * 2.0 if at else x[()] * 2.0, out=y)

    array = np.ones(shape, np.float32)
    for _ in range(3):
        made = doubled(tensor_of(torch, array))
        assert type(made) is torch.Tensor
        same(made, array * 2)
    if hasattr(torch, "is_stand_in"):  # as torch.empty has them
        sizes = [max(1, size) for size in shape]
        assert made.strides_asked == tuple([prod(sizes[k + 1 :]) for k in range(len(sizes))])


def test_several_outputs_and_an_inout(torch: Any) -> None:
    for _ in range(3):
        x = tensor_of(torch, np.arange(4, dtype=np.int32))
        y, z = swap(x, 5)
        assert type(y) is type(z) is torch.Tensor
        same(x, np.arange(5, 9, dtype=np.int32))
        same(z, np.arange(4, dtype=np.float32).reshape(2, 2))
    given = tensor_of(torch, np.zeros(4, np.int32))
    y, z = swap(x, 0, y=given)
    assert y is given
    assert type(z) is torch.Tensor


def test_one_tensor_among_arrays_makes_tensors(torch: Any) -> None:
    add, x = make_add(), tensor_of(torch, A)
    for _ in range(2):
        assert type(add(A, B)) is np.ndarray
        for args in ((x, B), (B, x), (x, x)):
            assert type(add(*args)) is torch.Tensor
            same(add(*args), A + as_array_or(args[1] if args[0] is x else B))
        out = np.empty(37, np.float32)
        assert add(x, x, out=out) is out
        np.testing.assert_array_equal(out, A + A)
        tensor = tensor_of(torch, out)
        assert add(A, B, out=tensor) is tensor
        np.testing.assert_array_equal(out, A + B)


def as_array_or(value: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else as_array(value)


def test_a_parameter_with_a_layout_takes_the_logical_tensor(torch: Any) -> None:
    @tc.kernel(workers=4)
    def sums(x: tc.f32[8, 4].laid(tc.repeat(4, 1) * tc.repeat(2, 4)), y: tc.out[tc.f32[4]]):
        for j in tc.spatial(4):
            total = tc.f32(0)
            for i in range(8):
                total += x[i, j]
            y[j] = total

    table = np.arange(32, dtype=np.float32).reshape(8, 4)
    packed = sums.pack(table)
    for _ in range(3):
        same(sums(tensor_of(torch, table)), table.sum(0))
        np.testing.assert_array_equal(sums(packed), table.sum(0))
    text = refused(sums, tensor_of(torch, np.asarray(packed)))  # as long as what is packed
    assert (
        text
        == "sums(): argument 'x' must be f32[8, 4], not f32[32]; it has a layout: pass kernel.pack(x)"
    )


def test_the_simulator_makes_tensors_too(torch: Any) -> None:
    made = driver.call(make_add(), (tensor_of(torch, A), B), {}, "sim")
    assert type(made) is torch.Tensor
    same(made, A + B)


def test_parameters_are_taken_where_no_gradient_is_recorded(torch: Any) -> None:
    x = torch.nn.Parameter(tensor_of(torch, A.copy()))
    add = quick(make_add(), tensor_of(torch, A), A)
    with torch.no_grad():
        for call in (add.call, add, add):
            made = call(x, B)
            assert type(made) is torch.Tensor
            assert not made.requires_grad
            same(made, A + B)
        assert add(A, B, out=x) is x
        if hasattr(torch, "is_stand_in"):
            before = x.exports
            add(x, B)
            assert x.exports == before  # compiled code reads it itself
    expected = (
        "add(): argument 'a' can't be read: it requires a gradient, which a kernel doesn't record; call it"
        " under torch.no_grad(), with .detach(), or as a tc.torch.operator() with a backward"
    )
    assert refused(add, x, B) == expected
    assert refused(add, A, B, out=x).startswith("add(): output 'c' can't be read: it requires")
    same(add(x.detach(), B), A + B + B)


def test_what_is_written_in_place_has_another_version(torch: Any) -> None:
    """So that autograd refuses to go back through what was overwritten."""
    add, out = make_add(), tensor_of(torch, A.copy())
    x = tensor_of(torch, A)
    for number, call in enumerate((add.call, add, add), start=1):
        call(x, B, out=out)
        assert out._version == number
    assert x._version == 0
    x = tensor_of(torch, np.zeros(4, np.int32))
    for number, call in enumerate((swap.call, swap, swap), start=1):
        call(x, 1)
        assert x._version == number


def test_strided_tensors_are_copied_with_a_warning(torch: Any) -> None:
    add = quick(make_add(), tensor_of(torch, A), B)
    table = np.arange(74, dtype=np.float32).reshape(37, 2)
    column = tensor_of(torch, table[:, 1])
    with pytest.warns(tc.CopyWarning, match="input 'a' isn't contiguous"):
        same(add(column, B), table[:, 1] + B)
    text = refused(add, A, B, out=column)
    assert "is written in place, so it must be contiguous" in text
    assert "overlaps 'a' in memory" in refused(add, A, B, out=tensor_of(torch, A))
    memory = tensor_of(torch, np.zeros(64, np.float32))
    text = refused(add, memory[:37], B, out=memory[27:])
    assert text == "add(): output 'c' is written, and it overlaps 'a' in memory"


def test_misfits_are_told_as_of_arrays(torch: Any) -> None:
    add = quick(make_add(), tensor_of(torch, A), B)
    for wrong in (A.astype(float), A[None], A[:5], A.astype(np.complex64)):
        as_tensor = refused(add, tensor_of(torch, wrong) if wrong.dtype.kind != "c" else wrong, B)
        assert as_tensor == refused(add, wrong, B)


def test_lazy_bits_are_respected(torch: Any) -> None:
    add = quick(make_add(), tensor_of(torch, A), B)
    negated = "it is a lazily negated view; .resolve_neg() makes a tensor of it"
    if hasattr(torch, "is_stand_in"):
        x, z = torch.Tensor(A, is_neg=True), torch.Tensor(A.astype(np.complex64), is_conj=True)
    else:
        x, z = torch._neg_view(tensor_of(torch, A)), torch.from_numpy(A + 1j * B).conj()
        same(add(x.resolve_neg(), B), B - A)
        assert "lazily negated" in refused(add, z.imag, B)
    assert refused(add, x, B) == f"add(): argument 'a' can't be read: {negated}"
    assert refused(add, A, B, out=x) == f"add(): output 'c' can't be read: {negated}"
    assert "'a' can't be read: it is a lazily conjugated view; .resolve_conj()" in refused(
        add, z, B
    )


def strange(library: Any) -> dict[str, Any]:
    """Tensors without elements in rows, and what is said of them."""
    if hasattr(library, "is_stand_in"):
        return {
            "it is a meta tensor, which has no elements": library.Tensor(A, device="meta"),
            "its layout is torch.sparse_coo; .to_dense()": library.Tensor(
                A, layout="torch.sparse_coo"
            ),
            "it is quantized; .int_repr()": library.Tensor(A, is_quantized=True),
            "it is a nested tensor": library.Tensor(A, is_nested=True),
            "it is a FakeTensor, which has no elements": FakeTensor(A),
        }
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = library.ones(37)
    plain = library.ones(37)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "it is a meta tensor, which has no elements": plain.to("meta"),
            "its layout is torch.sparse_coo; .to_dense()": plain.to_sparse(),
            "its layout is torch.sparse_csr; .to_dense()": library.eye(3).to_sparse_csr(),
            "it is quantized; .int_repr()": library.quantize_per_tensor(
                plain, 0.1, 0, library.qint8
            ),
            "it is a nested tensor": library.nested.nested_tensor([plain, plain]),
            "it is a FakeTensor, which has no elements": fake,
            "its layout is torch._mkldnn; .to_dense()": plain.to_mkldnn(),
        }


def test_what_has_no_elements_to_read_is_refused_in_a_sentence(torch: Any) -> None:
    add = quick(make_add(), tensor_of(torch, A), B)
    for said, tensor in strange(torch).items():
        assert f"add(): argument 'a' can't be read: {said}" in refused(add, tensor, B)
        assert f"add(): output 'c' can't be read: {said}" in refused(add, A, B, out=tensor)


def test_memory_without_an_address_is_not_read(torch: Any) -> None:
    add = quick(make_add(), tensor_of(torch, A), B)
    if hasattr(torch, "is_stand_in"):
        x = torch.Tensor(A)
        x.data_ptr = lambda: 0
    else:
        x = torch._efficientzerotensor((37,))  # as autograd makes them
    said = "can't be read through DLPack: its elements are nowhere in memory"
    assert refused(add, x, B) == f"add(): argument 'a' {said}"


def test_what_compiled_code_reads_itself(stand_in: Any) -> None:
    """Nothing is exported by DLPack for it."""

    @tc.kernel(workers=1)
    def first(x: tc.f32[1, 3], y: tc.out[tc.f32[1, 3]]):
        for i in tc.spatial(1).repeat(3):
            y[0, i] = x[0, i]

    quick(first, stand_in.Tensor(np.ones((1, 3), np.float32)))
    strange = np.lib.stride_tricks.as_strided(
        A, (1, 3), (1, 4)
    )  # nobody steps along an extent of 1
    x = stand_in.Tensor(strange)
    same(first(x), strange)
    assert not x.exports


def test_memory_elsewhere_is_not_read(stand_in: Any) -> None:
    add, x = quick(make_add(), stand_in.Tensor(A), B), stand_in.Tensor(A)
    x.__dict__["__dlpack_device__"] = lambda: (7, 0)
    assert "'a' lies in a GPU's memory, and the call is to run elsewhere" in refused(add, x, B)


def test_a_pytorch_that_offers_no_functions(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one: calls go through the driver."""
    monkeypatch.delattr(stand_in.Tensor, "__dlpack_c_exchange_api__")
    add = make_add()
    x = stand_in.Tensor(A)
    for number in range(1, 4):
        same(add(x, B), A + B)
        assert x.exports == number


def test_a_mode_that_makes_other_tensors(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiled code learns of PyTorch it learns outside."""
    add, x = make_add(), stand_in.Tensor(A)
    with monkeypatch.context() as mode:
        mode.setattr(stand_in, "empty", lambda *args, **keywords: FakeTensor(np.zeros(0)))
        same(add(x, B, out=stand_in.Tensor(A.copy())), A + B)
    for _ in range(3):
        assert type(add(x, B)) is stand_in.Tensor
    before = x.exports
    add(x, B)
    assert x.exports == before


def test_pytorch_may_come_late(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    add = quick(make_add(), A, B)
    monkeypatch.setitem(sys.modules, "torch", torch)
    for _ in range(3):
        assert type(add(tensor_of(torch, A), B)) is torch.Tensor
        assert type(add(A, B)) is np.ndarray


def test_later_calls_are_compiled_code_s(torch: Any) -> None:
    x, out = tensor_of(torch, A), tensor_of(torch, A.copy())
    with guards.absent():
        add = quick(make_add(), x, x)
    for call in (lambda: add(x, x, out=out), lambda: add(x, x)):
        if hasattr(torch, "is_stand_in"):  # whose own functions are Python's
            before = x.exports
            call()
            assert x.exports == before
        else:
            assert instructions(call) < 100
    assert instructions(lambda: add.call(x, x)) > 1000


def test_nothing_is_kept_of_a_call(torch: Any) -> None:
    x, wrong, whole = tensor_of(torch, A), tensor_of(torch, A[:5]), np.ones(37, np.int32)
    with guards.absent():
        add = quick(make_add(), x, x)

    def call() -> None:
        add(x, x)
        add(x, B)
        refused(add, x, wrong)
        refused(add, wrong, x)
        refused(add, whole, x)

    def counts() -> list[int]:
        call()
        gc.collect()  # what pytest keeps of errors goes in circles
        return [sys.getrefcount(it) for it in (x, wrong, whole, B, torch.Tensor)]

    counts()
    assert counts() == counts()
    before = [sys.getallocatedblocks(), *map(sys.getrefcount, (True, False, None))]
    for _ in range(1000):
        add(x, x)
    after = [sys.getallocatedblocks(), *map(sys.getrefcount, (True, False, None))]
    assert max(b - a for a, b in zip(before, after, strict=True)) < 500


@pytest.mark.parametrize("seed", range(40))
def test_random_calls_are_as_with_arrays(seed: int, torch: Any) -> None:
    """Of each argument it is drawn what it is and whether it fits; NumPy's arrays are the oracle."""
    random = np.random.default_rng(seed)
    dtype = [tc.f32, tc.bf16, tc.i32, tc.u8][seed % 4]
    add = quick(make_add(dtype), *[tensor_of(torch, np.zeros(3, dtype.numpy))] * 2)
    for _ in range(10):
        size = int(random.choice([0, 1, 5, 16, 33, 100]))
        drawn = []
        for _ in range(3):
            array = random.integers(0, 100, (2 * size + 2,)).astype(dtype.numpy)
            kind = random.integers(12)
            if kind == 0:
                array = array[: size + 1]
            elif kind == 1:
                array = array[: 2 * size : 2]
            elif kind == 2:
                array = array[1 : size + 1]
            elif kind == 3:
                array = array[:size].astype(np.float64)
            else:
                array = array[:size]
            drawn.append(array)
        a, b, c = drawn
        has_output = bool(random.integers(2))
        told = [
            outcome(add, [give(array) for array in (a, b)], give(c.copy()) if has_output else None)
            for give in (
                lambda it: it,
                lambda it: tensor_of(torch, it) if random.integers(3) else it,
            )
        ]
        assert told[0] == told[1]


def outcome(kernel: Any, args: list[Any], out: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tc.CopyWarning)
        try:
            made = as_array_or(kernel(*args) if out is None else kernel(*args, out=out))
        except tc.ArgumentError as error:
            return str(error)
    return made.dtype, made.shape, made.tobytes()
