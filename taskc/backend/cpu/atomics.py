"""Atomics run lane by lane. Shared memory belongs to one core, so its atomics are plain reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from taskc.backend.cpu.builder import SCALAR, Value, constant, stored_type
from taskc.backend.cpu.memory import LaneAddress, Memory
from taskc.ir import nodes as ir
from taskc.ir.nodes import GLOBAL
from taskc.ir.types import boolean, i64

Count = Callable[[Value, Value, int, Callable[[Value], None]], None]

_INTEGER = {"+": "add", "&": "and", "|": "or", "^": "xor", "exchange": "xchg"}


class Atomics:
    def __init__(self, memory: Memory, count: Count) -> None:
        self.memory = memory
        self.builder = memory.builder
        self.elementwise = memory.elementwise
        self.count = count

    def run(self, node: ir.Atomic, place: LaneAddress, value: Value, mask: Value | None) -> Value:
        """Run the atomic on each active lane; returns the old values."""
        lanes, dtype = self.memory.lanes, node.tensor.dtype
        if not lanes:
            return self._one(node, self.memory.address(place), value)
        kind = stored_type(dtype, lanes)
        olds = self.builder.allocate(kind, "old")
        values = self.builder.allocate(kind, "value")
        pointers = self.builder.allocate(f"[{lanes} x ptr]", "pointer")
        flags = self.builder.allocate(f"[{lanes} x i8]", "active")
        self.builder.emit(f"store {self.memory.to_storage(value).typed}, ptr {values}")
        self.builder.emit(f"store <{lanes} x ptr> {self.memory.pointers(place)}, ptr {pointers}")
        active = mask if mask is not None else constant(True, boolean, lanes)
        self.builder.emit(f"store {self.memory.to_storage(active).typed}, ptr {flags}")
        element = stored_type(dtype)

        def body(lane: Value) -> None:
            def item(kind: str, array: str) -> str:
                return self.builder.impure(f"getelementptr {kind}, ptr {array}, i64 {lane.text}")

            flag = self.builder.impure(f"load i8, ptr {item('i8', flags)}")
            test = self.builder.impure(f"trunc i8 {flag} to i1")
            then, end = self.builder.label("then"), self.builder.label("end")
            self.builder.emit(f"br i1 {test}, label %{then}, label %{end}")
            self.builder.start(then)
            pointer = self.builder.impure(f"load ptr, ptr {item('ptr', pointers)}")
            raw = self.builder.impure(f"load {element}, ptr {item(element, values)}")
            operand = self.memory.from_storage(raw, node.tensor, SCALAR)
            old = self._one(node, pointer, operand)
            self.builder.emit(
                f"store {self.memory.to_storage(old).typed}, ptr {item(element, olds)}"
            )
            self.builder.jump(end)
            self.builder.start(end)

        self.count(constant(0, i64), constant(lanes, i64), 1, body)
        return self.memory.from_storage(
            self.builder.impure(f"load {kind}, ptr {olds}"), node.tensor, lanes
        )

    def _one(self, node: ir.Atomic, pointer: str, value: Value) -> Value:
        dtype = node.tensor.dtype
        kind = stored_type(dtype)
        if node.tensor.scope != GLOBAL:
            old = self.memory.from_storage(
                self.builder.impure(f"load {kind}, ptr {pointer}"), node.tensor, SCALAR
            )
            new = self._combined(node.operator, old, value)
            self.builder.emit(f"store {self.memory.to_storage(new).typed}, ptr {pointer}")
            return old
        if dtype.is_integer:
            name = _INTEGER.get(node.operator)
            if name is None:
                name = ("" if dtype.kind == "int" else "u") + node.operator
            text = self.builder.impure(f"atomicrmw {name} ptr {pointer}, {value.typed} monotonic")
            return replace(value, text=text, number=None)
        return self._exchanged(node, pointer, value)

    def _exchanged(self, node: ir.Atomic, pointer: str, value: Value) -> Value:
        """A compare-and-exchange loop, until no other thread came in between."""
        builder, dtype = self.builder, node.tensor.dtype
        bits = f"i{dtype.bits}"
        head, end = builder.label("again"), builder.label("done")
        builder.jump(head)
        builder.start(head)
        seen = builder.impure(f"load atomic {bits}, ptr {pointer} monotonic, align {dtype.nbytes}")
        kind = stored_type(dtype)
        raw = seen if kind == bits else builder.impure(f"bitcast {bits} {seen} to {kind}")
        with builder.nested():
            old = self.memory.from_storage(raw, node.tensor, SCALAR)
            stored = self.memory.to_storage(self._combined(node.operator, old, value))
            new = stored.text
            if kind != bits:
                new = builder.impure(f"bitcast {stored.typed} to {bits}")
            pair = builder.impure(
                f"cmpxchg weak ptr {pointer}, {bits} {seen}, {bits} {new} monotonic monotonic"
            )
            swapped = builder.impure(f"extractvalue {{ {bits}, i1 }} {pair}, 1")
            builder.emit(f"br i1 {swapped}, label %{end}, label %{head}")
        builder.start(end)
        return self.memory.from_storage(raw, node.tensor, SCALAR)

    def _combined(self, operator: str, old: Value, value: Value) -> Value:
        if operator == "exchange":
            return value
        if operator in "&|^" and old.dtype is boolean:
            name = {"&": "and", "|": "or"}.get(operator)
            return (
                self.elementwise.binary(name, old, value)
                if name
                else self.elementwise.binary("!=", old, value)
            )
        return self.elementwise.binary(operator, old, value)
