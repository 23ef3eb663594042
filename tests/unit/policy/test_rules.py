"""The policy that a file configures."""

from __future__ import annotations

import os
import re
import textwrap
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.policy import (
    AlterConfigDetails,
    ApiDetails,
    ClientDetails,
    GroupDetails,
    Override,
    PolicyLoadError,
    PolicyViolationError,
    ProduceDetails,
    Throttle,
)
from klamm.policy.kinds import GATEWAY_KINDS, read_specs
from klamm.policy.loader import load_policy
from klamm.policy.rule import RuleFileError
from klamm.policy.rule_file import parse_rules
from klamm.policy.rules import RulesPolicy
from klamm.policy.testing import (
    a_config_change,
    a_deletion,
    a_topic,
    assert_allowed,
    assert_denied,
    make_policy,
    more_partitions,
)

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.policy.answers import Answer
    from klamm.policy.details import Details

RULES = """
    rules:
      - name: team names
        naming: "(orders|billing)[.][a-z0-9.-]+"
        except_principals: ["User:admin.*"]
      - name: sizes
        topics: "orders[.].*"
        partitions: {min: 3, max: 48}
        replication_factor: {min: 2}
        configs:
          retention.ms: {required: true, min: 1000, max: 604800000}
          cleanup.policy: {one_of: [delete, compact]}
          unclean.leader.election.enable: {forbidden: true}
      - name: books
        topics: "billing[.].*"
        deletion: forbidden
        remedy: ask finance
      - name: interns
        principals: ["User:intern-.*"]
        actions: [create]
        partitions: {max: 1}
"""
WEEK = {"retention.ms": "604800000"}


def policy_of(rules: str) -> RulesPolicy:
    return RulesPolicy(parse_rules(textwrap.dedent(rules), source="rules.yaml"))


@pytest.fixture
def policy(tmp_path: Path) -> RulesPolicy:
    path = tmp_path / "rules.yaml"
    path.write_text(textwrap.dedent(RULES))
    return make_policy(RulesPolicy, policy_rules_file=str(path))  # type: ignore[no-any-return]


def an_order(num_partitions: int = 3, **configs: str) -> Details:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return a_topic("orders.eu", num_partitions=num_partitions, replication_factor=2, configs={**WEEK, **named})


@pytest.mark.parametrize(
    "details",
    [
        an_order(),
        an_order(48, cleanup_policy="compact, delete"),
        a_topic("billing.x", num_partitions=500),
        a_topic("anything", principal="User:admin-2"),
        a_topic("orders.eu", assignments={0: [1, 2], 1: [2, 3], 2: [3, 1]}, configs=WEEK),
        a_config_change("orders.eu", sets={"flush.ms": "5"}, before=WEEK),
        a_config_change("orders.eu", sets={"retention.ms": "1000"}),
        a_config_change("orders.eu", sets={"flush.ms": "1"}, before={**WEEK, "unclean.leader.election.enable": "true"}),
        a_config_change("", resource_type="BROKER", removes=["retention.ms"]),
        more_partitions("orders.eu", now=3, then=48),
        more_partitions("other", now=3, then=4800, principal="User:intern-1"),
        a_deletion("orders.eu"),
    ],
)
def test_request_within_rules_is_allowed(policy: RulesPolicy, details: Details) -> None:
    assert_allowed(policy, details)


@pytest.mark.parametrize(
    ("details", "message"),
    [
        (
            a_topic("Orders"),
            "Rule 'team names': name=Orders of topic Orders does not match (orders|billing)[.][a-z0-9.-]+;"
            " choose a name that matches.",
        ),
        (
            an_order(2),
            "Rule 'sizes': partitions=2 of topic orders.eu is below the minimum 3; use 3 or more.",
        ),
        (
            an_order(49),
            "Rule 'sizes': partitions=49 of topic orders.eu is above the maximum 48; use 48 or less.",
        ),
        (
            a_topic("orders.eu", assignments={0: [1, 2], 1: [2], 2: [3, 1]}, configs=WEEK),
            "Rule 'sizes': replication factor=1 of topic orders.eu is below the minimum 2; use 2 or more.",
        ),
        (
            a_topic("orders.eu", num_partitions=3, replication_factor=2),
            "Rule 'sizes': retention.ms=(not set) of topic orders.eu is required;"
            " set retention.ms to at least 1000 and at most 604800000.",
        ),
        (
            an_order(retention_ms="-1"),
            "Rule 'sizes': retention.ms=-1 of topic orders.eu is above the maximum 604800000 (7 days);"
            " use 604800000 or less.",
        ),
        (
            an_order(cleanup_policy="delete,shred"),
            "Rule 'sizes': cleanup.policy=delete,shred of topic orders.eu is not one of delete, compact;"
            " choose from delete, compact.",
        ),
        (
            an_order(unclean_leader_election_enable="true"),
            "Rule 'sizes': unclean.leader.election.enable=true of topic orders.eu must not be set;"
            " leave unclean.leader.election.enable out.",
        ),
        (
            a_config_change("orders.eu", removes=["retention.ms"], before=WEEK),
            "Rule 'sizes': retention.ms=(not set) of topic orders.eu is required;"
            " set retention.ms to at least 1000 and at most 604800000.",
        ),
        (
            a_config_change("orders.eu", sets={"retention.ms": "999"}),
            "Rule 'sizes': retention.ms=999 of topic orders.eu is below the minimum 1000 (1 s); use 1000 or more.",
        ),
        (
            more_partitions("orders.eu", then=49),
            "Rule 'sizes': partitions=49 of topic orders.eu is above the maximum 48; use 48 or less.",
        ),
        (
            a_deletion("billing.x"),
            "Rule 'books': topic billing.x must not be deleted; ask finance.",
        ),
        (
            a_topic("billing.x", num_partitions=2, principal="User:intern-7"),
            "Rule 'interns': partitions=2 of topic billing.x is above the maximum 1; use 1 or less.",
        ),
    ],
)
def test_denial_message_names_rule_key_value_limit_and_remedy(
    policy: RulesPolicy, details: Details, message: str
) -> None:
    denial = assert_denied(policy, details, code="POLICY_VIOLATION")
    assert denial.error_message == message


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("rules: [", "rules.yaml: line 1 column 9: no YAML: "),
        ("rules:\n- name: a\n  partitions: {max: 1}\n  partitions: {max: 9}", "line 4: partitions: is given twice"),
        ("rules: " + "[" * 500, "too many levels"),
        ("rules: [{name: a, partitions: {max: 010}}]", "partitions.max: expected an integer, got '010'"),
        ("rules: [{name: a, principals: alice}]", "rules[0].principals[0]: expected Type:name as in User:alice"),
        ("rules: [{name: a, except_principals: ['User:a', b]}]", "except_principals[1]: expected Type:name"),
        (
            "rules: [{name: a, configs: {retention.mss: {max: 5}}}]",
            "rules[0].configs.retention.mss: not a topic config; did you mean retention.ms?",
        ),
        ("- 1", "rules.yaml: the document: expected a mapping"),
        ("rule: []", "rules.yaml: rule: unknown key, expected one of rules"),
        ("rules: [{name: a, partition: {}}]", "max_impact, effect, delay_ms, remedy; did you mean partitions?"),
        ("rules: 1", "rules.yaml: rules: expected a list, got int"),
        ("rules: [{}]", "rules.yaml: rules[0].name: expected a string, got nothing"),
        (
            "rules: [{name: a, partition: {}}]",
            "rules.yaml: rules[0].partition: unknown key, expected one of name, topics",
        ),
        ("rules: [{name: a, partitions: {max: many}}]", "rules[0].partitions.max: expected an integer, got 'many'"),
        ("rules: [{name: a, partitions: {max: true}}]", "rules[0].partitions.max: expected an integer, got True"),
        ("rules: [{name: a, partitions: {min: 2, max: 1}}]", "rules[0].partitions: min 2 is above max 1"),
        ("rules: [{name: a, naming: '('}]", "rules[0].naming: '(' is not a valid regular expression"),
        (
            "rules: [{name: a, actions: [drop]}]",
            "rules[0].actions: 'drop' is not one of create, alter, partitions, delete",
        ),
        ("rules: [{name: a, deletion: never}]", "rules[0].deletion: expected forbidden or allowed"),
        ("rules: [{name: a, configs: {k: {required: 1}}}]", "rules[0].configs.k.required: expected true or false"),
        ("rules: [{name: a, configs: {k: 5}}]", "rules[0].configs.k: expected a mapping with string keys, got int"),
        (
            "rules: [{name: a, acks: all}, {name: a, acks: all}]",
            "rules[1].name: 'a' is already the name of another rule",
        ),
        ("rules: [{name: a, principals: [[b]]}]", "rules[0].principals[0]: expected a string"),
        ("rules: [{name: a, topics: prod-*}]", "rules[0].topics: 'prod-*' is a regular expression, in which *"),
        ("rules: [{name: a, topics: prod-*}]", "did you mean 'prod-.*'?"),
        ("rules: [{name: a, topics: '*'}]", "rules[0].topics: '*' is a regular expression"),
        ("rules: [{name: a, naming: '*-prod-v*.x'}]", "did you mean '.*-prod-v.*.x'?"),
        ("rules: [{name: a, principals: ['User:b', 'User:*']}]", "principals[1]: 'User:*' is a regular expression"),
        ("rules: [{name: a, principals: ['User:(']}]", "principals[0]: 'User:(' is not a valid regular expression"),
        (
            "rules: [{name: a, only_configs: [flush.ms, retenton.ms]}]",
            "only_configs[1]: not a topic config",
        ),
    ],
)
def test_invalid_rules_file_error_has_its_position(text: str, place: str) -> None:
    with pytest.raises(RuleFileError) as denied:
        parse_rules(text, source="rules.yaml")
    assert place in str(denied.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("secret", "the document: expected a mapping with string keys, got str"),
        ("root:secret:19000:0\nsecret:secret:1", "the document: expected a mapping with string keys, got str"),
        ("[secret]", "the document: expected a mapping with string keys, got list"),
        ("{1: secret}", "the document: expected a mapping with string keys, got dict"),
        ("secret: secret", "rules: expected a list, got nothing"),
        ("secret: 1\nroles: []", "roles: unknown key, expected one of rules"),
        ("rules: secret", "rules: expected a list, got str"),
        ("rules: [secret]", "rules[0]: expected a mapping with string keys, got str"),
        ("secret: 1\nsecret: 2", "line 2: not a rule file: no YAML with the key rules"),
        ("a: *secret", "line 1 column 4: not a rule file: no YAML with the key rules"),
        ("a: !secret x", "line 1 column 4: not a rule file: no YAML with the key rules"),
        ("!!float secret", "no YAML: not a rule file: no YAML with the key rules"),
    ],
)
def test_error_about_another_file_contains_none_of_its_content(text: str, message: str) -> None:
    with pytest.raises(RuleFileError) as error:
        parse_rules(text, source="rules.yaml")
    assert str(error.value).startswith(f"rules.yaml: {message}")
    assert "secret" not in str(error.value)


def test_error_in_rules_written_as_json_names_the_problem() -> None:
    with pytest.raises(RuleFileError, match="line 1 column 11: no YAML: expected"):
        parse_rules('{"rules":}]', source="rules.yaml")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("name: a", "rules[0]: the rule checks nothing; add one of naming, partitions"),
        ("name: a, deletion: allowed, acks: any", "rules[0]: the rule checks nothing"),
        ("name: a, topics: ", "rules[0].topics: has no value; set one, or leave the key out"),
        ("name: a, naming: b, principals: []", "rules[0].principals: the list is empty"),
        ("name: a, partitions: {}", "rules[0].partitions: checks nothing; give it min or max"),
        ("name: a, partitions: {min: 0}", "rules[0].partitions.min: 0 is below 1"),
        ("name: a, configs: {}", "rules[0].configs: checks nothing; name a config"),
        (
            "name: a, configs: {flush.ms: {required: false}}",
            "rules[0].configs.flush.ms: checks nothing; give it required",
        ),
        ("name: a, actions: [delete], naming: b", "rules[0].naming: is checked for the actions create only"),
        ("name: a, actions: [create, delete], naming: b", "rules[0].actions: nothing in the rule is checked for the"),
        ("name: a, topics: b, group_naming: c", "rules[0].topics: group_naming concerns no topics"),
        (
            "name: a, topics: b, broker_configs: {num.io.threads: {max: 8}}",
            "rules[0].topics: broker_configs concerns no",
        ),
        (
            "name: a, actions: [client], client_id_naming: b, effect: throttle, delay_ms: 1",
            "rules[0].actions: effect: throttle does not concern client",
        ),
        (
            "name: a, naming: b, except_principals: ['.*']",
            "rules[0].except_principals: the rule excepts all principals",
        ),
        (
            "name: a, naming: b, principals: ['User:a'], except_principals: ['User:[a-z]']",
            "excepts all principals that",
        ),
    ],
)
def test_rule_that_cannot_match_is_an_error_with_its_place(rule: str, message: str) -> None:
    with pytest.raises(RuleFileError) as error:
        parse_rules(f"rules: [{{{rule}}}]", source="rules.yaml")
    assert message in str(error.value)


def test_rules_file_truncated_at_any_byte_is_rejected_or_has_whole_rules() -> None:
    text = textwrap.dedent(RULES)
    whole = parse_rules(text, source="rules.yaml")
    for end in range(0, len(text), 1 if os.environ.get("KLAMM_SOAK") else 5):
        try:
            rules = parse_rules(text[:end], source="rules.yaml")
        except RuleFileError:
            continue
        assert rules
        assert all(rule.conditions for rule in rules)
        assert [rule.name for rule in rules] == [rule.name for rule in whole[: len(rules)]]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("cleanup.policy: {max: 5}", "cleanup.policy.max: the config is no number but a LIST"),
        ("cleanup.policy: {one_of: [shred]}", "cleanup.policy.one_of: Invalid value shred for configuration"),
        ("cleanup.policy: {one_of: ['compact,delete']}", "one_of: 'compact,delete' is several elements; list each"),
        ("compression.type: {one_of: [lz5]}", "compression.type.one_of: Invalid value lz5"),
        ("preallocate: {one_of: [yep]}", "preallocate.one_of: Invalid value yep"),
        (
            "retention.ms: {max: 0.5}",
            "retention.ms.max: Invalid value 0.5 for configuration retention.ms: Not a number",
        ),
        ("retention.ms: {max: -1}", "retention.ms.max: -1 stands for another value; list it in one_of"),
        ("local.retention.ms: {min: -2}", "local.retention.ms.min: -2 stands for another value"),
        ("min.cleanable.dirty.ratio: {max: 1.5}", "min.cleanable.dirty.ratio.max: Invalid value 1.5"),
        ("min.cleanable.dirty.ratio: {max: .inf}", "min.cleanable.dirty.ratio.max: expected a number, got inf"),
        ("segment.bytes: {max: 1kB}", "segment.bytes.max: Invalid value 1000"),
        ("segment.bytes: {max: 7d}", "segment.bytes.max: expected a number, or one with a unit: B, kB"),
        ("flush.messages: {max: 7d}", "flush.messages.max: expected a number, got '7d'"),
        ("retention.ms: {max: 7d, one_of: [1d, 8d]}", "retention.ms.one_of: 691200000 is outside min and max"),
        ("retention.ms: {max: 7d, one_of: [-1]}", "retention.ms.one_of: -1 is outside min and max of the same rule"),
        ("retention.ms: {max: 7d, value: 8d}", "retention.ms.value: 691200000 breaks one_of, min or max"),
        ("cleanup.policy: {one_of: [delete], value: [delete, compact]}", "value: delete,compact breaks one_of"),
        ("flush.ms: {required: true, forbidden: true, value: 1}", "flush.ms: is both required and forbidden"),
    ],
)
def test_invalid_config_value_in_rule_is_an_error_with_its_place(config: str, message: str) -> None:
    with pytest.raises(RuleFileError) as error:
        parse_rules(f"rules: [{{name: a, effect: override, configs: {{{config}}}}}]", source="rules.yaml")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("config", "value", "is_allowed"),
    [
        ("retention.ms: {max: 7d}", "604800000", True),
        ("retention.ms: {max: 7d}", "604800001", False),
        ("retention.ms: {max: 7d}", "-1", False),
        ("retention.ms: {one_of: [-1, 1d]}", "-1", True),
        ("retention.bytes: {min: 1GiB}", "1073741823", False),
        ("retention.bytes: {min: 1 GiB}", "-1", True),
        ("retention.bytes: {max: 1 GiB}", "-2", False),
        ("retention.bytes: {min: 1 GiB}", "-2", True),
        ("min.cleanable.dirty.ratio: {max: 0.5}", "0.51", False),
        ("min.cleanable.dirty.ratio: {one_of: [0.5]}", "0.50", True),
        ("preallocate: {one_of: [false]}", "FALSE", True),
        ("cleanup.policy: {one_of: [delete, compact]}", "compact, delete", True),
        ("compression.gzip.level: {max: 5}", "-1", False),
        ("compression.gzip.level: {max: 6}", "-1", True),
        ("local.retention.ms: {max: 7d}", "-2", False),
        ("local.retention.ms: {max: 7d}", "-02", False),
        ("local.retention.ms: {max: 7d}", " -2 ", False),
        ("local.retention.ms: {min: 7d}", "-2", True),
        ("remote.copy.lag.ms: {max: 1d}", "-1", False),
    ],
)
def test_limits_apply_to_special_values_and_units(config: str, value: str, is_allowed: bool) -> None:
    policy = policy_of(f"rules: [{{name: a, configs: {{{config}}}}}]")
    key = config.partition(":")[0]
    defaults = {"retention.ms": "-1", "local.retention.ms": "-2"}
    check = assert_allowed if is_allowed else assert_denied
    check(policy, a_topic(configs={key: value}, defaults=defaults))
    check(policy, a_config_change(sets={key: value}, defaults=defaults))


def test_limit_of_local_retention_applies_when_the_retention_changes() -> None:
    policy = RulesPolicy(
        parse_rules("rules: [{name: a, configs: {local.retention.ms: {max: 1d}}}]", source="rules.yaml")
    )
    change = a_config_change(sets={"retention.ms": "86400001"}, defaults={"local.retention.ms": "-2"})
    assert_denied(policy, change, match=r"local\.retention\.ms=-2 \(retention\.ms=86400001\) \(the broker's default\)")


@pytest.mark.parametrize(
    ("details", "message"),
    [
        (a_topic(replication_factor=3, configs={"min.insync.replicas": "2"}), None),
        (a_topic(assignments={0: [1, 2, 3], 1: [2, 3]}, configs={"min.insync.replicas": "2"}), "replication factor 2"),
        (
            a_topic(replication_factor=3, configs={"min.insync.replicas": "3"}),
            "Rule 'spare': spare replicas=0 (replication factor 3, min.insync.replicas 3) of topic orders is below the"
            " minimum 1; use 1 or more.",
        ),
        (a_topic(replication_factor=3, defaults={"min.insync.replicas": "1"}), "1 (the broker's default)) of topic"),
        (a_topic(replication_factor=3), "spare replicas=unknown of topic orders cannot be checked"),
        (replace(a_config_change(sets={"min.insync.replicas": "2"}), replication_factor=3), None),
        (replace(a_config_change(sets={"min.insync.replicas": "3"}), replication_factor=3), "is below the minimum 1"),
        (
            replace(
                a_config_change(
                    removes=["min.insync.replicas"],
                    before={"min.insync.replicas": "2"},
                    defaults={"min.insync.replicas": "1"},
                ),
                replication_factor=3,
            ),
            "is above the maximum 1",
        ),
        (a_config_change(sets={"min.insync.replicas": "2"}), "cannot be checked"),
        (a_config_change(sets={"flush.ms": "2"}), None),
        (
            replace(
                more_partitions(now=2, then=2, new_assignments=[[1, 2]]),
                replication_factor=3,
                configs={"min.insync.replicas": "2"},
            ),
            "replication factor 2",
        ),
        (
            replace(
                more_partitions(now=2, then=2, new_assignments=[[1, 2]]),
                replication_factor=2,  # of the first partition, which is not moved
                configs={"min.insync.replicas": "2"},
            ),
            "replication factor 2",
        ),
        (replace(more_partitions(now=2, then=3, new_assignments=[[1]])), None),
    ],
)
def test_rules_decide_on_replicas_beyond_min_insync_replicas(details: Details, message: str | None) -> None:
    policy = policy_of("rules: [{name: spare, spare_replicas: {min: 1, max: 1}}]")
    if message is None:
        assert_allowed(policy, details)
    else:
        assert_denied(policy, details, match=re.escape(message))


BROKERS = """
    rules:
      - name: brokers
        broker_configs:
          log.cleaner.threads: {min: 2}
          message.max.bytes: {required: true, max: 1MiB}
"""
a_broker_change = partial(a_config_change, resource_type="BROKER", before={"message.max.bytes": "5"})


@pytest.mark.parametrize(
    ("details", "message"),
    [
        (a_broker_change("1", sets={"log.cleaner.threads": "2"}), None),
        (a_broker_change("", sets={"log.cleaner.threads": "1"}), "log.cleaner.threads=1 of all brokers is below"),
        (a_broker_change("1", sets={"message.max.bytes": "2000000"}), "message.max.bytes=2000000 of broker 1 is above"),
        (a_broker_change("1", removes=["message.max.bytes"]), "message.max.bytes=(not set) of broker 1 is required"),
        (
            AlterConfigDetails(
                "BROKER", "", {}, {"message.max.bytes": "5"}, removed=frozenset({"log.cleaner.threads"})
            ),
            "log.cleaner.threads=(not set) of all brokers is required; set log.cleaner.threads to at least 2.",
        ),
        (
            AlterConfigDetails(
                "BROKER",
                "1",
                {"message.max.bytes": "5"},
                {"message.max.bytes": "5"},
                removed=frozenset({"log.cleaner.threads"}),
                defaults={"log.cleaner.threads": "1"},
            ),
            "log.cleaner.threads=1 (the broker's default) of broker 1 is below the minimum 2",
        ),
        (a_config_change("t", sets={"log.cleaner.threads": "1"}, resource_type="GROUP"), None),
    ],
)
def test_rules_decide_on_configs_of_brokers(details: AlterConfigDetails, message: str | None) -> None:
    policy = policy_of(BROKERS)
    if message is None:
        assert_allowed(policy, details)
    else:
        assert_denied(policy, details, match=re.escape(message))


LISTENERS = """
    rules:
      - name: brokers
        effect: {effect}
        broker_configs:
          sasl.enabled.mechanisms: {required: true, one_of: [SCRAM-SHA-512]}
          listener.name.internal.sasl.enabled.mechanisms: {one_of: [PLAIN]}
          connections.max.reauth.ms: {max: 1h}
          num.network.threads: {forbidden: true}
"""
MECHANISMS = "sasl.enabled.mechanisms"


@pytest.mark.parametrize(
    ("name", "value", "violation", "correction"),
    [
        (f"x.{MECHANISMS}", "SCRAM-SHA-512,PLAIN", "=SCRAM-SHA-512,PLAIN of broker 1 is not one of", "SCRAM-SHA-512"),
        ("x.plain.connections.max.reauth.ms", "7200000", "=7200000 of broker 1 is above", "3600000"),
        ("x.num.network.threads", "5", "=5 of broker 1 must not be set", None),
        (f"x.{MECHANISMS}", "SCRAM-SHA-512", None, None),
        (f"x.{MECHANISMS}", None, None, None),
        (f"internal.{MECHANISMS}", "PLAIN", None, None),
        ("x.max.connections", "5", None, None),
    ],
)
def test_limit_of_broker_config_applies_to_listener_prefix(
    name: str, value: str | None, violation: str | None, correction: str | None
) -> None:
    # given
    key = f"listener.name.{name}"
    before = {MECHANISMS: "SCRAM-SHA-512", f"listener.name.x.{MECHANISMS}": "PLAIN"}
    sets, removes = ({}, [key]) if value is None else ({key: value}, [])
    details = a_config_change("1", resource_type="BROKER", before=before, sets=sets, removes=removes)
    denying, overriding = (policy_of(LISTENERS.replace("{effect}", effect)) for effect in ("deny", "override"))
    # when
    answer = overriding.validate_alter_config(details)
    # then
    if violation is None:
        assert answer is None
        assert_allowed(denying, details)
    else:
        assert answer is not None
        assert answer.configs == {key: correction}
        assert_denied(denying, details, match=re.escape(f"{key}{violation}"))


@pytest.mark.parametrize("requirement", ["forbidden: true", "one_of: [a]"])
@pytest.mark.parametrize("effect", ["deny", "override"])
@pytest.mark.parametrize("name", ["listener.name.internal.ssl.keystore.password", "company.token"])
def test_secret_of_a_broker_is_in_no_message(name: str, effect: str, requirement: str) -> None:
    """Messages are logged and shown on the page. As in Kafka, a broker config that is not known may be a secret."""
    rules = f"rules: [{{name: a, effect: {effect}, broker_configs: {{{name}: {{{requirement}}}}}}}]"
    policy = RulesPolicy(parse_rules(rules, source="rules.yaml", is_gateway=True))
    details = a_config_change("1", resource_type="BROKER", sets={name: "pa55word"})
    try:
        answer = policy.validate_alter_config(details)
    except PolicyViolationError as error:
        text = error.error_message or ""
    else:
        assert answer is not None
        text = answer.note
    assert f"{name}=[hidden] of broker 1" in text
    assert "pa55word" not in text


@pytest.mark.parametrize(
    ("kinds", "rule", "message"),
    [
        (["create.topic"], "name: a, naming: b", None),
        (["create.topic"], "name: a, configs: {flush.ms: {max: 1s}}", None),
        (["create.topic"], "name: a, deletion: forbidden", "deletion: no policy is asked about the action delete; set"),
        (["delete.topic"], "name: a, naming: b", "set create.topic.policy.class.name to the class"),
        (
            ["create.topic"],
            "name: a, actions: [create, alter], configs: {flush.ms: {max: 1s}}",
            "rules[0].configs: no policy is asked about the action alter; set alter.config.policy.class.name to",
        ),
        (["client"], "name: a, acks: all", "set flow.policy.class.name, in a gateway, to the class"),
    ],
)
def test_rule_without_a_policy_class_for_its_action_is_an_error(
    tmp_path: Path, kinds: list[str], rule: str, message: str | None
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(f"rules: [{{{rule}}}]")
    properties = {f"{kind}.policy.class.name": "klamm.policy.rules:RulesPolicy" for kind in kinds}
    (spec,) = read_specs(properties, GATEWAY_KINDS)
    loaded = load_policy(spec, {"policy.rules.file": str(path)})
    with nullcontext() if message is None else pytest.raises(PolicyLoadError, match=re.escape(message)):
        loaded.check_kinds(spec)


def test_invalid_rules_file_fails_policy_load(tmp_path: Path) -> None:
    """K108-13: Class cannot be loaded, is no policy, or configure fails -> broker does not start, error names the
    key.
    """
    path = tmp_path / "rules.yaml"
    path.write_text("rules: 1")
    binary = tmp_path / "binary"
    binary.write_bytes(b"key\xfc")
    name = {"create.topic.policy.class.name": "klamm.policy.rules:RulesPolicy"}
    for properties, reason in (
        (name, "policy.rules.file is not set"),
        ({**name, "policy.rules.file": "/no/such"}, "policy.rules.file=/no/such cannot be read: No such file"),
        ({**name, "policy.rules.file": str(binary)}, "/binary cannot be read: the byte at offset 3 is not UTF-8"),
        ({**name, "policy.rules.file": str(path)}, "rules: expected a list, got int"),
    ):
        with pytest.raises(PolicyLoadError) as denied:
            load_policy(read_specs(properties)[0], properties)
        assert reason in str(denied.value)


def test_rules_file_is_watched(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules: []")
    properties = {
        "delete.topic.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "policy.rules.file": str(path),
    }
    assert path in load_policy(read_specs(properties)[0], properties).files


@pytest.mark.parametrize(
    ("pattern", "only_computes"), [("orders[.].*", True), ("(o+)+", True), ("orders(?=x).*", False)]
)
def test_rules_only_compute_unless_a_pattern_needs_re(tmp_path: Path, pattern: str, only_computes: bool) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(f"rules: [{{name: a, partitions: {{max: 3}}}}, {{name: b, naming: '{pattern}'}}]")
    assert make_policy(RulesPolicy, policy_rules_file=str(path)).only_computes == only_computes


@pytest.mark.parametrize("pattern", ["prod-.*", "[a-z*]*", r"\d*x", "(ab)*", "x[-]*", ".*", "a+", "a{0,}"])
def test_pattern_with_regex_quantifier_is_not_a_shell_wildcard(pattern: str) -> None:
    assert parse_rules(f"rules: [{{name: a, naming: '{pattern}'}}]", source="rules.yaml")


def rules_of(text: str, tmp_path: Path) -> RulesPolicy:
    path = tmp_path / "rules.yaml"
    path.write_text(textwrap.dedent(text))
    return make_policy(RulesPolicy, policy_rules_file=str(path))  # type: ignore[no-any-return]


LIMITS = """
    rules:
      - name: limits
        configs:
          retention.ms: {max: 604800000}
          cleanup.policy: {one_of: [compact]}
          min.cleanable.dirty.ratio: {max: 1}
          preallocate: {forbidden: true}
"""
MONTH = {"retention.ms": "2592000000"}
GOOD = {"cleanup.policy": "compact"}


@pytest.mark.parametrize("value", ["2592000000", "-1"])
def test_maximum_applies_to_broker_default_of_unset_config(tmp_path: Path, value: str) -> None:
    policy = rules_of(LIMITS, tmp_path)
    denial = assert_denied(policy, a_topic(configs=GOOD, defaults={"retention.ms": value}))
    assert denial.error_message == (
        f"Rule 'limits': retention.ms={value} (the broker's default) of topic orders"
        " is above the maximum 604800000 (7 days);"
        " set retention.ms to 604800000 or less."
    )
    assert_allowed(policy, a_topic(configs={**GOOD, "retention.ms": "5"}, defaults=MONTH))
    assert_allowed(policy, a_topic(configs=GOOD, defaults={"retention.ms": "5", "min.cleanable.dirty.ratio": "0.5"}))


def test_maximum_applies_to_broker_default_after_config_removal(tmp_path: Path) -> None:
    policy, before = rules_of(LIMITS, tmp_path), {"retention.ms": "5", **GOOD}
    assert_denied(policy, a_config_change(removes=["retention.ms"], before=before, defaults=MONTH), match="default")
    assert_allowed(policy, a_config_change(removes=["retention.ms"], before=before, defaults={"retention.ms": "7"}))
    assert_allowed(policy, a_config_change(sets={"flush.ms": "5"}, before={}, defaults=MONTH))


def test_allowed_values_apply_to_broker_default_but_forbidden_ones_do_not(tmp_path: Path) -> None:
    policy = rules_of(LIMITS, tmp_path)
    denial = assert_denied(policy, a_topic(defaults={"cleanup.policy": "delete"}))
    assert "cleanup.policy=delete (the broker's default) of topic orders is not one of compact" in str(denial)
    assert "set cleanup.policy to one of compact." in str(denial)
    assert_allowed(policy, a_topic(configs=GOOD, defaults={"preallocate": "true"}))


def test_only_configs_denies_other_configs(tmp_path: Path) -> None:
    policy = rules_of("rules: [{name: keys, only_configs: [retention.ms, flush.ms]}]", tmp_path)
    assert_allowed(policy, a_topic(configs={"retention.ms": "5"}))
    denial = assert_denied(policy, a_topic(configs={"retention.ms": "5", "segment.ms": "7"}))
    assert denial.error_message == (
        "Rule 'keys': segment.ms=7 of topic orders is not one of the configs that may be set: retention.ms, flush.ms;"
        " leave segment.ms out."
    )
    assert_denied(policy, a_config_change(sets={"segment.ms": "7"}))
    assert_allowed(policy, a_config_change(removes=["segment.ms"], before={"segment.ms": "7"}))
    assert_allowed(policy, a_config_change(sets={"flush.ms": "7"}, before={"segment.ms": "7"}))
    only_none = rules_of("rules: [{name: keys, only_configs: []}]", tmp_path)
    assert_denied(only_none, a_topic(configs={"flush.ms": "7"}), match="may be set: none")


OVERRIDING = """
    rules:
      - name: sizes
        effect: override
        partitions: {min: 3, max: 12}
        replication_factor: {min: 2}
        configs:
          retention.ms: {max: 1000}
          cleanup.policy: {one_of: [delete, compact]}
          unclean.leader.election.enable: {forbidden: true}
          min.insync.replicas: {required: true, value: 2}
      - name: names
        naming: "[a-z]+"
"""


def overriding() -> RulesPolicy:
    return policy_of(OVERRIDING)


def test_override_corrects_every_violating_value() -> None:
    configs = {"retention.ms": "-1", "cleanup.policy": "compact,other", "unclean.leader.election.enable": "true"}
    answer = overriding().validate_create_topic(a_topic("Orders", num_partitions=20, configs=configs))
    assert answer is not None
    assert (answer.num_partitions, answer.replication_factor) == (12, 2)
    assert answer.configs == {
        "retention.ms": "1000",
        "cleanup.policy": "delete",
        "unclean.leader.election.enable": None,
        "min.insync.replicas": "2",
    }
    assert answer.reason.startswith(
        "Rule 'sizes': partitions=20 of topic Orders is above the maximum 12; set to 12. Rule 'sizes': replication"
    )
    assert "unclean.leader.election.enable=true of topic Orders must not be set; left out." in answer.reason


def test_other_rules_check_the_overridden_topic() -> None:
    right = {"min.insync.replicas": "2", "retention.ms": "5"}
    policy = overriding()
    assert (
        policy.validate_create_topic(a_topic("orders", num_partitions=3, replication_factor=2, configs=right)) is None
    )
    with pytest.raises(PolicyViolationError, match="Rule 'names'"):
        policy.validate_create_topic(a_topic("Orders", num_partitions=3, replication_factor=2, configs=right))


def test_override_denies_topic_with_explicit_assignment() -> None:
    topic = a_topic("orders", assignments={0: [1]}, configs={"min.insync.replicas": "2"})
    with pytest.raises(PolicyViolationError, match="partitions=1 of topic orders is below the minimum 3"):
        overriding().validate_create_topic(topic)


def test_override_corrects_config_change() -> None:
    before = {"min.insync.replicas": "2"}
    answer = overriding().validate_alter_config(a_config_change(sets={"retention.ms": "5000"}, before=before))
    assert answer is not None
    assert answer.configs == {"retention.ms": "1000"}
    removed = overriding().validate_alter_config(a_config_change(removes=["min.insync.replicas"], before=before))
    assert removed is not None
    assert removed.configs == {"min.insync.replicas": "2"}
    assert overriding().validate_alter_config(a_config_change(sets={"retention.ms": "9"}, before=before)) is None


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        ("{name: a, effect: block}", "rules[0].effect: expected throttle or override or deny, got 'block'"),
        ("{name: a, effect: override, naming: b}", "rules[0].naming: effect: override cannot set this right"),
        ("{name: a, effect: override, deletion: forbidden}", "rules[0].deletion: effect: override cannot"),
        ("{name: a, configs: {flush.ms: {value: 1}}}", "rules[0].configs.flush.ms.value: needs effect: override"),
        (
            "{name: a, effect: override, configs: {flush.ms: {required: true}}}",
            "rules[0].configs.flush.ms: effect: override needs the value to set",
        ),
    ],
)
def test_invalid_override_rule_error_has_its_position(rule: str, place: str) -> None:
    with pytest.raises(RuleFileError) as denied:
        parse_rules(f"rules: [{rule}]", source="rules.yaml")
    assert place in str(denied.value)


def test_forbidden_omission_denies_replacement_that_removes_configs() -> None:
    policy = policy_of("rules: [{name: keep, omission: forbidden}]")
    dropping = AlterConfigDetails("TOPIC", "t", {"flush.ms": "1"}, {"flush.ms": "1"}, removed=frozenset({"segment.ms"}))
    with pytest.raises(PolicyViolationError, match=r"Rule 'keep': the request would remove segment\.ms of topic t by"):
        policy.validate_alter_config(dropping)
    named = AlterConfigDetails("TOPIC", "t", {"segment.ms": None}, {}, removed=frozenset({"segment.ms"}))
    assert policy.validate_alter_config(named) is None


@given(low=st.integers(1, 50), size=st.integers(0, 50), number=st.integers(1, 100))
def test_overridden_number_satisfies_its_rule(low: int, size: int, number: int) -> None:
    rules = f"rules: [{{name: a, effect: override, partitions: {{min: {low}, max: {low + size}}}}}]"
    policy = policy_of(rules)
    answer = policy.validate_create_topic(a_topic("t", num_partitions=number))
    assert (answer is None) == (low <= number <= low + size)
    if answer is not None:
        assert policy.validate_create_topic(a_topic("t", num_partitions=answer.num_partitions or 0)) is None


FLOWS = """
    rules:
      - name: durable
        topics: "billing[.].*"
        acks: all
        effect: override
      - name: idempotent
        idempotence: required
        effect: throttle
        delay_ms: 300
      - name: archive
        topics: "archive[.].*"
        writes: forbidden
        except_principals: ["User:archiver"]
      - name: groups
        group_naming: "team-.*"
      - name: clients
        client_id_naming: "[a-z-]+"
        actions: [produce]
"""


def flow(
    topic: str = "orders",
    *,
    acks: int = -1,
    is_idempotent: bool = True,
    client_id: str = "app",
    principal: str = "User:anna",
) -> Answer | PolicyViolationError | None:
    policy = policy_of(FLOWS)
    details = ProduceDetails(
        topic=topic, acks=acks, is_idempotent=is_idempotent, principal=principal, client_id=client_id
    )
    try:
        return policy.validate_flow(details)
    except PolicyViolationError as violation:
        return violation


def test_rules_decide_on_produce_requests() -> None:
    assert flow() is None
    assert flow(acks=0) is None
    assert flow("billing.eu", acks=1) == Override(
        acks=-1, reason="Rule 'durable': acks=1 for topic billing.eu is not all; set to all."
    )
    assert flow(is_idempotent=False) == Throttle(
        delay_ms=300, reason="Rule 'idempotent': the producer for topic orders is not idempotent; delayed by 300 ms."
    )
    assert isinstance(flow("billing.eu", acks=1, is_idempotent=False), Override)
    assert str(flow("archive.x")) == "Rule 'archive': topic archive.x is read-only; write to another topic."
    assert flow("archive.x", principal="User:archiver") is None
    assert "client.id=App does not match [a-z-]+" in str(flow(client_id="App"))


def test_rules_decide_on_the_names_of_groups() -> None:
    policy = policy_of(FLOWS)
    assert policy.validate_flow(GroupDetails(group_id="team-a", client_id="ANY")) is None
    with pytest.raises(PolicyViolationError, match=r"Rule 'groups': group\.id=other does not match team-"):
        policy.validate_flow(GroupDetails(group_id="other"))


@pytest.mark.parametrize(
    ("details", "error"),
    [
        (ClientDetails(client_id="team-a"), None),
        (ClientDetails(client_id="other"), "Rule 'clients': client.id=other does not match team-.*; set a client.id"),
        (ClientDetails(client_id=None), "Rule 'clients': client.id= does not match"),
        (ClientDetails(client_id="other", principal="User:admin"), None),
    ],
)
def test_rules_decide_on_client_ids(details: ClientDetails, error: str | None) -> None:
    text = """
    rules:
      - {name: clients, client_id_naming: "team-.*", except_principals: ["User:admin"]}
      - {name: slow, client_id_naming: "fast-.*", effect: throttle, delay_ms: 5}
      - {name: producers, client_id_naming: "p", actions: [produce]}
      - {name: billing, client_id_naming: "b", topics: "billing"}
    """
    policy = policy_of(text)
    with nullcontext() if error is None else pytest.raises(PolicyViolationError, match=re.escape(error)):
        policy.validate_client(details)


@pytest.mark.parametrize(
    ("api", "principal", "is_denied"),
    [
        ("DELETE_RECORDS", "User:app", True),
        ("CREATE_ACLS", "User:app", True),
        ("76", "User:app", True),
        ("PRODUCE", "User:app", False),
        ("DELETE_RECORDS", "User:admin", False),
    ],
)
def test_forbidden_apis_are_denied(api: str, principal: str, is_denied: bool) -> None:
    text = """
    rules:
      - name: no tools
        forbidden_apis: [DeleteRecords, CREATE_ACLS, 76]
        except_principals: ["User:admin"]
        remedy: ask the platform team
    """
    policy = policy_of(text)
    error = re.escape(f"Rule 'no tools': {principal} must not use {api}; ask the platform team.")
    with pytest.raises(PolicyViolationError, match=error) if is_denied else nullcontext():
        policy.validate_api(ApiDetails(api=api, principal=principal))


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        ("{name: a, forbidden_apis: [Produce, DeleteRecord]}", "rules[0].forbidden_apis[1]: 'DeleteRecord' cannot be"),
        ("{name: a, forbidden_apis: [Metadata]}", "rules[0].forbidden_apis[0]: 'Metadata' cannot be forbidden"),
        ("{name: a, forbidden_apis: [36]}", "not API_VERSIONS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE"),
        ("{name: a, topics: b, forbidden_apis: [Produce]}", "rules[0].topics: forbidden_apis concerns no topics"),
        ("{name: a, forbidden_apis: [Produce], effect: override}", "rules[0].forbidden_apis: effect: override cannot"),
        ("{name: a, acks: 1}", "rules[0].acks: expected a string, got 1"),
        ("{name: a, acks: some}", "rules[0].acks: expected any or all, got 'some'"),
        ("{name: a, effect: throttle, acks: all}", "rules[0].delay_ms: effect: throttle, and no other, needs a number"),
        ("{name: a, delay_ms: 5, acks: all}", "rules[0].delay_ms: effect: throttle, and no other, needs a number"),
        ("{name: a, effect: throttle, delay_ms: 5, deletion: forbidden}", "rules[0].deletion: effect: throttle is for"),
        ("{name: a, effect: override, writes: forbidden}", "rules[0].writes: effect: override cannot set this right"),
        ("{name: a, group_naming: team-*}", "rules[0].group_naming: 'team-*' is a regular expression"),
    ],
)
def test_invalid_flow_rule_error_has_its_position(rule: str, place: str) -> None:
    with pytest.raises(RuleFileError) as denied:
        parse_rules(f"rules: [{rule}]", source="rules.yaml")
    assert place in str(denied.value)
