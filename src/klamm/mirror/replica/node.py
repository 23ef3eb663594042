"""Broker without storage: its membership in the target cluster, its listeners, and the partitions that it leads.

Threads:

============  ========================================================================================================
Thread        Does
============  ========================================================================================================
event loop    owns all ``LeaderPartition`` objects and answers the requests of replicas and clients
observer      passes each new image of the target's metadata to the event loop (``klamm.kraft``)
one worker    raises the leader epoch: the controller fences this broker and unfences it again
callers       ``post`` and ``call`` functions to the event loop; read single attributes of partitions directly
============  ========================================================================================================

The leader epoch of all partitions is raised when the next batch of one has a higher one, when replicas are truncated,
and when a live replica has not fetched a partition for 30 s although it is alive: Kafka's replicas give a partition up
after an unexpected answer until its leader epoch changes. It is raised only while no partition has another in-sync
replica, which the controller would elect, and not again before the metadata show the new epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, cast

from klamm.clock import wall_clock_ms
from klamm.configs.definitions import broker_configs, parse_broker_settings
from klamm.kraft.errors import MembershipError
from klamm.kraft.image import NO_LEADER
from klamm.kraft.registration import MIN_MOMENTARY_ID
from klamm.mirror.replica.access import Access
from klamm.mirror.replica.fetch_sessions import FollowerSessions
from klamm.mirror.replica.leader_partition import LeaderPartition, Leadership
from klamm.mirror.replica.listener import ROUTES, ReplicaContext, ReplicaServices
from klamm.mirror.replica.relay import ClientRelay, OwnClient
from klamm.protocol.types import by_topic
from klamm.retries import Backoff, LoggedReasons
from klamm.server.client_registry import ClientRegistry
from klamm.server.connection_limits import ConnectionLimits
from klamm.server.quotas.throttles import Throttles
from klamm.server.server import Server
from klamm.server.sockets import bind, fastest_event_loop, start_listening
from klamm.storage.descriptors import DescriptorShares, raise_limit

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Collection, Iterable
    from uuid import UUID

    from klamm.configs.quotas import QuotaLimit
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.kraft.image import BrokerEndpoint, ClusterImage, PartitionImage, TopicMetadata
    from klamm.kraft.member import BrokerMember
    from klamm.mirror.copy.equal_offsets import ReplicaSettings
    from klamm.mirror.replica.access import OpenListener
    from klamm.protocol.types import PartitionTuple

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

_TICK_S: Final = 1.0
_SILENT_S: Final = 30.0
"""``replica.lag.time.max.ms`` as shipped."""
_MAX_SILENT_S: Final = 1800.0
"""Longest pause in seconds if raising the leader epoch does not help, as with a replica whose disk failed."""
_GRACE_S: Final = 5.0
_CALL_S: Final = 30.0
_ELECTION_S: Final = 10.0
"""Seconds in which the metadata must show an election that the controller has confirmed."""
_MAX_IDLE: Final = "connections.max.idle.ms"
_FAILURES: Final = (ConnectionError, TimeoutError, MembershipError)
_PLAINTEXT: Final = "PLAINTEXT"


class _NoQuotas:
    """Quotas without limits: real brokers enforce the quotas of clients."""

    is_empty = True

    def limit(self, name: str, user: str, client_id: str) -> QuotaLimit | None:
        return None

    def limit_of_address(self, address: str) -> float | None:
        return None


class ReplicaNode:
    """Broker without storage. Methods may be called from any thread unless they say otherwise.

    Args:
        settings: Broker id and listeners.
        new_member: Creates the membership. Called at each start.
        partitions: Remote topics and partition numbers to lead.
        target: Connection to the target.
        may_lose: Whether to go on when records were purged on the source before they were mirrored.
        on_news: Called on the event loop with a partition whose figures have changed.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        new_member: Callable[[], BrokerMember],
        partitions: Iterable[PartitionTuple],
        *,
        target: ConnectionSettings,
        may_lose: bool = False,
        on_news: Callable[[LeaderPartition], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._new_member = new_member
        self._on_news = on_news
        self._may_lose = may_lose
        self._own = OwnClient(target)
        self._wanted = by_topic(partitions)
        self._leaders: dict[tuple[UUID, int], LeaderPartition] = {}
        self._by_name: dict[PartitionTuple, LeaderPartition] = {}
        self._applied: dict[str, tuple[TopicMetadata | None, frozenset[int]]] = {}
        self._sessions = FollowerSessions(self._find)
        self.member: BrokerMember | None = None
        """Membership in the target. None before ``start`` and after ``close``."""
        self._loop = fastest_event_loop()
        self._thread = threading.Thread(target=self._run, name="replica-node", daemon=True)
        self._server: Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] = lambda: None
        self._conditions: list[tuple[Callable[[], bool], Future[None]]] = []
        """Conditions that other threads wait for."""
        self._raise_at = 0.0
        """Earliest time at which the leader epoch is raised again because of replicas that do not fetch."""
        self._raise_backoff = Backoff(_SILENT_S, _MAX_SILENT_S)
        self._is_cordoned = True
        """Whether the target places no partitions here, as at the start of each membership."""
        self.access = Access(settings, lambda: self.member)
        """Decides who may do what at the listeners."""
        self._admitted: frozenset[str] = frozenset()
        """Topics whose partitions are reassigned to klamm."""

    # --- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen and register, unless that is done. Returns when the target counts this broker as alive.

        Raises:
            OSError: An address is taken. Nothing is left open, and the next call tries again.
            SettingsError: A key store of a listener cannot be read. As above.
            ConnectionError: The controllers cannot be reached.
            TimeoutError: They do not answer, or count an earlier process as alive.
            MembershipError: They reject the broker.
        """
        if self.member is not None:
            return
        if self._server is None:
            listeners = self.access.open()
            sockets = self._bind()
            self._thread.start()
            self.call(self._listen, listeners, sockets)
        member = self._new_member()
        try:
            member.start()
            # Before the first request: until it is known, brokers without an ACL are rejected.
            asyncio.run_coroutine_threadsafe(self.access.read_authorizers(member), self._loop).result()
        except BaseException:
            member.close()
            raise
        self._is_cordoned = True
        self._cordon(member)
        self.member = member
        self._unsubscribe = member.observer.subscribe(lambda image: self.post(self._apply, image))
        self.post(self._apply, member.observer.image)

    def assign(self, partitions: Iterable[PartitionTuple]) -> None:
        """Lead these partitions from now on. The registration stays as it is."""
        self.post(self._assign, by_topic(partitions))

    def admit(self, topics: Collection[str]) -> None:
        """Accept partitions of these existing topics from now on, which takes some seconds."""
        self._admitted = frozenset(topics)

    def _assign(self, wanted: dict[str, list[int]]) -> None:
        for (name, index), leader in list(self._by_name.items()):
            if index not in wanted.get(name, ()):
                self._forget(leader)
        self._wanted = wanted
        self._applied.clear()
        if self.member is not None:
            self._apply(self.member.observer.image)

    def close(self) -> None:
        """Leave the cluster and stop serving. The registration stays as long as partitions have replicas here."""
        self._unsubscribe()
        if self.member is not None:
            try:
                self._leave(self.member)
            except _FAILURES as error:
                logger.info("Broker %d leaves without the controller: %s", self._settings.node_id, error)
                self.member.close()
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_CALL_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CALL_S)
        else:
            self._loop.close()  # it never ran
        self.member = None

    def _leave(self, member: BrokerMember) -> None:
        """Leave the target, and remove the registration if no partition has a replica here: all were handed over."""
        try:
            member.unregister()
        except ValueError:
            member.shut_down()
        else:
            logger.info("Broker %d has left the target, and is no longer registered", self._settings.node_id)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _bind(self) -> list[socket.socket]:
        sockets: list[socket.socket] = []
        for endpoint, address in zip(self._settings.listeners, self._settings.bind, strict=True):
            try:
                sockets.append(bind(address))
                start_listening(sockets[-1])
            except OSError as error:
                for sock in sockets:
                    sock.close()
                raise OSError(
                    f"klamm.replica.listeners: {endpoint.name}: {error}: stop the process that listens there, or "
                    "choose another port"
                ) from error
        return sockets

    def _listen(self, listeners: Iterable[OpenListener], sockets: Iterable[socket.socket]) -> None:
        configs = parse_broker_settings(self._settings.configs)
        max_idle_ms = cast("int", configs.get(_MAX_IDLE, broker_configs()[_MAX_IDLE].default_value))
        shares = DescriptorShares.of(raise_limit(), listeners=len(self._settings.bind))
        max_connections = shares.connections // 2  # a client whose requests are passed on has two connections
        relay = ClientRelay(self._endpoint_of)
        registry = ClientRegistry(now_ms=wall_clock_ms)
        registry.on_left = relay.on_left
        services = ReplicaServices(
            node_id=self._settings.node_id,
            sessions=self._sessions,
            find=self._find,
            find_by_name=self.partition,
            is_leased=lambda: self.member is not None and self.member.is_leased(),
            rack_of=self._rack_of,
            relay=relay,
            own=self._own,
            access=self.access,
        )
        self._server = Server(
            new_context=partial(ReplicaContext, services=services),
            routes=ROUTES,
            limits=ConnectionLimits(configs.get, most=max_connections),
            throttles=Throttles(_NoQuotas(), lambda _: None),
            client_registry=registry,
            max_idle_ms=lambda: max_idle_ms,
            on_rejected=lambda session, reason: self.access.on_rejected(session.client_host, reason),
        )
        for (endpoint, tls), sock in zip(listeners, sockets, strict=True):
            self._server.listen(endpoint, {self._settings.node_id: sock}, tls)
        self._tasks = [
            self._loop.create_task(self._repeat(step))
            for step in (self._watch, self._renew_stores, self._read_authorizers)
        ]

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._close_server()
        self._own.close()

    async def _close_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close(grace_s=_GRACE_S)

    # --- other threads ------------------------------------------------------------------------------------------------

    def post(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a function on the event loop soon. Does nothing after ``close``."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(partial(function, *args, **kwargs))

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function on the event loop and return its result."""
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(function(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
                result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return result.result(_CALL_S)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition of partitions is met, and return whether it is.

        Args:
            condition: Called on the event loop, now and after each change of a partition.
            timeout_s: Limit in seconds.
        """
        entry = condition, Future[None]()

        def begin() -> None:
            self._conditions.append(entry)
            self._check_conditions()

        self.call(begin)
        try:
            entry[1].result(timeout_s)
        except TimeoutError:
            return self.call(condition)
        finally:
            self.call(lambda: self._conditions.remove(entry) if entry in self._conditions else None)
        return True

    def _check_conditions(self) -> None:
        for condition, result in self._conditions:
            if not result.done() and condition():
                result.set_result(None)

    def _find(self, topic_id: UUID, index: int) -> LeaderPartition | None:
        return self._leaders.get((topic_id, index))

    def partition(self, topic: str, index: int) -> LeaderPartition | None:
        """Return a partition if klamm has seen it in the metadata of the target."""
        return self._by_name.get((topic, index))

    @property
    def error(self) -> str:
        """Reason why this process is no longer a broker of the target. Empty: it is one."""
        error = None if self.member is None else self.member.error
        return "" if error is None else f"klamm is no longer broker {self._settings.node_id} of the target: {error}"

    def live_brokers(self) -> frozenset[int]:
        """Return the node ids of the target's live brokers with storage. Empty before ``start``."""
        brokers = () if self.member is None else self.member.observer.image.live_brokers
        return frozenset(each.node_id for each in brokers)

    # --- metadata of the target ---------------------------------------------------------------------------------------

    def _rack_of(self, node_id: int) -> str | None:
        broker = None if self.member is None else self.member.observer.image.brokers.get(node_id)
        return None if broker is None else broker.rack

    def _endpoint_of(self, listener: str) -> BrokerEndpoint | None:
        """Return the endpoint of a live real broker to which clients of a listener may be passed on.

        None if there is none, or if brokers would need to know the client: by its login, or for an authorizer.
        """
        member = self.member
        own = next(each for each in self._settings.listeners if each.name == listener)
        if member is None or self.access.authorizer != "" or own.security_protocol != _PLAINTEXT:
            return None
        return next(
            (
                endpoint
                for broker in member.observer.image.live_brokers
                for endpoint in broker.endpoints
                if endpoint.name == listener and endpoint.security_protocol == _PLAINTEXT
            ),
            None,
        )

    def _apply(self, image: ClusterImage) -> None:
        """Take over a new image: leaders, leader epochs and live replicas of the wanted partitions."""
        live = frozenset(broker.node_id for broker in image.live_brokers if not broker.in_controlled_shutdown)
        for name, indexes in self._wanted.items():
            topic = image.topic(name)
            before = self._applied.get(name)
            if before is not None and before[0] is topic and before[1] == live:
                continue
            self._applied[name] = topic, live
            for index in indexes:
                self._apply_partition(name, index, topic, live)

    def _apply_partition(self, name: str, index: int, topic: TopicMetadata | None, live: frozenset[int]) -> None:
        leader = self._by_name.get((name, index))
        partition = None if topic is None else topic.partitions.get(index)
        if leader is not None and (topic is None or partition is None or leader.topic_id != topic.topic_id):
            self._forget(leader)
            leader = None
        if topic is None or partition is None:
            return
        if leader is None:
            leader = LeaderPartition(name, topic.topic_id, index, may_lose=self._may_lose, on_news=self._note)
            self._by_name[name, index] = self._leaders[topic.topic_id, index] = leader
        if partition.leader == self._settings.node_id:
            leader.lead(self._leadership(partition, live), time.monotonic())
        else:
            leader.resign(is_replaced=partition.leader >= 0)

    def _forget(self, leader: LeaderPartition) -> None:
        del self._by_name[leader.topic, leader.partition]
        self._leaders.pop((leader.topic_id, leader.partition), None)
        leader.resign(is_replaced=True)

    def _leadership(self, partition: PartitionImage, live: frozenset[int]) -> Leadership:
        own = frozenset({self._settings.node_id})
        replicas = frozenset(partition.replicas) - own
        return Leadership(
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            replicas=replicas,
            live=replicas & live,
            isr=frozenset(partition.isr + partition.elr) - own,
            removing=frozenset(partition.removing) - own,
            is_leaving=own <= frozenset(partition.removing),
        )

    def _note(self, leader: LeaderPartition) -> None:
        self._sessions.on_news(leader)
        self._on_news(leader)
        self._check_conditions()

    # --- watching -----------------------------------------------------------------------------------------------------

    async def _repeat(self, step: Callable[[], Awaitable[float | None]]) -> None:
        """Repeat a step after the pause in seconds that it returns, until that is None.

        An unexpected error is logged and the step is repeated: without it, no leader epoch would be raised any more.
        """
        failures = LoggedReasons()
        pause_s: float | None = _TICK_S
        while pause_s is not None:
            await asyncio.sleep(pause_s)
            try:
                pause_s = await step()
                failures.clear()
            except Exception as error:
                pause_s = _TICK_S
                if failures.is_new(repr(error)):
                    logger.exception("Broker %d: a background step failed and is repeated", self._settings.node_id)

    async def _renew_stores(self) -> float | None:
        """Use changed key stores. A file system that hangs holds up nothing else."""
        await self.access.renew_stores()
        return None if self.error else _TICK_S

    async def _read_authorizers(self) -> float | None:
        """Notice an authorizer that the target's brokers have got. One that does not respond holds up nothing else."""
        if self.member is not None:
            await self.access.read_authorizers(self.member)
        return None if self.error else _TICK_S

    async def _watch(self) -> float | None:
        """Advance what only depends on time, and raise the leader epoch where that helps.

        When the membership has ended, stop listening: another process may need the addresses.
        """
        member, now = self.member, time.monotonic()
        if member is not None and member.error is not None:
            await self._close_server()
            return None
        for leader in list(self._leaders.values()):
            if leader.needs_tick:
                leader.tick(now)
        if member is None:
            return _TICK_S
        if self._is_complete(member.observer.image) != self._is_cordoned:
            await asyncio.to_thread(self._cordon, member)
        # A source epoch may be many elections away.
        return 0 if await self._raise_epochs(member, now) else _TICK_S

    def _is_complete(self, image: ClusterImage) -> bool:
        """Return whether all wanted partitions exist, so that the target need not place more here.

        One that klamm has with fenced brokers is still to be reassigned to klamm alone (``placement``).
        """
        partitions = [
            None if (topic := image.topic(name)) is None else topic.partitions.get(index)
            for name, indexes in self._wanted.items()
            for index in indexes
        ]
        own = self._settings.node_id
        return not self._admitted and all(
            each is not None and not (each.replicas[0] == own and max(each.replicas) >= MIN_MOMENTARY_ID)
            for each in partitions
        )

    def _cordon(self, member: BrokerMember) -> None:
        """Accept new partitions only while one of the wanted partitions does not exist yet. Blocks if that changes."""
        if (is_complete := self._is_complete(member.observer.image)) == self._is_cordoned:
            return
        try:
            member.cordon(is_complete)
            self._is_cordoned = is_complete
        except _FAILURES as error:
            logger.warning("Broker %d could not change its cordon: %s", self._settings.node_id, error)

    def _reason_to_raise(self, now: float) -> tuple[LeaderPartition, str] | None:
        """Return a partition that needs a higher leader epoch, and why. None: there is none."""
        for leader in self._leaders.values():
            leadership = leader.leadership
            if leadership is None or leader.wanted_epoch <= leadership.leader_epoch:
                continue
            if leader.is_in_doubt:
                return leader, f"it is not known whether {leader.name} was handed over"
            if not leader.halted:
                return leader, f"{leader.name} needs leader epoch {leader.wanted_epoch}"
        if now < self._raise_at:
            return None
        silent = next(
            ((leader, nodes) for leader in self._leaders.values() if (nodes := leader.silent(now, _SILENT_S))), None
        )
        if silent is None:
            self._raise_backoff.reset()
        self._raise_at = now + self._raise_backoff.next_s()
        if silent is None:
            return None
        leader, nodes = silent
        return leader, f"replicas {', '.join(map(str, sorted(nodes)))} have stopped to fetch {leader.name}"

    async def _raise_epochs(self, member: BrokerMember, now: float) -> bool:
        """Let the controller elect this broker again if that is needed. Return whether the metadata show it."""
        if (needed := self._reason_to_raise(now)) is None:
            return False
        leader, reason = needed
        leaderships = [each.leadership for each in self._leaders.values() if each.leadership is not None]
        if leader.leadership is None or any(leadership.isr for leadership in leaderships):
            return False
        logger.info("Broker %d raises its leader epochs: %s", self._settings.node_id, reason)
        try:
            image = await asyncio.to_thread(_elect_again, member, leader, leader.leadership.leader_epoch)
        except _FAILURES as error:
            logger.warning("Broker %d cannot raise its leader epochs: %s", self._settings.node_id, error)
            return False
        self._apply(image)
        return True


def _elect_again(member: BrokerMember, leader: LeaderPartition, leader_epoch: int) -> ClusterImage:
    """Let the controller elect this broker again, and return the metadata that show it. Blocks.

    Args:
        member: Membership of the broker.
        leader: Partition that the broker leads.
        leader_epoch: Its leader epoch before.

    Raises:
        MembershipError: The membership has ended.
        TimeoutError: The controller did not elect it in time.
    """
    try:
        member.fence(True)
    finally:  # also after a timeout: the wish to be fenced must not stay
        member.fence(False)

    def is_elected(image: ClusterImage) -> bool:
        partition = image.partition(leader.topic_id, leader.partition)
        return partition is None or (partition.leader != NO_LEADER and partition.leader_epoch > leader_epoch)

    return member.observer.wait_for(is_elected, _ELECTION_S)
