"""Requests that interceptors forward, and what is recorded of them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.gateway.apis.api_044_incremental_alter_configs import POLICY
from klamm.gateway.apis.table import RECORDED
from klamm.gateway.history.feature import recording_filters
from klamm.gateway.history.recorder import ChangeRecorder
from klamm.gateway.policies.policy_api import ResourceTurns
from klamm.gateway.relay.filter import Filter, Serve
from klamm.kafka_client.errors import ConnectionLostError
from klamm.policy import Override
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.types import ConfigOperation, ResourceType
from tests.support.gateway_context import FakeAdmin, FakeContext, FakePolicies, incremental
from tests.support.relay_rig import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.gateway.history.writer import HistoryWriter
    from klamm.protocol.records import Record
    from klamm.protocol.schema import Message

KEY = ApiKey.INCREMENTAL_ALTER_CONFIGS
NOW = 1_700_000_000_000


class FakeWriter:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def add(self, records: Sequence[Record], *, author: str) -> None:
        assert author == "User:anna"
        self.records += records

    async def written(self) -> None:
        pass

    @property
    def changes(self) -> list[tuple[str, Any, Any]]:
        """Resource, old and new value of the records."""
        documents = [(each, json.loads(each.value or b"")) for each in self.records]
        return [((each.key or b"").decode(), document["old"], document["new"]) for each, document in documents]


def request(*names: str, validate_only: bool = False) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(
        resources=[incremental(name, ("flush.ms", ConfigOperation.SET, "5000")) for name in names],
        validate_only=validate_only,
    )


def accept(forwarded: Message) -> Message:
    assert isinstance(forwarded, IncrementalAlterConfigsRequest)
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                resource_type=each.resource_type, resource_name=each.resource_name
            )
            for each in forwarded.resources
        ]
    )


def admin(*names: str) -> FakeAdmin:
    return FakeAdmin({}, {(ResourceType.TOPIC, name): {} for name in names})


def test_record_has_author_host_and_time_and_the_request_stays_the_same_object() -> None:
    # given: an object that is sent as received
    writer, sent = FakeWriter(), request("a")
    context = FakeContext(accept, admin("a"), client_host="10.0.0.7")
    # when
    asyncio.run(_handle(writer, sent, context))
    # then
    assert context.forwarded[0] is sent
    (record,) = writer.records
    assert (record.key, record.timestamp) == (b"TOPIC:a", NOW)
    assert json.loads(record.value or b"") == {
        "client_id": "tool",
        "host": "10.0.0.7",
        "name": "flush.ms",
        "new": "5000",
        "old": None,
        "principal": "User:anna",
        "version": 0,
    }


async def _handle(writer: FakeWriter, sent: Message, context: FakeContext, used: Filter | None = None) -> Message:
    recorder = ChangeRecorder({api.request: api for api in RECORDED}, cast("HistoryWriter", writer), lambda: NOW)
    result = (used or recording_filters(RECORDED)[KEY]).decide(sent, context)
    assert isinstance(result, Serve)
    return await result.handle(sent, recorder.context_of(context))


def test_validate_only_request_is_not_recorded() -> None:
    writer, context = FakeWriter(), FakeContext(accept, admin("a"))
    asyncio.run(_handle(writer, request("a", validate_only=True), context))
    assert (writer.records, context.admin.calls) == ([], [])


def test_history_records_allowed_changes_with_overrides() -> None:
    # given
    overrides = {"set right": Override(configs={"flush.ms": "100"}, reason="100 at most")}
    policies = FakePolicies(denied=["denied"], overrides=overrides)
    judged = POLICY.filter(policies.as_policies(), ResourceTurns())
    names = ("fine", "denied", "set right")
    writer = FakeWriter()
    # when
    answer = asyncio.run(_handle(writer, request(*names), FakeContext(accept, admin(*names)), judged))
    # then
    assert [bool(entry.error_code) for entry in cast("IncrementalAlterConfigsResponse", answer).responses] == [
        False,
        True,
        False,
    ]
    assert writer.changes == [("TOPIC:fine", None, "5000"), ("TOPIC:set right", None, "100")]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_change_without_a_response_is_recorded_as_not_confirmed(is_cancelled: bool) -> None:
    """The upstream closes the connection, or the client closes its own to hide what it did."""
    writer = FakeWriter()

    context = FakeContext(accept, admin("a"))
    sent = asyncio.Event()

    async def forward(_: Message) -> Any:
        sent.set()
        if is_cancelled:
            await asyncio.get_running_loop().create_future()
        raise ConnectionLostError("gone")

    context.forward = forward  # type: ignore[method-assign, assignment]  # a response that never comes
    handling = asyncio.create_task(_handle(writer, request("a"), context))
    await sent.wait()
    handling.cancel()
    with pytest.raises((ConnectionLostError, asyncio.CancelledError)):
        await handling
    await until(lambda: bool(writer.records))
    (record,) = writer.records
    assert json.loads(record.value or b"")["is_confirmed"] is False


def test_history_claims_scram_requests_and_no_client_config_requests() -> None:
    claims = recording_filters(RECORDED)[ApiKey.ALTER_USER_SCRAM_CREDENTIALS].claims
    assert claims is not None
    scram, kip_649 = memoryview(b"\0\1\1"), memoryview(b"\0\0\0\0\0\0")
    assert (claims(scram), claims(kip_649)) == (True, False)


def test_each_recorded_api_has_a_filter() -> None:
    assert set(recording_filters(RECORDED)) == {19, 20, 33, 37, 44, 49, 51}
