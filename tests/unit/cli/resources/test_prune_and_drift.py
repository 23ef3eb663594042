"""klamm apply --prune in this process, and klamm drift as a process that watches clusters."""

from __future__ import annotations

import os
import re
import signal
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from klamm import cli
from klamm.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from klamm.security.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from tests.support.klamm import KlammBroker
from tests.support.processes import CHILD_TIMEOUT_S, start_process, stop_process, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.process
SERVED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
KLAMM = Path(sys.executable).with_name("klamm")


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[KlammBroker, KlammBroker]]:
    with KlammBroker(SERVED) as dev, KlammBroker(SERVED) as prod:
        yield dev, prod


@pytest.fixture
def environment(brokers: tuple[KlammBroker, KlammBroker], tmp_path: Path) -> dict[str, str]:
    """Return the environment of an operator who has a profile of each cluster."""
    (tmp_path / "klamm").mkdir()
    (tmp_path / "klamm" / "config.toml").write_text(
        "\n".join(
            f'[clusters.{name}]\nbootstrap_server = "{broker.bootstrap_servers}"'
            for name, broker in zip(("dev", "prod"), brokers, strict=True)
        )
    )
    return {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}


@pytest.fixture
def klamm(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Provide a function that runs a command and returns its exit code and what it wrote."""
    monkeypatch.setenv("XDG_CONFIG_HOME", environment["XDG_CONFIG_HOME"])

    def run(*words: str | Path) -> tuple[int, str, str]:
        code = cli.main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


def test_prune_deletes_only_its_kinds_and_never_more_than_the_limit(
    brokers: tuple[KlammBroker, KlammBroker], klamm: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    # given
    file = tmp_path / "file.yaml"
    empty = tmp_path / "nothing.yaml"
    empty.write_text("topics: {}")
    assert klamm("apply", empty, "--cluster", "dev", "--prune", "topics")[0] == 0
    file.write_text(
        "topics: {kept: {partitions: 1}}\n"
        "acls: {'User:a': {acls: [{resource: {type: topic, name: kept}, operations: [Read]}]}}\n"
    )
    at = (file, "--cluster", "dev")
    assert klamm("apply", *at)[0] == 0
    with AdminClient(brokers[0].bootstrap_servers) as admin:
        names = ["old-1", "old-2", "new-1", "mm2-offset-syncs.b.internal"]
        admin.create_topics([NewTopic(name, 1, 1) for name in names]).all().result()
        acls = [
            Acl(
                resource_type=AclResourceType.TOPIC,
                resource_name="kept",
                pattern_type=PatternType.LITERAL,
                principal=principal,
                host="*",
                operation=AclOperation.WRITE,
                permission=AclPermission.ALLOW,
            )
            for principal in ("User:a", "User:b")
        ]
        admin.create_acls(acls).all().result()
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("b", credential, "secret")]).all().result()

        def topics() -> set[str]:
            return set(admin.list_topics(include_internal=True).result())

        # when
        planned = klamm("plan", *at, "--prune", "topics", "--prune", "acls", "--max-deletes", "4")
        rejected = klamm("apply", *at, "--prune", "topics", "--prune", "acls", "--max-deletes", "4")
        # then
        lines = planned[1].splitlines()
        assert [line for line in lines if re.match("[-~] ", line)] == [
            "~ acls User:a",
            "- acls User:b",
            "- topic new-1",
            "- topic old-1",
            "- topic old-2",
        ]
        assert (planned[0], rejected[0], rejected[1]) == (1, 1, "")
        assert "would delete 5, more than --max-deletes 4; nothing was changed" in rejected[2]
        assert {"kept", *names} <= topics()
        assert len(admin.describe_acls().result()) == 3
        # when
        applied = klamm("apply", *at, "--prune", "topic=old-.*", "--prune", "acls", "--max-deletes", "4")
        # then
        assert applied[0] == 0, applied
        assert "2 deleted" not in klamm("apply", *at, "--prune", "topic=old-.*")[1]
        assert {"kept", *names} & topics() == {"kept", *names} - {"old-1", "old-2"}
        assert len(admin.describe_acls().result()) == 1
        assert "b" in admin.list_user_scram_credentials().result()
        # when
        assert klamm("apply", *at, "--prune", "scram-users")[0] == 0
        # then
        assert "b" not in admin.list_user_scram_credentials().result()
    unknown = klamm("plan", *at, "--prune", "topicz")
    assert unknown[0] == 2
    assert "--prune topicz: expected KIND or KIND=REGEX, with one of broker, topic" in unknown[2]


def test_tree_with_too_many_deletions_in_one_cluster_changes_no_cluster(
    klamm: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    # given
    for name, text in (
        ("dev", "topics: {of-dev: {partitions: 1}}"),
        ("prod", "topics: {of-prod: {state: absent}}"),
    ):
        (tmp_path / "tree" / name).mkdir(parents=True)
        (tmp_path / "tree" / name / "klamm.yaml").write_text(f"cluster: {name}\n{text}\n")
    (tmp_path / "file.yaml").write_text("topics: {of-prod: {partitions: 1}}")
    assert klamm("apply", tmp_path / "file.yaml", "--cluster", "prod")[0] == 0
    # when
    rejected = klamm("apply", tmp_path / "tree", "--max-deletes", "0")
    # then
    assert (rejected[0], rejected[1]) == (1, "")
    assert "prod: would delete 1, more than --max-deletes 0" in rejected[2]
    assert klamm("topics", "--list", "--cluster", "dev", "--topic", "of-dev")[1].strip() == ""


class Drift:
    """A running ``klamm drift`` with its page of metrics."""

    def __init__(self, tmp_path: Path, environment: dict[str, str], *words: str | Path) -> None:
        self._out, self._err = tmp_path / "out", tmp_path / "err"
        command = [KLAMM, "drift", *words, "--interval", "1", "--timeout", "3000", "--metrics", "127.0.0.1:0"]
        with self._out.open("wb") as out:
            self.process = start_process(command, log=self._err, stdout=out.fileno(), env=environment)
        wait_until(lambda: "Metrics: http" in self.err, timeout_s=CHILD_TIMEOUT_S, what="the address of the metrics")
        (self.url,) = re.findall(r"Metrics: (\S+)", self.err)

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text() if self._err.exists() else ""

    def page(self) -> str:
        with urllib.request.urlopen(self.url) as response:  # noqa: S310  # our own page
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return str(response.read().decode())

    def value(self, sample: str) -> float | None:
        """Return the value of a sample of the page; None if it has none."""
        values = [line.rpartition(" ")[2] for line in self.page().splitlines() if line.startswith(f"{sample} ")]
        return float(values[0]) if values else None

    def wait_for(self, sample: str, low: float, high: float | None = None) -> None:
        def is_there() -> bool:
            assert self.process.poll() is None, self.err
            value = self.value(sample)
            return value is not None and low <= value <= (low if high is None else high)

        wait_until(is_there, timeout_s=CHILD_TIMEOUT_S, what=f"{sample} {low}, stderr: {self.err}")


def keys_of(cluster: str, topic: str) -> str:
    return f'klamm_drift_keys{{cluster="{cluster}",kind="topic",resource="{topic}"}}'


def test_drift_keeps_watching_one_cluster_while_another_is_down_and_files_are_broken(
    brokers: tuple[KlammBroker, KlammBroker],
    environment: dict[str, str],
    klamm: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
) -> None:
    # given
    tree, metrics = tmp_path / "tree", tmp_path / "klamm.prom"
    for name in ("dev", "prod"):
        (tree / name).mkdir(parents=True)
        (tree / name / "klamm.yaml").write_text(f"cluster: {name}\ntopics: {{watched: {{configs: {{flush.ms: 5}}}}}}\n")
    assert klamm("apply", tree)[0] == 0
    drift = Drift(tmp_path, environment, tree, "--metrics-file", metrics)
    failed = "klamm_drift_failed_checks_total"
    try:
        # when nothing differs
        drift.wait_for(keys_of("dev", "watched"), 0)
        drift.wait_for(keys_of("prod", "watched"), 0)
        # then
        in_line = "Cluster dev:\nCluster prod:\nTopics: 0 to create, 0 to change, 2 in line, 0 rejected.\n"
        wait_until(lambda: drift.out == in_line, timeout_s=CHILD_TIMEOUT_S, what=f"the first plan: {drift.out}")
        checked_at = drift.value('klamm_drift_last_check_timestamp_seconds{cluster="prod"}') or 0
        drift.wait_for('klamm_drift_last_check_timestamp_seconds{cluster="prod"}', checked_at + 0.1, float("inf"))
        assert drift.out == in_line
        # when one cluster is down, and the other one drifts
        brokers[1].stop()
        with AdminClient(brokers[0].bootstrap_servers) as admin:
            admin.alter_topic_configs("watched", set={"flush.ms": 6, "retention.ms": 1}).result()
        # then
        drift.wait_for(keys_of("dev", "watched"), 1)
        drift.wait_for(failed, 1, float("inf"))
        assert drift.value(keys_of("prod", "watched")) == 0
        change = "~ flush.ms: 6 (topic) -> 5 (file)"
        wait_until(lambda: change in drift.out, timeout_s=CHILD_TIMEOUT_S, what=f"the change: {drift.out}")
        assert "klamm drift: cluster prod: " in drift.err
        # when it is back, and a file is broken
        brokers[1].start()
        (tree / "dev" / "klamm.yaml").write_text("cluster: dev\ntopics: [watched]\n")
        failures = drift.value(failed) or 0
        drift.wait_for(failed, failures + 1, float("inf"))
        # then
        wait_until(
            lambda: "topics: ['watched']: expected a mapping" in drift.err, timeout_s=CHILD_TIMEOUT_S, what="the error"
        )
        assert drift.value(keys_of("dev", "watched")) == 1
        wait_until(
            lambda: f"{failed} 0" not in metrics.read_text(), timeout_s=CHILD_TIMEOUT_S, what="the file to count it"
        )
        # when the file is right, and asks for what is there
        (tree / "dev" / "klamm.yaml").write_text("cluster: dev\ntopics: {watched: {configs: {flush.ms: 6}}}\n")
        # then
        drift.wait_for(keys_of("dev", "watched"), 0)
        # when
        drift.process.send_signal(signal.SIGINT)
        # then
        assert drift.process.wait(CHILD_TIMEOUT_S) == 130
        assert "Traceback" not in drift.err
    finally:
        stop_process(drift.process)
        if not brokers[1].is_running:
            brokers[1].start()


def test_kind_to_prune_may_be_given_once(klamm: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (file := tmp_path / "topics.yaml").write_text("topics: {}")
    code, _, err = klamm("plan", file, "--offline", "--prune", "topic=a.*", "--prune", "topics=b.*")
    expected = "--prune topics=b.*: topic is given twice; join the regular expressions with |"
    assert (code, err) == (2, f"klamm plan: {expected}\n")


def test_drift_with_an_unknown_kind_ends_at_once(klamm: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("topics: {}")
    code, _, err = klamm("drift", tmp_path / "file.yaml", "--cluster", "dev", "--prune", "topicz")
    assert code == 2
    assert "--prune topicz: expected KIND" in err
