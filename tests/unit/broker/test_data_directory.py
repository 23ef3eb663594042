"""Data directories whose metadata are gone, damaged or of another cluster, and who may read them."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import re
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import tarfile
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

from klamm.broker.transactions.model import TransactionPartition
from klamm.cli.arguments import shown_moment
from klamm.protocol.records import iter_batches, patch_header
from klamm.protocol.records.layout import CONTROL
from klamm.storage.errors import DataDirectoryError
from klamm.storage.log.directories import CLEAN_SHUTDOWN, CLEANER_OFFSETS, write_offsets
from klamm.storage.metadata.history import read_config_history
from klamm.storage.metadata.identity import MetadataLostError
from tests.support.broker_app import running
from tests.support.damaged_records import NESTED
from tests.support.data_archive import ARCHIVES
from tests.support.logs import batch, read_all
from tests.support.transactions import ABORT, COMMIT, committed_values, end, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from klamm.broker.context import Services
    from klamm.storage.log import PartitionLog


def log_of(services: Services, name: str, partition: int = 0) -> PartitionLog:
    topic = services.topics.get(name)
    assert topic is not None
    log = services.logs.get(topic.topic_id, partition)
    assert log is not None
    return log


async def fill(data_dir: Path) -> str:
    """Run a broker with a topic of three partitions, of which two hold records; returns the cluster id."""
    async with running(data_dir) as services:
        await services.topics.create(
            "orders", [[1], [1], [1]], configs={"retention.ms": "1", "cleanup.policy": "compact"}
        )
        for partition in (0, 1):
            log_of(services, "orders", partition).append(batch("kept"))
        identity = await services.transactions.initialize("x", timeout_ms=10_000, expected=None)
        topic = services.topics.get("orders")
        assert topic is not None
        await services.transactions.add("x", identity, partitions={TransactionPartition(topic.topic_id, 0)})
        write(log_of(services, "orders"), identity.producer_id, "open", sequence=0)
        return services.cluster.cluster_id


def lose(data_dir: Path) -> None:
    (data_dir / "metadata.sqlite").unlink()


def empty(data_dir: Path) -> None:
    (data_dir / "metadata.sqlite").write_bytes(b"")


def overwrite(data_dir: Path) -> None:
    (data_dir / "metadata.sqlite").write_bytes(b"no database" * 1000)


def damage_a_page(data_dir: Path) -> None:
    """As a disk does it while the broker is killed: the file is checked after an unclean end."""
    (data_dir / "logs" / ".kafka_cleanshutdown").unlink()
    overwrite_table(data_dir, "settings")


def damage_a_page_after_a_clean_end(data_dir: Path) -> None:
    """The file is not checked then, so the damage shows when the configs are loaded."""
    overwrite_table(data_dir, "configs")


def overwrite_table(data_dir: Path, table: str) -> None:
    with closing(sqlite3.connect(data_dir / "metadata.sqlite")) as database:
        size = database.execute("PRAGMA page_size").fetchone()[0]
        page = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
    with (data_dir / "metadata.sqlite").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


def keep_only_tables(data_dir: Path) -> None:
    with closing(sqlite3.connect(data_dir / "metadata.sqlite")) as database:
        database.execute("DELETE FROM settings")
        database.commit()


DAMAGES = [lose, empty, overwrite, damage_a_page, damage_a_page_after_a_clean_end, keep_only_tables]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_logs_without_metadata_are_not_started_as_a_new_cluster(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    await fill(tmp_path)
    damage(tmp_path)
    before = sorted(path.name for path in (tmp_path / "logs").iterdir())
    # when
    with pytest.raises(DataDirectoryError, match=r"start once with --recover: .* It loses all configs"):
        async with running(tmp_path):
            pass
    # then
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == before


@pytest.mark.parametrize("damage", DAMAGES)
async def test_recovery_keeps_records_topic_ids_and_files(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    cluster_id = await fill(tmp_path)
    was = (tmp_path / "logs" / "orders-0" / "partition.metadata").read_text()
    damage(tmp_path)
    # when
    async with running(tmp_path, "--recover") as services:
        assert services.cluster.cluster_id == cluster_id
        topic = services.topics.get("orders")
        assert topic is not None
        assert topic.partitions == ((1,), (1,))
        assert [read_all(log_of(services, "orders", partition))[0].value for partition in (0, 1)] == [b"kept"] * 2
        config = services.configs.topic_config("orders")
        assert (config["retention.ms"], config["retention.bytes"]) == (-1, -1)
        # then: what was open is aborted, and its producer id is nobody else's
        assert committed_values(log_of(services, "orders")) == ["kept"]
        assert log_of(services, "orders").last_stable_offset == 3
        assert await services.producer_ids.allocate() > 1_000_000
    assert (tmp_path / "logs" / "orders-0" / "partition.metadata").read_text() == was
    # and: the option may stay
    async with running(tmp_path, "--recover") as services:
        assert await services.producer_ids.allocate() > 1_001_000


async def test_metadata_of_another_cluster_is_rejected(tmp_path: Path) -> None:
    await fill(tmp_path / "ours")
    await fill(tmp_path / "theirs")
    shutil.copy(tmp_path / "theirs" / "metadata.sqlite", tmp_path / "ours" / "metadata.sqlite")

    for options in ([], ["--recover"]):
        with pytest.raises(DataDirectoryError, match="put back the metadata and logs that belong together"):
            async with running(tmp_path / "ours", *options):
                pass


async def test_missing_meta_properties_is_restored_for_old_data_directory(tmp_path: Path) -> None:
    cluster_id = await fill(tmp_path)
    copy = tmp_path / "logs" / "meta.properties"
    copy.unlink()
    async with running(tmp_path) as services:
        assert services.cluster.cluster_id == cluster_id
    assert f"cluster.id={cluster_id}" in copy.read_text()


async def test_only_the_brokers_own_user_can_read_the_data(tmp_path: Path) -> None:
    def modes(data_dir: Path) -> dict[str, str]:
        paths = [data_dir, *data_dir.rglob("*")]
        return {
            path.name: oct(stat.S_IMODE(path.stat().st_mode))
            for path in paths
            if path.is_dir() or path.name.startswith("metadata.sqlite")
        }

    data_dir = tmp_path / "new" / "data"
    async with running(data_dir) as services:
        await services.topics.create("orders", [[1]], configs={})
        log_of(services, "orders").append(batch("secret"))
        private = {"data": "0o700", "logs": "0o700", "orders-0": "0o700"}
        files = ("metadata.sqlite", "metadata.sqlite-wal", "metadata.sqlite-shm")
        assert modes(data_dir) == private | dict.fromkeys(files, "0o600")
    assert stat.S_IMODE(data_dir.parent.stat().st_mode) == 0o700
    # and: a file that an older klamm made is closed to others
    (data_dir / "metadata.sqlite").chmod(0o644)
    async with running(data_dir):
        assert modes(data_dir)["metadata.sqlite"] == "0o600"


async def test_leader_epoch_increases_after_each_unclean_shutdown(tmp_path: Path) -> None:
    await fill(tmp_path)
    for expected in (0, 1, 1, 2):
        async with running(tmp_path) as services:
            log = log_of(services, "orders")
            assert (services.cluster.leader_epoch, log.leader_epoch) == (expected, expected)
            log.append(batch("x"))
            assert log.epochs.latest == expected
        if expected != 1 or log.epochs.epoch_of(log.end_offset - 2) == 1:
            (tmp_path / "logs" / CLEAN_SHUTDOWN).unlink()


async def test_recovery_ignores_producer_ids_that_no_broker_allocated(tmp_path: Path) -> None:
    """Otherwise the next id would not fit into the response of InitProducerId."""
    await fill(tmp_path)
    async with running(tmp_path) as services:
        invented = batch("x", producer_id=2**63 - 1, producer_epoch=0, base_sequence=0)
        log_of(services, "orders", 1).append(invented)
    lose(tmp_path)
    async with running(tmp_path, "--recover") as services:
        assert 1_000_000 < await services.producer_ids.allocate() < 1_100_000


async def test_recovered_leader_epoch_is_above_that_of_the_logs(tmp_path: Path) -> None:
    await fill(tmp_path)
    for _ in range(3):
        (tmp_path / "logs" / CLEAN_SHUTDOWN).unlink()
        async with running(tmp_path) as services:
            log_of(services, "orders").append(batch("x"))
    lose(tmp_path)
    async with running(tmp_path, "--recover") as services:
        assert services.cluster.leader_epoch == 3 + 1000


@pytest.fixture(scope="module")
def every_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data directory with records, groups, transactions and all kinds of metadata."""
    directory = tmp_path_factory.mktemp("archive")
    (archive,) = ARCHIVES.glob("*.tar.xz")
    with tarfile.open(archive) as files:
        files.extractall(directory, filter="data")
    return directory / "data"


def overwritten(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    at = rng.randrange(len(data) or 1)
    match rng.choice(["bits", "page", "cut", "noise", "JSON"]):
        case "bits":
            for at in rng.choices(range(len(data)), k=rng.choice([1, 20])) if data else ():
                changed[at] ^= 1 << rng.randrange(8)
        case "page":
            at -= at % 4096
            changed[at : at + 4096] = rng.choice([b"\0", b"\xff"]) * len(changed[at : at + 4096])
        case "cut":
            del changed[at:]
        case "noise":
            changed[at : at + 100] = rng.randbytes(100)
        case "JSON":
            return NESTED
    return bytes(changed)


def open_metadata_files(data_dir: Path) -> list[str]:
    """Return the files of the metadata that this process has open (Linux)."""
    gc.collect()  # a cursor in a cycle of frames keeps a closed database open
    paths = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing is closed again
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in paths if path.startswith(f"{data_dir}{os.sep}metadata")]


@pytest.mark.parametrize("seed", range(2_000) if os.environ.get("KLAMM_SOAK") else (*range(10), 125, 1411, 1414))
def test_start_with_a_corrupt_file_succeeds_or_names_the_directory(tmp_path: Path, every_file: Path, seed: int) -> None:
    rng = random.Random(seed)
    data_dir = tmp_path / "data"
    shutil.copytree(every_file, data_dir)
    metadata = data_dir / "metadata.sqlite"
    files = sorted(path for path in data_dir.rglob("*") if path.is_file())
    path = metadata if seed % 2 else rng.choice(files)
    path.write_bytes(overwritten(path.read_bytes(), rng))
    if rng.random() < 0.5:
        (data_dir / "logs" / CLEAN_SHUTDOWN).unlink()
    with suppress(DataDirectoryError):
        for entry in read_config_history(data_dir):
            assert shown_moment(entry.at_ms)
    options = ["--set", "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"]

    async def main(*more: str) -> None:
        async with running(data_dir, *options, *more) as services:
            for topic in services.topics.all():
                for partition in range(len(topic.partitions)):
                    assert services.logs.get(topic.topic_id, partition) is not None

    error = None
    try:
        asyncio.run(main())
    except DataDirectoryError as raised:
        error = raised
    assert error is None or str(data_dir) in str(error)
    is_lost = isinstance(error, MetadataLostError)
    error = None  # its traceback may refer to a cursor
    assert not open_metadata_files(data_dir)
    if is_lost:
        asyncio.run(main("--recover"))


@pytest.mark.parametrize("left", ["no directory", "an empty directory"])
@pytest.mark.parametrize("options", [[], ["--recover"]])
async def test_topics_without_their_log_directory_are_rejected(tmp_path: Path, left: str, options: list[str]) -> None:
    cluster_id = await fill(tmp_path)
    logs = tmp_path / "logs"
    logs.rename(tmp_path / "unmounted")
    if left == "an empty directory":
        logs.mkdir()
    with pytest.raises(DataDirectoryError, match="has 1 topic, whose records are missing"):
        async with running(tmp_path, *options):
            pass
    # when
    logs.mkdir(exist_ok=True)
    (logs / "meta.properties").write_text(f"cluster.id={cluster_id}\n")
    # then
    async with running(tmp_path) as services:
        assert log_of(services, "orders").end_offset == 0


@pytest.mark.process
def test_start_on_a_full_disk_fails_without_traceback(tmp_path: Path) -> None:
    """With a limit of 0 bytes on files, which fails writes as a full disk does."""
    asyncio.run(fill(tmp_path))
    (tmp_path / "logs" / CLEAN_SHUTDOWN).unlink()
    done = subprocess.run(
        [sys.executable, "-m", "klamm.broker.main", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert re.search(r"^klamm broker: .*(disk|write|full|large)", done.stderr, re.MULTILINE)


def clear_control_bits(partition: Path) -> None:
    """Damage the markers as versions that lost the control bit on topics with LogAppendTime did."""
    for path in partition.glob("*.log"):
        data = bytearray(path.read_bytes())
        position = 0
        for item in iter_batches(bytes(data)):
            patch_header(data, position, attributes=item.attributes & ~CONTROL)
            position += item.size
        path.write_bytes(data)


@pytest.mark.parametrize("was_clean", [True, False])
@pytest.mark.parametrize("is_compacted", [True, False])
async def test_start_restores_lost_control_bits_of_markers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, was_clean: bool, is_compacted: bool
) -> None:
    def values(log: PartitionLog) -> tuple[list[str], list[str]]:
        read = [record.value.decode() for record in read_all(log) if record.value and record.key == b"k"]
        return committed_values(log), read

    async with running(tmp_path) as services:
        await services.topics.create("orders", [[1]], configs={"message.timestamp.type": "LogAppendTime"})
        log = log_of(services, "orders")
        for sequence, (value, how) in enumerate([("a", COMMIT), ("b", ABORT), ("c", COMMIT), ("d", COMMIT)]):
            write(log, 7, value, sequence=sequence)
            end(log, 7, how)
        end(log, 7, ABORT)  # as a start after kill -9 wrote it, which found the transactions open
        expected = values(log)
        assert expected == (["a", "c", "d"], ["a", "b", "c", "d"])
    logs = tmp_path / "logs"
    clear_control_bits(logs / "orders-0")
    if is_compacted:
        write_offsets(logs / CLEANER_OFFSETS, {"orders-0": 1})
    if not was_clean:
        (logs / CLEAN_SHUTDOWN).unlink()
    with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as database:
        database.execute("DELETE FROM settings WHERE name = 'markers_restored'")
        database.commit()
    # when
    async with running(tmp_path) as services:
        log = log_of(services, "orders")
        # then
        assert values(log) == expected
        assert log.last_stable_offset == log.end_offset == 9
        assert [item.is_control for item in iter_batches(log.read(0, 1 << 20))] == [False, True] * 4 + [True]
    (warning,) = [text for text in caplog.messages if "control bit" in text]
    assert warning.startswith("orders-0: restored the control bit of 5 transaction markers")
    assert ("records of committed transactions may be missing" in warning) == is_compacted
    # and: no other start reads the logs for it
    clear_control_bits(logs / "orders-0")
    async with running(tmp_path) as services:
        assert not any(item.is_control for item in iter_batches(log_of(services, "orders").read(0, 1 << 20)))
