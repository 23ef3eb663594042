"""Random rules files: ``klamm policy test``, validate_only, audit mode and enforce mode decide alike.

Each file is loaded by a broker and by a gateway in front of a broker without policies. Both must answer alike.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pytest

import klamm
from klamm.admin import AdminClient, ConfigResource, ConfigSource, ResourceType
from klamm.cli.policy import ExistingTopic, judge
from klamm.policy.answers import PolicyOverride
from klamm.policy.details import CreatePartitionsDetails, TopicDetails
from klamm.policy.kinds import ALTER_CONFIG, CREATE_PARTITIONS, CREATE_TOPIC
from klamm.policy.rules import RulesPolicy
from klamm.policy.testing import a_config_change, make_policy
from klamm.policy_runtime import Policies
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from klamm.protocol.types import ConfigOperation
from tests.support.processes import wait_until
from tests.support.wire import WireClient, alter_topic_request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from klamm.policy.details import Details
    from klamm.policy.kinds import PolicyKind
    from klamm.protocol.schema import Message

FILES: Final = 300 if os.environ.get("KLAMM_SOAK") else 4
KINDS: Final = ("create.topic", "alter.config", "create.partitions", "delete.topic")
USER: Final = "User:ANONYMOUS"
VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "retention.ms": ("1000", "86400000", "604800000", "-1"),
    "flush.ms": ("5", "1000", "60000"),
    "cleanup.policy": ("delete", "compact", "compact,delete"),
    "min.cleanable.dirty.ratio": ("0.1", "0.50", "0.9"),
    "min.insync.replicas": ("1", "2"),
}
LIMITS: Final[Mapping[str, tuple[dict[str, Any], ...]]] = {
    "retention.ms": ({"max": "1d"}, {"min": 2000}, {"one_of": [-1, "7d"]}, {"required": True, "max": "7d"}),
    "flush.ms": ({"max": "1s"}, {"min": 10, "max": 2000}, {"forbidden": True}),
    "cleanup.policy": ({"one_of": ["delete"]}, {"one_of": ["compact", "delete"]}, {"one_of": ["compact"]}),
    "min.cleanable.dirty.ratio": ({"max": 0.5}, {"min": 0.2}, {"one_of": [0.5]}),
    "min.insync.replicas": ({"min": 2}, {"required": True, "max": 1}),
}

Verdict: TypeAlias = "tuple[int, str | None]"
"""Error code and message of an entry of a response, or the reason of an override."""


def random_rule(random: Random, name: str) -> dict[str, Any]:
    """Return a valid rule on topics that begin with ``e``."""
    overrides = random.random() < 0.4
    rule: dict[str, Any] = {"name": name, "topics": random.choice(["e.*", "e.*x", "e.*[.]y.*"])}
    if overrides:
        rule["effect"] = "override"
    elif random.random() < 0.2:
        rule |= random.choice([{"naming": ".*[xz]"}, {"only_configs": ["flush.ms", "retention.ms"]}])
    if not overrides and random.random() < 0.2:
        rule["spare_replicas"] = random.choice([{"min": 0}, {"min": 1}, {"min": 1, "max": 1}])
    for key in ("partitions", "replication_factor"):
        if random.random() < 0.3:
            rule[key] = random.choice([{"min": 2}, {"max": 2}, {"min": 2, "max": 3}])
    allowed = rule.get("only_configs", list(LIMITS))  # a rule cannot require what it does not allow
    names = random.sample(allowed, random.randint(0 if len(rule) > 3 else 1, min(3, len(allowed))))
    if names:
        rule["configs"] = {each: random.choice(LIMITS[each]) for each in names}
    if random.random() < 0.2:
        rule |= random.choice([{"principals": [USER]}, {"except_principals": [USER]}, {"principals": ["User:bob"]}])
    return rule


class Rig:
    """A broker with rules, and a gateway with the same rules in front of a broker without them."""

    def __init__(self, rules: Path, broker: klamm.Broker, gateway: klamm.Gateway, admin: AdminClient) -> None:
        self.rules, self.gateway, self.admin = rules, gateway, admin
        host, _, port = gateway.bootstrap_servers.rpartition(":")
        addresses = (broker.bootstrap_servers.partition(",")[0], f"{host}:{int(port) + 1}")
        self.clients = tuple(WireClient(address) for address in addresses)

    def load(self, rules: list[dict[str, Any]], number: int) -> None:
        """Let both load the rules; return when both use them."""
        sentinel = {"name": f"file {number}", "topics": "sentinel", "naming": "none"}
        self.rules.write_text(json.dumps({"rules": [sentinel, *rules]}))
        resource = ConfigResource(ResourceType.BROKER, "")
        change = klamm.admin.AlterConfigOp(
            klamm.admin.ConfigEntry("policy.rules.file", str(self.rules)), klamm.admin.OpType.SET
        )
        self.admin.incremental_alter_configs({resource: [change]}).all().result()
        os.kill(self.gateway.pid or 0, signal.SIGHUP)
        wait_until(
            lambda: all(f"file {number}'" in str(each) for each in self.create("sentinel", 1, 1, {}, dry=True)),
            timeout_s=60,
            what="the rules to be loaded",
        )

    def ask(self, request: Message, response: type[Any], version: int) -> list[Verdict]:
        """Return the verdicts of the broker and the gateway."""
        answers = [client.ask(request, response, version) for client in self.clients]
        entries = [getattr(answer, response.FIELDS[-1].name)[0] for answer in answers]
        overrides = [PolicyOverride.of(entry.error_message) for entry in entries]
        return [
            (entry.error_code, override.reason if override and not entry.error_code else entry.error_message)
            for entry, override in zip(entries, overrides, strict=True)
        ]

    def create(self, name: str, count: int, factor: int, configs: Mapping[str, str], *, dry: bool) -> list[Verdict]:
        pairs = [CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=count, replication_factor=factor, assignments=[], configs=pairs
        )
        return self.ask(CreateTopicsRequest(topics=[topic], validate_only=dry), CreateTopicsResponse, 7)

    def described(self, name: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the configs that a topic sets, and its values of all others."""
        entries = self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).all().result()
        own: dict[str, str] = {}
        defaults: dict[str, str] = {}
        for entry in next(iter(entries.values())).values():
            if entry.value is not None:
                is_own = entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
                (own if is_own else defaults)[entry.name] = entry.value
        return own, defaults


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text("rules: []")
    config = {f"{kind}.policy.class.name": "klamm.policy.rules:RulesPolicy" for kind in KINDS}
    config |= {"policy.rules.file": str(rules), "policy.reload.interval.ms": "0"}
    with (
        klamm.Broker(brokers=3, config=config) as broker,
        klamm.Broker(brokers=3) as upstream,
        klamm.Gateway(upstream.bootstrap_servers, config=config) as gateway,
        AdminClient(broker.bootstrap_servers) as admin,
    ):
        yield Rig(rules, broker, gateway, admin)


def verdict_of(rules: Path, topic: ExistingTopic) -> tuple[str, str | None]:
    """Return verdict and message of ``klamm policy test`` about the first violated rule, without its line."""
    first, *_ = judge(make_policy(RulesPolicy, policy_rules_file=str(rules)), "create", [topic], principal=USER)
    return first.verdict, first.message and re.sub(r" \(line \d+\)$", "", first.message)


def audited(rules: Path, kind: PolicyKind, details: Details) -> tuple[str, str | None]:
    """Return action and reason that audit mode counts."""
    properties = {f"{name}.policy.class.name": "klamm.policy.rules:RulesPolicy" for name in KINDS}
    properties |= {"policy.rules.file": str(rules), f"{kind.stem}.policy.mode": "audit"}

    async def check() -> tuple[str, str | None]:
        policies = await Policies.load(properties)
        await policies.check(kind, details)
        await policies.close()
        return policies.latest[-1].decided.action, policies.latest[-1].reason

    return asyncio.run(check())


def expected(action: str, verdict: Verdict) -> bool:
    """Return whether the action of a dry run predicts the response to the real request."""
    code, message = verdict
    return action == ("deny" if code else "allow" if message is None else "override")


def test_dry_and_real_runs_of_random_rules_agree(rig: Rig) -> None:
    _, defaults = rig.described(_existing(rig))
    for number in range(FILES):
        random = Random(number)
        rig.load([random_rule(random, f"rule {index}") for index in range(random.randint(1, 5))], number)
        for suffix in ("x", "y.x", "y.z"):
            name = f"e{number}.{suffix}"
            count, factor = random.randint(1, 4), random.randint(1, 3)
            configs = {key: random.choice(VALUES[key]) for key in random.sample(list(VALUES), random.randint(0, 3))}
            place = f"{number}: {name} {count} {factor} {configs}\n{rig.rules.read_text()}"
            trials, real = (rig.create(name, count, factor, configs, dry=dry) for dry in (True, False))
            assert trials == real, place
            assert real[0] == real[1], place
            topic = ExistingTopic(
                name=name, num_partitions=count, replication_factor=factor, configs=configs, defaults=defaults
            )
            verdict, message = verdict_of(rig.rules, topic)
            assert ({"allowed": "allow", "overridden": "override"}.get(verdict, "deny"), message) == audited(
                rig.rules, CREATE_TOPIC, TopicDetails(name, count, factor, None, configs, USER, defaults=defaults)
            ), place
            assert expected({"allowed": "allow", "overridden": "override"}.get(verdict, "deny"), real[0]), place
            assert message == real[0][1], place
            if real[0][0] == 0:
                _alter(rig, random, name, defaults, place)
                _grow(rig, random, name, place)


def _grow(rig: Rig, random: Random, name: str, place: str) -> None:
    """Add partitions to a topic that both have in the same state."""
    partitions = rig.admin.describe_topics([name]).all().result()[name].partitions
    now, then = len(partitions), len(partitions) + random.randint(1, 3)
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=then, assignments=None)
    trials, real = (
        rig.ask(CreatePartitionsRequest(topics=[topic], validate_only=dry), CreatePartitionsResponse, 3)
        for dry in (True, False)
    )
    assert trials == real, place
    assert real[0] == real[1], place
    details = CreatePartitionsDetails(
        topic=name,
        num_partitions=now,
        new_num_partitions=then,
        replication_factor=len(partitions[0].replicas),
        principal=USER,
    )
    action, reason = audited(rig.rules, CREATE_PARTITIONS, details)
    assert expected(action, real[0]), place
    assert reason == real[0][1], place


def _existing(rig: Rig) -> str:
    assert [code for code, _ in rig.create("described", 1, 1, {}, dry=False)] == [0, 0]
    return "described"


def _alter(rig: Rig, random: Random, name: str, defaults: Mapping[str, str], place: str) -> None:
    """Alter configs of a topic that both have in the same state, both by IncrementalAlterConfigs and AlterConfigs."""
    before, _ = rig.described(name)
    keys = random.sample(list(VALUES), random.randint(1, 3))
    sets = {key: random.choice(VALUES[key]) for key in keys[1:]}
    removes = [key for key in keys[:1] if key in before]
    changes: list[tuple[str, int, str | None]] = [(key, ConfigOperation.SET, value) for key, value in sets.items()]
    changes += [(key, ConfigOperation.DELETE, None) for key in removes]
    details = a_config_change(name, sets=sets, removes=removes, before=before, defaults=defaults, principal=USER)
    differing = {key: value for key, value in details.configs.items() if before.get(key) != value}
    factor = len(rig.admin.describe_topics([name]).all().result()[name].partitions[0].replicas)
    details = replace(details, configs=differing, replication_factor=factor)
    request = alter_topic_request(name, changes)
    dry = alter_topic_request(name, changes)
    dry.validate_only = True
    trials, real = (rig.ask(each, IncrementalAlterConfigsResponse, 1) for each in (dry, request))
    assert trials == real, place
    assert real[0] == real[1], place
    action, reason = audited(rig.rules, ALTER_CONFIG, details)
    assert expected(action, real[0]), f"{changes} {before} {place}"
    assert reason == real[0][1], place
    legacy = AlterConfigsRequest.AlterConfigsResource(
        resource_type=ResourceType.TOPIC,
        resource_name=name,
        configs=[AlterConfigsRequest.AlterableConfig(name=key, value=value) for key, value in sets.items()],
    )
    answers = [
        rig.ask(AlterConfigsRequest(resources=[legacy], validate_only=dry), AlterConfigsResponse, 2)
        for dry in (True, False)
    ]
    assert answers[0] == answers[1], place
    assert answers[1][0] == answers[1][1], place
