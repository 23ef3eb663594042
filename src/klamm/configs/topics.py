"""Rules for topic configs (Kafka's ``LogConfig.validate``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from klamm.configs.definitions import topic_configs
from klamm.configs.names import check_topic_name
from klamm.configs.operations import ConfigSchema, check_lengths
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import InvalidConfigError, InvalidRequestError
from klamm.protocol.types import ConfigType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.configs.layers import BrokerLayers
    from klamm.configs.values import ConfigValue

_MIN_LAG = "min.compaction.lag.ms"
_MAX_LAG = "max.compaction.lag.ms"
_REMOTE_STORAGE = "remote.storage.enable"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSchema(ConfigSchema):
    """Schema of the configs of one topic."""

    topic: str
    layers: BrokerLayers
    """Config layers that provide the values that the topic does not set."""

    def is_list(self, name: str) -> bool:
        """Return whether a config is a list, which APPEND and SUBTRACT require."""
        definition = topic_configs().get_definition(name)
        return definition is not None and definition.config_type is ConfigType.LIST

    def list_in_force(self, name: str) -> str | None:
        """Return the effective list value for a topic that does not set the config."""
        return self.layers.topic_default_shown(name)

    def validate(self, *, touched: Mapping[str, str | None], result: Mapping[str, str]) -> None:
        """Check the topic name, then the config names, then the touched values, then consistency between configs.

        Values that the topic already had were checked when they were set.

        Raises:
            InvalidRequestError: The topic name is empty.
            InvalidTopicError: The topic name is invalid.
            InvalidConfigError: A config does not exist or its value is invalid.
        """
        if not self.topic:
            raise InvalidRequestError("Default topic resources are not allowed.")
        check_topic_name(self.topic)
        values = parse_topic_configs({name: text for name, text in touched.items() if text is not None})
        self._check_lag(values, result)
        if values.get(_REMOTE_STORAGE):
            raise InvalidConfigError(
                "Tiered Storage functionality is disabled in the broker. "
                "Topic cannot be configured with remote log storage."
            )

    def _check_lag(self, values: Mapping[str, ConfigValue], result: Mapping[str, str]) -> None:
        if _MIN_LAG not in result and _MAX_LAG not in result:
            return
        least, most = (self._number(name, values, result) for name in (_MIN_LAG, _MAX_LAG))
        if least > most:
            raise InvalidConfigError(f"conflict topic config setting {_MIN_LAG} ({least}) > {_MAX_LAG} ({most})")

    def _number(self, name: str, values: Mapping[str, ConfigValue], result: Mapping[str, str]) -> int:
        if name in values:
            return cast("int", values[name])
        if name in result:
            return cast("int", topic_configs()[name].parse(result[name]))
        return cast("int", self.layers.topic_default(name))


def parse_topic_configs(configs: Mapping[str, str]) -> dict[str, ConfigValue]:
    """Parse topic configs. All names are checked first, then the values in Kafka's order.

    Raises:
        InvalidConfigError: A config does not exist or its value is invalid.
    """
    table = topic_configs()
    unknown = [name for name in configs if name not in table]
    if unknown:
        raise InvalidConfigError(f"Unknown topic config name: {min(unknown)}")
    names = configs if len(configs) == 1 else sorted(configs, key=table.positions.__getitem__)
    return {name: table[name].parse(configs[name]) for name in names}


def validate_topic_configs(
    topic: str, configs: Sequence[tuple[str, str | None]], layers: BrokerLayers
) -> dict[str, str]:
    """Check the configs of a topic in a CreateTopics request.

    Returns:
        The configs that the topic sets. For a name that appears twice, the last value counts, as in Kafka.

    Raises:
        InvalidConfigError: A value is null or invalid, or a config does not exist.
    """
    nulls = [name for name, value in configs if value is None]
    if nulls:
        raise InvalidConfigError(f"Null value not supported for topic configs: {','.join(nulls)}")
    texts = {name: value for name, value in configs if value is not None}
    check_lengths(texts.values())
    TopicSchema(topic=topic, layers=layers).validate(touched=texts, result=texts)
    return texts


def is_same(key: str, current: str | None, wanted: str) -> bool:
    """Return whether two values of a topic config are equal: numbers by value, lists in any order, without blanks."""
    if current is None or current == wanted:
        return current == wanted
    definition = topic_configs().get_definition(key)
    return definition is not None and definition.is_same(current, wanted)
