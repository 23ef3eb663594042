"""The options of ``klamm-kafka`` as a sink. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.dataframes.options import connection_settings, flag, milliseconds, refuse_unknown
from klamm.properties import SettingsError, with_prefix
from klamm.protocol.records import Codec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.client.transport import ConnectionSettings

_KAFKA: Final = "kafka."
_WRITING: Final = ("topic", "exactlyOnce")
_ID_PREFIX: Final = "klamm-kafka"
_TRANSACTION_TIMEOUT_MS: Final = 300_000
_DELIVERY_TIMEOUT_MS: Final = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where records go, and how. Travels to Spark's tasks."""

    connection: ConnectionSettings
    topic: str | None
    """None: a column tells."""
    exactly_once: bool
    """Streams only."""
    id_prefix: str
    """``kafka.transactional.id``: how transactional ids begin; query and task follow."""
    transaction_timeout_ms: int
    """``kafka.transaction.timeout.ms``: how long a task may take for a batch of a stream."""
    codec: Codec
    """``kafka.compression.type``."""
    patience_s: float
    """``kafka.delivery.timeout.ms``: how long records are tried to be written."""


def write_options(options: Mapping[str, str], *, streaming: bool, overwrite: bool) -> WriteOptions:
    """Read the options of a query.

    Raises:
        SettingsError: An option that is missing, unknown, or has a value that cannot be.
    """
    given = {name.lower(): value for name, value in options.items()}
    refuse_unknown(given, _WRITING)
    if overwrite:
        raise SettingsError("mode overwrite: a topic is not replaced, records are added to it; expected mode append")
    topic = given.get("topic", "").strip() or None
    exactly_once = flag("exactlyOnce", given, default=streaming)
    if exactly_once and not streaming:
        raise SettingsError("exactlyOnce=true: a batch has no id by which it would be known again; only a stream has")
    kafka = with_prefix(given, _KAFKA)
    if kafka.get("acks", "all").strip() not in {"all", "-1"}:
        raise SettingsError(f"kafka.acks={kafka['acks']}: expected all; nothing less is written here")
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
