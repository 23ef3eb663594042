"""The door of the gateway: headers of the PROXY protocol, and host names of brokers."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct

import pytest

from klamm.gateway.frames.peer import Peer
from klamm.gateway.listener.handshake import ClientHandshake
from klamm.gateway.listener.proxy_header import MAX_V1_BYTES, MAX_V2_BYTES, SIGNATURE, ProxyHeader
from klamm.gateway.settings import read_settings
from klamm.gateway.upstream.topology import BrokerHosts
from klamm.properties import SettingsError
from klamm.protocol.errors import ProtocolError
from klamm.protocol.records.checksum import crc32c
from klamm.security.certificates import CertificateError
from klamm.server.security import endpoints
from tests.support.security import Certificates

IPV4 = bytes([10, 1, 2, 3, 10, 0, 0, 1]) + struct.pack(">HH", 5000, 9092)
IPV6 = bytes(15) + b"\1" + bytes(15) + b"\2" + struct.pack(">HH", 5000, 9092)


def v2(family: int, body: bytes, *, command: int = 0x21) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, family, len(body)) + body


def with_checksum(family: int, body: bytes) -> bytes:
    header = v2(family, body + b"\3\0\4\0\0\0\0")
    return header[:-4] + crc32c(header).to_bytes(4)


def received(stream: bytes, most: int = 1000) -> tuple[tuple[str, int] | None, bytes]:
    """Return the source in a header, and the bytes behind the header. Read at most so many bytes at a time."""
    header, position = ProxyHeader(), 0
    while header.wanted:
        part = stream[position : position + min(header.wanted, most)]
        if not part:
            raise EOFError
        header.receive(part)
        position += len(part)
    return header.source, stream[position:]


@pytest.mark.parametrize("most", [1, 3, 1000])
@pytest.mark.parametrize(
    ("header", "source"),
    [
        (b"PROXY TCP4 10.1.2.3 10.0.0.1 5000 9092\r\n", ("10.1.2.3", 5000)),
        (b"PROXY TCP6 2001:db8::1 ::1 65535 1\r\n", ("2001:db8::1", 65535)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
        (v2(0x11, IPV4), ("10.1.2.3", 5000)),
        (v2(0x11, IPV4 + b"\4\0\3abc"), ("10.1.2.3", 5000)),
        (with_checksum(0x11, IPV4), ("10.1.2.3", 5000)),
        (v2(0x21, IPV6), ("::1", 5000)),
        (v2(0x31, bytes(216)), None),
        (v2(0x00, b""), None),
        (v2(0x11, IPV4, command=0x20), None),
    ],
)
def test_proxy_header_gives_source_and_leaves_following_bytes(
    header: bytes, source: tuple[str, int] | None, most: int
) -> None:
    behind = b"\0\0\0\x0a\r\n\r\n"
    assert received(header + behind, most) == (source, behind)


@pytest.mark.parametrize(
    "header",
    [
        b"\0\0\0\x0a\0\x12\0\0\0\0\0\0\xff\xff",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00",
        b"PROXY TCP4 10.1.2.3 10.0.0.1 70000 9092\r\n",
        b"PROXY TCP4 10.1.2.300 10.0.0.1 5000 9092\r\n",
        b"PROXY TCP4 ::1 ::2 5000 9092\r\n",
        b"PROXY TCP4 10.1.2.3 10.0.0.1 05000 9092\r\n",
        b"PROXY TCP4 10.1.2.3 10.0.0.1  5000 9092\r\n",
        b"PROXY UDP4 10.1.2.3 10.0.0.1 5000 9092\r\n",
        b"PROXY TCP4 10.1.2.3 10.0.0.1 5000 9092\n" + b"x" * MAX_V1_BYTES,
        b"PROXY " + b"\r" * MAX_V1_BYTES,
        b"PROXY UNKNOWN " + b"x" * MAX_V1_BYTES,
        v2(0x11, IPV4, command=0x22),
        v2(0x11, IPV4, command=0x11),
        v2(0x13, IPV4),
        v2(0x11, IPV4[:-1]),
        v2(0x21, IPV4),
        v2(0x11, IPV4 + b"\4\0"),
        v2(0x11, IPV4 + b"\4\0\4abc"),
        v2(0x11, IPV4 + bytes(MAX_V2_BYTES)),
        with_checksum(0x11, IPV4)[:-1] + b"\0",
    ],
)
def test_malformed_proxy_header_is_rejected(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        received(header + bytes(10))


def test_random_bytes_are_proxy_header_or_rejected() -> None:
    generator = random.Random(3)
    for _ in range(2000):
        header = bytearray(
            with_checksum(0x11, IPV4) if generator.random() < 0.5 else b"PROXY TCP4 1.2.3.4 1.1.1.1 1 2\r\n"
        )
        for _ in range(generator.randrange(1, 4)):
            header[generator.randrange(len(header))] = generator.randrange(256)
        try:
            source, _ = received(bytes(header) + bytes(MAX_V2_BYTES))
        except ProtocolError:
            continue
        assert source is None or 0 <= source[1] < 65536


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates.create(tmp_path_factory.mktemp("certificates"))
    made.issue("gateway", "/CN=gateway")
    made.issue("client", "/CN=client")
    return made


def entrance(certificates: Certificates, **more: str) -> ClientHandshake:
    tls = {
        "listeners": "SSL://127.0.0.1:1",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.directory / "gateway.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "ssl.client.auth": "required",
    }
    own = {name.replace("_", "."): value for name, value in more.items()}
    return ClientHandshake.open(read_settings({"upstream.bootstrap.servers": "kafka:9092"} | tls | own))


async def admitted(door: ClientHandshake, certificates: Certificates, name: str, before: bytes = b"") -> Peer:
    """Connect as a client that asks for a host name, and return what the gateway knows of it."""
    peer = Peer(host="127.0.0.1", port=1, node_id=0, is_bootstrap=True)
    near, far = socket.socketpair()
    for each in (near, far):
        each.setblocking(False)
    context = ssl.create_default_context(cafile=str(certificates.authority))
    context.check_hostname = False
    context.load_cert_chain(certificates.directory / "client.pem")

    async def client() -> None:
        far.send(before)
        _, writer = await asyncio.open_connection(sock=far, ssl=context, server_hostname=name)
        writer.transport.abort()

    connecting = asyncio.create_task(client())
    try:
        (await door.admit(near, peer)).close()
        await connecting
    finally:
        near.close()
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        far.close()
    return peer


@pytest.mark.process
def test_tls_server_name_selects_the_broker(certificates: Certificates) -> None:
    door = entrance(certificates, broker_host_pattern="b$(nodeId).kafka.example")
    peers = [asyncio.run(admitted(door, certificates, name)) for name in ("b7.kafka.example", "kafka.example")]
    assert [(peer.node_id, peer.is_bootstrap, peer.principal) for peer in peers] == [
        (7, False, "User:CN=client"),
        (0, True, "User:CN=client"),
    ]


@pytest.mark.process
def test_proxy_header_comes_before_tls_and_from_load_balancers_only(certificates: Certificates) -> None:
    door = entrance(certificates, proxy_protocol_networks="127.0.0.0/8")
    peer = asyncio.run(admitted(door, certificates, "kafka.example", v2(0x11, IPV4)))
    assert (peer.host, peer.port) == ("10.1.2.3", 5000)
    door = entrance(certificates, proxy_protocol_networks="10.0.0.0/8,::1")
    with pytest.raises(ProtocolError, match=r"proxy\.protocol\.networks"):
        asyncio.run(admitted(door, certificates, "kafka.example", v2(0x11, IPV4)))


@pytest.mark.process
def test_certificate_that_cannot_be_read_is_rejected(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: bytes) -> str:
        raise CertificateError("it cannot be read")

    monkeypatch.setattr(endpoints, "subject_of", unreadable)
    with pytest.raises(ProtocolError, match="it cannot be read"):
        asyncio.run(admitted(entrance(certificates), certificates, "kafka.example"))


@pytest.mark.process
def test_ipv4_mapped_ipv6_address_is_shown_as_ipv4(certificates: Certificates) -> None:
    door = entrance(certificates, proxy_protocol_networks="127.0.0.0/8")
    mapped = b"".join(bytes(10) + b"\xff\xff" + bytes([10, 1, 2, last]) for last in (3, 4)) + IPV6[-4:]
    peer = asyncio.run(admitted(door, certificates, "kafka.example", v2(0x21, mapped)))
    assert peer.host == "10.1.2.3"


@pytest.mark.process
def test_client_without_proxy_header_is_rejected(certificates: Certificates) -> None:
    door = entrance(certificates, proxy_protocol_networks="127.0.0.1")
    with pytest.raises(ProtocolError, match="without a header"):
        asyncio.run(admitted(door, certificates, "kafka.example"))


def test_each_broker_has_one_host_name() -> None:
    hosts = BrokerHosts("broker-$(nodeId).kafka.example", "broker.host.pattern")
    assert hosts.host_of(12) == "broker-12.kafka.example"
    assert [hosts.node_of(name) for name in ("broker-12.kafka.example", "BROKER-0.Kafka.Example.")] == [12, 0]
    others = ["kafka.example", "broker-.kafka.example", "broker-012.kafka.example", "broker-1.kafka.example.com", None]
    assert not [name for name in others if hosts.node_of(name) is not None]


@pytest.mark.parametrize("node_id", [0, 999_999_999, 1_000_000_000, 2**31 - 1])
def test_host_name_of_any_node_id_leads_to_its_broker(node_id: int) -> None:
    hosts = BrokerHosts("b$(nodeId).kafka.example", "broker.host.pattern")
    assert hosts.node_of(hosts.host_of(node_id)) == node_id
    assert hosts.node_of(hosts.host_of(2**31)) is None


@pytest.mark.parametrize("pattern", ["kafka.example", "b-$(nodeId)-$(nodeId).x", "b-$(nodeId):9092", "b $(nodeId)"])
def test_host_pattern_without_single_node_id_is_rejected(pattern: str) -> None:
    with pytest.raises(SettingsError, match=r"broker\.host\.pattern="):
        BrokerHosts(pattern, "broker.host.pattern")
