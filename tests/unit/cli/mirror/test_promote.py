"""``klamm mirror promote`` with a mirror that answers from memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from klamm.cli import main
from klamm.cli.mirror import promote
from klamm.cli.status_listener import ListenerAnswer

if TYPE_CHECKING:
    from pathlib import Path

FILE = """clusters=A,B
A.bootstrap.servers=127.0.0.1:1
B.bootstrap.servers=127.0.0.1:1
A->B.enabled=true
"""


class Mirror:
    """A mirror that leads one partition of ``orders``."""

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []
        self.obstacles: list[str] = []
        self.row = {"topic": "orders", "partition": 0, "state": "PROMOTED", "target_end": 7, "reason": "handed over"}

    def send(self, _options: object, command: dict[str, Any]) -> dict[str, Any]:
        self.commands.append(command)
        topic = {
            "topic": "orders", "remote_topic": "A.orders", "partitions": 1, "lag": 1_234, "open_transactions": None,
            "obstacles": self.obstacles,
        }  # fmt: skip
        return {"flow": "A->B", "topics": [topic]}

    def ask(self, address: str, path: str) -> ListenerAnswer:
        assert (address, path) == ("127.0.0.1:9", "/status.json")
        return ListenerAnswer(200, json.dumps({"flows": [{"flow": "A->B", "partitions": [self.row]}]}).encode())


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Mirror:
    made = Mirror()
    monkeypatch.setattr(promote, "send", made.send)
    monkeypatch.setattr(promote, "ask", made.ask)
    return made


def run(tmp_path: Path, *words: str) -> int:
    file = tmp_path / "mm2.properties"
    file.write_text(FILE)
    return main(["mirror", "promote", str(file), *words, "--metrics", "127.0.0.1:9"])


def test_plan_shows_obstacles_and_changes_nothing(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "orders") == 0
    mirror.obstacles.append("A.orders-0: replicas 2 are not live")
    assert run(tmp_path, "orders") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["orders", "A.orders", "1", "1,234", "-", "-"]
    assert lines[4].endswith("A.orders-0: replicas 2 are not live")
    assert lines[2] == "A->B: 1 topic would be promoted; nothing was changed without --yes"
    assert [command["execute"] for command in mirror.commands] == [False, False]


def test_promoted_topic_is_reported_with_its_log_end(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--yes") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["orders", "0", "PROMOTED", "7", "handed", "over"]
    (command,) = mirror.commands
    assert command == {"action": "promote", "flow": "A->B", "topics": [], "accept_loss": False, "execute": True}


def test_promotion_that_takes_too_long_is_withdrawn(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.row |= {"state": "COPYING", "reason": "not promoted yet: the replicas do not have offset 9 yet"}
    assert run(tmp_path, "--yes", "--accept-loss", "--wait", "0.1") == 1
    output = capsys.readouterr()
    assert "not promoted yet: the replicas do not have offset 9 yet" in output.out
    assert "orders: not promoted within the time of --wait; the promotion is withdrawn" in output.err
    assert mirror.commands[0]["accept_loss"]
    assert mirror.commands[1] == {"action": "demote", "flow": "A->B", "topics": ["orders"]}
