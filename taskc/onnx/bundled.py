"""Models in bundles: programs for some sets of shapes, under the names of the model's inputs and outputs.

    save_bundle(model, "model.taskc", {"x": array}, …)     compile a program for each of these feeds
    load_bundle("model.taskc")                             load the model again, or a saved program

A program may also depend on the elements of small inputs: then it serves only calls with the elements of its feed.

The feeds of a model with states are calls, one after the other: a prompt and a token. Its programs serve all lengths.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence as Ordered
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taskc import CompileError, ProgramDefinition
from taskc.arrays.arguments import ArgumentError
from taskc.arrays.device import AnyArray
from taskc.backend.limits import Limits, limited
from taskc.dataclass import dataclass
from taskc.ir.signature import named_type
from taskc.ir.types import DTYPES, from_numpy
from taskc.onnx.model import Model, ProgramSource
from taskc.onnx.sequences import Sequence
from taskc.operators.graph import Array, Graph, Value
from taskc.programs.plan import Json
from taskc.runtime.bundle import Bundle, BundledProgram, Writer, write
from taskc.runtime.driver import Once
from taskc.runtime.served import (
    Arrays,
    Condition,
    CountedOutput,
    Output,
    Runnable,
    Types,
    on_host,
    types_of,
)

if TYPE_CHECKING:
    from taskc.onnx.importer import Imported
    from taskc.onnx.states import States

_MAX_SHOWN = 8  # sets of shapes in a message


def save_bundle(
    compiled: Model | Sequence | ProgramDefinition,
    path: str | os.PathLike[str],
    *feeds: Mapping[str, Any],
) -> None:
    """Compile a model or a program for this processor into one file, which `load_bundle` reads.

    feeds  arrays by the names of a model's inputs; it is saved for calls with these shapes. None are needed if the
           model declares all shapes. For a model with states, the calls of a new sequence, which are run
    """
    if isinstance(compiled, ProgramDefinition):
        if feeds:
            raise ArgumentError("a program is saved for all sizes: it takes no feeds")
        write(compiled, Path(path))
        return
    writer = Writer()
    if isinstance(compiled, Sequence):
        content = _sequence_json(writer, compiled, feeds)
    else:
        content = _model_json(writer, compiled, feeds or [_own_feeds(compiled)])
    writer.sections.write(Path(path), writer.content(content))


def load_bundle(
    path: str | os.PathLike[str],
    *,
    verify: bool = False,
    threads: int | None = None,
    memory: int | None = None,
) -> Model | Sequence | BundledProgram:
    """Load the model or the program of a bundle; it is called like the saved one.

    A bundle holds machine code: it is as trustworthy as its source.

    verify  check large weights by SHA-256 like everything else, not only by a checksum; this takes a second
            for two gigabytes
    threads, memory  limits of calls, as for `tc.compile`
    """
    limits, bundle = Limits(threads, memory), Bundle.open(path, verify=verify)
    if bundle.model is not None:
        source = Bundled(bundle)
        model = Model(source.name, source.inputs, source.outputs, source, limits=limits)
        return model if source.states is None else Sequence(model, source.states)
    with limited(limits):
        return bundle.program(0)


# --- writing --------------------------------------------------------------------------------------


def _own_feeds(model: Model) -> dict[str, Array]:
    """Arrays of the declared shapes, for all inputs."""
    feeds: dict[str, Array] = {}
    for value in model.inputs:
        if value.dtype is None or not all(isinstance(n, int) for n in value.shape or (None,)):
            raise CompileError(
                f"'{model.name}' leaves open what shape its input {value} has",
                hint=f"say it: taskc compile MODEL.onnx -o MODEL.taskc --shape {value.name}=1,128; a bundle has"
                " programs for the shapes that it is asked for",
            )
        feeds[value.name] = np.zeros(value.shape or (), value.dtype.numpy)
    return feeds


def _sequence_json(writer: Writer, sequence: Sequence, calls: Ordered[Mapping[str, Any]]) -> Json:
    """The bundle's record of a model with states, with the programs of these calls of a sequence added."""
    model = sequence.model
    if sequence.states.begun_by:
        raise CompileError(f"'{model.name}' isn't saved: its first call runs a graph of its own")
    if not calls:
        raise ArgumentError(
            "a model with states is saved for calls of a sequence: the inputs of a prompt, and of a token after it"
        )
    called, pairs = sequence.sequence(), []
    for feeds in calls:
        arrays = model.checked(called.arrays(feeds))
        pairs.append((arrays, _traced(model, arrays)))
        called.run(None, feeds)
    head = head_json(model.name, model.inputs, model.outputs, sequence.states)
    return {**head, "entries": entries_json(writer, pairs)}


def _model_json(writer: Writer, model: Model, feeds: Ordered[Mapping[str, Any]]) -> Json:
    """The bundle's record of a model, with its programs for these feeds added."""
    pairs = [(model.checked(one), _traced(model, one)) for one in feeds]
    head = head_json(model.name, model.inputs, model.outputs)
    return {**head, "entries": entries_json(writer, pairs)}


def _traced(model: Model, feeds: Mapping[str, Any]) -> Imported:
    from taskc.operators.call import CountError, DataError  # with all operators: those of the graph

    try:
        return model.program(feeds)
    except (CountError, DataError) as error:
        raise CompileError(
            f"'{model.name}' runs in parts, which a bundle can't hold: {error.message}",
            error.location,
            "what is compiled for the later part depends on what the first one computes: taskc compile"
            " --inputs A,B --outputs C takes a part",
        ) from error


def entries_json(writer: Writer, pairs: Ordered[tuple[Arrays, Runnable]]) -> Json:
    """The bundle's records of programs, which are added to it, with the inputs of each."""
    numbers: dict[int, int | None] = {}
    entries = []
    for arrays, runnable in pairs:
        if id(runnable) not in numbers:
            is_computed = any(not isinstance(output, np.ndarray) for output in runnable.outputs)
            numbers[id(runnable)] = writer.add(runnable.program) if is_computed else None
        decisive = [name for name in arrays if name not in runnable.inputs]
        entries.append(
            {
                "types": [_type_json(array) for array in arrays.values()],
                "values": {name: _array_json(writer, on_host(arrays[name])) for name in decisive},
                "serves": runnable.serves and runnable.serves.text,
                "program": numbers[id(runnable)],
                "inputs": [*runnable.inputs],
                "outputs": [_output_json(writer, output) for output in runnable.outputs],
            }
        )
    return entries


def head_json(
    name: str, inputs: Ordered[Value], outputs: Ordered[Value], states: States | None = None
) -> Json:
    """A model's name, inputs, outputs and states as JSON."""
    ends = {"inputs": inputs, "outputs": outputs}
    content: Json = {"name": name}
    content |= {end: [*map(_value_json, values)] for end, values in ends.items()}
    if states is not None:
        content["states"] = {
            "memory": [*map(_value_json, states.memory.values())],
            "axes": {**states.axes},
            "outputs": {**states.outputs},
            "given": states.given,
            "unasked": sorted(states.unasked),
            "capacity": states.capacity,
            "position": _value_json(states.position),
            "length": _value_json(states.length),
        }
    return content


def ends_of(head: Json) -> tuple[str, list[Value], list[Value]]:
    """A model's name, inputs and outputs."""
    return str(head["name"]), [*map(_value, head["inputs"])], [*map(_value, head["outputs"])]


def states_in(head: Json) -> States | None:
    """A model's states, if it has any."""
    if head.get("states") is None:
        return None
    from taskc.onnx.states import States  # few models have states

    content = {**head["states"]}
    memory = {value.name: value for value in map(_value, content.pop("memory"))}
    given, unasked = tuple(content.pop("given")), frozenset(content.pop("unasked"))
    position, length = _value(content.pop("position")), _value(content.pop("length"))
    return States(
        memory, given=given, unasked=unasked, begun_by={}, position=position, length=length, **content
    )  # fmt: skip


def _value_json(one: Value) -> Json:
    dtype = None if one.dtype is None else one.dtype.name
    shape = None if one.shape is None else [*one.shape]
    return [one.name, dtype, shape, *([one.foreign] if one.foreign else [])]


def _value(content: Json) -> Value:
    name, dtype, shape, *foreign = content
    extents = None if shape is None else tuple(shape)
    return Value(name, dtype and DTYPES[dtype], extents, *foreign)


def _type_json(array: AnyArray) -> Json:
    return from_numpy(array.dtype).name, array.shape


def _output_json(writer: Writer, output: Output) -> Json:
    match output:
        case str():
            return output
        case CountedOutput():
            return {"name": output.name, "axis": output.axis}
        case _:
            return _array_json(writer, output)


def _array_json(writer: Writer, array: Array) -> Json:
    return [writer.sections.add(np.ascontiguousarray(array).tobytes()), *_type_json(array)]


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class BundledEntry(Runnable):
    """A program of a bundle, for these values of the inputs that it doesn't take."""

    values: Mapping[str, Array]

    def fits(self, arrays: Arrays) -> bool:
        """Whether it serves arrays, which have its types unless it serves others, too."""
        return all(
            on_host(arrays[name]).tobytes() == value.tobytes()
            for name, value in self.values.items()
        ) and (self.serves is None or self.serves(types_of([arrays[n] for n in self.inputs])))


class Bundled(ProgramSource):
    """The programs of a model in a bundle; each is loaded at its first call."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._programs: dict[int, Once[BundledProgram]] = {}
        self._loaded: dict[int, BundledEntry] = {}
        with bundle.file.reading():
            self.name, self.inputs, self.outputs = ends_of(bundle.model)
            self.states = states_in(bundle.model)
            self._entries: list[Json] = bundle.model["entries"]
            self._types = [_types(entry) for entry in self._entries]
            names = [value.name for value in self.inputs]
            shapes = [[shape for _, shape in types] for types in self._types]
            self.shapes = [dict(zip(names, one, strict=True)) for one in shapes]

    @property
    def graph(self) -> Graph:
        raise self._bundle.file.error("a bundle has no graph of its model, but programs", None)

    def traced(self, arrays: Arrays) -> Imported:
        raise self._bundle.file.error("what a bundle's programs were traced as isn't in it", None)

    def find(self, arrays: Arrays, *, is_traced: bool) -> BundledEntry:
        loaded = self.loaded(arrays)
        if loaded is None:
            raise ArgumentError(self._unknown(arrays))
        return loaded

    def loaded(self, arrays: Arrays) -> BundledEntry | None:
        """The program for arrays like these, or None."""
        types = types_of(arrays.values())
        for number, known_types in enumerate(self._types):
            if known_types == types or self._entries[number]["serves"]:
                loaded = self._load(number)
                if loaded.fits(arrays):
                    return loaded
        return None

    def load(self) -> None:
        """Load all programs."""
        for number in range(len(self._entries)):
            self._load(number)

    def _load(self, number: int) -> BundledEntry:
        if number in self._loaded:
            return self._loaded[number]
        with self._bundle.file.reading():
            content, inputs = self._entries[number], tuple(self._entries[number]["inputs"])
            by_name = dict(
                zip([value.name for value in self.inputs], self._types[number], strict=True)
            )
            dtypes = [by_name[name][0] for name in inputs]
            entry = BundledEntry(
                self._program(content["program"]),
                inputs,
                tuple([self._output(output) for output in content["outputs"]]),
                {name: self._array(value) for name, value in content["values"].items()},
                serves=Condition(content["serves"], dtypes) if content["serves"] else None,
            )
        return self._loaded.setdefault(number, entry)

    def _program(self, number: int | None) -> BundledProgram | None:
        """A program, which several entries may share."""
        if number is None:
            return None
        once: Once[BundledProgram] = self._programs.setdefault(number, Once())
        return once.get(lambda: self._bundle.program(number))

    def _output(self, content: Json) -> Output:
        match content:
            case str():
                return content
            case {"name": str(name), "axis": int(axis)}:
                return CountedOutput(name, axis)
            case _:
                return self._array(content)

    def _array(self, content: Json) -> Array:
        section, dtype, shape = content
        memory = bytes(self._bundle.file.section(section))
        kind = DTYPES[dtype].numpy
        return np.frombuffer(memory, kind, prod(shape)).reshape(tuple(shape))

    def _unknown(self, arrays: Arrays) -> str:
        names, asked = [*arrays], types_of(arrays.values())
        there = [_shown(names, types) for types in dict.fromkeys(self._types)]
        if asked in self._types:
            number = self._types.index(asked)
            decisive = " and ".join(f"'{name}'" for name in self._load(number).values)
            return f"the bundle has no program for these elements of {decisive}, which decide what is compiled"
        more = f", and {len(there) - _MAX_SHOWN} more" if len(there) > _MAX_SHOWN else ""
        has = "; ".join(there[:_MAX_SHOWN])
        return f"the bundle has no program for {_shown(names, asked)}; it has: {has}{more}"


def _types(entry: Json) -> Types:
    return tuple([(DTYPES[dtype].numpy, tuple(map(int, shape))) for dtype, shape in entry["types"]])


def _shown(names: Ordered[str], types: Types) -> str:
    return ", ".join(
        f"{name}: {named_type(from_numpy(dtype), shape)}"
        for name, (dtype, shape) in zip(names, types, strict=True)
    )
