"""Our `dataclass` makes the classes that the standard one makes."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from taskc.dataclass import dataclass

PACKAGE = Path(__file__).parent.parent / "taskc"
Decorator = Callable[..., Callable[[type], type]]
OPTIONS = [
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"slots": True, "eq": False, "repr": False},
    {"frozen": True, "slots": True, "kw_only": True},
]


def classes(decorator: Decorator, **options: bool) -> tuple[type, type]:
    """A class with fields of all kinds, and one that inherits them."""

    @decorator(**options)
    class Base:
        """A base class."""

        shared: ClassVar[int] = 7
        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list)
        place: int = field(default=0, compare=False, repr=False, kw_only=True)

    @decorator(**options)
    class Derived(Base):
        b: str = "other"
        d: tuple[Any, ...] = ()
        twice: int = field(init=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", 2 * self.a)

    return Base, Derived


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((), {"a": 1}),
    ((1, "x", [2]), {"place": 5}),
    ((), {"a": 2, "b": "x", "c": [2], "place": 6}),
    ((), {}),
    ((1,), {"a": 1}),
    ((1, "x", [2], (), 5, 6), {}),
    ((1,), {"unknown": 1}),
]


def outcome(function: Callable[[], Any]) -> Any:
    """A value, or the class and text of an exception."""
    try:
        return function()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_classes_behave_as_the_standard_ones(options: dict[str, bool]) -> None:
    for ours, theirs in zip(
        classes(dataclass, **options), classes(dataclasses.dataclass, **options), strict=True
    ):
        assert outcome(lambda: ours.__match_args__) == outcome(lambda: theirs.__match_args__)
        described = [
            [(one.name, one.type, one.default, one.compare, one.kw_only) for one in dataclasses.fields(cls)]
            for cls in (ours, theirs)
        ]  # fmt: skip
        assert described[0] == described[1]
        instances = []
        for arguments, keywords in CALLS:
            one, other = (
                outcome(lambda: cls(*copy.deepcopy(arguments), **copy.deepcopy(keywords)))
                for cls in (ours, theirs)
            )
            if not isinstance(other, theirs):
                assert one == other
                continue
            assert dataclasses.asdict(one) == dataclasses.asdict(other)
            assert hasattr(one, "__dict__") == hasattr(other, "__dict__")
            if options.get("repr", True):
                assert repr(one) == repr(other)
            instances.append((one, other))
            changed = dataclasses.replace(one, a=5), dataclasses.replace(other, a=5)
            assert dataclasses.asdict(changed[0]) == dataclasses.asdict(changed[1])
            instances.append(changed)
            instances.append((copy.copy(one), copy.copy(other)))
        assert instances
        for (one, other), (another, yet_another) in itertools.product(instances, repeat=2):
            assert (one == another) == (other == yet_another)
            assert one != other
        # A list isn't hashed, and no instance is that isn't frozen.
        for one, other in instances:
            hashes = outcome(lambda: hash(one)), outcome(lambda: hash(other))
            assert isinstance(hashes[0], int) == isinstance(hashes[1], int)
            if isinstance(hashes[1], tuple):
                assert hashes[0] == hashes[1]
            assign = [outcome(lambda: setattr(each, "a", 3)) for each in (one, other)]
            assert assign[0] == assign[1]
            delete = [outcome(lambda: delattr(each, "a")) for each in (one, other)]
            assert delete[0] == delete[1]


@dataclass(frozen=True, slots=True)
class Node:
    value: int
    inner: Node | None = None
    loc: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True, repr=False)
class Own:
    """A class whose own methods stay."""

    value: int

    def __repr__(self) -> str:
        return f"<{self.value}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 3


def test_hashes_and_equality_leave_out_what_is_not_compared() -> None:
    one, other = Node(1, Node(2), loc="here"), Node(1, Node(2), loc="there")
    assert one == other
    assert hash(one) == hash(other) == hash((1, Node(2)))
    assert one != Node(1, Node(3))
    assert one.__eq__(1) is NotImplemented


def test_methods_of_the_class_stay() -> None:
    one = Own(1)
    assert (repr(one), one == Own(2), hash(one)) == ("<1>", True, 3)


def test_frozen_instances_are_pickled_and_matched() -> None:
    node = Node(1, Node(2), "here")
    back = pickle.loads(pickle.dumps(node))
    assert (back, back.loc) == (node, "here")
    match back:
        case Node(value, Node(inner)):
            assert (value, inner) == (1, 2)
        case _:
            pytest.fail("it doesn't match")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'value'"):
        node.value = 2  # type: ignore[misc]


def test_a_class_that_contains_itself_has_a_text() -> None:
    node = Node(1)
    object.__setattr__(node, "inner", node)
    assert repr(node) == "Node(value=1, inner=...)"


def test_a_method_is_compiled_at_its_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def counted(*arguments: Any) -> None:
        compiled.append(arguments[0])
        exec(*arguments)

    monkeypatch.setattr("taskc.dataclass.exec", counted, raising=False)
    derived = classes(dataclass, frozen=True, slots=True)[1]
    assert compiled == []
    assert derived(1) != derived(2)
    assert derived(1) == derived(1)
    assert [text.split("(")[0] for text in compiled] == ["def __init__", "def __eq__"]


def test_no_class_of_the_package_has_the_standard_decorator() -> None:
    imported = re.compile(
        r"from dataclasses import .*\bdataclass\b|^import dataclasses", re.MULTILINE
    )
    paths = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if imported.search(path.read_text("utf-8"))
    ]
    assert paths == ["dataclass.py"]
