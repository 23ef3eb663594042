"""Kinds of clients and the configs that apply to them."""

from __future__ import annotations

import pytest

from klamm.client_configs.definitions import DEFINITIONS, ClientKind
from klamm.client_configs.kinds import KIND_OF_API, concerns, kinds_of_configs
from klamm.protocol.api import ApiKey

PRODUCER = frozenset({ClientKind.PRODUCER})
CONSUMER = frozenset({ClientKind.CONSUMER})


@pytest.mark.parametrize(
    ("name", "kinds", "expected"),
    [
        ("acks", PRODUCER, True),
        ("acks", CONSUMER, False),
        ("acks", PRODUCER | CONSUMER, True),
        ("session.timeout.ms", PRODUCER, False),
        ("heartbeat.interval.ms", CONSUMER, True),
        ("acks", frozenset({ClientKind.ADMIN}), False),
        ("acks", frozenset(), True),
        ("linger.ms", CONSUMER, True),
    ],
)
def test_config_concerns_clients_of_its_kind(name: str, kinds: frozenset[ClientKind], expected: bool) -> None:
    assert concerns(name, kinds) is expected


def test_registered_configs_reveal_the_kind() -> None:
    assert kinds_of_configs(["acks", "linger.ms"]) == PRODUCER
    assert kinds_of_configs(DEFINITIONS) == PRODUCER | CONSUMER
    assert kinds_of_configs([]) == frozenset()


def test_apis_of_several_client_kinds_reveal_no_kind() -> None:
    for key in (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT, ApiKey.LIST_OFFSETS):
        assert int(key) not in KIND_OF_API
