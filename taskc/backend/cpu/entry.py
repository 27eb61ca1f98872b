"""The compiled function that Python calls: it unpacks and checks the arguments, then runs the kernel.

    PyObject *entry(PyObject *slow, PyObject *const *args, Py_ssize_t count, PyObject *names)

takes contiguous NumPy arrays and PyTorch tensors that fit the parameters, and Python's own numbers. If one is a
tensor, the outputs it allocates are tensors, too. Every other call goes to `slow`, which copies, packs or reports the
error: a Python callable that takes a tuple of all arguments, and None or the names of the last of them.

Arguments taken out of Python objects, each checked against its parameter.

An array's buffer gives its address, and whether type, shape and order are the parameter's. A PyTorch tensor is
described like a buffer (c/torch_tensors.c). A number is read if it is of Python's own types and fits. Anything
else goes to `slow`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from taskc.arrays.dlpack import type_code
from taskc.arrays.packed import memory_of
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.bits import has_whole_rows
from taskc.ir.nodes import Expression, Kernel, Tensor, Variable
from taskc.ir.rewrite import walk
from taskc.ir.signature import inputs_of, outputs_of
from taskc.ir.types import DType, TensorType, boolean, f32, f64, u8, u16
from taskc.programs.ir import Program

# A function with parameters, and dimensions that they determine.
Called: TypeAlias = "Kernel | Program"

# The pointers in `context`, in this order. Then follow the type of each output's elements, the class of each packed
# parameter, and for each parameter whose element type buffers can't name, that type and the integer type of the same
# width.
CONTEXT = (
    *("call", "read", "ask", "ndarray"),
    *("empty", "out", "failed", "dtype", "view", "tensors"),
)

# Buffers' names of element types. C's `long` may have 32 or 64 bits: the size of an element is checked, too.
_FORMATS = {
    "bool": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "lq", "u8": "B", "u16": "H",
    "u32": "I", "u64": "LQ", "f16": "e", "f32": "f", "f64": "d",
}  # fmt: skip
# Types that buffers can't name, with the integers that stand for their bits.
BITS = {"bf16": u16, "f8e4m3": u8, "f8e5m2": u8}

_CONTIGUOUS, _WRITABLE = 0x20 | 0x10 | 0x08 | 0x04, 0x01


def has_entry(called: Called) -> bool:
    """Whether compiled code can take the arguments: all have types that buffers can name, if need be by their bits.

    An output with a layout is accepted only as `out=`.
    """
    takes_output = takes_out(called)
    for parameter in called.parameters:
        if isinstance(parameter, Tensor):
            if _stored(parameter).name not in _FORMATS:
                return False
            is_packed = _is_packed(parameter)
            if is_packed and not all(isinstance(n, int) for n in parameter.argument_shape):
                return False
            if is_packed and parameter.role == "out" and not takes_output:
                return False
        elif parameter.dtype not in (f32, f64, boolean) and not parameter.dtype.is_integer:
            return False
    return _are_told_in_order(called)


def _are_told_in_order(called: Called) -> bool:
    """Whether each computed extent depends only on dimensions that are extents earlier in the order of unpacking."""
    known: set[Expression] = set()
    for parameter in (*inputs_of(called.parameters), *outputs_of(called.parameters)):
        for extent in parameter.argument_shape if isinstance(parameter, Tensor) else ():
            if isinstance(extent, Variable):
                known.add(extent)
            elif not isinstance(extent, int) and not known.issuperset(_variables(extent)):
                return False
    return True


def _variables(extent: Expression) -> list[Variable]:
    return [node for node in walk(extent) if isinstance(node, Variable)]


def takes_out(called: Called) -> bool:
    """Whether the kernel has one output, which `out=` can name because no input has that name."""
    is_free = all(parameter.name != "out" for parameter in inputs_of(called.parameters))
    return is_free and len(outputs_of(called.parameters)) == 1


def _code(dtype: DType) -> int:
    return type_code(np.dtype(dtype.numpy))


def _stored(item: Tensor) -> DType:
    """The element type of an array's buffer."""
    dtype = item.argument.dtype
    return u8 if dtype.is_sub_byte else BITS.get(dtype.name, dtype)


def _is_packed(item: Tensor) -> bool:
    """Whether the argument is a packed array: one with a layout, or with rows that don't fill whole bytes."""
    declared = item.argument
    is_ragged = declared.dtype.is_sub_byte and not has_whole_rows(declared)
    return declared.layout is not None or is_ragged


def packed_of(called: Called) -> list[Tensor]:
    """The parameters that take packed arrays."""
    return [p for p in called.parameters if isinstance(p, Tensor) and _is_packed(p)]


def packed_type(item: Tensor) -> TensorType:
    """The type that an array is packed as for a parameter."""
    declared = item.argument
    return TensorType(declared.dtype, declared.argument_shape, declared.layout)


def viewed_of(called: Called) -> list[Tensor]:
    """The parameters whose element type buffers can't name."""
    return [p for p in called.parameters if isinstance(p, Tensor) and p.dtype.name in BITS]


@dataclass(slots=True)
class Unpacking:
    """LLVM IR, line by line, that jumps to the label `failing` where an argument doesn't fit.

    sizes      the symbolic dimensions that are known
    addresses  for each array: its tensor, address and bytes
    releases   what a failure releases: a label, the instruction, and the label that follows
    arrays     an i1 for each tensor parameter: whether the argument was a NumPy array
    """

    called: Called
    lines: list[str] = field(default_factory=list)
    names: int = 0
    failing: str = "slow"
    sizes: dict[Variable, str] = field(default_factory=dict)
    addresses: list[tuple[Tensor, str, str]] = field(default_factory=list)
    releases: list[tuple[str, str, str]] = field(default_factory=list)
    arrays: list[str] = field(default_factory=list)

    def emit(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def new(self, text: str) -> str:
        self.names += 1
        self.emit(f"%v{self.names} = {text}")
        return f"%v{self.names}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def need(self, condition: str) -> None:
        """Continue if the condition holds; otherwise release everything held so far and go to `slow`."""
        self.names += 1
        self.emit(f"br i1 {condition}, label %go{self.names}, label %{self.failing}")
        self.start(f"go{self.names}")

    def need_equal(self, kind: str, a: str, b: object) -> None:
        self.need(self.new(f"icmp eq {kind} {a}, {b}"))

    def hold(self, release: str) -> None:
        """Release this first on every later failure."""
        self.names += 1
        label = f"fail{self.names}"
        self.releases.append((label, release, self.failing))
        self.failing = label

    # Arguments.

    def field(self, view: str, kind: str, number: int) -> str:
        place = self.new(f"getelementptr %buffer, ptr {view}, i32 0, i32 {number}")
        return self.new(f"load {kind}, ptr {place}")

    def context(self, number: int) -> str:
        return self.new(f"load ptr, ptr getelementptr (ptr, ptr @context, i64 {number})")

    def tensor(self, item: Tensor, value: str, view: str, place: str, written: str) -> None:
        """Read an array. `written`, an i1, tells whether to mark a PyTorch tensor as written."""
        dtype, stored = item.argument.dtype, _stored(item)
        flags = _CONTIGUOUS | (_WRITABLE if item.role != "in" else 0)
        codes = [ord(code) for code in _FORMATS[stored.name]]
        kind = self.new(
            f"call i32 {self.context(CONTEXT.index('read'))}(ptr @context, ptr {value}, ptr {view},"
            f" {self._classes(item)}, i32 {flags}, i8 {codes[0]},"
            f" i8 {codes[-1]}, i64 {stored.nbytes}, i32 {_code(stored if dtype.is_sub_byte else dtype)}, i1 {written})"
        )
        self.need(self.new(f"icmp sge i32 {kind}, 0"))
        self.hold(f"call void @PyBuffer_Release(ptr {view})")
        self.arrays.append(self.new(f"icmp eq i32 {kind}, 0"))
        if _is_packed(item):
            # A slice of a packed array, or a result that NumPy computes from it, has its class, too: check the shape.
            self._check_shape(memory_of(packed_type(item))[:1], view)
        else:
            bits = dtype.bits if dtype.is_sub_byte else 0
            self._check_shape(item.argument_shape, view, bits)
        address = self.field(view, "ptr", 0)
        start = self.new(f"ptrtoint ptr {address} to i64")
        if stored.nbytes > 1:
            self.need_equal("i64", self.new(f"and i64 {start}, {stored.nbytes - 1}"), 0)
        self.addresses.append((item, start, self.field(view, "i64", 2)))
        self.emit(f"store ptr {address}, ptr {place}")

    def _classes(self, item: Tensor) -> str:
        """The class that `read_argument` checks for, and two element types or nulls."""
        packed, viewed = packed_of(self.called), viewed_of(self.called)
        number, first = (
            CONTEXT.index("ndarray"),
            len(CONTEXT) + len(outputs_of(self.called.parameters)),
        )
        if item in packed:
            number = first + packed.index(item)
        operands = [self.context(number), "null", "null"]
        if item in viewed:
            number = first + len(packed) + 2 * viewed.index(item)
            operands[1:] = [self.context(number), self.context(number + 1)]
        return ", ".join(f"ptr {each}" for each in operands)

    def new_tensor(self, shape: str, dtype: DType) -> str:
        """Allocate a PyTorch tensor; only if an argument is a tensor."""
        place = self.new(f"getelementptr ptr, ptr {self.context(CONTEXT.index('tensors'))}, i64 1")
        maker = self.new(f"load ptr, ptr {place}")
        return self.new(f"call ptr {maker}(ptr {shape}, i32 {_code(dtype)})")

    def call(self, function: int, *operands: str) -> str:
        """Call a function of the context with at most three operands; returns its result."""
        for number, operand in enumerate(operands, start=1):
            place = self.new(f"getelementptr ptr, ptr %operands, i64 {number}")
            self.emit(f"store ptr {operand}, ptr {place}")
        first = self.new("getelementptr ptr, ptr %operands, i64 1")
        count = (
            len(operands) - 2**63
        )  # the flag that allows the function to use the slot before the operands
        return self.new(
            f"call ptr @PyObject_VectorcallDict("
            f"ptr {self.context(function)}, ptr {first}, i64 {count}, ptr null)"
        )

    def _check_shape(self, extents: Sequence[int | Expression], view: str, bits: int = 0) -> None:
        """Check the shape of an array of bytes, in whose rows elements of so many bits are packed."""
        self.need_equal("i32", self.field(view, "i32", 5), len(extents))
        shape = self.field(view, "ptr", 7)
        for number, extent in enumerate(extents):
            size = self.new(
                f"load i64, ptr {self.new(f'getelementptr i64, ptr {shape}, i64 {number}')}"
            )
            if bits and number == len(extents) - 1:
                total = self.new(f"mul i64 {size}, 8")
                self.need_equal("i64", self.new(f"urem i64 {total}, {bits}"), 0)
                size = self.new(f"udiv i64 {total}, {bits}")
            self._extent(extent, size)

    def _extent(self, extent: int | Expression, size: str) -> None:
        if isinstance(extent, Variable) and extent not in self.sizes:
            self.sizes[extent] = size
            if extent.multiple > 1:
                self.need_equal("i64", self.new(f"urem i64 {size}, {extent.multiple}"), 0)
        else:
            self.need_equal("i64", size, self.number(extent))

    def number(self, extent: int | Expression) -> str:
        """The value of an extent of known dimensions; one that overflows i64 goes to `slow`."""
        match extent:
            case int():
                return str(extent)
            case ir.Constant(value=value):
                return str(int(value))
            case Variable():
                return self.sizes[extent]
            case ir.Cast():
                return self.number(extent.operand)
            case ir.Binary(operator="+" | "-" | "*" as operator):
                name = {"+": "sadd", "-": "ssub", "*": "smul"}[operator]
                left, right = self.number(extent.left), self.number(extent.right)
                result = self.new(
                    f"call {{i64, i1}} @llvm.{name}.with.overflow.i64(i64 {left}, i64 {right})"
                )
                self.need_equal("i1", self.new(f"extractvalue {{i64, i1}} {result}, 1"), "false")
                return self.new(f"extractvalue {{i64, i1}} {result}, 0")
            case ir.Binary(operator="//" | "%" as operator, right=ir.Constant(value=by)):
                left = self.number(extent.left)
                signed_remainder = self.new(
                    f"srem i64 {left}, {by}"
                )  # with the sign of the dividend
                is_below = self.new(f"icmp slt i64 {signed_remainder}, 0")
                correction = self.new(f"select i1 {is_below}, i64 {by}, i64 0")
                modulo = self.new(f"add i64 {signed_remainder}, {correction}")
                if operator == "%":
                    return modulo
                return self.new(f"sdiv i64 {self.new(f'sub i64 {left}, {modulo}')}, {by}")
        raise InternalError(f"an extent can't be {type(extent).__name__}")

    def scalar(self, item: Variable, value: str, place: str) -> None:
        kind = self.new(f"load ptr, ptr {self.new(f'getelementptr i8, ptr {value}, i64 8')}")
        if item.dtype is boolean:
            self.need_equal("ptr", kind, "@PyBool_Type")
            holds = self.new(f"icmp eq ptr {value}, @_Py_TrueStruct")
            self.emit(f"store i64 {self.new(f'zext i1 {holds} to i64')}, ptr {place}")
        elif item.dtype.is_float:
            self.need_equal("ptr", kind, "@PyFloat_Type")
            number = self.new(f"call double @PyFloat_AsDouble(ptr {value})")
            if item.dtype is f64:
                self.emit(f"store double {number}, ptr {place}")
                return
            # A number that overflows f32 is refused; infinities and NaN pass.
            narrow = self.new(f"fptrunc double {number} to float")
            size = self.new(f"call double @llvm.fabs.f64(double {number})")
            fits = self.new(f"fcmp ule double {size}, 0x47EFFFFFE0000000")
            infinite = self.new(f"fcmp oeq double {size}, 0x7FF0000000000000")
            self.need(self.new(f"or i1 {fits}, {infinite}"))
            self.emit(f"store float {narrow}, ptr {place}")
        else:
            self.need_equal("ptr", kind, "@PyLong_Type")
            number = self.new(f"call i64 @PyLong_AsLongLong(ptr {value})")
            error = self.new("call ptr @PyErr_Occurred()")  # it doesn't fit 64 bits
            self.need(self.new(f"icmp eq ptr {error}, null"))
            self._integer(item.dtype, number)
            self.emit(f"store i64 {number}, ptr {place}")

    def _integer(self, dtype: DType, number: str) -> None:
        if dtype.bits < 64:
            low = self.new(f"icmp sge i64 {number}, {dtype.minimum}")
            high = self.new(f"icmp sle i64 {number}, {dtype.maximum}")
            self.need(self.new(f"and i1 {low}, {high}"))
        elif dtype.kind == "uint":
            self.need(self.new(f"icmp sge i64 {number}, 0"))

    def overlaps(self, given: Sequence[Tensor | Variable]) -> None:
        """Check that no array that is written overlaps another one."""
        addresses = [entry for entry in self.addresses if entry[0] in given]
        for number, (first, a, a_size) in enumerate(addresses):
            for second, b, b_size in addresses[number + 1 :]:
                if first.role == "in" and second.role == "in":
                    continue
                before = self.new(f"icmp ule i64 {self.new(f'add i64 {a}, {a_size}')}, {b}")
                after = self.new(f"icmp ule i64 {self.new(f'add i64 {b}, {b_size}')}, {a}")
                self.need(self.new(f"or i1 {before}, {after}"))


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
