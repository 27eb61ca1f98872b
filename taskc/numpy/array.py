"""`tc.array`: arrays whose operations are noted, and run as one program once a value is needed.

    Array   one value of a segment, or a known one
    View    a part, transposition or reshape of another array: reading it reads that one, and so does writing

Writing makes a new value: the array takes it over, and views read from it from then on. An array that NumPy would
return as a scalar has no axes, and `+=` makes a new one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import ref

import numpy as np

from taskc.dataclass import dataclass
from taskc.numpy import rows
from taskc.numpy.ending import end
from taskc.numpy.rows import SUPPORTED, Row, ufunc_row
from taskc.numpy.segment import MOST, UNROLLED, Segment, Site, here
from taskc.numpy.shapes import Part, Shape, axes_of, broadcast, part_of, reshaped

Known: TypeAlias = "np.ndarray[Any, Any]"
new = object.__new__
frame_at = sys._getframe


class UnsupportedError(Exception):
    """A call that isn't noted: NumPy computes it."""


# Reading and writing where the index has arrays: `taskc/numpy/indexing.py` puts them here.
advanced: dict[str, Callable[..., Any]] = {}


class Array:
    """An array of the array API standard whose operations are noted.

    _segment  where its value is noted, under `_number`; None if it is known
    _value    the value, if it is known; nobody else writes to its memory
    """

    __array_priority__ = 1000
    __slots__ = ("__weakref__", "_dtype", "_number", "_segment", "_shape", "_value")
    _dtype: np.dtype[Any]
    _number: int
    _segment: Segment | None
    _shape: Shape
    _value: Known

    # --- what is known without a value ---

    @property
    def shape(self) -> Shape:
        return self._shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        replace(self, note_reshape(self, reshaped(self._shape, shape)))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def size(self) -> int:
        return int(np.prod(self._shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        return self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def device(self) -> str:
        return "cpu"

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of unsized object")
        return self._shape[0]

    # --- values ---

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Known:
        value = known(self, "np.asarray")
        if dtype is not None and np.dtype(dtype) != value.dtype:
            return cast("Known", value.astype(dtype))
        if copy:
            return cast("Known", value.copy())
        return _read_only(value)

    def __dlpack__(self, **options: Any) -> Any:
        return known(self, "DLPack").copy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __bool__(self) -> bool:
        return bool(known(self, "bool"))

    def __float__(self) -> float:
        return float(known(self, "float"))

    def __int__(self) -> int:
        return int(known(self, "int"))

    def __complex__(self) -> complex:
        return complex(known(self, "complex"))

    def __index__(self) -> int:
        return known(self, "index").__index__()

    def __repr__(self) -> str:
        return repr(known(self, "print"))

    def __str__(self) -> str:
        return str(known(self, "print"))

    def __format__(self, form: str) -> str:
        value = known(self, "format")
        return format(value if self._shape else value[()], form)

    def __iter__(self) -> Iterator[Array]:
        return iter([self[place] for place in range(len(self))])

    def __contains__(self, value: object) -> bool:
        return value in known(self, "in")

    def __reduce__(self) -> Any:
        return array, (known(self, "pickle").copy(),)

    def __copy__(self) -> Array:
        return copied(self)

    def __deepcopy__(self, memo: object) -> Array:
        return copied(self)

    def __getattr__(self, name: str) -> Any:
        """NumPy's other attributes and methods: of the value, which is needed."""
        if name.startswith("__") or not hasattr(np.ndarray, name):
            raise AttributeError(f"an array has no attribute '{name}'", name=name, obj=self)
        value = known(self, name)
        if not callable(attribute := getattr(value, name)):
            return wrapped(attribute)

        def method(*args: Any, **options: Any) -> Any:
            whole = value.copy()
            result = getattr(whole, name)(
                *map(plain, args), **{n: plain(x) for n, x in options.items()}
            )
            if name in _WRITES:
                replace(self, adopted(whole))
            return wrapped(result)

        return method

    # --- parts ---

    def __getitem__(self, key: Any) -> Array:
        key = key if type(key) is tuple else (key,)
        if (
            self._segment is None
            and type(self) is Array
            and len(key) == len(self._shape)
            and here.recorder is None
        ):
            for entry in key:
                if type(entry) is not int and not isinstance(entry, np.integer):
                    break
            else:  # an element of a known array needs no program
                return adopted(np.asarray(self._value[key]))
        part = part_of(self._shape, key)
        if part is None:
            chosen: Array = advanced["read"](self, key)
            return chosen
        if part.is_element:
            if self._dtype not in SUPPORTED:
                return adopted(np.asarray(known(self, "NumPy")[key]))
            return note(rows.part_row(part.pattern, self._dtype), (self,), (), part.numbers)
        return view(self, part, part.shape)

    def __setitem__(self, key: Any, value: Any) -> None:
        key = key if type(key) is tuple else (key,)
        part = part_of(self._shape, key)
        if part is None:
            advanced["write"](self, key, value)
            return None
        if part.is_element and _wrote_element(self, key, value):
            return None
        value = as_operand(value, self._dtype)
        if part.is_element and value._shape and not (value.size == 1 and self._dtype.kind == "b"):
            raise ValueError("setting an array element with a sequence.")
        if broadcast(part.shape, value._shape) != part.shape:
            while value.ndim > len(part.shape) and value._shape[0] == 1:
                value = value[0]
            if broadcast(part.shape, value._shape) != part.shape:
                raise ValueError(
                    f"could not broadcast input array from shape {value._shape} into shape {part.shape}"
                )
        if _is_whole(part, self._shape):
            return replace(self, fitted(value, self._shape, self._dtype))
        return replace(self, _updated(self, part, value))

    @property
    def T(self) -> Array:  # noqa: N802
        return self.transpose()

    @property
    def mT(self) -> Array:  # noqa: N802
        return self.swapaxes(-1, -2)

    def transpose(self, *axes: Any) -> Array:
        rank = len(self._shape)
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        order = tuple(range(rank))[::-1] if order is None or not axes else tuple(order)
        places = np.lib.array_utils.normalize_axis_tuple(order, rank)
        if len(places) != rank:
            raise ValueError("axes don't match array")
        return view(self, Order(places), tuple([self._shape[axis] for axis in places]))

    def swapaxes(self, one: int, other: int) -> Array:
        order = [*range(len(self._shape))]
        order[one], order[other] = order[other], order[one]
        return self.transpose(order)

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Array:
        if order != "C":
            whole_array: Any = known(self, "reshape")
            return adopted(np.array(whole_array.reshape(*shape, order=order), order="C"))
        wanted = shape[0] if len(shape) == 1 else shape
        whole = reshaped(self._shape, wanted)
        if isinstance(self, View) and not _keeps_memory(self, whole):
            return note_reshape(self, whole)
        return view(self, Reshape(whole), whole)

    def ravel(self, order: str = "C") -> Array:
        if isinstance(self, View) and not _memory_like(self).flags.c_contiguous:
            return copied(self).reshape(-1, order=order)
        return self.reshape(-1, order=order)

    def flatten(self, order: str = "C") -> Array:
        return copied(self.reshape(-1, order=order))

    def squeeze(self, axis: Any = None) -> Array:
        shape = self._shape
        axes = (
            axes_of(axis, len(shape))
            if axis is not None
            else [a for a, n in enumerate(shape) if n == 1]
        )
        if any(shape[a] != 1 for a in axes):
            raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
        return self.reshape(tuple([n for a, n in enumerate(shape) if a not in axes]))

    # --- conversions ---

    def astype(self, dtype: Any, *, copy: bool = True, **options: Any) -> Array:
        dtype = np.dtype(dtype)
        if dtype == self._dtype:
            return copied(self) if copy else self
        return fitted(self, self._shape, dtype)

    def copy(self, order: str = "C") -> Array:
        return copied(self)

    def item(self, *place: int) -> Any:
        return known(self, "item").item(*place)

    def tolist(self) -> Any:
        return known(self, "tolist").tolist()

    def fill(self, value: Any) -> None:
        self[...] = value

    def to_device(self, device: str, /, *, stream: object = None) -> Array:
        if device != "cpu":
            raise ValueError(f"arrays are on the cpu, not on {device!r}")
        return self

    if TYPE_CHECKING:  # set below, and in taskc/numpy/functions.py

        def _operate(self, other: Any) -> Array: ...
        def _apply(self) -> Array: ...
        def _fold(self, *args: Any, **options: Any) -> Array: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _operate
        __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _operate
        __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _operate
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _operate
        __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _operate
        __lt__ = __le__ = __gt__ = __ge__ = _operate
        __neg__ = __pos__ = __abs__ = __invert__ = _apply
        all = any = argmax = argmin = clip = cumprod = cumsum = dot = max = mean = _fold
        min = prod = round = std = sum = take = var = _fold


_WRITES = {"partition", "put", "resize", "sort", "byteswap", "setfield"}


class View(Array):
    """An array that is read from another one, and written through to it.

    _how   the part, order or shape
    _seen  the value of the base from which it was read last
    """

    __slots__ = ("_base", "_how", "_seen")
    _base: Array
    _how: How
    _seen: object


# --- Views ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """A transposition: the axes of the base, in the view's order."""

    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reshape:
    shape: Shape


How: TypeAlias = "Part | Order | Reshape"


def view(base: Array, how: How, shape: Shape) -> Array:
    seen = new(View)
    seen._base, seen._how, seen._shape, seen._dtype = base, how, shape, base._dtype
    seen._seen, seen._segment, seen._number = None, None, 0
    return seen


def _read(self: View) -> None:
    """Note the view's value, unless that of its base is still the same."""
    base, how = self._base, self._how
    if isinstance(base, View):
        _read(base)
    current = (base._segment, base._number) if base._segment is not None else base._value
    if self._segment is here.segment and _is_same(self._seen, current):
        return
    numbers: tuple[int, ...] = ()
    match how:
        case Part():
            row, numbers = rows.part_row(how.pattern, base._dtype), how.numbers
        case Order():
            row = rows.transpose_row(how.axes, base._dtype)
        case Reshape():
            row, numbers = rows.reshape_row(base._dtype), how.shape
    # It belongs to the operation that reads it: no segment ends between the two.
    value = _noted(here.segment, row, (base,), self._shape, numbers, site_of(frame_at(1)))
    self._segment, self._number, self._seen = value._segment, value._number, current


def _is_same(one: object, other: object) -> bool:
    return one == other if type(one) is tuple and type(other) is tuple else one is other


def _keeps_memory(self: View, shape: Shape) -> bool:
    """Whether NumPy's reshape of this part would share its memory."""
    try:
        _memory_like(self).reshape(shape, copy=False)
    except ValueError:
        return False
    return True


def _memory_like(self: View) -> Known:
    """Memory without values, in which the view lies as NumPy's would."""
    base: Array = self
    while isinstance(base, View):
        base = base._base
    return _shared(self, np.empty(base._shape, np.int8))


def _part_of_known(self: View) -> Known | None:
    """The view of a known base's memory."""
    base: Array = self
    while isinstance(base, View):
        base = base._base
    return None if base._segment is not None else _shared(self, base._value)


def _shared(self: View, whole: Known) -> Known:
    """The view of memory like the base's."""
    base = self._base
    value = _shared(base, whole) if isinstance(base, View) else whole
    match self._how:
        case Part(pattern=pattern, numbers=numbers):
            key = (*map(_entry, pattern, numbers[::2], numbers[1::2]), ...)
            return cast("Known", value[key])
        case Order(axes=axes):
            return cast("Known", value.transpose(axes))
        case Reshape(shape=shape):
            return value.reshape(shape)


def _entry(kind: str | int, first: int, count: int) -> Any:
    if kind == "new":
        return None
    if isinstance(kind, str):
        return first
    stop = first + count * kind
    return slice(first, None if stop < 0 else stop, kind)


def note_reshape(x: Array, shape: Shape) -> Array:
    if x._dtype not in SUPPORTED:
        return adopted(known(x, "NumPy").reshape(shape))
    return note(rows.reshape_row(x._dtype), (x,), shape, shape)


def replace(self: Array, value: Array) -> None:
    """Give an array another value of its shape and type; a view writes through to its base."""
    if not isinstance(self, View):
        if isinstance(value, View):
            value = copied(value)
        self._shape = value._shape
        self._segment, self._number = value._segment, value._number
        self._value = value._value if value._segment is None else _WAITING
        if value._segment is not None:
            value._segment.watched.append(ref(self))
        return
    base, how = self._base, self._how
    match how:
        case Part():
            value = _updated(base, how, value)
        case Order(axes=axes):
            back = tuple([axes.index(axis) for axis in range(len(axes))])
            value = copied(value.transpose(back))
        case Reshape():
            value = note_reshape(value, base._shape)
    replace(base, value)


def _updated(base: Array, part: Part, value: Array) -> Array:
    """The base with a part replaced; a leaf that nobody else has is written in place."""
    if base._dtype not in SUPPORTED or value._dtype not in SUPPORTED:
        whole = known(base, "NumPy").copy()
        key = (*map(_entry, part.pattern, part.numbers[::2], part.numbers[1::2]), ...)
        whole[key] = plain(value)
        return adopted(whole)
    row = rows.update_row(part.pattern, base._dtype)
    result = note(row, (base, value), base._shape, part.numbers)
    assert result._segment is not None
    number = result._segment.operations[-1][1][0]
    if number < 0:
        result._segment.updated.add(~number)
    return result


_WAITING = np.empty(0)


def _wrote_element(self: Array, key: Any, value: Any) -> bool:
    """Write an element of a known array at once, if its memory is its own."""
    if type(self) is not Array or self._segment is not None or here.recorder is not None:
        return False
    if isinstance(value, Array):
        if value._segment is not None or type(value) is View:
            return False
        value = value._value
    if sys.getrefcount(self._value) > 2 or not self._value.flags.writeable:
        self._value = self._value.copy()
    self._value[key] = value
    return True


def _is_whole(part: Part, shape: Shape) -> bool:
    return part.shape == shape and all(kind == 1 for kind in part.pattern)


# --- Values -----------------------------------------------------------------------------------


def known(self: Array, reason: str) -> Known:
    """The value; what was noted runs if it has to."""
    if isinstance(self, View):
        base: Array = self
        while isinstance(base, View):
            base = base._base
        known(base, "a part of it")
        value = _part_of_known(self)
        assert value is not None
        return value
    if self._segment is not None:
        end(self._segment, reason)
    if here.recorder is not None:
        here.recorder.read(self._value, reason)
    return self._value


def adopted(value: Known) -> Array:
    """An array of memory that nobody else writes."""
    own = new(Array)
    own._shape, own._dtype, own._segment, own._number, own._value = (
        value.shape,
        value.dtype,
        None,
        0,
        value,
    )
    return own


def array(
    value: Any, dtype: Any = None, *, copy: bool | None = True, order: Any = None, ndmin: int = 0
) -> Array:
    """An array of a copy of a value: an array of any library, nested lists or a number.

    order  is NumPy's, and ignored: arrays lie row by row
    """
    if isinstance(value, Array):
        result = value if dtype is None else value.astype(dtype, copy=False)
        result = copied(result) if copy is not False and result is value else result
        return (
            result
            if result.ndim >= ndmin
            else result.reshape((1,) * (ndmin - result.ndim) + result._shape)
        )
    return adopted(np.array(_without_arrays(value), dtype, copy=True, order="C", ndmin=ndmin))


def _without_arrays(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return (
            type(value)([_without_arrays(part) for part in value])
            if type(value) in (list, tuple)
            else value
        )
    return known(value, "list") if isinstance(value, Array) else value


def copied(self: Array) -> Array:
    """An array of the same value, which is written apart."""
    if self._dtype not in SUPPORTED:
        return adopted(np.array(known(self, "NumPy"), order="C"))
    if isinstance(self, View):
        _read(self)
    if self._segment is None:
        return adopted(self._value)
    own = new(Array)
    own._shape, own._dtype = self._shape, self._dtype
    own._segment, own._number = self._segment, self._number
    self._segment.watched.append(ref(own))
    return own


def _read_only(value: Known) -> Known:
    shared: Known = value.view()
    shared.flags.writeable = False
    return shared


def plain(value: Any) -> Any:
    """NumPy's values in place of arrays, also in lists, tuples and dictionaries."""
    if isinstance(value, Array):
        return _read_only(known(value, "NumPy"))
    if type(value) in (list, tuple):
        return type(value)([plain(part) for part in value])
    if type(value) is dict:
        return {name: plain(part) for name, part in value.items()}
    return value


def wrapped(value: Any) -> Any:
    """Arrays in place of those of NumPy."""
    if isinstance(value, np.ndarray):
        if type(value) is not np.ndarray:
            return value
        return adopted(
            value if value.base is None and value.flags.c_contiguous else value.copy(order="C")
        )
    if isinstance(value, np.generic):
        return adopted(np.asarray(value))
    if type(value) in (list, tuple):
        return type(value)([wrapped(part) for part in value])
    return value


# --- Noting -----------------------------------------------------------------------------------


def number_in(segment: Segment, x: Array) -> int:
    """The number of an operand in a segment."""
    if isinstance(x, View):
        _read(x)
        if x._segment is segment:
            return x._number
    elif x._segment is segment:
        return x._number
    if x._segment is not None:  # another thread's
        end(x._segment, "thread")
    value = x._value
    if not value.flags.c_contiguous:
        value = x._value = np.ascontiguousarray(value)
    return segment.leaf(value)


def note(row: Row, inputs: tuple[Array, ...], shape: Shape, numbers: tuple[int, ...] = ()) -> Array:
    """Append an operation to the thread's segment."""
    site = site_of(frame_at(1))
    return _noted(opened(site), row, inputs, shape, numbers, site)


def _noted(
    segment: Segment,
    row: Row,
    inputs: tuple[Array, ...],
    shape: Shape,
    numbers: tuple[int, ...],
    site: Site,
) -> Array:
    operands = tuple([number_in(segment, x) for x in inputs])
    return appended(segment, row, operands, shape, numbers, site)


def site_of(frame: Any) -> Site:
    """The user's line that a frame was called from."""
    while frame.f_globals is _own or frame.f_globals.get("__package__") == "taskc.numpy":
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


_own = globals()


def opened(site: Site) -> Segment:
    """The thread's segment; one that has come around a loop ends before the first operation of the loop's body."""
    segment = here.segment
    count = len(segment.operations)
    if count >= UNROLLED and (
        segment.sites[0] == site
        or (count % UNROLLED == 0 and site in segment.sites)
        or count >= MOST
    ):
        end(segment, "loop")
        segment = here.segment
    return segment


def appended(
    segment: Segment,
    row: Row,
    operands: tuple[int, ...],
    shape: Shape,
    numbers: tuple[int, ...],
    site: Site,
) -> Array:
    own = new(Array)
    own._shape, own._dtype, own._segment = shape, row.dtype, segment
    if numbers:
        segment.numbers.extend(numbers)
    operations = segment.operations
    own._number = len(operations)
    operations.append((row, operands, len(numbers)))
    segment.watched.append(ref(own))
    segment.sites.append(site)
    return own


_WEAK = {int: int, float: float, bool: np.dtype(bool), complex: complex}


def _operand(x: Any, weak: bool) -> tuple[Any, Any]:
    """An operand and its type for promotion."""
    if isinstance(x, Array):
        return x, x._dtype
    kind = type(x)
    if weak and kind in _WEAK:
        return x, _WEAK[kind]
    if isinstance(x, np.ndarray | np.generic | list | tuple | int | float | complex):
        own = array(x)
        return own, own._dtype
    raise TypeError(f"an operand is {kind.__name__}, and no array or number")


def elements(ufunc: np.ufunc, *given: Any) -> Array:
    """A function of elements, noted; by NumPy if there is no row, or if all operands are known and have no axes."""
    operands, types = zip(*[_operand(x, True) for x in given], strict=True)
    row = ufunc_row(ufunc, types)
    if row is None or all(not isinstance(x, Array) or _is_known_scalar(x) for x in operands):
        return cast("Array", wrapped(ufunc(*map(plain, operands))))
    exponent = operands[-1]
    if (
        ufunc is np.power
        and type(exponent) is int
        and 2 <= exponent <= 4
        and row.dtype == operands[0]._dtype
    ):
        operands, row = operands[:1], rows.power_row(exponent, row.dtype)
    numbers = [x for x in operands if not isinstance(x, Array)]
    if numbers:
        inputs = ufunc.resolve_dtypes((*types, None))[:-1]
        operands = tuple(
            [
                x if isinstance(x, Array) else adopted(np.asarray(x, to))
                for x, to in zip(operands, inputs, strict=False)
            ]
        )
    shape = broadcast(*[x._shape for x in operands])
    return note(row, operands, shape)


def _is_known_scalar(x: Array) -> bool:
    return not x._shape and x._segment is None and type(x) is Array and here.recorder is None


def as_operand(x: Any, dtype: np.dtype[Any]) -> Array:
    """A value that is to be written to an array of this type."""
    return (
        x
        if isinstance(x, Array)
        else adopted(np.array(x, dtype=dtype if not isinstance(x, np.ndarray) else None, order="C"))
    )


def fitted(x: Array, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """The value in a shape to which it broadcasts, and a type."""
    if dtype not in SUPPORTED or x._dtype not in SUPPORTED:
        return adopted(np.array(np.broadcast_to(plain(x), shape), dtype, order="C"))
    if x._shape != shape:
        x = note(rows.broadcast_row(x._dtype), (x,), shape, shape)
    return x if x._dtype == dtype else note(rows.cast_row(dtype), (x,), shape)


def written(out: Any, result: Array) -> Any:
    """Write a result to `out`, which is returned."""
    if not np.can_cast(result._dtype, out.dtype, "same_kind"):
        raise TypeError(
            f"cannot cast ufunc output from {result._dtype!r} to {out.dtype!r} with casting rule 'same_kind'"
        )
    if result._shape != tuple(out.shape):
        raise ValueError(
            f"non-broadcastable output operand with shape {out.shape} doesn't match the broadcast shape {result._shape}"
        )
    if isinstance(out, Array):
        replace(out, fitted(result, out._shape, out._dtype))
    else:
        out[...] = known(result, "out")
    return out
