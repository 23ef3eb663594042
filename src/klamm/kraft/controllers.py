"""Connections to the active controller of a KRaft cluster, wherever it is."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.login import HANDSHAKE_TIMEOUT_S, log_in, open_connection
from klamm.kafka_client.errors import FATAL_ERRORS, ConnectionLostError
from klamm.kraft.errors import raise_for_metadata
from klamm.kraft.metadata_log import log_request
from klamm.properties import split_address
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.protocol.schema import Message

Response = TypeVar("Response", bound="Message")

REQUEST_TIMEOUT_S: Final = 3.0
"""Time after which a controller that does not respond is considered dead. It is short, so that another one is found
well within ``broker.session.timeout.ms``.
"""
_MAX_FREE_BYTES: Final = 32 * 1024 * 1024
_NOT_ACTIVE: Final = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER})


class ControllerChannel:
    """One connection to the active controller. It is opened by the first call, and again after each loss.

    Used by one thread at a time.

    Args:
        settings: Connection settings, with controllers as ``bootstrap_servers``: one of them is enough. The time limits
            are lowered to ``REQUEST_TIMEOUT_S``.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = replace(
            settings,
            request_timeout_s=min(settings.request_timeout_s, REQUEST_TIMEOUT_S),
            connect_timeout_s=min(settings.connect_timeout_s, REQUEST_TIMEOUT_S),
        )
        self._pool = BufferPool(max_free_bytes=_MAX_FREE_BYTES)
        self._connection: Connection | None = None
        self._host = ""
        addresses = filter(None, map(split_address, settings.bootstrap_servers))
        self._addresses: dict[tuple[str, int], None] = dict.fromkeys(addresses)
        """Addresses of controllers, those that failed at the end."""
        self.controller_id = -1
        """Node id of the active controller; -1 before the first connection."""

    def call(
        self, request: Message, response_class: type[Response], *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Response:
        """Send a request to the active controller once and return its response.

        Raises:
            ConnectionLostError: No active controller is reachable, or it stopped being the active one. The next call
                looks for it again. The request may or may not have been executed.
            UnsupportedVersionError: The controller does not offer the API.
        """
        connection = self.connection()
        try:
            response = connection.call(request, response_class, timeout_s=timeout_s)
        except ConnectionLostError:
            self.lose()
            raise
        if getattr(response, "error_code", 0) in _NOT_ACTIVE:
            self.lose()
            raise ConnectionLostError(f"Controller {self.controller_id} is not the active controller any more")
        return response

    def connection(self) -> Connection:
        """Return the connection to the active controller, and open it if necessary.

        Raises:
            ConnectionLostError: No active controller is reachable. Its subclasses in ``FATAL_ERRORS``: a login or a
                certificate is rejected.
        """
        connection = self._connection
        if connection is not None and not connection.closed:
            if time.monotonic() >= connection.login_due_at:
                log_in(connection, self._settings.security, host=self._host, timeout_s=HANDSHAKE_TIMEOUT_S)
            return connection
        failures: list[ConnectionLostError] = []
        for address in list(self._addresses):
            try:
                self._connection = connection = self._active_from(*address)
            except ConnectionLostError as error:
                failures.append(error)
                self._addresses[address] = self._addresses.pop(address)
            else:
                return connection
        cause = next((error for error in failures if isinstance(error, FATAL_ERRORS)), None)
        if cause is not None:
            raise cause
        reasons = "; ".join(map(str, failures)) or "no address of a controller is known"
        raise ConnectionLostError(f"No active controller is reachable: {reasons}")

    def _active_from(self, host: str, port: int) -> Connection:
        """Return a connection to the active controller, which the controller at this address is or names.

        Like a broker, it fetches the metadata log: a controller names the leader of the log in each response.
        """
        connection = open_connection(host, port, self._settings, self._pool)
        try:
            response = _leader_response(connection)
        except BaseException:
            connection.close()
            raise
        partition = response.responses[0].partitions[0]
        self.controller_id = partition.current_leader.leader_id
        if partition.error_code not in _NOT_ACTIVE:
            self._host = host
            return connection
        connection.close()
        nodes = {node.node_id: (node.host, node.port) for node in response.node_endpoints}
        if self.controller_id not in nodes:
            raise ConnectionLostError(f"{host}:{port} is not the active controller and knows no address of it")
        self._host, active_port = nodes[self.controller_id]
        self._addresses.setdefault((self._host, active_port))
        return open_connection(self._host, active_port, self._settings, self._pool)

    def lose(self) -> None:
        """Close the connection. The next call looks for the active controller."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    close = lose


def _leader_response(connection: Connection) -> FetchResponse:
    """Return the response to a fetch with the current leader epoch. Only the leader has no error for it."""
    epoch = 0
    while True:
        position = FetchRequest.FetchPartition(current_leader_epoch=epoch, last_fetched_epoch=0, partition_max_bytes=1)
        request = log_request(position)
        response = connection.call(request, FetchResponse, timeout_s=REQUEST_TIMEOUT_S)
        raise_for_metadata(response.error_code)
        partition = response.responses[0].partitions[0]
        if partition.error_code not in {ErrorCode.FENCED_LEADER_EPOCH, *_NOT_ACTIVE}:
            raise_for_metadata(partition.error_code)
        if partition.error_code != ErrorCode.FENCED_LEADER_EPOCH or partition.current_leader.leader_epoch <= epoch:
            return response
        epoch = partition.current_leader.leader_epoch
