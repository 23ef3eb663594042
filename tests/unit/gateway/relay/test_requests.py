"""Damaged requests and responses of every API: forwarded as they are, or not at all."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.broker.routes import ROUTES
from klamm.gateway.apis.api_018_api_versions import intersect, response_version
from klamm.gateway.apis.table import APIS
from klamm.gateway.frames.cutter import FrameCutter, HeldBudget
from klamm.gateway.frames.peer import Peer
from klamm.gateway.relay.features import Feature
from klamm.gateway.relay.requests import RequestReader
from klamm.gateway.upstream.topology import Topology
from klamm.protocol.api import ApiKey
from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import ProtocolError
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.messages.produce import ProduceRequest
from klamm.server.listeners import Address
from tests.support.damaged_requests import damaged, sample, valid_requests
from tests.support.relay_rig import CARRIERS, feature, filter_of, shared_objects
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from klamm.gateway.frames.cutter import Piece
    from klamm.gateway.frames.exchange import InFlight, RelayedExchange
    from klamm.gateway.relay.open_relay import OpenRelay
    from klamm.gateway.relay.shared import Shared

MUTATIONS = 4000


class FakeRelay:
    """Relay that only keeps what its judge of requests expects."""

    def __init__(self) -> None:
        self.peer = Peer(host="h", port=1, node_id=1)
        self.exchanges: deque[Any] = deque()
        self.held_bytes = 0
        self.is_busy = False
        self.has_responses_due = False
        self.session = None

    def is_turn_over(self) -> bool:
        return False

    def expect(self, exchange: RelayedExchange) -> None:
        self.exchanges.append(exchange)

    def keep_versions(self, _versions: Mapping[int, tuple[int, int]]) -> None:
        raise AssertionError("No response is relayed")

    def give_up(self) -> None:
        raise AssertionError("Only this relay uses the budget")


READ_ALL = feature(
    filters={
        key: filter_of(route.request, route.request, lambda _request, _context: None) for key, route in ROUTES.items()
    }
)
"""Feature that decodes every request, and forwards it."""


@pytest.mark.parametrize("interception", [Feature(), READ_ALL], ids=["relayed", "decoded"])
def test_damaged_request_is_forwarded_unchanged_or_not_at_all(interception: Feature) -> None:
    generator = random.Random(17)
    whole = [request_frame(sample(cls, version), version) for cls, version in valid_requests()]
    shared = shared_objects(interception)
    counts = {"forwarded": 0, "rejected": 0}
    for number in range(MUTATIONS):
        frame = damaged(whole[number % len(whole)], generator)
        relay = FakeRelay()
        cutter = _cutter_of(shared, relay)
        sent = bytearray()
        split = generator.randrange(len(frame) + 1)
        try:
            for chunk in (frame[:split], frame[split:]):
                pieces: list[Piece] = []
                cutter.cut(memoryview(chunk), pieces)
                sent += b"".join(pieces)
        except ProtocolError:
            counts["rejected"] += 1
            assert sent == b""
        else:
            counts["forwarded"] += 1
            assert sent == frame or (sent == b"" and relay.exchanges[0].answer is not None)
            assert cutter.is_empty
    assert min(counts.values()) > MUTATIONS / 20


def test_request_is_treated_alike_after_any_other_request() -> None:
    generator = random.Random(20)
    produced = [request_frame(ProduceRequest(transactional_id=name, acks=acks), version)
                for version in (3, 9, 11) for name in (None, "t") for acks in (0, 1, -1)]  # fmt: skip
    produced += [request_frame(ListGroupsRequest(), 0)]
    # Requests behind one of a login wait for its response, which never comes here.
    logins = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
    whole = [
        *produced,
        *(
            request_frame(sample(cls, version), version)
            for cls, version in valid_requests()
            if cls.API_KEY not in logins
        ),
    ]
    answered = filter_of(ListGroupsRequest, ListGroupsResponse, lambda *_: ListGroupsResponse(groups=[]))
    answers = feature(filters={ApiKey.LIST_GROUPS: answered})
    shared, counted = shared_objects(answers), shared_objects(answers)
    relay = FakeRelay()
    seasoned = _cutter_of(shared, relay)
    buffer = memoryview(bytearray(1 << 16))
    passed = 0
    for _ in range(MUTATIONS // 4):
        frames = bytearray()
        for _ in range(generator.randrange(1, 4)):
            frame = bytearray(generator.choice(produced if generator.random() < 0.8 else whole))
            frame[8:12] = generator.randbytes(4)
            frames += frame
        alone = FakeRelay()
        relay.exchanges.clear()
        sent: list[bytes | None] = []
        judged_alone = FrameCutter(RequestReader(counted, cast("OpenRelay", alone)), HeldBudget(), alone)
        split = generator.randrange(len(frames))
        for cutter, chunks in ((seasoned, (frames[:split], frames[split:])), (judged_alone, (frames,))):
            joined = bytearray()
            try:
                for chunk in chunks:
                    pieces: list[Piece] = []
                    buffer[: len(chunk)] = chunk  # which overwrites the one before, as in a relay
                    cutter.cut(buffer[: len(chunk)], pieces)
                    joined += b"".join(pieces)
            except ProtocolError:
                cutter.drop()
                sent.append(None)
            else:
                sent.append(bytes(joined))
        assert sent[0] == sent[1]
        assert [_facts(each) for each in relay.exchanges] == [_facts(each) for each in alone.exchanges]
        assert relay.peer.client_id == alone.peer.client_id or sent[0] is None
        passed += sent[0] == bytes(frames)
    assert shared.figures.requests.counts == counted.figures.requests.counts
    assert passed > MUTATIONS / 8


def _cutter_of(shared: Shared, relay: FakeRelay) -> FrameCutter:
    judge = RequestReader(shared, cast("OpenRelay", relay))
    return FrameCutter(judge, HeldBudget(), relay, judge.end_of_run)


def _facts(in_flight: InFlight) -> tuple[int, bool, bytes | None]:
    if isinstance(in_flight, int):
        return in_flight, True, None
    return in_flight.correlation_id, in_flight.on_response is None, in_flight.answer


def test_damaged_response_is_rewritten_or_rejected(tmp_path: Path) -> None:
    generator = random.Random(18)
    topology = Topology(tmp_path)
    topology.save = lambda: None  # type: ignore[method-assign]  # the file is not of interest
    topology.base = Address(host="gateway", port=1)
    opened: list[int] = []
    topology.subscribe(opened.append)
    rejected = 0
    for number in range(MUTATIONS):
        carrier = list(CARRIERS.values())[number % len(CARRIERS)]
        first, last = carrier.response.VERSIONS
        version = generator.randrange(max(first, carrier.first_version), last + 1)
        body = damaged(bytes(12) + bytes(encode(sample(carrier.response, version), version)), generator)[12:]
        try:
            carrier.rewrite(memoryview(body), version, topology)
        except ProtocolError:
            rejected += 1
    assert MUTATIONS / 20 < rejected < MUTATIONS
    assert all(at.host and 0 < at.port < 65536 for at in topology.nodes.values())
    assert min(opened) >= 0


def test_damaged_api_versions_response_is_intersected_or_rejected() -> None:
    generator = random.Random(19)
    served = {api.key: api.versions for api in APIS}
    for number in range(MUTATIONS // 4):
        version = number % 5
        body = damaged(bytes(12) + bytes(encode(sample(ApiVersionsResponse, version), version)), generator)[12:]
        try:
            response = decode(ApiVersionsResponse, response_version(memoryview(body), version), body)
        except ProtocolError:
            continue
        assert all(api.api_key in served for api in intersect(response, served, {}).api_keys)
