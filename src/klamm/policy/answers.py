"""Answers of a policy other than to allow or to deny a request, and the check of their values."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator
from dataclasses import field
from reprlib import repr as short_repr
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_RANGES: Final = {
    "num_partitions": range(1, 2**31),
    "replication_factor": range(1, 2**15),
    "acks": (-1, 1),
    "delay_ms": range(2**31),
}
"""Allowed values of the fields that are numbers. The response to ``acks=0`` would be missing."""
_MAX_TEXT_BYTES: Final = 2**15 - 1
"""Length of the longest string in the older versions of a message."""

PARTITIONS: Final = "partitions"
REPLICATION_FACTOR: Final = "replication_factor"
_STORED: Final = " (stored instead: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """Answer that changes the request: of a policy on new topics, on configs or on flows.

    The request is changed, checked by the broker, and the policy is asked about the changed request. It must then
    return None or raise. A response entry without an error carries ``note`` as its message.
    """

    reason: str
    """Text for the client: which value was wrong, and the value in its place."""
    configs: Mapping[str, str | None] = field(default_factory=dict)
    """Values of configs. None leaves a config out of a new topic, and removes it from an existing resource."""
    num_partitions: int | None = None
    """Number of partitions of a new topic. None leaves it as requested."""
    replication_factor: int | None = None
    """Replication factor of a new topic. None leaves it as requested."""
    acks: int | None = None
    """``acks`` of a Produce request: 1, or -1 for all. None leaves it as requested."""

    def __post_init__(self) -> None:
        """Replace the caller's mapping with a read-only copy."""
        object.__setattr__(self, "configs", MappingProxyType(dict(self.configs)))

    @property
    def note(self) -> str:
        """The reason, and the stored values in a form for programs (``PolicyOverride``)."""
        numbers = {PARTITIONS: self.num_partitions, REPLICATION_FACTOR: self.replication_factor}
        texts = {name: str(number) for name, number in numbers.items() if number is not None}
        note = f"{self.reason}{_STORED}{json.dumps({**texts, **self.configs})})"
        return note if _is_text(note) else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOverride:
    """Values that a policy of klamm stored in place of the requested ones. The request itself succeeded."""

    reason: str
    values: Mapping[str, str | None]
    """Stored values by config; of a new topic also ``partitions`` and ``replication_factor``. None: not set. Empty if
    the server does not report them.
    """

    @classmethod
    def of(cls, message: str | None) -> PolicyOverride | None:
        """Return the override that the message of a response entry without an error reports (``Override.note``)."""
        if not message:
            return None
        reason, _, values = message.rpartition(_STORED)
        try:
            stored = json.loads(values.removesuffix(")")) if reason else {}
        except (ValueError, RecursionError):
            stored = {}
        is_note = isinstance(stored, dict) and all(isinstance(value, str | None) for value in stored.values())
        return cls(reason=reason, values=stored) if is_note and stored else cls(reason=message, values={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """Answer of a policy on flows that slows a client down: the request is allowed, the response asks for a pause."""

    reason: str
    """Text for the log."""
    delay_ms: int
    """Pause of the client after the response, in milliseconds (``throttle_time_ms``, KIP-219)."""


Answer: TypeAlias = "Override | Throttle"


@dataclass(frozen=True, slots=True)
class Unusable:
    """Object of a policy that no server can carry out, as text: the object itself may run code of the policy."""

    text: str
    """Name of the class of an answer, or ``repr`` of a value in an answer."""

    def __repr__(self) -> str:
        """Return the text."""
        return self.text


def answer_of(returned: object) -> Answer | Unusable | None:
    """Return what a policy has answered by its return value; None if it is ignored.

    The answer has classes of klamm and Python only, so that reading it runs no code of the policy. This must be called
    where the policy itself is called.

    False, an exception, and an awaitable or a generator, which nothing would run, are answers that cannot be carried
    out (``answer_fault``): the policy may have meant to deny.
    """
    if isinstance(returned, Override):
        return Override(
            reason=_plain(returned.reason),
            configs={_plain(name): _plain(value) for name, value in returned.configs.items()},
            num_partitions=_plain(returned.num_partitions),
            replication_factor=_plain(returned.replication_factor),
            acks=_plain(returned.acks),
        )
    if isinstance(returned, Throttle):
        return Throttle(reason=_plain(returned.reason), delay_ms=_plain(returned.delay_ms))
    if isinstance(returned, (Coroutine, Generator)):
        returned.close()
    if isinstance(returned, type) and issubclass(returned, BaseException):
        return Unusable(returned.__name__)
    is_fault = returned is False or isinstance(returned, (BaseException, Awaitable, Generator, AsyncGenerator))
    return Unusable(type(returned).__name__) if is_fault else None


def _plain(value: object) -> Any:
    """Return a string or a number of exactly Python's own class, ``Unusable`` for other objects."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    return str.__str__(value) if isinstance(value, str) else Unusable(short_repr(value))


def answer_fault(answer: object, allowed: tuple[type[Answer], ...], overridable: Collection[str]) -> str | None:
    """Return why an answer of a policy cannot be carried out; None if it can.

    Args:
        answer: The answer.
        allowed: Classes of answers that the policy may return.
        overridable: Fields of ``Override`` that have an effect.
    """
    name = answer.text if isinstance(answer, Unusable) else type(answer).__name__
    if not isinstance(answer, allowed) or not isinstance(answer, (Override, Throttle)):
        return f"it cannot return {name}; raise PolicyViolationError to deny"
    if not _is_text(answer.reason):
        return f"{name}(reason={short_repr(answer.reason)}): expected a string of at most {_MAX_TEXT_BYTES} bytes"
    if isinstance(answer, Throttle):
        return _number_fault(name, "delay_ms", answer.delay_ms)
    values = {key: getattr(answer, key) for key in ("configs", "num_partitions", "replication_factor", "acks")}
    used = {key: value for key, value in values.items() if value is not None and (key != "configs" or value)}
    if not used or not used.keys() <= set(overridable):
        fields = ", ".join(overridable) or "no field"
        return f"{name} of {', '.join(used) or 'nothing'}: here {fields} can be overridden; return None to allow"
    for key, value in used.items():
        fault = _configs_fault(name, answer.configs) if key == "configs" else _number_fault(name, key, value)
        if fault is not None:
            return fault
    return None


def _number_fault(name: str, key: str, value: object) -> str | None:
    allowed = _RANGES[key]
    if type(value) is int and value in allowed:
        return None
    expected = f"an integer from {allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else "-1 or 1"
    return f"{name}({key}={short_repr(value)}): expected {expected}"


def _configs_fault(name: str, configs: Mapping[str, str | None]) -> str | None:
    for key, value in configs.items():
        if not _is_text(key) or not (value is None or _is_text(value)):
            return f"{name}(configs={{{short_repr(key)}: {short_repr(value)}}}): expected strings, or None as value"
    return None


def _is_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return len(value.encode()) <= _MAX_TEXT_BYTES
    except UnicodeEncodeError:
        return False
