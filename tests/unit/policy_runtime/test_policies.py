"""Effects of a policy's decision on the client, and isolation of the broker from the policy."""

from __future__ import annotations

import asyncio
import contextlib
import textwrap
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from klamm.policy import (
    AlterConfigDetails,
    CreatePartitionsDetails,
    DeleteTopicDetails,
    InvalidRequestError,
    PolicyFailedError,
    PolicyLoadError,
    PolicyTimeoutError,
    PolicyViolationError,
    ProduceDetails,
    TopicDetails,
)
from klamm.policy.kinds import (
    ALTER_CONFIG,
    CREATE_PARTITIONS,
    CREATE_TOPIC,
    DELETE_TOPIC,
    FLOW,
    GATEWAY_KINDS,
    read_specs,
)
from klamm.policy_runtime import Policies, PolicyRuntime
from klamm.policy_runtime.guard import MAX_STRAGGLERS, PolicyGuard, make_instance
from klamm.policy_runtime.service import UndecidedChange
from klamm.protocol.errors import ErrorCode, KafkaApiError
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HOUSE_RULES = """
    import os, sys, threading, time
    RELEASED = threading.Event()
    from klamm.policy import InvalidRequestError, Override, PolicyViolationError

    class Silent(PolicyViolationError):
        def __init__(self, limit): self.limit = limit

    class Own(PolicyViolationError):
        error_message = property(lambda self: f"own words: {self.args[0]}")

        def __init__(self, topic): Exception.__init__(self, topic)

    class Unreadable(PolicyViolationError):
        error_code = property(lambda self: 1 // 0)

    class Exits(PolicyViolationError):
        error_message = property(lambda self: sys.exit(7))

        def __init__(self): pass

    class Ends(PolicyViolationError):
        error_code = property(lambda self: os._exit(9))

    class Sleeps(PolicyViolationError):
        error_code = property(lambda self: RELEASED.wait(120))

    class EndsInWords(ValueError):
        def __str__(self): os._exit(9)

        __repr__ = __str__

    class EndsWhenEncoded(str):
        def encode(self, *args): os._exit(9)

    class Wordless:
        def __str__(self): raise ValueError("no words")

    async def check_later(): raise PolicyViolationError("too late")

    def check_each():
        yield
        raise PolicyViolationError("too late")

    async def check_each_later():
        yield
        raise PolicyViolationError("too late")

    class AnyAwaitable:
        def __await__(self): raise PolicyViolationError("too late")

    CALLS, THREADS, CLOSED = [], set(), []

    class All:
        def __init__(self):
            THREADS.add(threading.current_thread().name)

        def validate(self, details):
            THREADS.add(threading.current_thread().name)
            name = getattr(details, "topic", None) or details.resource_name
            CALLS.append((type(details).__name__, name, id(self)))
            match name.split("-")[0]:
                case "denied": raise PolicyViolationError(f"{name}: not here")
                case "invalid": raise InvalidRequestError(f"{name}: the KIP says so")
                case "broken": raise ValueError("oops")
                case "exit": sys.exit(3)
                case "end": os._exit(3)
                case "fork":
                    if (child := os.fork()) == 0: os._exit(3)
                    if os.waitpid(child, 0)[1] >> 8 != 3: raise ValueError("the child lived on")
                case "half": raise PolicyViolationError("half a pair: \\ud800")
                case "silent": raise Silent(7)
                case "number": raise PolicyViolationError(5)
                case "zero": raise InvalidRequestError(0)
                case "own": raise Own(name)
                case "unreadable": raise Unreadable(name)
                case "exits": raise Exits
                case "ends": raise Ends
                case "sleeps": raise Sleeps
                case "silent_ends": raise Silent(EndsInWords())
                case "words": raise EndsInWords
                case "wordless": raise PolicyViolationError(Wordless())
                case "false": return False
                case "later": return check_later()
                case "each": return check_each()
                case "each_later": return check_each_later()
                case "awaitable": return AnyAwaitable()
                case "returned": return PolicyViolationError("meant to be raised")
                case "returned_class": return Own
                case "encoded" if details.num_partitions == 1:
                    return Override(reason=EndsWhenEncoded("six"), num_partitions=6)
                case "repr": return Override(reason="six", num_partitions=EndsInWords())
                case "caught": raise PolicyViolationError(ValueError("what was caught"))
                case "deep": self.validate(details)
                case "interrupt": raise KeyboardInterrupt
                case "slow": time.sleep(0.02)
                case "paused":
                    RELEASED.wait(20)
                    CALLS.append(("end", name, id(self)))
                case "tardy": time.sleep(1.2)
                case "true": return True
                case "override":
                    return None if details.num_partitions == 6 else Override(reason=f"{name}: six", num_partitions=6)
                case "strict":
                    if details.num_partitions == 6: raise PolicyViolationError(f"{name}: not six")
                    return Override(reason=f"{name}: six", num_partitions=6)
                case "twice": return Override(reason=f"{name}: more", num_partitions=details.num_partitions + 1)
                case "endless":
                    while True: pass
                case "stuck": RELEASED.wait(120)

        def close(self):
            CLOSED.append(id(self))

    class Several:
        def validate_create_topic(self, details): raise PolicyViolationError("create")
        def validate_delete_topic(self, details): raise PolicyViolationError("delete")

    class AllAtOnce(All):
        only_computes = True

    class AtOnceFromConfigure(All):
        def configure(self, configs):
            self.only_computes = True

    class FailsToClose(All):
        def close(self): raise ValueError("no")

    class HangsWhenCreatedAgain(All):
        CREATED, RESUMED = [], threading.Event()

        def configure(self, configs):
            self.CREATED.append(id(self))
            if len(self.CREATED) > 1: self.RESUMED.wait(20)

        def validate(self, details): RELEASED.wait(20)

    class RejectsItsKind(All):
        def check_kinds(self, keys): raise ValueError("not asked")

    class HangsInClose(All):
        def close(self): RELEASED.wait(20)  # longer than the test waits
"""
CREATE_KEY = "create.topic.policy.class.name"
DELETE_KEY = "delete.topic.policy.class.name"
ALTER_KEY = "alter.config.policy.class.name"
GROW_KEY = "create.partitions.policy.class.name"


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the module of policies a name of its own in every test."""
    name = f"rules_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(HOUSE_RULES))
    monkeypatch.syspath_prepend(str(tmp_path))

    class Rules:
        path = tmp_path / f"{name}.py"
        all = f"{name}:All"
        at_once = f"{name}:AllAtOnce"
        configured = f"{name}:AtOnceFromConfigure"
        several = f"{name}:Several"
        fails_to_close = f"{name}:FailsToClose"
        hangs_in_close = f"{name}:HangsInClose"
        hangs_when_created_again = f"{name}:HangsWhenCreatedAgain"
        rejects_its_kind = f"{name}:RejectsItsKind"

        @property
        def module(self) -> Any:
            return __import__(name)

    return Rules()


@pytest.fixture(params=["on its thread", "at once"])
def either(request: pytest.FixtureRequest, rules: Any) -> str:
    """Name the policy that tests whatever is the same wherever a policy is called."""
    return str(rules.all if request.param == "on its thread" else rules.at_once)


@asynccontextmanager
async def serving(properties: dict[str, str]) -> AsyncIterator[Policies]:
    policies = await Policies.load(properties)
    try:
        yield policies
    finally:
        await policies.close()


def policy_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("klamm-policy-")}


async def create(policies: Policies, topic: str) -> str:
    """Return the response that a client would get."""
    async with policies.turn(CREATE_TOPIC):
        try:
            await policies.check(CREATE_TOPIC, TopicDetails(topic, 1, 1, None, {}, "User:anna", "tool"))
        except (PolicyViolationError, InvalidRequestError) as error:
            return f"{error.error_code.name}: {error.error_message}"
        except PolicyTimeoutError as error:
            return f"timeout: {error.error_message}"
        except PolicyFailedError as error:
            return f"{error.error_code.name}: {error.error_message}"
    return "allowed"


async def test_everything_is_allowed_without_a_policy() -> None:
    """K108-01: With the policy class config set, the broker makes one instance of it and uses it for create-topic
    requests; without it nothing changes.
    """
    async with serving({}) as policies:
        assert not policies.guards_kind(CREATE_TOPIC)
        assert await create(policies, "denied") == "allowed"
        assert not policies.decisions


@pytest.mark.parametrize(
    ("topic", "answer", "action"),
    [
        ("orders", "allowed", "allow"),
        ("denied-1", "POLICY_VIOLATION: denied-1: not here", "deny"),
        ("invalid-1", "INVALID_REQUEST: invalid-1: the KIP says so", "deny"),
        ("broken-1", "UNKNOWN_SERVER_ERROR: None", "fail"),
        ("exit-1", "UNKNOWN_SERVER_ERROR: None", "fail"),
        ("deep-1", "UNKNOWN_SERVER_ERROR: None", "fail"),
        ("half-1", "POLICY_VIOLATION: half a pair: \\ud800", "deny"),
        ("silent-1", "POLICY_VIOLATION: 7", "deny"),
        ("number-1", "POLICY_VIOLATION: 5", "deny"),
        ("zero-1", "INVALID_REQUEST: 0", "deny"),
        ("caught-1", "POLICY_VIOLATION: what was caught", "deny"),
        ("interrupt-1", "UNKNOWN_SERVER_ERROR: None", "fail"),
        ("slow-1", "allowed", "allow"),
        ("own-1", "POLICY_VIOLATION: own words: own-1", "deny"),
        ("unreadable-1", "UNKNOWN_SERVER_ERROR: None", "fail"),
        ("wordless-1", "UNKNOWN_SERVER_ERROR: None", "fail"),
        ("exits-1", "UNKNOWN_SERVER_ERROR: None", "fail"),
        ("true-1", "allowed", "allow"),
        (
            "false-1",
            "UNKNOWN_SERVER_ERROR: Create topic policy: it cannot return bool; raise PolicyViolationError to deny",
            "fail",
        ),
        *(
            (
                f"{topic}-1",
                f"UNKNOWN_SERVER_ERROR: Create topic policy: it cannot return {answer};"
                " raise PolicyViolationError to deny",
                "fail",
            )
            for topic, answer in (
                ("later", "coroutine"),
                ("each", "generator"),
                ("each_later", "async_generator"),
                ("awaitable", "AnyAwaitable"),
                ("returned", "PolicyViolationError"),
                ("returned_class", "Own"),
            )
        ),
    ],
)
async def test_policy_exception_maps_to_error_code_of_that_topic_only(
    either: str, topic: str, answer: str, action: str
) -> None:
    """K108-03: Interface CreateTopicPolicy.validate(TopicDetails) raises InvalidRequestException to deny.

    K108-05: Denial -> the topic's result is 42.

    K108-09: Policy passes -> creation goes on as usual and may still fail otherwise.

    K108-11: v0 answer has no message; v1+ carries the exception text.

    K108-19: Any other exception from the policy fails only that topic (-1), is logged, and the broker lives on.
    """
    async with serving({CREATE_KEY: either, "policy.timeout.ms": "60000"}) as policies:
        assert await create(policies, topic) == answer
        assert dict(policies.decisions) == {("create.topic", "enforce", action): 1}
        assert await create(policies, "next") == "allowed"


async def test_class_named_by_several_configs_has_a_single_instance_and_thread(rules: Any) -> None:
    """K108-26: it is asked for what the properties say, and tells by the type of the details what it is."""

    dotted = rules.all.replace(":", ".")
    named = {CREATE_KEY: rules.all, ALTER_KEY: dotted, GROW_KEY: rules.all, DELETE_KEY: dotted}
    async with serving(named) as policies:
        await policies.check(CREATE_TOPIC, TopicDetails("a", 1, 1, None, {}))
        await policies.check(ALTER_CONFIG, AlterConfigDetails("TOPIC", "b", {}, {}))
        await policies.check(
            CREATE_PARTITIONS, CreatePartitionsDetails(topic="c", num_partitions=1, new_num_partitions=2)
        )
        await policies.check(DELETE_TOPIC, DeleteTopicDetails(topic="d"))
        calls = rules.module.CALLS
        assert [call[:2] for call in calls] == [
            ("TopicDetails", "a"),
            ("AlterConfigDetails", "b"),
            ("CreatePartitionsDetails", "c"),
            ("DeleteTopicDetails", "d"),
        ]
        assert len({call[2] for call in calls}) == 1
        assert {"klamm-policy-All"} == rules.module.THREADS
    assert len(rules.module.CLOSED) == 1


async def test_class_with_one_method_per_kind_decides_each_kind(rules: Any) -> None:
    """K108-26: One policy config per request type; a class may implement several but every config must be set."""
    async with serving({CREATE_KEY: rules.several, DELETE_KEY: rules.several}) as policies:
        for kind, details, word in (
            (CREATE_TOPIC, TopicDetails("a", 1, 1, None, {}), "create"),
            (DELETE_TOPIC, DeleteTopicDetails(topic="a"), "delete"),
        ):
            with pytest.raises(PolicyViolationError, match=word):
                await policies.check(kind, details)
    with pytest.raises(PolicyLoadError, match="no method validate or validate_alter_config"):
        await Policies.load({CREATE_KEY: rules.several, ALTER_KEY: rules.several})


async def test_audit_mode_counts_and_logs_denial_but_allows(either: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving({CREATE_KEY: either, DELETE_KEY: either, "create.topic.policy.mode": "audit"}) as policies:
        assert [await create(policies, name) for name in ("denied-1", "broken-1", "fine")] == ["allowed"] * 3
        with pytest.raises(PolicyViolationError):
            await policies.check(DELETE_TOPIC, DeleteTopicDetails(topic="denied-2"))
        assert dict(policies.decisions) == {
            ("create.topic", "audit", "deny"): 1,
            ("create.topic", "audit", "fail"): 1,
            ("create.topic", "audit", "allow"): 1,
            ("delete.topic", "enforce", "deny"): 1,
        }
    audited = [record.getMessage() for record in caplog.records if "audit only" in record.getMessage()]
    assert audited[0] == (
        "Create topic policy, audit only: would deny 'denied-1', asked by User:anna (client tool): denied-1: not here"
    )


async def test_override_is_counted_and_logged_when_its_result_is_decided(
    either: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving({CREATE_KEY: either}) as policies:
        topic = TopicDetails("override-1", 1, 1, None, {})
        override = await policies.check(CREATE_TOPIC, topic)
        assert override is not None
        assert (override.reason, override.num_partitions) == ("override-1: six", 6)
        assert not policies.decisions
        assert await policies.check(CREATE_TOPIC, TopicDetails("fine", 6, 1, None, {}), override) is None
        with pytest.raises(PolicyViolationError):
            await policies.check(CREATE_TOPIC, TopicDetails("denied-1", 6, 1, None, {}), override)
        with pytest.raises(PolicyFailedError, match="contradict"):
            await policies.check(CREATE_TOPIC, topic, override)
        policies.follow({"create.topic.policy.mode": "audit"})
        assert await policies.check(CREATE_TOPIC, topic) is None
        assert dict(policies.decisions) == {
            ("create.topic", "enforce", "override"): 1,
            ("create.topic", "enforce", "deny"): 2,
            ("create.topic", "audit", "override"): 1,
        }
        assert policies.latest[-1].reason == "override-1: six"
    lines = [record.getMessage().partition(", asked by")[0] for record in caplog.records if "service" in record.name]
    assert lines == [
        "Create topic policy: overrode 'fine'",
        "Create topic policy: denied 'denied-1'",
        "Create topic policy: denied 'override-1'",
        "Create topic policy, audit only: would override 'override-1'",
    ]


@pytest.mark.parametrize(
    ("topic", "reason"),
    [("strict-1", "strict-1: not six"), ("twice-1", "The policy overrides what it has itself set: two of its rules")],
)
async def test_audit_mode_counts_override_with_denied_result_as_denial(either: str, topic: str, reason: str) -> None:
    async with serving({CREATE_KEY: either, "create.topic.policy.mode": "audit"}) as policies:
        assert await policies.check(CREATE_TOPIC, TopicDetails(topic, 1, 1, None, {})) is None
        assert dict(policies.decisions) == {("create.topic", "audit", "deny"): 1}
        assert str(policies.latest_audited[-1].reason).startswith(reason)


async def test_validate_only_request_is_not_counted(either: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving({CREATE_KEY: either}) as policies:
        for name in ("fine", "denied-1", "override-1", "broken-1"):
            with contextlib.suppress(KafkaApiError):
                await policies.check(CREATE_TOPIC, TopicDetails(name, 1, 1, None, {}, validate_only=True))
        assert not policies.decisions
        assert not policies.latest
    logged = [record.levelname for record in caplog.records if "service" in record.name]
    assert logged == ["ERROR"], "a policy that fails is logged all the same"


@pytest.mark.parametrize(
    ("mode", "log"), [("audit", "policy, audit only: would fail"), ("enforce", "policy: failed on")]
)
async def test_undecided_change_is_counted_and_logged_once(
    mode: str, log: str, either: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving({CREATE_KEY: either, "create.topic.policy.mode": mode}) as policies:
        change = UndecidedChange("'a'", "User:anna", "tool", validate_only=False)
        # when
        denied = [policies.deny_undecided(CREATE_TOPIC, change, "unreadable") for _ in range(3)]
        denied.append(policies.deny_undecided(CREATE_TOPIC, change._replace(validate_only=True), "unreadable"))
        # then
        assert denied == [mode == "enforce"] * 4
        assert policies.decisions == {("create.topic", mode, "fail"): 3}
        assert len(policies.latest_audited) == (3 if mode == "audit" else 0)
    expected = f"Create topic {log} 'a', asked by User:anna (client tool): unreadable"
    assert [record.getMessage() for record in caplog.records] == [expected]


async def test_override_of_unchangeable_request_fails_it(either: str) -> None:
    async with serving({DELETE_KEY: either}) as policies:
        with pytest.raises(PolicyFailedError):
            await policies.check(DELETE_TOPIC, DeleteTopicDetails(topic="override-1"))


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("create.topic.policy.mode", "warn", "String must be one of (case insensitive): ENFORCE, AUDIT"),
        ("policy.timeout.ms", "soon", "Not a number of type INT"),
        ("policy.timeout.ms", "0", "Value must be at least 1"),
    ],
)
def test_invalid_policy_setting_is_rejected(name: str, value: str, fault: str) -> None:
    with pytest.raises(PolicyLoadError) as denied:
        asyncio.run(Policies.load({name: value}))
    assert str(denied.value) == f"Invalid value {value} for configuration {name}: {fault}"


@pytest.mark.process
@pytest.mark.parametrize(
    ("topic", "answer"),
    [
        ("end-1", "UNKNOWN_SERVER_ERROR: None"),
        ("ends-1", "UNKNOWN_SERVER_ERROR: None"),
        ("silent_ends-1", "UNKNOWN_SERVER_ERROR: None"),
        ("words-1", "UNKNOWN_SERVER_ERROR: None"),
        ("encoded-1", "allowed"),
        ("repr-1", "UNKNOWN_SERVER_ERROR: None"),
        ("fork-1", "allowed"),
    ],
)
async def test_policy_that_exits_or_forks_does_not_end_the_broker(either: str, topic: str, answer: str) -> None:
    """K108-19: Any other exception from the policy fails only that topic (-1), is logged, and the broker lives on."""
    async with serving({CREATE_KEY: either}) as policies:
        assert await create(policies, topic) == answer
        assert await create(policies, "next") == "allowed"


class LongestGap:
    """Longest time in seconds between two beats."""

    def __init__(self) -> None:
        self.seconds, self._last = 0.0, time.monotonic()

    def beat(self) -> None:
        now = time.monotonic()
        self.seconds, self._last = max(self.seconds, now - self._last), now


@pytest.mark.parametrize("topic", ["endless-1", "stuck-1", "sleeps-1"])
async def test_policy_that_never_returns_fails_one_topic_without_blocking_the_loop(rules: Any, topic: str) -> None:
    """K108-19, K108-25: another instance, on another thread, answers the next topic."""
    async with serving({CREATE_KEY: rules.all, "policy.timeout.ms": "1500"}) as policies:
        of_loop, of_thread, is_over = LongestGap(), LongestGap(), False

        async def heartbeat() -> None:
            while not is_over:
                await asyncio.sleep(0.005)
                of_loop.beat()

        def heartbeat_in_thread() -> None:
            while not is_over:
                time.sleep(0.005)
                of_thread.beat()

        thread = threading.Thread(target=heartbeat_in_thread)
        thread.start()
        beating = asyncio.create_task(heartbeat())
        try:
            answers = await asyncio.gather(*(create(policies, name) for name in ("first", topic, "second", "third")))
        finally:
            is_over = True
            await beating
            thread.join()
            rules.module.RELEASED.set()
        assert answers[0] == answers[2] == answers[3] == "allowed"
        assert "did not decide within 1500 ms (policy.timeout.ms)" in answers[1]
        # A pause of the whole process, or of the machine, holds up the thread as well.
        assert of_loop.seconds < of_thread.seconds + 1.4, "the event loop waited for the policy"
        assert policies.decisions["create.topic", "enforce", "timeout"] == 1  # type: ignore[index]
        instances = [call[2] for call in rules.module.CALLS]
        assert instances[0] == instances[1] != instances[2] == instances[3]


async def test_endless_policy_call_is_interrupted_and_instance_is_closed(rules: Any) -> None:
    before = policy_threads()
    async with serving({CREATE_KEY: rules.all, "policy.timeout.ms": "1500"}) as policies:
        assert "timeout" in await create(policies, "endless-1")
        assert await create(policies, "next") == "allowed"
        hanging = rules.module.CALLS[0][2]
        wait_until(lambda: [hanging] == rules.module.CLOSED, timeout_s=30, what="the end of its instance")
        wait_until(lambda: len(policy_threads() - before) == 1, timeout_s=30, what="the end of its thread")


async def test_hanging_policy_calls_start_a_bounded_number_of_threads(rules: Any) -> None:
    before = policy_threads()
    async with serving({CREATE_KEY: rules.all, "policy.timeout.ms": "50"}) as policies:
        try:
            answers = [await create(policies, f"stuck-{n}") for n in range(6)]
            assert all(answer.startswith("timeout") for answer in answers)
            # The threads of instances that were not created within 50 ms end when they have begun.
            wait_until(lambda: len(policy_threads() - before) <= 5, timeout_s=30, what="the end of threads")
        finally:
            rules.module.RELEASED.set()


async def test_hanging_policy_creations_start_a_bounded_number_of_threads_and_are_closed(rules: Any) -> None:
    before = policy_threads()
    async with serving({CREATE_KEY: rules.hangs_when_created_again, "policy.timeout.ms": "50"}) as policies:
        policy = rules.module.HangsWhenCreatedAgain
        try:
            # when
            answers = [await create(policies, f"topic-{n}") for n in range(7)]
            # then
            assert all(answer.startswith("timeout") for answer in answers)
            assert len(policy.CREATED) <= 1 + MAX_STRAGGLERS
            assert len(policy_threads() - before) <= 1 + MAX_STRAGGLERS
            # when
            policy.RESUMED.set()
            # then
            wait_until(lambda: len(policy_threads() - before) == 1, timeout_s=30, what="the end of threads")
            assert set(policy.CREATED[1:]) <= set(rules.module.CLOSED)
        finally:
            policy.RESUMED.set()
            rules.module.RELEASED.set()


@pytest.mark.parametrize(
    ("name", "more", "fault"),
    [
        ("rejects_its_kind", {}, "not asked"),
        ("all", {"policy.reload.interval.ms": "often"}, "Invalid value often"),
    ],
)
async def test_unusable_policy_is_closed(name: str, more: dict[str, str], fault: str, rules: Any) -> None:
    with pytest.raises(PolicyLoadError, match=fault):
        await PolicyRuntime.load({CREATE_KEY: getattr(rules, name), **more})
    wait_until(lambda: len(rules.module.CLOSED) == 1, timeout_s=30, what="the policy to be closed")


async def test_canceled_request_does_not_overlap_policy_calls(rules: Any) -> None:
    """K108-25: Calls are not concurrent."""
    async with serving({CREATE_KEY: rules.all}) as policies:
        asking = asyncio.create_task(create(policies, "paused-1"))
        while not rules.module.CALLS:  # noqa: ASYNC110 -- the policy tells nobody
            await asyncio.sleep(0)
        asking.cancel()
        following = asyncio.create_task(create(policies, "next"))
        await asyncio.sleep(0.02)  # an overlapping call would be made now
        rules.module.RELEASED.set()
        assert await following == "allowed"
        assert [call[:2] for call in rules.module.CALLS] == [
            ("TopicDetails", "paused-1"),
            ("end", "paused-1"),
            ("TopicDetails", "next"),
        ]


async def test_policy_turn_is_held_until_decision_is_applied(rules: Any, either: str) -> None:
    """K108-07: Topics are processed one after the other in request order; per topic: hard-coded checks, then policy,
    then creation.

    K108-25: Calls are not concurrent.
    """
    async with serving({CREATE_KEY: either}) as policies:
        applied: list[str] = []

        async def ask(topic: str) -> None:
            async with policies.turn(CREATE_TOPIC):
                await policies.check(CREATE_TOPIC, TopicDetails(topic, 1, 1, None, {}))
                applied.append(topic)

        names = ["slow-1", "quick-1", "slow-2", "quick-2"]
        await asyncio.gather(*map(ask, names))
        assert applied == names
        assert [call[1] for call in rules.module.CALLS] == names


async def test_failure_in_policy_close_does_not_block_shutdown(rules: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with serving({CREATE_KEY: rules.fails_to_close}) as policies:
        assert await create(policies, "fine") == "allowed"
    assert any("failed to close" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("is_reloaded", [False, True])
async def test_policy_that_hangs_in_close_is_reported(
    is_reloaded: bool, rules: Any, caplog: pytest.LogCaptureFixture
) -> None:
    properties = {CREATE_KEY: rules.hangs_in_close, "policy.timeout.ms": "50"}
    guard = await PolicyGuard.load(read_specs(properties)[0], properties=properties, timeout_s=0.05)
    try:
        if is_reloaded:
            await guard.swap(await make_instance(guard.spec, properties))
            async with asyncio.timeout(60):
                while not caplog.records:  # noqa: ASYNC110  # a log record is no event
                    await asyncio.sleep(0.01)
        else:
            await guard.close()
        assert "did not close within 50 ms (policy.timeout.ms)" in caplog.text
    finally:
        rules.module.RELEASED.set()
        await guard.close()


async def test_fast_policy_decides_without_suspending_the_event_loop(
    rules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that are decided together share one commit; and a call is cheap."""
    monkeypatch.setattr("klamm.policy_runtime.worker.PATIENCE_S", 30.0)  # a busy machine may need more than usual
    async with serving({CREATE_KEY: rules.all}) as policies:
        with pytest.raises(StopIteration) as decided:
            create(policies, "quick").send(None)
    assert decided.value.value == "allowed"


@pytest.mark.parametrize("name", ["at_once", "configured"])
async def test_only_computes_policy_runs_on_the_event_loop(rules: Any, name: str) -> None:
    """It is made and closed on its thread all the same."""
    policy = getattr(rules, name)
    async with serving({CREATE_KEY: policy}) as policies:
        coroutine = create(policies, "quick")
        with pytest.raises(StopIteration, match="allowed"):
            coroutine.send(None)
        assert threading.current_thread().name in rules.module.THREADS
    assert {threading.current_thread().name, f"klamm-policy-{policy.partition(':')[2]}"} == rules.module.THREADS
    assert len(rules.module.CLOSED) == 1


async def test_slow_only_computes_policy_moves_to_its_own_thread(rules: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with serving({CREATE_KEY: rules.at_once}) as policies:
        assert await create(policies, "slow-1") == "allowed"
        threads, instance = rules.module.THREADS, rules.module.CALLS[0][2]
        threads.clear()
        assert [await create(policies, name) for name in ("slow-2", "quick")] == ["allowed"] * 2
        assert {"klamm-policy-AllAtOnce"} == threads
        assert {call[2] for call in rules.module.CALLS} == {instance}
    assert sum("held the event loop" in record.getMessage() for record in caplog.records) == 1


async def test_only_computes_policy_past_its_timeout_fails_topic_and_is_recreated(rules: Any) -> None:
    async with serving({CREATE_KEY: rules.at_once, "policy.timeout.ms": "1000"}) as policies:
        assert "did not decide within 1000 ms" in await create(policies, "tardy-1")
        assert await create(policies, "next") == "allowed"
        first, second = (call[2] for call in rules.module.CALLS)
        assert first != second
        # On its own thread, which nobody waits for.
        wait_until(lambda: first in rules.module.CLOSED, timeout_s=30, what="the first instance to be closed")


def test_error_codes_of_failures_are_not_retriable() -> None:
    assert PolicyTimeoutError.error_code is PolicyFailedError.error_code is ErrorCode.UNKNOWN_SERVER_ERROR


async def test_flow_check_does_not_wait_for_pending_creation(rules: Any) -> None:
    properties = {CREATE_KEY: rules.at_once, "flow.policy.class.name": rules.at_once}
    policies = await Policies.load(properties, GATEWAY_KINDS, in_threads=True)
    question = ProduceDetails(topic="denied-1", acks=1, is_idempotent=False)
    async with asyncio.timeout(20):
        async with policies.turn(CREATE_TOPIC):
            learned = await policies.learn(FLOW, {question: None})
            assert await policies.check(CREATE_TOPIC, TopicDetails("next", 1, 1, None, {})) is None
        assert isinstance(learned[question].error, PolicyViolationError)
        assert policies.cached_outcome(FLOW, question) == learned[question]
        # calls do not overlap, and a new version of the policy forgets the decisions
        tardy = ProduceDetails(topic="tardy-1", acks=1, is_idempotent=False)
        learning = asyncio.create_task(policies.learn(FLOW, {tardy: None}))
        await asyncio.sleep(0)
        assert await create(policies, "next") == "allowed"
        assert learning.done()
        (guard,) = policies.guards
        await guard.swap(await make_instance(guard.spec, properties))
        assert policies.cached_outcome(FLOW, question) is None
    await policies.close()
