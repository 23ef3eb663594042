"""klamm acls: what its flags mean, and what Kafka's tool does not have."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm import cli
from klamm.cli.acls.options import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

AT = ("--bootstrap-server", "127.0.0.1:1")


def rules(words: str) -> dict[str, list[str]]:
    return {
        f"{resource.resource_type.name}:{resource.name}": [
            f"{rule.permission.name} {rule.operation.name}" for rule in acls
        ]
        for resource, acls in parse([*AT, *words.split()]).rules.items()
    }


def test_producer_and_consumer_flags_add_required_acls() -> None:
    both = "--add --producer --consumer --idempotent --topic t --group g --transactional-id x --allow-principal User:a"
    assert rules(both) == {
        "TOPIC:t": ["ALLOW READ", "ALLOW WRITE", "ALLOW CREATE", "ALLOW DESCRIBE"],
        "GROUP:g": ["ALLOW READ"],
        "CLUSTER:kafka-cluster": ["ALLOW IDEMPOTENT_WRITE"],
        "TRANSACTIONAL_ID:x": ["ALLOW WRITE", "ALLOW DESCRIBE"],
    }


@pytest.mark.parametrize("action", ["--add", "--remove"])
def test_prefix_of_producer_topics_leaves_cluster_literal(action: str) -> None:
    words = f"{action} --producer --idempotent --topic t --resource-pattern-type prefixed --allow-principal User:a"
    parsed = parse([*AT, *words.split()]).rules
    assert {(resource.name, resource.pattern_type.name) for resource in parsed} == {
        ("t", "PREFIXED"),
        ("kafka-cluster", "LITERAL"),
    }
    assert rules(words)["CLUSTER:kafka-cluster"] == ["ALLOW IDEMPOTENT_WRITE"]


def test_allow_and_deny_principals_in_one_command() -> None:
    words = "--add --topic t --allow-principal User:a --deny-principal User:b --operation describe-configs"
    assert rules(words.replace("describe-configs", "DescribeConfigs")) == {
        "TOPIC:t": ["ALLOW DESCRIBE_CONFIGS", "DENY DESCRIBE_CONFIGS"]
    }


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    settings = {"authorizer.class.name": "klamm.Authorizer", "super.users": "User:ANONYMOUS"}
    with klamm.Broker(config=settings) as broker:
        yield broker.bootstrap_servers


def run(address: str, words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = cli.main(["acls", "--bootstrap-server", address, *words.split()])
    return code, capsys.readouterr().out


@pytest.mark.process
def test_removal_asks_for_confirmation_and_prints_document(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    assert run(address, "--add --topic t --allow-principal User:a --operation Read", capsys)[0] == 0
    # when
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    rejected = run(address, "--remove --topic t", capsys)
    monkeypatch.setattr("sys.stdin", io.StringIO("Y\n"))
    removed = run(address, "--remove --topic t -o json", capsys)
    # then
    assert rejected[0] == 1
    assert rejected[1].endswith("name=t, patternType=LITERAL)`? (y/n)\n")
    assert removed[0] == 0
    assert [(acl["principal"], acl["operation"]) for acl in json.loads(removed[1])] == [("User:a", "READ")]
    assert run(address, "--list", capsys) == (0, "")


@pytest.mark.process
def test_control_characters_in_acl_names_are_escaped(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(address, "--add --group \x1b[2J --allow-principal User:\x1b --operation Read", capsys)[0] == 0
    assert "\x1b" not in run(address, "--list", capsys)[1]
    assert run(address, "--remove --group \x1b[2J --force", capsys)[0] == 0
