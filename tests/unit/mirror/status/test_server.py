"""The HTTP side of a mirror, in a thread of its own."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from typing import Any
from unittest.mock import Mock

import pytest

from klamm.mirror.operations.commands import MirrorCommands
from klamm.mirror.progress.flow_progress import GroupStatus, MirrorStatus
from klamm.mirror.status.live import WatchServer, status_server
from klamm.mirror.topics.claims import FlowClaim
from klamm.page.plot import Samples
from tests.support.mirror_status import progress_row


def _get(server: WatchServer, path: str) -> str:
    host, port = server.address
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def test_server_serves_pages_within_context() -> None:
    # given
    with WatchServer("127.0.0.1", 0, {"/": lambda: ("text/plain", "here")}) as server:
        # then
        assert _get(server, "/") == "here"
    with pytest.raises(OSError, match="refused"):
        _get(server, "/")


def test_json_has_the_ends_of_both_sides_only_if_records_keep_their_offsets() -> None:
    # given
    status = MirrorStatus(["A->B", "C->B"], preserving=["A->B"])
    for flow in ("A->B", "C->B"):
        ends = {"end_offset": 12, "next_offset": 12}, {"partition": 1, "end_offset": -1}
        status.update("one", [progress_row(flow=flow, **each) for each in ends])
    # when
    with status_server(("127.0.0.1", 0), status, GroupStatus(), Samples()) as server:
        kept, translated = json.loads(_get(server, "/status.json"))["flows"]
    # then
    names = ("source_end", "target_end", "ends_are_equal")
    assert [[partition[name] for name in names] for partition in kept["partitions"]] == [[12, 12, True], [None] * 3]
    assert (kept["preserves_offsets"], translated["preserves_offsets"]) == (True, False)
    assert not set(names) & set(translated["partitions"][0])


def test_idle_connection_ends_with_server(caplog: pytest.LogCaptureFixture) -> None:
    # given, as browsers open them
    with WatchServer("127.0.0.1", 0, {"/": lambda: ("text/plain", "here")}) as server:
        idle = socket.create_connection(server.address)
        assert _get(server, "/") == "here"
    # then
    idle.settimeout(5)
    assert idle.recv(1) == b""
    idle.close()
    assert caplog.records == []


def test_address_in_use_fails_at_once() -> None:
    with WatchServer("127.0.0.1", 0, {}) as server, pytest.raises(OSError, match="in use"):
        WatchServer("127.0.0.1", server.address[1], {})


class NoTasks:
    def restart(self, *_: object) -> None:
        raise AssertionError

    def wait_released(self, *_: object) -> bool:
        raise AssertionError


def _post(port: int, document: Any) -> tuple[int, Any]:
    data = json.dumps(document).encode()
    url = f"http://127.0.0.1:{port}/commands"
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - of this machine
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize(
    ("host", "allow_commands", "status", "error"),
    [
        ("127.0.0.1", False, 404, "flow A->B: this mirror has none"),
        ("0.0.0.0", True, 404, "flow A->B: this mirror has none"),  # noqa: S104
        ("0.0.0.0", False, 403, "the mirror listens on 0.0.0.0, which other machines may reach"),  # noqa: S104
    ],
)
def test_commands_are_rejected_where_other_machines_may_send_them(
    host: str, allow_commands: bool, status: int, error: str
) -> None:
    mirror, commands = (
        MirrorStatus([]),
        MirrorCommands(flows={}, states={}, claims={}, status=MirrorStatus([]), tasks=NoTasks()),
    )
    server = status_server((host, 0), mirror, GroupStatus(), Samples(), commands, allow_commands=allow_commands)
    with server:
        answer = _post(server.address[1], {"action": "pause", "flow": "A->B", "topics": []})
    assert answer[0] == status
    assert error in answer[1]["error"]


def test_command_that_fails_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    flow = Mock(spec=[])
    flow.name = "A->B"
    commands = MirrorCommands(
        flows={"A->B": flow},
        states={},
        claims={"A->B": FlowClaim.always()},
        status=MirrorStatus(["A->B"]),
        tasks=NoTasks(),
    )
    server = status_server(("127.0.0.1", 0), MirrorStatus([]), GroupStatus(), Samples(), commands)
    with server:
        answer = _post(server.address[1], {"action": "pause", "flow": "A->B", "topics": []})
    assert answer == (500, {"error": "the command failed: KeyError: 'A->B'"})
    assert "A command failed" in caplog.text
