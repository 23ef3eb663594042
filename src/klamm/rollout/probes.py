"""Figures of guards: lag and replicas from the cluster, metrics pages of klamm, Prometheus, and commands."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import subprocess
import urllib.parse
import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from klamm.admin import OffsetSpec, TopicPartition
from klamm.client_configs.entities import ClientConfigEntity
from klamm.display import counted
from klamm.hosts import proxies_to
from klamm.kafka_client.errors import CLUSTER_ERRORS
from klamm.rollout.guards import LABEL, Figures, Guard, GuardKind, GuardOutcome, GuardResult, judge, statistic
from klamm.rollout.record import RolloutState
from klamm.rollout.waves import is_changed
from klamm.telemetry.instances import CLIENT_ID, CLIENT_INSTANCE_ID
from klamm.telemetry.series import PUSH_AGE, family_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from klamm.admin import AdminClient
    from klamm.rollout.record import RolloutRecord

_SAMPLE: Final = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)(?: \S+)?")
_TIMEOUT_S: Final = 10.0
_COMMAND_TIMEOUT_S: Final = 60.0
_MAX_SHOWN: Final = 10
_NOT_RUN: Final = frozenset({126, 127})
"""Exit codes with which a shell reports that it cannot run a command."""
Sample = tuple["dict[str, str]", float]


class NoDataError(Exception):
    """There is no figure; the message says why."""


class Probe:
    """Reader of the figures of guards. Blocking calls take some seconds at most, commands a minute.

    Args:
        admin: Admin client of the cluster.
        now_ms: Wall clock, in milliseconds since the epoch.
    """

    def __init__(self, admin: AdminClient, *, now_ms: Callable[[], int]) -> None:
        self._admin = admin
        self._now_ms = now_ms
        self._readers: Mapping[GuardKind, Callable[[Guard, RolloutRecord, int], Figures]] = {
            GuardKind.LAG: self._lag,
            GuardKind.UNDER_REPLICATED: self._under_replicated,
            GuardKind.CLIENTS: self._clients,
            GuardKind.METRICS: self._metrics,
            GuardKind.PROMETHEUS: self._prometheus,
            GuardKind.COMMAND: self._command,
        }

    def evaluate(self, guard: Guard, record: RolloutRecord) -> GuardResult:
        """Return the outcome of a guard for the present wave of a roll-out."""
        figures = self._figures(guard, record, record.wave)
        baselines = record.baselines.get(guard.text, ())
        if guard.is_increase:
            return judge(guard, replace(figures, counters_before=baselines))
        before = baselines[record.wave] if 0 <= record.wave < len(baselines) else None
        return judge(guard, replace(figures, before=before))

    def before(self, guard: Guard, record: RolloutRecord) -> tuple[tuple[float | None, ...], GuardResult]:
        """Return the figures before a roll-out, and whether the roll-out may begin.

        The figures are those for the clients of each wave, or the counters of each page for an increase.
        """
        waves = range(len(record.waves))
        # Only the figures of clients differ from wave to wave.
        each = [
            self._figures(guard, record, wave) for wave in (waves if guard.kind is GuardKind.CLIENTS else waves[:1])
        ]
        figures = tuple(figure.now for figure in each) if len(each) > 1 else (each[0].now,) * len(waves)
        if guard.is_increase:
            figures = each[0].counters
        available = next((figure for figure in each if figure.now is not None), each[0])
        if guard.needs_baseline:
            has_data = available.now is not None and not available.trouble
            outcome = GuardOutcome.PASSED if has_data else GuardOutcome.NO_DATA
            result = GuardResult(guard=guard.text, outcome=outcome, reason=available.trouble or "figure before")
        else:
            result = judge(guard, available)
        return figures, result

    def _figures(self, guard: Guard, record: RolloutRecord, wave: int) -> Figures:
        try:
            return self._readers[guard.kind](guard, record, wave)
        except NoDataError as error:
            return Figures(now=None, trouble=str(error))
        except (*CLUSTER_ERRORS, OSError, ValueError, http.client.HTTPException) as error:
            return Figures(now=None, trouble=str(error) or type(error).__name__)

    def _lag(self, guard: Guard, *_: object) -> Figures:
        """Return the lag of a group, with trouble if partitions without an offset of it might violate the limit.

        Whether the group has yet to read their records depends on its ``auto.offset.reset``, which no API shows.
        """
        group = guard.subject
        committed = self._admin.list_group_offsets({group: None}, timeout_ms=_ms()).result()[group]
        if not committed:
            raise NoDataError(f"group {group} has no committed offsets")
        described = self._admin.describe_topics({each.topic for each in committed}, timeout_ms=_ms()).all().result()
        without = {
            TopicPartition(name, each.partition) for name, topic in described.items() for each in topic.partitions
        }.difference(committed)
        ends, starts = (
            self._admin.list_offsets(dict.fromkeys([*committed, *without], spec), timeout_ms=_ms()).all().result()
            for spec in (OffsetSpec.LATEST, OffsetSpec.EARLIEST)
        )
        lost = {
            partition: starts[partition].offset - offset.offset
            for partition, offset in committed.items()
            if offset.offset < starts[partition].offset
        }
        failure = ""
        if lost:
            partition, count = max(lost.items(), key=lambda entry: entry[1])
            failure = (
                f"group {group} cannot read {sum(lost.values()):,} records any more: its offset in"
                f" {partition.name} is {count:,} before the log start"
            )
        lag = sum(max(ends[partition].offset - offset.offset, 0) for partition, offset in committed.items())
        unread = {each: count for each in without if (count := ends[each].offset - starts[each].offset) > 0}
        trouble = ""
        if unread and (guard.limit.base is not None or not guard.limit.allows(lag + sum(unread.values()))):
            trouble = (
                f"group {group} has no committed offset in {counted(len(unread), 'partition')} with"
                f" {sum(unread.values()):,} records, such as {min(unread).name}"
            )
        return Figures(now=float(lag), failure=failure, trouble=trouble)

    def _under_replicated(self, *_: object) -> Figures:
        names = self._admin.list_topics(include_internal=True, timeout_ms=_ms()).result()
        described = self._admin.describe_topics(list(names), timeout_ms=_ms()).all().result()
        partitions = [partition for topic in described.values() for partition in topic.partitions]
        return Figures(now=float(sum(len(each.isr) < len(each.replicas) for each in partitions)))

    def _clients(self, guard: Guard, record: RolloutRecord, wave: int) -> Figures:
        """Return the figures of clients, with trouble until each changed client has pushed after the wave."""
        family = family_of(guard.subject)
        # Until the pages are read, an age grows: a push from before the wave never seems to be later.
        since_wave_s = (self._now_ms() - record.since_ms) / 1000 if record.state is RolloutState.BAKING else math.inf
        pages = [_page(address) for address in record.metrics]
        ages = [sample for page in pages for sample in samples(page, PUSH_AGE)]
        pushing = {labels.get(CLIENT_INSTANCE_ID) for labels, age_s in ages if age_s <= since_wave_s}
        changed: list[float] = []
        unchanged: list[float] = []
        silent: set[str] = set()
        for labels, value in (sample for page in pages for sample in samples(page, family)):
            user = labels.get("principal", "").partition(":")[2]
            application = ClientConfigEntity.of_client(user, labels.get(CLIENT_ID, ""))
            if (belongs := is_changed(record, wave, application)) is not None:
                (changed if belongs else unchanged).append(value)
            if belongs and labels.get(CLIENT_INSTANCE_ID) not in pushing:
                silent.add(labels.get(CLIENT_ID, ""))
        trouble = "" if changed else f"no changed client pushes {guard.subject}"
        if silent and not ages:
            trouble = f"the pages do not show when clients have pushed ({PUSH_AGE})"
        elif silent:
            trouble = (
                f"changed clients have not pushed since the wave was written: {', '.join(sorted(silent)[:_MAX_SHOWN])}"
            )
        return Figures(now=statistic(guard.stat, changed), unchanged=statistic(guard.stat, unchanged), trouble=trouble)

    def _metrics(self, guard: Guard, record: RolloutRecord, _: int) -> Figures:
        counters = tuple(_sum(_page(address), guard) for address in record.metrics)
        available = [counter for counter in counters if counter is not None]
        if not available:
            raise NoDataError(
                f"no page of {', '.join(record.metrics)} has a sample of {guard.subject} with these labels"
            )
        return Figures(now=sum(available), counters=counters)

    def _prometheus(self, guard: Guard, *_: object) -> Figures:
        query = urllib.parse.urlencode({"query": guard.subject})
        answer = _get(f"{guard.url}/api/v1/query?{query}", proxies_to(guard.url))
        values = prometheus_values(json.loads(answer))
        if not values:
            raise NoDataError("the result of the query is empty")
        return Figures(now=next((value for value in values if not guard.limit.allows(value)), values[0]))

    def _command(self, guard: Guard, record: RolloutRecord, _: int) -> Figures:
        environment = {**os.environ, "KLAMM_ROLLOUT_ID": record.id, "KLAMM_ROLLOUT_WAVE": str(record.wave + 1)}
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own command
                ["/bin/sh", "-c", guard.subject],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NoDataError(f"the command does not end within {_COMMAND_TIMEOUT_S:g} s") from error
        if done.returncode in _NOT_RUN:
            raise NoDataError(f"the command cannot be run: {done.stderr.decode(errors='replace').strip()}")
        return Figures(now=float(done.returncode))


def _page(address: str) -> list[str]:
    """Return the lines of a page of metrics. Like the brokers themselves, it is reached without a proxy."""
    return _get(f"http://{address}/metrics", {}).decode().split("\n")


def _sum(page: Sequence[str], guard: Guard) -> float | None:
    """Return the sum of the samples that a guard selects on a page; None without any.

    A counter with labels has no sample before its first event, such as the first error. For an increase it is 0 then.
    """
    wanted = guard.labels.items()
    values = [value for labels, value in samples(page, guard.subject) if wanted <= labels.items()]
    if values or (guard.is_increase and _has_type(page, guard.subject)):
        return sum(values)
    return None


def _has_type(page: Sequence[str], name: str) -> bool:
    """Return whether a page announces a metric, or the histogram that it belongs to."""
    names = {name, *(name.removesuffix(suffix) for suffix in ("_bucket", "_count", "_sum"))}
    return any(line.startswith("# TYPE ") and line.split(" ")[2] in names for line in page)


def samples(lines: Iterable[str], name: str) -> Iterator[Sample]:
    """Yield labels and value of each sample of a metric in Prometheus' text format. NaN is no value."""
    for line in lines:
        match = _SAMPLE.fullmatch(line) if line.startswith(name) else None
        if match is not None and match["name"] == name and not math.isnan(value := float(match["value"])):
            yield dict(LABEL.findall(match["labels"] or "")), value


def prometheus_values(document: Mapping[str, Any]) -> Sequence[float]:
    """Return the values in the response of Prometheus to an instant query. NaN is no value.

    Raises:
        NoDataError: The response is an error or not that of Prometheus, or its result is neither a vector nor a scalar.
    """
    try:
        if document.get("status") != "success":
            raise NoDataError(f"Prometheus: {document.get('error', 'no result')}")
        data = document["data"]
        if data["resultType"] not in {"vector", "scalar"}:
            raise NoDataError(f"the result of the query is a {data['resultType']}, expected a vector or a scalar")
        pairs = [data["result"]] if data["resultType"] == "scalar" else [each["value"] for each in data["result"]]
        return [value for _, text in pairs if not math.isnan(value := float(text))]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise NoDataError(f"the server does not answer like Prometheus: {error!r}") from error


def _get(url: str, proxies: dict[str, str] | None) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    with opener.open(url, timeout=_TIMEOUT_S) as response:  # http and https only, see guards
        body: bytes = response.read()
    return body


def _ms() -> int:
    return int(_TIMEOUT_S * 1000)
