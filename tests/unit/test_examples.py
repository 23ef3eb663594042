"""The programs in examples/ print the expected output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from klamm.mirror.settings.mirror import parse_settings
from klamm.properties import read_properties

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

EXPECTED = {
    "embedded_broker.py": ["hello 0", "hello 1", "hello 2"],
    "incremental_configs.py": [
        "{'cleanup.policy': 'delete', 'retention.ms': '60000'}",
        "{'cleanup.policy': 'delete,compact', 'retention.ms': '60000'}",
        "rejected: ",
        "{'cleanup.policy': 'delete,compact', 'retention.ms': '604800000'}",
    ],
    "topic_policy.py": ["orders: ", "sales.orders: created"],
    "dynamic_acks.py": ["acks: 1 -> all"],
}


@pytest.mark.process
@pytest.mark.parametrize("example", sorted(EXPECTED))
def test_example_prints_expected_output(example: str) -> None:
    # when
    result = subprocess.run(
        [sys.executable, EXAMPLES / example], capture_output=True, text=True, timeout=60, check=False
    )
    # then
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line[: len(start)] for line, start in zip(lines, EXPECTED[example], strict=True)] == EXPECTED[example]


def test_every_example_is_run() -> None:
    elsewhere = {"masked_stream.py", "mirror_submit.py", "container_in_tests.py"}  # tests/spark, test_containers.py
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*EXPECTED, *elsewhere}


def test_mirror_example_is_parsed() -> None:
    settings = parse_settings(read_properties(EXAMPLES / "mm2.properties"))
    assert [(flow.source.alias, flow.target.alias) for flow in settings.flows] == [("eu", "us")]
