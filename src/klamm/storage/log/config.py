"""The topic configs of a partition log, and the broker configs of log maintenance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
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
    """Parsed effective configs of a topic. Names and defaults are Kafka's; times are milliseconds, sizes are bytes."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression: Codec | None = None
    """``compression.type``; None keeps the producer's codec."""
    compression_level: int | None = None
    """``compression.<codec>.level`` of that codec; None for the codec's default."""
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
    """-1 for no limit; the same holds for ``retention_ms``."""
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000

    @property
    def is_compacted(self) -> bool:
        """Return whether ``cleanup.policy`` contains "compact", so that records need keys."""
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Return whether ``cleanup.policy`` contains "delete", so that retention applies."""
        return "delete" in self.cleanup_policy

    def roll_after_ms(self, seed: int) -> int:
        """Return the age in milliseconds at which a segment is closed (``segment.ms``).

        Segments of compacted topics are closed in time for ``max.compaction.lag.ms`` (KIP-354).

        Args:
            seed: Number that differs per segment and spreads the closing times over ``segment.jitter.ms``.
        """
        limit = self.segment_ms
        if self.is_compacted and self.max_compaction_lag_ms > 0:
            limit = min(limit, self.max_compaction_lag_ms)
        return limit - (seed % min(self.segment_jitter_ms, limit) if self.segment_jitter_ms else 0)

    @classmethod
    def from_configs(cls, configs: Mapping[str, str]) -> LogConfig:
        """Parse effective topic configs. Missing configs get Kafka's default; other names are ignored.

        A new number must be listed in ``_NUMBERS``, or its value is ignored.

        Raises:
            ValueError: A value is not a number. Values are validated before they are stored, so this is a bug.
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
    """Counter of config changes that affect all topics. Shared by all logs, owned by the log manager."""

    number: int = 0


class LiveConfig:
    """The current configs of a topic, parsed at first use after a change. Used on the event loop only.

    So the cost of changing a default does not depend on the number of topics.
    """

    __slots__ = ("_config", "_epoch", "_read", "_seen")

    def __init__(self, read: Callable[[], Mapping[str, str]], epoch: ConfigEpoch) -> None:
        self._read = read
        self._epoch = epoch
        self._seen = -1
        self._config = LogConfig()

    def current(self) -> LogConfig:
        """Return the current configs."""
        if self._seen != self._epoch.number:
            self._config = LogConfig.from_configs(self._read())
            self._seen = self._epoch.number
        return self._config

    def changed(self) -> None:
        """Discard the parsed configs after a change."""
        self._seen = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HousekeepingSettings:
    """Broker configs of log maintenance. They may change while the broker runs."""

    retention_check_interval_s: float = 300.0
    """``log.retention.check.interval.ms``, in seconds."""
    producer_check_interval_s: float = 600.0
    """``producer.id.expiration.check.interval.ms``, in seconds."""
    producer_expiration_ms: int = 86_400_000
    """``producer.id.expiration.ms``."""
    cleaner_is_enabled: bool = True
    """``log.cleaner.enable``."""
    cleaner_backoff_s: float = 15.0
    """``log.cleaner.backoff.ms``, in seconds: the pause after a search that found no log to compact."""
    cleaner_bytes_per_s: float = float("inf")
    """``log.cleaner.io.max.bytes.per.second``, for reads and writes in total."""
    cleaner_map_bytes: int = 134_217_728
    """``log.cleaner.dedupe.buffer.size``: the memory that a pass may use for its map of keys."""
