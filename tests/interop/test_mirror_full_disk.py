"""A target with a full disk: the mirror reports it, loses no record, and resumes automatically when there is room."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest

from klamm.mirror.copy.copier import Copier
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.progress.partition_progress import CopyState
from tests.support.copiers import copy_settings, is_done, run_until
from tests.support.klamm import KlammBroker
from tests.support.long_tests import long_only
from tests.support.mirror import Seen, create_topic, produce, read
from tests.support.record_times import RECENT_MS

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDS = [Seen(None, b"%04d" % at + bytes(2_000), (), RECENT_MS) for at in range(400)]
ROOM_BYTES = 300_000
"""For each file; the partition's first is to hold more."""


def fill_disk(broker: KlammBroker) -> Callable[[], None]:
    """Limit the size of a broker's files to ``ROOM_BYTES`` until the returned function is called."""
    soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (ROOM_BYTES, hard))

    def make_room() -> None:
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (soft, hard))

    return make_room


@pytest.mark.parametrize("shards", [0, *long_only(1)])
def test_full_target_disk_delays_copying_without_loss(shards: int) -> None:
    with KlammBroker() as source, KlammBroker() as target:
        # given
        create_topic(source.bootstrap_servers, "t", 1, {})
        create_topic(target.bootstrap_servers, "A.t", 1, {})
        create_topic(target.bootstrap_servers, "mm2-offsets.A.internal", 1, {"cleanup.policy": "compact"})
        produce(source.bootstrap_servers, "t", [(0, record) for record in RECORDS])
        settings = copy_settings(source.bootstrap_servers, target.bootstrap_servers, alias="A", shards=shards)
        copier = Copier(settings, [PartitionId("t", 0, "A.t")])
        reasons = set()
        make_room = fill_disk(target)

        def is_all_there() -> bool:
            (row,) = copier.progress()
            if row.state is CopyState.WAITING and "KAFKA_STORAGE_ERROR" in row.reason:
                reasons.add(row.reason)
                make_room()
            return is_done(row)

        # when
        try:
            run_until(copier, is_all_there)
        finally:
            copier.close()
        # then
        assert any("File too large" in reason for reason in reasons), reasons
        assert read(target.bootstrap_servers, "A.t", {0: len(RECORDS)}) == {0: RECORDS}
