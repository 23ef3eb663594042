"""Listeners of klamm and the registrations of the target's brokers."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kraft.errors import MembershipError
from klamm.kraft.image import BrokerEndpoint, BrokerImage
from klamm.mirror.copy.equal_offsets import ReplicaSettings
from klamm.mirror.replica.inter_broker import check_registrations
from tests.support.replicas import image_of

KLAMM = 9


def endpoint(name: str, protocol: str) -> BrokerEndpoint:
    return BrokerEndpoint(name=name, host="127.0.0.1", port=9092, security_protocol=protocol)


def broker(node_id: int, client_protocol: str) -> BrokerImage:
    """Return a broker with the listeners INTERNAL and CLIENT."""
    registered = image_of("t", UUID(int=1), KLAMM, (node_id,)).brokers[node_id]
    return replace(registered, endpoints=(endpoint("INTERNAL", "SSL"), endpoint("CLIENT", client_protocol)))


def check(*brokers: BrokerImage, client: BrokerEndpoint) -> None:
    listeners = (endpoint("INTERNAL", "SSL"), client)
    controllers = ConnectionSettings(bootstrap_servers=(), client_id="klamm")
    check_registrations(ReplicaSettings(node_id=KLAMM, controllers=controllers, listeners=listeners, bind=()), brokers)


def test_listener_of_clients_with_another_protocol_is_rejected() -> None:
    expected = "listener CLIENT is PLAINTEXT: expected CLIENT:SASL_SSL, as on the target's brokers"
    with pytest.raises(MembershipError, match=expected):
        check(broker(1, "SASL_SSL"), client=endpoint("CLIENT", "PLAINTEXT"))


def test_listener_that_no_broker_has_is_rejected() -> None:
    expected = "klamm.replica.listeners=INTERNAL,OTHER: the target's brokers have no listener OTHER: expected some of "
    with pytest.raises(MembershipError, match=f"{expected}CLIENT,INTERNAL"):
        check(broker(1, "SSL"), client=endpoint("OTHER", "SSL"))


def test_listener_may_have_any_protocol_of_the_brokers_while_it_changes() -> None:
    for protocol in ("SSL", "SASL_SSL"):
        check(broker(1, "SSL"), broker(2, "SASL_SSL"), client=endpoint("CLIENT", protocol))
    check(client=endpoint("CLIENT", "PLAINTEXT"))  # no broker is live
