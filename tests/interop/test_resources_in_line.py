"""The second plan of any resources is empty, on Apache Kafka and on klamm, in any notation of values."""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from klamm import cli
from klamm.admin import AdminClient
from klamm.resources.schemas import resources_schema
from klamm.strict_yaml import load_yaml_documents
from tests.support.kafka import KafkaCluster
from tests.support.klamm import KlammBroker
from tests.support.long_tests import long_only
from tests.support.processes import wait_until
from tests.support.schemas import draft_validator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.probe import Cluster

EXAMPLES = 60 if os.environ.get("KLAMM_SOAK") else 4
AUTHORIZED = {"super.users": "User:ANONYMOUS"}
KAFKAS_AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
PREFIX = "in-line"


@pytest.fixture(scope="module", params=["klamm", *long_only("kafka")])
def in_line_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster with an authorizer, of its own because brokers are changed."""
    if request.param == "kafka":
        request.getfixturevalue("java")
        with KafkaCluster(properties=AUTHORIZED | KAFKAS_AUTHORIZER) as kafka:
            yield kafka
    else:
        with KlammBroker(AUTHORIZED | KAFKAS_AUTHORIZER) as broker:
            yield broker


def number(low: int, high: int) -> st.SearchStrategy[Any]:
    """Numbers in the forms that Kafka reads as the same one."""
    numbers = st.integers(low, high)
    return st.one_of(numbers, numbers.map(str), numbers.map(lambda n: f" {n}"), numbers.map(lambda n: f"+{n}"))


def distinct(*values: str) -> st.SearchStrategy[Any]:
    """Lists in any order, as YAML lists or as text with blanks."""
    lists = st.lists(st.sampled_from(values), min_size=1, max_size=len(values), unique=True)
    return st.one_of(lists, lists.map(" , ".join), lists.map(",".join))


FLAGS = st.sampled_from([True, False, "true", "FALSE", " True"])
TOPIC = st.fixed_dictionaries(
    {},
    optional={
        "retention.ms": st.one_of(number(1_000, 2**40), st.just(-1), st.just("7d")),
        "cleanup.policy": distinct("compact", "delete"),
        "min.cleanable.dirty.ratio": st.sampled_from([0.5, "0.50", "5e-1", "1", 0]),
        "preallocate": FLAGS,
        "compression.type": st.sampled_from(["zstd", "producer", " gzip "]),
        "max.message.bytes": number(1_000, 2**20),
        "leader.replication.throttled.replicas": st.sampled_from(["*", "0:1"]),
    },
)
BROKER = st.fixed_dictionaries(
    {},
    optional={
        "log.retention.ms": number(2**30, 2**40),
        "log.cleaner.threads": number(1, 2),
        "log.cleanup.policy": distinct("compact", "delete"),
        "log.preallocate": FLAGS,
    },
)
GROUP = st.fixed_dictionaries(
    {},
    optional={
        "consumer.session.timeout.ms": number(45_000, 60_000),
        "consumer.heartbeat.interval.ms": number(5_000, 15_000),
    },
)
SUBSCRIPTION = st.fixed_dictionaries(
    {"interval.ms": number(1_000, 60_000)}, optional={"metrics": distinct("org.apache.kafka.producer.", "b.", "c.")}
)
RATE = st.one_of(st.integers(1, 2**40), st.integers(1, 2**40).map(str), st.integers(1, 2**40).map(float))
QUOTAS = st.fixed_dictionaries(
    {"producerByteRate": RATE}, optional={"requestPercentage": st.floats(0.25, 400), "consumer_byte_rate": RATE}
)
OPERATION = st.sampled_from(["Read", "Write", "Describe", "DescribeConfigs", "all", "ALTER_CONFIGS"])
ACL = st.fixed_dictionaries(
    {
        "resource": st.fixed_dictionaries(
            {"type": st.just("topic"), "name": st.sampled_from(["a", "b c", "x:y from *"])},
            optional={"patternType": st.sampled_from(["literal", "prefix"])},
        ),
        "operations": st.lists(OPERATION, min_size=1, max_size=3),
    },
    optional={"host": st.sampled_from(["*", "10.0.0.1"]), "type": st.sampled_from(["allow", "deny"])},
)
USER = st.fixed_dictionaries(
    {
        "authentication": st.fixed_dictionaries(
            {
                "type": st.sampled_from(["scram-sha-256", "scram-sha-512"]),
                "password": st.just({"env": "IN_LINE_TEST_PASSWORD"}),
            },
            optional={"iterations": st.sampled_from([4096, 5000])},
        ),
        "authorization": st.builds(lambda acls: {"type": "simple", "acls": acls}, st.lists(ACL, max_size=4)),
        "quotas": QUOTAS,
    }
)
CLIENT = st.fixed_dictionaries(
    {},
    optional={
        "acks": st.sampled_from(["all", -1, 1]),
        "session.timeout.ms": st.sampled_from([45000, " 46000", "+47000"]),
    },
)


@st.composite
def resources(draw: st.DrawFn) -> dict[str, Any]:
    """Return resources of all kinds that real Kafka has."""
    configs = {kind: draw(strategy) for kind, strategy in (("b", BROKER), ("g", GROUP), ("m", SUBSCRIPTION))}
    return {
        "topics": {
            f"{PREFIX}-{index}": {
                "partitions": draw(st.integers(1, 3)),
                "replication_factor": 1,
                "configs": draw(TOPIC),
            }
            for index in range(2)
        },
        "brokers": {"default": {"configs": configs["b"]}, "1": {"configs": draw(BROKER)}},
        "users": {f"{PREFIX} =,%": draw(USER)},
        "quotas": {
            f"client-id=<default>,user={PREFIX}-2": {"quotas": draw(QUOTAS)},
            "ip=10.0.0.1": {"quotas": {"connectionCreationRate": draw(st.integers(1, 2**30))}},
        },
        "acls": {"User:*": {"acls": draw(st.lists(ACL, max_size=2))}},
        "groups": {f"{PREFIX}-group": {"configs": configs["g"]}},
        "client_metrics": {f"{PREFIX}-metrics": {"configs": configs["m"]}},
    }


@settings(
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(declared=resources(), client=CLIENT)
def test_second_plan_is_empty(
    declared: dict[str, Any],
    client: dict[str, Any],
    in_line_cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given
    monkeypatch.setenv("IN_LINE_TEST_PASSWORD", "a password")
    if isinstance(in_line_cluster, KlammBroker):
        declared["client_configs"] = {f"user={PREFIX},client-id=<default>": {"configs": client}}
    file = tmp_path / "resources.json"
    file.write_text(json.dumps(declared))
    empty = tmp_path / "nothing.yaml"
    empty.write_text("topics: {}")
    clean(in_line_cluster, empty)
    # when
    applied = run(in_line_cluster, "apply", str(file), "--prune-configs")
    # then
    assert applied[0] == 0, applied
    plans: list[tuple[int, str, str]] = []

    def is_in_line() -> bool:
        plans[:] = [run(in_line_cluster, "plan", str(file), "--check", "--prune-configs")]
        return plans[0][0] == 0

    try:  # a broker of real Kafka describes what its controller has told it
        wait_until(is_in_line, timeout_s=20, what="the second plan to be empty")
    except TimeoutError as error:
        raise AssertionError(f"{applied} {plans}") from error
    # when
    exported = tmp_path / "exported.yaml"
    assert run(in_line_cluster, "export", str(exported))[0] == 0
    # then
    draft_validator()(resources_schema()).validate(*load_yaml_documents(exported.read_text()))
    assert run(in_line_cluster, "plan", str(exported), "--check", "--prune-configs")[0] == 0


def run(cluster: Cluster, *words: str) -> tuple[int, str, str]:
    """Run a command and return its exit code and what it wrote."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main([*words, "--bootstrap-server", cluster.bootstrap_servers])
    return code, out.getvalue(), err.getvalue()


def clean(cluster: Cluster, empty: Path) -> None:
    """Delete what an earlier example left, by a file without resources."""
    kinds = ("topics", "quotas", "acls", "scram-users", "groups", "client-metrics")
    prune = [word for kind in kinds for word in ("--prune", kind)]
    with AdminClient(cluster.bootstrap_servers) as admin:
        deleted = [name for name in admin.list_topics().result() if name.startswith(PREFIX)]
        code, out, err = run(cluster, "apply", str(empty), *prune, "--max-deletes", "1000")
        assert code == 0, (out, err)
        wait_until(
            lambda: not set(deleted) & set(admin.list_topics().result()), timeout_s=20, what="the topics to be gone"
        )
