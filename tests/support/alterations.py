"""Many concurrent AlterClientConfigs requests, each repeated elsewhere until it is answered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from klamm.gateway.frames.wire import RESPONSE_HEAD, request_frame
from klamm.protocol.codec import decode
from klamm.protocol.messages.alter_client_configs import AlterClientConfigsRequest, AlterClientConfigsResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PATIENCE_S = 120.0


def alteration(configs: Mapping[str, Mapping[str, str]]) -> AlterClientConfigsRequest:
    """Return a request that sets configs of users."""
    return AlterClientConfigsRequest(
        entries=[
            AlterClientConfigsRequest.EntryData(
                entity=[AlterClientConfigsRequest.EntityData(entity_type="user", entity_name=user)],
                ops=[
                    AlterClientConfigsRequest.OpData(key=key, value=value, remove=False) for key, value in own.items()
                ],
            )
            for user, own in configs.items()
        ],
        validate_only=False,
    )


async def _send(address: str, request: AlterClientConfigsRequest) -> AlterClientConfigsResponse:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request_frame(request, 0, 1, "alterations"))
        size = int.from_bytes(await reader.readexactly(4))
        answer = await reader.readexactly(size)
        return decode(AlterClientConfigsResponse, 0, answer, RESPONSE_HEAD.size - 4)
    finally:
        writer.close()


async def alter_all(
    addresses: Sequence[str],
    changes: Sequence[tuple[str, str, str]],
    *,
    at_once: int,
    on_answer: Callable[[int], None] = lambda _: None,
) -> None:
    """Set a config of a user in each request, over a connection of its own.

    A request without an answer, or with an error, is repeated at the next address.

    Args:
        addresses: Addresses of all gateways.
        changes: User, key and value of each request.
        at_once: Most requests at a time.
        on_answer: Callback with the number of requests answered so far.
    """
    room = asyncio.Semaphore(at_once)
    answered = 0

    async def change(number: int, user: str, key: str, value: str) -> None:
        nonlocal answered
        async with room:
            attempt = number
            while True:
                try:
                    response = await _send(addresses[attempt % len(addresses)], alteration({user: {key: value}}))
                except (OSError, asyncio.IncompleteReadError):
                    await asyncio.sleep(0.05)
                else:
                    if response.entries[0].error_code == 0:
                        break
                attempt += 1
            answered += 1
            on_answer(answered)

    async with asyncio.timeout(_PATIENCE_S), asyncio.TaskGroup() as group:
        for number, arguments in enumerate(changes):
            group.create_task(change(number, *arguments))
