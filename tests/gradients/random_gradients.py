"""Random programs, each with its twin in PyTorch: chains, shifts, guards, look-ups, updates in place, parts, loops."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import taskc as tc
from taskc import f32, i64, op

Handle = Any
Pair = tuple[Handle, Any]  # a handle, and PyTorch's tensor


class Program:
    """A program of `x0`, `x1`, ... and `ids`, and the same with PyTorch's tensors.

    body(*handles)       the program's function, for tc.trace
    reference(*tensors)  PyTorch's result
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        pick = random.Random(seed)
        self.rows, self.columns = pick.randint(2, 19), pick.randint(2, 19)
        numbers = np.random.default_rng(seed)
        shapes = [(self.rows, self.columns)] * pick.randint(1, 3)
        shapes += [(self.columns, self.columns), (self.columns,)]
        self.arrays = [numbers.standard_normal(shape).astype(np.float32) * 0.7 for shape in shapes]
        self.ids = numbers.integers(0, self.rows, self.rows)

    @property
    def names(self) -> list[str]:
        return [f"x{n}" for n in range(len(self.arrays))]

    @property
    def types(self) -> dict[str, Any]:
        kinds = {name: f32[x.shape] for name, x in zip(self.names, self.arrays, strict=True)}
        return {**kinds, "ids": i64[self.rows]}

    def body(self, *handles: Handle) -> dict[str, Handle]:
        return {"y": _Run(self, handles, True).run()}

    def reference(self, *tensors: Any) -> Any:
        return _Run(self, tensors, False).run()


class _Run:
    """One of the twins: both make the same choices."""

    def __init__(self, program: Program, given: tuple[Any, ...], is_ours: bool) -> None:
        self.pick = random.Random(program.seed + 1_000_000)
        self.shape = self.rows, self.columns = program.rows, program.columns
        *self.values, self.matrix, self.vector, self.ids = given
        self.is_ours = is_ours

    def run(self) -> Any:
        steps = [name for name in dir(self) if name.startswith("step_")]
        last = self.values[0]
        for _ in range(self.pick.randint(2, 7)):
            last = getattr(self, self.pick.choice(steps))(self.value())
            self.values.append(last)
        return self.step_sum(last)

    def value(self) -> Any:
        """Mostly a late one."""
        return self.values[-1] if self.pick.random() < 0.6 else self.pick.choice(self.values)

    def twin(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
        return ours() if self.is_ours else theirs()

    def each(self, ours: Callable[..., Any], theirs: Callable[[], Any]) -> Any:
        return self.twin(lambda: tc.compute(self.shape, ours), theirs)

    def step_sum(self, x: Any) -> Any:
        y = self.value()
        return self.each(lambda i, j: x[i, j] + y[i, j] * 0.5, lambda: x + y * 0.5)

    def step_product(self, x: Any) -> Any:
        y, v = self.value(), self.vector
        return self.each(lambda i, j: x[i, j] * tc.sin(y[i, j]) + v[j], lambda: x * y.sin() + v)

    def step_function(self, x: Any) -> Any:
        name = self.pick.choice(["tanh", "sigmoid", "erf", "atan", "asinh", "gelu"])
        own = getattr(tc, name)

        def theirs() -> Any:
            import torch

            return getattr(torch, name, torch.nn.functional.gelu)(x)

        return self.each(lambda i, j: own(x[i, j]), theirs)

    def step_shift(self, x: Any) -> Any:
        by, n = self.pick.randint(1, self.rows - 1), self.rows

        def theirs() -> Any:
            moved = x.roll(-by, 0).clone()
            moved[n - by :] = 0
            return moved * x

        return self.each(lambda i, j: x[i + by, j] * x[i, j] if i + by < n else tc.f32(0), theirs)

    def step_turn(self, x: Any) -> Any:
        n = self.rows
        return self.each(lambda i, j: x[n - 1 - i, j] - x[i, 0], lambda: x.flip(0) - x[:, :1])

    def step_guard(self, x: Any) -> Any:
        def theirs() -> Any:
            import torch

            positive = x > 0.1
            return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.25 * x)

        return self.each(lambda i, j: tc.sqrt(x[i, j]) if x[i, j] > 0.1 else x[i, j] * 0.25, theirs)

    def step_clamp(self, x: Any) -> Any:
        return self.each(lambda i, j: min(max(x[i, j], -1.0), 0.5), lambda: x.clamp(-1, 0.5))

    def step_pick(self, x: Any) -> Any:
        ids = self.ids
        return self.each(lambda i, j: x[ids[i], j] * x[i, j], lambda: x[ids] * x)

    def step_lookup(self, x: Any) -> Any:
        ids = self.ids
        return self.twin(lambda: op.Gather(x, ids, axis=0), lambda: x[ids])

    def step_view(self, x: Any) -> Any:
        m, n = self.shape

        def ours() -> Any:
            y, flat = x.reshape(n, m), x.reshape(m * n)
            return tc.compute((m, n), lambda i, j: y[j, i] + flat[j * m + i] * flat[0])

        def theirs() -> Any:
            return x.reshape(n, m).mT * (1 + x.reshape(-1)[0])

        return self.twin(ours, theirs)

    def step_parts(self, x: Any) -> Any:
        m, n = self.shape
        cut, y = self.pick.randint(1, m - 1), self.value()

        def ours() -> Any:
            whole = tc.empty(f32[m, n])
            tc.compute((cut, n), lambda i, j: x[i, j] * y[i, j], out=whole[:cut])
            tc.compute((m - cut, n), lambda i, j: y[i, j] - x[i + 1, j], out=whole[cut:])
            return whole

        def theirs() -> Any:
            import torch

            return torch.cat([(x * y)[:cut], y[: m - cut] - x[1 : m - cut + 1]])

        return self.twin(ours, theirs)

    def step_in_place(self, x: Any) -> Any:
        m, n = self.shape
        y = self.value()

        def ours() -> Any:
            own = tc.compute((m, n), lambda i, j: x[i, j] * 0.5)
            tc.compute((m, n), lambda i, j: tc.tanh(own[i, j]) * y[i, j], out=own)
            tc.compute((m, n), lambda i, j: own[i, j] - own[i, 0] * 0.3, out=own)
            tc.compute((m - 1, n), lambda i, j: own[i, j] * own[i, j], out=own[1:])
            return own

        def theirs() -> Any:
            import torch

            own = torch.tanh(x * 0.5) * y
            own = own - own[:, :1] * 0.3
            return torch.cat([own[:1], own[:-1] ** 2])

        return self.twin(ours, theirs)

    def step_loop(self, x: Any) -> Any:
        m, n = self.shape
        count, w = self.pick.randint(1, 4), self.matrix

        def ours() -> Any:
            state = tc.compute((m, n), lambda i, j: x[i, j])
            for t in tc.steps(count):
                sums = op.MatMul(state, w)
                tc.compute(
                    (m, n), lambda i, j: tc.tanh(sums[i, j] * 0.3 + x[i, j] * (t + 1)), out=state
                )
            return state

        def theirs() -> Any:
            state = x
            for t in range(count):
                state = (state @ w * 0.3 + x * (t + 1)).tanh()
            return state

        return self.twin(ours, theirs)

    def step_matmul(self, x: Any) -> Any:
        return self.twin(lambda: op.MatMul(x, self.matrix), lambda: x @ self.matrix)

    def step_scores(self, x: Any) -> Any:
        y = self.value()

        def ours() -> Any:
            scores = op.Softmax(op.MatMul(x, op.Transpose(y, perm=[1, 0])), axis=-1)
            return op.MatMul(scores, y)

        return self.twin(ours, lambda: (x @ y.mT).softmax(-1) @ y)

    def step_norm(self, x: Any) -> Any:
        v = self.vector

        def theirs() -> Any:
            import torch

            return torch.nn.functional.layer_norm(x, v.shape, v, v, 1e-2)

        return self.twin(lambda: op.LayerNormalization(x, v, v, axis=-1, epsilon=1e-2), theirs)

    def step_reduce(self, x: Any) -> Any:
        kind, axis = self.pick.choice(["Sum", "Mean", "Max"]), self.pick.randint(0, 1)

        def ours() -> Any:
            kept = getattr(op, f"Reduce{kind}")(x, [axis], keepdims=1)
            if axis:
                return tc.compute(self.shape, lambda i, j: kept[i, 0] - x[i, j])
            return tc.compute(self.shape, lambda i, j: kept[0, j] - x[i, j])

        def theirs() -> Any:
            kept = (
                x.amax(axis, keepdim=True)
                if kind == "Max"
                else getattr(x, kind.lower())(axis, keepdim=True)
            )
            return kept - x

        return self.twin(ours, theirs)

    def step_scan(self, x: Any) -> Any:
        return self.twin(lambda: op.CumSum(x, 1), lambda: x.cumsum(1))
