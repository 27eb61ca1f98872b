"""The decorators of kernels, and the definitions that they return."""

from __future__ import annotations

import importlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import update_wrapper
from keyword import iskeyword
from pickle import PicklingError
from types import FunctionType
from typing import Any, NoReturn, TypeAlias

import numpy as np

from taskc.arrays.packed import Packed, elements_of, empty, pack, pack_rows
from taskc.errors import CompileError
from taskc.ir.arithmetic import convert
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Kernel, Tensor, Variable
from taskc.ir.signature import Parameter, Signed, inputs_of, named_type, outputs_of
from taskc.ir.spans import span
from taskc.ir.types import DType, TensorType, boolean, f64
from taskc.lang.relayout import relayout_of
from taskc.lang.sizes import Dimension, dim, tracing
from taskc.lang.values import SelfDescribed, describe

Example: TypeAlias = "Callable[[np.random.Generator], Any]"  # numpy.random loads later
# What a parameter is packed from, by its name: a shape that its own is rounded up from, or what a kernel makes it of.
Packs: TypeAlias = "Mapping[str, tuple[int, ...] | KernelDefinition]"
Runner: TypeAlias = "Callable[[Definition, tuple[Any, ...], dict[str, Any]], Any]"

_runner: list[Runner] = []
_tracer: list[Runner] = []
_picture: list[Callable[[Definition], str]] = []


def set_runner(runner: Runner, picture: Callable[[Definition], str]) -> None:
    """Set the functions that run a call and draw a definition in a notebook: both belong to layers above this one."""
    _runner[:] = [runner]
    _picture[:] = [picture]


def set_tracer(tracer: Runner) -> None:
    """Set the function that calls go to while a program is traced."""
    _tracer[:] = [tracer]


class Definition(SelfDescribed, ABC):
    """The result of decorating a function: a kernel or a program that can be called with arrays.

    kind        "kernel" or "program"
    name        of the function
    ir          the kernel or the program
    dimensions  the variables in it that stand for symbolic dimensions
    packs       the sources of parameters with a layout, where these aren't of the parameter's own shape
    tuples      the parameters that are tuples, by name, with the names of their parts
    problem     the problem that it solves, of a template's kernel or program: rules of gradients are by problem
    gradient    the kernel or program that computes the gradients of its inputs (taskc/backward.py), if it has one
    """

    kind: str
    ir: Signed
    problem: object = None
    gradient: Definition | None = None

    def __init__(
        self,
        made: Signed,
        dimensions: dict[Dimension, Variable],
        *,
        function: FunctionType | None = None,
        example: Example | None = None,
        packs: Packs | None = None,
        tuples: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.name = made.name
        self.described = f"the {self.kind} {made.name!r}"
        self.ir = made
        self.dimensions = dimensions
        # The compiled call that checks its own arguments, once a target has built it.
        self.direct: Callable[..., Any] | None = None
        self._example = example
        self.packs = packs or {}
        self.tuples = tuples or {}
        if function is not None:
            names = ("__name__", "__qualname__", "__module__", "__doc__")
            update_wrapper(self, function, names, ())
        text = self.__dict__.get("__doc__")
        self.__doc__ = f"{self.signature}\n\n{text}" if text else self.signature
        if all(item.name.isidentifier() and not iskeyword(item.name) for item in made.parameters):
            self.__signature__ = self._python_signature()

    @property
    def is_differentiable(self) -> bool:
        """Whether its gradient may be known without a look at its steps."""
        return self.problem is not None or self.gradient is not None

    @property
    @abstractmethod
    def kernels(self) -> tuple[KernelDefinition, ...]:
        """The kernels that a call runs, each once."""

    def __call__(self, /, *args: Any, **keywords: Any) -> Any:
        try:
            if self.direct is not None and tracing.get() is None:
                return self.direct(*args, **keywords)
            return self.call(*args, **keywords)
        except CompileError as error:  # its location says where; our own frames would bury it
            raise error.with_traceback(None) from error.__cause__

    def call(self, /, *args: Any, **keywords: Any) -> Any:
        """A call whose arguments are checked here, and not by compiled code."""
        call = _runner[0] if tracing.get() is None else _tracer[0]
        return call(self, args, keywords)

    def _repr_html_(self) -> str:
        return _picture[0](self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name, as functions are: unpickling imports the module and compiles in that process."""
        where = self.__module__, getattr(self, "__qualname__", self.name)
        try:
            is_there = _named(*where) is self
        except (ImportError, AttributeError):
            is_there = False
        if not is_there:
            raise PicklingError(
                f"{self.described} can't be pickled: it isn't found as {'.'.join(where)}; what a function"
                " makes is made anew in the other process"
            )
        return _named, where

    def _python_signature(self) -> inspect.Signature:
        """The inputs in order, and the outputs by name, each with its type as text."""
        inputs, outputs = inputs_of(self.ir.parameters), outputs_of(self.ir.parameters)
        kind = inspect.Parameter
        by_place = [
            kind(item.name, kind.POSITIONAL_OR_KEYWORD, annotation=_typed(item)) for item in inputs
        ]
        by_name = [
            kind(item.name, kind.KEYWORD_ONLY, default=None, annotation=_typed(item))
            for item in outputs
        ]
        return inspect.Signature([*by_place, *by_name])

    @property
    def signature(self) -> str:
        """Its name and parameters, as in `add(a: f32[64], y: out f32[64])`."""
        parts = [f"{item.name}: {_typed(item)}" for item in self.ir.parameters]
        return f"{self.name}({', '.join(parts)})"

    @property
    def made(self) -> tuple[TensorType, ...]:
        """The types of what a call returns."""
        outputs = outputs_of(self.ir.parameters)
        return tuple(TensorType(item.dtype, item.shape, item.layout) for item in outputs)

    def __getitem__(self, grid: object) -> NoReturn:
        raise TypeError(
            f"'{self.name}' takes no grid in brackets: it is called as it is, and its blocks are those of tc.tiles"
        )

    __iter__ = None

    def pack(self, array: Any, parameter: str | None = None) -> Any:
        """A constant operand as a parameter with a layout, or of a sub-byte type, takes it.

        It is what the author's kernel for that makes of it, or has zeros where the parameter's shape is rounded up. The
        parameter need not be named where one has a layout, or where the author said what one is packed from.
        """
        array = np.asarray(array)
        tensors = [item for item in inputs_of(self.ir.parameters) if isinstance(item, Tensor)]
        packable = [item for item in tensors if item.layout is not None or item.dtype.is_sub_byte]
        packable += [item for item in tensors if item.name in self.packs and item not in packable]
        candidates = [item for item in packable if parameter in (None, item.name)]
        if len(candidates) > 1:
            candidates = [item for item in candidates if item.name in self.packs]
        if len(candidates) != 1:
            names = ", ".join(item.name for item in packable) or "none"
            raise TypeError(
                f"'{self.name}' packs what a parameter with a layout, or of a sub-byte type, takes,"
                f" and those are: {names}"
            )
        (item,) = candidates
        if item.layout is None and item.dtype.is_sub_byte:
            return pack_rows(array, TensorType(item.dtype, item.argument_shape))
        described = TensorType(item.dtype, item.shape, item.layout)
        wanted = self.packs.get(item.name, item.shape)
        is_held = item.dtype.holds(array.dtype)
        numbers = array.astype(item.dtype.numpy, copy=False) if is_held else array
        if isinstance(wanted, KernelDefinition):
            given, by_numpy = wanted.ir.parameters[0], wanted.by_numpy or relayout_of(wanted.ir)
            is_fit = isinstance(given, Tensor) and array.shape == given.shape
            if by_numpy is None or not is_fit or not is_held:
                packed: Packed = wanted(array, out=empty(described))
                return packed
            return pack(by_numpy(numbers), described)
        array = elements_of(array, item.dtype) if item.dtype.is_sub_byte else numbers
        if array.shape != wanted:
            raise TypeError(f"{item.name} is packed from {list(wanted)}, not {list(array.shape)}")
        if item.layout is None:
            return array  # a kernel that reads operands as they are needs no others
        padding = [full - own for full, own in zip(described.shape, wanted, strict=True)]
        return pack(np.pad(array, [(0, n) for n in padding]) if any(padding) else array, described)

    def example(self, seed: int = 0, larger: int = 0) -> tuple[Any, ...]:
        """Arguments to check it with: those that are not tc.out, in order.

        From its own `example=`, or made from the types: floats from the standard normal
        distribution, integers from 0 to 9, symbolic dimensions as their `example=` says, or so many
        of their multiples larger.
        """
        random = np.random.default_rng(seed)
        inputs = inputs_of(self.ir.parameters)
        if self._example is not None:
            example = self._example(random)
            arguments = tuple(example) if isinstance(example, (tuple, list)) else (example,)
            if len(arguments) != len(inputs):
                raise CompileError(
                    f"the example of '{self.name}' has {len(arguments)} arguments, and the {self.kind}"
                    f" takes {len(inputs)}: {', '.join(item.name for item in inputs)}",
                    self.ir.loc,
                )
            return arguments
        sizes = {
            variable: dimension.example + larger * dimension.multiple
            for dimension, variable in self.dimensions.items()
        }
        arrays = []
        for item in inputs:
            shape: tuple[int, ...] = ()
            if isinstance(item, Tensor):
                shape = tuple([extent_value(n, sizes) for n in item.argument_shape])
            array = _random(random, item.dtype, shape)
            arrays.append(array if isinstance(item, Tensor) else array[()])
        return tuple(arrays)


def _typed(item: Parameter) -> str:
    """The role, if it isn't "in", and the type of a parameter."""
    if not isinstance(item, Tensor):
        return str(item.dtype)
    kind = named_type(item.dtype, item.argument_shape)
    return kind if item.role == "in" else f"{item.role} {kind}"


def _named(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


class KernelDefinition(Definition):
    """A kernel as its author wrote it: parsed, and not yet compiled for anything.

    `ir` is at stage parsed; for a kernel of `tc.cuda`, synchronized.

    by_numpy  the same function of an array, for a kernel that packs constants: NumPy has them packed before the kernel
              is compiled. None if there is none
    """

    kind = "kernel"
    ir: Kernel
    by_numpy: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]] | None = None

    @classmethod
    def of(cls, kernel: Kernel, packs: Packs | None = None) -> KernelDefinition:
        """A kernel without the function that it was once, such as one that was read as text."""
        dimensions = {dim(own.name, multiple=own.multiple): own for own in kernel.dimensions}
        return cls(kernel, dimensions, packs=packs)

    @property
    def kernels(self) -> tuple[KernelDefinition, ...]:
        return (self,)

    def __repr__(self) -> str:
        return f"<tc.kernel {self.signature}, {self.ir.workers} workers>"


def _random(random: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.is_float:
        return convert(np.asarray(random.standard_normal(shape)), f64, dtype)
    least = 0 if not dtype.is_sub_byte else int(dtype.minimum)
    most = 2 if dtype is boolean else min(10, int(dtype.maximum) + 1)
    return np.asarray(random.integers(least, most, shape)).astype(dtype.numpy)


def kernel(
    function: Callable[..., Any] | None = None,
    /,
    *,
    workers: int | None = None,
    example: Example | None = None,
    target: str | None = None,
    packs: Packs | None = None,
) -> Callable[[Callable[..., Any]], KernelDefinition]:
    """Make a kernel of a function, whose body is parsed and never run. Everything that it closes over is constant.

    workers  the number of workers in a block
    example  a function of a NumPy generator that returns arguments to check the kernel with
    target   the name of the target that the kernel is written for, if there is one
    packs    for parameters with a layout, by name: the shape that `kernel.pack` takes, if the parameter's shape is
             that rounded up; or the kernel that computes the packed form
    """
    _check_workers("tc.kernel", function, workers)
    return _decorator(workers, example, target, packs, is_cuda_kernel=False)


def cuda_kernel(
    function: Callable[..., Any] | None = None,
    /,
    *,
    workers: int | None = None,
    example: Example | None = None,
    target: str = "sm_90a",
) -> Callable[[Callable[..., Any]], KernelDefinition]:
    """A kernel below phases: its workers run freely, and its author places the barriers."""
    _check_workers("tc.cuda.kernel", function, workers)
    return _decorator(workers, example, target, None, is_cuda_kernel=True)


def _check_workers(name: str, function: object, workers: object) -> None:
    if function is not None or workers is None:
        raise CompileError(f"say how many workers a block has: @{name}(workers=128)")
    if isinstance(workers, bool) or not isinstance(workers, (int, np.integer)) or workers < 1:
        raise CompileError(f"the workers of a kernel are a number of at least 1, not {workers!r}")


def _decorator(
    workers: Any,
    example: Example | None,
    target: str | None,
    packs: Packs | None,
    *,
    is_cuda_kernel: bool,
) -> Callable[[Callable[..., Any]], KernelDefinition]:
    def decorate(function: Callable[..., Any]) -> KernelDefinition:
        from taskc.lang.parser import parse_kernel  # with all that knows the language

        if not isinstance(function, FunctionType):
            raise CompileError(
                f"a kernel is made from a function, and this is {describe(function)}"
            )
        token = tracing.set(None)  # a kernel that a program's body defines is no part of it
        try:
            with span("parse kernels"):
                parsed, dimensions, tuples = parse_kernel(
                    function,
                    workers=int(workers),
                    target=target,
                    is_cuda_kernel=is_cuda_kernel,
                    around=sys._getframe(1).f_locals,
                )
        except CompileError as error:  # its location says where; our own frames would bury it
            raise error.with_traceback(None) from error.__cause__
        finally:
            tracing.reset(token)
        return KernelDefinition(
            parsed, dimensions, function=function, example=example, packs=packs, tuples=tuples
        )

    return decorate
