"""A compiled model: called with arrays, or through the interface of ONNX Runtime's sessions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from taskc.arrays.arguments import ArgumentError
from taskc.arrays.device import AnyArray
from taskc.arrays.dlpack import is_on_cuda
from taskc.arrays.host import host_view
from taskc.backend.limits import NO_LIMITS, Limits, limited
from taskc.errors import CompileError
from taskc.ir.types import from_numpy
from taskc.lang.values import did_you_mean
from taskc.operators.graph import Array, Graph, Output, Value, arrays_of, on_host
from taskc.runtime import driver
from taskc.runtime.served import Entry, Served

if TYPE_CHECKING:
    from taskc.onnx.importer import Imported

# --- Where a model's programs run: on the processor, or on a CUDA device ------------------------
# On a device, NumPy's arrays are copied there, and outputs back. If any input is on the device, all outputs stay there.


class Place(Protocol):
    """Where programs run: the processor, or a device.

    name      the target
    machine   the machine that programs are compiled for; None is the processor at hand
    view      an argument as an array, without a copy; None if it is no array
    call      a program's outputs
    returned  a model's outputs as the caller of these inputs gets them
    """

    @property
    def name(self) -> str: ...
    @property
    def machine(self) -> str | None: ...
    def view(self, given: Any) -> AnyArray | None: ...
    def call(self, program: Any, arguments: Sequence[AnyArray]) -> Any: ...
    def returned(self, made: list[Any], given: Iterable[AnyArray]) -> list[Any]: ...


class Processor:
    name, machine = "cpu", None

    def view(self, given: Any) -> AnyArray | None:
        if is_on_cuda(given):
            raise ArgumentError("it lies on a device, and the model runs on the processor")
        try:
            return host_view(np.asarray(given) if isinstance(given, np.generic) else given)
        except BufferError as error:
            raise ArgumentError(f"it can't be read through DLPack: {error}") from error

    def call(self, program: Any, arguments: Sequence[AnyArray]) -> Any:
        return program(*arguments)

    def returned(self, made: list[Any], given: Iterable[AnyArray]) -> list[Any]:
        return made


class CudaDevice:
    """The first CUDA device."""

    name = "cuda"

    def __init__(self) -> None:
        from taskc import device

        self._device = device
        self.machine: str | None = device.context(0).target

    def view(self, given: Any) -> AnyArray | None:
        return self._device.asarray(given) if is_on_cuda(given) else PROCESSOR.view(given)

    def call(self, program: Any, arguments: Sequence[AnyArray]) -> Any:
        if not arguments:
            return driver.call(program, (), {}, self.name)
        return program(*map(self._here, arguments))

    def returned(self, made: list[Any], given: Iterable[AnyArray]) -> list[Any]:
        if all(isinstance(array, np.ndarray) for array in given):
            return [on_host(array) for array in made]
        return [self._here(array) for array in made]

    def _here(self, array: Any) -> Any:
        return self._device.array(array) if isinstance(array, np.ndarray) else array


PROCESSOR: Place = Processor()


def place_of(target: str) -> Place:
    if target == "cpu":
        return PROCESSOR
    if target == "cuda":
        return CudaDevice()
    raise CompileError(f"models don't run on {target!r}", hint="there is 'cpu', and 'cuda'")


# --- A graph's outputs from those of its program ------------------------------------------------


class Runnable(Protocol):
    """A program with the graph's inputs that it takes, and the source of each of the graph's outputs."""

    @property
    def program(self) -> Any: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[Output, ...]: ...


def entry_of(runnable: Runnable, names: Sequence[str]) -> Callable[[Sequence[Any]], list[Any]]:
    """A function from arrays by position to the graph's outputs, on the processor."""
    program, outputs = runnable.program, runnable.outputs
    order = [names.index(name) for name in runnable.inputs]
    if all(isinstance(output, np.ndarray) for output in outputs):
        return lambda arrays: arrays_of(outputs, ())
    if not all(isinstance(output, str) for output in outputs):
        return lambda arrays: arrays_of(
            outputs, _several(program(*[arrays[place] for place in order]))
        )
    is_one = len(outputs) == 1

    def run(arrays: Sequence[Any]) -> list[Any]:
        results = program(*[arrays[place] for place in order])
        return [results] if is_one else [*results]

    return run


def _several(returned: Any) -> tuple[Any, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


def outputs_for(found: Runnable, arrays: Mapping[str, Any], place: Place = PROCESSOR) -> list[Any]:
    """The graph's outputs for arrays by the names of its inputs."""
    is_known = all(isinstance(output, np.ndarray) for output in found.outputs)
    arguments = [arrays[name] for name in found.inputs]
    returned: Any = () if is_known else place.call(found.program, arguments)
    return arrays_of(found.outputs, _several(returned))


MOST_DECISIVE = 256  # elements of an input that decide what is compiled


class Programs(Protocol):
    """The source of a model's programs.

    graph   the model's graph
    whole   the one program that runs all of the graph for arrays like these; None where it runs in parts
    run     all outputs for these inputs, by parts
    prepare  compiles for arrays like these, without running
    traced  the traced graph for arrays like these
    shapes  the sets of input shapes that have programs; empty where any may be traced
    kept    the programs compiled so far
    """

    @property
    def graph(self) -> Graph: ...
    @property
    def shapes(self) -> Sequence[Mapping[str, tuple[int, ...]]]: ...
    def whole(self, arrays: Mapping[str, Array]) -> Runnable | None: ...
    def run(self, arrays: Mapping[str, Array]) -> list[Array]: ...
    def prepare(self, arrays: Mapping[str, Array]) -> None: ...
    def traced(self, arrays: Mapping[str, Array]) -> Imported: ...
    def kept(self) -> tuple[Runnable, ...]: ...


class Model:
    """A compiled model. Calls may come from several threads.

    Inputs named in `foreign` are no tensors of taskc: they are passed through unchanged.

    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        programs: Programs,
        foreign: Collection[str] = (),
        limits: Limits = NO_LIMITS,
        place: Place = PROCESSOR,
    ) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._names = {value.name: value for value in inputs}
        self._programs = programs
        self._foreign = foreign
        self._limits = limits
        self._place = place
        self._served = Served()

    def __repr__(self) -> str:
        return f"<model {self.name!r}: {', '.join(map(str, self.inputs))}>"

    def __call__(self, *args: Any, **feeds: Any) -> Any:
        """The output, or a tuple of all; inputs by position, by name, or as a dictionary by name."""
        if not feeds and len(args) == len(self.inputs):
            entry = self._served.entry(args)
            if entry is not None:
                outputs = entry.run(args)
                return outputs[0] if len(outputs) == 1 else tuple(outputs)
        if len(args) == 1 and isinstance(args[0], Mapping):
            feeds, args = {**args[0], **feeds}, ()
        if len(args) > len(self.inputs):
            raise ArgumentError(f"the model has {len(self.inputs)} inputs, not {len(args)}")
        for value, given in zip(self.inputs, args, strict=False):
            if value.name in feeds:
                raise ArgumentError(f"the input '{value.name}' is given twice")
            feeds[value.name] = given
        returned = self.run(None, feeds)
        return returned[0] if len(returned) == 1 else tuple(returned)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs of these names, or all, for arrays by the names of inputs."""
        if output_names is None and feeds.keys() == self._names.keys():
            arguments = [feeds[name] for name in self._names]
            entry = self._served.entry(arguments)
            if entry is not None:
                return entry.run(arguments)
        all_names = [value.name for value in self.outputs]
        wanted = all_names if output_names is None else output_names
        for name in wanted:
            if name not in all_names:
                raise ArgumentError(_unknown("output", name, all_names))
        arrays = self.checked(feeds)
        outputs = copy_context().run(
            self._computed, arrays
        )  # like a call of a kernel, see driver.call
        return [outputs[all_names.index(name)] for name in wanted]

    def _computed(self, arrays: Mapping[str, Any]) -> list[Any]:
        with limited(
            self._limits
        ):  # its programs' calls go through `driver.call`, each with its own door
            runnable = self._programs.whole(arrays)
            if runnable is None:
                outputs = self._programs.run(arrays)
            else:
                outputs = outputs_for(runnable, arrays, self._place)
                if self._place is PROCESSOR:
                    self._serve(arrays, runnable)
            return self._place.returned(outputs, arrays.values())

    def _serve(self, arrays: Mapping[str, Any], runnable: Runnable) -> None:
        """Cache the program for calls with arrays like these."""
        names = [*arrays]
        decisive = [name for name in names if name not in runnable.inputs]
        if any(arrays[name].size > MOST_DECISIVE for name in decisive):
            return  # too large to compare at every call
        values = tuple([(names.index(name), arrays[name].tobytes()) for name in decisive])
        self._served.keep([*arrays.values()], Entry(entry_of(runnable, names), values))

    @property
    def graph(self) -> Graph:
        """The model as it was read."""
        return self._programs.graph

    @property
    def shapes(self) -> Sequence[Mapping[str, tuple[int, ...]]]:
        """The only sets of input shapes that a bundle's model accepts; empty if any are accepted."""
        return self._programs.shapes

    def prepare(self, feeds: Mapping[str, Any]) -> None:
        """Compile for arrays like these, as a first call would, without running.

        Program parts that depend on the results of other parts are compiled by calls.

        """
        arrays = self.checked(feeds)
        with limited(self._limits):
            self._programs.prepare(arrays)

    @property
    def programs(self) -> tuple[Runnable, ...]:
        """The programs compiled so far that are still kept."""
        return self._programs.kept()

    def program(self, feeds: Mapping[str, Any]) -> Imported:
        """The traced program for arrays like these, traced if need be, and not run."""
        return self._programs.traced(self.checked(feeds))

    def checked(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """The inputs in order, checked and viewed as arrays."""
        for name in feeds:
            if name not in self._names:
                raise ArgumentError(_unknown("input", name, [*self._names]))
        missing = [name for name in self._names if name not in feeds]
        if missing:
            raise ArgumentError(f"the model's input '{missing[0]}' is missing")
        tensors = [value for value in self.inputs if value.name not in self._foreign]
        arrays = {value.name: _array(value, feeds[value.name], self._place) for value in tensors}
        _check_extents(tensors, arrays)
        return {name: arrays[name] if name in arrays else feeds[name] for name in self._names}


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    hint = did_you_mean(name, known)
    has = ", ".join(f"'{one}'" for one in known) or "none"
    return f"the model has no {what} '{name}'; {hint or f'it has {has}'}"


def _array(value: Value, given: Any, place: Place) -> Any:
    """The argument for an input as an array, with its type and rank checked."""
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


def _check_extents(inputs: Sequence[Value], arrays: Mapping[str, Array]) -> None:
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
