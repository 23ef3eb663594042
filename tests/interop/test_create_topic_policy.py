"""A create-topic policy in a running broker, from the view of clients (KIP-108)."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import klamm
from klamm.embedded.server_process import BrokerStartError
from tests.support.conformance_kit import load_runner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# It writes down what it sees, and denies by the first word of the topic's name.
POLICY = """
import json
import time
from pathlib import Path

from klamm.policy import CreateTopicPolicy, InvalidRequestError, PolicyViolationError

class HouseRules(CreateTopicPolicy):
    inside = 0

    def configure(self, configs):
        self.journal = Path(configs["house.journal"])
        self.note({"configured": configs["num.partitions"]})

    def note(self, line):
        with self.journal.open("a") as file:
            file.write(json.dumps(line) + "\\n")

    def validate(self, details):
        self.inside += 1
        self.note({
            "topic": details.topic,
            "num_partitions": details.num_partitions,
            "replication_factor": details.replication_factor,
            "assignments": None if details.replicas_assignments is None
                else {str(p): list(b) for p, b in details.replicas_assignments.items()},
            "configs": dict(details.configs),
            "principal": details.principal,
            "client_id": details.client_id,
            "inside": self.inside,
        })
        time.sleep(0.002)
        try:
            match details.topic.split("-")[0]:
                case "denied":
                    raise PolicyViolationError(f"{details.topic}: not in this house")
                case "invalid":
                    raise InvalidRequestError(f"{details.topic}: the KIP says so")
                case "broken":
                    raise ValueError("the policy itself is wrong")
                case "meddler":
                    details.configs["retention.ms"] = "1"
        finally:
            self.inside -= 1

    def close(self):
        self.note({"closed": True})
"""


CONFIG_POLICY = """
from klamm.policy import AlterConfigPolicy, PolicyViolationError

class ConfigRules(AlterConfigPolicy):
    def validate(self, details):
        flush = details.result.get("flush.ms")
        if flush is not None and int(flush) < 1000:
            raise PolicyViolationError(
                f"{details.resource_type} {details.resource_name}: flush.ms={flush} is below 1000"
            )
"""


class PolicyBroker:
    """A broker with the policy, a connection to it, and what the policy wrote down."""

    def __init__(self, broker: klamm.Broker, journal: Path) -> None:
        self._runner = load_runner()
        self.broker = broker
        self._journal = journal
        self._connections: list[Any] = []
        self._connection = self.connect()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def connect(self) -> Any:
        host, _, port = self.broker.bootstrap_servers.partition(",")[0].rpartition(":")
        self._connections.append(self._runner.Connection(host, int(port), 20.0))
        return self._connections[-1]

    def call(self, api: str, version: int, body: dict[str, Any], connection: Any = None) -> Any:
        return (connection or self._connection).call(api, version, body)

    def create(
        self, *topics: dict[str, Any], validate_only: bool = False, connection: Any = None
    ) -> dict[str, tuple[str, str | None]]:
        usual: dict[str, Any] = {"partitions": 1, "replication": 1, "assignments": [], "configs": []}
        body = {"topics": [usual | topic for topic in topics], "timeout": 15000, "validate_only": validate_only}
        answers = self.call("CreateTopics", 7, body, connection)["topics"]
        return {a["name"]: (self._runner.kit.error_name(a["error"]), a["message"]) for a in answers}

    def exists(self, name: str) -> bool:
        topics = self.call("Metadata", 12, {"topics": [{"name": name}], "auto_create": False})["topics"]
        return bool(topics[0]["error"] == 0)

    def seen(self, *names: str) -> list[dict[str, Any]]:
        """Return the policy's calls for these topics, in order."""
        return [line for line in self.lines() if line.get("topic") in names]

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._journal.read_text().splitlines()]


@pytest.fixture(scope="module")
def policy_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The policy, importable by the broker because it is importable here."""
    directory = tmp_path_factory.mktemp("policy")
    (directory / "klamm_house_rules.py").write_text(POLICY)
    sys.path.insert(0, str(directory))
    yield directory
    sys.path.remove(str(directory))


@pytest.fixture(scope="module")
def policy_broker(policy_module: Path) -> Iterator[PolicyBroker]:
    journal = policy_module / "journal"
    config = {
        "create.topic.policy.class.name": "klamm_house_rules:HouseRules",
        "house.journal": str(journal),
        "num.partitions": "2",
    }
    with klamm.Broker(brokers=2, config=config) as broker:
        policy_broker = PolicyBroker(broker, journal)
        yield policy_broker
        policy_broker.close()


def test_denied_topic_reports_reason_and_others_are_created(policy_broker: PolicyBroker) -> None:
    """K108-05: Denial -> the topic's result is 42.

    K108-06: Denial touches only that topic; the others are processed.

    K108-07: Topics are processed one after the other in request order; per topic: hard-coded checks, then policy, then
    creation.

    K108-11: v0 answer has no message; v1+ carries the exception text.
    """
    names = ["first", "denied-1", "invalid-1", "last"]
    assert policy_broker.create(*({"name": name} for name in names)) == {
        "first": ("NONE", None),
        "denied-1": ("POLICY_VIOLATION", "denied-1: not in this house"),
        "invalid-1": ("INVALID_REQUEST", "invalid-1: the KIP says so"),
        "last": ("NONE", None),
    }
    assert [line["topic"] for line in policy_broker.seen(*names)] == names, "in the order of the request"
    assert [policy_broker.exists(name) for name in names] == [True, False, False, True]


def test_failing_policy_fails_one_topic_only(policy_broker: PolicyBroker) -> None:
    """K108-19: Any other exception from the policy fails only that topic (-1), is logged, and the broker lives on.

    K108-20: The policy cannot change the request (read-only maps).
    """
    assert policy_broker.create({"name": "broken-1"}, {"name": "meddler-1"}, {"name": "after-broken"}) == {
        "broken-1": ("UNKNOWN_SERVER_ERROR", None),
        "meddler-1": ("UNKNOWN_SERVER_ERROR", None),
        "after-broken": ("NONE", None),
    }
    assert "the policy itself is wrong" in policy_broker.broker.log_text()


def test_checks_of_the_broker_come_before_the_policy(policy_broker: PolicyBroker) -> None:
    """K108-08: numPartitions/replicationFactor together with replicaAssignments -> 42 before the policy runs.

    K108-09: Policy passes -> creation goes on as usual and may still fail otherwise.

    K108-10: Existing topic -> 36 without calling the policy.

    K108-21: Duplicate topic in a request -> 42 for it, policy not called.
    """
    policy_broker.create({"name": "there-already"})
    bad: dict[str, dict[str, Any]] = {
        "there-already": {},
        "two-ways": {"assignments": [{"index": 0, "brokers": [1]}]},
        "too-many": {"replication": 3},
        "no-partitions": {"partitions": 0},
        "bad-config": {"configs": [{"name": "no.such", "value": "1"}]},
        "bad name!": {},
    }
    before = len(policy_broker.lines())
    answers = policy_broker.create(
        *({"name": name} | more for name, more in bad.items()), {"name": "twice"}, {"name": "twice"}
    )
    assert {name: code for name, (code, _) in answers.items()} == {
        "there-already": "TOPIC_ALREADY_EXISTS",
        "two-ways": "INVALID_REQUEST",
        "too-many": "INVALID_REPLICATION_FACTOR",
        "no-partitions": "INVALID_PARTITIONS",
        "bad-config": "INVALID_CONFIG",
        "bad name!": "INVALID_TOPIC_EXCEPTION",
        "twice": "INVALID_REQUEST",
    }
    assert len(policy_broker.lines()) == before, "the policy was asked about none of them"


def test_policy_receives_request_with_defaults_resolved(policy_broker: PolicyBroker) -> None:
    """K108-04: TopicDetails carries topic, numPartitions, replicationFactor, replicasAssignments (partition -> broker
    ids), configs.

    K108-15: configs = only those in the request, no broker defaults.

    K108-17: No assignment: numbers filled (defaults resolved when -1), replicasAssignments None.
    """
    policy_broker.create(
        {"name": "defaults", "partitions": -1, "replication": -1, "configs": [{"name": "flush.ms", "value": "5"}]}
    )
    (seen,) = policy_broker.seen("defaults")
    assert seen["num_partitions"] == 2
    assert seen["replication_factor"] == 1
    assert seen["assignments"] is None
    assert seen["configs"] == {"flush.ms": "5"}
    assert (seen["principal"], seen["client_id"]) == ("User:ANONYMOUS", "conformance")


def test_policy_receives_assignments_without_counts(policy_broker: PolicyBroker) -> None:
    """K108-16: Manual assignment: replicasAssignments filled, the two numbers unset."""
    assignments = [{"index": 0, "brokers": [2, 1]}, {"index": 1, "brokers": [1, 2]}]
    answers = policy_broker.create({"name": "by-hand", "partitions": -1, "replication": -1, "assignments": assignments})
    assert answers == {"by-hand": ("NONE", None)}
    (seen,) = policy_broker.seen("by-hand")
    assert (seen["num_partitions"], seen["replication_factor"]) == (None, None)
    assert seen["assignments"] == {"0": [2, 1], "1": [1, 2]}


def test_validate_only_calls_policy_and_creates_nothing(policy_broker: PolicyBroker) -> None:
    """K108-18: validate-only requests (v1+) run the policy and create nothing."""
    answers = policy_broker.create({"name": "only-asking"}, {"name": "denied-2"}, validate_only=True)
    assert {name: code for name, (code, _) in answers.items()} == {
        "only-asking": "NONE",
        "denied-2": "POLICY_VIOLATION",
    }
    assert len(policy_broker.seen("only-asking", "denied-2")) == 2
    assert not policy_broker.exists("only-asking")


def test_policy_decides_on_auto_created_topics(policy_broker: PolicyBroker) -> None:
    """K108-23: The policy also sees topics created by auto-creation and by the mirror (they are create requests)."""
    body = {"topics": [{"name": "auto-made"}, {"name": "denied-auto"}], "auto_create": True}
    for _ in range(2):
        policy_broker.call("Metadata", 12, body)
    assert policy_broker.exists("auto-made")
    assert not policy_broker.exists("denied-auto")
    assert policy_broker.seen("denied-auto")


def test_create_topic_policy_does_not_check_partitions_and_configs(policy_broker: PolicyBroker) -> None:
    """K108-24: CreatePartitions and AlterConfigs are not checked by this policy.

    K108-26: One policy config per request type; a class may implement several but every config must be set.
    """
    policy_broker.create({"name": "changing"})
    before = len(policy_broker.lines())
    grown = {"topics": [{"name": "changing", "count": 3, "assignments": None}], "timeout": 9000, "validate_only": False}
    assert policy_broker.call("CreatePartitions", 3, grown)["results"][0]["error"] == 0
    flush = {"name": "flush.ms", "op": 0, "value": "5"}
    resource = {"type": 2, "name": "changing", "configs": [flush]}
    altered = policy_broker.call("IncrementalAlterConfigs", 1, {"resources": [resource], "validate_only": False})
    assert altered["responses"][0]["error"] == 0
    assert len(policy_broker.lines()) == before


def test_alter_config_policy_decides_on_configs(policy_module: Path) -> None:
    """K339-41, K108-26: every policy has a config of its own."""
    (policy_module / "klamm_config_rules.py").write_text(CONFIG_POLICY)
    with klamm.Broker(config={"alter.config.policy.class.name": "klamm_config_rules:ConfigRules"}) as broker:
        policy_broker = PolicyBroker(broker, policy_module / "unused")
        assert policy_broker.create({"name": "denied-elsewhere"}) == {"denied-elsewhere": ("NONE", None)}

        def alter(value: str) -> tuple[int, str | None]:
            flush = {"name": "flush.ms", "op": 0, "value": value}
            resource = {"type": 2, "name": "denied-elsewhere", "configs": [flush]}
            body = {"resources": [resource], "validate_only": False}
            (answer,) = policy_broker.call("IncrementalAlterConfigs", 1, body)["responses"]
            return answer["error"], answer["message"]

        assert alter("5") == (44, "TOPIC denied-elsewhere: flush.ms=5 is below 1000")
        assert alter("2000") == (0, None)
        policy_broker.close()


def test_calls_of_the_policy_never_overlap(policy_broker: PolicyBroker) -> None:
    """K108-25: Calls are not concurrent."""
    threads = [
        threading.Thread(
            target=lambda n=n: policy_broker.create({"name": f"crowd-{n}"}, connection=policy_broker.connect())
        )
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = policy_broker.seen(*(f"crowd-{n}" for n in range(8)))
    assert len(seen) == 8
    assert {line["inside"] for line in seen} == {1}


def test_policy_is_configured_first_and_closed_last(policy_module: Path) -> None:
    """K108-01, K108-14: under the name that the KIP gives the config."""
    journal = policy_module / "journal-of-another"
    config = {
        "create.topics.policy.class.name": "klamm_house_rules.HouseRules",
        "house.journal": str(journal),
        "num.partitions": "3",
    }
    with klamm.Broker(config=config) as broker:
        policy_broker = PolicyBroker(broker, journal)
        policy_broker.create({"name": "only"})
        policy_broker.close()
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["configured", "topic", "closed"]
    assert lines[0] == {"configured": "3"}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"create.topic.policy.class.name": "klamm_no_such_rules:Any"}, "cannot import klamm_no_such_rules"),
        ({"create.topic.policy.class.name": "klamm_house_rules:HouseRules"}, "KeyError: 'house.journal'"),
        (
            {
                "create.topic.policy.class.name": "klamm_house_rules:HouseRules",
                "create.topics.policy.class.name": "klamm_house_rules:Other",
            },
            "name different policies",
        ),
    ],
)
def test_invalid_policy_fails_broker_start(config: dict[str, str], reason: str, policy_module: Path) -> None:
    """K108-02: Config name.

    K108-12: The code must be importable by the broker ("in the classpath").

    K108-13: Class cannot be loaded, is no policy, or configure fails -> broker does not start, error names the key.
    """
    with pytest.raises(BrokerStartError, match=reason) as denied, klamm.Broker(config=config):
        pass
    assert "create.topic.policy.class.name" in str(denied.value)
