"""Write options of ``klamm-kafka``. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.dataframes.options import (
    REFUSED_TO_WRITE,
    check_kafkas,
    connection_settings,
    flag,
    milliseconds,
    refuse_unknown,
)
from klamm.properties import SettingsError, with_prefix
from klamm.protocol.records import Codec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.kafka_client.connection.transport import ConnectionSettings

_KAFKA: Final = "kafka."
_WRITING: Final = ("topic", "exactlyOnce")
_WITHOUT_EFFECT: Final = ("includeHeaders",)
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
    given = {name.lower(): value for name, value in options.items()}
    refuse_unknown(given, _WRITING, _WITHOUT_EFFECT)
    if overwrite:
        raise SettingsError("mode overwrite: a topic is not replaced, records are added to it; expected mode append")
    topic = given.get("topic", "").strip() or None
    exactly_once = flag("exactlyOnce", given, default=streaming)
    if exactly_once and not streaming:
        raise SettingsError(
            "exactlyOnce=true: only the batches of a stream have ids by which a repeated one is recognized"
        )
    kafka = with_prefix(given, _KAFKA)
    check_kafkas(kafka, _KAFKA_WRITING, REFUSED_TO_WRITE)
    if kafka.get("acks", "all").strip() not in {"all", "-1"}:
        raise SettingsError(f"kafka.acks={kafka['acks']}: expected all; other values are not supported")
    if (idempotent := kafka.get("enable.idempotence", "true").strip().lower()) != "true":
        raise SettingsError(f"kafka.enable.idempotence={idempotent}: expected true; other values are not supported")
    return WriteOptions(
        connection=connection_settings(given),
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
        known = ", ".join(codec.name.lower() for codec in Codec)
        raise SettingsError(f"kafka.compression.type={text}: expected one of {known}") from error
