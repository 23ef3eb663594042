"""The metadata store under power cuts: unsynced changes may be lost, acknowledged ones may not."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from klamm.storage.metadata.changes import PutGroupOffset, PutSetting
from klamm.storage.metadata.schema import Database, connect_sqlite
from klamm.storage.metadata.store import MetadataStore
from tests.support.long_tests import long_only
from tests.support.recorded_disk import ApswDatabase, Cut, RecordedDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

CUTS = 60


class UnsafeDatabase(ApswDatabase):
    """Commits without waiting for the disk."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterable[Sequence[Any]]:
        return super().execute(sql.replace("synchronous = FULL", "synchronous = OFF"), parameters)


async def write(path: Path, disk: RecordedDisk, connect: Callable[[Path], Database], *, submissions: int) -> None:
    """Submit pairs of changes; each acknowledgement is noted on the disk."""
    store = MetadataStore.open(path, connect=connect)

    def on_done(future: asyncio.Future[None]) -> None:
        future.result()
        disk.note("acknowledged")

    for number in range(submissions):
        future = store.submit(
            (
                PutSetting(name=f"setting-{number}", value=str(number) * random.randrange(1, 400)),
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
        if random.random() < 0.3:
            await future
    await store.close()


def wrong_after_cuts(
    tmp_path: Path, connect_of: Callable[[RecordedDisk], Callable[[Path], Database]], *, submissions: int, seed: int
) -> list[str]:
    """Write, cut the power at random moments and at the end, and return the promises that were broken."""
    here, chance = tmp_path / "here", random.Random(seed)
    here.mkdir()
    disk = RecordedDisk(here)
    with disk.recording():
        asyncio.run(write(here / "metadata.sqlite", disk, connect_of(disk), submissions=submissions))
    moments = sorted(chance.randrange(len(disk.journal)) for _ in range(CUTS))
    violations = [
        violations_after(cut, tmp_path / str(number))
        for number, cut in enumerate(disk.cuts([*moments, len(disk.journal)], chance))
    ]
    return [wrong for wrong in violations if wrong is not None]


def violations_after(cut: Cut, directory: Path) -> str | None:
    """Open what a power cut left with the real store; None when every promise was kept."""
    cut.write(directory)
    database = connect_sqlite(directory / "metadata.sqlite")
    try:
        intact = next(iter(database.execute("PRAGMA integrity_check")))[0]
    except sqlite3.DatabaseError as error:
        intact = str(error)
    finally:
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
    if len(settings) < len(cut.facts):
        return f"{len(cut.facts)} acknowledged, {len(settings)} there"
    return None


@pytest.mark.parametrize("seed", [1, *long_only(2, 3)])
def test_acknowledged_changes_survive_power_cuts_in_order(tmp_path: Path, seed: int) -> None:
    assert wrong_after_cuts(tmp_path, lambda disk: disk.connect, submissions=400, seed=seed) == []


def test_recorded_disk_loses_data_without_fsync(tmp_path: Path) -> None:
    """A control: without fsync the same checks find losses, so the test above can fail."""
    assert wrong_after_cuts(tmp_path, lambda disk: lambda path: UnsafeDatabase(path, disk.vfs), submissions=200, seed=1)
