"""`tc.array`: arrays whose operations are noted, and run as one program once a value is needed.

    Array   one value of a segment, or a known one
    View    a part, transposition or reshape of another array: reading it reads that one, and so does writing

Writing makes a new value: the array takes it over, and views read from it from then on. An array that NumPy would
return as a scalar has no axes, and `+=` makes a new one. Operators and methods are set by the modules above this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np

from taskc.dataclass import dataclass
from taskc.numpy.ending import end
from taskc.numpy.segment import Segment, here, recorders
from taskc.numpy.shapes import Part, Shape

Known: TypeAlias = "np.ndarray[Any, Any]"
Of = TypeVar("Of", bound="Callable[..., Any]")
new = object.__new__

# Elements up to which NumPy computes at once if all operands are known: noting costs more than that.
SMALL = 1 << 12
NUMBERS = frozenset({int, float, bool, complex, *np.sctypeDict.values()})


class Array:
    """An array of the array API standard whose operations are noted.

    _segment  where its value is noted, under `_number`; None if it is known
    _value    the value, if it is known, or None; nobody else writes to its memory
    """

    __array_priority__ = 1000
    __slots__ = ("__weakref__", "_dtype", "_number", "_segment", "_shape", "_value")
    _dtype: np.dtype[Any]
    _number: int
    _segment: Segment | None
    _shape: Shape
    _value: Known | None

    # --- what is known without a value ---

    @property
    def shape(self) -> Shape:
        return self._shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        self._set_shape(shape)

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

    def __iter__(self) -> Iterator[Any]:
        return iter([self[place] for place in range(len(self))])

    def __contains__(self, value: object) -> bool:
        return value in known(self, "in")

    def item(self, *place: int) -> Any:
        return known(self, "item").item(*place)

    def tolist(self) -> Any:
        return known(self, "tolist").tolist()

    def to_device(self, device: str, /, *, stream: object = None) -> Array:
        if device != "cpu":
            raise ValueError(f"arrays are on the cpu, not on {device!r}")
        return self

    if TYPE_CHECKING:  # set by the modules above

        def _set_shape(self, shape: Any) -> None: ...
        def __getitem__(self, key: Any) -> Any: ...
        def __setitem__(self, key: Any, value: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def _operate(self, other: Any) -> Array: ...
        def _apply(self) -> Array: ...
        def _change(self, *args: Any, **options: Any) -> Array: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _operate
        __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _operate
        __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _operate
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _operate
        __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _operate
        __lt__ = __le__ = __gt__ = __ge__ = _operate
        __neg__ = __pos__ = __abs__ = __invert__ = _apply
        astype = copy = flatten = ravel = reshape = squeeze = swapaxes = transpose = _change
        all = any = argmax = argmin = clip = cumprod = cumsum = dot = max = mean = _change
        min = prod = round = std = sum = take = var = _change


def method(of: Of) -> Of:
    """Make a function a method of arrays."""
    setattr(Array, of.__name__, of)
    return of


# --- Views ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """A transposition: the axes of the base, in the view's order."""

    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reshape:
    shape: Shape


How: TypeAlias = "tuple[Any, ...] | Order | Reshape"  # the first is a basic index


class View(Array):
    """An array that is read from another one, and written through to it.

    _how   the index, order or shape
    _part  of an index, once it was resolved
    _seen  the number of the base from which it was read last, in `_segment`
    """

    __slots__ = ("_base", "_how", "_part", "_seen")
    _base: Array
    _how: How
    _part: Part | None
    _seen: int

    @property
    def _value(self) -> Known | None:  # type: ignore[override]
        whole, how = self._base._value, self._how
        if whole is None:
            return None
        return whole[how] if type(how) is tuple else taken(whole, how)


def view(base: Array, how: How, shape: Shape, part: Part | None = None) -> View:
    own = new(View)
    own._base, own._how, own._part, own._shape, own._dtype = base, how, part, shape, base._dtype
    own._segment = None
    return own


def taken(whole: Known, how: How) -> Known:
    """NumPy's view of the memory of a base."""
    if type(how) is tuple:
        return cast("Known", whole[how])
    if isinstance(how, Order):
        return cast("Known", whole.transpose(how.axes))
    assert isinstance(how, Reshape)
    return whole.reshape(how.shape)


def root(x: Array) -> Array:
    """The array whose memory a view shows."""
    while isinstance(x, View):
        x = x._base
    return x


# --- Values -----------------------------------------------------------------------------------


def known(self: Array, reason: str) -> Known:
    """The value; what was noted runs if it has to."""
    if isinstance(self, View):
        known(root(self), "a part of it")
    elif self._segment is not None:
        end(self._segment, reason)
    value = self._value
    assert value is not None
    if here.recorder is not None and type(self) is Array:
        here.recorder.read(value, reason)
    return value


def small(x: Any) -> Any:
    """A known value of few elements, as NumPy takes it, or None."""
    if isinstance(x, Array):
        value = x._value
        return value if value is not None and value.size <= SMALL else None
    kind = type(x)
    return x if kind in NUMBERS or (kind is np.ndarray and x.size <= SMALL) else None


def small_values(given: Any) -> list[Any] | None:
    """The operands of NumPy's function, if it is to compute at once."""
    if recorders:
        return None
    values = []
    for x in given:
        value = small(x)
        if value is None:
            return None
        values.append(value)
    return values


def adopted(value: Known) -> Array:
    """An array of memory that nobody else writes."""
    own = new(Array)
    own._shape, own._dtype, own._segment, own._value = value.shape, value.dtype, None, value
    return own


def wrapped(value: Any) -> Any:
    """Arrays in place of those of NumPy."""
    if type(value) is np.ndarray:
        is_own = value.base is None and value.flags.c_contiguous and value.flags.writeable
        return adopted(value if is_own else value.copy(order="C"))
    if type(value) in (list, tuple):
        return type(value)([wrapped(part) for part in value])
    return value


def plain(value: Any) -> Any:
    """NumPy's values in place of arrays, also in lists, tuples and dictionaries."""
    if isinstance(value, Array):
        return _read_only(known(value, "NumPy"))
    if type(value) in (list, tuple):
        return type(value)([plain(part) for part in value])
    if type(value) is dict:
        return {name: plain(part) for name, part in value.items()}
    return value


def _read_only(value: Known) -> Known:
    shared: Known = value.view()
    shared.flags.writeable = False
    return shared
