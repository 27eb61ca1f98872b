"""The streams of a driver that isn't there: what is put into one runs in its order, and after what it waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from threading import RLock
from typing import TypeAlias

Action: TypeAlias = Callable[[], None]
Point: TypeAlias = tuple[int, int]  # a stream, and how much of what was put into it comes before


@dataclass
class Work:
    actions: deque[Action]
    after: tuple[Point, ...]


class FakeStreams:
    """is_lazy  nothing runs before somebody waits for it; then streams take turns by chance, action by action"""

    def __init__(self) -> None:
        self.is_lazy = False
        self._random = Random(0)
        self._queues: dict[int, deque[Work]] = {}
        self._ended: dict[int, int] = {}
        self._lock = RLock()
        self._is_running = False

    def put(self, stream: int, actions: Sequence[Action], after: Iterable[Point] = ()) -> Point:
        """Puts work behind all of a stream: where that is."""
        with self._lock:
            queue = self._queues.setdefault(stream, deque())
            queue.append(Work(deque(actions), tuple(after)))
            end = self.end(stream)
            if not self.is_lazy:
                self.drain()
            return end

    def end(self, stream: int) -> Point:
        return stream, self._ended.get(stream, 0) + len(self._queues.get(stream, ()))

    def ends(self) -> list[Point]:
        """Of all streams."""
        with self._lock:
            return [self.end(stream) for stream in [*self._queues]]

    def has_ended(self, points: Iterable[Point]) -> bool:
        return all(self._ended.get(stream, 0) >= count for stream, count in points)

    def drain(self, stream: int | None = None) -> None:
        """Waits for a stream, or for all."""
        with self._lock:
            if self._is_running:  # an action has let go of something, and nothing runs within it
                return
            self._is_running = True
            try:
                while any(self._queues.values()) if stream is None else self._queues.get(stream):
                    self._step()
            finally:
                self._is_running = False

    def _step(self) -> None:
        """One action of a stream that needn't wait."""
        ready = [stream for stream, queue in self._queues.items() if queue and self._may(queue[0])]
        assert ready, "streams wait for each other"
        chosen = self._random.choice(ready)
        work = self._queues[chosen][0]
        if work.actions:
            work.actions.popleft()()
        if not work.actions:
            self._queues[chosen].popleft()
            self._ended[chosen] = self._ended.get(chosen, 0) + 1

    def _may(self, work: Work) -> bool:
        return all(self._ended.get(stream, 0) >= count for stream, count in work.after)
