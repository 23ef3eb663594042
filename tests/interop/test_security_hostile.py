"""Hostile or mistaken connections to secured listeners: they are closed, and other clients are served."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.support.processes import free_port, wait_until
from tests.support.security import PASSWORDS, PLAIN_MODULE, Certificates, log_in, sasl_settings
from tests.support.wire import WireClient, request_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

GUESS = "hunter2-guessed"
HANDSHAKE = request_frame(SaslHandshakeRequest(mechanism="PLAIN"), 1)


class Guarded:
    """A broker with a listener for logins and one with TLS."""

    def __init__(self, certificates: Certificates) -> None:
        self.login, self.tls = (("127.0.0.1", free_port()) for _ in range(2))
        users = " ".join(f'user_{name}="{password}"' for name, password in {**PASSWORDS, "eve": ""}.items())
        self.broker = klamm.Broker(
            config={
                **sasl_settings(listener="login"),
                "listener.name.login.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
                "listeners": f"LOGIN://127.0.0.1:{self.login[1]},TLS://127.0.0.1:{self.tls[1]}",
                "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT,TLS:SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(certificates.issue("broker", "/CN=broker")),
            }
        )
        self.context = ssl.create_default_context(cafile=str(certificates.authority))

    def is_serving(self) -> bool:
        """Return whether an honest client is served at both listeners."""
        with log_in(f"127.0.0.1:{self.login[1]}", "alice") as client:
            answer = client.ask(MetadataRequest(topics=[]), MetadataResponse, 9)
        with (
            socket.create_connection(self.tls, 30) as plain,
            self.context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
        ):
            return bool(answer.cluster_id) and encrypted.version() is not None


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(Certificates.create(tmp_path_factory.mktemp("certificates")))
    with made.broker:
        yield made
        log = made.broker.log_text()
        for secret in (*PASSWORDS.values(), GUESS):
            assert secret not in log
        assert "Traceback" not in log


def is_closed(peer: socket.socket) -> bool:
    """Read to the end; a reset is an end, too."""
    with contextlib.suppress(ConnectionError):
        while peer.recv(65_536):
            pass
    return True


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def test_tls_on_plaintext_port_and_plaintext_on_tls_port_are_closed(guarded: Guarded) -> None:
    for address, sent in (
        (guarded.login, client_hello()),
        (guarded.tls, HANDSHAKE),
        (guarded.tls, b"GET / HTTP/1.1\r\n\r\n"),
    ):
        with socket.create_connection(address, 30) as peer:
            peer.sendall(sent)
            assert is_closed(peer)
    assert guarded.is_serving()


def test_unfinished_tls_handshakes_do_not_delay_other_clients(guarded: Guarded) -> None:
    hello = client_hello()
    with contextlib.ExitStack() as waiting:
        for position in range(60):
            peer = waiting.enter_context(socket.create_connection(guarded.tls, 30))
            peer.sendall(hello[: position * 5])
        assert guarded.is_serving()
    assert guarded.is_serving()


def test_logins_sent_byte_by_byte_do_not_delay_other_clients(guarded: Guarded) -> None:
    with contextlib.ExitStack() as waiting:
        slow = [waiting.enter_context(socket.create_connection(guarded.login, 30)) for _ in range(60)]
        for byte in HANDSHAKE[:-1]:
            for peer in slow:
                peer.sendall(bytes([byte]))
        assert guarded.is_serving()


def test_max_connections_per_ip_closes_most_of_a_thousand_connections() -> None:
    with klamm.Broker(config={"max.connections.per.ip": 50}) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        # given
        with contextlib.ExitStack() as kept:
            for _ in range(50):
                kept.enter_context(socket.create_connection((host, int(port)), 60))
            # then
            for _ in range(950):
                with socket.create_connection((host, int(port)), 60) as peer:
                    assert is_closed(peer)
        # and when they have gone
        wait_until(lambda: is_served(broker.bootstrap_servers), timeout_s=60, what="room for an honest client")


def is_served(address: str) -> bool:
    try:
        with WireClient(address, timeout_s=30) as client:
            return bool(client.ask(MetadataRequest(topics=[]), MetadataResponse, 9).cluster_id)
    except OSError:
        return False


@pytest.mark.parametrize(
    "token",
    [
        b"\x00alice\x00",
        b"\x00eve\x00",
        b"\x00nobody\x00",
        b"\x00\x00",
        b"alice\x00alice\x00",
        b"\x00ALICE\x00alice-secret",
        b"\x00alice\x00alice-secret\x00",
        b"\x00alice\x00alice-secret ",
        b"admin\x00alice\x00alice-secret",
        f"\x00alice\x00{GUESS}".encode(),
    ],
)
def test_empty_and_guessed_passwords_are_rejected(guarded: Guarded, token: bytes) -> None:
    """``eve`` stands in the settings with an empty password."""
    with WireClient(f"127.0.0.1:{guarded.login[1]}", timeout_s=30) as client:
        client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, 2)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        with pytest.raises(OSError, match=r"closed|reset"):
            client.ask(MetadataRequest(topics=None), MetadataResponse, 9)


@pytest.mark.parametrize(
    "tokens",
    [
        [b""],
        [b"n,,n=,r=abc"],
        [b"n,,n=nobody,r=abc", b"c=biws,r=abc,p="],
        [b"n,,n=alice,r=abc", b"n,,n=alice,r=abc"],
        [b"c=biws,r=abc,p=AAAA"],
        [b"n,,n=alice,r=" + b"a" * 100_000, b"\xff" * 100_000],
    ],
)
def test_malformed_scram_messages_are_rejected(guarded: Guarded, tokens: list[bytes]) -> None:
    with WireClient(f"127.0.0.1:{guarded.login[1]}", timeout_s=30) as client:
        client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), SaslHandshakeResponse, 1)
        for token in tokens:
            answer = client.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, 2)
            if answer.error_code:
                break
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert guarded.is_serving()


def test_failed_logins_are_delayed(guarded: Guarded) -> None:
    """Each failure is answered after a delay: ``connection.failed.authentication.delay.ms``, here 20 ms."""
    began = time.monotonic()
    for _ in range(5):
        with WireClient(f"127.0.0.1:{guarded.login[1]}", timeout_s=30) as client:
            client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
            client.ask(SaslAuthenticateRequest(auth_bytes=b"\x00alice\x00x"), SaslAuthenticateResponse, 2)
    assert time.monotonic() - began >= 0.1
