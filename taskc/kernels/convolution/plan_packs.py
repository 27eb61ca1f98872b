"""How a convolution of 8- or 16-bit numbers is computed on processors that multiply packs of them, as data: `Packs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, gcd, prod

from taskc import DType, Machine, Mapping, i8, i16, i32, repeat, spatial, u8
from taskc.dataclass import dataclass
from taskc.ir.target import DotInstruction, MatrixInstruction, TileInstruction
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.machine_facts import PROCESSOR, UNMEASURED_SHARE, Extents

_PACK_BYTES = 4
_STEP_COST = 4  # channels that could be multiplied while a step begins


@dataclass(frozen=True, slots=True)
class Seen:
    """A block's copy of part of an image: [lines, steps of channels, phases, columns of a phase, channels of a step].

    down, across  how far lines and phases of columns are apart in the image
    """

    shape: tuple[int, int, int, int, int]
    down: int
    across: int


@dataclass(frozen=True, slots=True)
class Packs:
    """own   who has which part of a tile, pixels of a line by features
    lines, columns  of results, to a block, and `features`
    near    channels that follow one another before the next tap does
    pack    of these, how many lie together in filters
    joined  all taps of a filter's row are channels of one, and a pixel's are copied for each result beside it
    flat    all rows of an image are one line; a block has a part of it
    order   of blocks: of images, features, lines and columns, the slowest first
    """

    own: Mapping
    lines: int
    columns: int
    features: int
    near: int
    pack: int
    joined: bool = False
    flat: bool = False
    order: tuple[int, int, int, int] = (0, 1, 2, 3)

    @property
    def lanes(self) -> int:
        return self.own.workers

    @property
    def pixels(self) -> int:
        return self.own.shape[0]

    @property
    def wide(self) -> int:
        return self.own.shape[1]

    def types_of(self, problem: Problem) -> tuple[DType, DType]:
        """The types that are multiplied: bytes are widened where a pack has two of them."""
        is_widened = problem.dtype.nbytes * self.pack < _PACK_BYTES
        return (i16, i16) if is_widened else (problem.dtype, problem.right)

    @property
    def is_of_tile_registers(self) -> bool:
        return self.own != _of_vectors(self.pixels, self.wide // self.lanes, self.lanes)

    def tile(self, pixels: int) -> Mapping:
        """A tile of so many pixels; tile registers are always whole."""
        if self.is_of_tile_registers:
            return self.own
        return _of_vectors(pixels, self.wide // self.lanes, self.lanes)

    def size_of(self, problem: Problem) -> Extents:
        """The rows and columns of filters."""
        rows, columns = problem.size
        return rows, 1 if self.joined else columns

    def channels_of(self, problem: Problem) -> int:
        """The channels of a group."""
        return problem.group_channels * (problem.size[1] if self.joined else 1)

    def steps_of(self, problem: Problem) -> int:
        """Steps of `near` channels; of no channels, too, there is one, of zeros."""
        return max(1, ceil(self.channels_of(problem) / self.near))

    def lines_of(self, problem: Problem) -> Extents:
        """The lines of pixels of an image, and their length."""
        height, width = problem.extents
        return (1, height * width) if self.flat else (height, width)

    def result_lines(self, problem: Problem) -> Extents:
        return self.lines_of(problem) if self.flat else problem.outputs

    def seen(self, problem: Problem) -> Seen:
        """Of lines, and of the phases of columns, only those with a tap of a result."""
        down, across = (
            gcd(stride, dilation) if size > 1 else stride
            for stride, dilation, size in zip(
                problem.stride, problem.dilation, problem.size, strict=True
            )
        )
        lines = ((self.lines - 1) * problem.stride[0] + problem.covered[0] - 1) // down + 1
        columns = ceil(self.columns / self.pixels) * self.pixels
        if self.joined:
            across = problem.stride[1]
        else:
            columns += (problem.covered[1] - 1) // problem.stride[1]
        shape = lines, self.steps_of(problem), problem.stride[1] // across, columns, self.near
        return Seen(shape, down, across)

    def misfit(self, problem: Problem) -> str | None:
        """Why it can't be this problem's, if it can't."""
        if not problem.is_sized:
            return "it is for heights and widths that are numbers"
        if problem.transposed or problem.axes > 2:
            return "it is for images of one or two axes, and not transposed"
        if self.flat and not problem.is_pointwise:
            return "rows are one line only of filters of one pixel"
        if self.features % self.wide:
            return f"{self.features} features of a block are not tiles of {self.wide}"
        if self.near % self.pack:
            return f"{self.near} channels are not packs of {self.pack}"
        if self.joined and not 0 < self.channels_of(problem) <= self.near:
            return f"{self.channels_of(problem)} joined channels are no step of {self.near}"
        if problem.groups > 1 and problem.group_features % self.features:
            return f"{self.features} features of a block are not of one group"
        if not self.flat and self.columns != problem.outputs[1]:
            return f"a block has rows whole, and not {self.columns} of {problem.outputs[1]} results"
        return None

    def cost(self, problem: Problem, machine: Machine) -> float:
        """It takes as long as the products of all blocks and what they copy."""
        lines, columns = self.result_lines(problem)
        blocks = ceil(lines / self.lines) * ceil(columns / self.columns)
        blocks *= problem.known_images * ceil(problem.features / self.features)
        waves = ceil(blocks / machine.threads)
        cycles = self._products(problem, machine) + self._copying(problem)
        return waves * cycles / PROCESSOR.cycles_per_second

    def _products(self, problem: Problem, machine: Machine) -> float:
        """Cycles of a block's tiles: of products, or of reading filters from where the tile before has left them."""
        facts = PROCESSOR
        # Products of pairs are as fast as two fused multiply-adds, whose operands have half of the bytes.
        fused = facts.fused_per_cycle * (2 if self.types_of(problem)[0] is i16 else 1)
        deep = prod(self.size_of(problem)) * self.steps_of(problem) * self.near
        share = self._share(machine)
        rows = machine.instructions(*self.types_of(problem), problem.total)
        is_signed = any(row.offset for row in rows[:1] if isinstance(row, DotInstruction))
        whole, rest = divmod(self.columns, self.pixels)
        panel = deep * self.wide * self.types_of(problem)[1].nbytes
        read = panel / facts.rate(panel, machine)

        def cycles(pixels: int) -> float:
            made: int = self.tile(pixels).slots
            # What makes a signed operand unsigned is multiplied, too, and subtracted before the next tap.
            more = self.wide / self.lanes + made * self.pack / self.near if is_signed else 0
            loads = pixels * facts.broadcast_cycles
            step = max(made / share / fused + more, loads, facts.fused_latency)
            return max(deep / self.pack * step, read) + facts.tile_cycles + 3 * made

        tiles = whole * cycles(self.pixels) + (cycles(rest) if rest else 0)
        between = panel * ceil(problem.features / self.wide)
        first = panel / facts.rate(between if self.order[1] != 1 else panel, machine)
        return (self.lines * tiles + first) * (self.features // self.wide)

    def _share(self, machine: Machine) -> float:
        """Of the products of packs that vectors do."""
        if not self.is_of_tile_registers:
            return 1.0
        row = next(row for row in machine.products if isinstance(row, TileInstruction))
        sizes = self.pixels // row.shape[0], self.wide // row.shape[1]
        return PROCESSOR.tile_register_shares.get(sizes, UNMEASURED_SHARE)

    def _copying(self, problem: Problem) -> float:
        lines, steps, phases, columns, near = self.seen(problem).shape
        vectors = ceil(near / self.lanes)
        if self.joined and not problem.is_nhwc:
            vectors = problem.group_channels * ceil(problem.size[1] / self.lanes)
        return lines * steps * phases * columns * vectors * PROCESSOR.copy_cycles

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Packs]:
        if self.features < problem.features:
            yield replace(self, order=(0, 2, 3, 1))


def candidates_of_packs(problem: Problem, machine: Machine) -> Iterator[Packs]:
    """Plans by tile registers, where the machine has some, and by vectors, for heights and widths that are numbers."""
    if not problem.is_sized or problem.transposed or problem.axes > 2:
        return
    for own, pack, near, joined, flat in _tiles(problem, machine):
        wide = own.shape[1]
        features = max(1, ceil(problem.features / wide)) * wide
        if problem.groups > 1 and problem.features > 0:
            features = problem.group_features
        if features % wide:
            continue
        whole = Packs(own, 1, 1, features, near, pack, joined, flat)
        extents = whole.result_lines(problem)
        areas = list(_areas(extents, own.shape[0], flat))
        parts = _parts(features // wide)
        finest = min(parts), areas[0]
        least = PROCESSOR.blocks_per_thread * machine.threads
        for part in parts:
            for lines, columns in areas:
                blocks = (
                    problem.known_images * ceil(extents[0] / lines) * ceil(extents[1] / columns)
                )
                blocks *= ceil(problem.features / (part * wide))
                if blocks < least and (part, (lines, columns)) != finest:
                    continue
                yield replace(whole, lines=lines, columns=columns, features=part * wide)


def _parts(tiles: int) -> list[int]:
    """All tiles, or as many as divide them."""
    return [tiles, *(n for n in (1, 2, 4, 8, 16) if n < tiles and tiles % n == 0)]


def _areas(extents: Extents, pixels: int, flat: bool) -> Iterator[Extents]:
    """Lines and columns of a block: some lines whole, or a part of the one that there is."""
    lines, columns = extents
    if flat:
        tiles = max(1, columns // pixels)
        yield from ((1, n * pixels) for n in (1, 2, 4, 7, 8, 14, 16, 28) if n <= tiles)
    else:
        yield from ((high, columns) for high in (1, 2, 4, 7, 8, 14, 16, 28) if high <= lines)


def _tiles(problem: Problem, machine: Machine) -> Iterator[tuple[Mapping, int, int, bool, bool]]:
    """The owners of tiles, the channels of a pack and of a step, whether taps are joined, and rows one line."""
    rows = _instructions(problem, machine)
    length = problem.extents[0] * problem.extents[1]
    lines = [(problem.outputs[1], False), *([(length, True)] if problem.is_pointwise else [])]
    for row in (row for row in rows if isinstance(row, TileInstruction)):
        for near, joined in _steps(problem, row.shape[2], row.pack):
            for sizes in PROCESSOR.tile_register_shares if near == row.shape[2] else ():
                own = repeat(*sizes) * row.accumulator_fragment
                yield from ((own, row.pack, near, joined, flat) for _, flat in lines)
    dot = next((row for row in rows if isinstance(row, DotInstruction)), None)
    if dot is None:
        return
    # For a pack of x, and what signed ones take besides; or for products before they are added.
    spare, more = (2, 2) if dot.offset else (2, 1) if dot.operand is i16 else (1, 1)
    for vectors in (2, 3, 4, 1):
        most = (machine.registers - spare) // vectors - more
        if most < vectors:  # filters would be read for few pixels
            continue
        for columns, flat in lines:
            exact = [pixels for pixels in range(most, 3, -1) if columns % pixels == 0]
            even = ceil(columns / ceil(columns / most))
            for pixels in sorted({even, *exact[:2]}, reverse=True):
                own = _of_vectors(pixels, vectors, machine.lanes)
                for near, joined in _steps(problem, dot.pack, dot.pack):
                    yield own, dot.pack, near, joined, flat


def _instructions(problem: Problem, machine: Machine) -> Sequence[MatrixInstruction]:
    """The rows for the problem's numbers, or for bytes that are widened."""
    rows = machine.instructions(problem.dtype, problem.right, problem.total)
    if rows or problem.dtype not in (i8, u8):
        return rows
    return machine.instructions(i16, i16, problem.total)


def multiplies_bytes(machine: Machine) -> bool:
    """Whether the machine has plans for all bytes without groups."""
    types = ((u8, i8), (i16, i16))
    return machine.is_processor and any(machine.instructions(*pair, i32) for pair in types)


def _steps(problem: Problem, unit: int, pack: int) -> Iterator[tuple[int, bool]]:
    """The channels of a step, a number of units, and whether they are all taps' of a row, where these are few."""
    line = PROCESSOR.step_bytes * pack // _PACK_BYTES
    channels = max(1, problem.group_channels)
    if problem.order == "NCHWc" and channels >= problem.lanes:
        # Whole blocks, since these are copied as they lie.
        whole = range(problem.lanes, max(line, problem.lanes) + 1, problem.lanes)
        yield min(whole, key=lambda near: ceil(channels / near) * (near + _STEP_COST)), False
    else:
        yield ceil(channels / ceil(channels / line) / unit) * unit, False
    together = problem.group_channels * problem.size[1]
    if problem.size[1] > 1 and 0 < together <= line:
        yield ceil(together / unit) * unit, True


def _of_vectors(pixels: int, vectors: int, lanes: int) -> Mapping:
    return repeat(pixels, vectors) * spatial(1, lanes)
