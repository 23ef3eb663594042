"""The recorded disk: unsynced changes that survive a power cut, and detection of unrecorded changes."""

from __future__ import annotations

import builtins
import os
import random
from typing import TYPE_CHECKING, Final

import pytest

from klamm.storage.log import flusher
from tests.support.recorded_disk import FATES, SECTOR, Cut, RecordedDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OLD, NEW = b"o", b"n"
NAMES: Final = ("x", "y", "z")
SEEDS: Final = range(300)


def change(root: Path) -> None:
    """Overwrite three sectors and create three files, and sync nothing."""
    descriptor = os.open(root / "data", os.O_RDWR)
    os.pwrite(descriptor, NEW * 3 * SECTOR, 0)
    os.close(descriptor)
    for name in NAMES:
        os.close(os.open(root / name, os.O_RDWR | os.O_CREAT))


def sync(root: Path) -> None:
    for path in (root / "data", root):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def recorded(root: Path, *steps: Callable[[Path], None], loses_synced_data: bool = False) -> RecordedDisk:
    root.mkdir()
    (root / "data").write_bytes(OLD * 3 * SECTOR)
    disk = RecordedDisk(root)
    disk.loses_synced_data = loses_synced_data
    with disk.recording():
        for step in steps:
            step(root)
    return disk


def outcomes_of(disk: RecordedDisk, *fates: str | None) -> tuple[set[str], set[str]]:
    """Return all combinations of names and of sectors that power cuts at the end leave."""

    def sectors(cut: Cut) -> str:
        return cut.files["data"][::SECTOR].decode()

    cuts = [
        cut
        for fate in fates
        for seed in SEEDS
        for cut in disk.cuts([len(disk.journal)], random.Random(seed), fate=fate)
    ]
    return {"".join(sorted(cut.files.keys() - {"data"})) for cut in cuts}, {sectors(cut) for cut in cuts}


@pytest.mark.parametrize(
    ("fate", "names", "sectors"),
    [
        ("none", {""}, {"ooo"}),
        ("all", {"xyz"}, {"nnn"}),
        ("prefix", {"", "x", "xy", "xyz"}, {"ooo", "noo", "nno", "nnn"}),
        (
            "random",
            {"", "x", "y", "z", "xy", "xz", "yz", "xyz"},
            {"ooo", "noo", "ono", "oon", "nno", "non", "onn", "nnn"},
        ),
    ],
)
def test_unsynced_changes_are_lost_or_kept_by_the_chosen_fate(
    tmp_path: Path, fate: str, names: set[str], sectors: set[str]
) -> None:
    assert outcomes_of(recorded(tmp_path / "disk", change), fate) == (names, sectors)


def test_names_and_file_contents_survive_independently(tmp_path: Path) -> None:
    disk = recorded(tmp_path / "disk", change)
    cuts = [next(disk.cuts([len(disk.journal)], random.Random(seed))) for seed in SEEDS]
    # then
    outcomes = {("x" in cut.files and "z" not in cut.files, cut.files["data"][::SECTOR]) for cut in cuts}
    assert outcomes >= {(True, b"ooo"), (True, b"nnn"), (False, b"ono"), (True, b"ono")}


def test_synced_changes_are_always_kept(tmp_path: Path) -> None:
    assert outcomes_of(recorded(tmp_path / "disk", change, sync), None, *FATES) == ({"xyz"}, {"nnn"})


def sync_everything(_: Path) -> None:
    flusher.syncfs(0)


def test_file_system_sync_makes_all_changes_durable(tmp_path: Path) -> None:
    assert outcomes_of(recorded(tmp_path / "disk", change, sync_everything), None, *FATES) == ({"xyz"}, {"nnn"})


def test_lying_disk_loses_synced_changes(tmp_path: Path) -> None:
    assert outcomes_of(recorded(tmp_path / "disk", change, sync, loses_synced_data=True), "none") == ({""}, {"ooo"})


def test_write_during_an_fsync_is_not_durable(tmp_path: Path) -> None:
    disk = recorded(tmp_path / "disk")

    def write_late() -> None:
        if disk.journal and disk.journal[-1].operation == "before fsync":
            disk.before_each = lambda: None
            change(tmp_path / "disk")

    disk.before_each = write_late
    with disk.recording():
        sync(tmp_path / "disk")
    # then: the fsync of the directory, which began later, includes the names
    assert outcomes_of(disk, "none") == ({"xyz"}, {"ooo"})


def test_rename_survives_atomically(tmp_path: Path) -> None:
    disk = recorded(tmp_path / "disk", lambda root: os.rename(root / "data", root / "renamed"))
    cuts = [next(disk.cuts([len(disk.journal)], random.Random(seed))) for seed in SEEDS]
    assert {tuple(cut.files) for cut in cuts} == {("data",), ("renamed",)}


def past(root: Path) -> None:
    with builtins.open(root / "data", "wb"):
        """Empty the file by a function that is not recorded."""


def test_unrecorded_change_fails_the_test(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="written past the recorded functions: data"):
        recorded(tmp_path / "disk", past)
