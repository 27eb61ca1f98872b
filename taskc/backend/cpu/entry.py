"""What Python calls: arguments are unpacked, checked and passed on by compiled code.

    PyObject *entry(PyObject *slow, PyObject *const *args, Py_ssize_t count, PyObject *names)

takes contiguous arrays of NumPy that fit the parameters, and Python's own numbers. Anything else, and
anything wrong, goes to `slow`, which copies, packs, and says what is wrong: a Python callable that takes
a tuple of all arguments, and None or the names of the last of them.

    i64 count(ptr arguments)

is how many blocks a call has; negative where they are not worth several threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from taskc.backend.cpu.builder import Builder, Value, constant
from taskc.backend.cpu.elementwise import Elementwise
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.types import DType, boolean, f32, f64, i64

# What `context` points to, in this order; then the type of each output's elements, and the class of each
# packed parameter.
CONTEXT = ("run", "ndarray", "empty", "out", "failed")
_WORTH = 40_000  # operations, about ten microseconds: below that, other threads come too late

# How buffers name element types. Whether C's `long` has 64 bits, the size of an element tells.
_FORMATS = {
    "bool": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "lq", "u8": "B", "u16": "H",
    "u32": "I", "u64": "LQ", "f16": "e", "f32": "f", "f64": "d",
}  # fmt: skip

_DECLARATIONS = """\
declare i32 @PyObject_GetBuffer(ptr, ptr, i32)
declare void @PyBuffer_Release(ptr)
declare ptr @PyObject_VectorcallDict(ptr, ptr, i64, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @PyErr_Clear()
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
declare i64 @llvm.abs.i64(i64, i1)
%buffer = type { ptr, ptr, i64, i64, i32, i32, ptr, ptr, ptr, ptr, ptr }
"""
# PyObject_VectorcallDict may use the place before the operands.
_ONE_OPERAND, _TWO_OPERANDS = 1 - 2**63, 2 - 2**63
_CONTIGUOUS, _WRITABLE = 0x20 | 0x10 | 0x08 | 0x04, 0x01


# PyObject_Vectorcall would pass names on, but no library has it before Python 3.11.
_ASK = f"""\
  call void @PyErr_Clear()
  %is_named = icmp ne ptr %names, null
  br i1 %is_named, label %named, label %gather
named:
  %named_count = call i64 @PyTuple_Size(ptr %names)
  br label %gather
gather:
  %more = phi i64 [ 0, %slow ], [ %named_count, %named ]
  %keywords = phi ptr [ @_Py_NoneStruct, %slow ], [ %names, %named ]
  %total = add i64 %count, %more
  %values = call ptr @PyTuple_New(i64 %total)
  %is_made = icmp ne ptr %values, null
  br i1 %is_made, label %each, label %nothing
each:
  %index = phi i64 [ 0, %gather ], [ %following, %put ]
  %is_left = icmp slt i64 %index, %total
  br i1 %is_left, label %put, label %ask
put:
  %place = getelementptr ptr, ptr %args, i64 %index
  %value = load ptr, ptr %place
  call void @Py_IncRef(ptr %value)
  %status = call i32 @PyTuple_SetItem(ptr %values, i64 %index, ptr %value)
  %following = add i64 %index, 1
  br label %each
ask:
  %first = getelementptr ptr, ptr %pair, i64 1
  store ptr %values, ptr %first
  %second = getelementptr ptr, ptr %pair, i64 2
  store ptr %keywords, ptr %second
  %answer = call ptr @PyObject_VectorcallDict(
    ptr %self, ptr %first, i64 {_TWO_OPERANDS}, ptr null)
  call void @Py_DecRef(ptr %values)
  ret ptr %answer
nothing:
  ret ptr null
"""


def has_entry(kernel: ir.Kernel) -> bool:
    """Whether compiled code can take the arguments: all in plain types that buffers can name."""
    for parameter in kernel.parameters:
        if parameter.dtype.name not in _FORMATS:
            return False
        if isinstance(parameter, Tensor):
            extents = [int] if parameter.layout is not None else [int, Variable]
            if not all(isinstance(extent, tuple(extents)) for extent in parameter.shape):
                return False
            if parameter.layout is not None and parameter.role != "in":
                return False
        elif parameter.dtype not in (f32, f64, boolean) and not parameter.dtype.is_integer:
            return False
    return True


def packed_of(kernel: ir.Kernel) -> list[Tensor]:
    """The parameters that have a layout: compiled code takes arrays that were packed for it."""
    return [p for p in kernel.parameters if isinstance(p, Tensor) and p.layout is not None]


def outputs_of(kernel: ir.Kernel) -> list[Tensor]:
    return [item for item in kernel.parameters if isinstance(item, Tensor) and item.role == "out"]


def count_text(kernel: ir.Kernel, cost: int) -> str:
    """`count`: the number of blocks; negative where one thread is enough for them."""
    builder = Builder()
    elementwise = Elementwise(builder)
    known: dict[Variable, Value] = {}
    for number, item in enumerate([*kernel.parameters, *kernel.dimensions]):
        if isinstance(item, Variable) and item.dtype.is_integer:
            place = builder.pure(f"getelementptr i64, ptr %arguments, i64 {number}")
            text = builder.pure(f"load i{item.dtype.bits}, ptr {place}")
            known[item] = Value(text, item.dtype)

    def value(expression: Expression) -> Value:
        match expression:
            case ir.Constant():
                return constant(expression.value, expression.dtype)
            case Variable():
                return known[expression]
            case ir.Binary():
                return elementwise.binary(
                    expression.operator, value(expression.left), value(expression.right)
                )
            case ir.Cast():
                return elementwise.convert(value(expression.operand), expression.dtype)
        raise InternalError(f"the number of blocks can't be {type(expression).__name__}")

    blocks = elementwise.convert(value(kernel.blocks or ir.constant(1)), i64)
    most = constant(_WORTH // max(1, cost), i64)
    few = elementwise.binary("<=", blocks, most)
    signed = elementwise.select(few, elementwise.unary("-", blocks), blocks)
    lines = [*builder.declared.values(), "define i64 @count(ptr %arguments) {", *builder.lines]
    return "\n".join([*lines, f"  ret i64 {signed.text}", "}"])


def context_size(kernel: ir.Kernel) -> int:
    return len(CONTEXT) + len(outputs_of(kernel)) + len(packed_of(kernel))


def entry_text(kernel: ir.Kernel, scratch: int) -> str:
    return _Entry(kernel, scratch).text()


@dataclass(slots=True)
class _Entry:
    kernel: ir.Kernel
    scratch: int
    lines: list[str] = field(default_factory=list)
    names: int = 0
    failing: str = "slow"
    sizes: dict[Variable, str] = field(default_factory=dict)
    addresses: list[tuple[Tensor, str, str]] = field(default_factory=list)
    releases: list[tuple[str, str, str]] = field(default_factory=list)

    def emit(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def new(self, text: str) -> str:
        self.names += 1
        self.emit(f"%v{self.names} = {text}")
        return f"%v{self.names}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def need(self, condition: str) -> None:
        """Goes on if it holds; otherwise what is held so far is given back, and `slow` is asked."""
        self.names += 1
        self.emit(f"br i1 {condition}, label %go{self.names}, label %{self.failing}")
        self.start(f"go{self.names}")

    def need_equal(self, kind: str, a: str, b: object) -> None:
        self.need(self.new(f"icmp eq {kind} {a}, {b}"))

    def field(self, view: str, kind: str, number: int) -> str:
        place = self.new(f"getelementptr %buffer, ptr {view}, i32 0, i32 {number}")
        return self.new(f"load {kind}, ptr {place}")

    def context(self, number: int) -> str:
        return self.new(f"load ptr, ptr getelementptr (ptr, ptr @context, i64 {number})")

    def text(self) -> str:
        kernel = self.kernel
        outputs = outputs_of(kernel)
        inputs = [item for item in kernel.parameters if item not in outputs]
        items = [*kernel.parameters, *kernel.dimensions]
        places = {item: number for number, item in enumerate(items)}
        head = [
            f"@context = global [{context_size(kernel)} x ptr] zeroinitializer",
            "define ptr @entry(ptr %self, ptr %args, i64 %count, ptr %names) {",
            "start:",
            f"  %words = alloca [{len(items) + 1} x i64]",
            *(f"  %view{n} = alloca %buffer" for n in range(len(kernel.parameters))),
            *(f"  %made{n} = alloca ptr" for n in range(len(outputs))),
            "  %pair = alloca [3 x ptr]",
        ]
        self.need_equal("i64", "%count", len(inputs))
        given = self._given(outputs)
        for number, item in enumerate(inputs):
            argument = self.new(f"getelementptr ptr, ptr %args, i64 {number}")
            value = self.new(f"load ptr, ptr {argument}")
            place = self.new(f"getelementptr i64, ptr %words, i64 {places[item]}")
            if isinstance(item, Tensor):
                self._tensor(item, value, f"%view{places[item]}", place)
            else:
                self._scalar(item, value, place)
        for number, item in enumerate(outputs):
            place = self.new(f"getelementptr i64, ptr %words, i64 {places[item]}")
            value = self._output(item, number, given)
            self._tensor(item, value, f"%view{places[item]}", place)
        for dimension in kernel.dimensions:
            place = self.new(f"getelementptr i64, ptr %words, i64 {places[dimension]}")
            self.emit(f"store i64 {self.sizes[dimension]}, ptr {place}")
        self._overlaps()
        self._run(len(items))
        for number in range(len(kernel.parameters)):
            if isinstance(kernel.parameters[number], Tensor):
                self.emit(f"call void @PyBuffer_Release(ptr %view{number})")
        self._result(outputs)
        return "\n".join([_DECLARATIONS, *head, *self.lines, *self._slow(), "}"])

    def _given(self, outputs: Sequence[Tensor]) -> str:
        """Whether `out=` is the one keyword, as an i1; no other is taken."""
        none = self.new("icmp eq ptr %names, null")
        if len(outputs) != 1 or any(p.name == "out" for p in self.kernel.parameters):
            self.need(none)
            return "false"
        self.emit(f"br i1 {none}, label %positional, label %keyword")
        self.start("keyword")
        self.need_equal("i64", self.new("call i64 @PyTuple_Size(ptr %names)"), 1)
        name = self.new("call ptr @PyTuple_GetItem(ptr %names, i64 0)")
        self.need_equal("ptr", name, self.context(CONTEXT.index("out")))
        self.emit("br label %positional")
        self.start("positional")
        return self.new(f"xor i1 {none}, true")

    def _tensor(self, item: Tensor, value: str, view: str, place: str) -> None:
        type_place = self.new(f"getelementptr i8, ptr {value}, i64 8")
        kind = self.new(f"load ptr, ptr {type_place}")
        laid = packed_of(self.kernel)
        if item in laid:
            first = len(CONTEXT) + len(outputs_of(self.kernel))
            self.need_equal("ptr", kind, self.context(first + laid.index(item)))
        else:
            self.need_equal("ptr", kind, self.context(CONTEXT.index("ndarray")))
        flags = _CONTIGUOUS | (_WRITABLE if item.role != "in" else 0)
        got = self.new(f"call i32 @PyObject_GetBuffer(ptr {value}, ptr {view}, i32 {flags})")
        self.need_equal("i32", got, 0)
        self._hold(f"call void @PyBuffer_Release(ptr {view})")
        if item not in laid:  # a class says all of this
            self._check_type(item, view)
        address = self.field(view, "ptr", 0)
        start = self.new(f"ptrtoint ptr {address} to i64")
        if item.dtype.nbytes > 1:
            self.need_equal("i64", self.new(f"and i64 {start}, {item.dtype.nbytes - 1}"), 0)
        self.addresses.append((item, start, self.field(view, "i64", 2)))
        self.emit(f"store ptr {address}, ptr {place}")

    def _check_type(self, item: Tensor, view: str) -> None:
        text = self.field(view, "ptr", 6)
        first = self.new(f"load i8, ptr {text}")
        codes = [ord(code) for code in _FORMATS[item.dtype.name]]
        fits = self.new(f"icmp eq i8 {first}, {codes[0]}")
        for code in codes[1:]:
            other = self.new(f"icmp eq i8 {first}, {code}")
            fits = self.new(f"or i1 {fits}, {other}")
        self.need(fits)
        second = self.new(f"getelementptr i8, ptr {text}, i64 1")
        self.need_equal("i8", self.new(f"load i8, ptr {second}"), 0)
        self.need_equal("i64", self.field(view, "i64", 3), item.dtype.nbytes)
        self.need_equal("i32", self.field(view, "i32", 5), len(item.shape))
        shape = self.field(view, "ptr", 7)
        for number, extent in enumerate(item.shape):
            size = self.new(
                f"load i64, ptr {self.new(f'getelementptr i64, ptr {shape}, i64 {number}')}"
            )
            self._extent(extent, size)

    def _extent(self, extent: int | Expression, size: str) -> None:
        if isinstance(extent, int):
            self.need_equal("i64", size, extent)
            return
        assert isinstance(extent, Variable)
        if extent in self.sizes:
            self.need_equal("i64", size, self.sizes[extent])
            return
        self.sizes[extent] = size
        if extent.multiple > 1:
            self.need_equal("i64", self.new(f"urem i64 {size}, {extent.multiple}"), 0)

    def _scalar(self, item: Variable, value: str, place: str) -> None:
        kind = self.new(f"load ptr, ptr {self.new(f'getelementptr i8, ptr {value}, i64 8')}")
        if item.dtype is boolean:
            self.need_equal("ptr", kind, "@PyBool_Type")
            holds = self.new(f"icmp eq ptr {value}, @_Py_TrueStruct")
            self.emit(f"store i8 {self.new(f'zext i1 {holds} to i8')}, ptr {place}")
        elif item.dtype.is_float:
            self.need_equal("ptr", kind, "@PyFloat_Type")
            number = self.new(f"call double @PyFloat_AsDouble(ptr {value})")
            if item.dtype is f64:
                self.emit(f"store double {number}, ptr {place}")
                return
            # What overflows f32 is refused, so the bounds are checked; infinities and NaN pass.
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
            self.emit(f"store i{item.dtype.bits} {self._narrow(number, item.dtype)}, ptr {place}")

    def _integer(self, dtype: DType, number: str) -> None:
        if dtype.bits < 64:
            low = self.new(f"icmp sge i64 {number}, {dtype.minimum}")
            high = self.new(f"icmp sle i64 {number}, {dtype.maximum}")
            self.need(self.new(f"and i1 {low}, {high}"))
        elif dtype.kind == "uint":
            self.need(self.new(f"icmp sge i64 {number}, 0"))

    def _narrow(self, number: str, dtype: DType) -> str:
        return number if dtype.bits == 64 else self.new(f"trunc i64 {number} to i{dtype.bits}")

    def _output(self, item: Tensor, number: int, given: str) -> str:
        """The array that `out=` gives, or a new one; this function owns a reference to it."""
        if given != "false":
            self.emit(f"br i1 {given}, label %given, label %allocate")
            self.start("given")
            place = self.new("getelementptr ptr, ptr %args, i64 %count")
            array = self.new(f"load ptr, ptr {place}")
            self.emit(f"call void @Py_IncRef(ptr {array})")
            self.emit(f"store ptr {array}, ptr %made{number}")
            self.emit("br label %placed")
            self.start("allocate")
        shape = self.new(f"call ptr @PyTuple_New(i64 {len(item.shape)})")
        self.need(self.new(f"icmp ne ptr {shape}, null"))
        for index, extent in enumerate(item.shape):
            size = extent if isinstance(extent, int) else self.sizes.get(extent)  # type: ignore[arg-type]
            if size is None:
                size = 0
                self.emit(f"call void @Py_DecRef(ptr {shape})")
                self.need("false")
            made = self.new(f"call ptr @PyLong_FromLongLong(i64 {size})")
            self.new(f"call i32 @PyTuple_SetItem(ptr {shape}, i64 {index}, ptr {made})")
        self.emit(f"store ptr {shape}, ptr {self.new('getelementptr ptr, ptr %pair, i64 1')}")
        kind = self.context(len(CONTEXT) + number)
        self.emit(f"store ptr {kind}, ptr {self.new('getelementptr ptr, ptr %pair, i64 2')}")
        operands = self.new("getelementptr ptr, ptr %pair, i64 1")
        empty = self.context(CONTEXT.index("empty"))
        fresh = self.new(
            f"call ptr @PyObject_VectorcallDict(ptr {empty}, ptr {operands}, i64 {_TWO_OPERANDS}, ptr null)"
        )
        self.emit(f"call void @Py_DecRef(ptr {shape})")
        self.need(self.new(f"icmp ne ptr {fresh}, null"))
        self.emit(f"store ptr {fresh}, ptr %made{number}")
        if given != "false":
            self.emit("br label %placed")
            self.start("placed")
        array = self.new(f"load ptr, ptr %made{number}")
        self._hold(f"call void @Py_DecRef(ptr {array})")
        return array

    def _hold(self, release: str) -> None:
        """From now on a failure has this to do first."""
        self.names += 1
        label = f"fail{self.names}"
        self.releases.append((label, release, self.failing))
        self.failing = label

    def _overlaps(self) -> None:
        for number, (first, a, a_size) in enumerate(self.addresses):
            for second, b, b_size in self.addresses[number + 1 :]:
                if first.role == "in" and second.role == "in":
                    continue
                before = self.new(f"icmp ule i64 {self.new(f'add i64 {a}, {a_size}')}, {b}")
                after = self.new(f"icmp ule i64 {self.new(f'add i64 {b}, {b_size}')}, {a}")
                self.need(self.new(f"or i1 {before}, {after}"))

    def _run(self, items: int) -> None:
        status = self.new(f"getelementptr i64, ptr %words, i64 {items}")
        self.emit(f"store i64 0, ptr {status}")
        signed = self.new("call i64 @count(ptr %words)")
        share = self.new(f"icmp sgt i64 {signed}, 0")
        blocks = self.new(f"call i64 @llvm.abs.i64(i64 {signed}, i1 false)")
        run = self.context(CONTEXT.index("run"))
        state = self.new("call ptr @PyEval_SaveThread()")
        result = self.new(
            f"call i32 {run}(ptr @job, i64 {blocks}, ptr %words, i64 {self.scratch}, i1 {share})"
        )
        self.emit(f"call void @PyEval_RestoreThread(ptr {state})")
        self.need_equal("i32", result, 0)
        self._fail_if(self.new(f"load i64, ptr {status}"))

    def _fail_if(self, number: str) -> None:
        """What `failed` raises for the number of an assertion; 0 is none."""
        fine = self.new(f"icmp eq i64 {number}, 0")
        self.emit(f"br i1 {fine}, label %fine, label %wrong")
        self.start("wrong")
        made = self.new(f"call ptr @PyLong_FromLongLong(i64 {number})")
        self.emit(f"store ptr {made}, ptr {self.new('getelementptr ptr, ptr %pair, i64 1')}")
        operands = self.new("getelementptr ptr, ptr %pair, i64 1")
        failed = self.context(CONTEXT.index("failed"))
        self.new(
            f"call ptr @PyObject_VectorcallDict(ptr {failed}, ptr {operands}, i64 {_ONE_OPERAND}, ptr null)"
        )
        self.emit(f"call void @Py_DecRef(ptr {made})")
        for _, release, _ in reversed(self.releases):
            self.emit(release)
        self.emit("ret ptr null")
        self.start("fine")

    def _result(self, outputs: Sequence[Tensor]) -> None:
        made = [self.new(f"load ptr, ptr %made{number}") for number in range(len(outputs))]
        if len(made) == 1:
            self.emit(f"ret ptr {made[0]}")
            return
        if not made:
            self.emit("call void @Py_IncRef(ptr @_Py_NoneStruct)")
            self.emit("ret ptr @_Py_NoneStruct")
            return
        result = self.new(f"call ptr @PyTuple_New(i64 {len(made)})")
        for number, array in enumerate(made):
            self.new(f"call i32 @PyTuple_SetItem(ptr {result}, i64 {number}, ptr {array})")
        self.emit(f"ret ptr {result}")

    def _slow(self) -> Iterator[str]:
        for label, release, following in reversed(self.releases):
            yield f"{label}:"
            yield f"  {release}"
            yield f"  br label %{following}"
        yield "slow:"
        yield _ASK
