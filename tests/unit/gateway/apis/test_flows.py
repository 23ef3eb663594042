"""Produce requests and names of groups through the gateway's policy on flows."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.gateway.apis.api_000_produce import is_idempotent
from klamm.gateway.apis.table import APIS, POLICIES, UNFILTERED
from klamm.gateway.policies.feature import PolicyFeature
from klamm.gateway.policies.policy_api import ResourceTurns
from klamm.gateway.relay.filter import Divide
from klamm.policy import Override, PolicyLoadError, PolicyTimeoutError, PolicyViolationError, ProduceDetails, Throttle
from klamm.policy.kinds import FLOW, PolicyMode
from klamm.policy_runtime import Policies
from klamm.policy_runtime.worker import PolicyOutcome
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.messages.offset_commit import OffsetCommitRequest
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from klamm.server.attempt import ApiError
from tests.support.gateway_context import FakeContext, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from klamm.protocol.schema import Message

NAMES = tuple("abcdef")
RULES = "klamm.policy.rules:RulesPolicy"


class FlowGuard:
    """Guard of a policy that answers by the name of the topic or group, and has remembered all its answers."""

    spec = SimpleNamespace(keys={FLOW: "flow.policy.class.name"})

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        self.asked: list[Any] = []
        self.cache = self

    def get(self, details: Any) -> PolicyOutcome:
        self.asked.append(details)
        answer = self.answers.get(details.topic if isinstance(details, ProduceDetails) else details.group_id)
        if callable(answer):
            answer = answer(details)
        is_denied = isinstance(answer, KafkaApiError)
        return PolicyOutcome(None if is_denied else answer, answer if is_denied else None)


def judge(
    answers: Mapping[str, Any], mode: PolicyMode = PolicyMode.ENFORCE
) -> tuple[Callable[[Message], Any], Policies]:
    """Return the filters of a policy as one function from a request to their result, and the policies."""
    guard: Any = FlowGuard(answers)
    policies = Policies([guard], {FLOW: mode})
    filters = {api.key: api.filter(policies, ResourceTurns()) for api in POLICIES if api.kind is FLOW}

    def upstream(_request: object) -> Any:
        raise AssertionError("A filter must not call the upstream")

    return lambda request: plain(filters[request.API_KEY].decide(request, FakeContext(upstream))), policies


def batch(producer_id: int = -1) -> bytes:
    header = bytearray(61)
    header[16] = 2
    header[43:51] = producer_id.to_bytes(8, "big", signed=True)
    return bytes(header)


def produce(*names: str, acks: int = 1, records: bytes = batch()) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=5,
        transactional_id="t",
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=name,
                partition_data=[ProduceRequest.PartitionProduceData(index=index, records=records) for index in (0, 3)],
            )
            for name in names
        ],
    )


def answered(names: Sequence[str]) -> ProduceResponse:
    return ProduceResponse(
        throttle_time_ms=2,
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=name,
                partition_responses=[ProduceResponse.PartitionProduceResponse(index=index) for index in (0, 3)],
            )
            for name in names
        ],
    )


@given(
    names=st.lists(st.sampled_from(NAMES), unique=True, min_size=1),
    denied=st.sets(st.sampled_from(NAMES)),
    raised=st.sets(st.sampled_from(NAMES)),
    slowed=st.dictionaries(st.sampled_from(NAMES), st.integers(1, 90)),
    acks=st.sampled_from((0, 1, -1)),
)
def test_each_topic_is_denied_or_forwarded(
    names: list[str], denied: set[str], raised: set[str], slowed: dict[str, int], acks: int
) -> None:
    # given: a denial comes before a throttle, which comes before an override
    answers: dict[str, Any] = {name: Override(acks=-1, reason="all") for name in raised}
    answers |= {name: Throttle(delay_ms=delay_ms, reason="slow") for name, delay_ms in slowed.items()}
    answers |= {name: PolicyViolationError(f"{name}: no") for name in denied}
    kept = [name for name in names if name not in denied]
    wanted_acks = -1 if any(isinstance(answers.get(name), Override) for name in names) else acks
    delay_ms = max((slowed[name] for name in kept if name in slowed), default=0)
    request = produce(*names, acks=acks)
    decide, policies = judge(answers)
    # when
    judged = decide(request)
    # then
    assert sum(policies.decisions.values()) == len(names), "each topic is decided on once"
    if kept == names and delay_ms == 0 and wanted_acks == acks:
        assert judged is None
    elif isinstance(judged, ProduceResponse):
        assert not kept or (acks == 0 and len(kept) < len(names))
    else:
        forwarded = judged.request if isinstance(judged, Divide) else judged
        assert isinstance(forwarded, ProduceRequest)
        assert [topic.name for topic in forwarded.topic_data] == kept
        assert (forwarded.acks, forwarded.timeout_ms, forwarded.transactional_id) == (wanted_acks, 5, "t")
        if isinstance(judged, Divide):
            merged = judged.merge(answered(kept))
            assert isinstance(merged, ProduceResponse)
            assert merged.throttle_time_ms == max(2, delay_ms)
            assert [
                (topic.name, [(each.index, each.error_code, each.error_message) for each in topic.partition_responses])
                for topic in merged.responses
            ] == [
                (
                    name,
                    [
                        (index, ErrorCode.POLICY_VIOLATION, f"{name}: no") if name in denied else (index, 0, None)
                        for index in (0, 3)
                    ],
                )
                for name in names
            ]
    assert request == produce(*names, acks=acks), "the request is not changed"


def raised(acks: int) -> Any:
    """Return a policy that overrides all acks but these."""
    return lambda details: None if details.acks == acks else Override(acks=acks, reason=f"acks={acks}")


OVERRIDES = pytest.mark.parametrize(
    ("requested", "answers", "acks", "denied"),
    [
        (0, {"a": Override(acks=-1, reason="all"), "b": Override(acks=1, reason="one")}, -1, ()),
        (0, {"a": raised(-1), "b": raised(1)}, -1, ()),
        (0, {"a": raised(1)}, 1, ()),
        (-1, {"a": raised(1)}, None, ()),
        (-1, {"a": raised(1), "b": raised(1)}, 1, ()),
        (
            1,
            {"a": raised(-1), "b": lambda details: PolicyViolationError("no") if details.acks == -1 else None},
            -1,
            "b",
        ),
        (-1, {"a": raised(1), "b": lambda details: Override(acks=-details.acks, reason="")}, 1, "b"),
        (1, {"a": Override(acks=0, reason="none"), "b": Override(acks=-1, num_partitions=3, reason="")}, None, "ab"),
    ],
)


@OVERRIDES
def test_strongest_acks_win_and_policy_is_asked_about_them(
    requested: int, answers: dict[str, Any], acks: int | None, denied: str
) -> None:
    decide, policies = judge(answers)
    judged = decide(produce("a", "b", acks=requested))
    forwarded = judged.request if isinstance(judged, Divide) else judged
    assert (forwarded.acks if isinstance(forwarded, ProduceRequest) else None) == acks
    decisions = Counter({action: count for (_, _, action), count in policies.decisions.items()})
    assert decisions["deny"] + decisions["fail"] == len(denied)
    assert decisions.total() == 2


@OVERRIDES
def test_audit_mode_counts_same_decisions_about_acks_as_enforce_mode(
    requested: int, answers: dict[str, Any], acks: int | None, denied: str
) -> None:
    actions = []
    for mode in (PolicyMode.ENFORCE, PolicyMode.AUDIT):
        decide, policies = judge(answers, mode)
        judged = decide(produce("a", "b", acks=requested))
        actions.append(Counter(decided.action for decided in policies.decisions.elements()))
    assert judged is None
    assert actions[0] == actions[1]
    assert sum(entry.decided.action in ("deny", "fail") for entry in policies.latest_audited) == len(denied)
    assert acks is None or actions[1]["allow"] < len(answers)


@pytest.mark.parametrize(
    ("records", "expected"), [(batch(), False), (batch(0), True), (batch(2**40), True), (b"short", False)]
)
def test_batch_with_producer_id_is_idempotent(records: bytes, expected: bool) -> None:
    assert is_idempotent(produce("a", records=records).topic_data[0]) is expected


def test_cached_denial_does_not_keep_records() -> None:
    # given: records that show whether anything refers to them
    class Records(bytearray):
        pass

    records = Records(batch())
    is_kept = ref(records)
    request = produce("a")
    request.topic_data[0].partition_data[0].records = records
    decide, _ = judge({"a": PolicyViolationError("no")})
    # when
    judged = decide(request)
    # then
    del request, records
    assert isinstance(judged, ProduceResponse)
    assert is_kept() is None


def test_denied_group_cannot_be_joined_or_committed() -> None:
    decide, _ = judge({"bad": PolicyViolationError("no"), "slow": Throttle(delay_ms=7, reason="slow")})
    assert decide(JoinGroupRequest(group_id="good")) is None
    denied = decide(JoinGroupRequest(group_id="bad"))
    assert isinstance(denied, JoinGroupResponse)
    assert denied.error_code == ErrorCode.INVALID_GROUP_ID
    slowed = decide(JoinGroupRequest(group_id="slow"))
    assert isinstance(slowed, Divide)
    merged = slowed.merge(JoinGroupResponse(member_id="m", generation_id=3, members=[]))
    assert isinstance(merged, JoinGroupResponse)
    assert (merged.throttle_time_ms, merged.member_id, merged.generation_id) == (7, "m", 3)
    commit = OffsetCommitRequest(group_id="bad", topics=[])
    assert decide(commit) == ApiError(ErrorCode.INVALID_GROUP_ID, None)
    commit.group_id = "good"
    assert decide(commit) is None


def test_failed_policy_gives_unknown_server_error_for_group() -> None:
    decide, _ = judge({"slow": PolicyTimeoutError("too late")})
    denied = decide(JoinGroupRequest(group_id="slow"))
    assert isinstance(denied, JoinGroupResponse)
    assert denied.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(("version", "topic"), [(5, {"name": "t"}), (6, {"topic_id": UUID(int=3)})])
def test_transaction_cannot_commit_offsets_of_denied_group(version: int, topic: dict[str, Any]) -> None:
    decide, _ = judge({"bad": PolicyViolationError("no")})
    partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=4, committed_offset=1)
    commit = TxnOffsetCommitRequest(
        transactional_id="t",
        group_id="bad",
        topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(**topic, partitions=[partition])],
    )
    error = decide(commit)
    assert isinstance(error, ApiError)
    (api,) = (each for each in APIS if each.key == ApiKey.TXN_OFFSET_COMMIT)
    answer = api.rejection(commit, version, error)
    assert isinstance(answer, TxnOffsetCommitResponse)
    (topic_result,) = answer.topics
    assert {name: getattr(topic_result, name) for name in topic} == topic
    assert [(each.partition_index, each.error_code) for each in topic_result.partitions] == [
        (4, ErrorCode.INVALID_GROUP_ID)
    ]
    commit.group_id = "good"
    assert decide(commit) is None


def test_consumer_protocol_cannot_join_denied_group() -> None:
    decide, policies = judge({"bad": PolicyViolationError("no"), "slow": Throttle(delay_ms=7, reason="slow")})

    def heartbeat(group_id: str, member_epoch: int) -> Any:
        request = ConsumerGroupHeartbeatRequest(group_id=group_id, member_epoch=member_epoch)
        return decide(request)

    assert heartbeat("good", 0) is None
    denied = heartbeat("bad", 0)
    assert (denied.error_code, denied.error_message) == (ErrorCode.INVALID_GROUP_ID, "no")
    merged = heartbeat("slow", 0).merge(ConsumerGroupHeartbeatResponse(member_id="m", heartbeat_interval_ms=5))
    assert (merged.throttle_time_ms, merged.member_id, merged.heartbeat_interval_ms) == (7, "m", 5)
    # heartbeats of members, and of those that leave, are not judged again
    assert [heartbeat("bad", member_epoch) for member_epoch in (-2, -1, 5)] == [None, None, None]
    assert sum(policies.decisions.values()) == 3


async def started(rules: Path, **more: str) -> tuple[set[int], frozenset[int], Mapping[int, int]]:
    interception = await PolicyFeature.load(
        {
            "flow.policy.class.name": RULES,
            "policy.rules.file": str(rules),
            **{k.replace("_", "."): v for k, v in more.items()},
        },
        POLICIES,
        UNFILTERED,
    )
    await interception.close()
    return set(interception.filters), interception.withheld, interception.last_versions


def test_policy_on_flows_withholds_unfiltered_apis(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{name: a, acks: all}]")
    filters, withheld, limits = asyncio.run(started(rules))
    assert filters - {ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS} == {
        ApiKey.PRODUCE,
        ApiKey.JOIN_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
    }
    assert withheld == {76, 88}
    assert limits == {ApiKey.PRODUCE: 12, ApiKey.OFFSET_COMMIT: 9}


@pytest.mark.parametrize(
    ("rule", "more", "message"),
    [
        ("{name: a, group_naming: '(?=a)a'}", {}, "must set only_computes"),
        ("{name: a, acks: all}", {"flow_policy_mode": "loud"}, "Invalid value loud for configuration flow.policy.mode"),
    ],
)
def test_invalid_policy_on_flows_prevents_start(tmp_path: Path, rule: str, more: dict[str, str], message: str) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(f"rules: [{rule}]")
    with pytest.raises(PolicyLoadError, match=message):
        asyncio.run(started(rules, **more))
