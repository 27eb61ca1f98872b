"""The compiled function that Python calls: it unpacks and checks the arguments, then runs the kernel.

    PyObject *entry(PyObject *slow, PyObject *const *args, Py_ssize_t count, PyObject *names)

takes contiguous NumPy arrays and PyTorch tensors that fit the parameters, and Python's own numbers. If one is a
tensor, the outputs it allocates are tensors, too. Every other call goes to `slow`, which copies, packs or reports the
error: a Python callable that takes a tuple of all arguments, and None or the names of the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taskc.backend.cpu.unpacking import (
    CONTEXT,
    Called,
    Unpacking,
    packed_of,
    takes_out,
    viewed_of,
)
from taskc.ir.nodes import Tensor, Variable
from taskc.ir.signature import outputs_of

GIVEN_UP = (1 << 31) - 1  # no assertion's number: a signal handler raised an exception

_DECLARATIONS = """\
declare void @PyBuffer_Release(ptr)
declare ptr @PyObject_VectorcallDict(ptr, ptr, i64, ptr)
declare ptr @PyErr_Occurred()
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @PyLong_FromLongLong(i64)
declare i64 @PyLong_AsLongLong(ptr)
declare double @PyFloat_AsDouble(ptr)
declare void @Py_DecRef(ptr)
declare void @Py_IncRef(ptr)
@PyLong_Type = external global i8
@PyFloat_Type = external global i8
@PyBool_Type = external global i8
@_Py_TrueStruct = external global i8
@_Py_NoneStruct = external global i8
declare double @llvm.fabs.f64(double)
declare {i64, i1} @llvm.sadd.with.overflow.i64(i64, i64)
declare {i64, i1} @llvm.ssub.with.overflow.i64(i64, i64)
declare {i64, i1} @llvm.smul.with.overflow.i64(i64, i64)
%buffer = type { ptr, ptr, i64, i64, i32, i32, ptr, ptr, ptr, ptr, ptr }
"""


def context_size(called: Called) -> int:
    known = len(CONTEXT) + len(outputs_of(called.parameters)) + len(packed_of(called))
    return known + 2 * len(viewed_of(called))


def entry_text(called: Called, words: int) -> str:
    """The text of `entry`, which passes the words of all arguments to `call_kernel` or `call_program` of c/calls.c.

    words  the last ones of the context: so many are what runs
    """
    return _Entry(called, words, Unpacking(called)).text()


@dataclass(slots=True)
class _Entry:
    """`code` is the function written so far."""

    called: Called
    words: int
    code: Unpacking

    def text(self) -> str:
        called = self.called
        outputs = outputs_of(called.parameters)
        inputs = [item for item in called.parameters if item not in outputs]
        items = [*called.parameters, *called.dimensions]
        places = {item: number for number, item in enumerate(items)}
        size = context_size(called) + self.words
        head = [
            f"@context = global [{size} x ptr] zeroinitializer",
            "define ptr @entry(ptr %self, ptr %args, i64 %count, ptr %names) {",
            "start:",
            f"  %words = alloca [{len(items) + 1} x i64]",
            *(f"  %view{n} = alloca %buffer" for n in range(len(called.parameters))),
            *(f"  %made{n} = alloca ptr" for n in range(len(outputs))),
            "  %operands = alloca [4 x ptr]",
        ]
        self.code.need_equal("i64", "%count", len(inputs))
        has_out = self._given(outputs)
        for number, item in enumerate(inputs):
            argument = self.code.new(f"getelementptr ptr, ptr %args, i64 {number}")
            value = self.code.new(f"load ptr, ptr {argument}")
            place = self.code.new(f"getelementptr i64, ptr %words, i64 {places[item]}")
            if isinstance(item, Tensor):
                written = "false" if item.role == "in" else "true"
                self.code.tensor(item, value, f"%view{places[item]}", place, written)
            else:
                self.code.scalar(item, value, place)
        only_arrays = "true"
        for is_array in self.code.arrays:
            only_arrays = self.code.new(f"and i1 {only_arrays}, {is_array}")
        for number, item in enumerate(outputs):
            place = self.code.new(f"getelementptr i64, ptr %words, i64 {places[item]}")
            value = self._output(item, number, has_out, only_arrays)
            self.code.tensor(item, value, f"%view{places[item]}", place, has_out)
        for dimension in called.dimensions:
            place = self.code.new(f"getelementptr i64, ptr %words, i64 {places[dimension]}")
            if (
                dimension not in self.code.sizes
            ):  # only a program calls this kernel, since no argument tells the dimension
                self.code.need("false")
                continue
            self.code.emit(f"store i64 {self.code.sizes[dimension]}, ptr {place}")
        # A newly allocated array overlaps no other.
        self.code.overlaps(inputs if has_out == "false" else called.parameters)
        self._run()
        for number in range(len(called.parameters)):
            if isinstance(called.parameters[number], Tensor):
                self.code.emit(f"call void @PyBuffer_Release(ptr %view{number})")
        self._result(outputs)
        return "\n".join([_DECLARATIONS, *head, *self.code.lines, *self._slow(), "}"])

    def _given(self, outputs: Sequence[Tensor]) -> str:
        """An i1 that holds if `out=` is given as the one keyword; other keywords go to `slow`."""
        none = self.code.new("icmp eq ptr %names, null")
        if not takes_out(self.called):
            self.code.need(none)
            return "false"
        self.code.emit(f"br i1 {none}, label %positional, label %keyword")
        self.code.start("keyword")
        self.code.need_equal("i64", self.code.new("call i64 @PyTuple_Size(ptr %names)"), 1)
        name = self.code.new("call ptr @PyTuple_GetItem(ptr %names, i64 0)")
        self.code.need_equal("ptr", name, self.code.context(CONTEXT.index("out")))
        self.code.emit("br label %positional")
        self.code.start("positional")
        return self.code.new(f"xor i1 {none}, true")

    def _output(self, item: Tensor, number: int, given: str, only_arrays: str) -> str:
        """The output array: the one of `out=`, or a new array or tensor where the output has no layout.

        This function owns a reference to it.

        This function owns a reference to it.
        """
        if item.layout is not None:
            self.code.need(given)
        if given != "false":
            self.code.emit(f"br i1 {given}, label %given, label %allocate")
            self.code.start("given")
            place = self.code.new("getelementptr ptr, ptr %args, i64 %count")
            array = self.code.new(f"load ptr, ptr {place}")
            self.code.emit(f"call void @Py_IncRef(ptr {array})")
            self.code.emit(f"store ptr {array}, ptr %made{number}")
            self.code.emit("br label %placed")
            self.code.start("allocate")
        # A dimension of no input is known only from `out=`; without that, `slow` takes the call.
        extents = [
            None if isinstance(extent, Variable) and extent not in self.code.sizes
            else self.code.number(extent) for extent in item.argument_shape
        ]  # fmt: skip
        shape = self.code.new(f"call ptr @PyTuple_New(i64 {len(extents)})")
        self.code.need(self.code.new(f"icmp ne ptr {shape}, null"))
        for index, size in enumerate(extents):
            if size is None:
                size = "0"
                self.code.emit(f"call void @Py_DecRef(ptr {shape})")
                self.code.need("false")
            python_size = self.code.new(f"call ptr @PyLong_FromLongLong(i64 {size})")
            self.code.new(f"call i32 @PyTuple_SetItem(ptr {shape}, i64 {index}, ptr {python_size})")
        self._make(item, number, shape, only_arrays)
        self.code.emit(f"call void @Py_DecRef(ptr {shape})")
        fresh = self.code.new(f"load ptr, ptr %made{number}")
        self.code.need(self.code.new(f"icmp ne ptr {fresh}, null"))
        if given != "false":
            self.code.emit("br label %placed")
            self.code.start("placed")
        array = self.code.new(f"load ptr, ptr %made{number}")
        self.code.hold(f"call void @Py_DecRef(ptr {array})")
        return array

    def _make(self, item: Tensor, number: int, shape: str, only_arrays: str) -> None:
        """Allocate an array, or a tensor if an argument is one; null where that isn't possible."""
        code = self.code
        code.emit(f"br i1 {only_arrays}, label %array_like{number}, label %tensor_like{number}")
        code.start(f"tensor_like{number}")
        code.emit(f"store ptr {code.new_tensor(shape, item.dtype)}, ptr %made{number}")
        code.emit(f"br label %made_like{number}")
        code.start(f"array_like{number}")
        kind = code.context(len(CONTEXT) + number)
        code.emit(f"store ptr {code.call(CONTEXT.index('empty'), shape, kind)}, ptr %made{number}")
        code.emit(f"br label %made_like{number}")
        code.start(f"made_like{number}")

    def _run(self) -> None:
        call = self.code.context(CONTEXT.index("call"))
        status = len(self.called.parameters) + len(self.called.dimensions)
        runs = f"getelementptr (ptr, ptr @context, i64 {context_size(self.called)})"
        code = self.code.new(f"call i64 {call}(ptr %words, i64 {status}, ptr {runs})")
        self.code.need(self.code.new(f"icmp sge i64 {code}, 0"))
        self._fail_if(code)

    def _fail_if(self, number: str) -> None:
        """Call `failed`, which raises, with the number of an assertion; 0 means none failed."""
        fine = self.code.new(f"icmp eq i64 {number}, 0")
        self.code.emit(f"br i1 {fine}, label %fine, label %wrong")
        self.code.start("wrong")
        number_object = self.code.new(f"call ptr @PyLong_FromLongLong(i64 {number})")
        self.code.call(CONTEXT.index("failed"), number_object)
        self.code.emit(f"call void @Py_DecRef(ptr {number_object})")
        for _, release, _ in reversed(self.code.releases):
            self.code.emit(release)
        self.code.emit("ret ptr null")
        self.code.start("fine")

    def _result(self, outputs: Sequence[Tensor]) -> None:
        arrays = [self.code.new(f"load ptr, ptr %made{number}") for number in range(len(outputs))]
        if len(arrays) == 1:
            self.code.emit(f"ret ptr {arrays[0]}")
            return
        if not arrays:
            self.code.emit("call void @Py_IncRef(ptr @_Py_NoneStruct)")
            self.code.emit("ret ptr @_Py_NoneStruct")
            return
        result = self.code.new(f"call ptr @PyTuple_New(i64 {len(arrays)})")
        for number, array in enumerate(arrays):
            self.code.new(f"call i32 @PyTuple_SetItem(ptr {result}, i64 {number}, ptr {array})")
        self.code.emit(f"ret ptr {result}")

    def _slow(self) -> Iterator[str]:
        for label, release, following in reversed(self.code.releases):
            yield f"{label}:"
            yield f"  {release}"
            yield f"  br label %{following}"
        yield "slow:"
        yield f"  %ask = load ptr, ptr getelementptr (ptr, ptr @context, i64 {CONTEXT.index('ask')})"
        yield "  %answer = call ptr %ask(ptr %self, ptr %args, i64 %count, ptr %names)"
        yield "  ret ptr %answer"
