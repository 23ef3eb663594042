"""klamm export: what it writes is what klamm plan reads."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import klamm
from klamm import cli
from klamm.admin import AdminClient, NewTopic
from klamm.cli.resources import export
from klamm.resources import cluster
from klamm.resources.cluster import Observation
from klamm.resources.export import as_text, document
from klamm.resources.files import parse_documents
from klamm.resources.model import CurrentValue, Existing, Kind, ResourceKey

if TYPE_CHECKING:
    from pathlib import Path

VALUES = st.one_of(
    st.sampled_from(
        ["true", "no", "null", "~", "1e3", "0x10", "-0", "007", "", " a", "2020-01-01", "a: b", "[a]", "1_000"]
    ),
    st.integers().map(str),
    st.text(st.characters(codec="utf-8", exclude_categories=["C"])),
)


def topic(**configs: str) -> Existing:
    numbers = {
        name: CurrentValue(value="2", origin="cluster", is_own=True) for name in ("partitions", "replication_factor")
    }
    own = {name: CurrentValue(value=value, origin="topic", is_own=True) for name, value in configs.items()}
    return Existing(values={**numbers, **own})


@given(VALUES, st.sampled_from(["human", "json", "yaml"]))
def test_exported_value_is_parsed_unchanged(value: str, output: str) -> None:
    text = as_text(document({ResourceKey(Kind.TOPIC, "1"): topic(key=value)}), output)
    (declared,) = parse_documents(text)
    assert (declared.name, dict(declared.values)) == ("1", {"partitions": "2", "replication_factor": "2", "key": value})


def test_exported_user_that_looks_like_a_principal_is_parsed_unchanged() -> None:
    values = {"SCRAM-SHA-256": CurrentValue(value="4096", origin="cluster", is_own=True)}
    text = as_text(
        document({ResourceKey(Kind.SCRAM, name): Existing(values=values) for name in ("x", "User:x")}), "yaml"
    )
    assert [declared.name for declared in parse_documents(text)] == ["User:x", "x"]


@pytest.mark.parametrize("output", ["human", "json"])
def test_export_escapes_characters_that_the_file_cannot_have(output: str) -> None:
    values = {"SCRAM-SHA-256": CurrentValue(value="4096", origin="cluster", is_own=True)}
    content = document({ResourceKey(Kind.SCRAM, "Zo\u00eb"): Existing(values=values)})
    text = as_text(content, output, is_unicode=False)
    assert text.isascii()
    assert [declared.name for declared in parse_documents(text)] == ["Zo\u00eb"]


@pytest.mark.process
@pytest.mark.parametrize("output", ["human", "json"])
def test_plan_of_an_export_is_empty(output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with klamm.Broker() as broker, AdminClient(broker.bootstrap_servers) as admin:
        # given
        configs = {"cleanup.policy": "compact,delete", "retention.ms": "1000", "preallocate": "true"}
        topics = [NewTopic("orders", 3, 1, configs=configs), NewTopic("true", 1, 1)]
        admin.create_topics(topics).all().result()
        file, at = str(tmp_path / "topics.yaml"), ("--bootstrap-server", broker.bootstrap_servers)
        # when
        assert cli.main(["export", file, *at, "-o", output]) == cli.EXIT_OK
        # then
        assert cli.main(["plan", file, *at, "--check", "--prune-configs"]) == cli.EXIT_OK
        written = capsys.readouterr()
        assert written.err == f"Wrote 2 topics and 1 other resource to {file}.\n"  # min.insync.replicas of all brokers
        assert "3 in line" in written.out
        # when
        assert cli.main(["export", *at, "--topic", "ord.*"]) == cli.EXIT_OK
        # then
        assert capsys.readouterr().out == (
            "topics:\n  orders:\n    partitions: 3\n    replication_factor: 1\n    configs:\n"
            "      cleanup.policy: compact,delete\n      preallocate: true\n      retention.ms: 1000\n"
        )


def test_failed_export_keeps_previous_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    (file := tmp_path / "topics.yaml").write_text("old")
    found = Observation(resources={ResourceKey(Kind.TOPIC, "orders"): topic()})
    monkeypatch.setattr(export, "connect", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(cluster, "observe", lambda *_: found)
    with file.open() as reader:
        # when
        code = cli.main(["export", str(file), "--bootstrap-server", "127.0.0.1:1"])
        # then
        assert (code, reader.read()) == (cli.EXIT_OK, "old")
    assert "orders" in file.read_text()


def test_export_requires_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["export", str(tmp_path)])
    assert ended.value.code == cli.EXIT_USAGE
    assert "--bootstrap-server must be specified" in capsys.readouterr().err
