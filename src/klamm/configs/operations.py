"""Pure decisions for IncrementalAlterConfigs (KIP-339, four operations) and the replacing AlterConfigs.

They follow Kafka's ``ConfigurationControlManager`` and ``ConfigAdminManager``. The docstrings document where klamm
decides differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from klamm.configs.layers import NOTHING_SET
from klamm.configs.values import JAVA_BLANKS
from klamm.protocol.errors import InvalidConfigError, InvalidRequestError, KafkaApiError
from klamm.protocol.types import ConfigOperation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
    from klamm.protocol.types import ResourceType

MAX_VALUE_BYTES: Final = 32_767
"""Limit for a config value in bytes. Java clients cannot read longer strings in any message version."""
_MAX_BYTES_OF_A_CHARACTER: Final = 4


AlterOperation: TypeAlias = "IncrementalAlterConfigsRequest.AlterableConfig"
"""Requested operation on one config: ``name``, ``config_operation`` (a ConfigOperation; any other number is rejected
when the operation is applied) and ``value`` (a comma-separated list for APPEND and SUBTRACT; DELETE ignores it).
"""


class ConfigDelta(NamedTuple):
    """Resulting change of one config."""

    name: str
    value: str | None
    """New value. None means that the config is no longer set on the resource."""


class ConfigSchema:
    """Rules for the configs of one resource. An instance is bound to the resource's name.

    Without further methods, no config is a list.
    """

    __slots__ = ()

    def is_list(self, name: str) -> bool:
        """Return whether a config is a list, which APPEND and SUBTRACT require."""
        _ = name
        return False

    def list_in_force(self, name: str) -> str | None:
        """Return the effective value of a list config that the resource does not set, as text; None if it has none."""
        _ = name
        return None

    def element(self, text: str) -> str:
        """Return an element between two commas of a list as APPEND and SUBTRACT compare and store it.

        Blanks around it are dropped, so that elements can be subtracted as a description shows them. Kafka keeps them.
        """
        return text.strip(JAVA_BLANKS)

    def reject_non_list(self, operation: ConfigOperation, name: str) -> KafkaApiError:
        """Return the error for APPEND or SUBTRACT on a non-list config: INVALID_REQUEST, as KIP-339 specifies."""
        return InvalidRequestError(f"Can't {operation.name} to key {name} because its type is not LIST.")

    def validate(self, *, touched: Mapping[str, str | None], result: Mapping[str, str]) -> None:
        """Check the outcome of a request.

        Args:
            touched: The configs named in the request, in its order, with their new values. None means removed.
            result: All configs that the resource would set afterwards.

        Raises:
            KafkaApiError: The first error found.
        """
        raise NotImplementedError


def check_operations(operations: Sequence[AlterOperation]) -> None:
    """Reject operations that violate the rules of the request itself, before the resource is read.

    Raises:
        InvalidRequestError: A key appears twice, or a required value is null.
    """
    _reject_duplicates([operation.name for operation in operations])
    _reject_nulls([o.name for o in operations if o.value is None and o.config_operation != ConfigOperation.DELETE])


def plan_incremental_alter(
    current: Mapping[str, str], operations: Sequence[AlterOperation], schema: ConfigSchema
) -> tuple[ConfigDelta, ...]:
    """Return the changes that the operations on one resource cause. Either all operations apply or none.

    APPEND and SUBTRACT on a list that the resource does not set start from the value in force, whatever its source, and
    the outcome becomes the resource's own value. Kafka starts from the built-in default even if the cluster has another
    value.

    Returns:
        Only the configs that differ from ``current``, in the order of the request.

    Raises:
        KafkaApiError: The first error found. In this case nothing may be changed.
    """
    check_operations(operations)
    touched = {operation.name: _outcome(current, operation, schema) for operation in operations}
    check_lengths(touched.values())
    schema.validate(touched=touched, result=_merge(current, touched))
    return _differences(current, touched)


def plan_legacy_alter(
    current: Mapping[str, str], configs: Sequence[tuple[str, str | None]], schema: ConfigSchema
) -> tuple[ConfigDelta, ...]:
    """Return the changes of replacing all configs of one resource. Configs that ``configs`` does not name are removed.

    Raises:
        KafkaApiError: The first error found. In this case nothing may be changed.
    """
    check_configs(configs)
    replaced = {name: value for name, value in configs if value is not None}
    check_lengths(replaced.values())
    schema.validate(touched=replaced, result=replaced)
    removed = dict.fromkeys((name for name in current if name not in replaced), None)
    return _differences(current, {**replaced, **removed})


def check_configs(configs: Sequence[tuple[str, str | None]]) -> None:
    """Reject an AlterConfigs request that violates the rules of the request itself.

    Raises:
        InvalidRequestError: A key appears twice, or a value is null.
    """
    _reject_duplicates([name for name, _ in configs])
    _reject_nulls([name for name, value in configs if value is None])


def check_lengths(values: Iterable[str | None]) -> None:
    """Reject values too long for a description to carry to a client, including values that grew by APPEND.

    Raises:
        InvalidConfigError: A value is too long. The message is Kafka's, which does not name the config.
    """
    for value in values:
        if value is not None and is_too_long(value):
            raise InvalidConfigError(
                "The configuration value cannot be added because it exceeds the maximum value size of"
                f" {MAX_VALUE_BYTES} bytes."
            )


def is_too_long(value: str) -> bool:
    """Return whether a value exceeds the maximum length of a string in Kafka's protocol, in UTF-8 bytes."""
    return len(value) > MAX_VALUE_BYTES // _MAX_BYTES_OF_A_CHARACTER and len(value.encode()) > MAX_VALUE_BYTES


def apply_changes(current: Mapping[str, str], changes: Iterable[ConfigDelta]) -> dict[str, str]:
    """Return the configs that are set after the changes."""
    return _merge(current, {change.name: change.value for change in changes})


def _outcome(current: Mapping[str, str], operation: AlterOperation, schema: ConfigSchema) -> str | None:
    """Return the value after one operation, or None if it is no longer set."""
    name = operation.name
    value = cast("str", operation.value)  # check_operations has rejected null where a value is required
    match operation.config_operation:
        case ConfigOperation.SET:
            return value
        case ConfigOperation.DELETE:
            return None
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT as kind:
            if not schema.is_list(name):
                raise schema.reject_non_list(ConfigOperation(kind), name)
            base = _elements(current[name] if name in current else schema.list_in_force(name) or "", schema)
            elements = [element for element in base if element]
            if kind == ConfigOperation.APPEND:
                return ",".join(_append(elements, _elements(value, schema)))
            return ",".join(_subtract(elements, _elements(value, schema)))
        case unknown:
            raise InvalidRequestError(f"Unknown operations type {unknown}")


def _elements(text: str, schema: ConfigSchema) -> list[str]:
    """Split a comma-separated list.

    Trailing empty elements are dropped, but a lone empty element is kept.
    """
    elements = [schema.element(element) for element in text.split(",")]
    while len(elements) > 1 and not elements[-1]:
        elements.pop()
    return [] if elements == [""] and "," in text else elements


def _append(elements: list[str], added: list[str]) -> Iterable[str]:
    # A dict keeps the order and makes each lookup O(1), however long the lists are. Duplicates in the base list are
    # kept.
    present = set(elements)
    fresh = dict.fromkeys(element for element in added if element not in present)
    return [*elements, *fresh]


def _subtract(elements: list[str], removed: list[str]) -> Iterable[str]:
    """Remove the first occurrence of each given element, as Kafka does if the list has duplicates."""
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
    return tuple([ConfigDelta(name=name, value=value) for name, value in outcome.items() if current.get(name) != value])


def _reject_duplicates(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise InvalidRequestError("Error due to duplicate config keys")


def _reject_nulls(names: Sequence[str]) -> None:
    if names:
        raise InvalidRequestError(f"Null value not supported for : {', '.join(names)}")


class ConfigDecision(NamedTuple):
    """Decided change of one resource, not yet applied."""

    resource_type: ResourceType
    resource_name: str
    changes: tuple[ConfigDelta, ...]
    before: Mapping[str, str] = NOTHING_SET
    """Dynamic configs of the resource at the time of the decision."""
    replaced: frozenset[str] | None = None
    """Configs that a legacy AlterConfigs names; None for IncrementalAlterConfigs."""
    defaults: Mapping[str, str] = NOTHING_SET
    """For a topic or a broker, the values of configs that it does not set, without secrets."""

    @property
    def altered(self) -> Mapping[str, str | None]:
        """Changed configs that the request names; None as value means removal.

        As in Kafka, a policy does not see the configs that a replacement removes by not naming them.
        """
        named = self.replaced
        return {change.name: change.value for change in self.changes if named is None or change.name in named}

    @property
    def result(self) -> Mapping[str, str]:
        """Dynamic configs of the resource after the change."""
        return apply_changes(self.before, self.changes)
