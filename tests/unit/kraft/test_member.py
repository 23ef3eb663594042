"""A member without a cluster: what it registers with, and what its state decides."""

from __future__ import annotations

import threading
import time
from base64 import urlsafe_b64encode
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import Mock
from uuid import UUID

import pytest

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kraft import member as members
from klamm.kraft.errors import DuplicateBrokerError, MembershipError, WrongClusterError
from klamm.kraft.image import BrokerImage, ClusterImage
from klamm.kraft.log_dirs import log_dir_of
from klamm.kraft.member import BrokerMember, MemberSettings, MembershipState
from klamm.kraft.registration import common_features, registration_request
from klamm.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse
from klamm.protocol.messages.broker_registration import BrokerRegistrationResponse
from klamm.protocol.messages.unregister_broker import UnregisterBrokerResponse
from tests.support.replicas import MemoryMembershipStore

if TYPE_CHECKING:
    from collections.abc import Iterable

SETTINGS = MemberSettings(
    node_id=9,
    cluster_id="cluster",
    listeners=(),
    controllers=ConnectionSettings(bootstrap_servers=("127.0.0.1:1",), client_id="klamm"),
    inter_broker_listener="INTERNAL",
)
INCARNATION = UUID(int=8)


def broker(**features: tuple[int, int]) -> BrokerImage:
    return BrokerImage(
        node_id=1,
        broker_epoch=5,
        incarnation_id=INCARNATION,
        registered_at=5,
        endpoints=(),
        features={name.replace("_", "."): levels for name, levels in features.items()},
        rack=None,
        is_fenced=False,
        in_controlled_shutdown=False,
        log_dirs=(),
        cordoned_log_dirs=(),
    )


def member(cluster_id: str = "cluster", previous_broker_epoch: int = -1) -> BrokerMember:
    state = MemoryMembershipStore()
    state.save(
        MembershipState(cluster_id=cluster_id, incarnation_id=INCARNATION, previous_broker_epoch=previous_broker_epoch)
    )
    return BrokerMember(SETTINGS, state)


OF_KLAMM = replace(broker(), log_dirs=(log_dir_of("cluster", 8),))


def test_features_are_those_that_all_brokers_support() -> None:
    old = broker(metadata_version=(7, 29), group_version=(0, 1))
    new = broker(metadata_version=(8, 33), group_version=(0, 1), share_version=(0, 2))
    assert common_features([old, new]) == {"group.version": (0, 1), "metadata.version": (8, 29)}
    assert common_features([old, new]) == common_features([old, new, OF_KLAMM])
    assert common_features([]) == common_features([OF_KLAMM]) == {}


def test_only_crashed_incarnation_continues() -> None:
    assert member().incarnation_id == INCARNATION
    assert member(previous_broker_epoch=5).incarnation_id != INCARNATION


def test_log_dir_survives_a_loss_of_the_state() -> None:
    first, second = (BrokerMember(SETTINGS, MemoryMembershipStore()) for _ in range(2))
    assert first.log_dir == second.log_dir
    assert first.incarnation_id != second.incarnation_id


def test_member_without_a_heartbeat_has_no_lease() -> None:
    assert not member().is_leased()


def klamm_threads() -> set[threading.Thread]:
    """Threads of other libraries may begin and end meanwhile."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("klamm-")}


def test_state_of_another_cluster_is_rejected_before_anything_is_sent() -> None:
    before = klamm_threads()
    with pytest.raises(WrongClusterError, match="was registered in cluster another, but the brokers belong to cluster"):
        member("another").start()
    assert klamm_threads() - before == set()


def test_start_without_reachable_controllers_names_the_reason_and_stops_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(members, "_START_S", 0.5)
    before = klamm_threads()
    with pytest.raises(TimeoutError, match=r"within 0\.5 s: No active controller is reachable: 127\.0\.0\.1:1: "):
        BrokerMember(SETTINGS, MemoryMembershipStore()).start()
    assert klamm_threads() - before == set()


def test_member_that_may_not_join_these_brokers_sends_no_registration() -> None:
    seen: list[BrokerImage] = []

    def reject(brokers: Iterable[BrokerImage]) -> None:
        seen.extend(brokers)
        raise MembershipError("another protocol")

    joining = BrokerMember(replace(SETTINGS, check_brokers=reject), MemoryMembershipStore())
    others = {8: OF_KLAMM, 2: replace(broker(), is_fenced=True)}
    joining.observer = Mock(image=ClusterImage(brokers={1: broker(), **others}))
    with pytest.raises(MembershipError, match="another protocol"):
        joining.start()
    assert seen == [broker()]
    assert not joining._thread.is_alive()
    joining.observer.close.assert_called_once_with()


@pytest.mark.parametrize("is_fenced", [True, False])
def test_node_id_of_a_broker_with_storage_is_rejected_before_it_is_replaced(*, is_fenced: bool) -> None:
    joining = BrokerMember(SETTINGS, MemoryMembershipStore())
    own = replace(broker(), node_id=9, log_dirs=(UUID(int=5),), is_fenced=is_fenced)
    joining.observer = Mock(image=ClusterImage(brokers={9: own}))
    with pytest.raises(DuplicateBrokerError, match="Broker 9 is registered as a broker with storage, live or not"):
        joining.start()
    assert not joining._thread.is_alive()


def test_registration_of_another_owner_is_rejected_before_it_is_replaced() -> None:
    """Its partitions would have this member as their leader. After a loss of the state the owner is the same."""
    first, again, other = (
        BrokerMember(replace(SETTINGS, owner=owner), MemoryMembershipStore()) for owner in ("A", "A", "C")
    )
    own = replace(broker(), node_id=9, log_dirs=(first.log_dir,))
    for member in (again, other):
        member.observer = Mock(image=ClusterImage(brokers={9: own}))
    again._check_node_id()
    with pytest.raises(DuplicateBrokerError, match="Broker 9 is registered as a broker of klamm that serves another"):
        other.start()
    assert not other._thread.is_alive()
    other.observer.close.assert_called_once_with()  # type: ignore[attr-defined]  # a Mock


def test_registrations_of_klamm_are_known_by_their_log_directory() -> None:
    own, other = (log_dir_of("cluster", node_id) for node_id in (8, 9))
    assert own != other != log_dir_of("another", 9)
    assert urlsafe_b64encode(own.bytes).startswith(b"klammdir")
    assert broker().has_storage
    assert replace(broker(), log_dirs=(INCARNATION,)).has_storage
    assert not OF_KLAMM.has_storage
    request = registration_request(
        node_id=8, cluster_id="cluster", incarnation_id=INCARNATION, log_dir=own, listeners=(), features={}
    )
    assert request.log_dirs == [own]


def test_unexpected_error_of_the_heartbeats_ends_the_membership_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = BrokerMember(SETTINGS, MemoryMembershipStore())
    monkeypatch.setattr(failing, "_step", Mock(side_effect=KeyError("session")))
    failing._run()
    assert isinstance(failing.error, MembershipError)
    assert str(failing.error) == "heartbeats have stopped: KeyError('session')"


class Leaving:
    """A member with a session, whose channel to the controllers and image are in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = MemoryMembershipStore()
        self.member = BrokerMember(SETTINGS, self.state)
        self.member.broker_epoch = 5
        self.own = replace(broker(), node_id=9, incarnation_id=self.member.incarnation_id)
        self.state.save(MembershipState(cluster_id="cluster", incarnation_id=self.member.incarnation_id))
        self.channel, self.observer = Mock(), Mock()
        self.channel.call.return_value = UnregisterBrokerResponse()
        self.observer.wait_for.return_value = ClusterImage()
        self.observer.caught_up_at = self.member._heartbeat_at = time.monotonic()
        monkeypatch.setattr(self.member, "_requests", self.channel)
        monkeypatch.setattr(self.member, "observer", self.observer)
        self.register(self.own)

    def register(self, own: BrokerImage) -> None:
        self.observer.image = replace(ClusterImage(), offset=5, brokers={9: own})


def test_member_with_a_session_removes_its_registration_and_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    leaving = Leaving(monkeypatch)
    leaving.member.unregister()
    assert leaving.channel.call.call_args.args[0].broker_id == 9
    assert leaving.state.load() is None


def test_unregistration_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor may have registered before the second request."""
    leaving = Leaving(monkeypatch)
    leaving.channel.call.side_effect = ConnectionLostError("the controller is away")
    with pytest.raises(ConnectionLostError, match="the controller is away"):
        leaving.member.unregister()
    assert leaving.channel.call.call_count == 1
    assert leaving.state.load() is not None


def test_member_whose_session_may_have_ended_removes_no_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    leaving = Leaving(monkeypatch)
    leaving.member._heartbeat_at -= 60
    with pytest.raises(ConnectionLostError, match="Broker 9 stays registered: the controllers do not respond"):
        leaving.member.unregister()
    leaving.channel.call.assert_not_called()


@pytest.mark.parametrize(
    "successor", [{"broker_epoch": 6}, {"incarnation_id": UUID(int=99)}, {"registered_at": 6}], ids=str
)
def test_registration_of_a_successor_is_not_removed(
    monkeypatch: pytest.MonkeyPatch, successor: dict[str, object]
) -> None:
    leaving = Leaving(monkeypatch)
    leaving.member._registered_after, leaving.member._registered_at = 4, 5
    leaving.register(replace(leaving.own, **successor))  # type: ignore[arg-type]  # fields of a broker
    with pytest.raises(MembershipError, match=r"[Aa]nother process has"):
        leaving.member.unregister()
    leaving.channel.call.assert_not_called()
    assert leaving.state.load() is not None


def test_state_of_a_successor_is_kept_after_the_unregistration(monkeypatch: pytest.MonkeyPatch) -> None:
    leaving = Leaving(monkeypatch)
    leaving.observer.wait_for.return_value = replace(ClusterImage(), brokers={9: replace(leaving.own, broker_epoch=7)})
    leaving.member.unregister()
    assert leaving.state.load() is not None


def registering(monkeypatch: pytest.MonkeyPatch, member: BrokerMember) -> Mock:
    """Return the channel of a member's heartbeats, which accepts registrations."""
    heartbeats = Mock()
    heartbeats.connection().version_of.return_value = 4
    heartbeats.call.return_value = BrokerRegistrationResponse(broker_epoch=6)
    monkeypatch.setattr(member, "_heartbeats", heartbeats)
    monkeypatch.setattr(member, "_session_timeout_s", lambda: 6.0)
    return heartbeats


def test_changed_features_do_not_replace_the_stored_end_of_an_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    leaving = Leaving(monkeypatch)
    registering(monkeypatch, leaving.member)
    monkeypatch.setattr(leaving.member, "_wait", lambda *_: None)
    leaving.member.shut_down()
    leaving.member._register(leaving.observer.image, {"metadata.version": (1, 30)})
    stored = leaving.state.load()
    assert stored is not None
    assert stored.previous_broker_epoch == 5


class Registered:
    """A member whose first registration got no response, and whose second one was accepted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.member = BrokerMember(SETTINGS, MemoryMembershipStore())
        self.heartbeats = registering(monkeypatch, self.member)
        monkeypatch.setattr(self.member, "observer", Mock(error=None))
        self.own = replace(broker(metadata_version=(1, 30)), node_id=9, incarnation_id=self.member.incarnation_id)
        response = self.heartbeats.call.return_value
        self.heartbeats.call.side_effect = [ConnectionLostError("the controller is away"), response]
        with pytest.raises(ConnectionLostError):
            self.register()
        self.register()

    def register(self) -> None:
        self.member._register(ClusterImage(offset=10), {"metadata.version": (1, 30)})

    def observe(self, registered_at: int, incarnation_id: UUID | None = None) -> ClusterImage:
        own = replace(
            self.own, registered_at=registered_at, incarnation_id=incarnation_id or self.member.incarnation_id
        )
        image = ClusterImage(offset=registered_at, brokers={1: broker(metadata_version=(1, 30)), 9: own})
        self.member._on_image(image)
        return image


def test_retry_of_a_registration_without_response_is_not_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    registered = Registered(monkeypatch)
    # when
    for registered_at in (15, 19, 15):
        registered.observe(registered_at)
    error_after_both = registered.member.error
    registered.observe(23)
    # then
    assert error_after_both is None
    assert isinstance(registered.member.error, DuplicateBrokerError)


def test_another_incarnation_is_detected_after_a_registration_without_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given
    registered = Registered(monkeypatch)
    # when
    registered.observe(15)
    registered.observe(19, UUID(int=99))
    # then
    assert isinstance(registered.member.error, DuplicateBrokerError)


def test_registration_after_a_heartbeat_that_has_caught_up_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller had handled both registrations before this heartbeat, and its image contains their records."""
    # given
    registered = Registered(monkeypatch)
    registered.member.observer.image = registered.observe(19)
    registered.heartbeats.call.side_effect = [BrokerHeartbeatResponse(is_caught_up=True)]
    # when
    registered.member._step()
    registered.observe(23)
    # then
    assert isinstance(registered.member.error, DuplicateBrokerError)
