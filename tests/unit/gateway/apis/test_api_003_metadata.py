"""Metadata through the gateway's policies: topics that the upstream would create for a client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.admin import ConfigEntry, ConfigResource
from klamm.admin.results import DescribeConfigsResult
from klamm.gateway.apis.api_003_metadata import POLICY, RequestedTopics
from klamm.gateway.policies.policy_api import ResourceTurns
from klamm.gateway.relay.filter import FORWARD, Serve
from klamm.policy import Override
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.gateway_context import FakeContext, FakePolicies, LimitedUpstream

if TYPE_CHECKING:
    from collections.abc import Collection

    from klamm.protocol.schema import Message

NAMES = tuple("abcdef")
SOME = st.sets(st.sampled_from(NAMES))


class Upstream:
    """Upstream that creates topics on request, and remembers which."""

    def __init__(self, existing: Collection[str] = (), *, creates: bool = True, rejected: Collection[str] = ()) -> None:
        self.existing, self.creates, self.rejected = set(existing), creates, rejected
        self.created: list[str] = []
        self.trials: list[str] = []
        self.made: list[CreateTopicsRequest.CreatableTopic] = []
        self.failing: dict[str, ErrorCode] = {}
        """Errors of the creations that are valid."""

    def __call__(self, request: Message) -> Message:
        if isinstance(request, CreateTopicsRequest):
            if request.validate_only:
                self.trials += [topic.name for topic in request.topics]
            else:
                self.made += request.topics
                self.existing |= {topic.name for topic in request.topics} - self.failing.keys()
            failing = {} if request.validate_only else self.failing
            return CreateTopicsResponse(
                topics=[
                    CreateTopicsResponse.CreatableTopicResult(
                        name=topic.name,
                        error_code=failing.get(
                            topic.name, ErrorCode.THROTTLING_QUOTA_EXCEEDED if topic.name in self.rejected else 0
                        ),
                        error_message=None,
                        num_partitions=4,
                        replication_factor=1,
                        configs=[],
                    )
                    for topic in request.topics
                ]
            )
        assert isinstance(request, MetadataRequest)
        topics = []
        for topic in reversed(request.topics or []):
            name = topic.name or ""
            if name not in self.existing and request.allow_auto_topic_creation and self.creates:
                self.existing.add(name)
                self.created.append(name)
            code = 0 if name in self.existing else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(MetadataResponse.MetadataResponseTopic(name=name, error_code=code))
        brokers = [MetadataResponse.MetadataResponseBroker(node_id=3, host="upstream", port=9092)]
        return MetadataResponse(brokers=brokers, topics=topics, cluster_id="c")


class BrokerConfigs:
    """Admin client that answers with the upstream's ``auto.create.topics.enable``."""

    def __init__(self, value: str) -> None:
        self.value, self.calls = value, 0

    def describe_configs(self, resources: Any) -> DescribeConfigsResult:
        self.calls += 1
        result = DescribeConfigsResult(resources)
        for resource in resources:
            assert isinstance(resource, ConfigResource)
            assert resource.name == "3"
            result.succeed(
                resource, {"auto.create.topics.enable": ConfigEntry("auto.create.topics.enable", self.value)}
            )
        return result


class UnreadableConfigs:
    """Admin client of an upstream whose broker does not respond."""

    def describe_configs(self, resources: Any) -> DescribeConfigsResult:
        result = DescribeConfigsResult(resources)
        for resource in resources:
            result.fail(resource, TimeoutError("no response"))
        return result


def metadata(*names: str, may_create: bool = True) -> MetadataRequest:
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=may_create)


def codes(response: MetadataResponse) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in response.topics}


@settings(deadline=None)
@given(
    names=st.lists(st.sampled_from(NAMES), unique=True),
    existing=SOME,
    denied=SOME,
    may_create=st.booleans(),
    version=st.sampled_from((3, 12)),
)
def test_only_allowed_topics_are_created(
    names: list[str], existing: set[str], denied: set[str], may_create: bool, version: int
) -> None:
    # given
    upstream, policies = Upstream(existing), FakePolicies(denied)
    context = FakeContext(upstream, BrokerConfigs("true"), api_version=version)
    # when
    response = asyncio.run(
        RequestedTopics(policies.as_policies()).handle(metadata(*names, may_create=may_create), context)
    )
    # then
    missing = [name for name in names if name not in existing] if may_create or version < 4 else []
    unknown, unauthorized = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert codes(response) == {
        name: 0 if name in existing else unknown if name not in missing else unauthorized if name in denied else 0
        for name in names
    }
    assert upstream.created == [], "the upstream would create topics with defaults that were not judged"
    assert sorted(topic.name for topic in upstream.made) == sorted(name for name in missing if name not in denied)
    assert {details.topic for details in policies.asked} == set(missing)
    assert all(details.num_partitions == 4 for details in policies.asked)


@pytest.mark.parametrize(
    ("request_", "version", "is_judged"),
    [
        (metadata("a"), 12, True),
        (metadata("a", may_create=False), 3, True),
        (metadata("a", may_create=False), 12, False),
        (metadata(), 0, False),
        (MetadataRequest(topics=None, allow_auto_topic_creation=True), 12, False),
        (MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=None, topic_id=UUID(int=1))]), 12, False),
    ],
)
def test_metadata_request_without_creation_is_forwarded_unread(
    request_: MetadataRequest, version: int, *, is_judged: bool
) -> None:
    """The response has all topics of the cluster. Decoded for each of many consumers, it would fill the memory."""
    used = POLICY.filter(FakePolicies().as_policies(), ResourceTurns())
    result = used.decide(request_, FakeContext(Upstream(), api_version=version))
    assert isinstance(result, Serve) if is_judged else result is FORWARD


def test_overridden_topic_is_created_as_the_policy_says() -> None:
    upstream = Upstream()
    policies = FakePolicies(overrides={"a": Override(reason="a: more", num_partitions=6)})
    context = FakeContext(upstream, BrokerConfigs("true"), api_version=12)
    response = asyncio.run(RequestedTopics(policies.as_policies()).handle(metadata("a"), context))
    assert codes(response) == {"a": 0}
    (created,) = upstream.made
    assert (created.name, created.num_partitions) == ("a", 6)


@pytest.mark.parametrize("error_code", [ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.TOPIC_ALREADY_EXISTS])
def test_failed_creation_is_not_repeated_with_defaults(error_code: ErrorCode) -> None:
    upstream = Upstream()
    upstream.failing = {"a": error_code}
    policies = FakePolicies(overrides={"a": Override(reason="", num_partitions=6)})
    context = FakeContext(upstream, BrokerConfigs("true"), api_version=12)
    response = asyncio.run(RequestedTopics(policies.as_policies()).handle(metadata("a"), context))
    # a topic that exists meanwhile is looked up again, and this upstream does not know it
    exists = error_code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert codes(response) == {"a": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if exists else error_code}
    assert upstream.created == []


@pytest.mark.parametrize(
    ("error_code", "expected"),
    [
        (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NONE),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER),
    ],
)
def test_upstream_error_for_an_overridden_topic_is_no_denial(error_code: ErrorCode, expected: ErrorCode) -> None:
    # given
    upstream = Upstream()
    policies = FakePolicies(overrides={"a": Override(reason="a: more", num_partitions=6)})

    def answer(request: Message) -> Message:
        response = upstream(request)
        if isinstance(response, CreateTopicsResponse) and upstream.trials == ["a", "a"]:
            response.topics[0].error_code = error_code
            if error_code is ErrorCode.TOPIC_ALREADY_EXISTS:  # another client has created it between the two trials
                upstream.existing.add("a")
        return response

    context = FakeContext(answer, BrokerConfigs("true"), api_version=12)
    # when
    response = asyncio.run(RequestedTopics(policies.as_policies()).handle(metadata("a"), context))
    # then
    assert codes(response) == {"a": expected}
    assert upstream.made == []
    assert policies.denied_creations.answer("a", context.author) is None


def test_denial_is_remembered_for_a_moment() -> None:
    upstream, policies = Upstream(), FakePolicies({"a"})
    interceptor = RequestedTopics(policies.as_policies())
    for _ in range(3):
        context = FakeContext(upstream, BrokerConfigs("true"), api_version=12)
        response = asyncio.run(interceptor.handle(metadata("a"), context))
        assert codes(response) == {"a": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert len(policies.asked) == 1
    assert upstream.trials == ["a"]


def test_policy_is_not_asked_if_upstream_does_not_create_topics() -> None:
    upstream, policies, admin = Upstream(creates=False), FakePolicies({"a"}), BrokerConfigs("false")
    clock = [0.0]
    interceptor = RequestedTopics(policies.as_policies(), now=lambda: clock[0])
    for now in (0.0, 1.0, 31.0):
        clock[0] = now
        response = asyncio.run(interceptor.handle(metadata("a"), FakeContext(upstream, admin, api_version=12)))
        assert codes(response) == {"a": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert policies.asked == []
    assert admin.calls == 2


@pytest.mark.parametrize("value", ["false", "true"])
def test_last_value_counts_while_automatic_creation_cannot_be_read(
    value: str, caplog: pytest.LogCaptureFixture
) -> None:
    # given a value that was read before
    upstream, admin, clock = Upstream(creates=False), BrokerConfigs(value), [0.0]
    requested = RequestedTopics(FakePolicies().as_policies(), now=lambda: clock[0])
    asyncio.run(requested.handle(metadata("a"), FakeContext(upstream, admin, api_version=12)))
    # when it cannot be read
    clock[0] = 31.0
    broken = FakeContext(upstream, UnreadableConfigs(), api_version=12)
    for name in "bc":
        asyncio.run(requested.handle(metadata(name), broken))
    # then
    assert [topic.name for topic in upstream.made] == (["a", "b", "c"] if value == "true" else [])
    assert len([record for record in caplog.records if "auto.create.topics.enable" in record.getMessage()]) == 1
    # and the value is read again soon
    clock[0] = 36.0
    asyncio.run(requested.handle(metadata("d"), FakeContext(upstream, admin, api_version=12)))
    assert admin.calls == 2


def test_no_topic_is_created_before_automatic_creation_is_known() -> None:
    upstream, policies, clock = Upstream(creates=False), FakePolicies(), [0.0]
    requested = RequestedTopics(policies.as_policies(), now=lambda: clock[0])
    response = asyncio.run(requested.handle(metadata("a"), FakeContext(upstream, UnreadableConfigs(), api_version=12)))
    assert codes(response) == {"a": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert upstream.trials == []
    clock[0] = 5.0
    asyncio.run(requested.handle(metadata("a"), FakeContext(upstream, BrokerConfigs("true"), api_version=12)))
    assert len(upstream.made) == 1


def test_requests_that_wait_for_automatic_creation_share_one_read() -> None:
    upstream, admin = Upstream(creates=False), BrokerConfigs("false")
    requested = RequestedTopics(FakePolicies().as_policies())

    async def ask_twice() -> None:
        context = FakeContext(upstream, admin, api_version=12)
        await asyncio.gather(*(requested.handle(metadata(name), context) for name in "ab"))

    asyncio.run(ask_twice())
    assert admin.calls == 1


def test_trial_does_not_use_the_quota_of_an_automatic_creation() -> None:
    # given a quota that admits one topic each second, and has admitted as many as it can at once
    existing, policies = Upstream(), FakePolicies()
    upstream = LimitedUpstream(existing, rate=1)
    upstream.bucket.take(12, 1, 0)
    requested = RequestedTopics(policies.as_policies())
    # when the client retries
    for _ in range(50):
        context = FakeContext(upstream, BrokerConfigs("true"), api_version=12)
        response = asyncio.run(requested.handle(metadata("a", "b"), context))
        upstream.now_s += 0.1
    # then
    assert codes(response) == {"a": 0, "b": 0}
    assert len(existing.made) == 2


def test_topic_beyond_a_quota_is_missing_until_the_client_retries() -> None:
    upstream, policies = Upstream(rejected={"a"}), FakePolicies()
    context = FakeContext(upstream, BrokerConfigs("true"), api_version=12)
    response = asyncio.run(RequestedTopics(policies.as_policies()).handle(metadata("a"), context))
    assert codes(response) == {"a": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert upstream.created == []


def test_internal_topics_are_created_without_a_policy_call() -> None:
    upstream, policies = Upstream(), FakePolicies({"__consumer_offsets"})
    context = FakeContext(upstream, BrokerConfigs("true"), api_version=12)
    asyncio.run(RequestedTopics(policies.as_policies()).handle(metadata("__consumer_offsets"), context))
    assert upstream.created == ["__consumer_offsets"]
    assert policies.asked == []
