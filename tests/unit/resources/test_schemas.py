"""JSON Schemas of the files: a validator accepts and rejects what klamm's own readers do."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest

from klamm.policy.rule import RuleFileError
from klamm.policy.rule_checks import CONDITIONS
from klamm.policy.rule_file import parse_rules
from klamm.properties import SettingsError
from klamm.resources.engine import check_offline
from klamm.resources.files import parse_documents
from klamm.resources.kinds import KIND_OF, MARKS, QUOTA_NAMES, RESOURCES
from klamm.resources.schemas import resources_schema, rules_schema
from klamm.strict_yaml import StrictYamlError, load_yaml_documents
from tests.support.schemas import draft_validator

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.process  # jsonschema checks the schemas for seconds
FENCED_YAML = re.compile(r"^```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
IN_TABLE = re.compile(r"^\| `[^|]*\.yaml` \| `(.*)` \|$", re.MULTILINE)


def validator(schema: dict[str, Any]) -> Any:
    draft = draft_validator()
    draft.check_schema(schema)
    return draft(schema)


@functools.cache
def resources_file() -> Any:
    return validator(resources_schema())


@functools.cache
def rules_file() -> Any:
    return validator(rules_schema())


def examples(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    texts = [*FENCED_YAML.findall(text), *IN_TABLE.findall(text)]
    return [example for example in texts if not example.startswith("steps:")]


STRIMZI = """
apiVersion: kafka.strimzi.io/v1
kind: KafkaTopic
metadata: {name: orders}
spec: {partitions: 3, replicas: 2, config: {retention.ms: 7200000}}
"""
OVERLAY = """
topics: {orders: {partitions: 48, replication_factor: , configs: {flush.ms: , retention.ms: 7d}}, gone: }
users: {billing: {authentication: {iterations: 8192}, quotas: {producerByteRate: }}}
brokers: {default: {configs: {listener.name.tls.ssl.key.password: {valueFrom: {env: KEY}}}}}
"""
FORMS = """
topics:
  a: {replicas: -1, config: {cleanup.policy: " compact, delete", preallocate: "TRUE"}}
  b: {configs: {retention.bytes: 1GiB, segment.bytes: " 1048576", min.cleanable.dirty.ratio: "5e-1"}}
  c: {partitions: 1, ignore: ["flush.*"], prune: true, state: present}
brokers: {"1": {configs: {only.of.a.later.release: [1, x], ssl.key.password: {file: key}}}}
users:
  u:
    authentication: [{type: tls}, {type: scram-sha-256, password: {env: PASSWORD}}]
    quotas: {requestPercentage: "12.5", producer_byte_rate: 1e3}
acls:
  "User:a": {acls: [{type: Deny, resource: {type: CLUSTER}, operation: ALTER_CONFIGS}]}
  "User:b": {acls: [{resource: {type: transactional-id, name: 1, patternType: prefixed}, operations: [all, read]}]}
client_configs: {"user=u": {configs: {acks: -1, session.timeout.ms: "45000"}}}
"""


@pytest.mark.parametrize("text", [*examples("gitops.md"), STRIMZI, OVERLAY])
def test_schema_accepts_files_of_the_pages_manifests_and_overlays(text: str) -> None:
    for document in load_yaml_documents(text):
        resources_file().validate(document)


def test_schema_accepts_every_form_of_a_value_that_plan_offline_accepts() -> None:
    assert check_offline(parse_documents(FORMS), None).failed == {}
    resources_file().validate(*load_yaml_documents(FORMS))


BROKEN = [
    "topics: []",
    "topic: {orders: {}}",
    "topics: {orders: {partition: 3}}",
    "topics: {orders: {partitions: 0}}",
    "topics: {orders: {partitions: six}}",
    "topics: {orders: {partitions: 2147483648}}",
    "topics: {orders: {replication_factor: 40000}}",
    "topics: {orders: {configs: [retention.ms]}}",
    "topics: {orders: {configs: {retention.ms: soon}}}",
    "topics: {orders: {configs: {retention.ms: 7 GiB}}}",
    "topics: {orders: {configs: {preallocate: maybe}}}",
    "topics: {orders: {configs: {segment.bytes: {env: SIZE}}}}",
    "topics: {orders: {state: gone}}",
    "topics: {orders: {ignore: flush.ms}}",
    'topics: {orders: {prune: "yes"}}',
    "brokers: {one: {configs: {}}}",
    "users: {billing: {authentication: {type: plain}}}",
    "users: {billing: {authentication: {type: scram-sha-256, password: open}}}",
    "users: {billing: {authentication: {type: scram-sha-256, password: {env: A, file: B}}}}",
    "users: {billing: {authentication: {type: scram-sha-256, iterations: 1}}}",
    "users: {billing: {authentication: [{iterations: 5000}]}}",
    "users: {billing: {authorization: {type: opa}}}",
    "users: {billing: {quotas: {producerByteRate: fast}}}",
    "users: {billing: {quotas: {producerByteRate: 0}}}",
    "users: {billing: {quotas: {bytes: 5}}}",
    'acls: {"User:a": {acls: {resource: {type: topic, name: t}, operations: [Read]}}}',
    'acls: {"User:a": {acls: [{resource: {type: topic, name: t}, operations: [Look]}]}}',
    'acls: {"User:a": {acls: [{resource: {type: queue, name: t}, operations: [Read]}]}}',
    'acls: {"User:a": {acls: [{resource: {type: topic}, operations: [Read]}]}}',
    'acls: {"User:a": {acls: [{resource: {type: topic, name: t}}]}}',
    'acls: {"User:a": {acls: [{resource: {type: topic, name: t}, operation: Read, operations: [Write]}]}}',
    'client_configs: {"user=a": {configs: {ackz: all}}}',
    "defaults: {topics: {partition: 3}}",
    "defaults: {topics: {partitions: many}}",
    "cluster: [prod]",
    "bases: ../base",
]


@pytest.mark.parametrize("text", BROKEN)
def test_schema_and_plan_offline_reject_the_same_files(text: str) -> None:
    assert not resources_file().is_valid(*load_yaml_documents(text))
    with pytest.raises(SettingsError):  # noqa: PT012  # a file is rejected when it is read, or a resource of it
        failed = check_offline(parse_documents(text), None).failed
        for reason in failed.values():
            raise SettingsError(reason)


@pytest.mark.parametrize("text", examples("policies.md"))
def test_schema_accepts_rules_files_of_the_page(text: str) -> None:
    rules_file().validate(*load_yaml_documents(text))


BROKEN_RULES = [
    "rules: {name: a, deletion: forbidden}",
    "rule: []",
    "rules: [{deletion: forbidden}]",
    "rules: [{name: a, delete: forbidden}]",
    "rules: [{name: a, deletion: denied}]",
    "rules: [{name: a, naming: ''}]",
    "rules: [{name: a, partitions: {min: 0}}]",
    "rules: [{name: a, partitions: {}}]",
    "rules: [{name: a, partitions: 3}]",
    "rules: [{name: a, spare_replicas: {min: -1}}]",
    "rules: [{name: a, spare_replicas: {least: 1}}]",
    "rules: [{name: a, configs: {}}]",
    "rules: [{name: a, configs: {retention.ms: 5}}]",
    "rules: [{name: a, configs: {retention.ms: {max: 7 GiB}}}]",
    "rules: [{name: a, configs: {retention.bytes: {max: 7d}}}]",
    "rules: [{name: a, configs: {cleanup.policy: {one_of: []}}}]",
    "rules: [{name: a, configs: {cleanup.policy: {required: 'yes'}}}]",
    "rules: [{name: a, actions: [erase], deletion: forbidden}]",
    "rules: [{name: a, acks: 1}]",
    "rules: [{name: a, acks: all, effect: slow}]",
    "rules: [{name: a, acks: all, effect: throttle, delay_ms: 60001}]",
    "rules: [{name: a, data_loss: never}]",
    "rules: [{name: a, max_deleted: 7d}]",
    "rules: [{name: a, max_impact: much}]",
    "rules: [{name: a, principals: [], deletion: forbidden}]",
    "rules: [{name: a, topics: 'a.*'}]",
]


@pytest.mark.parametrize("text", BROKEN_RULES)
def test_schema_and_the_policy_reject_the_same_rules(text: str) -> None:
    assert not rules_file().is_valid(*load_yaml_documents(text))
    with pytest.raises((RuleFileError, StrictYamlError)):
        parse_rules(text, source="rules.yaml")


def test_schema_of_rules_has_every_condition() -> None:
    assert set(CONDITIONS) < rules_schema()["properties"]["rules"]["items"]["properties"].keys()


def test_quotas_have_the_names_of_kafka_and_of_strimzi() -> None:
    assert RESOURCES["quotas"]["properties"]["quotas"]["properties"].keys() == {*QUOTA_NAMES, *QUOTA_NAMES.values()}


def test_page_lists_every_key_of_every_section_as_the_table_has_it() -> None:
    rows = [
        f"| `{section}` | `{key}` | {shape['title']} |"
        for section in KIND_OF
        for key, shape in RESOURCES[section]["properties"].items()
        if key not in MARKS
    ]
    assert "\n".join(rows) in (ROOT / "docs" / "gitops.md").read_text(encoding="utf-8")
