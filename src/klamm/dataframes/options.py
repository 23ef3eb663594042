"""Read and write options of ``klamm-kafka``, named as those of Spark's own Kafka source where it has them. Pure."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from klamm.dataframes.positions import (
    MAX_INT64,
    assigned_partitions,
    check_names,
    check_order,
    ending_positions,
    starting_positions,
)
from klamm.kafka_client.connection.security import SECURITY_KEYS, SECURITY_PREFIXES, has_custom_class
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.lazy_dataclass import dataclass
from klamm.patterns import java_pattern
from klamm.properties import (
    SettingsError,
    did_you_mean,
    parse_bool,
    parse_int,
    parse_list,
    split_address,
    split_servers,
    with_prefix,
)
from klamm.protocol.records import Codec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.dataframes.positions import Positions

logger = logging.getLogger(__name__)

_NAMES: Final = """
    acks allow.auto.create.topics auto.commit.interval.ms auto.offset.reset batch.size bootstrap.resolve.timeout.ms
    bootstrap.servers buffer.memory buffer.memory.allocation.strategy check.crcs client.dns.lookup client.id
    client.rack compression.gzip.level compression.lz4.level compression.type compression.zstd.level
    config.providers connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms enable.auto.commit
    enable.idempotence enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes
    group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms interceptor.classes
    isolation.level key.deserializer key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection
    max.partition.fetch.bytes max.poll.interval.ms max.poll.records max.request.size metadata.cluster.check.enable
    metadata.max.age.ms metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
    partition.assignment.strategy partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
    partitioner.class partitioner.ignore.keys partitioner.rack.aware receive.buffer.bytes reconnect.backoff.max.ms
    reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
    sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
    sasl.oauthbearer.allow.unverified.audience sasl.oauthbearer.allow.unverified.issuer
    sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
    sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
    sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes session.timeout.ms
    share.acknowledgement.mode share.acquire.mode socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm
    ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain
    ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
    ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
    ssl.truststore.password ssl.truststore.type transaction.timeout.ms transaction.two.phase.commit.enable
    transactional.id value.deserializer value.serializer
"""
KAFKA_PROPERTIES: Final = frozenset(_NAMES.split())
"""Names in ``ConsumerConfig`` and ``ProducerConfig`` of Kafka 4.4."""
_KAFKA: Final = "kafka."
_TOPICS: Final = ("subscribe", "subscribePattern", "assign")
"""Options that select topics. A query has one of them."""
_OF_STREAMS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_READING: Final = (
    *_TOPICS,
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    *_OF_STREAMS,
    "failOnDataLoss",
    "failOnMissingTopic",
)
_WITHOUT_EFFECT: Final = (
    "includeHeaders",
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
)
"""Options of Spark's own source that are accepted and have no effect on the result."""
_KAFKA_READING: Final = ("isolation.level", "default.api.timeout.ms")
_KAFKA_OF_CONNECTIONS: Final = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "request.timeout.ms",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        *SECURITY_KEYS,
    }
)
"""Client properties that concern the connections."""
_DURATION: Final = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?", re.ASCII)
_UNITS_S: Final = {"us": 1e-6, None: 1e-3, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_REJECTED_WHEN_READING: Final[Mapping[str, str]] = {
    "auto.offset.reset": "startingOffsets decides where a query begins",
    "enable.auto.commit": "the offsets of a stream are in Spark's checkpoint",
    "interceptor.classes": "no Java code sees the records",
    "key.deserializer": "keys are binary; convert them in the query",
    "value.deserializer": "values are binary; convert them in the query",
}
"""Properties of Kafka's consumer that Spark's own source rejects, too: without effect, they would mislead."""
REJECTED_WHEN_WRITING: Final[Mapping[str, str]] = {
    "interceptor.classes": "no Java code sees the records",
    "key.serializer": "keys are binary or string; convert them in the query",
    "value.serializer": "values are binary or string; convert them in the query",
}
"""The same for properties of Kafka's producer."""
_SPARKS: Final = ("schema", "path", "checkpointLocation", "queryName")
"""Options of Spark itself, which it passes to every source."""
_WRITING: Final = ("topic", "exactlyOnce")
_WRITE_WITHOUT_EFFECT: Final = ("includeHeaders",)
"""Options of Spark's own source that a query may share with its sink. The column ``headers`` is always written."""
_KAFKA_WRITING: Final = (
    "acks",
    "compression.type",
    "delivery.timeout.ms",
    "enable.idempotence",
    "transaction.timeout.ms",
    "transactional.id",
)
_ID_PREFIX: Final = "klamm-kafka"
_TRANSACTION_TIMEOUT_MS: Final = 300_000
_DELIVERY_TIMEOUT_MS: Final = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Parsed read options: topics, start, end, limits. Sent to Spark's tasks."""

    connection: ConnectionSettings
    topics: tuple[str, ...]
    """Topics of ``subscribe`` or ``assign``; empty with ``subscribePattern``."""
    pattern: re.Pattern[str] | None = None
    """``subscribePattern``: matches names in which Kafka's consumer finds it. None: ``topics`` has the names."""
    assigned: Mapping[str, tuple[int, ...]] | None = None
    """``assign``: partitions by topic. None: all partitions."""
    starting: Positions
    ending: Positions
    records_per_range: int | None
    """``maxRecordsPerPartition``; None means that one task reads a whole partition."""
    min_ranges: int | None = None
    """``minPartitions``: about the number of tasks, if there are fewer partitions with records."""
    most_per_trigger: int | None
    """``maxOffsetsPerTrigger``; None means that a micro-batch takes everything that is available."""
    least_per_trigger: int | None = None
    """``minOffsetsPerTrigger``; None means that any record starts a micro-batch."""
    trigger_delay_s: float = 900.0
    """``maxTriggerDelay`` in seconds: the time after which fewer records than ``least_per_trigger`` suffice."""
    fail_on_data_loss: bool
    fail_on_missing_topic: bool
    """Whether a missing topic is an error. False treats it as empty."""
    read_committed: bool
    """``kafka.isolation.level``."""
    patience_s: float
    """``kafka.default.api.timeout.ms`` in seconds: the time that a partition may take to deliver existing records."""


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options of a query.

    Raises:
        SettingsError: An option is missing or unknown, or its value is invalid.
    """
    by_name = {name.lower(): value for name, value in options.items()}
    reject_unknown(by_name, _READING, _WITHOUT_EFFECT)
    topics, pattern, assigned = _selected(by_name)
    starting = starting_positions(by_name, streaming=streaming)
    ending = ending_positions(by_name, streaming=streaming)
    if pattern is None:
        check_names("starting", starting, topics)
        check_names("ending", ending, topics)
    check_order(starting, ending)
    least, most = _count("minOffsetsPerTrigger", by_name), _count("maxOffsetsPerTrigger", by_name)
    if least is not None and most is not None and least > most:
        raise SettingsError(f"minOffsetsPerTrigger={least}: expected at most maxOffsetsPerTrigger={most}")
    if not streaming and (ignored := [name for name in _OF_STREAMS if name.lower() in by_name]):
        logger.warning("%s: without effect, because the query is a batch", ", ".join(ignored))
    kafka = with_prefix(by_name, _KAFKA)
    check_kafkas(kafka, _KAFKA_READING, _REJECTED_WHEN_READING)
    return ReadOptions(
        connection=connection_settings(by_name),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending,
        records_per_range=_count("maxRecordsPerPartition", by_name),
        min_ranges=_count("minPartitions", by_name),
        most_per_trigger=most,
        least_per_trigger=least,
        trigger_delay_s=_duration_s("maxTriggerDelay", by_name.get("maxtriggerdelay", "15m")),
        fail_on_data_loss=flag("failOnDataLoss", by_name),
        fail_on_missing_topic=flag("failOnMissingTopic", by_name),
        read_committed=_isolation(kafka.get("isolation.level", "read_uncommitted")),
        patience_s=milliseconds("default.api.timeout.ms", kafka, 60_000) / 1000,
    )


def _selected(
    options: Mapping[str, str],
) -> tuple[tuple[str, ...], re.Pattern[str] | None, Mapping[str, tuple[int, ...]] | None]:
    """Return topics, pattern and partitions of the one option that selects topics."""
    chosen = [name for name in _TOPICS if name.lower() in options]
    if len(chosen) != 1:
        raise SettingsError(f"{', '.join(chosen) or 'topics'}: expected exactly one of {', '.join(_TOPICS)}")
    (name,) = chosen
    text = options[name.lower()].strip()
    if name == "assign":
        assigned = assigned_partitions(text)
        return tuple(sorted(assigned)), None, assigned
    if name == "subscribe":
        topics = tuple(dict.fromkeys(parse_list(text)))
        if not topics:
            raise SettingsError("subscribe: expected the names of topics, comma separated")
        return topics, None, None
    try:
        java_pattern(text)
        pattern = java_pattern(f".*(?:{text}).*")
    except re.error as error:
        raise SettingsError(f"subscribePattern={text}: expected a regular expression: {error}") from error
    if not text:
        raise SettingsError("subscribePattern: expected a regular expression that matches names of topics")
    return (), pattern, None


def connection_settings(options: Mapping[str, str]) -> ConnectionSettings:
    """Return the connection settings of the cluster.

    Raises:
        SettingsError: The address is missing or invalid, or the security settings are.
    """
    kafka = with_prefix(options, _KAFKA)
    servers = split_servers(kafka.get("bootstrap.servers", ""))
    if not servers:
        raise SettingsError("kafka.bootstrap.servers: expected host:port, or several of them, comma separated")
    for server in servers:
        if split_address(server) is None:
            raise SettingsError(f"kafka.bootstrap.servers={server}: expected host:port")
    milliseconds("request.timeout.ms", kafka, 30_000, at_least=1)
    try:
        return ConnectionSettings.of(servers, kafka, "klamm-kafka")
    except SettingsError as error:
        raise SettingsError(f"{_KAFKA}{error}") from error


def reject_unknown(options: Mapping[str, str], names: Sequence[str], without_effect: Sequence[str] = ()) -> None:
    """Reject unknown options.

    Args:
        options: Option names in lower case, as Spark passes them.
        names: Options that have an effect.
        without_effect: Options that are accepted and ignored.

    Raises:
        SettingsError: An option is unknown. The message lists the known ones.
    """
    allowed = {name.lower() for name in (*names, *without_effect, *_SPARKS)}
    unknown = sorted(name for name in options if name not in allowed and not name.startswith(_KAFKA))
    if unknown:
        hint = did_you_mean(unknown[0], names)
        raise SettingsError(
            f"{', '.join(unknown)}: not an option of klamm-kafka{hint}; expected {', '.join(names)} or kafka.*"
        )


def check_kafkas(kafka: Mapping[str, str], used: Collection[str], rejected: Mapping[str, str]) -> None:
    """Reject client properties that are misspelt or replaced by something else. Log a warning for unused ones.

    Kafka's clients log a warning for every name that they do not know. A misspelt one could mean a connection without
    encryption, or other records.

    Args:
        kafka: Client properties without ``kafka.``.
        used: Properties with an effect, besides those of connections.
        rejected: Reasons by name.

    Raises:
        SettingsError: One of them is rejected or misspelt. The message says what to use.
    """
    for name, reason in rejected.items():
        if name in kafka:
            raise SettingsError(f"{_KAFKA}{name}={kafka[name]}: not supported: {reason}")
    unused = sorted(kafka.keys() - _KAFKA_OF_CONNECTIONS - set(used))
    custom = SECURITY_PREFIXES if has_custom_class(kafka) else ()
    for name in unused:
        if name in KAFKA_PROPERTIES or name.startswith(custom):
            continue
        hint = did_you_mean(name, KAFKA_PROPERTIES)
        if hint or name.startswith(SECURITY_PREFIXES):
            raise SettingsError(f"{_KAFKA}{name}: not a property of Kafka's clients{hint}")
    if unused:
        logger.warning("%s: without effect on klamm-kafka", ", ".join(_KAFKA + name for name in unused))


def _count(name: str, options: Mapping[str, str]) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    try:
        return parse_int(name, text, at_least=1, at_most=MAX_INT64)
    except SettingsError as error:
        raise SettingsError(f"{name}={text}: expected a whole number, 1 or more") from error


def _duration_s(name: str, text: str) -> float:
    """Return a duration with one of Spark's units in seconds. Without a unit, it is in milliseconds."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise SettingsError(f"{name}={text}: expected a duration such as 500ms, 10s, 15m, 2h or 1d")
    return int(match[1]) * _UNITS_S[match[2]]


def flag(name: str, options: Mapping[str, str], *, default: bool = True) -> bool:
    """Return the value of a boolean option.

    Raises:
        SettingsError: The value is neither true nor false.
    """
    return parse_bool(name, options.get(name.lower(), str(default)))


def _isolation(text: str) -> bool:
    if text not in {"read_committed", "read_uncommitted"}:
        raise SettingsError(f"kafka.isolation.level={text}: expected read_committed or read_uncommitted")
    return text == "read_committed"


def milliseconds(name: str, kafka: Mapping[str, str], default: int, *, at_least: int = 0) -> int:
    """Return a duration option in milliseconds.

    Raises:
        SettingsError: The value is not a number, too small, or larger than Kafka's ``int``.
    """
    text = kafka.get(name, str(default)).strip()
    try:
        return parse_int(name, text, at_least=at_least)
    except SettingsError as error:
        raise SettingsError(
            f"kafka.{name}={text}: expected milliseconds, a whole number from {at_least} to {2**31 - 1}"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Parsed write options: topic, delivery guarantee, limits. Sent to Spark's tasks."""

    connection: ConnectionSettings
    topic: str | None
    """None takes the topic from a column."""
    exactly_once: bool
    """Whether a stream writes in transactions. Without effect on batch queries."""
    id_prefix: str
    """``kafka.transactional.id``: prefix of the transactional ids; query and task are appended."""
    transaction_timeout_ms: int
    """``kafka.transaction.timeout.ms``: the time that a task may take for its part of a micro-batch."""
    codec: Codec
    """``kafka.compression.type``."""
    patience_s: float
    """``kafka.delivery.timeout.ms`` in seconds: the time in which writes are retried."""


def write_options(options: Mapping[str, str], *, streaming: bool, overwrite: bool) -> WriteOptions:
    """Parse the options of a query.

    Raises:
        SettingsError: An option is missing or unknown, or its value is invalid.
    """
    by_name = {name.lower(): value for name, value in options.items()}
    reject_unknown(by_name, _WRITING, _WRITE_WITHOUT_EFFECT)
    if overwrite:
        raise SettingsError("mode overwrite: a topic is not replaced, records are added to it; expected mode append")
    topic = by_name.get("topic", "").strip() or None
    exactly_once = flag("exactlyOnce", by_name, default=streaming)
    if exactly_once and not streaming:
        raise SettingsError(
            "exactlyOnce=true: only the batches of a stream have ids by which a repeated one is recognized"
        )
    kafka = with_prefix(by_name, _KAFKA)
    check_kafkas(kafka, _KAFKA_WRITING, REJECTED_WHEN_WRITING)
    if kafka.get("acks", "all").strip() not in {"all", "-1"}:
        raise SettingsError(f"kafka.acks={kafka['acks']}: expected all; other values are not supported")
    if (idempotent := kafka.get("enable.idempotence", "true").strip().lower()) != "true":
        raise SettingsError(f"kafka.enable.idempotence={idempotent}: expected true; other values are not supported")
    return WriteOptions(
        connection=connection_settings(by_name),
        topic=topic,
        exactly_once=exactly_once,
        id_prefix=kafka.get("transactional.id", _ID_PREFIX),
        transaction_timeout_ms=milliseconds("transaction.timeout.ms", kafka, _TRANSACTION_TIMEOUT_MS, at_least=1),
        codec=_codec(kafka.get("compression.type", "none")),
        patience_s=milliseconds("delivery.timeout.ms", kafka, _DELIVERY_TIMEOUT_MS, at_least=1) / 1000,
    )


def _codec(text: str) -> Codec:
    try:
        return Codec[text.strip().upper()]
    except KeyError as error:
        codecs = ", ".join(codec.name.lower() for codec in Codec)
        raise SettingsError(f"kafka.compression.type={text}: expected one of {codecs}") from error
