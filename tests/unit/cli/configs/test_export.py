"""klamm configs export: what it writes is what klamm configs plan reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import klamm
from klamm import cli
from klamm.admin import AdminClient, NewTopic
from klamm.cli.configs.export import as_text, document
from klamm.cli.configs.plan_diff import CurrentConfig, CurrentTopic
from klamm.cli.configs.plan_file import parse_document

if TYPE_CHECKING:
    from pathlib import Path

VALUES = st.one_of(
    st.sampled_from(
        ["true", "no", "null", "~", "1e3", "0x10", "-0", "007", "", " a", "2020-01-01", "a: b", "[a]", "1_000"]
    ),
    st.integers().map(str),
    st.text(st.characters(codec="utf-8", exclude_categories=["C"])),
)


def topic(**configs: str) -> CurrentTopic:
    return CurrentTopic(
        partitions=2,
        replication_factor=1,
        configs={
            name: CurrentConfig(value=value, origin="topic", is_own=True, inherited=None, inherited_origin="default")
            for name, value in configs.items()
        },
    )


@given(VALUES, st.sampled_from(["human", "json", "yaml"]))
def test_exported_values_are_parsed_unchanged(value: str, output: str) -> None:
    (declared,) = parse_document(as_text(document({"1": topic(key=value)}), output))
    assert (declared.name, declared.partitions, dict(declared.configs)) == ("1", 2, {"key": value})


@pytest.mark.process
@pytest.mark.parametrize("output", ["human", "json"])
def test_plan_of_export_has_no_changes(output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with klamm.Broker() as broker, AdminClient(broker.bootstrap_servers) as admin:
        # given
        configs = {"cleanup.policy": "compact,delete", "retention.ms": "1000", "preallocate": "true"}
        topics = [NewTopic("orders", 3, 1, configs=configs), NewTopic("true", 1, 1)]
        admin.create_topics(topics).all().result()
        file, at = str(tmp_path / "topics.yaml"), ("--bootstrap-server", broker.bootstrap_servers)
        # when
        assert cli.main(["configs", "export", file, *at, "-o", output]) == cli.EXIT_OK
        # then
        assert cli.main(["configs", "plan", file, *at, "--check", "--prune-configs"]) == cli.EXIT_OK
        written = capsys.readouterr()
        assert written.err == f"Wrote 2 topics to {file}.\n"
        assert "2 in line" in written.out
        # when
        assert cli.main(["configs", "export", *at, "--topic", "ord.*"]) == cli.EXIT_OK
        # then
        assert capsys.readouterr().out == (
            "topics:\n  orders:\n    partitions: 3\n    replication_factor: 1\n    configs:\n"
            "      cleanup.policy: compact,delete\n      preallocate: true\n      retention.ms: 1000\n"
        )


def test_bootstrap_server_is_required(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["configs", "export", str(tmp_path)])
    assert ended.value.code == cli.EXIT_USAGE
    assert "--bootstrap-server must be specified" in capsys.readouterr().err
