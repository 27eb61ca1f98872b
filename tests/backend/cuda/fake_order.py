"""What work of a driver that isn't there comes after what, and which accesses of memory nobody has ordered.

Streams, events and the host have vector clocks: a stream's work comes after all that the host had waited for when it
was put there, and after the events that the stream was told to wait for. An access of memory whose last write (or,
of a write, last read) is neither in its own stream nor before it is a race, and so is one after the memory was freed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

Clock: TypeAlias = "dict[int, int]"  # of each stream how much has been done
Touch: TypeAlias = "tuple[int, bool]"  # an address, and whether it is written


@dataclass(frozen=True)
class Access:
    stream: int
    time: int
    is_write: bool
    name: str


def merge(into: Clock, other: Clock) -> None:
    for stream, time in other.items():
        into[stream] = max(into.get(stream, 0), time)


class Order:
    """races  what was found, in words"""

    def __init__(self) -> None:
        self.races: list[str] = []
        self.clocks: dict[int, Clock] = {}
        self.host: Clock = {}
        self.events: dict[int, Clock] = {}
        self._blocks: dict[int, int] = {}  # bytes of each
        self._accesses: dict[int, list[Access]] = {}  # by address

    def put(self, stream: int, name: str, touches: Iterable[Touch] = ()) -> None:
        """Work of a stream, and the addresses that it reads and writes."""
        clock = self.clocks.setdefault(stream, {})
        merge(clock, self.host)
        clock[stream] = clock.get(stream, 0) + 1
        for address, is_write in touches:
            now = Access(stream, clock[stream], is_write, name)
            block = self._block_of(address)
            for place in {address, address if block is None else block}:
                self._check(clock, now, place)
            known = [] if is_write else self._accesses.get(address, [])
            self._accesses[address] = [*known, now]

    def allocated(self, address: int, size: int, stream: int | None) -> None:
        """Memory is there: for what comes later in the stream, or for all."""
        self._blocks[address] = size
        if stream is not None:
            self.put(stream, "its allocation", [(address, True)])

    def freed(self, address: int, stream: int | None) -> None:
        """Memory is given back: behind what is in the stream, or once all has ended."""
        size = self._blocks.pop(address, 0)
        inside = [one for one in self._accesses if address <= one < address + max(size, 1)]
        if stream is not None:
            self.put(stream, "its being freed", [(one, True) for one in inside])
        for one in inside:
            del self._accesses[one]

    def wait(self, stream: int, event: int) -> None:
        merge(self.clocks.setdefault(stream, {}), self.events.get(event, {}))

    def record(self, event: int, stream: int | None) -> None:
        """An event of a stream, or of all streams."""
        clock: Clock = dict(self.host)
        for number, one in self.clocks.items():
            if stream in (None, number):
                merge(clock, one)
        self.events[event] = clock

    def waited(self, stream: int | None = None) -> None:
        """The host has waited for a stream, or for all."""
        for number, clock in self.clocks.items():
            if stream in (None, number):
                merge(self.host, clock)

    def waited_for_event(self, event: int) -> None:
        merge(self.host, self.events.get(event, {}))

    def _block_of(self, address: int) -> int | None:
        return next(
            (start for start, size in self._blocks.items() if start <= address < start + size), None
        )

    def _check(self, clock: Clock, now: Access, place: int) -> None:
        for before in self._accesses.get(place, ()):
            if (now.is_write or before.is_write) and clock.get(before.stream, 0) < before.time:
                self.races.append(
                    f"{now.name} in stream {now.stream:#x} isn't ordered after {before.name} in"
                    f" stream {before.stream:#x}"
                )
