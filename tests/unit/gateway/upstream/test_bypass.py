"""Clients that go past the gateway: group members at other addresses, counted by client id."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.admin.types import GroupDescription, GroupListing, GroupMember
from klamm.gateway.upstream import bypass
from klamm.gateway.upstream.bypass import BypassCheck
from klamm.gateway.upstream.topology import Topology
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.errors import GroupAuthorizationError
from tests.support.skips import skip_loudly

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from klamm.admin import AdminClient


async def answered(result: Any) -> Any:
    if isinstance(result, Exception):
        raise result
    return result


class FakeAdmin:
    """Admin client of a cluster with groups: hosts of the members by client id, or an error, by group id."""

    def __init__(self, groups: dict[str, dict[str, str] | Exception]) -> None:
        self.groups = groups
        self.described: list[str] = []

    def list_groups(self) -> Any:
        empty = GroupListing(group_id="empty", protocol_type="consumer", state="Empty")
        stable = [GroupListing(group_id=name, protocol_type="consumer", state="Stable") for name in self.groups]
        return answered((empty, *stable))

    def describe_groups(self, group_ids: Collection[str]) -> Any:
        self.described += group_ids
        self.answers = {name: answered(self._described(name)) for name in group_ids}
        return self

    def values(self) -> dict[str, Any]:
        return self.answers

    def _described(self, name: str) -> GroupDescription | Exception:
        members = self.groups[name]
        if isinstance(members, Exception):
            return members
        return GroupDescription(
            group_id=name,
            state="Stable",
            protocol_type="consumer",
            protocol="range",
            members=tuple(
                GroupMember(
                    member_id=client_id,
                    group_instance_id=None,
                    client_id=client_id,
                    host=host,
                    metadata=b"",
                    assignment=b"",
                    assigned_partitions=None,
                )
                for client_id, host in members.items()
            ),
        )


def check_of(admin: FakeAdmin, directory: Path, *addresses: str, broker: str = "127.0.0.1") -> BypassCheck:
    topology = Topology(directory)
    topology.learn(1, broker, 9092)
    return BypassCheck(cast("AdminClient", admin), topology, addresses)


def test_members_at_other_addresses_are_counted_by_client_id(tmp_path: Path) -> None:
    admin = FakeAdmin(
        {
            "a": {"through": "/127.0.0.1", "past": "/10.0.0.9", "other-gateway": "/10.0.0.7"},
            "b": {"past": "/10.0.0.8", "mapped": "::ffff:127.0.0.1"},
            "gone": GroupAuthorizationError("no"),
        }
    )
    check = check_of(admin, tmp_path, "10.0.0.7")
    assert check.members is None
    asyncio.run(check.check())
    assert check.members == {"past": 2}
    assert admin.described == ["a", "b", "gone"]


def test_gateway_is_known_at_all_addresses_that_broker_names_resolve_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    if not socket.has_dualstack_ipv6():
        skip_loudly("needs IPv6")
    resolve = socket.getaddrinfo

    def resolve_broker(name: str, port: int, **hints: int) -> Any:
        assert name == "kafka-1"
        return [each for host in ("::1", "127.0.0.1") for each in resolve(host, port, **hints)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve_broker)
    members = {"ipv6": "/0:0:0:0:0:0:0:1", "ipv4": "/127.0.0.1", "past": "/2001:db8:0:0:0:0:0:9"}
    check = check_of(FakeAdmin({"a": members}), tmp_path, broker="kafka-1")
    # when
    asyncio.run(check.check())
    # then
    assert check.members == {"past": 1}


def test_invalid_broker_name_does_not_stop_the_check(tmp_path: Path) -> None:
    check = check_of(FakeAdmin({"a": {"past": "/10.0.0.9"}}), tmp_path, broker="kafka..example")
    asyncio.run(check.check())
    assert check.members == {"past": 1}


@pytest.mark.parametrize("known", ["2001:db8::7", "2001:DB8:0:0:0:0:0:7"])
def test_known_host_is_recognised_in_any_notation_of_ipv6(known: str, tmp_path: Path) -> None:
    check = check_of(FakeAdmin({"a": {"other-gateway": "/2001:db8:0:0:0:0:0:7"}}), tmp_path, known)
    asyncio.run(check.check())
    assert check.members == {}


def test_many_groups_are_described_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bypass, "MAX_GROUPS", 3)
    admin = FakeAdmin({name: {f"client-{name}": "/10.0.0.9"} for name in "abcde"})
    check = check_of(admin, tmp_path)
    for _ in range(2):
        asyncio.run(check.check())
    assert "".join(admin.described) == "abcdea"
    assert check.members == {f"client-{name}": 1 for name in "abcde"}
    # when
    del admin.groups["c"]
    asyncio.run(check.check())
    # then
    assert check.members == {f"client-{name}": 1 for name in "abde"}


def test_client_ids_are_bounded(tmp_path: Path) -> None:
    check = check_of(FakeAdmin({"a": {f"client-{number}": "/10.0.0.9" for number in range(150)}}), tmp_path)
    asyncio.run(check.check())
    assert check.members is not None
    assert (len(check.members), check.members["(other)"]) == (101, 50)


async def test_failed_check_is_logged_once_and_shows_no_members(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    admin = FakeAdmin({"a": {"past": "/10.0.0.9"}})
    check = check_of(admin, tmp_path)

    failing = asyncio.Event()
    failures = 0

    def fail() -> Any:
        nonlocal failures
        failures += 1
        if failures == 3:
            failing.set()
        return answered(ConnectionLostError("away"))

    await check.check()
    assert check.members == {"past": 1}
    admin.list_groups = fail  # type: ignore[method-assign]
    checking = asyncio.create_task(check.keep_checking(0))
    await failing.wait()
    checking.cancel()
    assert check.members is None
    assert caplog.text.count("are not counted: away") == 1
