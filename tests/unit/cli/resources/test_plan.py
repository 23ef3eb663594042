"""klamm plan, apply, drift and schema on a broker."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

import klamm
from klamm import cli
from klamm.admin import AdminClient, NewTopic, TopicPartition
from klamm.cli.profiles import find_profile
from klamm.cli.resources import plan
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kafka_client.pool.calls import Outcome
from klamm.properties import SettingsError
from klamm.protocol.errors import ClusterAuthorizationError, TopicAuthorizationError
from klamm.resources.cluster import Observation
from klamm.resources.engine import Plan
from klamm.resources.kinds import KIND_OF
from tests.support.long_tests import long_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

RULES = "klamm.policy.rules:RulesPolicy"
SERVED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with klamm.Broker(config=SERVED) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command and return its exit code and what it wrote."""

    def run_command(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = cli.main(list(words))
        except SystemExit as error:
            code = int(error.code or 0)
        return (code, *capsys.readouterr())

    return run_command


def profiles(home: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    (home / "klamm").mkdir()
    (home / "klamm" / "config.toml").write_text(text, encoding="utf-8")


@pytest.mark.process
def test_apply_of_a_tree_uses_the_profile_of_each_cluster(
    run: Run, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    profiles(tmp_path, monkeypatch, f'[clusters.dev]\nbootstrap_server = "{address}"\n')
    (tmp_path / "tree" / "dev").mkdir(parents=True)
    (tmp_path / "tree" / "dev" / "klamm.yaml").write_text("cluster: dev\ntopics: {of-a-tree: {partitions: 2}}")
    # when
    applied = run("apply", str(tmp_path / "tree"))
    # then
    assert applied == (
        0,
        "+ topic of-a-tree\n    + partitions: 2 (file)\nTopics: 1 created, 0 changed, 0 in line, 0 failed.\n",
        "",
    )
    assert run("topics", "--list", "--cluster", "dev", "--topic", "of-a-tree")[1] == "of-a-tree\n"
    monkeypatch.setenv("KLAMM_BOOTSTRAP_SERVER", address)
    assert run("topics", "--list", "--topic", "of-a-tree")[1] == "of-a-tree\n"
    assert run("plan", str(tmp_path / "tree"), "--cluster", "prod")[0] == 2
    assert "expected one of dev" in run("topics", "--list", "--cluster", "prod")[2]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[clusters.dev", "config.toml: "),
        ("[cluster.dev]", "unknown key cluster: expected default or clusters"),
        ("[clusters.prod]", "--cluster dev: expected one of prod"),
        ("[clusters.dev]", "clusters.dev.bootstrap_server: expected HOST:PORT"),
        ('[clusters.dev]\nserver = "a"', "clusters.dev.server: unknown key: expected one of bootstrap_server"),
        ('[clusters.dev]\nbootstrap_server = "a:1"\ncommand_config = "~no-such-user/x"', "determine home directory"),
        ("[clusters.dev]\nbootstrap_server = 1", "clusters.dev.bootstrap_server: 1: expected a string"),
    ],
)
def test_invalid_profile_is_rejected_by_name(
    text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles(tmp_path, monkeypatch, text)
    with pytest.raises(SettingsError) as rejected:
        find_profile("dev")
    assert complaint in str(rejected.value)


@pytest.mark.process
def test_deletions_above_max_impact_are_rejected_before_any_change(run: Run, address: str, tmp_path: Path) -> None:
    # given
    file = tmp_path / "file.yaml"
    file.write_text("topics: {to-delete: {state: absent}, too-early: {partitions: 1}}")
    at = ("--bootstrap-server", address)
    with AdminClient(address) as admin:
        admin.create_topics([NewTopic("to-delete", 1, 1)]).all().result()
        # when
        rejected = run("apply", str(file), *at, "--max-deletes", "0")
        # then
        assert (rejected[0], rejected[1]) == (1, "")
        assert "would delete 1, more than --max-deletes 0; nothing was changed" in rejected[2]
        assert {"to-delete"} == {"to-delete", "too-early"} & set(admin.list_topics().result())
        # when
        assert run("plan", str(file), *at, "--max-impact", "disruption")[0] in (0, 4)
        assert run("apply", str(file), *at)[0] == 0
        # then
        assert {"too-early"} == {"to-delete", "too-early"} & set(admin.list_topics().result())


@pytest.mark.process
def test_added_partitions_get_the_replication_factor_that_changes_with_them(run: Run, tmp_path: Path) -> None:
    # given
    file = tmp_path / "file.yaml"
    with klamm.Broker(brokers=3) as broker, AdminClient(broker.bootstrap_servers) as admin:
        at = (str(file), "--bootstrap-server", broker.bootstrap_servers)
        admin.create_topics([NewTopic("grown", 2, 1)]).all().result()
        file.write_text("topics: {grown: {partitions: 5, replication_factor: 3}}")
        # when
        applied = run("apply", *at)
        # then
        assert applied[0] == 0
        topic = admin.describe_topics(["grown"]).result()["grown"]
        assert [len(set(partition.replicas)) for partition in topic.partitions] == [3] * 5
        assert run("plan", *at, "--check")[0] == 0
        # when
        file.write_text("topics: {grown: {partitions: 7, replication_factor: 4}}")
        # then
        assert "expected at most 3, the number of brokers" in run("apply", *at)[2]
        assert len(admin.describe_topics(["grown"]).result()["grown"].partitions) == 5


@pytest.mark.process
def test_failed_kind_stops_later_kinds_unless_keep_going(run: Run, address: str, tmp_path: Path) -> None:
    # given
    file = tmp_path / "file.yaml"
    file.write_text(
        "topics: {rejected-one: {configs: {retention.ms: soon}}, good-one: {}}\n"
        "quotas: {user=stopped: {quotas: {producer_byte_rate: 5}}}\n"
    )
    at = ("--bootstrap-server", address)
    # when
    stopped = run("apply", str(file), *at)
    # then
    assert stopped[0] == 1
    assert "+ quota user=stopped: not attempted" in stopped[1]
    assert stopped[1].endswith("Resources: 1 created, 0 changed, 0 in line, 1 failed, 1 not attempted.\n")
    # when
    assert run("apply", str(file), *at, "--keep-going")[0] == 1
    # then
    assert "Resources: 0 to create, 0 to change, 2 in line, 1 rejected." in run("plan", str(file), *at)[1]


@pytest.mark.process
@pytest.mark.parametrize("flags", [[], ["--keep-going"]])
def test_broker_default_waits_for_the_topic_that_inherits_it(
    run: Run, address: str, flags: list[str], tmp_path: Path
) -> None:
    # given
    rules, file = tmp_path / "rules.yaml", tmp_path / "file.yaml"
    rules.write_text("rules:\n  - {name: short, topics: audit, configs: {retention.ms: {max: 1d}}}\n")
    file.write_text(
        "brokers: {default: {configs: {log.retention.ms: 1h}}}\ntopics: {audit: {configs: {retention.ms: 7d}}}"
    )
    with AdminClient(address) as admin:
        admin.create_topics([NewTopic("audit", 1, 1)]).result()
        # when
        code, out, _ = run("apply", str(file), "--bootstrap-server", address, "--rules", str(rules), *flags)
        # then
        assert code == 1
        assert "~ broker default: not attempted, because a resource that inherits one of these values failed" in out
        assert admin.topic_configs("audit").result()["retention.ms"].value == "604800000"
        admin.delete_topics(["audit"]).result()


@pytest.mark.process
@pytest.mark.parametrize(
    ("declared", "rule"),
    [
        ("cleanup.policy: compact", "effect: override, configs: {min.insync.replicas: {required: true, value: 2}}"),
        ("cleanup.policy: compact", "configs: {retention.ms: {required: true}}"),
        ("local.retention.ms: -2", "configs: {local.retention.ms: {max: 1d}}"),
    ],
)
def test_rules_judge_undeclared_configs_of_topic(
    run: Run, address: str, declared: str, rule: str, tmp_path: Path
) -> None:
    # given
    rules, file = tmp_path / "rules.yaml", tmp_path / "file.yaml"
    rules.write_text(f"rules:\n  - {{name: sound, {rule}}}\n")
    file.write_text(f"topics: {{sound: {{configs: {{{declared}}}}}}}")
    configs = {"min.insync.replicas": "3", "retention.ms": "3600000", "local.retention.ms": "1000"}
    with AdminClient(address) as admin:
        admin.create_topics([NewTopic("sound", 1, 1, configs=configs)]).result()
        # when
        code, out, err = run("plan", str(file), "--bootstrap-server", address, "--rules", str(rules))
        admin.delete_topics(["sound"]).result()
    # then
    assert (code, err) == (0, "")
    assert sum(line.lstrip()[:1] in tuple("+~-") for line in out.splitlines()) == 2, out


@pytest.mark.process
def test_rules_denial_is_shown_in_markdown_plan(run: Run, address: str, tmp_path: Path) -> None:
    # given
    rules, file = tmp_path / "rules.yaml", tmp_path / "file.yaml"
    rules.write_text("rules:\n  - {name: sizes, topics: 'small[.].*', partitions: {max: 3}, deletion: forbidden}\n")
    file.write_text("topics: {small.a: {partitions: 9}, large: {partitions: 9}}")
    # when
    code, out, err = run("plan", str(file), "--bootstrap-server", address, "--rules", str(rules), "-o", "markdown")
    # then
    assert code == 1
    assert "Topics: 1 to create, 0 to change, 0 in line, 1 rejected." in out
    assert "- ! topic small.a: " in out
    assert "Rule 'sizes'" in err
    assert run("plan", str(file), "--offline", "--rules", str(rules))[0] == 1


@pytest.mark.process
@pytest.mark.parametrize(
    ("section", "config"),
    [
        ("topics", "retention.ms: 5000"),
        ("groups", "consumer.session.timeout.ms: 46000"),
        ("client_metrics", "interval.ms: 5000"),
    ],
)
def test_resource_named_default_is_managed_like_others(
    run: Run, address: str, section: str, config: str, tmp_path: Path
) -> None:
    """Only among the brokers is it the name of what holds for all of them."""
    # given
    file, exported, absent, rules = (tmp_path / f"{name}.yaml" for name in ("file", "exported", "absent", "rules"))
    file.write_text(f"{section}: {{default: {{configs: {{{config}}}}}}}")
    absent.write_text(f"{section}: {{default: {{state: absent}}}}")
    rules.write_text("rules:\n  - {name: short, topics: default, configs: {retention.ms: {max: 1000}}}\n")
    at = ("--bootstrap-server", address)
    assert run("apply", str(file), *at)[0] == 0
    # when
    assert run("export", str(exported), *at, "--kind", KIND_OF[section])[0] == 0
    # then
    assert f"  default:\n    configs:\n      {config}\n" in exported.read_text().replace(
        "    partitions: 1\n    replication_factor: 1\n", ""
    )
    assert run("plan", str(exported), *at, "--check", "--prune-configs")[0] == 0
    # and: a change of it, not of the defaults, is what rules see
    file.write_text(file.read_text().replace("000", "001"))
    assert ("Rule 'short'" in run("plan", str(file), *at, "--rules", str(rules))[2]) is (section == "topics")
    # and
    assert run("apply", str(absent), *at)[0] == 0
    assert run("plan", str(exported), *at, "--check")[0] == 3


CORRECTING = """rules:
  - {name: a week, effect: override, configs: {retention.ms: {max: 7d}}}
  - {name: smaller, effect: override, configs: {segment.ms: {max: 1d}}}
"""


@pytest.mark.process
@pytest.mark.parametrize("cluster_rules", [CORRECTING, *long_only(None, CORRECTING.replace("7d", "2d"))])
def test_value_that_rules_override_is_planned_sent_and_stored_alike(
    run: Run, cluster_rules: str | None, tmp_path: Path
) -> None:
    # given
    rules, file, at_cluster = tmp_path / "rules.yaml", tmp_path / "file.yaml", tmp_path / "cluster.yaml"
    rules.write_text(CORRECTING)
    config: dict[str, str] = {}
    if cluster_rules is not None:
        at_cluster.write_text(cluster_rules)
        config = {f"{key}.policy.class.name": RULES for key in ("create.topic", "alter.config")}
        config |= {"policy.rules.file": str(at_cluster)}
    with klamm.Broker(config=config) as broker, AdminClient(broker.bootstrap_servers) as admin:
        at = (str(file), "--bootstrap-server", broker.bootstrap_servers, "--rules", str(rules))
        for retention in ("30d", "60d"):
            file.write_text(f"topics: {{new: {{configs: {{retention.ms: {retention}, segment.ms: 3d}}}}}}")
            # when
            planned, applied = run("plan", *at), run("apply", *at)
            # then
            assert applied[0] == 0
            assert planned[1].splitlines()[:-1] == applied[1].splitlines()[:-1]
            stored = {key: entry.value for key, entry in admin.topic_configs("new").result().items()}
            for key in ("retention.ms", "segment.ms"):
                assert f"  policy: {key}={stored[key]} in place of " in applied[1]
            assert int(str(stored["retention.ms"])) <= 7 * 86_400_000
            assert stored["segment.ms"] == "86400000"
            assert run("plan", *at, "--check")[0] == 0
            admin.alter_topic_configs("new", set={"retention.ms": 1000, "segment.ms": 1000}).result()


def test_offline_plan_shows_values_that_rules_override(run: Run, tmp_path: Path) -> None:
    # given
    rules, file = tmp_path / "rules.yaml", tmp_path / "file.yaml"
    rules.write_text(CORRECTING)
    file.write_text("topics: {new: {configs: {retention.ms: 30d}}}")
    # when
    code, out, _ = run("plan", str(file), "--offline", "--rules", str(rules))
    # then
    assert code == 0
    assert "+ retention.ms: 604800000 (7 days, policy)\n" in out
    assert "policy: retention.ms=604800000 in place of 2592000000\n" in out


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("{name: few, partitions: {max: 3}}", "Rule 'few'"),
        ("{name: longer, configs: {retention.ms: {min: 10d}}}", "Rule 'longer'"),
        ("{name: longer, effect: override, configs: {retention.ms: {min: 10d}}}", "two of its rules contradict"),
    ],
)
def test_rules_decide_on_the_result_of_their_overrides(run: Run, rule: str, reason: str, tmp_path: Path) -> None:
    rules, file = tmp_path / "rules.yaml", tmp_path / "file.yaml"
    rules.write_text(f"{CORRECTING}  - {rule}\n")
    file.write_text("topics: {new: {partitions: 9, configs: {retention.ms: 30d}}}")
    code, _, err = run("plan", str(file), "--offline", "--rules", str(rules))
    assert (code, reason in err) == (1, True), err


@pytest.mark.process
def test_impact_of_a_lowered_retention_is_shown_and_limited(run: Run, address: str, tmp_path: Path) -> None:
    # given
    file = tmp_path / "file.yaml"
    file.write_text("topics: {impacted: {state: absent}}")
    at = ("--bootstrap-server", address)
    with AdminClient(address) as admin:
        admin.create_topics([NewTopic("impacted", 1, 1)]).all().result()
    produced = klamm_produce(address, "impacted")
    # when
    code, out, _ = run("plan", str(file), *at)
    # then
    assert produced
    assert code == 0
    assert "Impact: loss" in out
    assert run("apply", str(file), *at, "--max-impact", "notice")[0] == 4
    assert "impacted" in run("topics", "--list", *at)[1]


@pytest.mark.process
def test_impact_that_cannot_be_determined_is_worse_than_max_impact(
    run: Run, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    def rejected(*_: object) -> None:
        raise TopicAuthorizationError("Authorization failed.")

    monkeypatch.setattr("klamm.admin.impact.impact_of", rejected)
    file = tmp_path / "file.yaml"
    file.write_text("topics: {of-unknown-impact: {configs: {retention.ms: 1000}}}")
    with AdminClient(address) as admin:
        admin.create_topics([NewTopic("of-unknown-impact", 1, 1)]).all().result()
    apply = ("apply", str(file), "--bootstrap-server", address)
    # when
    code, out, err = run(*apply, "--max-impact", "disruption")
    # then
    assert code == 4
    assert "Unknown: the cluster's facts cannot be read: " in out
    assert err.startswith("nothing was changed: the impact may be worse than --max-impact disruption, because facts")
    assert run(*apply, "--validate-only")[0] == 0
    assert run(*apply, "--validate-only", "--max-impact", "none")[0] == 4
    assert "1 changed" in run(*apply, "--max-impact", "loss")[1]


@pytest.mark.process
def test_impact_rules_deny_plan_that_would_lose_data(run: Run, address: str, tmp_path: Path) -> None:
    # given
    with AdminClient(address) as admin:
        admin.create_topics([NewTopic("ruled", 1, 1)]).result()
    assert klamm_produce(address, "ruled")
    (rules := tmp_path / "rules.yaml").write_text("rules: [{name: keep, data_loss: forbidden}]")
    (file := tmp_path / "ruled.yaml").write_text("topics: {ruled: {configs: {retention.ms: 1}}}")
    # when
    code, out, err = run("plan", str(file), "--bootstrap-server", address, "--rules", str(rules))
    # then
    assert code == 1
    assert "Rule 'keep': the change of topic ruled would lose data" in err, out


def klamm_produce(address: str, topic: str) -> bool:
    from kafka import KafkaProducer  # noqa: PLC0415

    producer = KafkaProducer(bootstrap_servers=address)
    producer.send(topic, b"x" * 1000).get(timeout=30)
    producer.close()
    return True


@pytest.mark.process
def test_drift_is_reported_with_a_metric_per_resource(run: Run, address: str, tmp_path: Path) -> None:
    # given
    file, metrics = tmp_path / "file.yaml", tmp_path / "klamm.prom"
    file.write_text("topics: {drifting: {partitions: 1, configs: {retention.ms: 7d}}}")
    at = ("--bootstrap-server", address)
    assert run("apply", str(file), *at)[0] == 0
    watch = ("drift", str(file), *at, "--once", "--metrics-file", str(metrics))
    # when
    assert run(*watch)[0] == 0
    # then
    assert 'klamm_drift_keys{cluster="",kind="topic",resource="drifting"} 0' in metrics.read_text()
    # when
    with AdminClient(address) as admin:
        admin.alter_topic_configs("drifting", set={"retention.ms": 1}).result()
    code, out, _ = run(*watch)
    # then
    assert code == 3
    assert "~ retention.ms: 1 (topic) -> 604800000 (7 days, file)" in out
    assert 'klamm_drift_keys{cluster="",kind="topic",resource="drifting"} 1' in metrics.read_text()


@pytest.mark.parametrize(("name", "key"), [("resources", "topics"), ("rules", "rules")])
def test_schema_is_json_with_the_keys_of_the_file(name: str, key: str, run: Run) -> None:
    code, out, _ = run("schema", name)
    assert code == 0
    schema = json.loads(out)
    assert key in schema.get("else", schema)["properties"]  # manifests of Strimzi have other keys


@pytest.mark.process
@pytest.mark.parametrize("metrics", [".", "/"])
def test_directory_for_metrics_is_rejected(metrics: str, run: Run, address: str, tmp_path: Path) -> None:
    (file := tmp_path / "file.yaml").write_text("topics: {}")
    code, _, err = run("drift", str(file), "--bootstrap-server", address, "--once", "--metrics-file", metrics)
    assert (code, err) == (1, f"klamm drift: --metrics-file {metrics}: expected a file, not a directory\n")


@pytest.mark.process
def test_unset_secret_is_reported_with_one_place(run: Run, address: str, tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("users: {bob: {authentication: {type: scram-sha-256, password: {env: PLAN_TEST_UNSET}}}}")
    code, _, err = run("plan", str(file), "--bootstrap-server", address)
    unset = "the environment variable PLAN_TEST_UNSET is not set; export it and try again"
    assert (code, err) == (1, f"klamm plan: scram-user bob: {file}: users.bob: {unset}\n")


@pytest.mark.parametrize("limit", [("--max-impact", "none"), ("--max-deletes", "0")], ids=lambda limit: limit[0])
def test_limit_that_needs_a_cluster_is_rejected_offline(limit: tuple[str, str], run: Run, tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("topics: {}")
    code, out, err = run("plan", str(tmp_path / "file.yaml"), "--offline", *limit)
    assert (code, out) == (cli.EXIT_USAGE, "")
    assert f"{limit[0]} needs a cluster, not --offline" in err


def test_principal_without_rules_is_rejected(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("topics: {}")
    code, out, err = run("plan", str(tmp_path / "file.yaml"), "--offline", "--principal", "alice")
    assert (code, out) == (cli.EXIT_USAGE, "")
    assert "--principal needs --rules" in err


class MovingAdmin(AbstractContextManager["MovingAdmin"]):
    """Cluster in which a replica moves, with the outcomes of the calls that list the moves."""

    def __init__(self, outcomes: Sequence[BaseException | dict[TopicPartition, None]]) -> None:
        self._outcomes = iter(({}, *outcomes))

    def __exit__(self, *_: object) -> None: ...

    def list_partition_reassignments(self, _: object) -> Outcome[Any]:
        outcome: Outcome[Any] = Outcome()
        listed = next(self._outcomes)
        if isinstance(listed, BaseException):
            outcome.set_exception(listed)
        else:
            outcome.set_result(listed)
        return outcome


@pytest.fixture
def throttled(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Apply with a throttle to a cluster whose listings of the moves have these outcomes."""

    class Throttle:
        def __init__(self, *_: object) -> None:
            self.take_over = self.begin = self.end = lambda *_: None

    def apply(*outcomes: BaseException | dict[TopicPartition, None]) -> tuple[int, str, str]:
        applied = Plan(diffs=(), failed={}, observation=Observation(resources={}), moves=(TopicPartition("moving", 0),))
        monkeypatch.setattr(plan, "connected", lambda *_: MovingAdmin(outcomes))
        monkeypatch.setattr("klamm.resources.engine.make_plan", lambda *_: applied)
        monkeypatch.setattr("klamm.resources.engine.apply_plan", lambda *_, **__: applied)
        monkeypatch.setattr("klamm.resources.throttle.MoveThrottle", Throttle)
        monkeypatch.setattr("klamm.resources.throttle.POLL_INTERVAL_S", 0)
        (tmp_path / "file.yaml").write_text("topics: {}")
        return run("apply", str(tmp_path / "file.yaml"), "--throttle", "1000")

    return apply


def test_throttled_apply_waits_through_an_outage(throttled: Callable[..., tuple[int, str, str]]) -> None:
    moving = {TopicPartition("moving", 0): None}
    assert throttled(moving, TimeoutError("no response"), ConnectionLostError("down"), {}) == (
        0,
        "Topics: 0 created, 0 changed, 0 in line, 0 failed.\n",
        "Replicas of 1 partition are moving.\n"
        "The moves of replicas cannot be read, retrying: no response\n"
        "The moves of replicas cannot be read, retrying: down\n",
    )


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (ClusterAuthorizationError("no right"), 1)])
def test_interrupted_wait_for_moves_reports_the_changes_and_the_throttle(
    error: BaseException, code: int, throttled: Callable[..., tuple[int, str, str]]
) -> None:
    ended = throttled(error)
    assert ended[:2] == (code, "Topics: 0 created, 0 changed, 0 in line, 0 failed.\n")
    assert "A throttle of 1000 bytes/s may remain; repeat the command with --throttle 1000 to remove it." in ended[2]


def test_plan_without_servers_names_the_missing_flag(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("topics: {}")
    code, _, err = run("plan", str(tmp_path / "file.yaml"))
    assert code == cli.EXIT_USAGE
    assert "--bootstrap-server must be specified" in err


def test_file_that_is_not_utf_8_is_named_with_the_byte(run: Run, tmp_path: Path) -> None:
    (file := tmp_path / "file.yaml").write_bytes(b"# \xfc\ntopics: {}\n")
    code, _, err = run("plan", str(file), "--offline")
    assert (code, err) == (1, f"klamm plan: {file}: cannot be read: the byte at offset 2 is not UTF-8\n")


def test_offline_plan_checks_values_by_kafkas_tables(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(
        "topics: {a: {configs: {retention.ms: soon}}, b: {configs: {retension.ms: 1}}, c: {partitions: 2}, 'd e': {}}"
    )
    code, out, err = run("plan", str(file), "--offline")
    assert code == 1
    assert out.endswith("Topics: 1 to create, 0 to change, 0 in line, 3 rejected.\n")
    assert "topics.d e: Topic name is invalid: 'd e' contains one or more characters other than" in err
    assert "topics.a.configs.retention.ms: Invalid value soon" in err
    assert "did you mean retention.ms?" in err
