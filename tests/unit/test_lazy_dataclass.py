"""Dataclasses whose methods are compiled on use behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
import pickle
import re
from dataclasses import InitVar, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

import pytest

from klamm import lazy_dataclass
from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS: list[dict[str, bool]] = [
    {"frozen": True},
    {"frozen": True, "kw_only": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "slots": True, "kw_only": True, "eq": False},
    {"frozen": True, "slots": True, "kw_only": True, "order": True},
    {"slots": True},
    {"slots": True, "kw_only": True},
    {"slots": True, "kw_only": True, "eq": False},
]
"""The combinations of options in klamm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A dataclass at the top of a module, as pickle needs it."""

    topic: str
    partition: int = 0
    metadata: list[str] = field(default_factory=list, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderOffset(Offset):
    leader_epoch: int | None = None


@dataclass(frozen=True)
class LogDirectory:
    """A dataclass with a type that its module imports."""

    path: Path = Path("logs")


def example(decorate: Callable[..., Any], options: dict[str, bool]) -> Any:
    """Return a class with all kinds of fields."""

    @decorate(**options)
    class Example:
        """A class."""

        VERSION: ClassVar[int] = 1
        number: int
        name: str = "x"
        tags: list[str] = field(default_factory=list)
        cost: float = field(default=0.5, compare=False)
        hidden: str = field(default="s", repr=False)
        late: int = field(default=3, kw_only=True)

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError("number")

    return Example


@pytest.mark.parametrize("options", OPTIONS, ids=", ".join)
def test_methods_are_those_of_the_standard_library(options: dict[str, bool]) -> None:
    ours, standard = example(dataclass, options), example(dataclasses.dataclass, options)
    assert str(inspect.signature(ours)) == str(inspect.signature(standard))
    assert [(each.name, each.type, each.kw_only) for each in dataclasses.fields(ours)] == [
        (each.name, each.type, each.kw_only) for each in dataclasses.fields(standard)
    ]
    for outcome in (_outcomes, _comparisons, _changes):
        assert outcome(ours) == outcome(standard)


def _outcomes(cls: Any) -> list[str]:
    def outcome(action: Callable[[], object]) -> str:
        try:
            return repr(action())
        except (TypeError, ValueError) as error:
            return repr(error)

    one = cls(number=1)
    return [
        outcome(action)
        for action in (
            lambda: one,
            lambda: cls(number=2, name="y", tags=["a"], cost=1.0, hidden="t", late=4),
            lambda: cls(1, "y"),
            lambda: cls(name="y"),
            lambda: cls(number=-1),
            lambda: cls(number=1, other=2),
            lambda: (one.tags, cls(number=1).tags is one.tags, cls.VERSION),
            lambda: dataclasses.replace(one, name="z"),
            lambda: dataclasses.asdict(one),
            lambda: copy.deepcopy(cls(number=1, tags=["a"])),
        )
    ]


def _comparisons(cls: Any) -> list[object]:
    equal, other = [cls(number=1, tags=[], cost=cost) for cost in (1.0, 2.0)], cls(number=2, name="a")
    outcomes: list[object] = [equal[0] == equal[1], equal[0] == other, equal[0] != other, equal[0] == 1]
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        try:
            outcomes.append([compare(equal[0], equal[1]), compare(equal[0], other)])
        except TypeError:
            outcomes.append("not ordered")
    return [*outcomes, cls.__hash__ is None, cls.__hash__ is object.__hash__]


def _changes(cls: Any) -> list[object]:
    outcomes: list[object] = []
    changes: tuple[Callable[[Any], None], ...] = (
        lambda one: setattr(one, "name", "b"),
        lambda one: delattr(one, "name"),
    )
    for change in changes:
        one = cls(number=1)
        try:
            change(one)
        except dataclasses.FrozenInstanceError as error:
            outcomes.append(str(error))
        else:
            outcomes.append(getattr(one, "name", "deleted"))
    return outcomes


def test_equal_objects_have_equal_hashes() -> None:
    offsets = {Offset(topic="t"), Offset(topic="t", metadata=["not compared"]), Offset(topic="t", partition=1)}
    assert len(offsets) == 2


def test_subclass_inherits_the_fields_and_adds_its_own() -> None:
    offset = LeaderOffset(topic="t", leader_epoch=3)
    assert repr(offset) == "LeaderOffset(topic='t', partition=0, metadata=[], leader_epoch=3)"
    assert offset != Offset(topic="t")
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'topic'"):
        offset.topic = "u"  # type: ignore[misc]


@pytest.mark.parametrize("offset", [Offset(topic="t", metadata=["m"]), LeaderOffset(topic="t", leader_epoch=3)])
def test_copies_and_pickles_are_equal(offset: Offset) -> None:
    for twin in (pickle.loads(pickle.dumps(offset)), copy.copy(offset), copy.deepcopy(offset)):  # noqa: S301 - our own
        assert twin == offset
        assert twin.metadata == offset.metadata


def test_methods_of_the_class_are_kept() -> None:
    @dataclass(frozen=True)
    class Node:
        host: str
        port: int

        def __repr__(self) -> str:
            return f"{self.host}:{self.port}"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Node) and other.port == self.port

        def __hash__(self) -> int:
            return self.port

        @cached_property
        def size(self) -> int:
            return len(self.host)

    node = Node("a", 9092)
    assert (str(node), hash(node), node == Node("b", 9092), node.size) == ("a:9092", 9092, True, 1)


def test_plain_subclass_of_a_frozen_class_may_have_further_attributes() -> None:
    @dataclass(frozen=True)
    class Frozen:
        number: int

    class Plain(Frozen):
        def __init__(self) -> None:
            super().__init__(1)
            self.more = 2

    plain = Plain()
    del plain.more
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'number'"):
        del plain.number


def test_object_that_contains_itself_has_a_representation() -> None:
    @dataclass(slots=True)
    class Group:
        members: list[object]

    group = Group([])
    group.members.append(group)
    assert repr(group).endswith("Group(members=[...])")


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("decorate", [dataclass, dataclasses.dataclass], ids=["ours", "standard"])
def test_subclass_is_frozen_exactly_if_its_base_is(decorate: Callable[..., Any], frozen: bool) -> None:
    class Child(example(dataclass, {"frozen": frozen})):  # type: ignore[misc]
        more: int = 0

    assert decorate(frozen=frozen)(Child)(1, more=2).more == 2
    with pytest.raises(TypeError, match=r"cannot inherit .*frozen dataclass from a .*frozen one"):
        decorate(frozen=not frozen)(Child)


@pytest.mark.parametrize("options", OPTIONS, ids=", ".join)
def test_parameters_are_those_of_the_standard_library(options: dict[str, bool]) -> None:
    names = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")
    parameters = [example(decorate, options).__dataclass_params__ for decorate in (dataclass, dataclasses.dataclass)]
    ours, standard = ({name: getattr(each, name) for name in names} for each in parameters)
    assert ours == standard


def test_init_var_and_init_false_are_rejected() -> None:
    class Counter:
        count: int = field(default=0, init=False)

    class Scaled:
        factor: InitVar[int]

    for cls, name in ((Counter, "count"), (Scaled, "factor")):
        with pytest.raises(TypeError, match=rf"{cls.__name__}\.{name}: InitVar and field\(init=False\) are not"):
            dataclass()(cls)


def test_types_of_parameters_are_found_in_the_module_of_the_class() -> None:
    assert get_type_hints(LogDirectory.__init__) == {"path": Path, "return": type(None)}
    assert inspect.signature(LogDirectory, eval_str=True).parameters["path"].annotation is Path
    assert "__create" not in globals()


def test_method_is_compiled_when_it_is_first_used() -> None:
    @dataclass(slots=True)
    class Lazy:
        number: int

    assert type(vars(Lazy)["__init__"]) is lazy_dataclass._CompiledOnUse
    assert Lazy(1) == Lazy(1)
    assert inspect.isfunction(vars(Lazy)["__init__"])
    assert inspect.isfunction(vars(Lazy)["__eq__"])
    assert type(vars(Lazy)["__repr__"]) is lazy_dataclass._CompiledOnUse


def test_klamm_uses_no_other_decorator() -> None:
    package = Path(lazy_dataclass.__file__).parent
    modules = [path for path in package.rglob("*.py") if path != Path(lazy_dataclass.__file__)]
    standard = re.compile(r"^ *from dataclasses import .*\bdataclass\b|\bdataclasses\.dataclass\b", re.MULTILINE)
    assert [path.name for path in modules if standard.search(path.read_text("utf-8"))] == []
