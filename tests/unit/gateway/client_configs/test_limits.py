"""Limits for enforced values, read from the upstream brokers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import klamm
from klamm.admin import AdminClient
from klamm.client_configs.definitions import BrokerLimits
from klamm.client_configs.enforcement import TimingLimits
from klamm.gateway.client_configs.limits import UpstreamLimits, narrowed
from klamm.gateway.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN, MAX = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
MIN_INTERVAL, MAX_INTERVAL = "group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"


@pytest.mark.parametrize(
    ("own", "brokers", "session"),
    [
        ({}, [], (6_000, 1_800_000)),
        ({MIN: 100}, [], (100, 1_800_000)),
        ({}, [{MIN: 100, MAX: 900}, {MIN: 200, MAX: 1_000}], (200, 900)),
        ({}, [{MIN: 100, MAX: 900}, {}], (6_000, 900)),
        ({MIN: 50, MAX: 5_000}, [{MIN: 100, MAX: 900}], (100, 900)),
        ({MIN: 300, MAX: 500}, [{MIN: 100, MAX: 900}], (300, 500)),
        ({MIN: 2_000, MAX: 5_000}, [{MIN: 100, MAX: 900}], (100, 900)),
    ],
)
def test_limits_of_all_brokers_hold(
    own: Mapping[str, int], brokers: list[dict[str, int]], session: tuple[int, int]
) -> None:
    limits = narrowed(own, brokers)
    assert (limits[MIN], limits[MAX]) == session
    assert (limits[MIN_INTERVAL], limits[MAX_INTERVAL]) == (5_000, 15_000)


def upstream_limits(**own: str) -> UpstreamLimits:
    configs = {"upstream.bootstrap.servers": "kafka:9092", "client.configs.enable": "true", **own}
    settings = read_settings(configs).client_configs
    assert settings is not None
    return UpstreamLimits(settings)


@pytest.mark.process
def test_limits_are_read_again_and_changes_reported() -> None:
    async def test(admin: AdminClient) -> None:
        limits = upstream_limits()
        changes: list[tuple[BrokerLimits, TimingLimits]] = []
        limits.on_change = lambda: changes.append((limits.values, limits.timings))
        await limits.start(admin)
        await limits.refresh(admin)
        await limits.close()
        assert limits.values == BrokerLimits(min_session_timeout_ms=7_000, max_session_timeout_ms=90_000)
        assert limits.timings == TimingLimits(min_heartbeat_interval_ms=1_000, max_heartbeat_interval_ms=9_000)
        assert len(changes) == 1

    config = {MIN: 7_000, MAX: 90_000, MIN_INTERVAL: 1_000, MAX_INTERVAL: 9_000}
    with klamm.Broker(config=config) as broker, AdminClient(broker.bootstrap_servers) as admin:
        asyncio.run(test(admin))


def test_limits_that_cannot_be_read_stay_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    class Unreachable:
        def describe_cluster(self, **_: Any) -> Any:
            raise ConnectionError("nothing is there")

    admin: Any = Unreachable()
    limits = upstream_limits(**{MIN: "9000"})
    for _ in range(2):
        asyncio.run(limits.refresh(admin))
    assert limits.values.min_session_timeout_ms == 9_000
    assert [record.getMessage() for record in caplog.records] == [
        "Limits of the brokers for enforced client configs cannot be read: nothing is there"
    ]


@pytest.mark.parametrize("odd", ["soon", "3000000000", "9" * 5000])
def test_limit_outside_java_int_is_ignored(odd: str) -> None:
    class Odd:
        async def describe_cluster(self, **_: Any) -> Any:
            return SimpleNamespace(nodes=[SimpleNamespace(id=1)])

        async def describe_configs(self, brokers: Any, **_: Any) -> Any:
            return {each: {MIN: SimpleNamespace(value=odd), MAX: SimpleNamespace(value="9000")} for each in brokers}

    admin: Any = Odd()
    limits = upstream_limits()
    asyncio.run(limits.refresh(admin))
    assert limits.values == BrokerLimits(min_session_timeout_ms=6_000, max_session_timeout_ms=9_000)
