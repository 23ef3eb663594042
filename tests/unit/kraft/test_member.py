"""A member without a cluster: what it registers with, and what its state decides."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import Mock
from uuid import UUID

import pytest

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kraft.errors import MembershipError, WrongClusterError
from klamm.kraft.image import BrokerImage, ClusterImage
from klamm.kraft.member import BrokerMember, MemberSettings, MembershipState, common_features
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


def test_features_are_those_that_all_brokers_support() -> None:
    old = broker(metadata_version=(7, 29), group_version=(0, 1))
    new = broker(metadata_version=(8, 33), group_version=(0, 1), share_version=(0, 2))
    assert common_features([old, new]) == {"group.version": (0, 1), "metadata.version": (8, 29)}
    assert common_features([old, new]) == common_features([old, new, replace(new, node_id=2**31 - 1, features={})])
    assert common_features([]) == {}


def test_only_crashed_incarnation_continues() -> None:
    assert member().incarnation_id == INCARNATION
    assert member(previous_broker_epoch=5).incarnation_id != INCARNATION


def test_log_dir_survives_a_loss_of_the_state() -> None:
    first, second = (BrokerMember(SETTINGS, MemoryMembershipStore()) for _ in range(2))
    assert first.log_dir == second.log_dir
    assert first.incarnation_id != second.incarnation_id


def test_member_without_a_heartbeat_has_no_lease() -> None:
    assert not member().is_leased()


def test_state_of_another_cluster_is_rejected_before_anything_is_sent() -> None:
    before = threading.active_count()
    with pytest.raises(WrongClusterError, match="was registered in cluster another, but the brokers belong to cluster"):
        member("another").start()
    assert threading.active_count() == before


def test_start_without_reachable_controllers_names_the_reason_and_stops_its_threads() -> None:
    before = threading.active_count()
    with pytest.raises(TimeoutError, match=r"within 0\.5 s: No active controller is reachable: 127\.0\.0\.1:1: "):
        BrokerMember(SETTINGS, MemoryMembershipStore()).start(timeout_s=0.5)
    assert threading.active_count() == before


def test_member_that_may_not_join_these_brokers_sends_no_registration() -> None:
    seen: list[BrokerImage] = []

    def reject(brokers: Iterable[BrokerImage]) -> None:
        seen.extend(brokers)
        raise MembershipError("another protocol")

    joining = BrokerMember(replace(SETTINGS, check_brokers=reject), MemoryMembershipStore())
    joining.observer = Mock(image=ClusterImage(brokers={1: broker()}))
    with pytest.raises(MembershipError, match="another protocol"):
        joining.start()
    assert seen == [broker()]
    assert not joining._thread.is_alive()
    joining.observer.close.assert_called_once_with()


def test_unexpected_error_of_the_heartbeats_ends_the_membership_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = BrokerMember(SETTINGS, MemoryMembershipStore())
    monkeypatch.setattr(failing, "_step", Mock(side_effect=KeyError("session")))
    failing._run()
    assert isinstance(failing.error, MembershipError)
    assert str(failing.error) == "heartbeats have stopped: KeyError('session')"
