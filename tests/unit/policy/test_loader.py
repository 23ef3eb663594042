"""Loading of the policy that the properties name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from klamm.configs.definitions import CREATE_TOPICS_POLICY
from klamm.policy import PolicyLoadError
from klamm.policy.kinds import CREATE_TOPIC, GATEWAY_KINDS, read_specs
from klamm.policy.loader import FreshModules, load_policy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CREATE_TOPIC_POLICY = "create.topic.policy.class.name"

MODULE = """
from klamm.policy import CreateTopicPolicy

class Allow(CreateTopicPolicy):
    configured = None

    def configure(self, configs):
        self.configured = configs

    def validate(self, topic_details):
        pass

class Plain:
    def validate(self, topic_details):
        pass

class NoPolicy:
    pass

class Closed:
    closed = []

    def close(self):
        self.closed.append(type(self).__name__)

class BadSetup(Closed, Plain):
    def configure(self, configs):
        raise ValueError("no such directory")

class FailsToClose(BadSetup):
    def close(self):
        raise ValueError("not open")

class NeedsArguments(Plain):
    def __init__(self, argument):
        pass

class Unfinished(CreateTopicPolicy):
    pass

class NeverRuns:
    async def validate(self, topic_details):
        raise ValueError("nobody waits for this")

class NeverRunsEither:
    def validate(self, topic_details):
        raise ValueError("nobody goes through this")
        yield

class TakesNothing(Closed):
    def validate(self):
        pass

class TakesTwo:
    def validate_create_topic(self, topic, partitions):
        pass

class TakesMore:
    def validate(self, details, *, strict=True, **rest):
        pass

class ComputesNothing(Closed, Plain):
    pass

class Answers:
    def validate(self, topic_details):
        return topic_details != "bad"

not_a_class = 1
"""


@pytest.fixture(autouse=True)
def module_of_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "house_rules.py").write_text(MODULE)
    (tmp_path / "broken_rules.py").write_text("raise RuntimeError('boom')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with monkeypatch.context():
        yield
    sys.modules.pop("house_rules", None)


def load_create_topic_policy(properties: dict[str, str], fresh: FreshModules | None = None) -> object | None:
    specs = read_specs(properties)
    return load_policy(specs[0], properties, fresh=fresh).policy if specs else None


def test_without_the_config_there_is_no_policy() -> None:
    """K108-01: With the policy class config set, the broker makes one instance of it and uses it for create-topic
    requests; without it nothing changes.
    """
    assert load_create_topic_policy({}) is None
    assert load_create_topic_policy({CREATE_TOPIC_POLICY: ""}) is None


@pytest.mark.parametrize("key", [CREATE_TOPIC_POLICY, CREATE_TOPICS_POLICY])
@pytest.mark.parametrize(
    "name", ["house_rules:Allow", "house_rules.Allow", " house_rules.Plain ", "house_rules:TakesMore"]
)
def test_both_configs_accept_colon_and_dot_class_names(key: str, name: str) -> None:
    """K108-02: Config name.

    K108-12: The code must be importable by the broker ("in the classpath").
    """
    assert load_create_topic_policy({key: name}) is not None


def test_both_configs_must_name_the_same_policy() -> None:
    """K108-02: Config name."""
    assert load_create_topic_policy(
        {CREATE_TOPIC_POLICY: "house_rules:Allow", CREATE_TOPICS_POLICY: "house_rules:Allow"}
    )
    with pytest.raises(PolicyLoadError, match="different policies") as denied:
        load_create_topic_policy({CREATE_TOPIC_POLICY: "house_rules:Allow", CREATE_TOPICS_POLICY: "house_rules:Plain"})
    assert CREATE_TOPIC_POLICY in str(denied.value)
    assert CREATE_TOPICS_POLICY in str(denied.value)


def test_policy_is_configured_with_broker_properties() -> None:
    """K108-14: configure(broker configs) is called once before the first validate; close() at shutdown."""
    properties = {CREATE_TOPIC_POLICY: "house_rules:Allow", "max.partitions": "3"}
    policy = load_create_topic_policy(properties)
    assert getattr(policy, "configured", None) == properties


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere.at:All", "cannot import nowhere.at"),
        ("broken_rules:Any", "RuntimeError: boom"),
        ("house_rules:Missing", "has no class Missing"),
        ("house_rules:not_a_class", "has no class not_a_class"),
        ("house_rules:NoPolicy", "no method validate"),
        ("house_rules:NeverRuns", "validate is an async function"),
        ("house_rules:NeverRunsEither", "validate is a generator"),
        ("house_rules:TakesNothing", "validate must take one argument, the details of the request (too many"),
        ("house_rules:TakesTwo", "validate_create_topic must take one argument, the details of the request (missing"),
        ("house_rules:BadSetup", "ValueError: no such directory"),
        ("house_rules:NeedsArguments", "cannot create or configure the policy"),
        ("house_rules:Unfinished", "cannot create or configure the policy"),
        ("house_rules", "expected module:Class"),
        (":x", "expected module:Class"),
    ],
)
def test_policy_load_failure_names_key_and_reason(name: str, reason: str) -> None:
    """K108-13: the error names the key."""
    with pytest.raises(PolicyLoadError) as denied:
        load_create_topic_policy({CREATE_TOPIC_POLICY: name})
    assert reason in str(denied.value)
    assert str(denied.value).startswith(f"{CREATE_TOPIC_POLICY}={name}")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (CREATE_TOPIC_POLICY, "BadSetup"),
        (CREATE_TOPIC_POLICY, "TakesNothing"),
        ("flow.policy.class.name", "ComputesNothing"),
    ],
)
def test_unusable_policy_is_closed(key: str, name: str) -> None:
    specs = read_specs({key: f"house_rules:{name}"}, GATEWAY_KINDS)
    with pytest.raises(PolicyLoadError):
        load_policy(specs[0], {})
    assert sys.modules["house_rules"].Closed.closed == [name]


def test_unusable_policy_reports_failed_close() -> None:
    warnings: list[str] = []
    (spec,) = read_specs({CREATE_TOPIC_POLICY: "house_rules:FailsToClose"})
    with pytest.raises(PolicyLoadError, match="no such directory"):
        load_policy(spec, {}, advise=warnings.append)
    assert [warning.partition(": ")[2] for warning in warnings] == ["the policy failed to close: ValueError: not open"]


def test_policy_that_returns_a_value_is_warned_about_once() -> None:
    (spec,) = read_specs({CREATE_TOPIC_POLICY: "house_rules:Answers"})
    warnings: list[str] = []
    ask = load_policy(spec, {}, advise=warnings.append).questions[CREATE_TOPIC]
    assert [ask("good"), ask("good")] == [None, None]
    assert warnings == [
        f"{CREATE_TOPIC_POLICY}=house_rules:Answers: the policy returned True, which allows"
        " the request; to deny it, raise PolicyViolationError"
    ]


def test_changed_module_loads_beside_the_current_one(tmp_path: Path) -> None:
    # given
    properties = {CREATE_TOPIC_POLICY: "house_rules:Allow"}
    old = load_create_topic_policy(properties)
    (tmp_path / "house_rules.py").write_text(MODULE.replace("configured = None", "configured = 'v2'"))
    # when
    new = load_create_topic_policy(properties, FreshModules())
    # then
    assert type(old) is not type(new)
    assert type(old).__dict__["configured"] is None
    assert type(new).__dict__["configured"] == "v2"
    assert sys.modules["house_rules"].Allow is type(new)


def test_failed_module_reload_is_undone(tmp_path: Path) -> None:
    # given
    properties = {CREATE_TOPIC_POLICY: "house_rules:Allow"}
    old = load_create_topic_policy(properties)
    (tmp_path / "house_rules.py").write_text(MODULE + "\nraise RuntimeError('half-way')")
    fresh = FreshModules()
    # when
    with pytest.raises(PolicyLoadError, match="half-way"):
        load_create_topic_policy(properties, fresh)
    fresh.undo()
    # then
    assert sys.modules["house_rules"].Allow is type(old)


def test_configs_of_rejected_alternatives_are_ignored() -> None:
    """K108-26, K108-27: what the proposal rejected is not there."""
    rejected = {
        "admin.policy.class.name": "house:Rules",
        "topic.policy.class.name": "house:Rules",
        "max.partitions.per.topic": "1",
        "max.replication.factor": "1",
    }
    assert read_specs(rejected) == ()
    (spec,) = read_specs({**rejected, "create.topic.policy.class.name": "house:Rules"})
    assert [kind.stem for kind in spec.keys] == ["create.topic"], "every kind has a config of its own"
