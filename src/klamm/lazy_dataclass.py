"""Decorator of dataclasses whose methods are compiled when they are first used.

``dataclasses.dataclass`` compiles ``__init__``, ``__repr__``, ``__eq__`` and ``__hash__`` when a class is defined, and
``__setattr__`` and ``__delattr__`` of a frozen class. This takes up to a millisecond per class. A broker defines 150
dataclasses at its start, creates objects of a third of them and prints none.

The decorator of this module has the same arguments as far as klamm uses them, and the same results. Type checkers see
the standard decorator.
"""

from __future__ import annotations

import dataclasses
import sys
from reprlib import recursive_repr
from types import MemberDescriptorType, MethodType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["dataclass"]

_COMPARISONS: Final = {"__eq__": "==", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}


class _Factory:
    """Default argument of a field whose default value is created for each object."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY: Final = _Factory()


class _CompiledOnUse:
    """Method that is compiled when it is first looked up, and then replaces this object in its class.

    Args:
        cls: The class that has the method.
        name: Name of the method.
        build: Function that compiles the method of a class.
    """

    __slots__ = ("_build", "_cls", "_name")

    def __init__(self, cls: type[Any], name: str, build: Callable[[type[Any], str], Any]) -> None:
        self._cls = cls
        self._name = name
        self._build = build

    def __get__(self, instance: object | None, owner: type[Any] | None = None) -> Any:
        """Return the compiled method, bound to the instance if there is one."""
        method = self._build(self._cls, self._name)
        setattr(self._cls, self._name, method)
        return method if instance is None else MethodType(method, instance)


def _decorated(cls: Any, *, frozen: bool, slots: bool, kw_only: bool, eq: bool, order: bool) -> Any:
    cls.__doc__ = cls.__doc__ or cls.__name__  # otherwise dataclasses takes milliseconds to write the signature into it
    # With frozen=True, the standard decorator compiles two methods, and checks that the bases are frozen, too.
    checked = frozen and dataclasses.is_dataclass(cls)
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only, frozen=checked)(cls)
    _check_fields(cls)
    parameters = cls.__dataclass_params__
    parameters.init = parameters.repr = True
    parameters.eq, parameters.order, parameters.frozen = eq, order, frozen
    _add(cls, ["__init__"], _frozen_init if frozen else _init)
    _add(cls, ["__repr__"], _repr)
    if eq:
        has_hash = vars(cls).get("__hash__") is not None  # Python sets None in a class that defines __eq__ alone
        _add(cls, _COMPARISONS if order else ["__eq__"], _comparison)
        if not has_hash and frozen:
            cls.__hash__ = _CompiledOnUse(cls, "__hash__", _hash)
        elif not has_hash:
            cls.__hash__ = None
    if frozen:
        _freeze(cls)
        if slots:
            cls.__getstate__, cls.__setstate__ = _state, _set_state
    return cls


def _check_fields(cls: Any) -> None:
    for field in cls.__dataclass_fields__.values():
        if not field.init or field._field_type.name == "_FIELD_INITVAR":
            raise TypeError(
                f"{cls.__qualname__}.{field.name}: InitVar and field(init=False) are not supported by"
                f" {__name__}. Use a field that __init__ sets, or a property"
            )


def _add(cls: type[Any], names: Iterable[str], build: Callable[[type[Any], str], Any]) -> None:
    for name in names:
        if name not in vars(cls):
            setattr(cls, name, _CompiledOnUse(cls, name, build))


def _compiled(cls: type[Any], name: str, source: str, names: dict[str, Any]) -> Any:
    """Compile a method.

    Its globals are those of the module of the class, where ``typing.get_type_hints`` looks up the names of types. The
    other names are parameters of a function around the method.
    """
    lines = [f"def __create({', '.join(names)}):", *source.split("\n"), f"return {name}"]
    module_names = getattr(sys.modules.get(cls.__module__), "__dict__", {"__name__": cls.__module__})
    created: dict[str, Any] = {}
    exec(compile("\n ".join(lines), f"<{cls.__qualname__}.{name}>", "exec"), module_names, created)  # noqa: S102 - our own text
    method = created["__create"](**names)
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    return method


def _values(fields: Iterable[dataclasses.Field[Any]], instance: str) -> str:
    return "(" + "".join(f"{instance}.{field.name}," for field in fields) + ")"


def _comparison(cls: type[Any], name: str) -> Any:
    fields = [field for field in dataclasses.fields(cls) if field.compare]
    return _compiled(
        cls,
        name,
        f"def {name}(self, other):\n"
        " if other.__class__ is not self.__class__:\n"
        "  return NotImplemented\n"
        f" return {_values(fields, 'self')} {_COMPARISONS[name]} {_values(fields, 'other')}",
        {},
    )


def _hash(cls: type[Any], name: str) -> Any:
    fields = [field for field in dataclasses.fields(cls) if (field.compare if field.hash is None else field.hash)]
    return _compiled(cls, name, f"def {name}(self):\n return hash({_values(fields, 'self')})", {})


def _repr(cls: type[Any], name: str) -> Any:
    fields = ", ".join(f"{field.name}={{self.{field.name}!r}}" for field in dataclasses.fields(cls) if field.repr)
    method = _compiled(cls, name, f"def {name}(self):\n return f'{{self.__class__.__qualname__}}({fields})'", {})
    return recursive_repr()(method)


def _init(cls: type[Any], name: str) -> Any:
    return _compiled_init(cls, name, {field.name: f"self.{field.name} = {{}}" for field in dataclasses.fields(cls)}, {})


def _frozen_init(cls: type[Any], name: str) -> Any:
    """Set each slot by its descriptor, which takes less time than ``object.__setattr__``."""
    names: dict[str, Any] = {"__set": object.__setattr__}
    assignments = {}
    for field in dataclasses.fields(cls):
        descriptor = getattr(cls, field.name, None)
        if isinstance(descriptor, MemberDescriptorType):
            names[f"__set_{field.name}"] = descriptor.__set__
            assignments[field.name] = f"__set_{field.name}(self, {{}})"
        else:
            assignments[field.name] = f"__set(self, {field.name!r}, {{}})"
    return _compiled_init(cls, name, assignments, names)


def _compiled_init(cls: type[Any], name: str, assignments: dict[str, str], names: dict[str, Any]) -> Any:
    """Compile ``__init__``.

    Args:
        cls: The class.
        name: ``__init__``.
        assignments: Statement that sets a field, with {} in the place of the value, by the name of the field.
        names: Objects that the assignments refer to. It is modified.
    """
    parameters: dict[bool, list[str]] = {False: ["self"], True: []}
    lines = []
    names["__factory"] = _FACTORY
    for field in dataclasses.fields(cls):
        value = field.name
        parameter = field.name
        if field.default is not dataclasses.MISSING:
            names[f"__default_{field.name}"] = field.default
            parameter += f"=__default_{field.name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"__new_{field.name}"] = field.default_factory
            parameter += "=__factory"
            value = f"__new_{field.name}() if {field.name} is __factory else {field.name}"
        parameters[bool(field.kw_only)].append(parameter)
        lines.append(" " + assignments[field.name].format(value))
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    signature = ", ".join([*parameters[False], *(["*", *parameters[True]] if parameters[True] else [])])
    method = _compiled(cls, name, "\n".join([f"def {name}({signature}):", *(lines or [" pass"])]), names)
    method.__annotations__ = {field.name: field.type for field in dataclasses.fields(cls)} | {"return": None}
    return method


def _freeze(cls: Any) -> None:
    """Reject changes of the fields, and of any attribute unless a subclass adds it."""
    names = frozenset(field.name for field in dataclasses.fields(cls))

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__ = set_attribute
    cls.__delattr__ = delete_attribute


def _state(self: Any) -> list[Any]:
    """Return the values of the fields, as ``pickle`` and ``copy`` need them."""
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        *, frozen: bool = False, slots: bool = False, kw_only: bool = False, eq: bool = True, order: bool = False
    ) -> Callable[[type[Any]], Any]:
        """Return the decorator of a dataclass. The arguments are those of ``dataclasses.dataclass``."""
        return lambda cls: _decorated(cls, frozen=frozen, slots=slots, kw_only=kw_only, eq=eq, order=order)
