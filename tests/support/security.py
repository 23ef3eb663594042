"""SASL logins on a plain socket, certificates, and settings for brokers that authenticate their clients."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.support.processes import wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from klamm.admin import Acl, AdminClient

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PASSWORDS = {"admin": "admin-secret", "alice": "alice-secret", "mallory": "mallory-secret"}


def sasl_settings(*, listener: str = "sasl_plaintext", authorizer: bool = False) -> dict[str, str]:
    """Return broker settings: users for PLAIN, SCRAM enabled, ``admin`` as super user."""
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"listener.name.{listener}.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
        "super.users": "User:admin",
        "connection.failed.authentication.delay.ms": "20",
    }
    if authorizer:
        settings["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    return settings


def log_in(address: str, user: str, password: str | None = None) -> WireClient:
    """Return a connection that has logged in by PLAIN, to the first of several addresses that responds."""
    client = WireClient(address.split(",", maxsplit=1)[0])
    handshake = client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
    assert handshake.error_code == 0
    token = f"\x00{user}\x00{PASSWORDS[user] if password is None else password}".encode()
    answer = client.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, 2)
    assert answer.error_code == 0, answer.error_message
    return client


def create_acls(admin: AdminClient, acls: Collection[Acl]) -> None:
    """Create ACLs, and wait until the broker knows them: it learns of them a little after its controller."""
    admin.create_acls(acls).all().result(300)
    wait_until(
        lambda: set(acls) <= set(admin.describe_acls().result(300)), timeout_s=60, what="the broker to know ACLs"
    )


def client_properties(path: Path, properties: Mapping[str, str]) -> Path:
    """Write a properties file for Kafka's tools."""
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return path


_ELLIPTIC: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
RSA: Final = ("-newkey", "rsa:2048")
"""Keys of the other kind. To make one takes thirty times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """A certificate authority and the certificates that it has signed, as PEM files."""

    directory: Path
    key: tuple[str, ...]
    """Options of ``openssl req`` for a new key."""

    @classmethod
    def create(cls, directory: Path, key: tuple[str, ...] = _ELLIPTIC) -> Certificates:
        """Make the authority."""
        made = cls(directory=directory, key=key)
        made.openssl(
            "req", "-x509", *key, "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=klamm CA"
        )
        return made

    @property
    def authority(self) -> Path:
        """Return the authority's certificate."""
        return self.directory / "ca.pem"

    def issue(self, name: str, subject: str, *, days: int = 2, hosts: Sequence[str] = ("localhost",)) -> Path:
        """Return a file with key and certificate for 127.0.0.1 and for host names.

        Args:
            name: Name of the files.
            subject: Subject, such as ``/O=klamm/CN=a``.
            days: Days of validity from now on; negative: it has expired.
            hosts: Host names, also with a wildcard.
        """
        extensions = self.directory / f"{name}.ext"
        extensions.write_text(f"subjectAltName={''.join(f'DNS:{host},' for host in hosts)}IP:127.0.0.1\n")
        self.openssl("req", *self.key, "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
        self.openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", str(days), "-out", f"{name}.crt", "-extfile", f"{name}.ext",
        )  # fmt: skip
        store = self.directory / f"{name}.pem"
        store.write_text((self.directory / f"{name}.key").read_text() + (self.directory / f"{name}.crt").read_text())
        return store

    def certificate_of(self, name: str) -> Path:
        """Return the certificate alone."""
        return self.directory / f"{name}.crt"

    def key_of(self, name: str) -> Path:
        """Return the key alone."""
        return self.directory / f"{name}.key"

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)
