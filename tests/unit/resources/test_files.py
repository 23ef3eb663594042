"""Files of resources: sections, manifests of Strimzi, defaults and overlays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from klamm.properties import SettingsError
from klamm.resources.diff import Ownership, plan_resources
from klamm.resources.files import read_files
from klamm.resources.model import CurrentValue, Existing, Kind, ResourceKey, Secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.resources.model import Declared

    Parse = Callable[[str], tuple[Declared, ...]]


@pytest.fixture
def parse(tmp_path: Path) -> Parse:
    """Return the resources of one file."""

    def parse_text(text: str) -> tuple[Declared, ...]:
        file = tmp_path / "file.yaml"
        file.write_text(text, encoding="utf-8")
        (files,) = read_files(file)
        return files.resources

    return parse_text


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("user=User:billing", "user=billing"),
        ("user=User:User:x,client-id=user=User:y", "user=User%3Ax,client-id=user=User:y"),
        ("user=User%3Ax", "user=User%3Ax"),
        ("user=User:<default>", "user=%3Cdefault>"),
        ("user=CN=a%2CO=b", "user=CN=a%2CO=b"),
    ],
)
def test_user_may_be_a_principal(parse: Parse, name: str, declared: str) -> None:
    """As in the flags of ``klamm configs``. An escape leaves User: in the name."""
    for section in ("client_configs", "quotas"):
        (resource,) = parse(f"{section}: {{'{name}': {{}}}}")
        assert resource.name == declared


@pytest.mark.parametrize(("name", "user"), [("User:alice", "alice"), ("User:User:x", "User:x")])
def test_name_of_a_user_may_be_a_principal(parse: Parse, name: str, user: str) -> None:
    spec = (
        "{authentication: {type: scram-sha-512}, quotas: {producerByteRate: 1},"
        " authorization: {acls: [{resource: {type: topic, name: t}, operations: [Read]}]}}"
    )
    names = {resource.kind: resource.name for resource in parse(f"users: {{'{name}': {spec}}}")}
    assert names == {
        Kind.SCRAM: user,
        Kind.ACLS: f"User:{user}",
        Kind.QUOTA: f"user={user.replace(':', '%3A')}",
    }


@pytest.mark.parametrize("kind", ["tls", "tls-external"])
def test_user_with_a_certificate_has_its_common_name(parse: Parse, kind: str) -> None:
    """As in Strimzi, also if another authority issues the certificate."""
    spec = f"{{authentication: {{type: {kind}}}, quotas: {{producerByteRate: 1}}, authorization: {{acls: []}}}}"
    assert {resource.kind: resource.name for resource in parse(f"users: {{my-user: {spec}}}")} == {
        Kind.QUOTA: "user=CN=my-user",
        Kind.ACLS: "User:CN=my-user",
    }


def test_enforcement_may_be_what_yaml_calls_true(parse: Parse) -> None:
    """YAML reads on as true."""
    on, off = parse("client_configs: {user=a: {configs: {enforcement: on}}, user=b: {configs: {enforcement: off}}}")
    assert (dict(on.values), dict(off.values)) == ({"enforcement": "on"}, {"enforcement": "off"})


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def test_topics_come_in_file_order_with_values_as_kafka_writes_them(parse: Parse) -> None:
    # given
    text = """
        topics:
          orders:
            partitions: 6
            replication_factor: 3
            configs:
              retention.ms: 604800000
              cleanup.policy: [compact, delete]
              preallocate: true
              min.cleanable.dirty.ratio: 0.5
          audit:
    """
    # when
    orders, audit = parse(text)
    # then
    assert orders.name == "orders"
    assert dict(orders.values) == {
        "partitions": "6",
        "replication_factor": "3",
        "retention.ms": "604800000",
        "cleanup.policy": "compact,delete",
        "preallocate": "true",
        "min.cleanable.dirty.ratio": "0.5",
    }
    assert (audit.name, dict(audit.values)) == ("audit", {})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "file.yaml: no content: expected a mapping with topics, "),
        ("topic: {}", "bases; did you mean topics?"),
        ("topics: [a]", "topics: ['a']: expected a mapping"),
        ("topics: {1: {}}", "topics: key 1: expected a string"),
        ("topics: {t: {partition: 1}}", "topics.t: unknown key partition: expected one of partitions, replication_fac"),
        ("topics: {t: {partitions: six}}", "topics.t.partitions: 'six': expected a whole number from 1 to 2147483647"),
        ("topics: {t: {partitions: 0}}", "topics.t.partitions: 0: expected a whole number"),
        ("topics: {t: {partitions: true}}", "topics.t.partitions: True: expected a whole number"),
        (
            "topics: {t: {replication_factor: 40000}}",
            "replication_factor: 40000: expected a whole number from 1 to 32767",
        ),
        ("topics: {t: {configs: [a]}}", "topics.t.configs: ['a']: expected a mapping"),
        (
            "topics: {t: {configs: {a: }}}",
            "topics.t.configs.a: None: expected a string, a number, true, false or a list",
        ),
        ("topics: {t: {state: gone}}", "topics.t.state: 'gone': expected present or absent"),
        (
            "topics: {__consumer_offsets: {state: absent}}",
            "topics.__consumer_offsets.state: absent: __consumer_offsets is an internal topic",
        ),
        (
            "topics: {mm2-offset-syncs.b.internal: {state: absent}}",
            "mm2-offset-syncs.b.internal is an internal topic, which is never deleted from files",
        ),
        ("topics: {t: {ignore: a}}", "topics.t.ignore: 'a': expected a list of keys"),
        ("topics: {t: {configs: {a: {env: b}}}}", "keeps its value); only brokers have secrets"),
        ("brokers: {one: {configs: {}}}", "brokers: one: expected the id of a broker in quotes, or default"),
        ("users: {a: {authentication: {type: plain}}}", "authentication.type: 'plain': expected one of scram-sha-256"),
        (
            "users: {a: {authentication: {type: scram-sha-256, password: open}}}",
            "users.a.authentication.password: expected {env: NAME} or {file: PATH}; a secret does not belong into",
        ),
        (
            "users: {a: {authentication: {type: scram-sha-256, iterations: 1}}}",
            "users.a.authentication.iterations: 1: expected a number from 4096",
        ),
        (
            "users: {a: {authentication: {type: scram-sha-256, iterations: 99999999999}}}",
            "users.a.authentication.iterations: 99999999999: expected a number from 4096 to 16384",
        ),
        (
            "users: {a: {quotas: {producerByteRate: fast}}}",
            "users.a.quotas.producerByteRate: 'fast': expected a number",
        ),
        (
            "users: {a: {quotas: {producerByteRate: 0}}}",
            "producerByteRate: 0: expected a number above 0",
        ),
        ("users: {'User:': {quotas: {}}}", "users.User:: expected the name of a user, such as alice or User:alice"),
        ("quotas: {team=a: {quotas: {}}}", "expected an entity such as user=alice,client-id=<default>"),
        (
            "client_configs: {user=a%ff: {configs: {}}}",
            "client_configs.user=a%ff: 'a%ff' has escapes that are not UTF-8",
        ),
        ("client_configs: {user=User:: {configs: {}}}", "client_configs.user=User:: Empty user not supported"),
        ("client_configs: {'user=CN=a,O=b': {configs: {}}}", "with %2C for a comma in a name"),
        ("client_configs: {client-id=a: {configs: {}}}", "client_configs.client-id=a: A client config entity must"),
        ("acls: {a: {acls: [{resource: {type: topic, name: t}, operations: [Read]}]}}", "Could not parse principal"),
        ("acls: {User:a: {acls: [{resource: {type: topic}, operations: [Read]}]}}", "resource.name: None: expected a"),
        (
            "acls: {User:a: {acls: [{resource: {type: queue, name: q}, operations: [Read]}]}}",
            "acls.User:a.acls[0].resource.type: 'queue': expected one of topic, group, cluster, transactionalId",
        ),
        (
            "acls: {User:a: {acls: [{resource: {type: topic, name: t}, operations: [Look]}]}}",
            "acls[0].operations[0]: 'Look': expected one of All, Read, Write",
        ),
        ("defaults: {topics: {partition: 3}}", "defaults.topics: unknown key partition: expected one of partitions"),
        ("bases: [nowhere]\ntopics: {}", "bases: nowhere: expected a directory or file relative to"),
        ("topics: {t: {configs: {a: {b: c}}}}", "topics.t.configs.a: {'b': 'c'}: expected a string"),
        ("topics:\n  t:\n  t:\n", "line 3: t: is given twice, expected once"),
        ("topics: {t: {configs: {a: 1, a: 2}}}", "line 1: a: is given twice, expected once"),
        ("topics: {[a]: {}}", "expected a name as the key"),
        ("topics: {t: {partitions: 010}}", "topics.t.partitions: '010': expected a whole number"),
        ("topics: {t: {partitions: " + "9" * 5_000 + "}}", "expected a whole number"),
        ("[" * 1_000, "too many levels"),
        ("topics: {", "no YAML: "),
        ("topics: !!python/object:os.system {}", "no YAML: "),
    ],
)
def test_invalid_file_is_rejected_with_key_value_and_allowed_values(text: str, complaint: str, parse: Parse) -> None:
    with pytest.raises(SettingsError) as rejected:
        parse(text)
    assert complaint in str(rejected.value)


def test_numbers_keep_their_notation(parse: Parse) -> None:
    (topic,) = parse("topics: {t: {configs: {a: 010, b: 1:30, c: 0x10, d: 1_000, e: -1, f: +5}}}")
    assert dict(topic.values) == {"a": "010", "b": "1:30", "c": "0x10", "d": "1_000", "e": "-1", "f": "5"}


def test_durations_and_sizes_may_have_units(parse: Parse) -> None:
    (topic,) = parse("topics: {t: {configs: {retention.ms: 7d, segment.bytes: 1GiB, flush.ms: 7 GiB}}}")
    assert dict(topic.values) == {"retention.ms": "604800000", "segment.bytes": "1073741824", "flush.ms": "7 GiB"}


def test_topic_may_merge_values_of_another_topic(parse: Parse) -> None:
    topics = parse("""
        topics:
          orders: &usual
            partitions: 6
            configs: {retention.ms: 5}
          audit:
            <<: *usual
            partitions: 1
    """)
    assert [dict(topic.values) for topic in topics] == [
        {"partitions": "6", "retention.ms": "5"},
        {"partitions": "1", "retention.ms": "5"},
    ]


def test_defaults_apply_unless_minus_one_selects_the_brokers_value(parse: Parse) -> None:
    orders, audit = parse("""
        defaults: {topics: {partitions: 3, replication_factor: 2, configs: {retention.ms: 5, flush.ms: 1}}}
        topics:
          orders: {partitions: -1, configs: {retention.ms: 7}}
          audit:
    """)
    assert dict(orders.values) == {"replication_factor": "2", "retention.ms": "7", "flush.ms": "1"}
    assert dict(audit.values) == {"partitions": "3", "replication_factor": "2", "retention.ms": "5", "flush.ms": "1"}


STRIMZI = """
apiVersion: kafka.strimzi.io/v1
kind: KafkaTopic
metadata:
  name: my-topic
  labels: {strimzi.io/cluster: my-cluster}
  annotations: {klamm/prune: "true", klamm/ignore: "flush.*, segment.ms"}
spec:
  topicName: My_Topic
  partitions: 3
  replicas: 2
  config: {retention.ms: 7200000}
---
apiVersion: kafka.strimzi.io/v1
kind: KafkaUser
metadata: {name: my-user}
spec:
  authentication:
    type: scram-sha-512
    password: {valueFrom: {secretKeyRef: {name: my-secret, key: my-password}}}
  authorization:
    type: simple
    acls:
      - resource: {type: topic, name: my-, patternType: prefix}
        operations: [Describe, Read]
        host: "*"
      - {type: deny, resource: {type: cluster}, operation: Alter}
  quotas: {producerByteRate: 1048576, requestPercentage: 55, controllerMutationRate: 10}
  template: {secret: {metadata: {labels: {a: b}}}}
---
apiVersion: kafka.strimzi.io/v1
kind: KafkaUser
metadata: {name: secure}
spec:
  authentication: {type: tls}
  authorization: {type: simple, acls: [{resource: {type: transactionalId, name: t}, operations: [Write]}]}
---
apiVersion: kafka.strimzi.io/v1
kind: KafkaTopic
metadata: {name: left-alone, annotations: {strimzi.io/managed: "false"}}
spec: {partitions: 1}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
"""


def test_strimzi_manifests_are_parsed(parse: Parse) -> None:
    # when
    topic, quotas, acls, credential, other, left_alone = parse(STRIMZI)
    # then
    assert (topic.kind, topic.name, topic.owns_all, topic.ignored) == (
        Kind.TOPIC,
        "My_Topic",
        True,
        ("flush.*", "segment.ms"),
    )
    assert dict(topic.values) == {"partitions": "3", "replication_factor": "2", "retention.ms": "7200000"}
    assert (quotas.name, dict(quotas.values)) == (
        "user=my-user",
        {"producer_byte_rate": "1048576", "request_percentage": "55", "controller_mutation_rate": "10"},
    )
    assert (acls.name, list(acls.values)) == (
        "User:my-user",
        [
            "ALLOW DESCRIBE on TOPIC:PREFIXED:my- from *",
            "ALLOW READ on TOPIC:PREFIXED:my- from *",
            "DENY ALTER on CLUSTER:LITERAL:kafka-cluster from *",
        ],
    )
    assert dict(credential.secrets) == {"SCRAM-SHA-512": Secret(variable="MY_SECRET_MY_PASSWORD")}
    assert (other.kind, other.name) == (Kind.ACLS, "User:CN=secure")
    assert (left_alone.kind, left_alone.name, left_alone.is_managed) == (Kind.TOPIC, "left-alone", False)
    assert topic.is_managed


MANAGED = """
apiVersion: kafka.strimzi.io/v1
kind: {}
metadata: {{name: theirs, annotations: {{strimzi.io/managed: {}}}}}
spec: {}
"""


@pytest.mark.parametrize(
    ("kind", "spec", "names"),
    [
        ("KafkaTopic", "{config: {later-key: {a: b}}}", ["theirs"]),
        ("KafkaTopic", "{topicName: __theirs}", ["__theirs"]),
        ("KafkaUser", "{authentication: {type: tls}}", ["user=CN=theirs", "User:CN=theirs", "CN=theirs"]),
        ("KafkaUser", "{quotas: {later-key: 1}}", ["user=theirs", "User:theirs", "theirs"]),
    ],
)
def test_unmanaged_resources_are_neither_changed_nor_pruned(
    parse: Parse, kind: str, spec: str, names: list[str]
) -> None:
    # given
    kinds = [Kind.TOPIC] if kind == "KafkaTopic" else [Kind.QUOTA, Kind.ACLS, Kind.SCRAM]
    existing = {
        ResourceKey(*key): Existing(values={"k": CurrentValue(value="v", origin="cluster", is_own=True)})
        for key in zip(kinds, names, strict=True)
    }
    everything = Ownership(prune=dict.fromkeys(Kind), prune_keys=True)
    for mark in ('"false"', "false"):
        # when
        declared = parse(MANAGED.format(kind, mark, spec))
        # then
        assert plan_resources(declared, existing, everything) == ()
        assert plan_resources(declared, {}, everything) == ()


def test_overlay_takes_a_resource_out_of_management_and_back(tmp_path: Path) -> None:
    # given
    write(
        tmp_path,
        {
            "base/topics.yaml": "topics: {theirs: {partitions: 3}}",
            "prod/klamm.yaml": "bases: [../base]",
            "prod/topics.yaml": MANAGED.format("KafkaTopic", '"false"', "{partitions: 3}"),
            "test/klamm.yaml": "bases: [../prod]",
            "test/topics.yaml": MANAGED.format("KafkaTopic", '"true"', "{partitions: 6}"),
        },
    )
    # when
    prod, test = (read_files(tmp_path / name)[0].resources for name in ("prod", "test"))
    # then
    assert [(resource.name, resource.is_managed) for resource in prod] == [("theirs", False)]
    assert [(resource.values, resource.is_managed) for resource in test] == [({"partitions": "6"}, True)]


def test_overlay_changes_its_bases_and_a_tree_has_several_clusters(tmp_path: Path) -> None:
    # given
    write(
        tmp_path,
        {
            "base/topics.yaml": "topics: {orders: {partitions: 3, configs: {retention.ms: 5, flush.ms: 1}}}",
            "envs/dev/klamm.yaml": "{cluster: dev, bases: [../../base]}",
            "envs/prod/klamm.yaml": "{cluster: prod, bases: [../../base], defaults: {topics: {replication_factor: 3}}}",
            "envs/prod/more/orders.yml": "topics: {orders: {partitions: 12, configs: {flush.ms: }}, audit: }",
            "envs/prod/notes.txt": "no resources",
            "envs/.old/prod/klamm.yaml": "{cluster: prod, topics: {gone: }}",
        },
    )
    # when
    dev, prod = read_files(tmp_path / "envs")
    # then
    assert [(topic.name, dict(topic.values)) for topic in dev.resources] == [
        ("orders", {"partitions": "3", "retention.ms": "5", "flush.ms": "1"})
    ]
    assert [(topic.name, dict(topic.values)) for topic in prod.resources] == [
        ("orders", {"partitions": "12", "replication_factor": "3", "retention.ms": "5"}),
        ("audit", {"replication_factor": "3"}),
    ]
    assert (dev.cluster, prod.cluster) == ("dev", "prod")
    assert read_files(tmp_path / "envs" / "prod") == (prod,)


def test_null_in_an_overlay_removes_a_declaration_of_its_bases(tmp_path: Path) -> None:
    # given
    write(
        tmp_path,
        {
            "base/topics.yaml": "topics: {orders: {partitions: 3}, audit: {partitions: 2}, plain: }",
            "base/users.yaml": "users: {billing: {quotas: {producerByteRate: 1}}}",
            "base/theirs.yaml": MANAGED.format("KafkaTopic", '"false"', "{}"),
            "dev/klamm.yaml": "{bases: [../base], defaults: {topics: {prune: true}}}",
            "dev/less.yaml": "{topics: {orders: , plain: , theirs: , new: }, users: {billing: }}",
            "test/klamm.yaml": "bases: [../dev]",
            "test/more.yaml": "topics: {orders: {partitions: 1}, theirs: {partitions: 1}}",
        },
    )
    # when
    dev, test = (read_files(tmp_path / name)[0].resources for name in ("dev", "test"))
    # then
    assert [(topic.name, dict(topic.values)) for topic in dev] == [("audit", {"partitions": "2"}), ("new", {})]
    assert {topic.name for topic in test if topic.is_managed} == {"audit", "new", "orders", "theirs"}


def values_of(path: Path) -> list[dict[str, str]]:
    """Return the declared values of each resource of one cluster."""
    (files,) = read_files(path)
    return [dict(resource.values) for resource in files.resources]


@pytest.mark.parametrize("layer", ["base", "mid", "top"])
def test_null_in_an_overlay_removes_a_default(layer: str, tmp_path: Path) -> None:
    # given
    write(
        tmp_path,
        {
            f"{layer}/defaults.yaml": (
                "defaults: {topics: {partitions: 3, configs: {flush.ms: 1, max.message.bytes: 9}}}"
            ),
            "base/topics.yaml": "topics: {orders: {configs: {retention.ms: 5}}}",
            "mid/klamm.yaml": "{bases: [../base], topics: {orders: {partitions: , configs: {flush.ms: }}}}",
            "top/klamm.yaml": "{bases: [../mid], topics: {orders: {configs: {segment.ms: 7}}}}",
        },
    )
    # then
    assert values_of(tmp_path / "top") == [{"retention.ms": "5", "segment.ms": "7", "max.message.bytes": "9"}]


def test_overlay_restores_values_removed_by_its_base(tmp_path: Path) -> None:
    # given
    write(
        tmp_path,
        {
            "base/topics.yaml": "topics: {orders: {partitions: 3, configs: {flush.ms: 1, retention.ms: 5}}}",
            "mid/klamm.yaml": "{bases: [../base], topics: {orders: {partitions: , configs: {flush.ms: }}}}",
            "top/klamm.yaml": "{bases: [../mid], topics: {orders: {partitions: 6, configs: {flush.ms: 2}}}}",
        },
    )
    # then
    assert values_of(tmp_path / "top") == [{"partitions": "6", "flush.ms": "2", "retention.ms": "5"}]


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"a.yaml": "topics: {t: }", "b.yaml": "topics: {t: }"}, "b.yaml: topics.t: is declared in"),
        (
            {"a.yaml": "{quotas: {user=u: {quotas: {}}}, users: {u: {quotas: {}}}}"},
            "quota user=u is declared in",
        ),
        ({"klamm.yaml": "bases: [low]", "low/klamm.yaml": "bases: [..]"}, "are bases of each other"),
        ({"a.yaml": "cluster: prod"}, "unknown key cluster"),
        (
            {"new/klamm.yaml": "{cluster: prod, topics: {t: }}", "old/klamm.yaml": "cluster: prod"},
            "new as well; expected once",
        ),
        ({"notes.txt": "topics: {}"}, "expected at least one file *.yaml"),
        ({"klamm.yaml": "bases: [low]", "low/notes.txt": ""}, "low: expected at least one file *.yaml"),
    ],
)
def test_contradicting_files_are_rejected(files: dict[str, str], complaint: str, tmp_path: Path) -> None:
    write(tmp_path, files)
    with pytest.raises(SettingsError) as rejected:
        read_files(tmp_path)
    assert complaint in str(rejected.value)


def test_secret_is_read_from_its_source_only_and_without_line_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text("s3cret\n")
    monkeypatch.setenv("RESOURCES_TEST_SECRET", "other")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Secret(path=Path("~/secret")).read() == "s3cret"
    assert Secret(path=file).read() == "s3cret"
    assert Secret(variable="RESOURCES_TEST_SECRET").read() == "other"
    for secret, complaint in (
        (Secret(variable="RESOURCES_TEST_UNSET"), "variable RESOURCES_TEST_UNSET is not set"),
        (Secret(path=tmp_path / "none"), "cannot be read: No such file"),
        (Secret(path=Path("~no-such-user/secret")), "cannot be read: Could not determine home directory"),
        (Secret(path=tmp_path / "a\0b"), "cannot be read: embedded null byte"),
    ):
        with pytest.raises(SettingsError, match=complaint):
            secret.read()
