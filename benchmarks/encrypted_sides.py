"""The two brokers with a listener for TLS beside the plain one."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.sides import apache_kafka
from tests.support.klamm import KlammBroker
from tests.support.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.probe import Cluster
    from tests.support.security import Certificates

    Measured = Callable[[Cluster, Mapping[str, str]], Mapping[str, float]]
    """Measures a cluster by clients that connect with these settings of librdkafka."""


class _EncryptedBroker(KlammBroker):
    """klamm's broker with a second listener."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.tls_port = free_port()
        super().__init__(properties)

    def command(self) -> list[str | Path]:
        """Return the command line that starts it."""
        listeners = f"PLAINTEXT://{self.bootstrap_servers},SSL://{self.host}:{self.tls_port}"
        properties = {"listeners": listeners, **self._properties}
        settings = [part for name, value in properties.items() for part in ("--set", f"{name}={value}")]
        return [Path(sys.executable).with_name("klamm"), "broker", "--data-dir", self.data_dir, *settings]


def encrypted_sides(certificates: Certificates, measured: Measured) -> Mapping[str, Callable[[], Mapping[str, float]]]:
    """Return the sides of a benchmark whose clients use TLS. Both brokers have the same RSA certificate."""
    # Apache Kafka wants the certificate after a key in PKCS 8, which openssl writes.
    keys = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificates.issue("broker", "/CN=broker"))}
    return {
        "klamm": partial(_klamm, keys, certificates.authority, measured),
        "Apache Kafka": partial(_kafka, keys, certificates.authority, measured),
    }


def _klamm(keys: Mapping[str, str], authority: Path, measured: Measured) -> Mapping[str, float]:
    with _EncryptedBroker(keys) as broker:
        return measured(broker, _client(broker.tls_port, authority))


def _kafka(keys: Mapping[str, str], authority: Path, measured: Measured) -> Mapping[str, float]:
    # The cluster's second listener has the name of the one for logins; here it speaks TLS.
    protocols = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SSL,CONTROLLER:PLAINTEXT"}
    with apache_kafka({**keys, **protocols}, with_logins=True) as cluster:
        return measured(cluster, _client(cluster.login_ports[1], authority))


def _client(port: int, authority: Path) -> Mapping[str, str]:
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority),
    }
