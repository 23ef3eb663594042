"""The API that writes topic configs, as the target's broker sees it (KIP-894)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.admin import AdminClient
from klamm.mirror.cluster_admin import admin_client
from klamm.mirror.progress.flow_progress import FlowFailedError, MirrorStatus
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.control import FlowControl
from klamm.properties import parse_properties
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.alter_configs import AlterConfigsRequest
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from tests.support.frame_proxy import FrameProxy
from tests.support.mirror import create_topic, properties, topic_configs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.protocol.frames import RequestHeader

SINGLE, COMPLETE = IncrementalAlterConfigsRequest.API_KEY, AlterConfigsRequest.API_KEY


class BrokerOf22(FrameProxy):
    """Stands before a broker as one that is older than IncrementalAlterConfigs."""

    def __init__(self, address: str) -> None:
        super().__init__(address, replacements={ApiVersionsResponse.API_KEY: self._offered})

    @staticmethod
    def _offered(header: RequestHeader, body: memoryview) -> bytes:
        offered = decode(ApiVersionsResponse, header.api_version, body)
        offered.api_keys = [api for api in offered.api_keys if api.api_key != SINGLE]
        return bytes(encode(offered, header.api_version))


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[str, str]]:
    with klamm.Broker() as here, klamm.Broker() as there:
        yield here.bootstrap_servers, there.bootstrap_servers


@pytest.fixture
def brokers(clusters: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """A source and a target, each with one topic."""
    create_topic(clusters[0], "orders", 1, {"retention.ms": "5000"})
    own = {"retention.ms": "5000", "follower.replication.throttled.replicas": "*"}
    create_topic(clusters[1], "A.orders", 1, own)
    yield clusters
    for servers, topic in zip(clusters, ("orders", "A.orders"), strict=True):
        with AdminClient(servers) as admin:
            admin.delete_topics([topic]).all().result()


def used(brokers: tuple[str, str], proxy: FrameProxy, mode: str) -> list[int]:
    """Go round twice; returns the keys of the requests that altered configs."""
    target = f"127.0.0.1:{proxy.port}"
    flow = parse_settings(parse_properties(properties(brokers[0], target, topics="orders", more=f"{mode}\n"))).flows[0]
    admins = [admin_client(flow, side, timeout_ms=10_000) for side in ("source", "target")]
    now = 0.0
    try:
        control = FlowControl(
            flow, *admins, status=MirrorStatus([flow.name]), publish=lambda _: None, clock=lambda: now
        )
        for _ in range(2):
            control.turn()
            now += 1e6
    finally:
        for admin in admins:
            admin.close()
    return [request.header.api_key for key in (SINGLE, COMPLETE) for request in proxy.requests(key)]


def test_requested_uses_incremental_alter_configs_on_current_target(brokers: tuple[str, str]) -> None:
    """K894-04: requested: topic configs are written with IncrementalAlterConfigs.

    K894-10: MirrorMaker must not clear target topic configs that are excluded from replication.
    """
    with FrameProxy(brokers[1]) as proxy:
        assert set(used(brokers, proxy, "use.incremental.alter.configs=requested")) == {SINGLE}
    assert topic_configs(brokers[1], "A.orders")["follower.replication.throttled.replicas"] == "*"


def test_required_fails_at_once_on_older_target(brokers: tuple[str, str]) -> None:
    """K894-09: required: only IncrementalAlterConfigs; if incompatible, report to the user and fail the connector."""
    with BrokerOf22(brokers[1]) as proxy:
        with pytest.raises(FlowFailedError, match=r"use\.incremental\.alter\.configs was set to required"):
            used(brokers, proxy, "use.incremental.alter.configs=required")
        assert not proxy.requests(SINGLE)
        assert not proxy.requests(COMPLETE)


def test_requested_falls_back_on_older_target_and_logs_once(
    brokers: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """K894-05, K894-06: the key is not sent even once, because an old broker closes the connection on it."""
    with BrokerOf22(brokers[1]) as proxy, caplog.at_level(logging.WARNING):
        assert used(brokers, proxy, "") == [COMPLETE, COMPLETE]
    assert caplog.text.count("The target cluster B is not compatible with IncrementalAlterConfigs API") == 1


def test_never_sends_no_incremental_alter_configs(brokers: tuple[str, str]) -> None:
    """K894-08: never: only AlterConfigs, even if 44 exists."""
    with FrameProxy(brokers[1]) as proxy:
        assert set(used(brokers, proxy, "use.incremental.alter.configs=never")) == {COMPLETE}
