"""The operators' view of each client: registered, registered without configs, or never registered."""

from __future__ import annotations

import pytest

from klamm.client_config_runtime.view import Standing, clients_document, view_clients
from klamm.client_configs.definitions import ClientKind
from klamm.client_configs.enforcement import Enforced
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.kinds import GroupProtocol
from tests.support.client_configs import seen_client

APP = ClientConfigEntity.of_client("alice", "app")


@pytest.mark.parametrize(
    ("registered", "effective", "fetched", "standing"),
    [
        (("acks",), {}, (), Standing.NOTHING_SET),
        (("acks",), {"acks": "all"}, (("acks", "all"),), Standing.IN_LINE),
        (("acks",), {"acks": "all"}, (), Standing.PENDING),
        (("acks",), {"acks": "all"}, None, Standing.PENDING),
        (("acks",), {"session.timeout.ms": "9000"}, None, Standing.NOT_CONCERNED),
        (("acks",), {}, (("acks", "all"),), Standing.PENDING),
        (("acks",), {"session.timeout.ms": "9000"}, (("session.timeout.ms", "9000"),), Standing.NOT_CONCERNED),
        (("session.timeout.ms",), {"heartbeat.interval.ms": "9"}, None, Standing.IGNORES),
        ((), {"acks": "all"}, None, Standing.IGNORES),
        (None, {"acks": "all"}, None, Standing.IGNORES),
        (None, {}, None, Standing.NOTHING_SET),
    ],
)
def test_standing_follows_registered_and_fetched_configs(
    registered: tuple[str, ...] | None,
    effective: dict[str, str],
    fetched: tuple[tuple[str, str], ...] | None,
    standing: Standing,
) -> None:
    # given
    image = {} if registered is None else {APP: {"klamm-kafka-python/1.0": registered}}
    # when
    (view,) = view_clients([seen_client(fetched=fetched)], image, lambda _: effective)
    # then
    assert view.standing is standing


@pytest.mark.parametrize(
    ("kinds", "registered", "ignored", "standing"),
    [
        ({ClientKind.PRODUCER}, None, ("acks",), Standing.IGNORES),
        ({ClientKind.PRODUCER}, ("acks",), (), Standing.IN_LINE),
        ({ClientKind.CONSUMER}, None, ("session.timeout.ms",), Standing.IGNORES),
        ({ClientKind.CONSUMER}, ("session.timeout.ms",), (), Standing.IN_LINE),
        ({ClientKind.CONSUMER, ClientKind.PRODUCER}, ("acks",), ("session.timeout.ms",), Standing.IGNORES),
        ({ClientKind.ADMIN}, None, (), Standing.NOT_CONCERNED),
        ({ClientKind.ADMIN}, ("acks",), (), Standing.IN_LINE),
        (set(), None, (), Standing.UNKNOWN),
        (set(), ("session.timeout.ms",), (), Standing.IN_LINE),
        (set(), (), ("acks", "session.timeout.ms"), Standing.IGNORES),
    ],
)
def test_client_ignores_only_configs_of_its_kinds(
    kinds: set[ClientKind], registered: tuple[str, ...] | None, ignored: tuple[str, ...], standing: Standing
) -> None:
    # given
    effective = {"acks": "all", "session.timeout.ms": "9000"}
    image = {} if registered is None else {APP: {"klamm-kafka-python/1.0": registered}}
    client = seen_client(kinds=frozenset(kinds), fetched=tuple(effective.items()) if registered else None)
    # when
    (view,) = view_clients([client], image, lambda _: effective)
    # then
    assert (view.ignored, view.standing) == (ignored, standing)


@pytest.mark.parametrize(
    ("registered", "protocols", "compliance", "standing"),
    [
        (None, set(), {"acks": "enforced", "session.timeout.ms": "cannot"}, Standing.IGNORES),
        (None, {GroupProtocol.CLASSIC}, {"acks": "enforced", "session.timeout.ms": "enforced"}, Standing.ENFORCED),
        (("acks", "session.timeout.ms"), set(), {"acks": "follows", "session.timeout.ms": "follows"}, Standing.IN_LINE),
        (("acks",), {GroupProtocol.CLASSIC}, {"acks": "follows", "session.timeout.ms": "enforced"}, Standing.ENFORCED),
    ],
)
def test_enforced_key_is_not_ignored(
    registered: tuple[str, ...] | None, protocols: set[GroupProtocol], compliance: dict[str, str], standing: Standing
) -> None:
    """K649-96."""
    # given
    effective = {"acks": "all", "session.timeout.ms": "9000"}
    image = {} if registered is None else {APP: {"klamm-kafka-python/1.0": registered}}
    client = seen_client(
        kinds=frozenset({ClientKind.PRODUCER, ClientKind.CONSUMER}),
        protocols=frozenset(protocols),
        fetched=tuple(effective.items()) if registered else None,
    )
    # when
    (view,) = view_clients([client], image, lambda _: effective, lambda _: Enforced(is_on=True))
    # then
    assert (view.document()["compliance"], view.standing) == (compliance, standing)
    assert view.document()["enforceable"] == ["acks", *(["session.timeout.ms"] if protocols else [])]


@pytest.mark.parametrize(
    ("reported", "shown", "drift"),
    [
        ({}, {}, []),
        ({"acks": -1, "session.timeout.ms": 9000}, {"acks": "all", "session.timeout.ms": "9000"}, []),
        ({"acks": 1, "heartbeat.interval.ms": 2500}, {"acks": "1", "heartbeat.interval.ms": "2500"}, ["acks"]),
        ({"session.timeout.ms": 45_000}, {"session.timeout.ms": "45000"}, ["session.timeout.ms"]),
        ({"heartbeat.interval.ms": 4600}, {"heartbeat.interval.ms": "4600"}, ["heartbeat.interval.ms"]),
        ({"heartbeat.interval.ms": 1900}, {"heartbeat.interval.ms": "1900"}, ["heartbeat.interval.ms"]),
    ],
)
def test_reported_configs_are_compared_with_effective_configs(
    reported: dict[str, int], shown: dict[str, str], drift: list[str]
) -> None:
    """K714-08."""
    # given
    effective = {"acks": "-1", "session.timeout.ms": "9000", "heartbeat.interval.ms": "3000"}
    client = seen_client(kinds=frozenset({ClientKind.PRODUCER, ClientKind.CONSUMER}), reported=reported)
    # when
    (view,) = view_clients([client], {}, lambda _: effective)
    # then
    assert (view.document()["reported"], view.document()["drift"]) == (shown, drift)


def test_unregistered_client_differs_from_one_without_supported_configs() -> None:
    # given
    image = {APP: {"klamm-kafka-python/1.0": ()}}
    plain = seen_client(software_name="apache-kafka-java", software_version="4.1.0")
    # when
    document = clients_document(
        [client.document() for client in view_clients([seen_client(), plain], image, lambda _: {})], at_ms=7
    )
    # then
    assert document["at_ms"] == 7
    assert [client["registered"] for client in document["clients"]] == [[], None]


def test_registration_of_another_version_does_not_count() -> None:
    # given
    image = {APP: {"klamm-kafka-python/2.0": ("acks",)}}
    # when
    (view,) = view_clients([seen_client()], image, lambda _: {"acks": "1"})
    # then
    assert (view.registered, view.ignored) == (None, ("acks",))


def test_unnamed_library_is_merged_with_its_config_connection() -> None:
    # given
    image = {APP: {"klamm-aiokafka/1.0": ("acks",)}}
    asks = seen_client(software_name="klamm-aiokafka", fetched=(("acks", "1"),), last_seen_ms=3)
    works = seen_client(software_name="unknown", software_version="unknown", last_seen_ms=9)
    elsewhere = seen_client(software_name="unknown", software_version="unknown", host="10.0.0.2")
    # when
    views = view_clients([asks, works, elsewhere], image, lambda _: {"acks": "1"})
    # then
    assert [(view.client.host, view.client.connections, view.standing) for view in views] == [
        ("10.0.0.1", 2, Standing.IN_LINE),
        ("10.0.0.2", 1, Standing.IGNORES),
    ]
