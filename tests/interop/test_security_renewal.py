"""TLS that changes while the broker runs (KIP-226)."""

from __future__ import annotations

import shutil
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.admin import AdminClient, AlterConfigOp, ConfigEntry, ConfigResource, OpType, ResourceType
from klamm.protocol.errors import InvalidRequestError
from tests.support.security import Certificates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PREFIX = "listener.name.ssl."


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates.create(tmp_path_factory.mktemp("certificates"))
    for name in ("first", "second", "third"):
        made.issue(name, "/O=klamm/CN=broker")
    made.issue("stranger", "/O=elsewhere/CN=broker")
    return made


class Renewed:
    """A broker with TLS on a file that tests replace."""

    def __init__(self, certificates: Certificates, store: Path) -> None:
        self.certificates, self.store = certificates, store
        self.put("first")
        self.broker = klamm.Broker(
            listen="SSL://127.0.0.1:0",
            data_dir=store.parent / "data",
            config={"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)},
        )

    def put(self, name: str) -> None:
        shutil.copy(self.certificates.directory / f"{name}.pem", self.store)

    def shown(self) -> bytes:
        """Return the certificate that a new connection gets."""
        return self.connect()[0]

    def connect(self, **versions: ssl.TLSVersion) -> tuple[bytes, str | None]:
        """Return the certificate and the version of a new connection."""
        context = ssl.create_default_context(cafile=str(self.certificates.authority))
        for name, version in versions.items():
            setattr(context, name, version)
        host, _, port = self.broker.bootstrap_servers.rpartition(":")
        with context.wrap_socket(socket.create_connection((host, int(port)), 10), server_hostname=host) as connected:
            return connected.getpeercert(binary_form=True) or b"", connected.version()

    def expected(self, name: str) -> bytes:
        return ssl.PEM_cert_to_DER_cert(self.certificates.certificate_of(name).read_text())

    def alter(self, values: Mapping[str, str]) -> None:
        context = ssl.create_default_context(cafile=str(self.certificates.authority))
        resource = ConfigResource(ResourceType.BROKER, "1")
        operations = [AlterConfigOp(ConfigEntry(name, value), OpType.SET) for name, value in values.items()]
        servers = self.broker.bootstrap_servers
        with AdminClient([servers], security_protocol="SSL", ssl_context=context) as admin:
            admin.incremental_alter_configs({resource: operations}).all().result(300)


@pytest.fixture
def renewed(certificates: Certificates, tmp_path: Path) -> Iterator[Renewed]:
    made = Renewed(certificates, tmp_path / "broker.pem")
    with made.broker:
        yield made


def test_keystore_set_again_is_reloaded_and_survives_a_restart(renewed: Renewed) -> None:
    # given
    assert renewed.shown() == renewed.expected("first")
    location = f"{PREFIX}ssl.keystore.location"
    renewed.alter({f"{PREFIX}ssl.keystore.type": "PEM", location: str(renewed.store)})
    # when the file changes, nothing happens before somebody says so
    renewed.put("second")
    assert renewed.shown() == renewed.expected("first")
    renewed.alter({location: str(renewed.store)})
    # then
    assert renewed.shown() == renewed.expected("second")
    # and
    renewed.alter({location: str(renewed.certificates.directory / "third.pem")})
    assert renewed.shown() == renewed.expected("third")
    renewed.broker.stop()
    renewed.broker.start()
    assert renewed.shown() == renewed.expected("third")


def test_invalid_keystore_is_rejected_and_current_one_kept(renewed: Renewed) -> None:
    directory = renewed.certificates.directory
    for location, reason in [
        ("/no/such.pem", r"SSLFactory failed: Listener SSL: ssl\.keystore\.location=/no/such\.pem: cannot be read"),
        (
            str(directory / "stranger.pem"),
            "DistinguishedName does not match: existing=CN=broker,O=klamm, new=CN=broker",
        ),
    ]:
        with pytest.raises(InvalidRequestError, match=reason):
            renewed.alter({f"{PREFIX}ssl.keystore.type": "PEM", f"{PREFIX}ssl.keystore.location": location})
    assert renewed.shown() == renewed.expected("first")


def test_changed_tls_versions_apply_to_new_connections(renewed: Renewed) -> None:
    assert renewed.connect(maximum_version=ssl.TLSVersion.TLSv1_2)[1] == "TLSv1.2"
    renewed.alter({f"{PREFIX}ssl.enabled.protocols": "TLSv1.3"})
    with pytest.raises(ssl.SSLError):
        renewed.connect(maximum_version=ssl.TLSVersion.TLSv1_2)
    with pytest.raises(InvalidRequestError, match=r"ssl\.cipher\.suites: TLS_NO_SUCH"):
        renewed.alter({f"{PREFIX}ssl.cipher.suites": "TLS_NO_SUCH"})
