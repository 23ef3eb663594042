"""Replica mode with certificates: brokers, controllers and klamm authenticate each other by TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.errors import ErrorCode
from tests.support.kafka import KafkaCluster
from tests.support.secure_flow import LISTENER, SecureFlow, ends_at, tls
from tests.support.security import Certificates

if TYPE_CHECKING:
    from pathlib import Path

RULES = {"ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/"}


@pytest.mark.long
def test_replicas_with_client_certificates_get_the_records(java: None, tmp_path: Path) -> None:
    # given
    certificates = Certificates.create(tmp_path)
    for name in ("node", "klamm", "mallory"):
        certificates.issue(name, f"/O=klamm/CN={name}")
    properties = {
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{LISTENER}:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": LISTENER,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:node;User:klamm;User:ANONYMOUS",
        **tls(certificates, "node"),
        **RULES,
    }
    own = tls(certificates, "klamm")
    keys = {"B.security.protocol": "SSL", **{f"B.{name}": value for name, value in own.items()}}
    with KafkaCluster(properties=properties, with_logins=True, login_listener=LISTENER) as cluster:
        flow = SecureFlow(cluster, "SSL", keys, {**own, **RULES, "super.users": "User:node"})
        # when
        end = flow.produce(5)
        with flow.copier() as copier:
            ends_at(copier, end)
            # then
            client = {"security.protocol": "SSL", **tls(certificates, "mallory")}
            answer = flow.fetch_as_broker(client)
            assert (answer.error_code, answer.high_watermark) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)
            del client["ssl.keystore.location"]
            with pytest.raises(ConnectionLostError):
                flow.fetch_as_broker(client)
            (tmp_path / "foreign").mkdir()
            foreign = Certificates.create(tmp_path / "foreign").issue("node", "/O=klamm/CN=node")
            with pytest.raises(ConnectionLostError):
                flow.fetch_as_broker({**client, "ssl.keystore.location": str(foreign)})
            ends_at(copier, flow.produce(7))
        flow.assert_equal()
