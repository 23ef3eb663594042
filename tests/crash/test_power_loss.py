"""The metadata store under power cuts: a disk that keeps written data in a cache and loses what was not synced."""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import apsw
import pytest

from klamm.storage.changes import PutGroupOffset, PutSetting
from klamm.storage.metadata import MetadataStore
from klamm.storage.schema import Database, connect_sqlite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

SECTOR = 512


@dataclass
class CachedFile:
    """What the platter holds, and the writes that only the cache has."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(offset, data), or (length, None) for a truncation."""


def applied(durable: bytearray, writes: Iterable[tuple[int, bytes | None]]) -> bytearray:
    result = bytearray(durable)
    for offset, data in writes:
        if data is None:
            del result[offset:]
        else:
            result.extend(bytes(max(0, offset + len(data) - len(result))))
            result[offset : offset + len(data)] = data
    return result


class SimulatedDisk:
    """An SQLite VFS over real files that also knows what a power cut would leave. Used from several threads."""

    def __init__(self, seed: int) -> None:
        self.name = f"disk-{id(self):x}"
        self.on_step: Callable[[], None] = lambda: None
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._files: dict[str, CachedFile] = {}
        self._vfs = SimulatedVfs(self)

    def connect(self, path: Path) -> Database:
        return ApswDatabase(path, self.name)

    def write(self, name: str, offset: int, data: bytes | None) -> None:
        with self._lock:
            self._files.setdefault(name, CachedFile()).pending.append((offset, data))
        self.on_step()

    def sync(self, name: str) -> None:
        self.on_step()
        with self._lock:
            file = self._files.setdefault(name, CachedFile())
            file.durable = applied(file.durable, file.pending)
            file.pending.clear()
        self.on_step()

    def delete(self, name: str) -> None:
        with self._lock:
            self._files.pop(name, None)

    def after_power_cut(self) -> Mapping[str, bytes]:
        """Return what the files hold when the power comes back: any of the unsynced sectors may have made it."""
        with self._lock:
            return {
                name.rpartition("/")[2]: bytes(applied(file.durable, self._survivors(file)))
                for name, file in self._files.items()
                if file.durable or file.pending
            }

    def _survivors(self, file: CachedFile) -> Iterable[tuple[int, bytes | None]]:
        fate = self._random.choice(("none", "all", "some", "prefix"))
        if fate == "none":
            return
        cut = self._random.randrange(len(file.pending) + 1)
        for index, (offset, data) in enumerate(file.pending):
            if data is None:
                yield offset, data
                continue
            for start in range(0, len(data), SECTOR):
                if (
                    fate == "all"
                    or (fate == "prefix" and index < cut)
                    or (fate == "some" and self._random.random() < 0.5)
                ):
                    yield offset + start, data[start : start + SECTOR]


class SimulatedVfs(apsw.VFS):
    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        super().__init__(disk.name, base="unix")

    def xOpen(self, name: Any, flags: Any) -> SimulatedFile:  # noqa: N802 - named by SQLite
        return SimulatedFile(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - named by SQLite
        super().xDelete(filename, syncdir)
        self._disk.delete(filename)


class SimulatedFile(apsw.VFSFile):
    def __init__(self, disk: SimulatedDisk, name: Any, flags: Any) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - named by SQLite
        super().xWrite(data, offset)
        self._disk.write(self._name, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - named by SQLite
        super().xTruncate(newsize)
        self._disk.write(self._name, newsize, None)

    def xSync(self, flags: int) -> None:  # noqa: N802 - named by SQLite
        super().xSync(flags)
        self._disk.sync(self._name)


class ApswDatabase:
    """The store's view of a connection, over apsw; checkpoints come often, so that power cuts meet them too."""

    def __init__(self, path: Path, vfs: str) -> None:
        self._real = apsw.Connection(str(path), vfs=vfs)

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterable[Sequence[Any]]:
        try:
            often = sql.replace("wal_autocheckpoint = 4000", "wal_autocheckpoint = 40")
            return list(self._real.execute(often, tuple(parameters)))
        except apsw.Error as error:
            raise sqlite3.OperationalError(str(error)) from error

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object:
        try:
            return list(self._real.executemany(sql, parameters))
        except apsw.Error as error:
            raise sqlite3.OperationalError(str(error)) from error

    def close(self) -> None:
        self._real.close()


class UnsafeDatabase(ApswDatabase):
    """Commits without waiting for the disk."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterable[Sequence[Any]]:
        return super().execute(sql.replace("synchronous = FULL", "synchronous = OFF"), parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCut:
    acknowledged: int
    """How many submissions had been acknowledged, from the first one on."""
    files: Mapping[str, bytes]


async def write_under_power_cuts(
    path: Path, disk: SimulatedDisk, connect: Callable[[Path], Database], *, submissions: int, seed: int
) -> list[PowerCut]:
    """Submit pairs of changes, and look at random moments what a power cut would leave."""
    chance = random.Random(seed)
    acknowledged = 0
    cuts: list[PowerCut] = []

    def maybe_cut() -> None:
        if chance.random() < 0.1:
            # What is acknowledged is read first: an acknowledgement that comes later proves nothing here.
            seen = acknowledged
            cuts.append(PowerCut(acknowledged=seen, files=disk.after_power_cut()))

    store = MetadataStore.open(path, connect=connect)
    disk.on_step = maybe_cut

    def on_done(future: asyncio.Future[None]) -> None:
        nonlocal acknowledged
        future.result()
        acknowledged += 1

    for number in range(submissions):
        future = store.submit(
            (
                PutSetting(name=f"setting-{number}", value=str(number) * chance.randrange(1, 400)),
                PutGroupOffset(
                    group_id="g",
                    topic_id=UUID(int=number),
                    partition=0,
                    offset=number,
                    leader_epoch=-1,
                    metadata="",
                    commit_timestamp_ms=0,
                ),
            )
        )
        future.add_done_callback(on_done)
        if chance.random() < 0.3:
            await future
    await store.close()
    cuts.append(PowerCut(acknowledged=acknowledged, files=disk.after_power_cut()))
    assert acknowledged == submissions
    return cuts


def what_is_wrong_after(cut: PowerCut, directory: Path) -> str | None:
    """Open what a power cut left with the real store; None when every promise was kept."""
    directory.mkdir()
    for name, content in cut.files.items():
        (directory / name).write_bytes(content)
    database = connect_sqlite(directory / "metadata.sqlite")
    intact = next(iter(database.execute("PRAGMA integrity_check")))[0]
    database.close()
    if intact != "ok":
        return f"damaged: {intact}"

    async def read() -> tuple[set[int], set[int]]:
        store = MetadataStore.open(directory / "metadata.sqlite")
        settings = {int(setting.name.removeprefix("setting-")) for setting in store.load_settings()}
        offsets = {offset.offset for offset in store.load_group_offsets()}
        await store.close()
        return settings, offsets

    settings, offsets = asyncio.run(read())
    if settings != offsets:
        return f"half a submission: {settings ^ offsets}"
    if settings != set(range(len(settings))):
        return "a later submission without an earlier one"
    if len(settings) < cut.acknowledged:
        return f"{cut.acknowledged} acknowledged, {len(settings)} there"
    return None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_was_acknowledged_survives_a_power_cut_whole_and_in_order(tmp_path: Path, seed: int) -> None:
    # given
    disk = SimulatedDisk(seed)
    # when
    cuts = asyncio.run(
        write_under_power_cuts(tmp_path / "metadata.sqlite", disk, disk.connect, submissions=400, seed=seed)
    )
    # then
    assert len(cuts) > 20
    for number, cut in zip(itertools.count(), cuts, strict=False):
        assert what_is_wrong_after(cut, tmp_path / str(number)) is None


def test_the_simulated_disk_does_lose_what_was_never_synced(tmp_path: Path) -> None:
    """A control: without fsync the same checks find losses, so the test above can fail."""
    disk = SimulatedDisk(1)

    cuts = asyncio.run(
        write_under_power_cuts(
            tmp_path / "metadata.sqlite",
            disk,
            lambda path: UnsafeDatabase(path, disk.name),
            submissions=200,
            seed=1,
        )
    )

    assert any(what_is_wrong_after(cut, tmp_path / str(number)) for number, cut in enumerate(cuts))
