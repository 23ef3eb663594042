"""Read options of ``klamm-kafka``. They have the names of Spark's own Kafka source where it has them. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.client.transport import ConnectionSettings
from klamm.properties import SettingsError, parse_bool, parse_int, parse_list, split_address, split_servers, with_prefix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EARLIEST: Final = -2
LATEST: Final = -1
"""Special timestamps of ListOffsets, which Spark's JSON of offsets uses too."""

Positions = int | dict[str, dict[int, int]]
"""``EARLIEST`` or ``LATEST`` for all partitions, or an offset (or one of these two) by topic and partition."""

_MAX_INT64: Final = 2**63 - 1
_KAFKA: Final = "kafka."
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_READING: Final = (
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "failOnMissingTopic",
)
_WITHOUT_EFFECT: Final = (
    "includeHeaders",
    "minPartitions",
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
)
"""Options of Spark's own source that are accepted and have no effect on the result."""
_REFUSED_TO_READ: Final[Mapping[str, str]] = {
    "auto.offset.reset": "startingOffsets decides where a query begins",
    "enable.auto.commit": "the offsets of a stream are in Spark's checkpoint",
    "interceptor.classes": "no Java code sees the records",
    "key.deserializer": "keys are binary; convert them in the query",
    "value.deserializer": "values are binary; convert them in the query",
}
"""Properties of Kafka's consumer that Spark's own source rejects, too: without effect, they would mislead."""
REFUSED_TO_WRITE: Final[Mapping[str, str]] = {
    "interceptor.classes": "no Java code sees the records",
    "key.serializer": "keys are binary or string; convert them in the query",
    "value.serializer": "values are binary or string; convert them in the query",
}
"""The same for properties of Kafka's producer."""
_SPARKS: Final = ("schema", "path", "checkpointLocation", "queryName")
"""Options of Spark itself, which it passes to every source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Parsed read options: topics, start, end, limits. Sent to Spark's tasks."""

    connection: ConnectionSettings
    topics: tuple[str, ...]
    starting: Positions
    ending: Positions
    records_per_range: int | None
    """``maxRecordsPerPartition``; None means that one task reads a whole partition."""
    most_per_trigger: int | None
    """``maxOffsetsPerTrigger``; None means that a micro-batch takes everything that is available."""
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
    given = {name.lower(): value for name, value in options.items()}
    refuse_unknown(given, _READING, _WITHOUT_EFFECT)
    topics = tuple(dict.fromkeys(parse_list(given.get("subscribe", ""))))
    if not topics:
        raise SettingsError("subscribe: expected the names of topics, comma separated")
    if streaming and "endingoffsets" in given:
        raise SettingsError("endingOffsets: a stream has no end; leave it out, or read a batch")
    starting = _positions("startingOffsets", given.get("startingoffsets", "latest" if streaming else "earliest"))
    ending = _positions("endingOffsets", given.get("endingoffsets", "latest"))
    for name, positions in (("startingOffsets", starting), ("endingOffsets", ending)):
        _refuse_others(name, positions, topics)
    if ending == EARLIEST or (isinstance(ending, dict) and any(EARLIEST in by.values() for by in ending.values())):
        raise SettingsError("endingOffsets=earliest: expected latest, or JSON of offsets by topic and partition")
    if not streaming and starting == LATEST:
        raise SettingsError("startingOffsets=latest: a batch would be empty; expected earliest, or JSON of offsets")
    _refuse_reversed(starting, ending)
    kafka = with_prefix(given, _KAFKA)
    refuse_kafkas(kafka, _REFUSED_TO_READ)
    return ReadOptions(
        connection=connection_settings(given),
        topics=topics,
        starting=starting,
        ending=ending,
        records_per_range=_count("maxRecordsPerPartition", given),
        most_per_trigger=_count("maxOffsetsPerTrigger", given),
        fail_on_data_loss=flag("failOnDataLoss", given),
        fail_on_missing_topic=flag("failOnMissingTopic", given),
        read_committed=_isolation(kafka.get("isolation.level", "read_uncommitted")),
        patience_s=milliseconds("default.api.timeout.ms", kafka, 60_000) / 1000,
    )


def connection_settings(given: Mapping[str, str]) -> ConnectionSettings:
    """Return the connection settings of the cluster.

    Raises:
        SettingsError: The address is missing or invalid, or the security settings are.
    """
    kafka = with_prefix(given, _KAFKA)
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


def refuse_unknown(given: Mapping[str, str], known: Sequence[str], without_effect: Sequence[str] = ()) -> None:
    """Reject unknown options.

    Args:
        given: Option names in lower case, as Spark passes them.
        known: Options that have an effect.
        without_effect: Options that are accepted and ignored.

    Raises:
        SettingsError: An option is unknown. The message lists the known ones.
    """
    allowed = {name.lower() for name in (*known, *without_effect, *_SPARKS)}
    unknown = sorted(name for name in given if name not in allowed and not name.startswith(_KAFKA))
    if unknown:
        raise SettingsError(
            f"{', '.join(unknown)}: not an option of klamm-kafka; expected {', '.join(known)} or kafka.*"
        )


def refuse_kafkas(kafka: Mapping[str, str], refused: Mapping[str, str]) -> None:
    """Reject client properties that a query replaces by something else.

    Raises:
        SettingsError: One of them is set. The message says what to use.
    """
    for name, reason in refused.items():
        if name in kafka:
            raise SettingsError(f"{_KAFKA}{name}={kafka[name]}: not supported: {reason}")


def _refuse_others(name: str, positions: Positions, topics: Sequence[str]) -> None:
    """Reject offsets of topics that the query does not read: such a name is misspelt."""
    others = sorted(positions.keys() - set(topics)) if isinstance(positions, dict) else []
    if others:
        raise SettingsError(f"{name}: {', '.join(others)}: not among subscribe={','.join(topics)}")


def _refuse_reversed(starting: Positions, ending: Positions) -> None:
    """Reject an end before the start, which would be taken for a topic that was created again."""
    if isinstance(starting, int) or isinstance(ending, int):
        return
    for topic, by in ending.items():
        for partition, end in by.items():
            start = starting.get(topic, {}).get(partition, EARLIEST)
            if end >= 0 and (start > end or start == LATEST):
                where = f"{topic}-{partition}"
                raise SettingsError(
                    f"endingOffsets: {where} ends at {end}, before startingOffsets={start}: expected a later end"
                )


def _positions(name: str, text: str) -> Positions:
    if text.strip().lower() in _WORDS:
        return _WORDS[text.strip().lower()]
    expected = f'{name}={text}: expected earliest, latest or JSON like {{"topic":{{"0":23,"1":-2}}}}'
    try:
        document = json.loads(text)
        offsets = {topic: {int(one): _offset(at) for one, at in by.items()} for topic, by in document.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(expected) from error
    if any(not EARLIEST <= at <= _MAX_INT64 for by in offsets.values() for at in by.values()):
        raise SettingsError(f"{expected}; -2 means earliest, -1 latest")
    return offsets


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):  # a fraction would be rounded
        raise TypeError(f"{value!r} is not an offset")
    return int(value)


def _count(name: str, given: Mapping[str, str]) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        return parse_int(name, text, at_least=1, at_most=_MAX_INT64)
    except SettingsError as error:
        raise SettingsError(f"{name}={text}: expected a number of records, 1 or more") from error


def flag(name: str, given: Mapping[str, str], *, default: bool = True) -> bool:
    """Return the value of a boolean option.

    Raises:
        SettingsError: The value is neither true nor false.
    """
    return parse_bool(name, given.get(name.lower(), str(default)))


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
