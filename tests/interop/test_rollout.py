"""Guarded roll-outs on klamm, on real Apache Kafka and through a gateway: bad values are reverted in the first wave."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

import klamm
from klamm.admin import (
    AdminClient,
    ClientConfigEntity,
    ConfigSource,
    EntityFilter,
    EntityType,
    FilterComponent,
    NewTopic,
    OffsetAndMetadata,
    OffsetSpec,
    TopicPartition,
)
from klamm.cli import main
from klamm.client_configs.rollout import client_class
from klamm.clock import wall_clock_ms
from klamm.rollout.record import RolloutEvent, RolloutRecord, Wave, advance
from klamm.rollout.store import RolloutStore
from tests.support.dynamic_clients import SILENT
from tests.support.long_tests import long_only
from tests.support.processes import free_port, wait_until
from tests.support.rollout_tool import add_rollout, command, rollouts, run, states, step_ms
from tests.support.security import PASSWORDS, sasl_settings
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.kafka import KafkaCluster
    from tests.support.lent_kafka import LentKafka

PUSH_MS = 1000
"""Interval in which clients push metrics."""
FAST = ("--interval", "100ms")
_SOON_S = 60.0

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(autouse=True)
def _sockets_collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="module")
def kafka(lent_kafka_of_release: LentKafka) -> Iterator[KafkaCluster]:
    """A node that no other file uses now: roll-outs keep their topic in it."""
    with lent_kafka_of_release.lend() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gateway(kafka: KafkaCluster) -> Iterator[klamm.Gateway]:
    config = {
        "client.configs.enable": "true",
        "change.history.enable": "true",
        "client.config.enforcement": "on",
    }
    with klamm.Gateway(kafka.bootstrap_servers, config=config) as running:
        yield running


@pytest.fixture(scope="module")
def metrics() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def broker(metrics: str) -> Iterator[klamm.Broker]:
    config = {
        "client.config.enforcement": "on",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "100",
        "metrics.listen": metrics,
        "log.retention.check.interval.ms": "300",
        "log.flush.interval.ms": "60000",
    }
    with klamm.Broker(config=config, control=True) as running:
        running.create_topic("t")
        subscribe(running.bootstrap_servers)
        yield running


@pytest.fixture(params=["klamm", *long_only("kafka", "gateway")])
def servers(request: pytest.FixtureRequest) -> str:
    """Each kind of cluster, and a gateway in front of real Kafka."""
    fixture = "broker" if request.param == "klamm" else request.param
    address: str = request.getfixturevalue(fixture).bootstrap_servers
    return address


@pytest.fixture
def topics(servers: str) -> Iterator[list[str]]:
    """Four topics of one partition with four records each."""
    names = [unique("rollout") for _ in range(4)]
    with AdminClient(servers) as admin:
        admin.create_topics([NewTopic(name, 1, 1) for name in names]).all().result()
        producer = Producer({"bootstrap.servers": servers})
        for name in names:
            for _ in range(4):
                producer.produce(name, b"x")
        assert producer.flush(_SOON_S) == 0
        yield names
        admin.delete_topics(names).all().result()


def subscribe(servers: str, **settings: Any) -> None:
    with AdminClient(servers, **settings) as admin:
        admin.incremental_alter_configs(
            {
                klamm.admin.ConfigResource(klamm.admin.ResourceType.CLIENT_METRICS, "some"): [
                    klamm.admin.AlterConfigOp(klamm.admin.ConfigEntry(key, value), klamm.admin.OpType.SET)
                    for key, value in {"interval.ms": str(PUSH_MS), "metrics": "org.apache.kafka.producer."}.items()
                ]
            }
        ).all().result()


def own_values(servers: str, topics: Sequence[str], key: str) -> list[str | None]:
    """Return the value that each topic itself sets for a config."""
    with AdminClient(servers) as admin:
        entries = [admin.topic_configs(topic).result()[key] for topic in topics]
    return [entry.value if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG else None for entry in entries]


def pattern(topics: Sequence[str]) -> str:
    return ",".join(topics)


def of(servers: str, entity: str) -> dict[str, Any]:
    """Return the latest roll-out of an entity."""
    return [record for record in rollouts(servers) if entity in record["before"] or entity in str(record["waves"])][-1]


def test_change_within_guards_reaches_all_topics(servers: str, topics: list[str]) -> None:
    guards = ("--guard", "under-replicated < 1", "--guard", "command: exit 0")
    words = ("--topic", pattern(topics), "--add-config", "retention.ms=7200000", "--bake", "300ms", *FAST, *guards)
    code, output = run(servers, "start", *words)
    assert code == 0, output
    assert own_values(servers, topics, "retention.ms") == ["7200000"] * 4
    record = of(servers, f"TOPIC:{topics[0]}")
    assert states(record) == ["planned", *["applying", "baking", "guarded"] * 3, "done"]
    assert [len(wave["settings"]) for wave in record["waves"]] == [1, 1, 2]


def test_dry_run_reports_a_policy_that_denies_the_rollouts_topic(tmp_path: Path) -> None:
    (rules := tmp_path / "rules.yaml").write_text("rules: [{name: names, naming: 'orders-.*'}]")
    policy = {
        "create.topic.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "policy.rules.file": str(rules),
    }
    with klamm.Broker(control=True, topics=["orders-1"], config=policy) as broker:
        words = ("--topic", "orders-1", "--add-config", "retention.ms=8000000", "--dry-run")
        code, output = run(broker.bootstrap_servers, "start", *words)
    assert code == 1
    assert "__klamm_rollouts cannot be created: Rule 'names'" in output
    assert output.rstrip().endswith("Let the policies allow it")


def test_key_that_a_policy_adds_is_shown_and_reverted(tmp_path: Path) -> None:
    # given
    (rules := tmp_path / "rules.yaml").write_text(
        "rules: [{name: house, effect: override, configs: {min.insync.replicas: {required: true, value: 1}}}]"
    )
    policy = {"alter.config.policy.class.name": "klamm.policy.rules:RulesPolicy", "policy.rules.file": str(rules)}
    words = ("--topic", "t", "--add-config", "retention.ms=8000000", "--waves", "100%")
    guard = ("--guard", "command: test $KLAMM_ROLLOUT_WAVE -eq 0", "--bake", "60s", *FAST)
    with klamm.Broker(control=True, topics=["t"], config=policy) as broker:
        # when
        dry, shown = run(broker.bootstrap_servers, "start", *words, "--dry-run")
        code, output = run(broker.bootstrap_servers, "start", *words, *guard)
        record = of(broker.bootstrap_servers, "TOPIC:t")
        left = own_values(broker.bootstrap_servers, ["t"], "retention.ms")
    # then
    assert (dry, "min.insync.replicas: unset -> 1" in shown) == (0, True), shown
    assert (code, left) == (3, [None]), output
    assert record["before"]["TOPIC:t"] == {"retention.ms": None, "min.insync.replicas": None}
    assert "left alone: TOPIC:t: min.insync.replicas is 1, which a policy has set" in output


def test_dry_run_shows_the_waves_and_leaves_configs_unchanged(servers: str, topics: list[str]) -> None:
    words = ("--topic", pattern(topics), "--add-config", "retention.ms=3600000", "--waves", "50%,100%")
    code, output = run(servers, "start", *words, "--dry-run")
    assert code == 0, output
    assert output.count("retention.ms: unset -> 3600000 (1 h)") == 4
    assert "Impact: none" in output
    assert own_values(servers, topics, "retention.ms") == [None] * 4
    code, output = run(servers, "start", "--topic", pattern(topics), "--add-config", "retention.ms=x", "--dry-run")
    assert code == 1
    assert "retention.ms" in output


@pytest.mark.parametrize("change", ["acks=all", "producer_byte_rate=2000"])
def test_users_may_be_principals_and_have_commas(broker: klamm.Broker, change: str) -> None:
    words = ("--add-config", change, "--waves", "100%", "--dry-run")
    code, output = run(broker.bootstrap_servers, "start", "--user", "User:nobody,CN=a%2CO=b", *words)
    assert code == 0, output
    assert "user nobody" in output or "USER:nobody: acks: unset -> all" in output
    assert "user=CN=a%2CO=b" in output or "USER:CN=a,O=b: acks: unset -> all" in output
    assert "User:nobody" not in output
    code, output = run(broker.bootstrap_servers, "start", "--user", "User:", *words)
    assert (code, "--user User:: expected names of users" in output) == (2, True)
    code, output = run(broker.bootstrap_servers, "start", "--user", "User:a%ff", *words)
    assert (code, "--user User:a%ff: 'a%ff' has escapes that are not UTF-8; write %25" in output) == (2, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--waves", "1%,x"), "--waves 1%,x"),
        (("--guard", "lag: g"), "--guard "),
        (("--wave", "("), "--wave "),
        (("--topic", "t("), "t( is an invalid regex"),
        (("--add-config", "acks"), "Invalid entity config"),
    ],
)
def test_wrong_value_of_a_flag_ends_with_2(
    servers: str, topics: list[str], flags: tuple[str, ...], message: str
) -> None:
    words = ("--topic", pattern(topics), "--add-config", "retention.ms=3600000", *flags, "--dry-run")
    code, output = run(servers, "start", *words)
    assert code == 2
    assert f"klamm rollout: {message}" in output


def test_malformed_server_ends_with_2() -> None:
    code, output = run("no-port", "list")
    assert (code, "klamm rollout: --bootstrap-server no-port: 'no-port': expected HOST:PORT" in output) == (2, True)


def test_unfinished_percentage_of_a_user_ends_with_1(broker: klamm.Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers)
    words = ("--alter", "--user", "half", "--add-config", "acks=1", "--percent", "30")
    assert main(["configs", *server, *words]) == 0
    code, output = run(broker.bootstrap_servers, "start", "--user", "half", "--add-config", "acks=all", "--dry-run")
    assert (code, "is a roll-out that is not complete" in output) == (1, True)


def test_value_below_a_completed_roll_out_is_rolled_out(broker: klamm.Broker) -> None:
    # given
    server, words = broker.bootstrap_servers, ("--user", "staged", "--add-config")
    alter = ("configs", "--bootstrap-server", server, "--alter", *words)
    assert main([*alter, "acks=all"]) == 0
    assert main([*alter, "acks=1", "--percent", "100"]) == 0
    # when
    code, output = run(server, "start", *words, "acks=all", "--waves", "50%,100%", "--dry-run")
    # then
    assert (code, "rollout.acks: 100:1 -> 50:all" in output) == (0, True), output


def test_dry_run_reports_a_roll_out_of_the_same_user_in_progress(broker: klamm.Broker) -> None:
    # given
    server = broker.bootstrap_servers
    rollout = add_rollout(server, Wave(name="100%", settings={"USER:busy": {"acks": "all"}}))
    words = ("--user", "busy", "--add-config", "acks=1", "--dry-run")
    # when
    code, output = run(server, "start", *words)
    # then
    assert (code, f"USER:busy: roll-out {rollout} of " in output) == (1, True), output
    # when
    run(server, "abort", rollout)
    # then
    assert run(server, "start", *words)[0] == 0


@pytest.mark.parametrize("key", ["ssl.key.password", "listener.name.other.ssl.key.password"])
def test_secret_that_could_not_be_restored_ends_with_1_and_is_not_shown(broker: klamm.Broker, key: str) -> None:
    words = ("--broker", "all", "--add-config", f"{key}=hunter2", "--dry-run", "-o", "json")
    code, output = run(broker.bootstrap_servers, "start", *words)
    assert (code, "the cluster does not show its value" in output, "hunter2" in output) == (1, True, False)


def test_steps_are_written_at_once_and_a_closed_output_does_not_stop_the_roll_out(
    broker: klamm.Broker, tmp_path: Path
) -> None:
    # given
    server, closed = broker.bootstrap_servers, tmp_path / "closed"
    guard = f"command: test $KLAMM_ROLLOUT_WAVE = 0 || until test -e {closed}; do sleep 0.05; done"
    words = ("--user", "piped", "--add-config", "acks=all", "--waves", "100", "--bake", "0s", "--guard", guard)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        command(server, "start", *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        # when
        first = process.stdout.readline()
        process.stdout.close()
        closed.touch()
        process.wait(_SOON_S)
    # then
    assert b"applying" in first
    assert (process.returncode, of(server, "USER:piped")["state"]) == (0, "done")


def test_decisions_about_a_roll_out_are_json_on_request(
    broker: klamm.Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    rollout = add_rollout(broker.bootstrap_servers, Wave(name="100%", settings={"USER:json": {"acks": "all"}}))
    for action, state in (("pause", "held"), ("abort", "reverted")):
        # when
        assert main(["rollout", action, rollout, "--bootstrap-server", broker.bootstrap_servers, "-o", "json"]) == 0
        # then
        assert json.loads(capsys.readouterr().out)["state"] == state


@pytest.mark.parametrize(("action", "state"), [("pause", "held"), ("abort", "reverted")])
def test_decision_counts_for_a_state_that_the_driver_writes_meanwhile(
    broker: klamm.Broker, monkeypatch: pytest.MonkeyPatch, action: str, state: str
) -> None:
    # given
    user, replace = unique("USER:decided"), RolloutStore.replace
    rollout = add_rollout(broker.bootstrap_servers, Wave(name="100%", settings={user: {"acks": "all"}}))
    written: list[RolloutRecord] = []

    def beaten(store: RolloutStore, old: RolloutRecord, new: RolloutRecord) -> RolloutRecord:
        if not written:
            applying = advance(old, RolloutEvent.NEXT, at_ms=wall_clock_ms(), before={user: {"acks": None}})
            written.append(replace(store, old, applying))
        return replace(store, old, new)

    monkeypatch.setattr(RolloutStore, "replace", beaten)
    # when
    code, output = run(broker.bootstrap_servers, action, rollout)
    # then
    assert code == 0, output
    assert of(broker.bootstrap_servers, user)["state"] == state


def test_file_that_cannot_be_used_ends_with_1(servers: str, tmp_path: Path) -> None:
    file = tmp_path / "topics.yaml"
    for text, reason in ((None, "No such file"), ("topics: [", "topics.yaml")):
        if text is not None:
            file.write_text(text)
        code, output = run(servers, "start", "--file", str(file), "--dry-run")
        assert (code, reason in output) == (1, True)


def test_waves_without_a_topic_of_their_own_are_named(servers: str, topics: list[str]) -> None:
    words = ("--topic", topics[0], "--add-config", "retention.ms=3600000", "--waves", "10%,50%,100%", "--dry-run")
    code, output = run(servers, "start", *words)
    assert code == 0, output
    assert "Waves left out: 50%, 100%. With 1 resource in all" in output
    assert "wave 1 (10%)" in output
    assert "wave 2" not in output


def test_topics_of_a_file_and_brokers_are_changed_and_shown(broker: klamm.Broker, tmp_path: Path) -> None:
    servers, topic, quick = broker.bootstrap_servers, unique("declared"), ("--bake", "0ms", *FAST)
    with AdminClient(servers) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)]).all().result()
        declared = tmp_path / "topics.yaml"
        declared.write_text(f"topics:\n  {topic}:\n    configs:\n      retention.ms: 7200000\n")
        code, output = run(servers, "start", "--file", str(declared), *quick)
        assert code == 0, output
        assert own_values(servers, [topic], "retention.ms") == ["7200000"]
        assert run(servers, "start", "--file", str(declared), *quick)[1].endswith("every value is set already\n")
        declared.write_text(f"topics:\n  {topic}:\n    partitions: 2\n")
        code, output = run(servers, "start", "--file", str(declared), *quick)
        assert code == 1
        assert "more than its configs differ; use klamm apply first" in output
        # when
        code, output = run(servers, "start", "--broker", "all", "--add-config", "log.retention.ms=7200000", *quick)
        assert code == 0, output
        record = of(servers, "BROKER:1")
        code, output = run(servers, "start", "--broker", "1", "--delete-config", "log.retention.ms", *quick)
        assert code == 0, output
    # then
    code, status = run(servers, "status", record["id"])
    assert code == 0
    assert "* wave 1 (1%): BROKER:1" in status
    assert "finished -> done" in status
    assert f"{record['id']}  " in run(servers, "list")[1]
    code, output = run(servers, "abort", record["id"])
    assert (code, "abort is not possible; it has ended" in output) == (1, True)
    assert (
        run(servers, "status", "none")[1] == "klamm rollout: there is no roll-out none; klamm rollout list shows all\n"
    )


@pytest.mark.parametrize(
    ("declared", "settings"),
    [
        ("prune: true, configs: {retention.ms: 7200000}", {"retention.ms": "7200000", "flush.ms": None}),
        ("prune: true", {"retention.ms": None, "flush.ms": None}),
    ],
)
def test_file_that_owns_all_keys_removes_undeclared_ones(
    broker: klamm.Broker, tmp_path: Path, declared: str, settings: dict[str, str | None]
) -> None:
    # given
    servers, topic = broker.bootstrap_servers, unique("pruned")
    file = tmp_path / "topics.yaml"
    file.write_text(f"topics: {{{topic}: {{{declared}}}}}")
    with AdminClient(servers) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, configs={"retention.ms": "9000", "flush.ms": "5"})]).all().result()
    # when
    code, output = run(servers, "start", "--file", str(file), "--bake", "0ms", *FAST)
    # then
    assert code == 0, output
    (wave,) = of(servers, f"TOPIC:{topic}")["waves"]
    assert wave["settings"] == {f"TOPIC:{topic}": settings}
    for key, value in settings.items():
        assert own_values(servers, [topic], key) == [value]


def test_retention_that_strands_a_group_is_reverted_in_the_first_wave(servers: str, topics: list[str]) -> None:
    group = unique("stranded")
    partitions = [TopicPartition(topic, 0) for topic in topics]
    with AdminClient(servers) as admin:
        offsets = {partition: OffsetAndMetadata(1) for partition in partitions}
        admin.alter_group_offsets(group, offsets).all().result()
        # when
        change = ("--topic", pattern(topics), "--add-config", "retention.ms=1", "--bake", "60s", *FAST)
        code, output = run(servers, "start", *change, "--guard", f"lag: {group} < 100")
        # then
        starts = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST)).all().result()
        admin.delete_groups([group]).all().result()
    assert code == 3, output
    assert f"group {group} cannot read 3 records any more" in output
    assert sorted(starts[partition].offset for partition in partitions) == [0, 0, 0, 4]
    assert own_values(servers, topics, "retention.ms") == [None] * 4
    assert of(servers, f"TOPIC:{topics[0]}")["wave"] == 0


def test_revert_keeps_and_names_changes_by_others(servers: str, topics: list[str]) -> None:
    with AdminClient(servers) as admin:
        first, second = sorted(topics)[:2]
        admin.alter_topic_configs(first, set={"retention.ms": 9_000_000}).result()
        change = f"--alter --topic {second} --add-config retention.ms=5000000"
        other = f"{sys.executable} -m klamm.cli configs --bootstrap-server {servers} {change}"
        words = ("--topic", pattern(topics), "--add-config", "retention.ms=7200000", "--waves", "100%")
        guard = ("--guard", f'command: test "$KLAMM_ROLLOUT_WAVE" = 0 || ({other}; exit 1)')
        code, output = run(servers, "start", *words, "--bake", "60s", *guard)
    assert code == 3, output
    expected = {first: "9000000", second: "5000000"}
    assert own_values(servers, topics, "retention.ms") == [expected.get(topic) for topic in topics]
    assert f"left alone: TOPIC:{second}: retention.ms is 5000000, which another change has set" in output


def test_rollout_is_held_after_another_operator_changes_a_later_wave(servers: str, topics: list[str]) -> None:
    # given
    first, second, *_ = topics
    change = f"--alter --topic {second} --add-config retention.ms=-1"
    other = f"{sys.executable} -m klamm.cli configs --bootstrap-server {servers} {change}"
    guard = ("--guard", f'command: test "$KLAMM_ROLLOUT_WAVE" = 0 || {other}')
    words = ("--topic", f"{first},{second}", "--add-config", "retention.ms=7200000", "--wave", first, "--wave", second)
    # when
    code, output = run(servers, "start", *words, "--bake", "0ms", *guard)
    # then
    assert code == 3, output
    assert f"TOPIC:{second}: retention.ms is -1, which another change has set" in output
    assert own_values(servers, [first, second], "retention.ms") == ["7200000", "-1"]
    # when
    code, output = run(servers, "abort", of(servers, f"TOPIC:{first}")["id"])
    # then
    assert (code, f"left alone: TOPIC:{second}" in output) == (0, True), output
    assert own_values(servers, [first, second], "retention.ms") == [None, "-1"]


class RunningProducer:
    """An unmodified client of librdkafka that sends 20 records a second, until it is closed."""

    def __init__(self, servers: str, topic: str, client_id: str, **settings: Any) -> None:
        defaults = {"bootstrap.servers": servers, "client.id": client_id, "acks": 1, "linger.ms": 0}
        self._producer: Producer | None = Producer(defaults | settings, logger=SILENT)
        self._topic = topic
        self._is_closed = threading.Event()
        self.errors: list[str] = []
        """Name of the error of each record that was not delivered."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        assert self._producer is not None
        while not self._is_closed.wait(0.05):
            with contextlib.suppress(BufferError):
                self._producer.produce(self._topic, b"x" * 100, on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.errors.append(error.name())

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join()
        assert self._producer is not None
        self._producer.purge()
        self._producer.flush(0)
        self._producer = None


@contextlib.contextmanager
def producers(servers: str, topic: str, client_ids: Sequence[str], **settings: Any) -> Iterator[list[RunningProducer]]:
    with contextlib.ExitStack() as stack:
        running = [RunningProducer(servers, topic, client_id, **settings) for client_id in client_ids]
        for each in running:
            stack.callback(each.close)
        yield running


def page(metrics: str) -> list[str]:
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=_SOON_S) as response:
        text: str = response.read().decode()
    return text.splitlines()


def wait_for_pushes(metrics: str, family: str, client_ids: Sequence[str]) -> None:
    def is_complete() -> bool:
        lines = [line for line in page(metrics) if line.startswith(f"{family}{{")]
        return all(any(f'client_id="{each}"' in line for line in lines) for each in client_ids)

    wait_until(is_complete, timeout_s=_SOON_S, what=f"{family} of {client_ids}", interval_s=0.1)


def client_configs(servers: str, user: str) -> dict[str, str]:
    component = FilterComponent.of_entity(EntityType.USER, user)
    with AdminClient(servers) as admin:
        entities = admin.describe_client_configs(EntityFilter(components=(component,), strict=True)).result()
    return {key: value for each in entities for key, value in each.configs.items()}


def selected(client_ids: Sequence[str], key: str, percent: int) -> set[str]:
    """Return the client ids of user ANONYMOUS to which a roll-out applies."""
    return {
        each
        for each in client_ids
        if client_class(ClientConfigEntity.of_client("ANONYMOUS", each), key) < percent * 100
    }


def pushes_between(broker: klamm.Broker, client_id: str, record: dict[str, Any], first: str, last: str) -> list[int]:
    """Return the times of a client's pushes between two steps of a roll-out."""
    after, before = step_ms(record, first), step_ms(record, last)
    pushes = broker.requests("PushTelemetry", client_id=client_id)
    return [push.received_ms for push in pushes if after < push.received_ms <= before]


def test_acks_that_slow_clients_are_reverted_within_two_pushes(broker: klamm.Broker, metrics: str) -> None:
    """A slow replica, for which only acks=all waits, stands behind the delay."""
    servers, client_ids = broker.bootstrap_servers, [f"slow-{number}" for number in range(8)]
    first = selected(client_ids, "acks", 40)
    assert 0 < len(first) < len(client_ids)
    guard = "clients: producer.node.request.latency.avg p99 < 3x unchanged"
    with (
        broker.inject("Produce", acks="all", delay=0.2, times=None),
        producers(servers, "t", client_ids, **{"enable.metrics.push": True}),
    ):
        wait_for_pushes(metrics, "kafka_client_producer_node_request_latency_avg", client_ids)
        words = ("--user", "ANONYMOUS", "--add-config", "acks=all", "--waves", "40%,100%", "--bake", "60s", *FAST)
        code, output = run(servers, "start", *words, "--guard", guard, "--metrics", metrics)
    assert code == 3, output
    record = of(servers, "USER:ANONYMOUS")
    assert (record["wave"], record["state"]) == (0, "reverted")
    assert "unchanged)" in output
    # Counted in pushes, because all of them are late on a busy machine.
    assert min(len(pushes_between(broker, each, record, "applied", "failed")) for each in first) <= 2
    assert client_configs(servers, "ANONYMOUS") == {}


class Members:
    """One consumer in a group of its own for each client id, all polled by a thread."""

    def __init__(self, servers: str, client_ids: Sequence[str]) -> None:
        self._servers = servers
        self._consumers = {each: self._consumer(each) for each in client_ids}
        self.assignments: Counter[str] = Counter()
        """Number of assignments that the present member of each group got."""
        self._is_stopped = threading.Event()
        self._restarts: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _consumer(self, client_id: str) -> Consumer:
        settings = {
            "session.timeout.ms": 45_000,
            "heartbeat.interval.ms": 1000,
            "client.id": client_id,
            "group.id": client_id,
        }
        consumer = Consumer({"bootstrap.servers": self._servers, **settings}, logger=SILENT)

        def count(*_: object) -> None:
            self.assignments[client_id] += 1

        consumer.subscribe(["t"], on_assign=count)
        return consumer

    def _run(self) -> None:
        while not self._is_stopped.wait(0.02):
            for client_id in self._restarts[:]:
                self._restarts.remove(client_id)
                self._consumers[client_id].close()
                self.assignments[client_id] = 0
                self._consumers[client_id] = self._consumer(client_id)
            for consumer in self._consumers.values():
                consumer.poll(0)

    def restart(self) -> None:
        """Replace every member, as a deployment does."""
        self._restarts.extend(self._consumers)

    def __enter__(self) -> Self:
        wait_until(
            lambda: all(self.assignments[each] for each in self._consumers), timeout_s=_SOON_S, what="all assignments"
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        self._thread.join()
        for consumer in self._consumers.values():
            consumer.close()


def test_session_timeout_that_causes_rebalances_is_reverted(broker: klamm.Broker, metrics: str) -> None:
    servers, client_ids = broker.bootstrap_servers, [f"member-{number}" for number in range(4)]
    assert 0 < len(selected(client_ids, "session.timeout.ms", 50)) < len(client_ids)
    with Members(servers, client_ids):
        joins = 'metrics: increase klamm_requests_total{api="JOIN_GROUP"} < 3'
        words = ("--user", "ANONYMOUS", "--add-config", "session.timeout.ms=300", "--waves", "50%,100%")
        code, output = run(servers, "start", *words, "--bake", "60s", *FAST, "--guard", joins, "--metrics", metrics)
    assert code == 3, output
    record = of(servers, "session.timeout.ms")
    assert (record["wave"], record["state"]) == (0, "reverted"), output
    assert client_configs(servers, "ANONYMOUS") == {}


@pytest.mark.long
def test_session_timeout_that_causes_rebalances_is_reverted_through_a_gateway(
    gateway: klamm.Gateway, tmp_path: Path
) -> None:
    """A classic member of real Kafka gets another session timeout when it joins: here, with a deployment."""
    servers, client_ids = gateway.bootstrap_servers, [f"member-{number}" for number in range(4)]
    first = selected(client_ids, "session.timeout.ms", 50)
    assert 0 < len(first) < len(client_ids)
    with AdminClient(servers) as admin:
        admin.create_topics([NewTopic("t", 1, 1)]).all().result()
    unstable = tmp_path / "unstable"
    seen: set[str] = set()
    with Members(servers, client_ids) as members:
        stopped = threading.Event()

        def report() -> None:
            is_deployed = False
            while not stopped.wait(0.05):
                if not is_deployed and client_configs(servers, "ANONYMOUS"):
                    members.restart()
                    is_deployed = True
                seen.update(each for each, count in members.assignments.items() if count > 1)
                unstable.write_text(" ".join(seen))

        thread = threading.Thread(target=report)
        thread.start()
        words = ("--user", "ANONYMOUS", "--add-config", "session.timeout.ms=300", "--waves", "50%,100%")
        try:
            code, output = run(
                servers, "start", *words, "--bake", "60s", *FAST, "--guard", f"command: ! test -s {unstable}"
            )
        finally:
            stopped.set()
            thread.join()
    assert code == 3, output
    record = of(servers, "session.timeout.ms")
    assert (record["wave"], record["state"]) == (0, "reverted"), output
    assert seen
    assert seen <= first
    assert client_configs(servers, "ANONYMOUS") == {}
    assert f"klamm-rollout-{record['id']}" in history(servers)


@pytest.mark.long
def test_quota_that_throttles_too_much_is_reverted_before_the_next_user(tmp_path: Path) -> None:
    page_of = f"127.0.0.1:{free_port()}"
    as_admin: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "admin",
        "sasl_plain_password": PASSWORDS["admin"],
    }
    config = sasl_settings() | {"metrics.listen": page_of}
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=config) as running, contextlib.ExitStack() as stack:
        servers = running.bootstrap_servers
        properties = tmp_path / "admin.properties"
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        properties.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={module} required username="admin" password="{PASSWORDS["admin"]}";\n'
        )
        with AdminClient(servers, **as_admin) as admin:
            admin.create_topics([NewTopic("t", 1, 1)]).all().result()
        subscribe(servers, **as_admin)
        for user in ("alice", "mallory"):
            login = {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": user,
                "sasl.password": PASSWORDS[user],
            }
            stack.enter_context(producers(servers, "t", [f"of-{user}"], **login))
        family = "kafka_client_producer_produce_throttle_time_max"
        wait_for_pushes(page_of, family, ["of-alice", "of-mallory"])
        # when
        flags = ("--command-config", str(properties), "--metrics", page_of, *FAST)
        change = ("--user", "alice,mallory", "--add-config", "producer_byte_rate=2000", "--bake", "60s")
        guard = ("--guard", "clients: producer.produce.throttle.time.max max <= 1x unchanged")
        code, output = run(servers, "start", *flags, *change, "--wave", "alice", "--wave", ".*", *guard)
        # then
        with AdminClient(servers, **as_admin) as admin:
            quotas = admin.describe_client_quotas().result()
    assert code == 3, output
    assert quotas == {}
    assert "wave 1 of 2 (alice): guard" in output
    assert "wave 2" not in output


def history(servers: str) -> str:
    command = [sys.executable, "-m", "klamm.cli", "configs", "history", "--bootstrap-server", servers]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
