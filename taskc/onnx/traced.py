"""The programs that a graph is traced as, while a model is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from taskc.ir.types import DType, from_numpy
from taskc.onnx.importer import Imported, inputs_behind
from taskc.onnx.model import MOST_DECISIVE
from taskc.onnx.outputs import outputs_for
from taskc.onnx.passes.pipeline import rewritten
from taskc.onnx.places import PROCESSOR, Place
from taskc.onnx.stages import cut_at
from taskc.onnx.versions import Shapes, Versions, keep
from taskc.operators.call import CountError, DataError
from taskc.operators.graph import Array, Graph
from taskc.operators.results import on_host
from taskc.runtime.driver import whole_program
from taskc.runtime.machine import built_for

_MOST_KEPT = 32  # sets of types, and of decisive values


@dataclass(slots=True)
class _Programs:
    """What has been made for inputs of one set of types and ranks.

    The elements of some inputs decide what is compiled: shapes, numbers of repeats, conditions. There are programs for
    each set of them, and `decisive` says which inputs they are. What else decides, under the names `late`, does so
    when the program runs.
    """

    decisive: tuple[str, ...] = ()
    late: frozenset[str] = frozenset()
    made: dict[tuple[object, ...], Versions] = field(default_factory=dict)

    def program(self, graph: Graph, feeds: Mapping[str, Array]) -> Imported:
        while True:
            decisive, versions, shapes = self._versions(graph, feeds)
            try:
                return versions.program(shapes)
            except DataError as error:
                self._decide(error, graph, feeds, decisive)

    def _decide(
        self, error: DataError, graph: Graph, feeds: Mapping[str, Array], decisive: tuple[str, ...]
    ) -> None:
        """Has one more thing decide what is compiled, or what is run; another thread may have found it out."""
        for name in error.names:
            behind = inputs_behind(graph, name) - {*decisive}
            if error.can_wait and not (behind and all(_is_option(feeds[one]) for one in behind)):
                if name not in self.late:
                    self.late |= {name}
                    self.made.clear()
                return
            few = [one for one in sorted(behind) if feeds[one].size <= MOST_DECISIVE]
            if few:
                found = [one for one in few if one not in self.decisive]
                self.decisive = tuple(dict.fromkeys((*self.decisive, *found)))
                if found:
                    self.made.clear()
                return
        raise error

    def programs(self) -> list[Imported]:
        return [one for versions in [*self.made.values()] for one in versions.programs()]

    def _versions(
        self, graph: Graph, feeds: Mapping[str, Array]
    ) -> tuple[tuple[str, ...], Versions, Shapes]:
        """The decisive inputs, the programs for these values of them, and the shapes of the others."""
        decisive = tuple([it for it in self.decisive if feeds[it].size <= MOST_DECISIVE])
        late = self.late
        rest = {name: array for name, array in feeds.items() if name not in decisive}
        known = {name: on_host(feeds[name]) for name in decisive}
        values = [(array.shape, array.tobytes()) for array in known.values()]
        key = decisive, late, *values
        versions = self.made.get(key)
        if versions is None:
            known = {name: array.copy() for name, array in known.items()}
            dtypes = {name: from_numpy(array.dtype) for name, array in rest.items()}
            versions = Versions(graph, dtypes, known, late)
        versions = keep(self.made, key, versions, _MOST_KEPT)
        return decisive, versions, tuple([array.shape for array in rest.values()])


def _is_option(array: Array) -> bool:
    """Whether it is rather a choice among programs than data: a sample rate, a flag."""
    return array.size == 1 and array.dtype.kind in "biu"


class Traced:
    """A graph's programs.

    Where what is compiled depends on what a part of the graph has computed, that part runs as a graph of its own, and
    then the rest, for what it has made.

    There are programs for the shapes that the inputs have had (versions.py), and for values where what is compiled
    depends on them; the latest ones are kept.
    """

    shapes: Sequence[Mapping[str, tuple[int, ...]]] = ()  # any may be traced

    def __init__(
        self,
        graph: Graph,
        *,
        exact: bool = False,
        operands: DType | None = None,
        is_part: bool = False,
        place: Place = PROCESSOR,
    ) -> None:
        self.graph = graph
        self._place = place
        self._rewritten = graph
        if not is_part:
            with built_for(place.machine):
                self._rewritten = rewritten(graph, exact=exact, operands=operands)
        self._parts: tuple[Traced, ...] = ()
        self._programs: dict[tuple[object, ...], _Programs] = {}

    def run(self, arrays: Mapping[str, Array]) -> list[Array]:
        """All outputs, by the programs of two parts."""
        first, rest = self._parts
        made = first._outputs(arrays)
        known = {**arrays, **dict(zip(first.graph.outputs, made, strict=True))}
        return rest._outputs({value.name: known[value.name] for value in rest.graph.inputs})

    def _outputs(self, arrays: Mapping[str, Array]) -> list[Array]:
        found = self.whole(arrays)
        return self.run(arrays) if found is None else outputs_for(found, arrays, self._place)

    def prepare(self, arrays: Mapping[str, Array]) -> None:
        found = self.whole(arrays)
        if found is not None and found.program.ir.parameters:
            whole_program(found.program, None if self._place.machine is None else self._place.name)

    def whole(self, arrays: Mapping[str, Array]) -> Imported | None:
        """What runs all of the graph for arrays like these; None where it runs in parts."""
        if self._parts:
            return None
        try:
            return self.traced(arrays)
        except (CountError, DataError) as error:
            cuts = (cut_at(self._rewritten, name) for name in error.names)
            parts = next(filter(None, cuts), ())
            if not parts:
                raise
            self._parts = tuple([Traced(part, is_part=True, place=self._place) for part in parts])
            return None

    def traced(self, arrays: Mapping[str, Array]) -> Imported:
        key = tuple([(array.dtype, array.ndim) for array in arrays.values()])
        programs = keep(self._programs, key, self._programs.get(key) or _Programs(), _MOST_KEPT)
        with built_for(self._place.machine):
            return programs.program(self._rewritten, arrays)

    def kept(self) -> tuple[Imported, ...]:
        own = [one for kind in [*self._programs.values()] for one in kind.programs()]
        return (*own, *[one for part in self._parts for one in part.kept()])
