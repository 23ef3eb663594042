"""The four operations of IncrementalAlterConfigs (KIP-339), and the replacing AlterConfigs, as pure decisions.

Kafka's ``ConfigurationControlManager`` and ``ConfigAdminManager`` are the models; where klamm decides otherwise, the
docstrings say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, cast

from klamm.configs.values import JAVA_BLANKS
from klamm.protocol.errors import InvalidConfigError, InvalidRequestError, KafkaApiError
from klamm.protocol.types import ConfigOperation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_VALUE_BYTES: Final = 32_767
"""Java clients read no longer string, in no version of a message."""
_MOST_BYTES_OF_A_CHARACTER: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterOperation:
    """What to do with one config."""

    name: str
    config_operation: int
    """A ConfigOperation; any other number is refused when it is carried out."""
    value: str | None
    """The value, for APPEND and SUBTRACT a comma list; ignored by DELETE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDelta:
    """The outcome for one config."""

    name: str
    value: str | None
    """None means: no longer set here."""


class ConfigSchema(Protocol):
    """What may be set on one resource; bound to its name."""

    def is_list(self, name: str) -> bool:
        """Tell whether APPEND and SUBTRACT make sense."""
        ...

    def list_in_force(self, name: str) -> str | None:
        """Return the value that an unset list has at the moment, as text; None when it has none."""
        ...

    def refuse_non_list(self, operation: ConfigOperation, name: str) -> KafkaApiError:
        """Return the error for APPEND or SUBTRACT on what is no list."""
        ...

    def validate(self, *, touched: Mapping[str, str | None], result: Mapping[str, str]) -> None:
        """Check what a request leads to.

        Args:
            touched: What the request names, in its order, with the outcome; None for what it removes.
            result: Everything that would be set on the resource then.

        Raises:
            KafkaApiError: The first thing that is wrong.
        """
        ...


def check_operations(operations: Sequence[AlterOperation]) -> None:
    """Refuse what breaks the request's own rules, before anybody looks at the resource.

    Raises:
        InvalidRequestError: A key twice, or a value that is null where one is needed.
    """
    _refuse_duplicates([operation.name for operation in operations])
    _refuse_nulls(o.name for o in operations if o.value is None and o.config_operation != ConfigOperation.DELETE)


def plan_incremental_alter(
    current: Mapping[str, str], operations: Sequence[AlterOperation], schema: ConfigSchema
) -> tuple[ConfigDelta, ...]:
    """Decide what operations on one resource lead to, all or nothing.

    APPEND and SUBTRACT on a list that is not set here start from the value in force, wherever it comes from, and make
    the outcome the resource's own; Kafka starts from the built-in default even if the cluster has another. Blanks
    around list elements are dropped, so that what a description shows can be subtracted.

    Returns:
        Only what differs from ``current``, in the order of the request.

    Raises:
        KafkaApiError: The first thing that is wrong; nothing is to be changed then.
    """
    check_operations(operations)
    touched = {operation.name: _outcome(current, operation, schema) for operation in operations}
    check_lengths(touched.values())
    schema.validate(touched=touched, result=_merge(current, touched))
    return _differences(current, touched)


def plan_legacy_alter(
    current: Mapping[str, str], configs: Sequence[tuple[str, str | None]], schema: ConfigSchema
) -> tuple[ConfigDelta, ...]:
    """Decide what replacing everything on one resource leads to: what ``configs`` does not name is removed.

    Raises:
        KafkaApiError: The first thing that is wrong; nothing is to be changed then.
    """
    check_configs(configs)
    replaced = {name: value for name, value in configs if value is not None}
    check_lengths(replaced.values())
    schema.validate(touched=replaced, result=replaced)
    removed = dict.fromkeys((name for name in current if name not in replaced), None)
    return _differences(current, {**replaced, **removed})


def check_configs(configs: Sequence[tuple[str, str | None]]) -> None:
    """Refuse what breaks the rules of an AlterConfigs request itself.

    Raises:
        InvalidRequestError: A key twice, or a null value.
    """
    _refuse_duplicates([name for name, _ in configs])
    _refuse_nulls(name for name, value in configs if value is None)


def check_lengths(values: Iterable[str | None]) -> None:
    """Refuse a value that no description could carry to a client, also one that grew by APPEND.

    Raises:
        InvalidConfigError: In Kafka's words, which do not name the config.
    """
    if any(value is not None and is_too_long(value) for value in values):
        raise InvalidConfigError(
            "The configuration value cannot be added because it exceeds the maximum value size of"
            f" {MAX_VALUE_BYTES} bytes."
        )


def is_too_long(value: str) -> bool:
    """Tell whether a value takes more bytes in UTF-8 than a string of Kafka's protocol may have."""
    return len(value) > MAX_VALUE_BYTES // _MOST_BYTES_OF_A_CHARACTER and len(value.encode()) > MAX_VALUE_BYTES


def apply_changes(current: Mapping[str, str], changes: Iterable[ConfigDelta]) -> dict[str, str]:
    """Return what is set after the changes."""
    return _merge(current, {change.name: change.value for change in changes})


def _outcome(current: Mapping[str, str], operation: AlterOperation, schema: ConfigSchema) -> str | None:
    """Return the value after one operation; None when it is not set then."""
    name = operation.name
    if operation.config_operation == ConfigOperation.DELETE:
        return None
    value = cast("str", operation.value)  # check_operations has refused null
    match operation.config_operation:
        case ConfigOperation.SET:
            return value
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT as kind:
            if not schema.is_list(name):
                raise schema.refuse_non_list(ConfigOperation(kind), name)
            base = _elements(current[name] if name in current else schema.list_in_force(name) or "")
            elements = [element for element in base if element]
            if kind == ConfigOperation.APPEND:
                return ",".join(_append(elements, _elements(value)))
            return ",".join(_subtract(elements, _elements(value)))
        case unknown:
            raise InvalidRequestError(f"Unknown operations type {unknown}")


def _elements(text: str) -> list[str]:
    """Split a comma list without its blanks; empty elements at its end do not count, a lone empty one does."""
    elements = [element.strip(JAVA_BLANKS) for element in text.split(",")]
    while len(elements) > 1 and not elements[-1]:
        elements.pop()
    return [] if elements == [""] and "," in text else elements


def _append(elements: list[str], added: list[str]) -> Iterable[str]:
    # A dict keeps the order and finds members at once, however long the lists are; repeats in the base stay.
    present = set(elements)
    fresh = dict.fromkeys(element for element in added if element not in present)
    return [*elements, *fresh]


def _subtract(elements: list[str], removed: list[str]) -> Iterable[str]:
    """Remove the first occurrence of each given element, as Kafka does with a list that holds one twice."""
    counts: dict[str, int] = {}
    for element in removed:
        counts[element] = counts.get(element, 0) + 1
    kept = []
    for element in elements:
        if counts.get(element, 0) > 0:
            counts[element] -= 1
        else:
            kept.append(element)
    return kept


def _merge(current: Mapping[str, str], touched: Mapping[str, str | None]) -> dict[str, str]:
    merged = dict(current)
    for name, value in touched.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = value
    return merged


def _differences(current: Mapping[str, str], outcome: Mapping[str, str | None]) -> tuple[ConfigDelta, ...]:
    return tuple(ConfigDelta(name=name, value=value) for name, value in outcome.items() if current.get(name) != value)


def _refuse_duplicates(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise InvalidRequestError("Error due to duplicate config keys")


def _refuse_nulls(names: Iterable[str]) -> None:
    nulls = list(names)
    if nulls:
        raise InvalidRequestError(f"Null value not supported for : {', '.join(nulls)}")
