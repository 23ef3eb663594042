"""Faults that a test injects into a broker, and the queue that selects the ones of a request."""

from __future__ import annotations

import importlib
from dataclasses import field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from klamm.lazy_dataclass import dataclass
from klamm.properties import did_you_mean
from klamm.protocol.error_response import PartKind
from klamm.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from klamm.protocol.error_response import Part

    NamedParts = Callable[[PartKind], Sequence[Part] | None]

_ACKS: Final = {"0": 0, "1": 1, "-1": -1, "all": -1}
_LONGEST_DELAY_S: Final = 24 * 3600.0
_MAX_REMOVED: Final = 10_000
"""Number of removed faults whose counts are kept."""
_TYPES: Final[Mapping[str, tuple[type, ...]]] = MappingProxyType(
    {
        "api": (str,),
        "error": (str, int),
        "delay_s": (int, float),
        "drop_connection": (bool,),
        "no_answer": (bool,),
        "times": (int,),
        "topic": (str,),
        "partition": (int,),
        "client_id": (str,),
        "acks": (str, int),
        "after_serving": (bool,),
        "throttle_s": (int, float),
        "node_id": (int,),
        "group_id": (str,),
        "probability": (int, float),
        "when": (str,),
    }
)
"""Types of the arguments other than None. A value of another type would match no request, without any message."""


class FaultError(ValueError):
    """A fault cannot be injected. The message names the argument and the allowed values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault: the requests that it concerns, and its effect on them."""

    api: str | None = None
    """Kafka's name of the API, for example ``ListOffsets``. None means every API."""
    error: ErrorCode | None = None
    delay_s: float = 0.0
    drop_connection: bool = False
    no_answer: bool = False
    times: int | None = 1
    """Number of requests that the fault affects. None means all until it is removed."""
    topic: str | None = None
    partition: int | None = None
    client_id: str | None = None
    acks: int | None = None
    """Acks by which Produce requests are served: 0, 1 or -1. None means every request."""
    after_serving: bool = False
    """Whether the request is served before the fault takes effect."""
    throttle_s: float = 0.0
    """Throttle time that the response reports, in seconds."""
    node_id: int | None = None
    """Broker id that receives the requests."""
    group_id: str | None = None
    probability: float = 1.0
    """Share of the matching requests that the fault affects."""
    when: Callable[[Mapping[str, Any]], object] | None = None
    """Function that takes a summary of the request and returns whether the fault affects it."""

    @property
    def is_only_slow(self) -> bool:
        """Return whether the fault delays or throttles a request that is otherwise served."""
        return self.error is None and not self.drop_connection and not self.no_answer

    def slows_like(self, other: Fault) -> bool:
        """Return whether both faults delay a request, or both throttle it."""
        return bool((self.delay_s and other.delay_s) or (self.throttle_s and other.throttle_s))

    @property
    def description(self) -> str:
        """Arguments of ``klamm.Broker.inject`` that differ from their defaults."""
        changed = [
            f"{each.name.removesuffix('_s')}={value.name if isinstance(value, ErrorCode) else value!r}"
            for each in fields(self)
            if (value := getattr(self, each.name)) != each.default and each.name != "api"
        ]
        return f"{self.api or 'every API'}: {', '.join(changed)}"

    @property
    def selects_parts(self) -> bool:
        """Return whether the fault concerns only some parts of a request."""
        return self.topic is not None or self.partition is not None

    def concerns(self, part: Part) -> bool:
        """Return whether the fault concerns a part of a request."""
        return self.topic in {None, part.topic} and self.partition in {None, part.partition}


@dataclass(slots=True, kw_only=True)
class InjectedFault:
    """A fault in the queue, with the number of requests that it has affected."""

    number: int
    fault: Fault
    count: int = 0

    @property
    def is_over(self) -> bool:
        """Return whether the fault affects no further requests."""
        return self.fault.times is not None and self.count >= self.fault.times


@dataclass(slots=True, kw_only=True)
class Selection:
    """The faults of one request."""

    delays: list[Fault] = field(default_factory=list)
    """Faults whose delay applies, including those with a further effect."""
    errors: list[Fault] = field(default_factory=list)
    """Faults with an error. They have the same ``after_serving``."""
    ending: Fault | None = None
    """Fault that drops the connection or leaves the request without an answer."""

    @property
    def code(self) -> ErrorCode:
        """Error of the earliest fault, NONE if there is none."""
        return next((fault.error for fault in self.errors if fault.error is not None), ErrorCode.NONE)

    def error_of(self, part: Part) -> ErrorCode | None:
        """Return the error of a part of the request, None if no fault concerns it."""
        return next((fault.error for fault in self.errors if fault.concerns(part)), None)

    def delay_s(self, *, after_serving: bool) -> float:
        """Return the delay before or after the request is served, in seconds."""
        return sum(fault.delay_s for fault in self.delays if fault.after_serving is after_serving)

    @property
    def throttle_time_ms(self) -> int:
        """Throttle time that the response reports, in milliseconds."""
        return round(1000 * sum(fault.throttle_s for fault in self.delays))

    def __bool__(self) -> bool:
        """Return whether any fault was selected."""
        return bool(self.delays or self.errors or self.ending)


class FaultQueue:
    """Injected faults in the order of their injection.

    Each part of a request gets at most one error, from the earliest fault that matches it, so faults for different
    topics or partitions can apply to the same request. A dropped connection or a missing answer applies to the whole
    request and excludes other errors. One fault that only delays and one that only throttles may be added.

    Args:
        draw: Function that returns a random number from 0 to below 1, for faults with a probability.
    """

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self._injected: dict[int, InjectedFault] = {}
        self._removed: dict[int, InjectedFault] = {}
        """The last faults that were removed, whose counts can still be read."""
        self._next = 1

    def __iter__(self) -> Iterator[InjectedFault]:
        """Iterate over all faults, including those that are over."""
        return iter(tuple(self._injected.values()))

    def __len__(self) -> int:
        """Return the number of faults, including those that are over."""
        return len(self._injected)

    def add(self, fault: Fault) -> InjectedFault:
        """Append a fault."""
        injected = InjectedFault(number=self._next, fault=fault)
        self._next += 1
        self._injected[injected.number] = injected
        return injected

    def get(self, number: int) -> InjectedFault | None:
        """Return a fault by its number, also one of the last 10,000 removed ones; None if it is unknown."""
        return self._injected.get(number) or self._removed.get(number)

    def remove(self, number: int) -> None:
        """Remove a fault. Unknown numbers are ignored."""
        injected = self._injected.pop(number, None)
        if injected is None:
            return
        self._removed[number] = injected
        if len(self._removed) > _MAX_REMOVED:
            del self._removed[next(iter(self._removed))]

    def clear(self) -> None:
        """Remove all faults."""
        for number in tuple(self._injected):
            self.remove(number)

    def select(
        self,
        request: Mapping[str, Any],
        parts: NamedParts,
        *,
        acks: int | None = None,
    ) -> Selection:
        """Return the faults of a request, and count them.

        Args:
            request: Entry of the request in ``klamm.broker.faults.requests.RequestLog``.
            parts: Function that returns the parts that the request names; None if it asks for all topics or
                partitions, as its argument says. Then every filter by topic or partition matches.
            acks: Acks by which a Produce request is served. None for other requests.
        """
        selection = Selection()
        for injected in self:
            fault = injected.fault
            if injected.is_over or fault.acks not in {None, acks} or not self._matches(fault, request):
                continue
            if self._is_used(fault, selection, parts):
                injected.count += 1
        return selection

    def _matches(self, fault: Fault, request: Mapping[str, Any]) -> bool:
        """Return whether the filters of a fault, other than topic, partition and acks, select a request."""
        if any(
            getattr(fault, name) not in {None, request[name]} for name in ("api", "client_id", "node_id", "group_id")
        ):
            return False
        if fault.when is not None and not fault.when(request):
            return False
        return fault.probability >= 1.0 or self._draw() < fault.probability

    @staticmethod
    def _is_used(fault: Fault, selection: Selection, parts: NamedParts) -> bool:
        """Add a fault to the selection if it concerns a part of the request that has none yet."""
        if fault.is_only_slow:
            slow = [each for each in selection.delays if each.is_only_slow]
            if any(each.slows_like(fault) for each in slow) or not _concerns_any(fault, (), parts):
                return False
        elif (
            selection.ending is not None
            or any(each.after_serving is not fault.after_serving for each in selection.errors)
            or (selection.errors and fault.error is None)
            or not _concerns_any(fault, selection.errors, parts)
        ):
            return False
        elif fault.error is None:
            selection.ending = fault
        else:
            selection.errors.append(fault)
        if fault.delay_s or fault.throttle_s:
            selection.delays.append(fault)
        return True


def _concerns_any(fault: Fault, used: Sequence[Fault], parts: NamedParts) -> bool:
    """Return whether a fault concerns a part of a request that no used fault concerns."""
    if not fault.selects_parts or any(not each.selects_parts for each in used):
        return not used
    named = parts(PartKind.TOPIC if fault.partition is None else PartKind.PARTITION)
    if named is None:
        return not used
    return any(fault.concerns(part) and not any(each.concerns(part) for each in used) for part in named)


def parse_fault(options: Mapping[str, Any], *, apis: Mapping[str, frozenset[str]]) -> Fault:
    """Return the fault that the arguments of ``klamm.Broker.inject`` describe.

    Args:
        options: Arguments by name. ``api`` and ``error`` are names in any spelling.
        apis: Names of the served APIs, with the filters that their requests allow: ``topic``,
            ``partition``, ``group_id``.

    Raises:
        FaultError: An argument is unknown, not allowed, or contradicts another one.
    """
    _check_types(options)
    fields = {name: value for name, value in options.items() if value is not None and value is not False}
    api, error, when = fields.pop("api", None), fields.pop("error", None), fields.pop("when", None)
    times, acks = options.get("times", 1), options.get("acks")
    fault = Fault(
        **{
            **fields,
            "api": None if api is None else find_api(api, apis),
            "error": None if error is None else find_error(error),
            "times": times,
            "acks": None if acks is None else _parse_acks(acks),
            "when": None if when is None else _load_function(when),
        }
    )
    _check_effect(fault)
    _check_numbers(fault)
    _check_filters(fault, apis)
    return fault


def _check_types(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        allowed = _TYPES[name]
        if value is not None and (not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)):
            expected = " or ".join(each.__name__ for each in allowed)
            raise FaultError(f"{name}={value!r}: expected {expected}, got {type(value).__name__}")


def _parse_acks(acks: object) -> int:
    acks_value = _ACKS.get(str(acks))
    if acks_value is None:
        raise FaultError(f"acks={acks!r}: expected 0, 1 or all")
    return acks_value


def _load_function(path: str) -> Callable[[Mapping[str, Any]], object]:
    """Return a function by ``module:name``."""
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise FaultError(f"when={path!r}: the broker's process cannot import it: {error}") from error
    if not callable(function):
        raise FaultError(f"when={path!r}: expected a function, got {type(function).__name__}")
    return cast("Callable[[Mapping[str, Any]], object]", function)


def _check_effect(fault: Fault) -> None:
    effects = [fault.error is not None, fault.drop_connection, fault.no_answer]
    if sum(effects) > 1:
        raise FaultError("A fault has one of error, drop_connection and no_answer: inject several faults instead")
    if not any(effects) and not fault.delay_s and not fault.throttle_s:
        raise FaultError("A fault needs an effect: error, delay, throttle, drop_connection or no_answer")
    if fault.throttle_s and any(effects):
        raise FaultError("throttle: a fault with error, drop_connection or no_answer reports no throttle time")


def _check_numbers(fault: Fault) -> None:
    if not 0 <= fault.delay_s <= _LONGEST_DELAY_S:
        raise FaultError(f"delay={fault.delay_s:g}: must be between 0 and {_LONGEST_DELAY_S:g} seconds")
    if not 0 <= fault.throttle_s <= _LONGEST_DELAY_S:
        raise FaultError(f"throttle={fault.throttle_s:g}: must be between 0 and {_LONGEST_DELAY_S:g} seconds")
    if not 0 < fault.probability <= 1:
        raise FaultError(f"probability={fault.probability:g}: must be above 0 and at most 1")
    if fault.times is not None and fault.times < 1:
        raise FaultError(f"times={fault.times}: must be at least 1, or None for no limit")
    if fault.partition is not None and fault.partition < 0:
        raise FaultError(f"partition={fault.partition}: must be at least 0")


def _check_filters(fault: Fault, apis: Mapping[str, frozenset[str]]) -> None:
    if fault.acks is not None and fault.api != "Produce":
        raise FaultError(f"acks: only Produce requests have acks, so api must be Produce, not {fault.api!r}")
    if fault.api is None:
        return
    filters = {"topic": fault.topic, "partition": fault.partition, "group_id": fault.group_id}
    for name, value in filters.items():
        if value is not None and name not in apis[fault.api]:
            named = ", ".join(sorted(api for api, possible in apis.items() if name in possible))
            raise FaultError(
                f"{name}={value!r}: {fault.api} requests name no {name.removesuffix('_id')}s."
                f" A filter by {name} is possible for: {named}"
            )


def find_api(name: str, apis: Mapping[str, Any]) -> str:
    """Return Kafka's name of an API from any spelling: ``ListOffsets``, ``list_offsets``, ``LIST_OFFSETS``.

    Raises:
        FaultError: The broker serves no such API.
    """
    key = {_folded(each): each for each in apis}.get(_folded(name).removesuffix("request"))
    if key is None:
        raise FaultError(f"api={name!r}: the broker serves no such API{did_you_mean(name, apis)}")
    return key


def find_error(name: str | int) -> ErrorCode:
    """Return an error by Kafka's name or by its code.

    Raises:
        FaultError: Kafka has no such error, or it is NONE.
    """
    if isinstance(name, int):
        try:
            code = ErrorCode(name)
        except ValueError as error:
            raise FaultError(f"error={name}: Kafka has no error with this code") from error
    else:
        by_name = {_folded(each.name): each for each in ErrorCode}
        if _folded(name) not in by_name:
            names = [each.name for each in ErrorCode if each is not ErrorCode.NONE]
            raise FaultError(f"error={name!r}: Kafka has no such error{did_you_mean(name, names)}")
        code = by_name[_folded(name)]
    if code is ErrorCode.NONE:
        raise FaultError("error=NONE: not an error. To end a fault, call its remove() or Broker.clear_faults()")
    return code


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()
