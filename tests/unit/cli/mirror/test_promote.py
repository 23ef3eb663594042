"""``klamm mirror promote`` with a mirror that answers from memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from klamm.cli import main
from klamm.cli.connection import RequestError
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
        self.warning = self.collisions = ""
        self.handed_over: list[dict[str, str]] = []
        self.failures: list[BaseException] = []
        """Errors of the next requests of the status."""
        self.row = {"topic": "orders", "partition": 0, "state": "PROMOTED", "target_end": 7, "reason": "handed over"}

    def send(self, _options: object, command: dict[str, Any]) -> dict[str, Any]:
        self.commands.append(command)
        topic = {
            "topic": "orders", "remote_topic": "A.orders", "partitions": 1, "lag": 1_234, "open_transactions": None,
            "obstacles": self.obstacles, "warning": self.collisions,
        }  # fmt: skip
        if command["action"] == "demote":
            demoted = [] if self.handed_over else [topic]
            return {"flow": "A->B", "demoted": demoted, "handed_over": self.handed_over}
        return {"flow": "A->B", "topics": [topic], "pending": ["orders"], "warning": self.warning}

    def ask(self, address: str, path: str) -> ListenerAnswer:
        assert (address, path) == ("127.0.0.1:9", "/status.json")
        if self.failures:
            raise self.failures.pop()
        return ListenerAnswer(200, json.dumps({"flows": [{"flow": "A->B", "partitions": [self.row]}]}).encode())


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Mirror:
    made = Mirror()
    monkeypatch.setattr(promote, "send", made.send)
    monkeypatch.setattr(promote, "ask", made.ask)
    monkeypatch.setattr(promote, "_POLL_S", 0.01)
    return made


def run(tmp_path: Path, *words: str, action: str = "promote") -> int:
    file = tmp_path / "mm2.properties"
    file.write_text(FILE)
    return main(["mirror", action, str(file), *words, "--metrics", "127.0.0.1:9"])


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


def test_plan_shows_warnings_that_are_no_obstacles(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.collisions = "transactional ids of the target whose producer ids are in the log: pay"
    assert run(tmp_path, "orders") == 0
    assert capsys.readouterr().out.splitlines()[2] == f"A.orders: {mirror.collisions}"


def test_promoted_topic_is_reported_with_its_log_end(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.warning = "offsets of groups were not synced again: a reason"
    assert run(tmp_path, "--yes") == 0
    captured = capsys.readouterr()
    assert f"{mirror.warning}; the status page names" in captured.err
    assert captured.out.splitlines()[1].split() == ["orders", "0", "PROMOTED", "7", "handed", "over"]
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


def test_topic_that_is_handed_over_in_part_is_not_called_withdrawn(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.row |= {"state": "COPYING", "reason": "not promoted yet: no leader"}
    mirror.handed_over = [{"topic": "orders", "remote_topic": "A.orders", "unfinished": "orders-0: no leader"}]
    assert run(tmp_path, "--yes", "--wait", "0.01") == 1
    errors = capsys.readouterr().err
    assert "orders: A.orders is handed over; unfinished: orders-0: no leader" in errors
    assert "withdrawn" not in errors


def test_demotion_of_a_topic_that_was_written_names_the_way_to_mirror_it_again(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.handed_over = [
        {"topic": "orders", "remote_topic": "A.orders", "unfinished": "", "reason": "A.orders-0 ends at offset 4"}
    ]
    assert run(tmp_path, "orders", action="demote") == 1
    errors = capsys.readouterr().err
    assert "orders: A.orders-0 ends at offset 4. To mirror it again, delete A.orders with these records" in errors
    assert f"then run klamm mirror demote {tmp_path}/mm2.properties orders" in errors
    assert run(tmp_path, action="demote") == 0


def test_demotion_waits_until_the_topic_is_mirrored(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "orders", "--wait", "0.05", action="demote") == 1
    errors = capsys.readouterr().err
    assert "orders: not mirrored again within the time of --wait; that stays requested" in errors
    for state in ("PAUSED", "COPYING"):
        mirror.row |= {"state": state, "reason": ""}
        assert run(tmp_path, "orders", action="demote") == 0
        assert capsys.readouterr().out.splitlines()[1].split() == ["orders", "0", state, "7", "-"]
    assert mirror.commands[-1] == {"action": "demote", "flow": "A->B", "topics": ["orders"], "take_back": True}


def test_status_that_is_unavailable_for_a_moment_does_not_end_the_promotion(mirror: Mirror, tmp_path: Path) -> None:
    mirror.failures = [RequestError("127.0.0.1:9 does not answer")]
    assert run(tmp_path, "--yes") == 0


@pytest.mark.parametrize("error", [RequestError("127.0.0.1:9 does not answer"), KeyboardInterrupt()])
def test_promotion_that_outlives_the_command_is_named_with_its_withdrawal(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    mirror.failures = [error] * 1000
    assert run(tmp_path, "--yes", "--wait", "0.05") == (130 if isinstance(error, KeyboardInterrupt) else 1)
    errors = capsys.readouterr().err
    assert "the promotion of orders stays requested, and the mirror carries it out" in errors
    assert f"; klamm mirror demote {tmp_path}/mm2.properties orders withdraws it, and takes back what is" in errors
    assert [command["action"] for command in mirror.commands] == ["promote"]
