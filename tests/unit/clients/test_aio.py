"""aiokafka's clients with dynamic configs: their heartbeats, start and default server."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator  # type: ignore[import-untyped]
from aiokafka.errors import KafkaConnectionError  # type: ignore[import-untyped]

from klamm.client_configs.definitions import ACKS, HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from klamm.clients import aio
from klamm.clients.dynamic_config import ConfigChange, ConfigUpdate, DynamicConfigs, Origin
from klamm.clients.own_connection import OwnConnection
from tests.support.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Callable


class Coordinator:
    """aiokafka's handling of the heartbeat task, without a broker."""

    _start_heartbeat_task = GroupCoordinator._start_heartbeat_task
    _stop_heartbeat_task = GroupCoordinator._stop_heartbeat_task

    def __init__(self) -> None:
        self.generation = 7
        self.member_id = "m"
        self.beats: list[bool] = []
        """Success of each heartbeat that is sent at once."""
        self.failures = 0
        """Number of these heartbeats that fail."""
        self._retry_backoff_ms = 0
        self.intervals: list[int] = []
        """Intervals of the heartbeats that run now."""
        self._heartbeat_interval_ms = 3000
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._rejoin_needed_fut: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ensure_coordinator_known(self) -> None:
        pass

    async def _do_heartbeat(self) -> bool:
        await asyncio.sleep(0)
        self.beats.append(len(self.beats) >= self.failures)
        return self.beats[-1]

    async def _heartbeat_routine(self) -> None:
        interval = self._heartbeat_interval_ms
        self.intervals.append(interval)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass  # as aiokafka does
        finally:
            self.intervals.remove(interval)


def of_interval(interval_ms: int) -> ConfigUpdate:
    change = ConfigChange(name=HEARTBEAT_INTERVAL_MS, old="3000", new=str(interval_ms), origin=Origin.DYNAMIC)
    return ConfigUpdate(
        changes=(change,), effective={SESSION_TIMEOUT_MS: "10000", HEARTBEAT_INTERVAL_MS: str(interval_ms)}
    )


async def consumer_in_a_group() -> tuple[aio.AIOKafkaConsumer, Coordinator]:
    consumer = aio.AIOKafkaConsumer("t", group_id="g")
    consumer._coordinator = coordinator = Coordinator()
    coordinator._start_heartbeat_task()
    await settle()
    assert coordinator.intervals == [3000]
    return consumer, coordinator


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def end(consumer: aio.AIOKafkaConsumer, coordinator: Coordinator) -> None:
    await coordinator._stop_heartbeat_task()
    assert coordinator.intervals == []
    consumer._coordinator = None
    await consumer.stop()


async def test_changed_interval_restarts_the_heartbeats() -> None:
    """K649-79: Changed heartbeat.interval.ms takes effect at the next heartbeat."""
    consumer, coordinator = await consumer_in_a_group()
    consumer._apply_dynamic_configs(of_interval(500))
    await settle()
    assert coordinator.intervals == [500]
    await end(consumer, coordinator)


async def test_changed_interval_does_not_extend_the_pause_between_heartbeats() -> None:
    """aiokafka's heartbeats begin with a pause, so one is sent at once, and again until it succeeds."""
    consumer, coordinator = await consumer_in_a_group()
    coordinator.failures = 1
    consumer._apply_dynamic_configs(of_interval(8000))
    await settle()
    assert coordinator.beats == [False, True]
    assert coordinator.intervals == [8000]
    await end(consumer, coordinator)


async def test_two_changes_at_once_leave_one_heartbeat_task() -> None:
    consumer, coordinator = await consumer_in_a_group()
    consumer._apply_dynamic_configs(of_interval(500))
    consumer._apply_dynamic_configs(of_interval(600))
    await settle()
    assert coordinator.intervals == [600]
    await end(consumer, coordinator)


async def test_heartbeats_stay_off_while_the_consumer_joins() -> None:
    consumer, coordinator = await consumer_in_a_group()
    await coordinator._stop_heartbeat_task()
    consumer._apply_dynamic_configs(of_interval(500))
    await settle()
    assert coordinator.intervals == []
    await end(consumer, coordinator)


async def test_heartbeats_are_not_restarted_before_a_pending_join() -> None:
    """It would wait for the end of a task that was cancelled before it began, and be cancelled by it."""
    consumer, coordinator = await consumer_in_a_group()
    coordinator._rejoin_needed_fut.set_result(None)
    consumer._apply_dynamic_configs(of_interval(500))
    await coordinator._stop_heartbeat_task()
    await end(consumer, coordinator)


async def test_heartbeats_being_stopped_are_not_restarted() -> None:
    consumer, coordinator = await consumer_in_a_group()
    joining = asyncio.create_task(coordinator._stop_heartbeat_task())
    await asyncio.sleep(0)
    consumer._apply_dynamic_configs(of_interval(500))
    await joining
    await settle()
    assert coordinator.intervals == []
    await end(consumer, coordinator)


class Leader:
    """aiokafka's coordinator of a group's leader, without a broker."""

    def __init__(self, generations: list[int]) -> None:
        self.generation = 1
        self.rejoins = 0
        self._generations = iter(generations)
        self._session_timeout_ms = 10_000
        self._metadata_snapshot = {"t": 1}
        self._subscription = SimpleNamespace(assign_from_subscribed=lambda _: None)

    async def _perform_assignment(self, response: Any) -> None: ...

    async def _do_rejoin_group(self, subscription: Any) -> bool:
        self.generation = next(self._generations)
        await self._perform_assignment(None)
        return True

    def request_rejoin(self) -> None:
        self.rejoins += 1


@pytest.mark.parametrize(
    ("partitions", "generations", "rejoins"),
    [(2, [1, 2], 1), (1, [1, 1], 0), (2, [2, 2], 0)],
    ids=["added partition", "same partitions", "rebalance"],
)
async def test_leader_joins_again_until_its_group_uses_the_assignment_with_added_partitions(
    partitions: int, generations: list[int], rejoins: int
) -> None:
    """A join with a changed session timeout causes no rebalance, so the leader's new assignment is dropped."""
    # given
    leader = Leader(generations)
    aio.watch_rejoins(leader)
    leader._metadata_snapshot = {"t": partitions}
    # when
    for _ in generations:
        await leader._do_rejoin_group(None)
    # then
    assert leader.rejoins == rejoins


async def test_start_waits_without_a_thread_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.clients.own_connection.MAX_WAIT_FOR_FIRST_S", 0.05)
    release = threading.Event()
    starts: list[None] = []
    start = OwnConnection.start_async

    async def start_and_release(self: OwnConnection) -> None:
        await start(self)
        starts.append(None)
        release.set()

    monkeypatch.setattr(OwnConnection, "start_async", start_and_release)
    # given: all threads of the event loop are busy
    executor = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(executor)
    busy = executor.submit(release.wait)
    client = aio.AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{free_port()}")
    # when, then
    try:
        with pytest.raises(KafkaConnectionError):
            await asyncio.wait_for(client.start(), 20)
    finally:
        release.set()
        busy.result()
    assert starts == [None]
    await client.stop()


@pytest.mark.parametrize("family", [aio.AIOKafkaProducer, aio.AIOKafkaConsumer])
async def test_default_server_is_that_of_aiokafka(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = []

    def no_connection(**arguments: Any) -> None:
        servers.append(arguments["settings"]["bootstrap_servers"])
        raise ConnectionError

    monkeypatch.setattr(aio, "OwnConnection", no_connection)
    client = family(**({"group_id": "g"} if family is aio.AIOKafkaConsumer else {}))
    with pytest.raises(ConnectionError):
        await client.start()
    assert servers == ["localhost"]
    await client.stop()


@pytest.mark.parametrize(
    ("family", "key", "own", "dynamic"),
    [(aio.AIOKafkaProducer, ACKS, "1", "0"), (aio.AIOKafkaConsumer, SESSION_TIMEOUT_MS, "10000", "8000")],
)
async def test_second_start_begins_with_the_values_of_the_application(
    family: Any, key: str, own: str, dynamic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed start, the dynamic value may have been removed."""
    # given
    static: list[str] = []

    class Connection:
        is_on = True

        def __init__(self, *, configs: DynamicConfigs, apply: Callable[[Any, ConfigUpdate], None], **_: Any) -> None:
            static.append(configs.effective[key])
            self._configs, self._apply = configs, apply

        async def start_async(self) -> None:
            if len(static) == 1:
                self._apply(self, ConfigUpdate(changes=(), effective={**self._configs.effective, key: dynamic}))
                await asyncio.sleep(0)

        async def close_async(self) -> None: ...

    monkeypatch.setattr(aio, "OwnConnection", Connection)
    more = {"group_id": "g"} if family is aio.AIOKafkaConsumer else {}
    client = family(bootstrap_servers=f"127.0.0.1:{free_port()}", **more)

    def current() -> str:
        return str(client._sender._acks if key == ACKS else client._session_timeout_ms)

    with pytest.raises(KafkaConnectionError):
        await client.start()
    assert current() == dynamic
    # when
    with pytest.raises(KafkaConnectionError):
        await client.start()
    # then
    assert static == [own, own]
    assert current() == own
    await client.stop()
