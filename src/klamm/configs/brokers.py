"""Rules for dynamic configs of one broker or of the whole cluster (KIP-226, Kafka's ``DynamicBrokerConfig``).

Almost every invalid broker config is rejected with INVALID_REQUEST. For topics, an invalid value is INVALID_CONFIG.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from klamm.configs.definitions import (
    MIN_INSYNC_REPLICAS,
    base_name,
    broker_configs,
    find_broker_config,
    has_listener_prefix,
    own_broker_configs,
    topic_configs,
)
from klamm.configs.layers import BrokerLayers
from klamm.configs.operations import ConfigSchema
from klamm.configs.values import format_value, invalid_value, parse_java_int
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import InvalidConfigError, InvalidRequestError, KafkaApiError
from klamm.protocol.types import ConfigOperation, ConfigType, UpdateMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_MIB = 1024 * 1024
_AS_LOG_RETENTION = -2
"""Value of ``log.local.retention.ms`` and ``log.local.retention.bytes``: the same as without ``local``."""

# TLS secrets and stores. They can be set only with a listener prefix.
_LISTENER_ONLY = {
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.truststore.certificates",
}
# With a listener prefix, only these can be set as the cluster-wide default.
_CLUSTER_WIDE_OF_LISTENERS = {"max.connections", "max.connection.creation.rate", "num.network.threads"}
# Sizes of thread pools. One change may at most double or halve them.
_THREAD_POOLS = (
    "num.io.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
    "num.network.threads",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.reader.threads",
)
# Read by the authorizer when it is configured. Kafka's config tables lack them: it accepts dynamic values and ignores
# them.
AUTHORIZER_CONFIGS = frozenset({"super.users", "allow.everyone.if.no.acl.found"})
# The listening sockets are bound once, at the start.
_FIXED_WHILE_RUNNING = ("listeners", "listener.security.protocol.map")
# Kafka's Utils.validHostPattern.
_HOST = re.compile(r"[0-9a-zA-Z\-%._:]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSchema(ConfigSchema):
    """Schema of the dynamic configs of one broker or of the cluster-wide default."""

    layers: BrokerLayers
    """Config layers of the broker that received the request, before the change."""
    is_cluster_default: bool
    speaks_for_process: bool = True
    """Whether the process uses this broker's settings. True only for the first of several broker ids
    (``--brokers``).
    """

    def is_list(self, name: str) -> bool:
        """Return whether a config is a list, which APPEND and SUBTRACT require."""
        definition = find_broker_config(name)
        return definition is not None and definition.config_type is ConfigType.LIST

    def list_in_force(self, name: str) -> str | None:
        """Return the effective list value if this resource does not set the config."""
        without = replace(self.layers, dynamic={}, **({"cluster": {}} if self.is_cluster_default else {}))
        value = without.value(name)
        return None if value is None else format_value(value)

    def reject_non_list(self, operation: ConfigOperation, name: str) -> KafkaApiError:
        """Return the error for APPEND or SUBTRACT on a non-list config: INVALID_REQUEST, as KIP-339 specifies.

        A config that no table defines is unknown: INVALID_CONFIG.
        """
        if find_broker_config(name) is None:
            return InvalidConfigError(f"Unknown config name: {name}")
        return InvalidRequestError(f"Config value {operation.name.lower()} is not allowed for config key: {name}")

    def validate(self, *, touched: Mapping[str, str | None], result: Mapping[str, str]) -> None:
        """Check which configs may change, their values, and whether the broker can run with the result.

        Configs that no table defines are accepted: in Kafka they belong to plugins.

        Raises:
            InvalidRequestError: The change is not possible.
            InvalidConfigError: The change removes the cluster-level ``min.insync.replicas``, which eligible leader
                replicas depend on (KIP-966), or sets it for a single broker.
        """
        values = {name: text for name, text in touched.items() if text is not None}
        self._check_names(values)
        _check_values(values)
        self._check_scope(values)
        after = replace(self.layers, **{"cluster" if self.is_cluster_default else "dynamic": result})
        try:
            for rule in _RULES:
                rule(self.layers, after)
        except InvalidConfigError as error:
            raise InvalidRequestError(as_dynamic_error(error.error_message)) from error
        self._check_min_insync_replicas(touched, result)

    def _check_names(self, values: Mapping[str, str]) -> None:
        fixed = [n for n in values if n in AUTHORIZER_CONFIGS or _is_read_only(n)]
        if fixed:
            own = [n for n in fixed if n in AUTHORIZER_CONFIGS or n in own_broker_configs()]
            reason = f"; klamm reads {', '.join(own)} only when it starts: set it in the properties file" if own else ""
            raise InvalidRequestError(f"Cannot update these configs dynamically: [{', '.join(fixed)}]{reason}")
        bare = [n for n in values if n in _LISTENER_ONLY]
        if bare:
            raise InvalidRequestError(
                "These security configs can be dynamically updated only per-listener using the listener prefix: "
                f"[{', '.join(bare)}]"
            )

    def _check_scope(self, values: Mapping[str, str]) -> None:
        if not self.is_cluster_default:
            shared = sorted(set(values) & set(own_broker_configs()))
            if shared and not self.speaks_for_process:
                raise InvalidRequestError(
                    f"{', '.join(shared)} cannot be set for this broker id alone, since all broker ids of the process"
                    " share it: set it as the cluster default"
                )
            logins = sorted(filter(_is_of_logins, values))
            if logins and not self.speaks_for_process:
                raise InvalidRequestError(
                    f"{', '.join(logins)} cannot be set for this broker id alone, since all broker ids of the process"
                    " share the logins of a listener: set it for the first of them"
                )
            return
        table = broker_configs()
        own = [
            n
            for n in values
            if (n in table and table[n].update_mode is UpdateMode.PER_BROKER)
            or (has_listener_prefix(n) and base_name(n) not in _CLUSTER_WIDE_OF_LISTENERS)
        ]
        if own:
            raise InvalidRequestError(
                f"Cannot update these configs at default cluster level, broker id must be specified: [{', '.join(own)}]"
            )

    def _check_min_insync_replicas(self, touched: Mapping[str, str | None], result: Mapping[str, str]) -> None:
        if not self.is_cluster_default and MIN_INSYNC_REPLICAS in touched:
            raise InvalidConfigError(f"Broker-level {MIN_INSYNC_REPLICAS} cannot be altered while ELR is enabled.")
        if self.is_cluster_default and MIN_INSYNC_REPLICAS not in result:
            raise InvalidConfigError(f"Cluster-level {MIN_INSYNC_REPLICAS} cannot be removed while ELR is enabled.")


def is_store_of_listener(name: str) -> bool:
    """Return whether a config is the path of a listener's TLS store.

    Setting it to the same value means the file changed.
    """
    return has_listener_prefix(name) and base_name(name) in _LISTENER_ONLY


def _is_of_logins(name: str) -> bool:
    """Return whether a config concerns the logins of a listener. All broker ids of a process share these."""
    base = base_name(name)
    is_of_tls = base.startswith("ssl.") and base != "ssl.principal.mapping.rules"
    return has_listener_prefix(name) and not is_of_tls and base not in _CLUSTER_WIDE_OF_LISTENERS


def check_broker_settings(static: Mapping[str, str]) -> None:
    """Check that the values of a properties file are consistent. Each single value has been checked before.

    Args:
        static: Values of the file, with the data directory in use as ``log.dirs``.

    Raises:
        InvalidConfigError: A broker cannot run with this file.
    """
    layers = BrokerLayers(static=static)
    for rule in _START_RULES:
        try:
            rule(layers, layers)
        except InvalidRequestError as error:
            raise InvalidConfigError(error.error_message) from error


def _is_read_only(name: str) -> bool:
    definition = broker_configs().get_definition(name)
    return definition is not None and definition.update_mode is UpdateMode.READ_ONLY


def _check_values(values: Mapping[str, str]) -> None:
    """Check single values, in Kafka's order: the error names the first invalid one."""
    positions = broker_configs().positions
    defined = [(definition, text) for name, text in values.items() if (definition := find_broker_config(name))]
    for definition, text in sorted(defined, key=lambda pair: positions[pair[0].name]):
        try:
            value = definition.parse(text)
            if definition.config_type is ConfigType.CLASS and value != definition.default:
                raise invalid_value(definition.name, text, f"Class {text} could not be found.")
        except InvalidConfigError as error:
            if definition.is_sensitive:
                raise InvalidRequestError(f"Invalid value for configuration {definition.name}") from error
            raise InvalidRequestError(error.error_message) from error


def as_dynamic_error(message: str | None) -> str:
    """Return a message as Kafka's dynamic config validation reports it, with one exception nested inside another."""
    return (
        f"Invalid value org.apache.kafka.common.config.ConfigException: {message} "
        "for configuration Invalid dynamic configuration"
    )


def _numbers(name: str, before: BrokerLayers, after: BrokerLayers) -> tuple[int, int]:
    return cast("int", before.value(name)), cast("int", after.value(name))


def _check_log_times(_: BrokerLayers, after: BrokerLayers) -> None:
    if after.topic_default("retention.ms") == 0:
        _require("log.retention.ms must be unlimited (-1) or, greater than or equal to 1")
    if cast("int", after.topic_default("segment.ms")) < 1:
        _require("log.roll.ms must be greater than or equal to 1")
    if cast("int", after.topic_default("segment.jitter.ms")) < 0:
        _require("log.roll.jitter.ms must be greater than or equal to 0")


def _check_cleaner(before: BrokerLayers, after: BrokerLayers) -> None:
    old, new = _numbers("log.cleaner.threads", before, after)
    if new < 1:
        raise InvalidRequestError("Log cleaner threads should be at least 1")
    if cast("int", after.value("log.cleaner.dedupe.buffer.size")) // new <= _MIB:
        _require("log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.")
    if new < old // 2:
        raise InvalidConfigError(f"Log cleaner threads cannot be reduced to less than half the current value {old}")
    if new > old * 2:
        raise InvalidConfigError(f"Log cleaner threads cannot be increased to more than double the current value {old}")


def _check_thread_pools(before: BrokerLayers, after: BrokerLayers) -> None:
    for name in (*_THREAD_POOLS, *sorted(_below_listeners("num.network.threads", after))):
        old, new = _numbers(name, before, after)
        if new == old:
            continue
        failed = f"Dynamic thread count update validation failed for {base_name(name)}={new}, value should"
        if new <= 0:
            raise InvalidConfigError(f"{failed} be at least 1")
        if new < old // 2:
            raise InvalidConfigError(f"{failed} be at least half the current value {old}")
        if new > old * 2:
            raise InvalidConfigError(f"{failed} not be greater than double the current value {old}")


def _check_local_retention(_: BrokerLayers, after: BrokerLayers) -> None:
    for what, topic_name in (("ms", "retention.ms"), ("bytes", "retention.bytes")):
        name = f"log.local.retention.{what}"
        limit, local = cast("int", after.topic_default(topic_name)), cast("int", after.value(name))
        if limit < 0 or local == _AS_LOG_RETENTION:
            continue
        if local == -1:
            raise invalid_value(name, local, f"Value must not be -1 as log.retention.{what} value is set as {limit}.")
        if local > limit:
            reason = f"Value must not be more than log.retention.{what} property value: {limit}"
            raise invalid_value(name, local, reason)


def _check_copy_lag(_: BrokerLayers, after: BrokerLayers) -> None:
    for what, topic_name in (("ms", "retention.ms"), ("bytes", "retention.bytes")):
        name, limit_name = f"log.remote.copy.lag.{what}", f"log.local.retention.{what}"
        lag, limit = cast("int", after.value(name)), cast("int", after.value(limit_name))
        if limit == _AS_LOG_RETENTION:
            limit = cast("int", after.topic_default(topic_name))
        if 0 <= limit < lag:
            raise invalid_value(name, lag, f"Value must not exceed {limit_name} (effective value: {limit})")


def _check_group_timings(_: BrokerLayers, after: BrokerLayers) -> None:
    """Check what Kafka's ``GroupCoordinatorConfig`` requires. Only the assignment intervals can change dynamically."""

    def number(name: str) -> int:
        return cast("int", after.value(name))

    for kind in ("consumer", "share", "streams"):
        for what in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms"):
            name, least, most = (f"group.{kind}.{prefix}{what}" for prefix in ("", "min.", "max."))
            if number(most) < number(least):
                raise InvalidRequestError(f"{most} must be greater than or equal to {least}")
            if number(name) > number(most):
                raise InvalidRequestError(f"{name} must be less than or equal to {most}")
            if number(name) < number(least):
                raise InvalidRequestError(f"{name} must be greater than or equal to {least}")
        heartbeat, session = f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms"
        if number(heartbeat) >= number(session):
            raise InvalidRequestError(f"{heartbeat} must be less than {session}")


def _check_cordoned(_: BrokerLayers, after: BrokerLayers) -> None:
    name = "cordoned.log.dirs"
    cordoned = cast("tuple[str, ...]", after.value(name))
    if "*" in cordoned:
        if len(cordoned) > 1:
            _require(f"When {name} is set to *, it must not contain other values")
        return
    # The file may name the data directory by a relative path. While the broker runs, log.dirs is its absolute path.
    present = {Path(d).absolute() for d in cast("tuple[str, ...]", after.value("log.dirs") or after.value("log.dir"))}
    missing = [directory for directory in cordoned if Path(directory).absolute() not in present]
    if missing:
        _require(
            f"All entries in {name} must be present in log.dirs or log.dir. Missing entries : {', '.join(missing)}"
        )


def _check_topic_values(_: BrokerLayers, after: BrokerLayers) -> None:
    """Check values that become those of topics like the topic's config. The broker configs allow smaller ones."""
    for name, topic_name in (
        ("offsets.topic.segment.bytes", "segment.bytes"),
        ("transaction.state.log.segment.bytes", "segment.bytes"),
        ("log.flush.interval.ms", "flush.ms"),
    ):
        if (value := cast("int | None", after.value(name))) is not None:
            replace(topic_configs()[topic_name], name=name).parse(format_value(value))


def _check_listeners(before: BrokerLayers, after: BrokerLayers) -> None:
    for name in _FIXED_WHILE_RUNNING:
        if after.value(name) != before.value(name):
            raise InvalidRequestError(f"{name} cannot be changed while the broker runs: set it in the properties file")


def _check_overrides(_: BrokerLayers, after: BrokerLayers) -> None:
    name = "max.connections.per.ip.overrides"
    overrides = str(after.value(name) or "")
    if after.value("max.connections.per.ip") == 0 and not overrides.strip():
        _require(f"max.connections.per.ip can be set to zero only if {name} property is set.")
    for override in filter(None, (part.strip() for part in overrides.split(","))):
        host, _colon, count = override.rpartition(":")
        if not host or not count.strip().isdecimal() or parse_java_int(count.strip()) is None:
            raise InvalidRequestError(f"Error parsing configuration property '{name}': {override!r} is not host:count")
        if _HOST.fullmatch(host) is None:
            raise InvalidRequestError(f"{name} contains invalid addresses : {host}")


def _check_connection_limits(before: BrokerLayers, after: BrokerLayers) -> None:
    """Reject a connection limit of 0 or less: no client could connect any more, not even to change the limit."""
    for base in ("max.connections", "max.connection.creation.rate"):
        for name in sorted({base, *_below_listeners(base, after)}):
            if cast("int", after.value(name)) <= 0 and after.value(name) != before.value(name):
                raise InvalidConfigError(f"Invalid {base} {after.value(name)}")


def _below_listeners(base: str, layers: BrokerLayers) -> set[str]:
    names = {*layers.dynamic, *layers.cluster, *layers.static}
    return {name for name in names if has_listener_prefix(name) and base_name(name) == base}


def _check_reporters(before: BrokerLayers, after: BrokerLayers) -> None:
    if after.value("metric.reporters") not in {before.value("metric.reporters"), ()}:
        raise InvalidConfigError(
            "Validation of dynamic config update of Set(metric.reporters) failed with class class "
            "kafka.server.DynamicMetricsReporters"
        )


def _require(message: str) -> None:
    raise InvalidRequestError(f"requirement failed: {message}")


_RULES: tuple[Callable[[BrokerLayers, BrokerLayers], None], ...] = (
    _check_log_times,
    _check_listeners,
    _check_overrides,
    _check_connection_limits,
    _check_cleaner,
    _check_thread_pools,
    _check_local_retention,
    _check_copy_lag,
    _check_group_timings,
    _check_cordoned,
    _check_reporters,
)

# Kafka starts with a copy lag above the local retention, which it rejects dynamically.
_START_RULES: tuple[Callable[[BrokerLayers, BrokerLayers], None], ...] = (
    _check_log_times,
    _check_overrides,
    _check_cleaner,
    _check_local_retention,
    _check_group_timings,
    _check_cordoned,
    _check_topic_values,
)
