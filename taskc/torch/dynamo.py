"""`torch.compile(model, backend="taskc")`: PyTorch's graphs as programs.

    dynamo -> AOTAutograd -> graph of ATen's operators -> parts with rows only -> programs, traced at their first call

Nodes that taskc doesn't compute stay PyTorch's, and the log names them once. In inference, parameters and buffers are
constants: products with them are packed once. A tensor is found again by its identity, its memory and its version, so a
change in place is noticed, and the programs are traced again. Constants that keep changing become inputs.
"""

from __future__ import annotations

import logging
import operator as python
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import field
from math import prod
from typing import Any

import numpy as np

from taskc.arrays.dlpack import host_view
from taskc.arrays.torch import dtype_of, readable, torch
from taskc.dataclass import dataclass
from taskc.errors import NOWHERE, CompileError
from taskc.ir.reentry import Turn
from taskc.onnx.passes.pipeline import rewritten
from taskc.onnx.versions import Kind
from taskc.operators.graph import Array
from taskc.runtime.served import Output, Runnable, keep
from taskc.runtime.targets import expect_kernels
from taskc.torch.aten import ROWS
from taskc.torch.graph import Translated, is_size, place_of, refused, row_of, translated

logger = logging.getLogger(__name__)

_MOST_CHANGES = 2  # of constants, before they become inputs
_MOST_SETS = 8  # of constants: modules that share one graph
_MAX_ENTRIES = 256  # sets of shapes
_named: set[str] = set()  # operators that the log has named


def backend(module: Any, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The backend of `torch.compile`, as an entry point of the package names it."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_compiler

    if options:
        names = ", ".join(map(repr, options))
        raise CompileError(f"taskc's backend takes no {names}")
    training, inference = (
        make_boxed_compiler(
            lambda graph, inputs, is_constant=is_constant: compiled(graph, is_constant)
        )
        for is_constant in (False, True)
    )
    run: Callable[..., Any] = aot_autograd(
        fw_compiler=training,
        bw_compiler=training,
        inference_compiler=inference,
        decompositions=decompositions(),
    )(module, inputs)
    return run


def decompositions() -> Mapping[Any, Any]:
    """PyTorch's decompositions of operators that the table doesn't have."""
    from torch._decomp import core_aten_decompositions

    library: Any = torch()
    known = {
        target: function
        for target, function in core_aten_decompositions().items()
        if str(target).partition(".")[2] not in ROWS
    }
    return known | {library.ops.aten.as_strided.default: _same_strides}


def _same_strides(x: Any, sizes: Any, strides: Any, offset: Any = None) -> Any:
    """Strides that a tensor has but for its axes of one, as PyTorch's pooling writes them."""
    library: Any = torch()
    known = [(n, stride) for n, stride in zip(x.shape, x.stride(), strict=True) if n != 1]
    asked = [(n, stride) for n, stride in zip(sizes, strides, strict=True) if n != 1]
    if known != asked or [*x.shape] != [*sizes] or offset not in (None, x.storage_offset()):
        return NotImplemented
    return library.ops.aten.alias.default(x)


# Operators that only rename memory: a part of nothing else stays PyTorch's, which copies nothing.
_VIEWS = frozenset(
    "alias.default detach.default expand.default permute.default select.int slice.Tensor split.Tensor "
    "split_with_sizes.default squeeze.default squeeze.dim squeeze.dims t.default transpose.int "
    "unsqueeze.default view.default".split()
)


def _static(placeholders: Sequence[Any]) -> frozenset[str]:
    """The names of parameters and buffers among a graph's inputs."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return frozenset()
    places = context.fw_metadata.static_input_indices
    return frozenset([placeholders[place].name for place in places if place < len(placeholders)])


def compiled(module: Any, is_inference: bool) -> Callable[..., Any]:
    """A graph of ATen's operators as a function of its inputs."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    static = _static(placeholders) if is_inference else frozenset()
    return Compiled(module, static)


class Compiled:
    """A graph that is divided into parts: programs, and nodes that PyTorch runs.

    A part that can't be traced is known at its first call. The node is then PyTorch's, and the graph is divided again.
    """

    def __init__(self, module: Any, static: frozenset[str]) -> None:
        self._module = module
        self._static = static
        self._reasons = {node.name: reason for node, reason in refused(module.graph.nodes).items()}
        self._reasons |= dict.fromkeys(_shared(module), "a result shares its memory with another")
        self._run = self._divided()

    def __call__(self, *args: Any) -> Any:
        while True:
            try:
                return self._run(*args)
            except RefusedError as error:
                added = {name: error.reason for name in error.names if name not in self._reasons}
                if not added:
                    raise
                self._reasons |= added
                self._run = self._divided()

    def _divided(self) -> Callable[..., Any]:
        _log(self._module.graph.nodes, self._reasons)
        calls = [node for node in self._module.graph.nodes if node.op == "call_function"]
        ours = {node.name for node in calls if node.name not in self._reasons and not is_size(node)}
        if calls and len(ours) == len(calls):
            return Part(self._module, self._static)
        return self._parts(ours) if ours else self._module

    def _parts(self, ours: set[str]) -> Callable[..., Any]:
        from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
        from torch.fx.passes.operator_support import create_op_support

        module = copy(self._module)
        module.graph = deepcopy(self._module.graph)
        support = create_op_support(lambda _, node: node.name in ours)
        partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
        parts = [part for part in partitioner.propose_partitions() if _computes(part.nodes)]
        fused = partitioner.fuse_partitions(parts, prefix="taskc_part_")
        for node in fused.graph.nodes:
            if node.op == "call_module" and node.target.startswith("taskc_part_"):
                inner = fused.get_submodule(node.target)
                names = [one.name for one in inner.graph.nodes if one.op == "placeholder"]
                static = frozenset(
                    name
                    for name, source in zip(names, node.args, strict=True)
                    if source.name in self._static
                )
                fused.delete_submodule(node.target)
                setattr(fused, node.target, Part(inner, static))
        fused.recompile()
        run: Callable[..., Any] = fused
        return run


def _shared(module: Any) -> set[str]:
    """The views by which two results share memory: PyTorch makes them of one program's result."""
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    views: dict[Any, list[list[str]]] = {}  # by the tensor of which they are views
    for result in {*output.all_input_nodes}:
        root, names = result, []
        while root.op == "call_function" and row_of(root) in _VIEWS:
            names.append(root.name)
            root = root.args[0]
        views.setdefault(root, []).append(names)
    return {name for one in views.values() if len(one) > 1 for names in one for name in names}


def _computes(nodes: Iterable[Any]) -> bool:
    names = [row_of(node) for node in nodes]
    return any(name is not None and name not in _VIEWS for name in names)


def _log(nodes: Iterable[Any], reasons: Mapping[str, str]) -> None:
    for node in nodes:
        target = str(node.target)
        if node.name in reasons and target not in _named and node.target is not python.getitem:
            _named.add(target)
            place = place_of(node)
            at = "" if place == NOWHERE else f" ({place})"
            logger.warning("PyTorch runs %s%s: %s", target, at, reasons[node.name])


class RefusedError(Exception):
    """Nodes that PyTorch has to run."""

    def __init__(self, names: Sequence[str], reason: str) -> None:
        super().__init__(reason)
        self.names = names
        self.reason = reason


# --- Parts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Constants:
    """The tensors that a part has as constants, in the state in which it was translated.

    runs  by the shapes of the other inputs
    """

    tensors: tuple[Any, ...]
    state: tuple[int, ...]
    translated: Translated
    kind: Kind
    runs: dict[Any, Callable[[Sequence[Any]], Any]] = field(default_factory=dict)


_version = python.attrgetter("_version")


def _state(tensors: Sequence[Any]) -> tuple[int, ...]:
    """The versions and the memory of tensors. Every call asks, so it runs without a loop of Python's."""
    library: Any = torch()
    return (*map(_version, tensors), *map(library.Tensor.data_ptr, tensors))


def _getter(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function from arguments to those at these places."""
    first = places[0] if places else 0
    if [*places] == [*range(first, first + len(places))]:
        return python.itemgetter(slice(first, first + len(places)))
    return python.itemgetter(*places)


class Part:
    """A graph in which every node has a row, as programs: one for each set of constants, and of shapes."""

    def __init__(self, module: Any, static: frozenset[str]) -> None:
        library: Any = torch()
        self._module = module
        self._placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        values = [node.meta.get("val") for node in self._placeholders]
        self._static = tuple(
            [place for place, node in enumerate(self._placeholders) if node.name in static]
        )
        # The inputs on which a program's shapes depend.
        self._sizes = [at for at, value in enumerate(values) if isinstance(value, library.SymInt)]
        self._dynamic = [
            at
            for at, value in enumerate(values)
            if isinstance(value, library.Tensor)
            and any(not isinstance(extent, int) for extent in value.shape)
        ]
        (output,) = [node for node in module.graph.nodes if node.op == "output"]
        self._is_single = not isinstance(output.args[0], tuple | list)
        self._known: dict[tuple[int, ...], Constants] = {}
        self._constants_of = _getter(self._static)
        self._last: Constants | None = None  # of the last call
        self._changes = 0
        self._turn = Turn()

    def __call__(self, *args: Any) -> Any:
        known, constants = self._last, self._constants_of(args)
        if (
            known is None
            or not all(map(python.is_, constants, known.tensors))
            or known.state != _state(constants)
        ):
            with self._turn.taken():
                known = self._last = self._constants(args)
        key = (
            (*[args[at] for at in self._sizes], *[args[at].shape for at in self._dynamic])
            if self._dynamic or self._sizes
            else None
        )
        run = known.runs.get(key)
        if run is None:
            with self._turn.taken():
                run = self._traced(known, args)
                keep(known.runs, key, run, _MAX_ENTRIES)
        results = run(args)
        return results[0] if self._is_single else results

    def _constants(self, args: Sequence[Any]) -> Constants:
        """The part for these constants; where they keep changing they become inputs."""
        constants = tuple([args[place] for place in self._static])
        if any(tensor.is_inference() for tensor in constants) or self._changes > _MOST_CHANGES:
            self._static, constants = (), ()
            self._constants_of = _getter(())
            self._known.clear()
        known = self._known.get(tuple(map(id, constants)))
        state = _state(constants)
        if known is not None and known.state == state:
            return known
        self._changes += known is not None or len(self._known) >= _MOST_SETS
        arrays = {
            self._placeholders[place]: _array(tensor)
            for place, tensor in zip(self._static, constants, strict=True)
        }
        for node in self._module.graph.nodes:
            if node.op == "get_attr":
                arrays[node] = _array(getattr(self._module, node.target))
        try:
            graph = translated(self._module, arrays, "graph")
        except CompileError as error:
            raise self._refusal(error) from error
        known = Constants(constants, state, graph, Kind(rewritten(graph.graph)))
        keep(self._known, tuple(map(id, constants)), known, _MOST_SETS)
        return known

    def _traced(self, known: Constants, args: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
        feeds: dict[str, Any] = {}
        for value, (number, order) in zip(
            known.translated.graph.inputs, known.translated.inputs, strict=True
        ):
            argument = args[number]
            if isinstance(argument, int):
                feeds[value.name] = np.array([argument])
                continue
            shape = argument.permute(order).shape if order else argument.shape
            assert value.dtype is not None
            feeds[value.name] = Described(np.dtype(value.dtype.numpy), tuple(shape))
        try:
            runnable = known.kind.program(feeds)
            if runnable.program is not None:
                expect_kernels(len(runnable.program.kernels))
            return _runner(runnable, known.translated, args)
        except CompileError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: CompileError) -> RefusedError:
        """The node that an error is of, or all nodes."""
        calls = [node for node in self._module.graph.nodes if node.op == "call_function"]
        blamed = [node.name for node in calls if f"node '{node.name}'" in error.message]
        return RefusedError(blamed or [node.name for node in calls], error.message)


@dataclass(frozen=True, slots=True)
class Described:
    """The type and shape of a tensor, in place of an array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)


def _array(tensor: Any) -> Array:
    array = host_view(readable(tensor.detach()).contiguous())
    assert array is not None
    return array


def _tensor(array: Array) -> Any:
    """A known result as a new tensor."""
    library: Any = torch()
    result = library.empty(array.shape, dtype=dtype_of(array.dtype))
    view = host_view(result)
    assert view is not None
    view[...] = array
    return result


def _runner(
    runnable: Runnable, graph: Translated, example: Sequence[Any]
) -> Callable[[Sequence[Any]], Any]:
    """A function from a part's arguments, which are like those of an example, to its results."""
    library: Any = torch()
    places = {
        value.name: source for value, source in zip(graph.graph.inputs, graph.inputs, strict=True)
    }
    takes = [places[name] for name in runnable.inputs]
    program, is_contiguous = runnable.program, library.Tensor.is_contiguous
    made = dict(zip(graph.graph.outputs, runnable.outputs, strict=True))
    computed = [name for name, output in made.items() if isinstance(output, str)]
    results = [_source(one, made, computed) for one in graph.outputs]
    is_plain = [*graph.outputs] == [(name, None) for name in computed] and takes
    if is_plain and all(
        order is None and type(example[number]) is not int for number, order in takes
    ):
        arguments_of = _getter([number for number, _ in takes])

        def plain(args: Sequence[Any]) -> tuple[Any, ...]:
            arguments = arguments_of(args)
            if not all(map(is_contiguous, arguments)):
                arguments = [argument.contiguous() for argument in arguments]
            returned = program(*arguments)
            return returned if type(returned) is tuple else (returned,)

        return plain

    def run(args: Sequence[Any]) -> tuple[Any, ...]:
        arguments = []
        for number, order in takes:
            argument = args[number] if order is None else args[number].permute(order)
            if type(argument) is int:
                arguments.append(np.array([argument]))
            else:
                arguments.append(argument.contiguous())
        returned = program(*arguments) if computed else ()
        returned = returned if type(returned) is tuple else (returned,)
        return tuple([result(args, returned) for result in results])

    return run


def _source(one: Any, made: Mapping[str, Output], computed: Sequence[str]) -> Callable[..., Any]:
    """A function from a part's arguments, and what its program returned, to one of its results."""
    if one is None:
        return lambda args, returned: None
    if isinstance(one, int):
        return lambda args, returned: args[one]
    name, order = one
    output = made[name]
    if isinstance(output, np.ndarray):
        turned = output if order is None else output.transpose(order)
        return lambda args, returned: _tensor(turned)
    if not isinstance(output, str):
        raise CompileError("how many elements a result has is known only at a call")
    place = computed.index(name)
    if order is None:
        return lambda args, returned: _as_tensor(returned[place])
    return lambda args, returned: _as_tensor(returned[place]).permute(order)


def _as_tensor(result: Any) -> Any:
    return _tensor(result) if isinstance(result, np.ndarray) else result
