"""A mirror on Spark that keeps offsets, whose driver is killed (SIGKILL) while records arrive."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.equal_offsets import ISOLATION_LEVELS, Content, contents
from tests.support.klamm import KlammBroker
from tests.support.mirror import MirrorProcess, Seen, create_topic, delete_records, produce, properties
from tests.support.mirror_groups import commit, committed
from tests.support.processes import wait_until
from tests.support.transactional_clients import Confluent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOREVER = {"retention.ms": "-1"}
YEAR_2013 = 1_356_998_400_000
PRESERVE = """
klamm.offsets = preserve
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
refresh.groups.interval.seconds = 1
"""


@pytest.fixture(scope="module")
def source() -> Iterator[KlammBroker]:
    with KlammBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def target() -> Iterator[KlammBroker]:
    with KlammBroker() as broker:
        yield broker


def write(address: str, first: int) -> None:
    """Write plain records to partition 0, and one aborted and one committed transaction."""
    records = [(0, Seen(b"k%d" % number, b"v%d" % number, (), YEAR_2013)) for number in range(first, first + 50)]
    produce(address, "t", records)
    with Confluent(address, "writer") as producer:
        for commit in (False, True):
            producer.begin()
            for number in range(3):
                producer.send("t", f"{first} {number} {commit}")
            producer.commit() if commit else producer.abort()


@pytest.mark.long
def test_records_and_groups_keep_offsets_when_the_driver_is_killed(
    source: KlammBroker, target: KlammBroker, tmp_path: Path
) -> None:
    # given
    here, there = source.bootstrap_servers, target.bootstrap_servers
    create_topic(here, "t", 2, FOREVER)
    write(here, 0)
    delete_records(here, "t", 0, before=20)
    commit(here, "readers", "t", 30)
    file = properties(here, there, PRESERVE, topics="t")
    # when
    with MirrorProcess(file, tmp_path) as mirror:
        for first in range(1_000, 1_500, 100):
            write(here, first)
        wait_until(lambda: len(_read(there)) > 40, timeout_s=120, what="records on the target")
        write(here, 2_000)
        mirror.kill()
    write(here, 3_000)
    end = max(contents(here, "t", "read_committed")) + 1
    commit(here, "readers", "t", end - 7)
    with MirrorProcess(file, tmp_path) as again:
        wait_until(lambda: _read(there) == contents(here, "t", "read_committed"), timeout_s=120, what="all records")
        wait_until(lambda: committed(there, "readers").get("A.t") == end - 7, timeout_s=60, what="the group's offset")
        assert again.stop() == 0
    # then
    expected = contents(here, "t", "read_committed")
    assert min(expected) == 20
    for isolation_level in ISOLATION_LEVELS:
        assert contents(there, "A.t", isolation_level) == expected
    checked = subprocess.run(
        [sys.executable, "-m", "klamm.cli", "mirror", "verify", tmp_path / "mm2.properties"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def _read(address: str) -> dict[int, Content]:
    return contents(address, "A.t", "read_committed")
