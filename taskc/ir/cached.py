"""Properties that are computed once.

functools' have a lock before Python 3.12, which a child of a fork may find held by a thread that isn't there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

T = TypeVar("T")


if TYPE_CHECKING:  # pyright requires a protocol's property to be one
    cached_property = property
else:

    def cached_property(compute: Callable[[Any], T]) -> Cached[T]:
        return Cached(compute)


class Cached(Generic[T]):
    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Cached[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Cached[T] | T:
        if instance is None:
            return self
        made = instance.__dict__[self.name] = self.compute(instance)
        return made
