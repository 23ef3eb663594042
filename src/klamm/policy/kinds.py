"""Kinds of requests that a policy decides on, and the properties that configure policies."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from klamm.configs.definitions import (
    CREATE_TOPICS_POLICY,
    POLICY_RELOAD_INTERVAL_MS,
    POLICY_RULES_FILE,
    POLICY_TIMEOUT_MS,
    broker_configs,
)
from klamm.lazy_dataclass import dataclass
from klamm.policy.answers import Override, Throttle
from klamm.policy.errors import PolicyLoadError
from klamm.protocol.errors import InvalidConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.configs.values import ConfigValue
    from klamm.policy.answers import Answer


class PolicyMode(Enum):
    """Effect of a policy's denial. Values of ``<stem>.policy.mode``."""

    ENFORCE = "enforce"
    """The request is denied."""
    AUDIT = "audit"
    """The denial is counted and logged, and the request proceeds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyKind:
    """A kind of requests that a policy decides on. Compared by identity."""

    stem: str
    """Prefix of the properties of this kind."""
    label: str
    """Display name of the kind, capitalized."""
    method: str
    """Name of the method for this kind, which a class for several kinds may have instead of ``validate``."""
    answers: tuple[type[Answer], ...] = ()
    """Classes of answers that the policy may return."""
    overridable: tuple[str, ...] = ()
    """Fields of ``Override`` that have an effect."""
    must_compute: bool = False
    """Whether the policy must set ``only_computes``, because it is asked for requests that flow in numbers."""

    @property
    def class_key(self) -> str:
        """Property that names the class."""
        return f"{self.stem}.policy.class.name"

    @property
    def class_keys(self) -> tuple[str, ...]:
        """All properties that may name the class."""
        return (self.class_key, CREATE_TOPICS_POLICY) if self is CREATE_TOPIC else (self.class_key,)

    @property
    def mode_key(self) -> str:
        """Property that sets the mode."""
        return f"{self.stem}.policy.mode"


CREATE_TOPIC: Final = PolicyKind(
    stem="create.topic",
    label="Create topic",
    method="validate_create_topic",
    answers=(Override,),
    overridable=("configs", "num_partitions", "replication_factor"),
)
ALTER_CONFIG: Final = PolicyKind(
    stem="alter.config",
    label="Alter config",
    method="validate_alter_config",
    answers=(Override,),
    overridable=("configs",),
)
CREATE_PARTITIONS: Final = PolicyKind(
    stem="create.partitions", label="Create partitions", method="validate_create_partitions"
)
DELETE_TOPIC: Final = PolicyKind(stem="delete.topic", label="Delete topic", method="validate_delete_topic")
FLOW: Final = PolicyKind(
    stem="flow",
    label="Flow",
    method="validate_flow",
    answers=(Override, Throttle),
    overridable=("acks",),
    must_compute=True,
)
CLIENT: Final = PolicyKind(stem="client", label="Client", method="validate_client", must_compute=True)
API: Final = PolicyKind(stem="api", label="API", method="validate_api", must_compute=True)
KINDS: Final = (CREATE_TOPIC, ALTER_CONFIG, CREATE_PARTITIONS, DELETE_TOPIC)
"""Kinds of the broker."""
GATEWAY_KINDS: Final = (*KINDS, FLOW, CLIENT, API)
"""Kinds of the gateway."""
SETTINGS: Final = frozenset(
    {
        *(key for kind in GATEWAY_KINDS for key in (*kind.class_keys, kind.mode_key)),
        POLICY_TIMEOUT_MS,
        POLICY_RELOAD_INTERVAL_MS,
        POLICY_RULES_FILE,
    }
)
"""Properties that configure policies, without those of the policies' own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """A policy configured by properties: one object, however many kinds it serves."""

    module: str
    class_name: str
    keys: Mapping[PolicyKind, str]
    """The property that named the class, by kind."""

    @property
    def name(self) -> str:
        """Name of the class as ``module:Class``."""
        return f"{self.module}:{self.class_name}"

    @property
    def origin(self) -> str:
        """The first property that named the class, with its value."""
        return f"{next(iter(self.keys.values()))}={self.name}"


def names_policy(properties: Mapping[str, str], kinds: Sequence[PolicyKind] = KINDS) -> bool:
    """Return whether a policy class is configured. Unknown properties may then belong to the policy."""
    return any(properties.get(key, "").strip() for kind in kinds for key in kind.class_keys)


def read_specs(properties: Mapping[str, str], kinds: Sequence[PolicyKind] = KINDS) -> tuple[PolicySpec, ...]:
    """Return the policies that the properties name, in the order of ``kinds``.

    Raises:
        PolicyLoadError: A value is not a class name, or one kind has two different values.
    """
    keys_by_class: dict[tuple[str, str], dict[PolicyKind, str]] = {}
    for kind in kinds:
        values = {key: properties[key].strip() for key in kind.class_keys if properties.get(key, "").strip()}
        if not values:
            continue
        classes = {_parse(key, name) for key, name in values.items()}
        if len(classes) > 1:
            both = " and ".join(f"{key}={name}" for key, name in values.items())
            raise PolicyLoadError(f"{both} name different policies: set one of the two")
        keys_by_class.setdefault(classes.pop(), {})[kind] = next(iter(values))
    return tuple(
        PolicySpec(module=module, class_name=name, keys=keys) for (module, name), keys in keys_by_class.items()
    )


def read_modes(properties: Mapping[str, str], kinds: Sequence[PolicyKind] = KINDS) -> dict[PolicyKind, PolicyMode]:
    """Return the mode of every kind. The default is ``enforce``.

    Raises:
        PolicyLoadError: A mode is neither ``enforce`` nor ``audit``.
    """
    return {kind: _mode(properties, kind) for kind in kinds}


def _mode(properties: Mapping[str, str], kind: PolicyKind) -> PolicyMode:
    if kind in KINDS:
        return PolicyMode(str(_value(properties, kind.mode_key)).lower())
    value = properties.get(kind.mode_key, PolicyMode.ENFORCE.value)
    try:
        return PolicyMode(value.strip().lower())
    except ValueError:  # settings of the gateway only, so the broker's definitions do not have it
        raise PolicyLoadError(
            f"Invalid value {value} for configuration {kind.mode_key}: String must be one of (case insensitive):"
            " ENFORCE, AUDIT"
        ) from None


def read_milliseconds(properties: Mapping[str, str], key: str) -> int:
    """Return a duration from the properties in milliseconds, or its default if it is not set.

    Raises:
        PolicyLoadError: The value is not an integer or is out of range.
    """
    return int(str(_value(properties, key)))


def _value(properties: Mapping[str, str], key: str) -> ConfigValue | None:
    definition = broker_configs()[key]
    if key not in properties:
        return definition.default_value
    try:
        return definition.parse(properties[key])
    except InvalidConfigError as error:
        raise PolicyLoadError(error.error_message) from error


def _parse(key: str, name: str) -> tuple[str, str]:
    module_name, _, class_name = name.rpartition(":" if ":" in name else ".")
    if not module_name or not class_name:
        raise PolicyLoadError(f"{key}={name}: expected module:Class or module.Class")
    return module_name, class_name
