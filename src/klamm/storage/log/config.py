"""The topic configs that a partition log goes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.protocol.records import Codec, TimestampType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NO_LIMIT: Final = 2**63 - 1
_CODECS: Final[Mapping[str, Codec]] = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Effective configs of a topic, parsed. Names and defaults are Kafka's; times in milliseconds, sizes in bytes."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression: Codec | None = None
    """``compression.type``; None keeps what the producer chose."""
    compression_level: int | None = None
    """The ``compression.<codec>.level`` that goes with ``compression``; None means the codec's default."""
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = NO_LIMIT
    flush_ms: int = NO_LIMIT
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = NO_LIMIT
    max_decompressed_message_bytes: int = 2_147_483_639
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = NO_LIMIT
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    preallocate: bool = False
    retention_bytes: int = -1
    """-1 means no limit, as for ``retention_ms``."""
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000

    @property
    def is_compacted(self) -> bool:
        """``cleanup.policy`` holds compact: records need keys."""
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """``cleanup.policy`` holds delete: retention applies."""
        return "delete" in self.cleanup_policy

    def roll_after_ms(self, seed: int) -> int:
        """Return the age at which a segment is closed; compacted ones in time for ``max.compaction.lag.ms`` (KIP-354).

        Args:
            seed: A number of the segment's own, which spreads the closing over ``segment.jitter.ms``.
        """
        limit = self.segment_ms
        if self.is_compacted and self.max_compaction_lag_ms > 0:
            limit = min(limit, self.max_compaction_lag_ms)
        return limit - (seed % min(self.segment_jitter_ms, limit) if self.segment_jitter_ms else 0)

    @classmethod
    def from_configs(cls, configs: Mapping[str, str]) -> LogConfig:
        """Parse effective topic configs; what is missing has Kafka's default, names of no interest are passed over.

        Raises:
            ValueError: A number that is none. Values are validated before they get here.
        """
        values: dict[str, object] = {}
        for field in _NUMBERS:
            text = configs.get(field.replace("_", "."))
            if text is not None:
                values[field] = int(text)
        if "cleanup.policy" in configs:
            policies = (policy.strip() for policy in configs["cleanup.policy"].split(","))
            values["cleanup_policy"] = frozenset(policy for policy in policies if policy)
        if configs.get("message.timestamp.type") == "LogAppendTime":
            values["message_timestamp_type"] = TimestampType.LOG_APPEND_TIME
        if "min.cleanable.dirty.ratio" in configs:
            values["min_cleanable_dirty_ratio"] = float(configs["min.cleanable.dirty.ratio"])
        if "internal.segment.bytes" in configs:
            values["segment_bytes"] = int(configs["internal.segment.bytes"])
        values["preallocate"] = configs.get("preallocate") == "true"
        codec = _CODECS.get(configs.get("compression.type", "producer"))
        if codec is not None:
            level = configs.get(f"compression.{codec.name.lower()}.level")
            values["compression"] = codec
            values["compression_level"] = int(level) if level is not None else None
        return cls(**values)  # type: ignore[arg-type]  # each value was parsed for its field above


_NUMBERS: Final = (
    "delete_retention_ms",
    "file_delete_delay_ms",
    "flush_messages",
    "flush_ms",
    "index_interval_bytes",
    "max_compaction_lag_ms",
    "max_decompressed_message_bytes",
    "max_message_bytes",
    "message_timestamp_after_max_ms",
    "message_timestamp_before_max_ms",
    "min_compaction_lag_ms",
    "retention_bytes",
    "retention_ms",
    "segment_bytes",
    "segment_index_bytes",
    "segment_jitter_ms",
    "segment_ms",
)


@dataclass(slots=True)
class ConfigEpoch:
    """Counts how often something changed that concerns all topics. Shared by all logs, owned by the log manager."""

    number: int = 0


class LiveConfig:
    """The configs of a topic in force: parsed when they are asked for first after a change. Loop-confined.

    So a change costs the same however many topics follow it.
    """

    __slots__ = ("_config", "_epoch", "_read", "_seen")

    def __init__(self, read: Callable[[], Mapping[str, str]], epoch: ConfigEpoch) -> None:
        self._read = read
        self._epoch = epoch
        self._seen = -1
        self._config = LogConfig()

    def current(self) -> LogConfig:
        """Return what is in force now."""
        if self._seen != self._epoch.number:
            self._config = LogConfig.from_configs(self._read())
            self._seen = self._epoch.number
        return self._config

    def changed(self) -> None:
        """Read anew when asked next."""
        self._seen = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HousekeepingSettings:
    """What the broker's configs say about keeping house; they may change while it runs."""

    retention_check_interval_s: float = 300.0
    """``log.retention.check.interval.ms``, in seconds."""
    producer_check_interval_s: float = 600.0
    """``producer.id.expiration.check.interval.ms``, in seconds."""
    producer_expiration_ms: int = 86_400_000
    """``producer.id.expiration.ms``."""
    cleaner_is_enabled: bool = True
    """``log.cleaner.enable``."""
    cleaner_backoff_s: float = 15.0
    """``log.cleaner.backoff.ms``, in seconds: how long there is no look for something to compact after finding none."""
    cleaner_bytes_per_s: float = float("inf")
    """``log.cleaner.io.max.bytes.per.second``: read and written together."""
    cleaner_map_bytes: int = 134_217_728
    """``log.cleaner.dedupe.buffer.size``: what a pass may spend on remembering keys."""
