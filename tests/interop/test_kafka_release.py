"""scripts/kafka_release.py, which compares a release of Apache Kafka with the recorded answers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.scripts import load_script

if TYPE_CHECKING:
    from tests.support.kafka import KafkaCluster

CASES = "^(create.duplicate-names|errors.set-null|delete.)"
"""A few quick cases. The whole comparison is a command of its own."""


@pytest.fixture(scope="module")
def release() -> Any:
    return load_script("kafka_release")


def test_the_release_that_was_recorded_has_no_differences(release: Any, real_kafka: KafkaCluster) -> None:
    recorded = release.read_cases(CASES)

    assert len(recorded) > 3
    assert list(release.compare(real_kafka.bootstrap_servers, recorded)) == []


def test_an_answer_that_differs_is_printed(release: Any, real_kafka: KafkaCluster) -> None:
    recorded = copy.deepcopy(release.read_cases("^create.duplicate-names$"))
    (case,) = recorded.values()
    case["steps"][0]["result"] = {"another": "answer"}

    (text,) = release.compare(real_kafka.bootstrap_servers, recorded)

    assert text.startswith("create.duplicate-names: ")
    assert '-{"another": "answer"}' in text
    assert "INVALID_REQUEST" in text


def test_the_command_says_which_release_is_asked(release: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        release.main([])
    assert "release" in capsys.readouterr().err
