"""Logins of klamm's own client on a klamm broker: mechanisms, expiring sessions, and rejections by name."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.admin import AdminClient, ErrorCode
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import ConnectionLostError, SaslAuthenticationFailedError, SslAuthenticationFailedError
from tests.support.klamm_tools import run_ours
from tests.support.processes import free_port
from tests.support.security import Certificates, sasl_settings
from tests.support.tokens import claims_of, unsecured

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
REAUTHENTICATE_MS = 700
TOKENS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": f"{BEARER} required;",
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """The address of a broker with users by PLAIN and SCRAM, and unsecured tokens."""
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=sasl_settings() | TOKENS) as broker:
        yield broker.bootstrap_servers


def login(mechanism: str, options: str, **more: str) -> dict[str, str]:
    module = BEARER if mechanism == "OAUTHBEARER" else PLAIN
    jaas = f"{module} required {options};"
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas, **more}


def admin_error(address: str, properties: Mapping[str, str]) -> BaseException | None:
    with AdminClient.from_properties(address, properties, timeout_ms=10_000) as admin:
        return admin.describe_cluster().exception()


def data_path_error(address: str, properties: Mapping[str, str]) -> Exception | None:
    cluster = Cluster(ConnectionSettings.of((address,), properties, "test"), BufferPool(max_free_bytes=0))
    try:
        cluster.refresh(())
    except ConnectionLostError as error:
        return error
    finally:
        cluster.close()
    return None


def test_expired_session_is_reauthenticated_between_calls() -> None:
    """KIP-368."""
    properties = login("PLAIN", 'username="alice" password="alice-secret"')
    settings = sasl_settings() | {"connections.max.reauth.ms": str(REAUTHENTICATE_MS)}
    with (
        klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=settings) as broker,
        AdminClient.from_properties(broker.bootstrap_servers, properties, timeout_ms=10_000) as admin,
    ):
        until = time.monotonic() + 3 * REAUTHENTICATE_MS / 1000
        while time.monotonic() < until:
            assert admin.describe_cluster().result().nodes


@pytest.mark.parametrize(
    ("mechanism", "options", "reason"),
    [
        ("PLAIN", 'username="alice" password="wrong"', "SASL_AUTHENTICATION_FAILED: Login as alice by PLAIN failed"),
        ("SCRAM-SHA-512", 'username="alice" password="x"', "UNSUPPORTED_SASL_MECHANISM: Login as alice by SCRAM-SHA-512"
         " failed: the broker offers PLAIN, SCRAM-SHA-256, OAUTHBEARER"),
        ("OAUTHBEARER", 'clientId="me"', "SASL_AUTHENTICATION_FAILED: Login by OAUTHBEARER failed: sasl.oauthbearer"),
    ],
)  # fmt: skip
def test_rejected_login_fails_at_once_with_reason(guarded: str, mechanism: str, options: str, reason: str) -> None:
    properties = login(mechanism, options)
    for error in (admin_error(guarded, properties), data_path_error(guarded, properties)):
        assert isinstance(error, SaslAuthenticationFailedError)
        assert error.error_code is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert reason in str(error)


def test_tokens_come_from_the_login_module_a_file_or_a_server(guarded: str, tmp_path: Path) -> None:
    token = unsecured(claims_of("alice"))
    (tmp_path / "token").write_text(f"{token}\n")
    requests: list[tuple[str | None, bytes]] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append((self.headers["Authorization"], self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"access_token": token}).encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/token"
        for properties in (
            login("OAUTHBEARER", 'unsecuredLoginStringClaim_sub="alice"'),
            login("OAUTHBEARER", "", **{ENDPOINT: (tmp_path / "token").as_uri()}),
            login("OAUTHBEARER", 'clientId="me" clientSecret="hush" scope="kafka"', **{ENDPOINT: url}),
        ):
            assert admin_error(guarded, properties) is None
            assert data_path_error(guarded, properties) is None
        server.shutdown()
    credentials = base64.b64encode(b"me:hush").decode()
    assert requests == [(f"Basic {credentials}", b"grant_type=client_credentials&scope=kafka")] * 2


def test_records_are_produced_and_consumed_with_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given
    properties = login("OAUTHBEARER", 'unsecuredLoginStringClaim_sub="alice"')
    (tmp_path / "client.properties").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    file = str(tmp_path / "client.properties")
    words = ["consume", "--topic", "tokens", "--from-beginning", "--max-messages", "1", "--command-config", file]
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=sasl_settings() | TOKENS) as broker:
        address = broker.bootstrap_servers
        # when
        sent = run_ours(address, ["produce", "--topic", "tokens", "--command-config", file], capsys, b"hello\n")
        received = run_ours(address, words, capsys)
    # then
    assert (sent.exit_code, received.exit_code, received.stdout) == (0, 0, "hello\n"), (sent, received)


def test_rejected_certificate_fails_with_reason(tmp_path: Path) -> None:
    made = Certificates.create(tmp_path)
    trusts = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(made.authority), "ssl.keystore.type": "PEM"}
    server = {**trusts, "ssl.keystore.location": str(made.issue("server", "/CN=server")), "ssl.client.auth": "required"}
    expired = {**trusts, "ssl.keystore.location": str(made.issue("old", "/CN=old", days=-1))}
    with klamm.Broker(listen="SSL://127.0.0.1:0", config=server) as broker:
        errors = [
            data_path_error(broker.bootstrap_servers, {"security.protocol": "SSL", **mine}) for mine in (expired, {})
        ]
        rejected = admin_error(broker.bootstrap_servers, {"security.protocol": "SSL", **expired})
        at_once = admin_error(broker.bootstrap_servers, {"security.protocol": "SSL"})
    assert isinstance(errors[0], SslAuthenticationFailedError)
    assert str(errors[0]).endswith("the broker rejects our certificate: certificate expired")
    assert "certificate verify failed" in str(errors[1])
    assert str(rejected).endswith("the broker rejects our certificate: certificate expired")
    assert isinstance(at_once, SslAuthenticationFailedError)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_tls_alert_of_broker_is_reported(tmp_path: Path, version: str) -> None:
    """As Apache Kafka does. In TLS 1.3 the reason comes after the client's part of the handshake."""
    made = Certificates.create(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.issue("server", "/CN=server"))
    context.load_verify_locations(made.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    mine = {
        "security.protocol": "SSL",
        "ssl.enabled.protocols": version,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(made.authority),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(made.issue("old", "/CN=old", days=-1)),
    }
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reject() -> None:
            connection, _ = listener.accept()
            with context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as secured:
                with contextlib.suppress(ssl.SSLError):
                    secured.do_handshake()
                while os.read(secured.fileno(), 4096):  # closing with unread bytes would discard the reason
                    pass

        thread = threading.Thread(target=reject)
        thread.start()
        error = admin_error(f"127.0.0.1:{listener.getsockname()[1]}", mine)
        thread.join()
    assert isinstance(error, SslAuthenticationFailedError)
    assert str(error).endswith("the broker rejects our certificate: certificate expired")


def test_check_connection_reports_connection_or_login_failure_at_once(guarded: str) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    with AdminClient(nowhere) as admin:
        error = admin.check_connection().exception(10)
    assert isinstance(error, ConnectionLostError)
    assert str(error) == f"No broker of {nowhere} responds: {nowhere}: Connection refused"
    with AdminClient.from_properties(guarded, login("PLAIN", 'username="alice" password="x"')) as admin:
        assert isinstance(admin.check_connection().exception(10), SaslAuthenticationFailedError)
    with AdminClient.from_properties(guarded, login("PLAIN", 'username="alice" password="alice-secret"')) as admin:
        admin.check_connection().result(300)
