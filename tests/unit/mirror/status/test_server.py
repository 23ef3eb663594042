"""The HTTP side of a mirror, in a thread of its own."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.mirror.operations.commands import MirrorCommands
from klamm.mirror.progress.flow_progress import FlowState, GroupStatus, MirrorStatus
from klamm.mirror.records.requested_states import RequestedState
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.status import live, verify
from klamm.mirror.status.live import NOT_SYNCED, WatchServer, differences_of, status_server
from klamm.mirror.status.verify import Findings, Fingerprint, RecordsFrom, compare
from klamm.mirror.topics.claims import FlowClaim
from klamm.page.plot import Samples
from tests.support.mirror_fakes import FakeCluster
from tests.support.mirror_status import progress_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.mirror.settings.flow import FlowSettings


def _get(server: WatchServer, path: str) -> str:
    host, port = server.address
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=60) as answer:
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

    def forget_sessions(self, *_: object) -> None:
        raise AssertionError


def _post(port: int, document: Any) -> tuple[int, Any]:
    data = json.dumps(document).encode()
    url = f"http://127.0.0.1:{port}/commands"
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - of this machine
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


class FailingFilter:
    """A config filter of the user's own that fails twice."""

    failures = 2

    def should_replicate_config_property(self, name: str) -> bool:
        if FailingFilter.failures:
            FailingFilter.failures -= 1
            raise LookupError(f"no rule for {name}")
        return True


def test_configs_are_compared_again_after_an_error_in_a_custom_filter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    keys = {
        "clusters": "A,B",
        "A.bootstrap.servers": "a:1",
        "B.bootstrap.servers": "b:1",
        "A->B.enabled": "true",
        "config.property.filter.class": f"{__name__}:FailingFilter",
    }
    clusters = {"source": FakeCluster(orders=1), "target": FakeCluster(**{"A.orders": 1})}
    clusters["source"].configs["orders"] = {"retention.ms": "5"}
    clusters["target"].configs["A.orders"] = {"retention.ms": "7"}
    monkeypatch.setattr(live, "admin_client", lambda _flow, side: clusters[side])
    monkeypatch.setattr(FailingFilter, "failures", 2)
    status = MirrorStatus(["A->B"])
    status.update("one", [progress_row(topic="orders")])
    # when
    live._compare(parse_settings(keys).flows[0], status, Mock(wait=Mock(side_effect=[False, False, False, True])))
    # then
    (difference,) = status.drift()["A->B"]
    assert (difference.name, difference.is_drift) == ("retention.ms", True)
    assert [record.getMessage() for record in caplog.records] == ["A->B: configs could not be compared"]
    assert "LookupError: no rule for retention.ms" in caplog.text


def _side(letters: str, first: int = 0) -> RecordsFrom:
    records = [Fingerprint(first + at, letter.encode()) for at, letter in enumerate(letters)]
    return lambda start: iter([record for record in records if record.offset >= start])


def test_equal_records_match_at_any_offsets() -> None:
    assert compare(_side("abc"), _side("abc", first=70)) == Findings(same=3)


def test_missing_record_is_reported_by_source_offset() -> None:
    assert compare(_side("abcde", first=10), _side("abde")) == Findings(same=4, missing=1, first_missing=12)


def test_duplicate_is_reported_by_target_offset() -> None:
    assert compare(_side("abcd"), _side("abcbcd")) == Findings(same=4, surplus=2, first_surplus=3)


def test_changed_record_counts_as_missing_and_surplus() -> None:
    assert compare(_side("abc"), _side("aXc")) == Findings(
        same=2, missing=1, first_missing=1, surplus=1, first_surplus=1
    )


def test_missing_first_and_last_records_are_reported() -> None:
    assert compare(_side("abcd"), _side("abc")) == Findings(same=3, missing=1, first_missing=3)
    assert compare(_side("abcd"), _side("bcd")) == Findings(same=3, missing=1, first_missing=0, leading_missing=1)
    assert compare(_side("bcd"), _side("abcd")) == Findings(same=3, surplus=1, first_surplus=0, leading_surplus=1)


def test_unmirrored_records_are_not_missing() -> None:
    assert compare(_side("abcde"), _side("abc"), mirrored_to=2) == Findings(same=3)
    assert compare(_side("abcde"), _side("ac"), mirrored_to=2) == Findings(same=2, missing=1, first_missing=1)


def test_empty_partitions_match() -> None:
    assert compare(_side(""), _side("")) == Findings()


def test_long_expired_beginning_is_found_beyond_the_look_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "MAX_LOOK_AHEAD", 2)
    assert compare(_side("abcdefgh"), _side("fgh")) == Findings(same=3, missing=5, first_missing=0, leading_missing=5)
    assert compare(_side("fgh"), _side("abcdefgh")) == Findings(same=3, surplus=5, first_surplus=0, leading_surplus=5)
    assert compare(_side("aXbcdef"), _side("aYcf")) == Findings(
        same=3, missing=4, first_missing=1, surplus=1, first_surplus=1
    )
    assert compare(_side("abcdefgh"), _side("fgh"), mirrored_to=3) == Findings(
        same=3, missing=3, first_missing=0, leading_missing=3
    )


def test_unmirrored_records_are_not_searched_for_records_that_were_copied_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify, "MAX_LOOK_AHEAD", 2)
    read: list[int] = []

    def source(start: int) -> Iterator[Fingerprint]:
        for record in _side("ab" + "x" * 1000)(start):
            read.append(record.offset)
            yield record

    expected = Findings(same=2, surplus=2, first_surplus=2)
    assert compare(source, _side("abab"), mirrored_to=2) == expected
    assert len(read) < 10


@given(st.text("abc", max_size=30), st.text("abc", max_size=30), st.sampled_from([1, 2, 5, verify.MAX_LOOK_AHEAD]))
def test_every_record_is_counted_once(source: str, target: str, look_ahead: int) -> None:
    # when
    with patch.object(verify, "MAX_LOOK_AHEAD", look_ahead):
        comparison = compare(_side(source), _side(target))
    # then
    assert comparison.same + comparison.missing == len(source)
    assert comparison.same + comparison.surplus == len(target)
    assert (not comparison.missing and not comparison.surplus) == (source == target)


def _flow(**more: str) -> FlowSettings:
    properties = {
        "clusters": "A,B",
        "A.bootstrap.servers": "a:1",
        "B.bootstrap.servers": "b:1",
        "A->B.enabled": "true",
    }
    return parse_settings(properties | more).flows[0]


def _sides() -> tuple[FakeCluster, FakeCluster]:
    """Return two clusters whose topic orders has different configs."""
    source, target = FakeCluster(orders=1), FakeCluster(**{"A.orders": 1, "orders": 1})
    source.configs["orders"] = {"retention.ms": "1"}
    target.configs["A.orders"] = target.configs["orders"] = {"retention.ms": "2"}
    return source, target


@pytest.mark.parametrize(
    "more",
    [
        {"sync.topic.configs.enabled": "false"},
        {"sync.topic.configs.interval.seconds": "-1"},
        {"sync.topic.configs.enabled": "false", "use.incremental.alter.configs": "never"},
    ],
)
def test_configs_that_are_not_synced_are_no_drift(more: dict[str, str]) -> None:
    source, target = _sides()
    (difference,) = differences_of(_flow(**more), source, target, ["orders"])
    assert (difference.name, difference.is_drift, difference.rule) == ("retention.ms", False, NOT_SYNCED)
    (synced,) = differences_of(_flow(), source, target, ["orders"])
    assert synced.is_drift


def test_configs_of_handed_over_topics_are_not_compared() -> None:
    replica = {
        "B.bootstrap.controllers": "c:1",
        "klamm.offsets": "preserve",
        "klamm.offsets.by": "replica",
        "klamm.replica.experimental": "true",
        "klamm.replica.node.id": "9",
        "klamm.replica.listeners": "klamm:9192",
    }
    source, target = _sides()
    assert differences_of(_flow(**replica), source, target, ["orders"]) == ()


@pytest.mark.parametrize(
    ("state", "own", "topics"),
    [
        (FlowState.RUNNING, RequestedState.PAUSED, ["orders"]),
        (FlowState.RUNNING, RequestedState.STOPPED, []),
        (FlowState.RUNNING, RequestedState.PROMOTED, []),
        (FlowState.RUNNING, RequestedState.FAILED_OVER, []),
        (FlowState.STOPPED, RequestedState.RUNNING, []),
    ],
)
def test_configs_of_stopped_and_promoted_topics_are_not_compared(
    state: FlowState, own: RequestedState, topics: list[str]
) -> None:
    status = MirrorStatus(["A->B"])
    status.update("task", [progress_row()])
    status.set_state("A->B", state)
    status.set_topic_states("A->B", {} if own is RequestedState.RUNNING else {"orders": own})
    assert live._topics("A->B", status) == topics
