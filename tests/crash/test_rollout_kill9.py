"""Guarded roll-outs whose tool, broker or gateway is killed (SIGKILL): they end completed or fully reverted.

``make soak`` kills fifty tools, ``make test-long`` two.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

import klamm
from klamm.admin import AdminClient, ConfigSource, NewTopic
from tests.support.kafka import KafkaCluster
from tests.support.klamm import KlammBroker
from tests.support.rollout_tool import launch, rollouts, run
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.long

_IS_SOAK: Final = bool(os.environ.get("KLAMM_SOAK"))
_KILLS: Final = 50 if _IS_SOAK else 2
_KILLS_OF_SERVERS: Final = 10 if _IS_SOAK else 1
_MOMENTS_S: Final = (0.5, 2.5)
"""The tool is killed after a time between these: it needs half a second to start, and two more for all waves."""
_BEFORE: Final = "7000000"
_NEW: Final = "8000000"
_TIMEOUT_S: Final = 120.0
_MAX_RESUMES: Final = 5
_FLAGS: Final = (
    "--add-config",
    f"retention.ms={_NEW}",
    "--waves",
    "1%,50%,100%",
    "--bake",
    "200ms",
    "--interval",
    "50ms",
)
_FAILS: Final = ("--guard", 'command: test "$KLAMM_ROLLOUT_WAVE" != 3')
"""Guard that fails in the last wave."""
ENDS: Final = pytest.mark.parametrize("guard", [_FAILS, ()], ids=["reverted", "done"])


@pytest.fixture(scope="module")
def broker() -> Iterator[KlammBroker]:
    with KlammBroker() as running:
        yield running


@pytest.fixture(scope="module")
def kafka(java: None, request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """A cluster of its own: roll-outs keep their topic in it."""
    with KafkaCluster(release=request.config.getoption("kafka_release")) as cluster:
        yield cluster


def created(servers: str) -> list[str]:
    """Create four topics. Two of them already set the config."""
    names = [unique("killed") for _ in range(4)]
    configs: list[dict[str, str | None]] = [{"retention.ms": _BEFORE}, {"retention.ms": _BEFORE}, {}, {}]
    with AdminClient(servers) as admin:
        new = [NewTopic(name, 1, 1, configs=of) for name, of in zip(names, configs, strict=True)]
        admin.create_topics(new).all().result()
    return names


def values(servers: str, topics: Sequence[str]) -> list[str | None]:
    with AdminClient(servers) as admin:
        entries = [admin.topic_configs(topic).result()["retention.ms"] for topic in topics]
    return [entry.value if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG else None for entry in entries]


def rollout_of(servers: str, topic: str) -> dict[str, Any] | None:
    """Return the roll-out of a topic; None as long as there is none."""
    return next((each for each in rollouts(servers) if topic in str(each["waves"])), None)


def check_end(servers: str, topics: Sequence[str], *, fails: bool) -> None:
    """Check that the roll-out has ended, with the new values or exactly those before it."""
    record = rollout_of(servers, topics[0])
    assert record is not None
    assert record["state"] == ("reverted" if fails else "done")
    assert record["left_alone"] == []
    assert values(servers, topics) == ([_BEFORE, _BEFORE, None, None] if fails else [_NEW] * 4)


def begin_or_resume(servers: str, topics: Sequence[str], guard: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start what an operator would start after a crash."""
    record = rollout_of(servers, topics[0])
    if record is None:
        return launch(servers, "start", "--topic", ",".join(topics), *_FLAGS, *guard, log=log)
    return launch(servers, "resume", record["id"], log=log)


def finish(servers: str, topics: Sequence[str], guard: Sequence[str], log: Path) -> None:
    """Continue until the roll-out has ended, however the tool ends in between."""
    for _ in range(_MAX_RESUMES):
        record = rollout_of(servers, topics[0])
        if record is not None and record["state"] in {"done", "reverted"}:
            return
        begin_or_resume(servers, topics, guard, log).wait(_TIMEOUT_S)
    raise AssertionError(log.read_text())


@ENDS
def test_killed_tool_is_resumed_repeatedly(broker: KlammBroker, tmp_path: Path, guard: Sequence[str]) -> None:
    servers, log, chance = broker.bootstrap_servers, tmp_path / "tool.log", random.Random(len(guard))
    left = _KILLS
    while left > 0:
        topics = created(servers)
        while left > 0:
            tool = begin_or_resume(servers, topics, guard, log)
            try:
                tool.wait(chance.uniform(*_MOMENTS_S))
                break  # it has ended before the moment
            except subprocess.TimeoutExpired:
                tool.kill()
                tool.wait()
                left -= 1
        finish(servers, topics, guard, log)
        check_end(servers, topics, fails=bool(guard))


def play(
    servers: Callable[[], str], kill: Callable[[], None], log: Path, guard: Sequence[str], chance: random.Random
) -> None:
    """Kill a server during a roll-out. The tool survives it, or the operator resumes the roll-out."""
    topics = created(servers())
    tool = begin_or_resume(servers(), topics, guard, log)
    time.sleep(chance.uniform(*_MOMENTS_S))
    kill()
    tool.wait(_TIMEOUT_S)
    finish(servers(), topics, guard, log)
    check_end(servers(), topics, fails=bool(guard))


@ENDS
def test_killed_broker_only_delays_a_roll_out(broker: KlammBroker, tmp_path: Path, guard: Sequence[str]) -> None:
    chance = random.Random(len(guard))
    for _ in range(_KILLS_OF_SERVERS):
        play(lambda: broker.bootstrap_servers, lambda: broker.restart(kill=True), tmp_path / "log", guard, chance)


def test_killed_gateway_only_delays_a_roll_out(kafka: KafkaCluster, tmp_path: Path) -> None:
    chance = random.Random(3)
    with klamm.Gateway(kafka.bootstrap_servers) as gateway:

        def kill() -> None:
            gateway.kill()
            gateway.start()

        for number in range(_KILLS_OF_SERVERS):
            play(lambda: gateway.bootstrap_servers, kill, tmp_path / "log", _FAILS if number % 2 else (), chance)


@pytest.mark.parametrize("kind", ["klamm", "kafka"])
def test_concurrent_starts_are_rejected_with_the_running_roll_out(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    servers = request.getfixturevalue("broker" if kind == "klamm" else kind).bootstrap_servers
    topics = created(servers)
    words = ("--topic", ",".join(topics), "--waves", "100%", "--bake", "30s")
    logs = [tmp_path / f"{number}.log" for number in range(3)]
    # Each has a value of its own: a late one of the same value would have nothing to do.
    tools = [
        launch(servers, "start", *words, "--add-config", f"retention.ms={int(_NEW) + number}", log=log)
        for number, log in enumerate(logs)
    ]
    losers: list[Path] = []
    deadline = time.monotonic() + _TIMEOUT_S
    while len(losers) < len(tools) - 1:
        assert time.monotonic() < deadline
        losers = [log for tool, log in zip(tools, logs, strict=True) if tool.poll() is not None]
        time.sleep(0.05)
    record = rollout_of(servers, topics[0])
    assert record is not None
    for log in losers:
        assert f"roll-out {record['id']} of {record['operator']} is " in log.read_text()
        assert f"klamm rollout abort {record['id']}" in log.read_text()
    # when: another operator ends it
    assert run(servers, "pause", record["id"])[0] == 0
    code, output = run(servers, "abort", record["id"])
    # then
    assert code == 0, output
    (winner,) = [tool for tool, log in zip(tools, logs, strict=True) if log not in losers]
    assert winner.wait(_TIMEOUT_S) == 3
    check_end(servers, topics, fails=True)
