"""History of changes as hooks of the relay: interceptors that record, around those of the policies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from klamm.clock import wall_clock_ms
from klamm.gateway.history import access, configs, topics
from klamm.gateway.history.log import TOPIC, TOPIC_CONFIGS
from klamm.gateway.history.recorder import ChangeRecorder, RecordedCall
from klamm.gateway.history.writer import HistoryWriter
from klamm.gateway.relay.interceptors import Interception, Interceptor, merged
from klamm.gateway.upstream.internal_topic import InternalTopic, create_internal_topics
from klamm.properties import parse_bool
from klamm.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.admin import AdminClient
    from klamm.gateway.history.recorded_api import RecordedApi
    from klamm.gateway.relay.interceptors import InterceptedCall
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.protocol.schema import Message

ENABLE: Final = "change.history.enable"
APIS: Final[Mapping[type[Message], RecordedApi]] = {
    api.request: api for api in (*configs.APIS, *topics.APIS, *access.APIS)
}


def with_history(interception: Interception, upstream: ConnectionSettings, settings: Mapping[str, str]) -> Interception:
    """Return hooks that record changes, around the given ones; the given ones if the history is off.

    Args:
        interception: Hooks of policies and client configs.
        upstream: Settings of connections to the upstream.
        settings: Settings of the gateway.

    Raises:
        SettingsError: The setting has a wrong value.
    """
    if not parse_bool(ENABLE, settings.get(ENABLE, "false")):
        return interception
    admins: list[AdminClient] = []

    async def create() -> None:
        await create_internal_topics(admins[0], {TOPIC: TOPIC_CONFIGS})

    writer = HistoryWriter(InternalTopic(upstream, TOPIC), create)

    async def start(admin: AdminClient) -> None:
        admins.append(admin)
        writer.start()

    recorder = ChangeRecorder(APIS, writer, wall_clock_ms)

    async def close() -> None:
        await recorder.close()
        await writer.close()

    recorded = Interception(
        interceptors=recorded_interceptors(interception.interceptors, recorder),
        report=writer.report,
        start=start,
        close=close,
    )
    return merged(interception, recorded)


def recorded_interceptors(given: Mapping[int, Interceptor], recorder: ChangeRecorder) -> dict[int, Interceptor]:
    """Return an interceptor for each API that can change something, around the given ones.

    Args:
        given: Interceptors of policies and client configs by API key.
        recorder: Recorder of the changes.
    """
    found: dict[int, Interceptor] = {}
    if ApiKey.METADATA in given:  # it creates the topics that a policy overrides
        found[ApiKey.METADATA] = _around(given[ApiKey.METADATA], recorder)
    for api in APIS.values():
        key = api.request.API_KEY
        own = Interceptor(request=api.request, response=api.response, handle=_forward, claims=api.claims)
        own = _around(own, recorder)
        other = given.get(key)
        if other is None:
            found[key] = own
        elif other.request is api.request:
            found[key] = _around(other, recorder)
        else:
            found[key] = replace(other, otherwise=own)
    return found


def _around(interceptor: Interceptor, recorder: ChangeRecorder) -> Interceptor:
    async def handle(request: Any, context: InterceptedCall) -> Message:
        return await interceptor.handle(request, RecordedCall(context, recorder))

    return replace(interceptor, handle=handle)


async def _forward(request: Any, context: InterceptedCall) -> Message:
    response: Message = await context.forward(request)
    return response
