from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from klamm.protocol.errors import ErrorCode, StorageError
from klamm.storage.errors import DataDirectoryError
from klamm.storage.metadata.changes import PutSetting
from klamm.storage.metadata.schema import connect_sqlite
from klamm.storage.metadata.store import MetadataStore
from tests.support.failing_disk import Disk

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.storage.metadata.schema import Database


def put(name: str, value: str) -> tuple[PutSetting]:
    return (PutSetting(name=name, value=value),)


def settings_of(store: MetadataStore) -> dict[str, str]:
    return {setting.name: setting.value for setting in store.load_settings()}


def note(done: list[int], number: int, _: asyncio.Future[None]) -> None:
    done.append(number)


async def test_acknowledged_changes_survive_reopening(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / "new" / "metadata.sqlite")
    await store.submit(put("cluster_id", "abc"))
    await store.close()

    again = MetadataStore.open(tmp_path / "new" / "metadata.sqlite")
    assert settings_of(again) == {"cluster_id": "abc"}
    await again.close()


async def test_changes_are_visible_to_other_connections_when_the_future_completes(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / "metadata.sqlite")
    await store.submit(put("a", "1"))
    other = connect_sqlite(tmp_path / "metadata.sqlite")
    assert list(other.execute("SELECT name, value FROM settings")) == [("a", "1")]
    other.close()
    await store.close()


async def test_many_submissions_share_a_commit(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / "metadata.sqlite")
    await asyncio.gather(*(store.submit(put(f"name-{number}", str(number))) for number in range(1000)))
    assert store.commits == 1
    assert len(store.load_settings()) == 1000
    await store.close()


async def test_last_submission_wins_and_futures_complete_in_order(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / "metadata.sqlite")
    done: list[int] = []
    for number in range(50):
        future = store.submit(put("a", str(number)))
        future.add_done_callback(partial(note, done, number))
        if number % 7 == 0:
            await asyncio.sleep(0)
    await store.submit(())
    assert done == list(range(50))
    assert settings_of(store) == {"a": "49"}
    await store.close()


async def test_empty_submission_waits_for_earlier_ones_without_a_commit(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / "metadata.sqlite")
    before = store.submit(put("a", "1"))
    await asyncio.sleep(0)
    await store.submit(())
    assert before.done()
    assert store.commits == 1
    await store.close()


async def test_close_commits_queued_changes(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / "metadata.sqlite")
    future = store.submit(put("a", "1"))
    await store.close()
    await store.close()
    assert future.done()
    again = MetadataStore.open(tmp_path / "metadata.sqlite")
    assert settings_of(again) == {"a": "1"}
    await again.close()


async def test_closed_store_rejects_changes(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / "metadata.sqlite")
    await store.close()
    with pytest.raises(StorageError, match="closed"):
        store.submit(put("a", "1"))


async def test_canceled_waiter_does_not_roll_back_its_change(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / "metadata.sqlite")
    store.submit(put("a", "1")).cancel()
    await store.submit(put("b", "2"))
    assert settings_of(store) == {"a": "1", "b": "2"}
    await store.close()


async def test_failed_commit_fails_all_queued_changes(tmp_path: Path) -> None:
    # given
    disk = Disk()
    store = MetadataStore.open(tmp_path / "metadata.sqlite", connect=disk.connect)
    await store.submit(put("a", "1"))
    images: list[dict[str, str]] = []
    store.on_failure = lambda _: images.append(settings_of(store))
    disk.failures = 1
    # when
    first = store.submit(put("a", "2"))
    await asyncio.sleep(0)
    second = store.submit(put("b", "2"))
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    # then
    assert [type(outcome) for outcome in outcomes] == [StorageError, StorageError]
    assert isinstance(outcomes[0], StorageError)
    assert outcomes[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert images == [{"a": "1"}]
    await store.submit(put("c", "3"))
    assert settings_of(store) == {"a": "1", "c": "3"}
    await store.close()


async def test_changes_submitted_after_a_failed_commit_fail(tmp_path: Path) -> None:
    # given
    disk = Disk()
    store = MetadataStore.open(tmp_path / "metadata.sqlite", connect=disk.connect)
    calls: list[StorageError] = []
    store.on_failure = calls.append
    await store.submit(())
    disk.failures = 1
    # when: the loop is kept busy, so the news of the failure wait behind what it submits
    futures = [store.submit(put("a", "1"))]
    store.hand_over()
    while disk.failures:
        pass
    futures.append(store.submit(put("b", "1")))
    store.hand_over()
    futures.append(store.submit(put("c", "1")))
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    # then
    assert all(isinstance(outcome, StorageError) for outcome in outcomes)
    assert len(calls) == 1
    assert settings_of(store) == {}
    await store.close()


async def test_full_disk_is_reported_and_later_changes_succeed(tmp_path: Path) -> None:
    room = {"pages": 40}

    def connect(path: Path) -> Database:
        database = connect_sqlite(path)
        database.execute(f"PRAGMA max_page_count = {room['pages']}")
        return database

    # given
    store = MetadataStore.open(tmp_path / "metadata.sqlite", connect=connect)
    await store.submit(put("a", "1"))
    # when
    with pytest.raises(StorageError, match="full"):
        await store.submit(put("b", "x" * 1_000_000))
    await store.submit(put("c", "small"))
    room["pages"] = 1_000_000
    with pytest.raises(StorageError, match="full"):
        await store.submit(put("b", "x" * 1_000_000))
    await store.submit(put("b", "x" * 1_000_000))
    # then
    assert settings_of(store) == {"a": "1", "b": "x" * 1_000_000, "c": "small"}
    await store.close()


async def test_unstorable_value_fails_only_its_own_commit(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / "metadata.sqlite")
    with pytest.raises(StorageError):
        await store.submit(put("a", "\ud800"))
    await store.submit(put("a", "1"))
    assert settings_of(store) == {"a": "1"}
    await store.close()


async def test_failing_image_rebuild_still_completes_the_futures(tmp_path: Path) -> None:
    disk = Disk()
    store = MetadataStore.open(tmp_path / "metadata.sqlite", connect=disk.connect)
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))

    def fails(_: StorageError) -> None:
        raise ZeroDivisionError

    store.on_failure = fails
    disk.failures = 1
    with pytest.raises(StorageError):
        await store.submit(put("a", "1"))
    assert isinstance(unhandled[0]["exception"], ZeroDivisionError)
    await store.close()


def test_unusable_directory_is_rejected_when_opening(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(DataDirectoryError):
        MetadataStore.open(tmp_path / "file" / "metadata.sqlite")
