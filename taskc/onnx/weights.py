"""A model's large weights, read apart from the rest of its file, which protobuf parses.

    graph {                                    graph {
      initializer {                              initializer {
        name: "w"                                  name: "w"
        raw_data: 400 MiB         ->             }
      }                                          node { ... }
      node { ... }                             }
    }

Protobuf would copy all weights into its message, and taking them out of it copies them again. Here they are copied
once, from the file. It isn't mapped: a process dies if another one shortens a file that it has mapped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import field
from io import BufferedReader, BytesIO
from types import MappingProxyType
from typing import TypeAlias

from taskc.dataclass import dataclass
from taskc.ir.reentry import may_wait
from taskc.ir.spans import span

Weights: TypeAlias = "Mapping[int, bytes]"  # by the number of the initializer in the main graph
Parts: TypeAlias = "tuple[bytes, Weights]"
NO_WEIGHTS: Weights = MappingProxyType({})

_LARGE = 1 << 12  # bytes
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto and TensorProto
_VARINT, _SIZED = 0, 2  # encodings of fields
_FIXED = {1: 8, 5: 4}  # the bytes of other encodings
_LONGEST = 10  # bytes of a varint


class UnknownFormError(ValueError):
    """The file is damaged, or encoded as no writer of models is known to do."""


@span("read the model")
def parts_of(model: str | os.PathLike[str] | bytes) -> Parts:
    """A model's protobuf without large weights, and these. Protobuf gets what it alone may understand as a whole."""
    with open(model, "rb") if isinstance(model, (str, os.PathLike)) else BytesIO(model) as file:
        try:
            return without_weights(file)
        except UnknownFormError:
            file.seek(0)
            return file.read(), {}


def without_weights(file: BufferedReader | BytesIO) -> Parts:
    """The file's ModelProto without the large weights of its main graph, and these."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    reading = _Reading(file)
    return reading.model(end), reading.weights


@contextmanager
def read_ahead(model: object) -> Iterator[Callable[[], Parts] | None]:
    """A function that returns the parts of a file, which a thread reads meanwhile; None for other models."""
    if not isinstance(model, (str, os.PathLike)) or not may_wait():
        yield None
        return
    with ThreadPoolExecutor(1) as executor:
        yield executor.submit(parts_of, model).result


@dataclass(slots=True)
class _Reading:
    """A file that is read up to `at`, and the number of initializers so far."""

    file: BufferedReader | BytesIO
    at: int = 0
    initializers: int = 0
    weights: dict[int, bytes] = field(default_factory=dict)

    def model(self, end: int) -> bytes:
        pieces = []
        while self.at < end:
            number, head, size = self._field(end)
            if number == _GRAPH:
                pieces.append(_sized(number, self._graph(self.at + size)))
            else:
                pieces.append(head + self._read(size))
        return b"".join(pieces)

    def _graph(self, end: int) -> bytes:
        pieces = []
        while self.at < end:
            number, head, size = self._field(end)
            if number == _INITIALIZER and size >= _LARGE:
                pieces.append(_sized(number, self._tensor(self.at + size)))
            else:
                pieces.append(head + self._read(size))
            self.initializers += number == _INITIALIZER
        return b"".join(pieces)

    def _tensor(self, end: int) -> bytes:
        pieces = []
        while self.at < end:
            number, head, size = self._field(end)
            if number != _RAW_DATA:
                pieces.append(head + self._read(size))
            elif self.initializers in self.weights:
                raise UnknownFormError("a tensor has its data twice")
            else:
                self.weights[self.initializers] = self._read(size)
        return b"".join(pieces)

    def _field(self, end: int) -> tuple[int, bytes, int]:
        """A field's number (0 if its encoding has no size), its head, and the bytes that follow and are in `end`."""
        tag, number = self._varint()
        encoding = number & 7
        if encoding == _VARINT:
            value, _ = self._varint()
            number, head, size = 0, tag + value, 0
        elif encoding == _SIZED:
            length, size = self._varint()
            number, head = number >> 3, tag + length
        elif encoding in _FIXED:
            number, head, size = 0, tag, _FIXED[encoding]
        else:
            raise UnknownFormError("a group")
        if self.at + size > end:
            raise UnknownFormError("a field is longer than its message")
        return number, head, size

    def _varint(self) -> tuple[bytes, int]:
        """An integer as written, and its value."""
        written, value = b"", 0
        while len(written) < _LONGEST:
            byte = self._read(1)
            value |= (byte[0] & 127) << (7 * len(written))
            written += byte
            if byte[0] < 128:
                return written, value
        raise UnknownFormError("an integer is too long")

    def _read(self, size: int) -> bytes:
        content = self.file.read(size)
        if len(content) != size:
            raise UnknownFormError("the file became shorter")
        self.at += size
        return content


def _sized(number: int, content: bytes) -> bytes:
    """A field with this content."""
    return _varint(number << 3 | _SIZED) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)
