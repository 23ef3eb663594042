"""A partition that starts again in the same copier: the target must not take new batches for repeated ones."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from klamm.admin import AdminClient, AlterConfigOp, ConfigEntry, ConfigResource, OpType, ResourceType
from klamm.mirror.copy.copier import Copier
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.progress.partition_progress import CopyState
from tests.support.copiers import copy_settings, is_done, run_until
from tests.support.klamm import KlammBroker
from tests.support.mirror import Seen, create_topic, produce, read
from tests.support.record_times import RECENT_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS = [Seen(None, b"%d" % number, (), RECENT_MS) for number in range(3)]
LARGE = Seen(None, b"x" * 20_000, (), RECENT_MS)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """One broker that is source and target of all tests, each with topics of its own."""
    with KlammBroker() as broker:
        create_topic(broker.bootstrap_servers, "mm2-offsets.A.internal", 5, {"cleanup.policy": "compact"})
        yield broker.bootstrap_servers


def run_to(copier: Copier, offset: int) -> None:
    run_until(copier, lambda: copier.progress()[0].next_offset == offset)


@pytest.mark.parametrize("shards", [0, 1])
def test_record_is_copied_after_its_limit_is_raised_and_partition_restarted(address: str, shards: int) -> None:
    # given
    topic = f"limited-{shards}"
    create_topic(address, topic, 1, {})
    create_topic(address, f"A.{topic}", 1, {"max.message.bytes": "10000"})
    settings = copy_settings(address, address, alias="A", shards=shards)
    with closing(Copier(settings, [PartitionId(topic, 0, f"A.{topic}")])) as copier, AdminClient(address) as admin:
        for number, record in enumerate(RECORDS[:2]):  # one batch each
            produce(address, topic, [(0, record)])
            run_to(copier, number + 1)
        produce(address, topic, [(0, LARGE)])
        run_until(copier, lambda: copier.progress()[0].state is CopyState.STOPPED)
        # when
        remote = ConfigResource(ResourceType.TOPIC, f"A.{topic}")
        change = AlterConfigOp(ConfigEntry("max.message.bytes", "1000000"), OpType.SET)
        admin.incremental_alter_configs({remote: [change]}).all().result(300)
        copier.restarts = {topic: 1}
        run_until(copier, lambda: copier.progress()[0].state is CopyState.COPYING and is_done(copier.progress()[0]))
        produce(address, topic, [(0, RECORDS[2])])
        run_to(copier, 4)
    # then
    assert read(address, f"A.{topic}", {0: 4}) == {0: [*RECORDS[:2], LARGE, RECORDS[2]]}


@pytest.mark.parametrize("shards", [0, 1])
def test_first_record_of_recreated_source_topic_is_copied(address: str, shards: int) -> None:
    # given
    topic = f"recreated-{shards}"
    create_topic(address, topic, 1, {})
    create_topic(address, f"A.{topic}", 1, {})
    settings = copy_settings(address, address, alias="A", shards=shards, continue_after_loss=True)
    with closing(Copier(settings, [PartitionId(topic, 0, f"A.{topic}")])) as copier, AdminClient(address) as admin:
        produce(address, topic, [(0, RECORDS[0])])
        run_until(copier, lambda: is_done(copier.progress()[0]))
        # when
        admin.delete_topics([topic]).all().result(300)
        create_topic(address, topic, 1, {})
        produce(address, topic, [(0, RECORDS[1])])
        run_until(copier, lambda: copier.progress()[0].records == 2)
    # then
    assert read(address, f"A.{topic}", {0: 2}) == {0: RECORDS[:2]}
