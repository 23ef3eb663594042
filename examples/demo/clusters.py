"""The two clusters of the demo and the mirror between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from klamm.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType, TopicPartition
from klamm.embedded.broker import Broker
from klamm.embedded.server_process import TiedProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from klamm.admin import ConfigEntry

SOURCE_TOPIC: Final = "flights"
TARGET_TOPIC: Final = "A.flights"
PARTITIONS: Final = 6
POLICY: Final = "examples.demo.policy:FewPartitions"

_STOP_TIMEOUT_S: Final = 30.0

_MM2_PROPERTIES: Final = """\
clusters = A, B
A.bootstrap.servers = {source}
B.bootstrap.servers = {target}
A->B.enabled = true
topics = {topic}
offset-syncs.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
refresh.topics.interval.seconds = 1
sync.topic.configs.interval.seconds = 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCluster:
    """A broker and an admin client for it."""

    alias: str
    broker: Broker
    admin: AdminClient

    @classmethod
    def start(cls, alias: str, directory: Path, *, brokers: int, config: Mapping[str, object], keep: bool) -> Self:
        """Start a broker with its data below a directory.

        Args:
            alias: Name of the cluster in ``mm2.properties``.
            directory: Parent of the data directory, which is named like the cluster.
            brokers: Number of broker ids to present.
            config: Settings of the broker.
            keep: Whether the broker continues to run after the demo.
        """
        broker = Broker(brokers=brokers, config=config, data_dir=directory / alias, ends_with_parent=not keep).start()
        return cls(alias=alias, broker=broker, admin=AdminClient(broker.bootstrap_servers))

    def configs(self, topic: str) -> Mapping[str, ConfigEntry]:
        """Return a topic's configs."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return self.admin.describe_configs([resource]).values()[resource].result()

    def record_count(self, topic: str) -> int:
        """Return the number of records written to a topic, 0 if it does not exist."""
        if topic not in self.admin.list_topics().result():
            return 0
        latest = {TopicPartition(topic, partition): OffsetSpec.LATEST for partition in range(PARTITIONS)}
        offsets = self.admin.list_offsets(latest).all().result()
        return sum(listed.offset for listed in offsets.values())

    def log_bytes(self, topic: str) -> int:
        """Return the size of the topic's segments on disk."""
        return sum(path.stat().st_size for path in self.broker.data_dir.glob(f"**/{topic}-*/*.log"))

    def close(self, *, stop_broker: bool) -> None:
        """Close the admin client, and stop the broker unless it is kept."""
        self.admin.close()
        if stop_broker:
            self.broker.stop()


class MirrorProcess:
    """``klamm mirror mm2.properties`` in a child process."""

    def __init__(self, source: DemoCluster, target: DemoCluster, directory: Path) -> None:
        self._properties = directory / "mm2.properties"
        self._properties.write_text(
            _MM2_PROPERTIES.format(
                source=source.broker.bootstrap_servers, target=target.broker.bootstrap_servers, topic=SOURCE_TOPIC
            )
        )
        self._log = directory / "mirror.log"
        self._directory = directory
        self._tied: TiedProcess | None = None

    def __enter__(self) -> Self:
        """Start the mirror."""
        with self._log.open("wb") as log:
            self._tied = TiedProcess("klamm.cli.mirror", [str(self._properties)], log=log, directory=self._directory)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the mirror if it still runs."""
        self.stop()

    def ended(self) -> str | None:
        """Return the end of the mirror's log if it has ended by itself, None while it runs."""
        if self._tied is None or self._tied.process.poll() is None:
            return None
        tail = self._log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([f"The mirror ended with exit code {self._tied.process.returncode}:", *tail])

    def stop(self) -> int:
        """Stop the mirror in order and return its exit code."""
        return self._tied.end(_STOP_TIMEOUT_S) if self._tied else 0
