"""Broker without storage in a KRaft cluster: registration, heartbeats, requests that only brokers may send.

The life of a member, as Kafka's ``BrokerLifecycleManager`` lives it:

1. It observes the metadata log until it has caught up.
2. It registers, and gets a broker epoch. It is *fenced*: no partition may have it as leader.
3. Each heartbeat reports how far it has replayed the metadata. Beyond its own registration, the controller unfences it,
   and elects it where it is the only replica in sync.
4. It ends by a controlled shutdown (the controller first elects other leaders), or without a word, like a crash. Then
   the controller fences it after ``broker.session.timeout.ms``.

A registration belongs to an *incarnation*, which a UUID names. A member that crashed comes back as the same
incarnation, keeps its broker epoch and is elected at once. After a controlled shutdown it comes back as a new one.
While heartbeats arrive, the controller rejects any other incarnation under the same node id. It does not notice two
processes of the *same* incarnation; the member does, by a registration in the metadata log that it did not send, and
ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from uuid import UUID, uuid4

from klamm.kafka_client.described import describe_configs_request, described_configs
from klamm.kafka_client.errors import CLUSTER_ERRORS, ConnectionLostError, api_error, error_text
from klamm.kraft.controllers import REQUEST_TIMEOUT_S, ControllerChannel
from klamm.kraft.errors import (
    ClusterActionDeniedError,
    DuplicateBrokerError,
    MembershipError,
    StaleBrokerError,
    UnsupportedFeaturesError,
    WrongClusterError,
)
from klamm.kraft.log_dirs import log_dir_of
from klamm.kraft.observer import MetadataObserver
from klamm.kraft.registration import common_features, registration_request
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from klamm.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from klamm.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from klamm.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsResponse
from klamm.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from klamm.protocol.types import ResourceType
from klamm.retries import Backoff, LoggedReasons

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.kraft.image import BrokerEndpoint, BrokerImage, ClusterImage
    from klamm.protocol.schema import Message

logger = logging.getLogger(__name__)
Response = TypeVar("Response", bound="Message")

SESSION_TIMEOUT_S: Final = 9.0
"""Kafka's default of ``broker.session.timeout.ms``."""
_SESSION_CONFIG: Final = "broker.session.timeout.ms"
_MAX_HEARTBEAT_INTERVAL_S: Final = 2.0
"""Kafka's default of ``broker.heartbeat.interval.ms``."""
_EAGER_INTERVAL_S: Final = 0.05
"""Interval of heartbeats until the controller has set the wanted state."""
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 1.0
CORDON_LEVEL: Final = 30
"""Level of ``metadata.version`` 4.3, from which on log directories can be cordoned (KIP-1066)."""
_ZERO_MINIMUM_SINCE: Final = 4
"""First version of BrokerRegistration in which the lowest level of a feature may be 0."""
_START_S: Final = 30.0
"""Seconds in which the controllers must accept the member."""
_CHANGE_S: Final = 10.0
"""Seconds in which they must make a change that it asks for."""
_END_S: Final = 30.0
"""Seconds in which they must let it leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipState:
    """State of a member that a restart needs."""

    cluster_id: str
    """Cluster in which the member is registered. It registers in no other one."""
    incarnation_id: UUID
    previous_broker_epoch: int = -1
    """Broker epoch that ended with a controlled shutdown; -1 while the incarnation lives."""


class MembershipStore(Protocol):
    """Storage of a member's state. After a loss of the state, the next start waits for the end of the old session."""

    def load(self) -> MembershipState | None:
        """Return the stored state, or None if there is none."""
        ...

    def save(self, state: MembershipState | None) -> None:
        """Store a state, or remove it (None)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """Settings of a member."""

    node_id: int
    cluster_id: str
    """Cluster id as the brokers report it. Controllers do not report it; they reject a wrong one."""
    listeners: tuple[BrokerEndpoint, ...]
    """Listeners as brokers and clients reach them."""
    controllers: ConnectionSettings
    """Connection settings, with controllers as ``bootstrap_servers``."""
    inter_broker_listener: str
    """Name of the listener with which brokers connect."""
    read_authorizers: Callable[[Collection[int]], Mapping[int, str]] = lambda _: {}
    """Returns the authorizer class of brokers, by node id. Empty: a broker has none. Unknown ones are left out."""
    owner: str = ""
    """Name of what the member serves. Its partitions are led by no member with another one, see ``log_dir_of``."""
    check_brokers: Callable[[Iterable[BrokerImage]], None] = lambda _: None
    """Called with the live brokers with storage before the member registers. Raises MembershipError if it must not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """New ISR of a partition that the member leads."""

    leader_epoch: int
    partition_epoch: int
    """Partition epoch of the image that the change is based on."""
    isr: Mapping[int, int]
    """Broker epochs of the replicas, by node id; -1 for one whose epoch is not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrState:
    """State of a partition after a change of its ISR."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


class BrokerMember:
    """A broker without storage. Its methods may be called from any thread.

    Args:
        settings: Settings.
        state: Storage of what a restart needs.
    """

    def __init__(
        self,
        settings: MemberSettings,
        state: MembershipStore,
    ) -> None:
        self._settings = settings
        self._store = state
        stored = self._stored = self._store.load()
        self.node_id = settings.node_id
        self.cluster_id = settings.cluster_id
        self.inter_broker_listener = settings.inter_broker_listener
        self.incarnation_id = stored.incarnation_id if stored and stored.previous_broker_epoch < 0 else uuid4()
        """Id of this incarnation of the broker."""
        self.broker_epoch = -1
        """Epoch of the registration; -1 before it."""
        self.is_fenced = True
        """Whether the controller has fenced this member, as in its last response."""
        self.error: MembershipError | None = None
        """Error that ended the membership."""
        self.log_dir = log_dir_of(self.cluster_id, self.node_id, settings.owner)
        """Id of the log directory that the member claims to have. It is the same after a loss of the state."""
        self.observer = MetadataObserver(
            settings.controllers, node_id=self.node_id, cluster_id=self.cluster_id, log_dir=self.log_dir
        )
        self._previous_broker_epoch = stored.previous_broker_epoch if stored else -1
        self._session_s = SESSION_TIMEOUT_S
        self._heartbeats = ControllerChannel(settings.controllers)
        self._requests = ControllerChannel(settings.controllers)
        self._requests_lock = threading.Lock()
        self._changed = threading.Condition()
        """Guards the fields below, and is notified after each heartbeat."""
        self._wants_fence = self._wants_shut_down = False
        self._is_ending = False
        """Whether the store holds the end of this incarnation."""
        self._should_shut_down = False
        self._is_cordoned = True
        """Whether the log directory is reported as cordoned, from the first heartbeat on."""
        self._stopping = False
        self._heartbeat_at = float("-inf")
        """Time at which the last accepted heartbeat was sent, on the monotonic clock."""
        self._features: Mapping[str, tuple[int, int]] = {}
        """Feature ranges of the registration."""
        self._registered_after = -1
        """Offset of the image on which the last registration was based."""
        self._registered_at = -1
        """Offset of the record of the last registration; -1 until it is observed."""
        self._lost_registrations = 0
        """Number of registrations without a response, which the controller may have made. Their records are not those
        of another process. A heartbeat that has caught up sets it to zero: there are no such records after it.
        """
        self._reason: str | None = None
        """Error of the latest heartbeat, which is repeated."""
        self._is_woken = False
        """Whether the next heartbeat is due at once."""
        self._first_try_at: float | None = None
        """Time of the first registration that another incarnation's session prevented."""
        self._seen_brokers: Mapping[int, BrokerImage] = {}
        """Brokers of the image that last woke the thread."""
        self._thread = threading.Thread(target=self._run, name="klamm-broker-heartbeats", daemon=True)

    def read_authorizers(self, node_ids: Collection[int]) -> Mapping[int, str]:
        """Return the authorizer class of brokers, by node id. Empty: a broker has none. Unknown ones are left out."""
        return self._settings.read_authorizers(node_ids)

    def is_leased(self, now: float | None = None) -> bool:
        """Return whether the member may act as leader.

        It must not when the controller may have fenced it: when the last accepted heartbeat, or the last time that the
        image was up to date, is as old as ``broker.session.timeout.ms``. So a process that was suspended sees changes
        of its registration before it acts again.

        Args:
            now: Time on the monotonic clock. None: the current time.
        """
        at = time.monotonic() if now is None else now
        last = min(self._heartbeat_at, self.observer.caught_up_at)
        return self.error is None and at - last < self._session_s

    def start(self) -> None:
        """Register, and wait until the controller has unfenced the member. On an error, everything is closed.

        Raises:
            MembershipError: The controller or ``check_brokers`` rejects the member.
            TimeoutError: The controllers were not reachable in time, or the session of a former incarnation with a
                lost state has not ended.
        """
        deadline = time.monotonic() + _START_S
        if self._stored is not None and self._stored.cluster_id != self.cluster_id:
            raise WrongClusterError(
                f"Broker {self.node_id} was registered in cluster {self._stored.cluster_id}, but the brokers belong to "
                f"cluster {self.cluster_id}"
            )
        self.observer.start()
        try:
            self.observer.wait_until_caught_up(_START_S)
            self._check_node_id()
            self._settings.check_brokers(self.observer.image.live_brokers)
            self.observer.subscribe(self._on_image)
            self._thread.start()
            self._wait(lambda: not self.is_fenced, deadline, "unfence this broker")
        except BaseException:
            self.close()
            raise

    def _check_node_id(self) -> None:
        """Check that the member does not replace the registration of another broker, which may be down.

        Raises:
            DuplicateBrokerError: It would replace one with storage, or one without storage of another owner.
        """
        registered = self.observer.image.brokers.get(self.node_id)
        if registered is None or self.log_dir in registered.log_dirs:
            return
        kind = "a broker with storage" if registered.has_storage else "a broker of klamm that serves another flow"
        raise DuplicateBrokerError(
            f"Broker {self.node_id} is registered as {kind}, live or not: use another node id, or unregister that "
            f"broker if it is gone permanently (kafka-cluster.sh unregister --id {self.node_id})"
        )

    def fence(self, fenced: bool) -> None:
        """Ask the controller to fence or unfence this member, and wait until it has.

        Fencing takes the leadership of all partitions away, which raises their leader epochs by one; unfencing gives it
        back where the member is the only replica in sync, which raises them again.

        Raises:
            MembershipError: The membership has ended.
            TimeoutError: The controller did not do it in time.
        """
        with self._changed:
            self._wants_fence = fenced
            self._wake()
        self._wait(
            lambda: self.is_fenced == fenced, time.monotonic() + _CHANGE_S, f"{'' if fenced else 'un'}fence this broker"
        )

    def cordon(self, cordoned: bool) -> None:
        """Report the log directory as cordoned or not, and wait until the metadata say so.

        The controller places no partitions in a cordoned log directory. It is cordoned at the start.

        Raises:
            MembershipError: The membership has ended.
            TimeoutError: The metadata did not change in time: the finalized metadata.version may be below 4.3.
        """
        with self._changed:
            self._is_cordoned = cordoned
            self._wake()

        def is_reported(image: ClusterImage) -> bool:
            broker = image.brokers.get(self.node_id)
            return broker is not None and bool(broker.cordoned_log_dirs) == cordoned

        self.observer.wait_for(is_reported, _CHANGE_S)

    def alter_partitions(
        self, changes: Mapping[tuple[UUID, int], IsrChange]
    ) -> Mapping[tuple[UUID, int], IsrState | KafkaApiError]:
        """Change the ISR of partitions that the member leads (AlterPartition).

        Returns:
            By topic id and partition the state after the change, or the error with which the controller rejects it,
            such as NEW_LEADER_ELECTED if the change completed a reassignment that elects another leader.

        Raises:
            MembershipError: The controller rejects the member.
            TimeoutError: No active controller responded in time. The changes may have been made.
        """
        request = _alter_partition_request(changes, self.node_id, self.broker_epoch)
        response = self._request(request, AlterPartitionResponse)
        return {
            (topic.topic_id, partition.partition_index): IsrState(
                leader=partition.leader_id,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                isr=tuple(partition.isr),
            )
            if partition.error_code == ErrorCode.NONE
            else api_error(partition.error_code)
            for topic in response.topics
            for partition in topic.partitions
        }

    def allocate_producer_ids(self) -> range:
        """Take the next block of producer ids from the controller (AllocateProducerIds). No broker gets them any more.

        Raises:
            MembershipError: The controller rejects the member.
            TimeoutError: No active controller responded in time.
        """
        request = AllocateProducerIdsRequest(broker_id=self.node_id, broker_epoch=self.broker_epoch)
        response = self._request(request, AllocateProducerIdsResponse)
        return range(response.producer_id_start, response.producer_id_start + response.producer_id_len)

    def shut_down(self) -> None:
        """End the membership by a controlled shutdown. The registration stays; the next start is a new incarnation.

        Raises:
            MembershipError: The membership has ended.
            TimeoutError: The controller has not elected other leaders in time. The member is closed all the same.
        """
        try:
            with self._changed:
                self._is_cordoned = self._is_ending = True
                self._wake()
                # Stored first: if it died in between, the same incarnation would stay in its controlled shutdown.
                self._store.save(
                    MembershipState(
                        cluster_id=self.cluster_id,
                        incarnation_id=self.incarnation_id,
                        previous_broker_epoch=self.broker_epoch,
                    )
                )
            with self._changed:
                self._wants_shut_down = True
                self._wake()
            self._wait(lambda: self._should_shut_down, time.monotonic() + _END_S, "let this broker shut down")
        finally:
            self.close()

    def unregister(self) -> None:
        """End the membership and remove the registration: nothing of the member stays in the cluster's metadata.

        The request names a node id, whichever process is registered under it. So it is sent only while this one must be
        the registered one, and once: it would remove a successor, if it came after the end of the session.

        Needs ALTER on the cluster.

        Raises:
            ValueError: Partitions still have replicas on this member. They must be reassigned or deleted before.
            MembershipError: The controller rejects the member, or another process has registered under its node id.
            ConnectionLostError: The controllers do not respond. The registration may stay.
            TimeoutError: The registration was not removed in time.
        """
        image = self.observer.image
        rest = [
            f"{topic.name}-{index}"
            for topic in image.topics.values()
            for index, partition in topic.partitions.items()
            if self.node_id in partition.replicas
        ]
        if rest:
            raise ValueError(
                f"Broker {self.node_id} still has {len(rest)} partitions ({', '.join(sorted(rest)[:5])}, ...): "
                "reassign them to other brokers before it is unregistered"
            )
        is_leased = self.is_leased()
        self._stop_heartbeats()
        try:
            if self.error is not None:
                raise self.error
            if not is_leased:
                raise ConnectionLostError(
                    f"Broker {self.node_id} stays registered: the controllers do not respond, so another process may "
                    "have registered under this node id"
                )
            with self._requests_lock:
                self._requests.lose()  # an idle connection may be broken
                self._requests.connection()
                image = self.observer.image
                self._check_registration(image)
                if not self._is_own(image):
                    self._raise_for(ErrorCode.STALE_BROKER_EPOCH, "UnregisterBroker")
                response = self._requests.call(
                    UnregisterBrokerRequest(broker_id=self.node_id), UnregisterBrokerResponse
                )
            self._raise_for(response.error_code, "UnregisterBroker")
            image = self.observer.wait_for(lambda image: not self._is_own(image), _END_S)
            if self.node_id not in image.brokers:  # else the state is that of a successor
                self._store.save(None)
        finally:
            self.close()

    def _is_own(self, image: ClusterImage) -> bool:
        broker = image.brokers.get(self.node_id)
        return broker is not None and broker.process == (self.broker_epoch, self.incarnation_id)

    def close(self) -> None:
        """Stop without a word to the controller, like a crash. The next start is the same incarnation."""
        self._stop_heartbeats()
        self.observer.close()
        with self._requests_lock:
            self._requests.close()

    def _stop_heartbeats(self) -> None:
        with self._changed:
            self._stopping = True
            self._heartbeat_at = float("-inf")
            self._wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _wait(self, is_done: Callable[[], bool], deadline: float, what: str) -> None:
        """Wait for a response of the controller that sets a state.

        Raises:
            MembershipError: The membership has ended.
            TimeoutError: The deadline on the monotonic clock has passed.
        """
        with self._changed:
            left_s = max(0.0, deadline - time.monotonic())
            is_in_time = self._changed.wait_for(lambda: self.error is not None or is_done(), left_s)
            if self.error is not None:
                raise self.error
            if not is_in_time:
                reason = f": {self._reason}" if self._reason else ""
                raise TimeoutError(f"The controller did not {what} in time{reason}")

    def _wake(self) -> None:
        """Let the thread send a heartbeat at once. The caller holds the lock."""
        self._is_woken = True
        self._changed.notify_all()

    def _run(self) -> None:
        backoff, failures = Backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S), LoggedReasons()
        try:
            while not self._stopping and not self._should_shut_down:
                try:
                    pause_s = self._step()
                except CLUSTER_ERRORS as error:
                    self._heartbeats.lose()
                    self._reason = error_text(error)
                    if failures.is_new(self._reason):
                        logger.warning("Broker %d: no heartbeat, will retry: %s", self.node_id, self._reason)
                    pause_s = backoff.next_s()
                else:
                    backoff.reset()
                    failures.clear()
                    self._reason = None
                with self._changed:
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._is_woken or self._should_shut_down, pause_s)
                    self._is_woken = False
        except MembershipError as error:
            self._end(error)
        except Exception as error:  # reported to all who use the membership
            logger.exception("Broker %d: heartbeats have stopped", self.node_id)
            self._end(MembershipError(f"heartbeats have stopped: {error!r}"))
        finally:
            self._heartbeats.close()

    def _end(self, error: MembershipError) -> None:
        """End the membership on an error."""
        with self._changed:
            if self.error is not None:
                return
            self.error = error
            self._stopping = True
            self._wake()
        logger.error("Broker %d: the membership has ended: %s", self.node_id, error)

    def _step(self) -> float:
        """Register if necessary, send a heartbeat, and return the pause before the next one in seconds."""
        if self.observer.error is not None:
            raise _as_membership_error(self.observer.error)
        image = self.observer.image
        features = common_features(image.brokers.values())
        if self.broker_epoch < 0 or (self._features != features and not self._is_ending):
            self._register(image, features)
        self._check_registration(image)
        with self._changed:
            wants_fence, wants_shut_down = self._wants_fence, self._wants_shut_down
            cordoned = [self.log_dir] if self._is_cordoned else []
        can_cordon = image.features.get("metadata.version", 0) >= CORDON_LEVEL
        sent_at = time.monotonic()
        response = self._heartbeats.call(
            BrokerHeartbeatRequest(
                broker_id=self.node_id,
                broker_epoch=self.broker_epoch,
                current_metadata_offset=image.offset,
                want_fence=wants_fence,
                want_shut_down=wants_shut_down,
                cordoned_log_dirs=cordoned if can_cordon else None,
            ),
            BrokerHeartbeatResponse,
            timeout_s=min(REQUEST_TIMEOUT_S, self._session_s / 2),
        )
        self._raise_for(response.error_code, "BrokerHeartbeat")
        with self._changed:
            if response.is_caught_up:
                self._lost_registrations = 0
            self._heartbeat_at = sent_at
            self.is_fenced = response.is_fenced
            self._should_shut_down = response.should_shut_down
            is_settled = response.is_fenced == self._wants_fence and not self._wants_shut_down
        return min(_MAX_HEARTBEAT_INTERVAL_S, self._session_s / 6) if is_settled else _EAGER_INTERVAL_S

    def _register(self, image: ClusterImage, features: Mapping[str, tuple[int, int]]) -> None:
        """Register, or change the feature ranges of the registration."""
        if not features:
            raise ConnectionLostError(
                "No broker with storage is registered, whose feature levels this one could take over"
            )
        self._session_s = self._session_timeout_s()
        with self._changed:
            if not self._is_ending:  # the end of this incarnation is stored then
                self._store.save(MembershipState(cluster_id=self.cluster_id, incarnation_id=self.incarnation_id))
        version = self._heartbeats.connection().version_of(BrokerRegistrationRequest)
        lowest = 0 if version >= _ZERO_MINIMUM_SINCE else 1
        request = registration_request(
            node_id=self.node_id,
            cluster_id=self.cluster_id,
            incarnation_id=self.incarnation_id,
            log_dir=self.log_dir,
            listeners=self._settings.listeners,
            features={name: levels for name, levels in features.items() if levels[0] >= lowest},
            previous_broker_epoch=self._previous_broker_epoch,
        )
        with self._changed:
            self._registered_after, self._registered_at = image.offset, -1
        try:
            response = self._heartbeats.call(request, BrokerRegistrationResponse)
        except ConnectionLostError:
            with self._changed:
                self._lost_registrations += 1
            raise
        if response.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION and self._may_be_own_session():
            raise ConnectionLostError(f"Another incarnation of broker {self.node_id} has a session that has not ended")
        self._raise_for(response.error_code, "BrokerRegistration")
        self.broker_epoch, self._features = response.broker_epoch, features
        logger.info("Broker %d: registered with broker epoch %d", self.node_id, self.broker_epoch)

    def _may_be_own_session(self) -> bool:
        """Return whether a session of another incarnation may be that of a former process, whose state was lost."""
        if self._first_try_at is None:
            self._first_try_at = time.monotonic()
        return time.monotonic() - self._first_try_at < 2 * self._session_s

    def _check_registration(self, image: ClusterImage) -> None:
        """Observe the own registration.

        Raises:
            DuplicateBrokerError: A later registration was sent by another process of the same incarnation.
        """
        broker = image.brokers.get(self.node_id)
        if broker is None:
            return
        with self._changed:
            if broker.registered_at <= max(self._registered_after, self._registered_at):
                return
            if self._registered_at >= 0:
                if self._lost_registrations == 0 or broker.incarnation_id != self.incarnation_id:
                    raise DuplicateBrokerError(
                        f"Another process has registered as broker {self.node_id} (incarnation "
                        f"{broker.incarnation_id}): two processes must not use the same node id"
                    )
                self._lost_registrations -= 1
            self._registered_at = broker.registered_at

    def _on_image(self, image: ClusterImage) -> None:
        """Send a heartbeat at once if the controller waits for this image. Called in the observer's thread."""
        try:
            self._check_registration(image)
        except DuplicateBrokerError as error:
            self._end(error)
        is_awaited = self.is_fenced != self._wants_fence
        if is_awaited or image.brokers is not self._seen_brokers:
            self._seen_brokers = image.brokers
            with self._changed:
                self._wake()

    def _session_timeout_s(self) -> float:
        """Return ``broker.session.timeout.ms`` of the active controller in seconds."""
        self._heartbeats.connection()
        request = describe_configs_request(ResourceType.BROKER, [self._heartbeats.controller_id], [_SESSION_CONFIG])
        response = self._heartbeats.call(request, DescribeConfigsResponse)
        if not (value := next(iter(described_configs(response).values()), {}).get(_SESSION_CONFIG)):
            logger.info("Broker %d: %s is not readable, using Kafka's default", self.node_id, _SESSION_CONFIG)
        return int(value) / 1000 if value else SESSION_TIMEOUT_S

    def _request(self, request: Message, response_class: type[Response]) -> Response:
        """Send a request until an active controller responds."""
        name = type(request).__name__.removesuffix("Request")
        deadline, backoff = time.monotonic() + _CHANGE_S, Backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        with self._requests_lock:
            while True:
                if self.error is not None:
                    raise self.error
                try:
                    response = self._requests.call(request, response_class)
                except (ConnectionLostError, TimeoutError) as error:
                    self._requests.lose()
                    pause_s = backoff.next_s()
                    if time.monotonic() + pause_s >= deadline:
                        raise TimeoutError(
                            f"{name}: no response within {_CHANGE_S:g} s: {error_text(error)}"
                        ) from error
                    time.sleep(pause_s)
                else:
                    self._raise_for(response.error_code, name)  # type: ignore[attr-defined]  # all of them have one
                    return response

    def _raise_for(self, error_code: int, name: str) -> None:
        """Raise the error of a response, by name."""
        who = f"Broker {self.node_id}"
        match error_code:
            case ErrorCode.NONE:
                return
            case ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                right = "ALTER" if name == "UnregisterBroker" else "CLUSTER_ACTION"
                principal = self._settings.controllers.security.principal
                raise ClusterActionDeniedError(f"{who}: {name} is denied: {principal} needs {right} on the cluster")
            case ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                raise DuplicateBrokerError(
                    f"{who}: another process is registered under this node id and alive: use another "
                    "node id, or stop that process"
                )
            case ErrorCode.STALE_BROKER_EPOCH | ErrorCode.BROKER_ID_NOT_REGISTERED:
                raise StaleBrokerError(
                    f"{who}: the registration with broker epoch {self.broker_epoch} does not exist any more: an "
                    "operator has unregistered this broker, or another process has taken over its node id"
                )
            case ErrorCode.INCONSISTENT_CLUSTER_ID:
                raise WrongClusterError(f"{who}: the controllers do not belong to cluster {self.cluster_id}")
            case ErrorCode.UNSUPPORTED_VERSION if name == "BrokerRegistration":
                raise UnsupportedFeaturesError(
                    f"{who}: the cluster has finalized a feature level outside {self._features}"
                )
            case _:
                raise api_error(error_code)


def _as_membership_error(error: Exception) -> MembershipError:
    if isinstance(error, MembershipError):
        return error
    ended = MembershipError(f"The metadata log cannot be followed: {error_text(error)}")
    ended.__cause__ = error
    return ended


def _alter_partition_request(
    changes: Mapping[tuple[UUID, int], IsrChange], node_id: int, broker_epoch: int
) -> AlterPartitionRequest:
    topics: dict[UUID, list[AlterPartitionRequest.PartitionData]] = defaultdict(list)
    for (topic_id, index), change in changes.items():
        topics[topic_id].append(
            AlterPartitionRequest.PartitionData(
                partition_index=index,
                leader_epoch=change.leader_epoch,
                partition_epoch=change.partition_epoch,
                new_isr_with_epochs=[
                    AlterPartitionRequest.BrokerState(broker_id=replica, broker_epoch=epoch)
                    for replica, epoch in change.isr.items()
                ],
            )
        )
    return AlterPartitionRequest(
        broker_id=node_id,
        broker_epoch=broker_epoch,
        topics=[AlterPartitionRequest.TopicData(topic_id=topic, partitions=rows) for topic, rows in topics.items()],
    )
