"""Random programs over arrays, run by NumPy and by `taskc.numpy`: updates, views, aliases, reads."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import taskc.numpy as tnp
from taskc.numpy.array import Array, View

TYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()
ARITHMETIC = ["add", "subtract", "multiply", "minimum", "maximum", "less", "equal", "divide"]
FUNCTIONS = ["negative", "absolute", "sin", "floor", "square", "isfinite", "tanh", "sign"]
FOLDS = ["sum", "max", "min", "mean", "any", "all", "argmax", "prod", "std"]
TOLERANCE = {"float16": 2e-2, "float32": 2e-5, "float64": 1e-11}


class Program:
    """Pairs of an array of NumPy and ours; each step does the same to both.

    lines  the steps, for a message
    """

    def __init__(self, seed: int, types: list[str] = TYPES) -> None:
        self.random = random.Random(seed)
        self.types = types
        self.pairs: list[tuple[Any, Any]] = []
        self.lines: list[str] = []
        for _ in range(3):
            self.create()

    def create(self) -> None:
        shape = self.random.choice(
            [(4, 3), (3,), (4, 1), (1,), (), (5,), (4, 3), (0, 3), (2, 4, 3)]
        )
        dtype = np.dtype(self.random.choice(self.types))
        size = int(np.prod(shape))
        values = np.array([self.random.randrange(-6, 7) / 2 for _ in range(size)]).reshape(shape)
        value = (np.abs(values) if dtype.kind == "u" else values).astype(dtype)
        self.add("new", lambda m: m.array(value))

    def add(self, line: str, step: Callable[..., Any], *places: int) -> None:
        """Take a step with both; a result is another pair."""
        given = [self.pairs[place] for place in places]
        self.lines.append(f"{len(self.pairs)} = {line} {places}")
        results: list[Any] = []
        errors: list[type[BaseException] | None] = []
        for module, side in ((np, 0), (tnp, 1)):
            try:
                with np.errstate(all="ignore"):
                    results.append(step(module, *[pair[side] for pair in given]))
                errors.append(None)
            except (TypeError, ValueError, IndexError, OverflowError) as error:
                errors.append(type(error))
        assert (errors[0] is None) == (errors[1] is None), (errors, self.lines)
        if errors[0] is None and results[0] is not None:
            expected, value = results
            if type(value) is np.ndarray:  # of a scalar of NumPy's, as in x.sum()[...]
                assert any(isinstance(pair[1], np.generic) for pair in given), self.lines
                expected, value = np.array(expected), tnp.array(value)
            assert isinstance(value, Array | np.generic), self.lines
            assert value.shape == np.shape(expected), (value.shape, np.shape(expected), self.lines)
            assert value.dtype == expected.dtype, (value.dtype, expected.dtype, self.lines)
            self.pairs.append((expected, value))

    def compare(self, place: int) -> None:
        expected, ours = self.pairs[place]
        given, value = np.asarray(expected), np.asarray(ours)
        assert value.dtype == given.dtype
        assert value.shape == given.shape
        close = TOLERANCE.get(given.dtype.name, 0)
        if close and "float16" in self.types:  # numbers that were rounded to it are anywhere
            close = TOLERANCE["float16"]
        with np.errstate(all="ignore"):
            same = np.isclose(
                value.astype(np.float64), given.astype(np.float64), close, close, equal_nan=True
            )
        if close == 0:
            same = value == given
        assert np.all(same), (place, given, value, self.lines)

    def step(self) -> None:
        choose, number = self.random.choice, self.random.randrange
        x, y = number(len(self.pairs)), number(len(self.pairs))
        shape, dtype = self.pairs[x][0].shape, self.pairs[x][0].dtype
        if dtype.kind == "f" and not np.all(np.abs(np.nan_to_num(self.pairs[x][0])) < 1e4):
            self.add("small", lambda m, a: m.where(m.isfinite(a) & (abs(a) < 100), a, 1), x)
            self.pairs[x] = (
                self.pairs.pop() if len(self.pairs[-1][0].shape) == len(shape) else self.pairs[x]
            )
            return
        kind = number(16)
        if kind < 3:
            name = choose(ARITHMETIC)
            self.add(name, lambda m, a, b: getattr(m, name)(a, b), x, y)
        elif kind == 3:
            name, scalar = choose(["add", "multiply", "subtract"]), choose([2, 0.5, True, 3, -1])
            self.add(f"{name} {scalar}", lambda m, a: getattr(m, name)(a, scalar), x)
        elif kind == 4:
            name = choose(FUNCTIONS)
            self.add(name, lambda m, a: getattr(m, name)(a), x)
        elif kind in (5, 6):
            key = self.index(shape)
            self.add(f"[{key}]", lambda m, a: a[key], x)
        elif kind == 7:
            # An array of NumPy's that isn't in order of rows is copied by reshape, and ours is in that order.
            is_in_order = self.pairs[x][0].flags.c_contiguous or isinstance(self.pairs[x][1], View)
            how = choose(["T", "reshape", "ravel"]) if is_in_order else "T"
            self.add(
                how,
                {
                    "T": lambda m, a: a.T,
                    "reshape": lambda m, a: a.reshape(shape[::-1]),
                    "ravel": lambda m, a: m.ravel(a),
                }[how],
                x,
            )
        elif kind in (8, 9):
            key = self.index(shape)
            scalar = choose([1, 2, 0])
            self.add(f"[{key}] = {scalar}", lambda m, a: self.set(a, key, scalar), x)
        elif kind == 10:
            key = self.index(shape)
            self.add(
                f"[{key}] = array", lambda m, a, b: self.set(a, key, self.fitting(m, a, b)), x, y
            )
        elif kind in (11, 12):
            name = choose(["__iadd__", "__isub__", "__imul__"])
            if shape:
                self.add(name, lambda m, a, b: self.update(a, name, b), x, y)
            else:
                self.add(name, lambda m, a, b: m.add(a, b), x, y)
        elif kind == 13:
            name, axis = choose(FOLDS), choose([None, 0, -1]) if shape else None
            self.add(f"{name} {axis}", lambda m, a: getattr(m, name)(a, axis=axis), x)
        elif kind == 14:
            self.compare(x)
            self.lines.append(f"read {x}")
        else:
            how = choose(["copy", "alias", "where", "astype", "mask", "gather", "join"])
            to = choose(self.types)
            self.add(
                f"{how} {to if how == 'astype' else ''}",
                {
                    "copy": lambda m, a, b: a.copy(),
                    "alias": lambda m, a, b: a if shape else a.copy(),
                    "where": lambda m, a, b: m.where(a > 0, a, b),
                    "astype": lambda m, a, b: m.abs(m.minimum(m.maximum(m.nan_to_num(a), 0), 1)).astype(to),
                    "mask": lambda m, a, b: self.set(a, a > 1, 1) if shape else None,
                    "gather": lambda m, a, b: a[m.array([0, -1, 0])],
                    "join": lambda m, a, b: m.concatenate([a, b]),
                }[how],
                x, y,
            )  # fmt: skip

    def index(self, shape: tuple[int, ...]) -> Any:
        choose = self.random.choice
        key: list[Any] = []
        for extent in shape[: self.random.randrange(len(shape) + 1)]:
            part = choose(
                [
                    slice(None),
                    slice(1, None),
                    slice(None, -1),
                    slice(None, None, -1),
                    slice(None, None, 2),
                    0,
                    -1,
                    None,
                ]
            )
            if isinstance(part, int) and not extent:
                part = slice(None)
            key.append(part)
        if choose([False, False, True]):
            key.append(...)
        return tuple(key) if len(key) != 1 else key[0]

    @staticmethod
    def set(a: Any, key: Any, value: Any) -> None:
        if a.shape:
            a[key] = value

    @staticmethod
    def fitting(m: Any, a: Any, b: Any) -> Any:
        """Elements that fit the array's type: what else a float becomes as an integer depends on the machine."""
        if a.dtype.kind in "iu" and b.dtype.kind == "f":
            return m.abs(m.minimum(m.maximum(m.nan_to_num(b), -100), 100))
        return b

    @staticmethod
    def update(a: Any, name: str, b: Any) -> None:
        getattr(a, name)(b)

    def finish(self) -> None:
        for place in range(len(self.pairs)):
            self.compare(place)


def run(seed: int, steps: int, types: list[str] = TYPES) -> Program:
    program = Program(seed, types)
    for _ in range(steps):
        program.step()
        if len(program.pairs) > 8:
            program.pairs.pop(program.random.randrange(len(program.pairs)))
    program.finish()
    return program
