"""Requests of random content, in every version of every recorded API: what reaches the upstream, and in which order."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.gateway.apis.table import RECORDED
from klamm.gateway.frames.wire import REQUEST_HEAD, response_frame
from klamm.gateway.history.feature import recording_filters
from klamm.gateway.history.recorder import ChangeRecorder
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.metadata import MetadataResponse
from tests.support.gateway_context import FakeAdmin
from tests.support.random_requests import CORRELATION_ID, frame_of, random_struct
from tests.support.relay_rig import SERVED, RelayRig, feature, shared_objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.gateway.history.writer import HistoryWriter
    from klamm.protocol.records import Record
    from klamm.protocol.schema import Message

APIS = {api.request: api for api in RECORDED}
CASES = [
    (request, version)
    for request in APIS
    for version in range(max(SERVED[request.API_KEY][0], request.VERSIONS[0]), SERVED[request.API_KEY][1] + 1)
]


class Admin(FakeAdmin):
    """Admin client without quotas and credentials."""

    def __getattr__(self, _: str) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            raise ConnectionLostError("gone")

        return fail


class NoWriter:
    def add(self, records: Sequence[Record], *, author: str) -> None:
        pass

    async def written(self) -> None:
        pass


@pytest.mark.parametrize(("request_class", "version"), CASES, ids=lambda each: getattr(each, "__name__", str(each)))
async def test_pipelined_requests_are_forwarded_as_they_were_received(
    request_class: type[Message], version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The history must not fail because of their content either, when no response comes."""
    generator = random.Random(version)
    frames = [frame_of(random_struct(request_class, version, generator), request_class, version) for _ in range(5)]
    recorder = ChangeRecorder(APIS, cast("HistoryWriter", NoWriter()), lambda: 0)
    history = feature(filters=recording_filters(RECORDED), observe=recorder.context_of)
    shared = shared_objects(history, admin=Admin({}))
    answers = {
        int(ApiKey.API_VERSIONS): ApiVersionsResponse(
            api_keys=[ApiVersionsResponse.ApiVersion(api_key=3, min_version=0, max_version=SERVED[3][1])]
        ),
        int(ApiKey.METADATA): MetadataResponse(topics=[]),
        request_class.API_KEY: APIS[request_class].response(),
    }

    forwarded: list[bytes] = []
    with RelayRig(shared) as rig:
        await rig.client.send(b"".join(frames))
        while len(forwarded) < len(frames):
            size = await rig.upstream.read(4)
            received = size + await rig.upstream.read(int.from_bytes(size))
            _, key, api_version, correlation_id, _ = REQUEST_HEAD.unpack_from(received)
            if key == request_class.API_KEY:
                forwarded.append(received)
            if len(forwarded) < len(frames):
                await rig.upstream.send(response_frame(answers[key], api_version, correlation_id))
        assert forwarded == frames
        for _ in frames[1:]:
            answer = await rig.client.read_frame()
            assert answer[:4] == CORRELATION_ID.to_bytes(4)
    await asyncio.sleep(0)
    await recorder.close()
    assert "lacks a change" not in caplog.text


async def test_credentials_are_altered_by_librdkafka() -> None:
    """It ends the request with one section of tagged fields too many, which Kafka ignores."""
    deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="a", mechanism=1)
    request = AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[])
    frame = frame_of(request, AlterUserScramCredentialsRequest, 0) + b"\0"
    frame = (len(frame) - 4).to_bytes(4) + frame[4:]
    with RelayRig(shared_objects(feature(filters=recording_filters(RECORDED)))) as rig:
        await rig.client.send(frame)
        assert await rig.upstream.read(len(frame)) == frame
