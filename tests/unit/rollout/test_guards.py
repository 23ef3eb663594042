"""Guards: parsing, and evaluation of their figures."""

from __future__ import annotations

import re
import socket
import threading
import urllib.parse
from dataclasses import replace
from typing import Any
from unittest.mock import create_autospec
from uuid import UUID

import pytest

from klamm.admin import AdminClient, OffsetAndMetadata, OffsetSpec, TopicDescription, TopicPartition
from klamm.admin.results import DescribeTopicsResult, ListGroupOffsetsResult, ListOffsetsResult
from klamm.admin.types import ListedOffset, PartitionDescription
from klamm.properties import SettingsError
from klamm.rollout.guards import Figures, GuardKind, GuardOutcome, LimitBase, judge, parse_guard, statistic
from klamm.rollout.probes import NoDataError, Probe, prometheus_values, samples
from klamm.rollout.record import RolloutRecord, RolloutState, Wave
from tests.support.page_behind_proxy import page_behind_proxy

PASSED, FAILED, NO_DATA = GuardOutcome.PASSED, GuardOutcome.FAILED, GuardOutcome.NO_DATA


@pytest.mark.parametrize(
    ("text", "kind", "subject"),
    [
        ("lag: my group < 1000", GuardKind.LAG, "my group"),
        ("lag:g<=0", GuardKind.LAG, "g"),
        ("under-replicated < 1", GuardKind.UNDER_REPLICATED, ""),
        ("under-replicated: == 0", GuardKind.UNDER_REPLICATED, ""),
        ("clients: producer.request.latency.avg < 1.2x before", GuardKind.CLIENTS, "producer.request.latency.avg"),
        ('metrics: klamm_requests_total{api="Fetch"} > 0', GuardKind.METRICS, "klamm_requests_total"),
        ("prometheus: http://host rate(a[5m]) / (b > 0) < 0.01", GuardKind.PROMETHEUS, "rate(a[5m]) / (b > 0)"),
        ("command: test 1 -lt 2", GuardKind.COMMAND, "test 1 -lt 2"),
    ],
)  # fmt: skip
def test_guards_are_parsed(text: str, kind: GuardKind, subject: str) -> None:
    guard = parse_guard(text)
    assert (guard.text, guard.kind, guard.subject) == (text, kind, subject)


def test_limit_may_be_relative_and_clients_have_a_statistic() -> None:
    guard = parse_guard("clients: producer.latency max <= 1.5x unchanged")
    assert (guard.stat, guard.limit.operator, guard.limit.number, guard.limit.base) == (
        "max",
        "<=",
        1.5,
        LimitBase.UNCHANGED,
    )
    assert parse_guard("lag: g < 2x").limit.base is LimitBase.BEFORE
    assert parse_guard("clients: m < 1").stat == "p99"


def test_metric_may_be_an_increase_with_labels() -> None:
    guard = parse_guard('metrics: increase errors{api="Produce",error="A"} < 5')
    assert guard.is_increase
    assert guard.labels == {"api": "Produce", "error": "A"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lags: g < 1", "unknown guard 'lags': expected one of lag: GROUP < NUMBER; .*; did you mean lag?"),
        ("lag: g", "it must end with a comparison and a number; expected lag: GROUP < NUMBER, with <, <=,"),
        ("lag: < 5", "its subject is missing; expected lag: GROUP < NUMBER"),
        ("lag: g < 1.2.3", "'1.2.3' is not a number"),
        ("lag: g < 1.2x unchanged", "'unchanged': expected one of before"),
        ("lag: g < 5 before", "5 before: a relative limit is written 5x before"),
        ("under-replicated g < 1", "unexpected 'g'"),
        ("clients: m median < 1", "unknown statistic 'median'; expected clients: METRIC"),
        ("metrics: a b < 1", "'a b' is not NAME or NAME"),
        ("metrics: a{b=c} < 1", "'a{b=c}' is not NAME or NAME"),
        ("prometheus: up < 1", "expected the http:// or https:// address of the server, a blank and a query"),
        ("metrics: increase errors_total < 2x before", "an increase has no figure before"),
        ("prometheus: http://h up < 2x before", "a query with several results has no figure before"),
        ("command:", "the command is missing"),
    ],
)
def test_invalid_guard_is_rejected_with_the_allowed_forms(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_guard(text)
    assert str(raised.value).startswith(f"--guard {text!r}: ")
    assert message in str(raised.value) or re.search(message, str(raised.value))


def increase(counters: tuple[float | None, ...], before: tuple[float | None, ...]) -> Figures:
    return Figures(now=sum(filter(None, counters)), counters=counters, counters_before=before)


@pytest.mark.parametrize(
    ("text", "figures", "outcome", "reason"),
    [
        ("lag: g < 10", Figures(now=9), PASSED, "9, wanted < 10"),
        ("lag: g < 10", Figures(now=10), FAILED, "10, wanted < 10"),
        ("lag: g < 10", Figures(now=None, trouble="no group"), NO_DATA, "no group"),
        ("lag: g < 10", Figures(now=0, failure="lost"), FAILED, "lost"),
        ("lag: g < 1.5x before", Figures(now=14, before=10), PASSED, "14, wanted < 15 (1.5 x 10 before)"),
        ("lag: g < 1.5x before", Figures(now=14), NO_DATA, "there is no figure of before"),
        ("clients: m < 2x unchanged", Figures(now=7, unchanged=3), FAILED, "7, wanted < 6 (2 x 3 unchanged)"),
        ("clients: m < 2x unchanged", Figures(now=5, before=1), FAILED, "5, wanted < 2 (2 x 1 before)"),
        ("clients: m < 2x unchanged", Figures(now=5), NO_DATA, "there is no figure of unchanged"),
        ("metrics: increase m < 3", increase((12,), (10,)), PASSED, "2, wanted < 3"),
        ("metrics: increase m < 3", increase((4,), (10,)), FAILED, "4, wanted < 3"),
        ("metrics: increase m < 8", increase((4, 7), (10, 0)), FAILED, "11, wanted < 8"),
        ("metrics: increase m < 3", increase((2, 101), (10, 100)), FAILED, "3, wanted < 3"),
        ("metrics: increase m < 3", increase((None, 7), (None, 5)), PASSED, "2, wanted < 3"),
        ("metrics: increase m < 3", increase((4,), ()), NO_DATA, "there was no figure before the roll-out"),
    ],
)  # fmt: skip
def test_figures_decide_the_guards_outcome(text: str, figures: Figures, outcome: GuardOutcome, reason: str) -> None:
    result = judge(parse_guard(text), figures)
    assert (result.outcome, result.reason) == (outcome, reason)


@pytest.mark.parametrize(
    ("stat", "value"), [("p99", 99), ("p50", 50), ("p0", 1), ("avg", 50.5), ("max", 100), ("min", 1), ("sum", 5050)]
)  # fmt: skip
def test_statistics_over_clients(stat: str, value: float) -> None:
    assert statistic(stat, [float("nan"), *map(float, range(1, 101))]) == value
    assert statistic(stat, [float("nan")]) is None


def test_samples_of_a_metric_are_parsed() -> None:
    page = ["# TYPE a counter", 'a{x="1",y="b,\\"}"} 2', "a 3.5 1700000000", "a NaN", "ab 4"]
    assert list(samples(page, "a")) == [({"x": "1", "y": 'b,\\"}'}, 2.0), ({}, 3.5)]


def test_prometheus_vectors_and_scalars_have_values() -> None:
    vector = {"resultType": "vector", "result": [{"value": [1, "2"]}, {"value": [1, "NaN"]}]}
    assert prometheus_values({"status": "success", "data": vector}) == [2.0]
    scalar = {"resultType": "scalar", "result": [1, "3"]}
    assert prometheus_values({"status": "success", "data": scalar}) == [3.0]
    with pytest.raises(NoDataError, match="Prometheus: bad query"):
        prometheus_values({"status": "error", "error": "bad query"})
    with pytest.raises(NoDataError, match="is a matrix, expected a vector or a scalar"):
        prometheus_values({"status": "success", "data": {"resultType": "matrix", "result": []}})


@pytest.mark.parametrize(
    "document",
    [[], None, {"status": "success"}, {"status": "success", "data": {"resultType": "vector", "result": [1]}}],
)
def test_answer_of_another_server_is_no_data(document: Any) -> None:
    with pytest.raises(NoDataError, match="does not answer like Prometheus"):
        prometheus_values(document)


ERRORS = 'metrics: increase errors_total{api="PRODUCE"} < 10'
TYPE = "# TYPE errors_total counter"


@pytest.mark.parametrize(
    ("text", "pages", "later", "outcomes"),
    [
        (ERRORS, {"a": [TYPE]}, {"a": [TYPE]}, (PASSED, PASSED)),
        (ERRORS, {"a": [TYPE]}, {"a": [TYPE, 'errors_total{api="PRODUCE"} 10']}, (PASSED, FAILED)),
        (
            ERRORS,
            {"a": [TYPE, 'errors_total{api="PRODUCE",error="X"} 10'], "b": [TYPE]},
            {"a": [TYPE, 'errors_total{api="PRODUCE",error="Y"} 4'], "b": [TYPE, 'errors_total{api="PRODUCE"} 7']},
            (PASSED, FAILED),
        ),
        (ERRORS, {"a": ["# TYPE other_total counter"]}, {}, (NO_DATA,)),
        (ERRORS.replace("increase ", ""), {"a": [TYPE]}, {}, (NO_DATA,)),
        (
            "metrics: increase duration_seconds_count < 2",
            {"a": ["# TYPE duration_seconds histogram"], "b": ["# TYPE other_total counter"]},
            {"a": ["# TYPE duration_seconds histogram", "duration_seconds_count 1"], "b": []},
            (PASSED, PASSED),
        ),
    ],
)
def test_increase_is_counted_for_each_page_from_0_without_a_sample(
    text: str,
    pages: dict[str, list[str]],
    later: dict[str, list[str]],
    outcomes: tuple[GuardOutcome, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given
    guard, probe = parse_guard(text), Probe(create_autospec(AdminClient), now_ms=lambda: 0)
    record = RolloutRecord(
        id="a", waves=(Wave(name="1", settings={}),) * 3, bake_ms=1, check_ms=1, metrics=tuple(pages), wave=2
    )
    present = pages
    monkeypatch.setattr(
        "klamm.rollout.probes._get",
        lambda url, _: "\n".join(present[urllib.parse.urlsplit(url).netloc]).encode(),
    )
    # when
    before, result = probe.before(guard, record)
    results = [result.outcome]
    if later:
        present = later
        results.append(probe.evaluate(guard, replace(record, baselines={text: before})).outcome)
    # then
    assert tuple(results) == outcomes


def admin_with_group(committed: dict[int, int], starts: dict[int, int], ends: dict[int, int]) -> Any:
    """Return a client of a cluster with a group ``g`` and one topic, by offsets of its partitions."""
    partitions = [
        PartitionDescription(partition=each, leader=1, leader_epoch=0, replicas=(1,), isr=(1,)) for each in ends
    ]
    groups, topics = ListGroupOffsetsResult(["g"]), DescribeTopicsResult(["t"])
    offsets_of_group = {TopicPartition("t", each): OffsetAndMetadata(at) for each, at in committed.items()}
    groups.values()["g"].set_result(offsets_of_group)
    topics.values()["t"].set_result(
        TopicDescription(name="t", topic_id=UUID(int=1), is_internal=False, partitions=tuple(partitions))
    )

    def listed(specs: dict[TopicPartition, int], **_: object) -> ListOffsetsResult:
        offsets = ListOffsetsResult(specs)
        for each, spec in specs.items():
            offset = (ends if spec == OffsetSpec.LATEST else starts)[each.partition]
            offsets.values()[each].set_result(ListedOffset(offset=offset, timestamp=-1, leader_epoch=0))
        return offsets

    admin: Any = create_autospec(AdminClient, instance=True)
    admin.list_group_offsets.return_value = groups
    admin.describe_topics.return_value = topics
    admin.list_offsets.side_effect = listed
    return admin


@pytest.mark.parametrize(
    ("text", "committed", "outcome", "reason"),
    [
        ("lag: g < 10", {0: 5, 1: 8}, PASSED, "4, wanted < 10"),
        ("lag: g < 10", {0: 5}, NO_DATA, "group g has no committed offset in 1 partition with 8 records, such as t-1"),
        ("lag: g < 10", {1: 8}, PASSED, "2, wanted < 10"),
        ("lag: g < 2", {0: 5}, FAILED, "2, wanted < 2"),
        ("lag: g < 10", {0: 1, 1: 8}, FAILED, "group g cannot read 1 records any more: its offset in t-0 is 1 before"),
    ],
)
def test_partition_without_an_offset_of_the_group_has_unknown_lag(
    text: str, committed: dict[int, int], outcome: GuardOutcome, reason: str
) -> None:
    # given
    admin = admin_with_group(committed, starts={0: 2, 1: 2, 2: 5}, ends={0: 7, 1: 10, 2: 5})
    record = RolloutRecord(id="a", waves=(Wave(name="100%", settings={}),), bake_ms=1, check_ms=1, wave=0)
    # when
    result = Probe(admin, now_ms=lambda: 0).evaluate(parse_guard(text), record)
    # then
    assert result.outcome is outcome, result
    assert result.reason.startswith(reason)


def test_lag_without_all_offsets_is_no_figure_before_the_roll_out() -> None:
    # given
    admin = admin_with_group({0: 5}, starts={0: 0, 1: 0}, ends={0: 7, 1: 10})
    record = RolloutRecord(id="a", waves=(Wave(name="100%", settings={}),), bake_ms=1, check_ms=1)
    # when
    _, result = Probe(admin, now_ms=lambda: 0).before(parse_guard("lag: g < 2x before"), record)
    # then
    assert result.outcome is NO_DATA


LATENCY = "clients: producer.latency max < 10"


def pushed(client_id: str, value: float, age_s: float) -> list[str]:
    labels = f'client_id="{client_id}",client_instance_id="of {client_id}",principal="User:u"'
    return [
        f"klamm_client_metrics_push_age_seconds{{{labels}}} {age_s}",
        f"kafka_client_producer_latency{{{labels}}} {value}",
    ]


@pytest.mark.parametrize(
    ("page", "outcome", "reason"),
    [
        ([*pushed("a", 5, 1.5), *pushed("b", 5, 0)], PASSED, "5, wanted < 10"),
        (
            [*pushed("a", 5, 1.501), *pushed("b", 5, 0)],
            NO_DATA,
            "changed clients have not pushed since the wave was written: a",
        ),
        ([*pushed("a", 5, 9), *pushed("b", 15, 0)], FAILED, "15, wanted < 10"),
        ([*pushed("a", 5, 9), *pushed("a", 5, 0)], PASSED, "5, wanted < 10"),
        (
            pushed("a", 5, 0)[1:],
            NO_DATA,
            "the pages do not show when clients have pushed (klamm_client_metrics_push_age_seconds)",
        ),
        ([], NO_DATA, "no changed client pushes producer.latency"),
    ],
)
def test_guard_on_clients_passes_only_if_all_of_them_pushed_since_the_wave(
    page: list[str], outcome: GuardOutcome, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr("klamm.rollout.probes._get", lambda *_: "\n".join(page).encode())
    probe = Probe(create_autospec(AdminClient), now_ms=lambda: 2500)
    waves = (Wave(name="100%", settings={"USER:u": {"acks": "all"}}),)
    record = RolloutRecord(
        id="a", waves=waves, bake_ms=1, check_ms=1, metrics=("a",), wave=0, state=RolloutState.BAKING, since_ms=1000
    )
    # when
    result = probe.evaluate(parse_guard(LATENCY), record)
    # then
    assert (result.outcome, result.reason) == (outcome, reason)


def test_push_of_any_age_is_a_figure_before_the_roll_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr("klamm.rollout.probes._get", lambda *_: "\n".join(pushed("a", 5, 9)).encode())
    record = RolloutRecord(
        id="a", waves=(Wave(name="1", settings={"TOPIC:t": {"k": "1"}}),), bake_ms=1, check_ms=1, metrics=("a",)
    )
    # when
    probe = Probe(create_autospec(AdminClient), now_ms=lambda: 0)
    before, result = probe.before(parse_guard("clients: producer.latency max < 2x before"), record)
    # then
    assert (before, result.outcome) == ((5.0,), PASSED)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_prometheus_on_this_machine_is_asked_without_a_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = b'{"status": "success", "data": {"resultType": "scalar", "result": [1, "0"]}}'
    with page_behind_proxy(monkeypatch, page) as (address, targets):
        guard = parse_guard(f"prometheus: http://{host}:{address.partition(':')[2]} up < 1")
        record = RolloutRecord(id="a", waves=(Wave(name="100%", settings={}),), bake_ms=1, check_ms=1, wave=0)
        result = Probe(create_autospec(AdminClient), now_ms=lambda: 0).evaluate(guard, record)
    assert (result.outcome, targets) == (PASSED, ["/api/v1/query?query=up"])


def test_prometheus_elsewhere_is_asked_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    page = b'{"status": "success", "data": {"resultType": "scalar", "result": [1, "0"]}}'
    with page_behind_proxy(monkeypatch, page) as (_, targets):
        guard = parse_guard("prometheus: http://prometheus.example up < 1")
        record = RolloutRecord(id="a", waves=(Wave(name="100%", settings={}),), bake_ms=1, check_ms=1, wave=0)
        result = Probe(create_autospec(AdminClient), now_ms=lambda: 0).evaluate(guard, record)
    assert (result.outcome, targets) == (PASSED, ["http://prometheus.example/api/v1/query?query=up"])


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - leads to this machine, but is not loopback
def test_metrics_pages_are_read_without_a_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with page_behind_proxy(monkeypatch, b"a_total 0\n") as (address, targets):
        pages = (f"{host}:{address.partition(':')[2]}",)
        waves = (Wave(name="100%", settings={}),)
        record = RolloutRecord(id="a", waves=waves, bake_ms=1, check_ms=1, wave=0, metrics=pages)
        guard = parse_guard("metrics: a_total < 1")
        result = Probe(create_autospec(AdminClient), now_ms=lambda: 0).evaluate(guard, record)
    assert (result.outcome, targets) == (PASSED, ["/metrics"])


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b"no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n[]"]
)
def test_broken_answer_of_a_server_is_no_data(answer: bytes) -> None:
    # given
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        guard = parse_guard(f"prometheus: http://127.0.0.1:{server.getsockname()[1]} up < 1")
        record = RolloutRecord(id="a", waves=(Wave(name="100%", settings={}),), bake_ms=1, check_ms=1, wave=0)
        # when
        result = Probe(create_autospec(AdminClient), now_ms=lambda: 0).evaluate(guard, record)
        thread.join()
    # then
    assert result.outcome is NO_DATA
