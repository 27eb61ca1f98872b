"""A compiled model: called with arrays, or through the interface of ONNX Runtime's sessions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from taskc.arrays.arguments import ArgumentError
from taskc.arrays.device import AnyArray
from taskc.arrays.dlpack import host_view, is_on_cuda
from taskc.backend.limits import NO_LIMITS, Limits, limited
from taskc.errors import CompileError, InternalError
from taskc.ir.types import from_numpy
from taskc.lang.values import did_you_mean
from taskc.onnx.foreign import foreign_value, is_tensor
from taskc.operators.graph import Array, Graph, Value
from taskc.programs.definition import ProgramDefinition
from taskc.progress import line
from taskc.runtime import driver
from taskc.runtime.served import (
    Arrays,
    Runnable,
    Served,
    ServedProgram,
    fast_call,
    on_host,
    outputs_of,
)
from taskc.runtime.targets import finish_compiling

if TYPE_CHECKING:
    from taskc.onnx.importer import Imported

# --- Where a model's programs run: on the processor, or on a CUDA device ------------------------
# On a device, NumPy's arrays are copied there, and outputs back. If any input is on the device, all outputs stay there.


class Place:
    """Where programs run: the processor.

    name      the target
    machine   the machine that programs are compiled for; None is the processor at hand
    """

    name = "cpu"
    machine: str | None = None

    def view(self, given: Any) -> AnyArray | None:
        """An argument as an array, without a copy; None if it is no array."""
        if is_on_cuda(given):
            raise ArgumentError("it lies on a device, and the model runs on the processor")
        try:
            return host_view(np.asarray(given) if isinstance(given, np.generic) else given)
        except BufferError as error:
            raise ArgumentError(f"it can't be read through DLPack: {error}") from error

    def call(self, program: Any, arguments: Sequence[AnyArray]) -> Any:
        """A program's outputs."""
        return program(*arguments)

    def returned(self, outputs: list[Any], inputs: Iterable[AnyArray]) -> list[Any]:
        """A model's outputs as the caller of these inputs gets them."""
        return outputs


class CudaDevice(Place):
    """The first CUDA device."""

    name = "cuda"

    def __init__(self) -> None:
        from taskc import device

        self._device = device
        self.machine = device.context(0).target

    def view(self, given: Any) -> AnyArray | None:
        return self._device.asarray(given) if is_on_cuda(given) else super().view(given)

    def call(self, program: Any, arguments: Sequence[AnyArray]) -> Any:
        if not arguments:
            return driver.call(program, (), {}, self.name)
        return program(*map(self._here, arguments))

    def returned(self, outputs: list[Any], inputs: Iterable[AnyArray]) -> list[Any]:
        is_there = any(is_tensor(one) and not isinstance(one, np.ndarray) for one in inputs)
        to = self._here if is_there else on_host
        return [to(output) if is_tensor(output) else output for output in outputs]

    def _here(self, array: Any) -> Any:
        return self._device.array(array) if isinstance(array, np.ndarray) else array


PROCESSOR = Place()


def place_of(target: str) -> Place:
    if target == "cpu":
        return PROCESSOR
    if target == "cuda":
        return CudaDevice()
    raise CompileError(f"models don't run on {target!r}", hint="there is 'cpu', and 'cuda'")


# --- A graph's programs -------------------------------------------------------------------------


Computed: TypeAlias = "Callable[[Sequence[str]], list[Any]]"  # the arrays of tensors by their names


class ProgramSource(ABC):
    """The source of a graph's programs.

    is_staged  whether the graph runs in stages, whatever the shapes
    shapes     the sets of input shapes that have programs; empty where any may be traced
    """

    is_staged = False
    shapes: Sequence[Mapping[str, tuple[int, ...]]] = ()

    @property
    @abstractmethod
    def graph(self) -> Graph:
        """The graph as it was read."""

    def find(self, arrays: Arrays, *, is_traced: bool) -> Runnable | None:
        """The one program that runs all of the graph for arrays like these; None where it runs in stages."""
        return None

    @abstractmethod
    def traced(self, arrays: Arrays) -> Imported:
        """The traced program of the whole graph; an error says why there is none."""

    def store(self, arrays: Arrays, runnable: Runnable) -> None:  # noqa: B027 (most store nothing)
        """Called after the first run of a program for arrays like these, or once it is compiled."""

    def run(self, arrays: Arrays) -> list[Any]:
        """All outputs for these inputs, in stages; asked for only where `find` returned None."""
        raise InternalError("a source without stages found no program")

    def trace(self, arrays: Arrays, computed: Computed) -> None:  # noqa: B027 (most have no stages)
        """Trace the programs of all stages, without compiling them; see `Model.trace`."""

    def staged(self) -> tuple[Runnable, ...]:
        """The programs of all stages that are still kept."""
        return ()


class Programs:
    """A graph's programs: each call finds its own, or runs in stages."""

    def __init__(
        self, inputs: Iterable[str], outputs: Iterable[str], source: ProgramSource, place: Place
    ) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.source = source
        self.served = Served(source)
        self._place = place

    def run(self, arrays: Arrays) -> list[Any]:
        """All outputs, for checked inputs in order."""
        given = [*arrays.values()]
        fast = self.served.fast(given)
        if fast is not None:
            return fast(given)
        entry = self._entry(arrays)
        if entry is None:
            return self.source.run(arrays)
        runnable = entry.runnable
        outputs = outputs_of(runnable, arrays, partial(self._place.call, runnable.program))
        if entry.fast is None:
            self.source.store(arrays, runnable)
            if self._place is PROCESSOR:
                entry.fast = fast_call(runnable, self.inputs)
        return outputs

    def prepare(self, arrays: Arrays) -> None:
        """Compile for inputs like these, without running."""
        entry = self._entry(arrays)
        if entry is not None:
            compiled(entry.runnable, self._place)
            if entry.fast is None:
                self.source.store(arrays, entry.runnable)

    def trace(self, arrays: Arrays, computed: Computed) -> None:
        """Trace the programs of all stages, without compiling them; see `Model.trace`."""
        if self._entry(arrays) is None:
            self.source.trace(arrays, computed)

    def traced(self, arrays: Arrays) -> Imported:
        """The traced program for inputs like these; an error says why there is none."""
        from taskc.onnx.importer import Imported  # slow: loads all operators

        is_staged = self.source.is_staged or not all(map(is_tensor, arrays.values()))
        entry = None if is_staged else self.served.find(arrays, is_traced=True)
        if entry is not None and isinstance(entry.runnable, Imported):
            return entry.runnable
        return self.source.traced(arrays)

    def all(self) -> tuple[Runnable, ...]:
        return (*self.served.runnables, *self.source.staged())

    def _entry(self, arrays: Arrays) -> ServedProgram | None:
        is_staged = self.source.is_staged or not all(map(is_tensor, arrays.values()))
        return None if is_staged else self.served.find(arrays)


def compiled(runnable: Runnable, place: Place) -> None:
    """Compile a traced program, which a first call would do."""
    program = runnable.program
    if isinstance(program, ProgramDefinition) and program.ir.parameters:
        driver.whole_program(program, None if place.machine is None else place.name)


class Model:
    """A compiled model. Calls may come from several threads.

    With `wait`, a checked call returns once everything has its full code.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        source: ProgramSource,
        limits: Limits = NO_LIMITS,
        place: Place = PROCESSOR,
        *,
        wait: bool = False,
    ) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._names = {value.name: value for value in inputs}
        self._programs = Programs(self._names, [value.name for value in outputs], source, place)
        self._served = self._programs.served
        self._limits = limits
        self._place = place
        self._wait = wait

    def __repr__(self) -> str:
        return f"<model {self.name!r}: {', '.join(map(str, self.inputs))}>"

    def __call__(self, *args: Any, **feeds: Any) -> Any:
        """The output, or a tuple of all; inputs by position, by name, or as a dictionary by name."""
        if not feeds and len(args) == len(self.inputs):
            fast = self._served.fast(args)
            if fast is not None:
                outputs = fast(args)
                return outputs[0] if len(outputs) == 1 else tuple(outputs)
        returned = self.run(None, named(args, feeds, self.inputs))
        return returned[0] if len(returned) == 1 else tuple(returned)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs of these names, or all, for arrays by the names of inputs."""
        all_names, fast, arguments = self._programs.outputs, None, ()
        for name in output_names or ():
            if name not in all_names:
                raise ArgumentError(unknown("output", name, all_names))
        if feeds.keys() == self._names.keys():
            arguments = tuple([feeds[name] for name in self._names])
            fast = self._served.fast(arguments)
        if fast is not None:
            outputs = fast(arguments)
        else:  # in a context of its own, like a call of a kernel: see driver.call
            outputs = copy_context().run(self._computed, self.checked(feeds))
        if output_names is None:
            return outputs
        return [outputs[all_names.index(name)] for name in output_names]

    def fast(self, arrays: Sequence[Any]) -> list[Any] | None:
        """All outputs for arrays in the order of inputs, without checks; None if they need some."""
        fast = self._served.fast(arrays)
        return None if fast is None else fast(arrays)

    @line()
    def _computed(self, arrays: Mapping[str, Any]) -> list[Any]:
        with limited(self._limits):  # programs' calls go through `driver.call`, each with its door
            outputs = self._place.returned(self._programs.run(arrays), arrays.values())
        if self._wait:
            finish_compiling()
        return outputs

    @property
    def graph(self) -> Graph:
        """The model as it was read."""
        return self._programs.source.graph

    @property
    def shapes(self) -> Sequence[Mapping[str, tuple[int, ...]]]:
        """The only sets of input shapes that a bundle's model accepts; empty if any are accepted."""
        return self._programs.source.shapes

    @line()
    def prepare(self, feeds: Mapping[str, Any]) -> None:
        """Compile for arrays like these, as a first call would, without running.

        Program parts that depend on the results of other parts are compiled by calls.
        """
        arrays = self.checked(feeds)
        with limited(self._limits):
            self._programs.prepare(arrays)

    def trace(self, feeds: Mapping[str, Any], computed: Computed) -> None:
        """Trace the programs of all stages for arrays like these: an error comes before anything is compiled.

        computed  the arrays of intermediate tensors with these names, as another runtime has them; empty if it hasn't
        """
        arrays = self.checked(feeds)
        with limited(self._limits):
            self._programs.trace(arrays, computed)

    @property
    def programs(self) -> tuple[Runnable, ...]:
        """The programs compiled so far that are still kept."""
        return self._programs.all()

    def program(self, feeds: Mapping[str, Any]) -> Imported:
        """The traced program for arrays like these, traced if need be, and not run."""
        return self._programs.traced(self.checked(feeds))

    def checked(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """The inputs in order, checked and viewed as arrays."""
        for name in feeds:
            if name not in self._names:
                raise ArgumentError(unknown("input", name, [*self._names]))
        missing = [name for name in self._names if name not in feeds]
        if missing:
            raise ArgumentError(f"the model's input '{missing[0]}' is missing")
        arrays = {
            value.name: _array(value, feeds[value.name], self._place) for value in self.inputs
        }
        _check_extents([value for value in self.inputs if not value.foreign], arrays)
        return arrays


def named(
    args: tuple[Any, ...], feeds: Mapping[str, Any], inputs: Sequence[Value]
) -> Mapping[str, Any]:
    """The arguments of a call by the names of inputs."""
    if not args:
        return feeds
    if len(args) == 1 and isinstance(args[0], Mapping):
        feeds, args = {**args[0], **feeds}, ()
    if len(args) > len(inputs):
        raise ArgumentError(f"the model has {len(inputs)} inputs, not {len(args)}")
    by_position = {value.name: given for value, given in zip(inputs, args, strict=False)}
    for name in by_position.keys() & feeds.keys():
        raise ArgumentError(f"the input '{name}' is given twice")
    return {**by_position, **feeds}


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """The error for a name that isn't among the known ones."""
    hint = did_you_mean(name, known)
    has = ", ".join(f"'{one}'" for one in known) or "none"
    return f"the model has no {what} '{name}'; {hint or f'it has {has}'}"


def _array(value: Value, given: Any, place: Place) -> Any:
    """The argument for an input as an array, with its type and rank checked."""
    if value.foreign:
        try:
            return foreign_value(value.foreign, given)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"the input {value}: {error}") from None
    try:
        array = place.view(given)
    except ArgumentError as error:
        raise ArgumentError(f"the input '{value.name}': {error}") from None
    if array is None:
        raise ArgumentError(f"the input '{value.name}' is an array, not {type(given).__name__}")
    try:
        dtype = from_numpy(array.dtype)
    except ValueError as error:
        raise ArgumentError(f"the input '{value.name}': {error}") from None
    if value.dtype not in (None, dtype):
        raise ArgumentError(f"the input '{value.name}' is of {value.dtype}, not {dtype}")
    if value.shape is not None and array.ndim != len(value.shape):
        raise ArgumentError(
            f"the input {value} has {len(value.shape)} dimensions, and the array {array.ndim}"
        )
    return array


def _check_extents(inputs: Sequence[Value], arrays: Arrays) -> None:
    """Check declared extents, and that extents of the same name are equal."""
    named: dict[str, tuple[int, str]] = {}
    for value in inputs:
        array = arrays[value.name]
        for axis, (extent, size) in enumerate(zip(value.shape or (), array.shape, strict=False)):
            if isinstance(extent, int) and extent != size:
                raise ArgumentError(
                    f"the input {value} has {extent} along axis {axis}, and the array {size}"
                )
            if (
                isinstance(extent, str) and extent.isidentifier()
            ):  # many models call all of them "?"
                known, where = named.setdefault(extent, (size, value.name))
                if known != size:
                    raise ArgumentError(
                        f"'{extent}' is {known} by '{where}', and {size} by '{value.name}'"
                    )
