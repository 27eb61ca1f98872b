"""Damaged models, and a run of something over them in a process of its own.

A mutant is a model in which bytes are flipped, cut out or put in, or in which fields of the protobuf have other values:
numbers at the ends of their types, names of other tensors, messages gone, doubled or in the place of others.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import ModelProto

from taskc import CompileError
from taskc.arrays.arguments import ArgumentError
from taskc.errors import CheckError

SECONDS = 10.0
BYTES = 2 << 30

_NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    15,
    16,
    100,
    2**31 - 1,
    -(2**31),
    2**31,
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
]
_LIMITS = {
    FieldDescriptor.CPPTYPE_BOOL: (0, 1),
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = [0.0, -1.0, 1e-30, 1e30, float("inf"), float("nan")]
_TEXTS = [
    "",
    "x",
    "Relu",
    "If",
    "Loop",
    "Constant",
    "Reshape",
    "axis",
    "value",
    "ai.onnx",
    "own",
    "a" * 1000,
    "\0",
    "é",
]


def mutant(models: list[ModelProto], seed: int) -> bytes:
    """One mutant of one of the models, the same for the same seed."""
    rng = random.Random(seed)
    model = rng.choice(models)
    if rng.random() < 0.25:
        return _other_bytes(rng, model.SerializeToString())
    changed = ModelProto()
    changed.CopyFrom(model)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        _change(rng, changed)
    return changed.SerializeToString()


def _other_bytes(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        end = at + rng.randint(1, 8)
        match rng.randrange(4):
            case 0:
                changed[at:end] = b""
            case 1:
                changed[at:at] = rng.randbytes(end - at)
            case 2 if rng.random() < 0.3:
                del changed[at:]
            case _:
                changed[at : at + 1] = rng.randbytes(1)
    return bytes(changed)


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in value if field.is_repeated else [value]:
                yield from _messages(item)


def _change(rng: random.Random, model: ModelProto) -> None:
    """Change one field of one message, wherever in the model."""
    messages = [*_messages(model)]
    message = rng.choice(messages)
    written = [field for field, _ in message.ListFields()]
    field = rng.choice(written if written and rng.random() < 0.9 else message.DESCRIPTOR.fields)
    if field.is_repeated:
        _change_list(rng, getattr(message, field.name), field, messages)
    elif rng.random() < 0.15:
        message.ClearField(field.name)
    elif field.message_type is not None:
        others = [other for other in messages if field.message_type == other.DESCRIPTOR]
        if others:
            getattr(message, field.name).CopyFrom(_copy(rng.choice(others)))
    else:
        _set(rng, field, lambda value: setattr(message, field.name, value), messages)


def _change_list(
    rng: random.Random, items: Any, field: FieldDescriptor, messages: list[Message]
) -> None:
    at = rng.randrange(len(items)) if len(items) else 0
    others = [other for other in messages if field.message_type == other.DESCRIPTOR]
    match rng.choice(["less", "more", "swap", "set", "set"]):
        case "less" if len(items):
            del items[at]
        case "more" if field.message_type is not None and others:
            items.append(_copy(rng.choice(others)))
        case "more" if field.message_type is None:
            _set(rng, field, items.append, messages)
        case "swap" if field.message_type is None and len(items) > 1:
            items[0], items[at] = items[at], items[0]
        case "set" if len(items) and field.message_type is None:
            _set(rng, field, lambda value: items.__setitem__(at, value), messages)


def _copy(message: Message) -> Message:
    """A copy, since a message that is put into itself would change while it is read."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _set(
    rng: random.Random,
    field: FieldDescriptor,
    set_to: Callable[[Any], object],
    messages: list[Message],
) -> None:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            set_to(rng.randbytes(rng.choice([0, 1, 4, 8])))
        case FieldDescriptor.CPPTYPE_STRING:
            set_to(rng.choice(_names(messages) if rng.random() < 0.8 else _TEXTS))
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            set_to(rng.choice(_FLOATS))
        case FieldDescriptor.CPPTYPE_ENUM:
            set_to(rng.choice([value.number for value in field.enum_type.values]))
        case _:
            least, most = _LIMITS[field.cpp_type]
            number = rng.randrange(30) if rng.random() < 0.5 else rng.choice(_NUMBERS)
            set_to(min(max(number, least), most))


def _names(messages: list[Message]) -> list[str]:
    found = {""}
    for message in messages:
        for field, value in message.ListFields():
            if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
                found.update(
                    item
                    for item in (value if field.is_repeated else [value])
                    if isinstance(item, str)
                )
    return sorted(found)


@dataclass(frozen=True)
class Outcome:
    """What became of one case. `text` is the error's, or a traceback; `made`, what the action returned."""

    kind: Literal["done", "refused", "failed", "crashed", "hangs"]
    text: str
    made: Any = None


def outcomes(
    action: Callable[[bytes], object],
    cases: Iterable[bytes],
    seconds: float = SECONDS,
    memory: int = BYTES,
) -> Iterator[Outcome]:
    """What becomes of each case. The action, a function of a module, runs in a process that can't end this one."""
    child: _Child | None = None
    try:
        for case in cases:
            child = child or _Child(action, memory)
            outcome = child.run(case, seconds)
            if outcome.kind in ("crashed", "hangs"):
                child.end()
                child = None
            yield outcome
    finally:
        if child is not None:
            child.end()


class _Child:
    def __init__(self, action: Callable[[bytes], object], memory: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([action.__module__])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(action, theirs, memory), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()  # it has started, which takes a while

    def run(self, case: bytes, seconds: float) -> Outcome:
        self._pipe.send_bytes(case)
        try:
            if not self._pipe.poll(seconds):
                return Outcome("hangs", f"more than {seconds} s")
            return Outcome(*self._pipe.recv())
        except EOFError:
            self._process.join()
            return Outcome("crashed", f"exit status {self._process.exitcode}")

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(action: Callable[[bytes], object], pipe: Connection, memory: int) -> None:
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[0])
    most = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe.send("ready")
    while True:
        case = pipe.recv_bytes()
        try:
            pipe.send(("done", "", action(case)))
        except (CompileError, ArgumentError, CheckError) as error:
            pipe.send(("refused" if str(error).strip() else "failed", str(error)))
        except Exception:
            pipe.send(("failed", traceback.format_exc()))
