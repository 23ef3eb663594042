"""Disturbances of a mirrored topic itself: compacted, deleted and created again, or with a record that is too large.

Each disturbance has a source topic of its own with one partition, which both flows of the rig mirror. It also states
which records the remote topics must hold at the end. That follows from what klamm documents in ``docs/mirror.md``, and
where it says nothing, from what MirrorMaker does.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from confluent_kafka import KafkaException

from klamm.admin import AdminClient
from tests.support.mirror import Seen, produce, set_config
from tests.support.mirror_rig import FIRST_TIMESTAMP_MS, Verdict, judge, read_all, record
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.support.mirror_rig import GuardedCluster, Writer

_COMPACTED: Final = {"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.001"}
_LARGE: Final = 1_500_000
"""Size in bytes of a record that a topic with the default ``max.message.bytes`` rejects."""
_ENOUGH: Final = str(2 * _LARGE)


class TopicDisturbance:
    """A source topic that is disturbed while both flows mirror it.

    Args:
        name: Name of the source topic.
        source: Cluster of the topic.
        target: Cluster of both remote topics.
        writer: Writer of numbered records to the source.
    """

    stop_reason: ClassVar[str] = ""
    """Reason for which the mirror must stop the partition, with ``{topic}``. Empty: it must not stop."""

    def __init__(self, name: str, source: GuardedCluster, target: GuardedCluster, writer: Writer) -> None:
        self.name = name
        self.remote_topics = (f"A-{name}", f"A.{name}")
        """Remote topics of the flows that copy exactly once and at least once."""
        self._source = source
        self._target = target
        self._writer = writer

    def apply(self) -> None:
        """Create the source topic and disturb it."""
        raise NotImplementedError

    def repair(self) -> None:
        """Do what an operator does after the mirror has stopped the partition."""

    def verdict(self, remote_topic: str) -> Verdict:
        """Compare a remote topic with the records that it must hold at the end."""
        raise NotImplementedError

    def found(self, remote_topic: str) -> list[Seen]:
        """Return the committed records of a remote topic. Empty if it does not exist."""
        with contextlib.suppress(KafkaException):
            return read_all(self._target.bootstrap_servers, remote_topic, 0)
        return []

    def _wanted(self) -> list[Seen]:
        return list(self._writer.wanted.get((self.name, 0), ()))

    def _create(self, configs: Mapping[str, str]) -> None:
        self._source.create_topic(self.name, 1, configs)

    def _wait_for_both(self, count: int) -> None:
        wait_until(
            lambda: all(len(self.found(remote)) >= count for remote in self.remote_topics),
            timeout_s=120,
            what=f"{count} records of {self.name} in both remote topics",
            interval_s=0.2,
        )


class Compaction(TopicDisturbance):
    """A source topic that is compacted all the time, most often below the mirrored position.

    The mirror may lack a record only if the source lacks it, too. The remote topics are not compacted: the rig's mirror
    does not sync ``cleanup.policy``.
    """

    def apply(self) -> None:
        self._create(_COMPACTED)
        self._writer.partitions[self.name] = 1
        self._wait_for_both(1)

    def repair(self) -> None:
        most = len(self._wanted()) / 2
        wait_until(lambda: len(self._left()) < most, timeout_s=60, what=f"{self.name} to be compacted", interval_s=0.5)

    def _left(self) -> list[Seen]:
        return read_all(self._source.bootstrap_servers, self.name, 0)

    def verdict(self, remote_topic: str) -> Verdict:
        mirrored = self.found(remote_topic)
        return judge(due_after_compaction(self._wanted(), mirrored, self._left()), mirrored)


def due_after_compaction(wanted: Sequence[Seen], mirrored: Sequence[Seen], left: Sequence[Seen]) -> list[Seen]:
    """Return the records that a remote topic must hold: without those that the source has removed before."""
    kept = {*mirrored, *left}
    return [seen for seen in wanted if seen in kept]


class TooLargeRecord(TopicDisturbance):
    """Source topic with a record that the target rejects until an operator raises ``max.message.bytes`` there."""

    stop_reason = "the record at offset 100 is larger than the target's max.message.bytes"

    def apply(self) -> None:
        self._create({"max.message.bytes": _ENOUGH})
        value = random.Random(894).randbytes(_LARGE)
        self._all = [record(number) for number in range(200)]
        self._all.insert(100, Seen(b"large", value, (), FIRST_TIMESTAMP_MS))
        settings = {"message.max.bytes": int(_ENOUGH)}
        produce(self._source.bootstrap_servers, self.name, [(0, seen) for seen in self._all], settings)

    def repair(self) -> None:
        for remote in self.remote_topics:
            assert {*self.found(remote)} == {*self._all[:100]}, f"{remote} must hold what precedes the large record"
            set_config(self._target.bootstrap_servers, remote, "max.message.bytes", _ENOUGH)

    def verdict(self, remote_topic: str) -> Verdict:
        return judge(self._all, self.found(remote_topic))


class SourceTopicAgain(TopicDisturbance):
    """A source topic that is deleted in the midst of copying and created again with other records.

    Both partitions stop. With ``klamm.on.source.loss=continue`` the new topic is mirrored from its beginning, after the
    records that the remote topic holds of the deleted one.
    """

    stop_reason = "{topic} was deleted and created again on the source"
    _OLD: ClassVar[int] = 800

    def apply(self) -> None:
        half = self._OLD // 2
        self._all = [record(number) for number in range(self._OLD + random.Random(self.name).choice((100, 1_000)))]
        self._create({})
        self._write(0, half)
        self._wait_for_both(1)
        self._seen = {remote: len(self.found(remote)) for remote in self.remote_topics}
        self._write(half, self._OLD)
        with AdminClient(self._source.bootstrap_servers) as admin:
            admin.delete_topics([self.name]).all().result(300)
        self._create({})
        self._write(self._OLD, len(self._all))

    def _write(self, start: int, end: int) -> None:
        produce(self._source.bootstrap_servers, self.name, [(0, seen) for seen in self._all[start:end]])

    def repair(self) -> None:
        for remote in self.remote_topics:
            new = {*self._all[self._OLD :]}.intersection(self.found(remote))
            assert not new, f"{remote} holds {len(new)} records of the new topic"

    def verdict(self, remote_topic: str) -> Verdict:
        mirrored = self.found(remote_topic)
        old, new = self._all[: self._OLD], self._all[self._OLD :]
        return judge(due_of_deleted_source(old, mirrored, self._seen[remote_topic]) + new, mirrored)


def due_of_deleted_source(old: Sequence[Seen], remote_records: Sequence[Seen], mirrored: int) -> list[Seen]:
    """Return the records of a deleted source topic that its remote topic must hold.

    Args:
        old: Records of the deleted topic.
        found: Records of the remote topic.
        mirrored: Number of records that the remote topic held before the deletion.
    """
    arrived = {*remote_records}
    last = max((at for at, seen in enumerate(old) if seen in arrived), default=-1)
    return list(old[: max(last + 1, mirrored)])


class TargetTopicsAgain(TopicDisturbance):
    """A source topic whose remote topics are deleted while it is written. The mirror creates them again.

    What was mirrored to the deleted topics is not mirrored again, and everything since is mirrored.
    """

    def apply(self) -> None:
        self._create({})
        self._writer.partitions[self.name] = 1
        self._wait_for_both(200)
        before = self._replicas()
        self._mirrored = {remote: len({*self.found(remote)}) for remote in self.remote_topics}
        with AdminClient(self._target.bootstrap_servers) as admin:
            admin.delete_topics(list(self.remote_topics)).all().result(300)
        wait_until(
            lambda: not before.items() & self._replicas().items(),
            timeout_s=60,
            what=f"nodes without {self.remote_topics}",
            interval_s=0.05,
        )
        self._written = len(self._wanted())
        self._wait_for_both(1)

    def _replicas(self) -> dict[Path, str]:
        """Return the ``partition.metadata`` of every replica on the target: it holds the topic id.

        A node that has applied the deletion has renamed the directory, and appends nothing to it any more.
        """
        out = {}
        for node, remote in itertools.product(self._target.nodes.values(), self.remote_topics):
            path = node.directory / "data" / f"{remote}-0" / "partition.metadata"
            with contextlib.suppress(FileNotFoundError):
                out[path] = path.read_text()
        return out

    def verdict(self, remote_topic: str) -> Verdict:
        mirrored = self.found(remote_topic)
        wanted = self._wanted()
        due = due_of_deleted_target(wanted, mirrored, self._written)
        verdict = judge(due, mirrored)
        mirrored_again = self._mirrored[remote_topic] - (len(wanted) - len(due))
        return verdict._replace(repeated=verdict.repeated + max(0, mirrored_again))


def due_of_deleted_target(wanted: Sequence[Seen], remote_records: Sequence[Seen], written: int) -> list[Seen]:
    """Return the records that a remote topic must hold after it was deleted and created again.

    Args:
        wanted: All records of the source topic.
        found: Records of the remote topic.
        written: Number of records in the source topic when the last node of the target had deleted the remote topic.
    """
    arrived = {*remote_records}
    first = next((at for at, seen in enumerate(wanted) if seen in arrived), len(wanted))
    return list(wanted[min(first, written) :])


TOPIC_DISTURBANCES: Final[Mapping[str, type[TopicDisturbance]]] = MappingProxyType(
    {
        "compacted below the position": Compaction,
        "record too large for the target": TooLargeRecord,
        "source topic created again": SourceTopicAgain,
        "target topics created again": TargetTopicsAgain,
    }
)
