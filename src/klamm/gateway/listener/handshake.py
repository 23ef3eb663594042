"""Handshake of accepted connections: PROXY header, TLS handshake, principal of the certificate, name of the broker."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import TYPE_CHECKING, Final

from klamm.gateway.listener.proxy_header import ProxyHeader
from klamm.gateway.listener.users import ScramUsers
from klamm.gateway.relay.streams import AcceptedTls, NamedSocket, keep_asked_name
from klamm.hosts import plain_host
from klamm.kafka_client.connection.transport import PlainTransport
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ProtocolError
from klamm.security.certificates import CertificateError
from klamm.server.security.endpoints import Endpoint, open_endpoint

if TYPE_CHECKING:
    import socket
    import ssl

    from klamm.gateway.definitions import Network
    from klamm.gateway.frames.peer import Peer
    from klamm.gateway.settings import GatewaySettings
    from klamm.gateway.upstream.topology import BrokerHosts
    from klamm.kafka_client.connection.transport import Transport

_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHandshake:
    """Handshake of accepted connections, by the settings of the listener."""

    endpoint: Endpoint
    tls: ssl.SSLContext | None
    hosts: BrokerHosts | None
    networks: tuple[Network, ...]
    """Addresses of load balancers, whose connections begin with a PROXY header. Empty: no connection has one."""

    @classmethod
    def open(cls, settings: GatewaySettings) -> ClientHandshake:
        """Read the settings of the listener.

        Raises:
            SettingsError: A setting is missing or not allowed.
        """
        listener, configs = settings.listener, settings.configs
        users = ScramUsers(listener.name, configs) if listener.protocol.uses_sasl else None
        endpoint = open_endpoint(listener, configs, lambda *user: None if users is None else users.find(*user))
        tls = None if endpoint.tls is None else endpoint.tls.context
        if tls is not None:
            tls.sslsocket_class = NamedSocket
            tls.sni_callback = keep_asked_name
        return cls(endpoint=endpoint, tls=tls, hosts=settings.broker_hosts, networks=settings.proxy_networks)

    async def admit(self, accepted: socket.socket, peer: Peer) -> Transport:
        """Return the byte stream of an admitted client, and store the facts about the client in ``peer``.

        Raises:
            ProtocolError: The PROXY header is missing or malformed, or the certificate names no principal or cannot be
                read.
            OSError: The TLS handshake failed.
            TimeoutError: The client did not complete the handshake in time.
        """
        async with asyncio.timeout(_TIMEOUT_S):
            if self.networks:
                await self._read_header(accepted, peer)
            if self.tls is None:
                return PlainTransport(accepted)
            stream = await AcceptedTls.shake_hands(accepted, self.tls, asyncio.get_running_loop())
        try:
            principal = self.endpoint.principal_of(stream.certificate)
        except CertificateError as error:
            stream.close()
            raise ProtocolError(str(error)) from error
        if principal is None:
            stream.close()
            raise ProtocolError("no rule of ssl.principal.mapping.rules applies to the certificate")
        peer.principal = principal
        if self.hosts is not None and (node_id := self.hosts.node_of(stream.requested_name)) is not None:
            peer.node_id, peer.is_bootstrap = node_id, False
        return stream

    async def _read_header(self, accepted: socket.socket, peer: Peer) -> None:
        if not any(ipaddress.ip_address(peer.host) in network for network in self.networks):
            raise ProtocolError("it does not come from one of proxy.protocol.networks")
        loop, header = asyncio.get_running_loop(), ProxyHeader()
        while header.wanted:
            data = await loop.sock_recv(accepted, header.wanted)
            if not data:
                raise ProtocolError("it ended before the header of the PROXY protocol did")
            header.receive(data)
        if header.source is not None:
            host, peer.port = header.source
            peer.host = plain_host(host)
