"""Status page of a mirror: flows, topics with their lag, config differences and groups. Pure: HTML from a snapshot."""

from __future__ import annotations

from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from klamm.configs.durations import value_in_words
from klamm.lazy_dataclass import dataclass
from klamm.mirror.progress.flow_progress import FlowState
from klamm.mirror.progress.partition_progress import CopyState
from klamm.page.html import Cell, Table, document, filter_form, shown, table, time_text
from klamm.page.plot import STYLE as PLOT_STYLE
from klamm.page.plot import count_text, plots_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.mirror.progress.flow_progress import (
        ConfigDifference,
        FlowGroups,
        FlowProgress,
        MirroredGroupOffset,
        PartitionStatus,
    )
    from klamm.page.plot import Sample

MAX_ROWS: Final = 500
"""Maximum number of rows per table. A page for 10,000 partitions must remain readable."""
FIRST_ROWS: Final = 20
"""Number of rows that are visible at first. Rows that need an operator come first."""
REFRESH_S: Final = 2
PATIENCE_S: Final = 5
"""Seconds without an answer after which the page reports that the mirror does not answer."""

_BY_URGENCY: Final = (CopyState.STOPPED, CopyState.WAITING, CopyState.PAUSED, CopyState.COPYING, CopyState.PROMOTED)
_EQUAL: Final = {True: "yes", False: "no", None: "unknown"}
_STYLE: Final = """
body { max-width: 1080px; margin: 1.5rem auto; } h1 { margin-bottom: 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .2rem; }
h3 { margin: 1.2rem 0 .3rem; } .RUNNING, .PROMOTED, .FAILED_OVER { color: var(--good); }
.WAITING, .STARTING, .STANDBY, .PAUSED { color: var(--wait); }
.FAILED, .STOPPED { color: var(--bad); }
th, td { padding-top: .25rem; padding-bottom: .25rem; } td { min-width: 7rem; }
td.state, td.share { min-width: 0; white-space: nowrap; }
td.share span { display: inline-block; min-width: 3rem; }
#away { color: var(--bad); position: sticky; top: 0; background: var(--back); }
@media (max-width: 42rem) { td { min-width: 0; }
  td.share span { min-width: 0; } }
"""
_SCRIPT: Final = """
const away = document.getElementById("away");
let since = null;
async function refresh() {
  const selected = getSelection();
  if (!selected.isCollapsed && document.querySelector("main").contains(selected.anchorNode)) {
    away.textContent = "The page is not refreshed while text is selected.";
    return;
  }
  try {
    const answer = await fetch(location.href, {signal: AbortSignal.timeout(%d)});
    const main = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    const now = document.querySelector("main");
    for (const box of now.querySelectorAll("input:checked")) {
      const same = main.querySelector("#" + CSS.escape(box.id));
      if (same) same.checked = true;
    }
    const aside = new Map([...now.querySelectorAll(".wide")].map(one => [one.id, one.scrollLeft]));
    const focused = document.activeElement?.id;
    now.replaceWith(main);
    for (const one of main.querySelectorAll(".wide")) one.scrollLeft = aside.get(one.id) ?? 0;
    if (focused) document.getElementById(focused)?.focus({preventScroll: true});
    away.textContent = "";
    since = null;
  } catch {
    since ??= new Date();
    away.textContent = "The mirror has not answered since " + since.toLocaleTimeString()
      + "; this page shows its last known state.";
  }
}
async function go() { await refresh(); setTimeout(go, %d); }
setTimeout(go, %d);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopicLine:
    """Row of the topics table: the sums over all partitions of a remote topic."""

    remote_topic: str
    copied: int
    total: int
    lag: int | None
    records_per_s: float
    bytes_per_s: float
    state: str
    reason: str


class _Filter(NamedTuple):
    """Filter of all tables."""

    wanted: str
    """Part of a name, in lower case. Empty: all names are accepted."""

    def accepts(self, *names: str) -> bool:
        """Return whether one of the names has the wanted part."""
        return any(self.wanted in name.lower() for name in names)


def render(
    flows: Sequence[FlowProgress],
    drift: Mapping[str, Sequence[ConfigDifference]],
    groups: Mapping[str, FlowGroups] = MappingProxyType({}),
    samples: Mapping[str, Sequence[Sample]] = MappingProxyType({}),
    *,
    at_s: float,
    wanted: str = "",
) -> str:
    """Return the page as HTML.

    Args:
        flows: Progress of the flows.
        drift: Config differences by flow. A flow without an entry has not been compared yet.
        groups: State of the mirrored consumer groups by flow. A flow without an entry does not mirror groups.
        samples: Samples of the last 15 minutes by flow, the oldest one first. A flow with less than two has no plots.
        at_s: Time of the page, in seconds since the epoch.
        wanted: Part of the name of a topic or a group. Tables show only rows with it, in upper or lower case; sums
            cover all topics. Empty: no filter.
    """
    filtered = _Filter(wanted.lower())
    body: list[str] = []
    for flow in flows:
        plotted = plots_of(samples.get(flow.flow, ()), FIGURES, until_s=at_s)
        body += _flow(flow, drift.get(flow.flow), groups.get(flow.flow), plotted, filtered)
    head = '<h1>klamm mirror</h1><p id="away" role="status"></p>\n'
    head += filter_form(wanted, hint="part of a topic or group") + "<main>"
    head += f'<p class="soft">{time_text(at_s)}</p>'
    script = _SCRIPT % (PATIENCE_S * 1000, REFRESH_S * 1000, REFRESH_S * 1000)
    return document("klamm mirror", [head, *body, "</main>"], style=f"{_STYLE}{PLOT_STYLE}", script=script)


def _flow(
    flow: FlowProgress,
    differences: Sequence[ConfigDifference] | None,
    groups: FlowGroups | None,
    plotted: str,
    filtered: _Filter,
) -> list[str]:
    """Return the section of one flow."""
    name = shown(flow.flow.replace("->", " \u2192 "))
    reason = f": {shown(flow.reason)}" if flow.reason else ""
    lag = "lag unknown" if flow.lag is None else f"lag {flow.lag:,}"
    eta = f", done in {_duration(flow.eta_s)}" if flow.eta_s else ""
    state = FlowState(flow.state).value
    return [
        f'<h2 id="{escape(flow.flow)}"><a href="#{quote(flow.flow)}">{name}</a>'
        f' <span class="{state}">{state}{reason}</span></h2>',
        f'<p class="soft">{flow.copied:,} of {flow.total:,} records, {flow.records_per_s:,.0f} records/s, '
        f"{flow.mb_per_s:.1f} MB/s, {lag}{eta}</p>",
        plotted,
        *_topics(flow, filtered),
        *_ends(flow, filtered),
        *_topic_states(flow, filtered),
        *_rejected(flow, filtered),
        *_differences(flow.flow, differences, filtered),
        *([] if groups is None else _groups(flow.flow, groups, filtered)),
    ]


def _topics(flow: FlowProgress, filtered: _Filter) -> list[str]:
    if not flow.partitions:
        return ["<p>No partition is copied yet.</p>"]
    lines = [line for line in _topic_lines(flow.partitions) if filtered.accepts(line.remote_topic)]
    if not lines:
        return ['<p class="soft">No topic has this in its name.</p>']
    heads = (
        ("Topic on the target", ""), ("Records", "number extra"), ("Copied", ""), ("Records/s", "number extra"),
        ("MB/s", "number extra"), ("Lag", "number"), ("State", ""),
    )  # fmt: skip
    rows = [_topic_row(line) for line in lines[:MAX_ROWS]]
    return [_folded(f"topics-{flow.flow}", heads, rows, total=len(lines), kind="topics")]


def _folded(
    name: str, heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[Cell]], *, total: int, kind: str = ""
) -> str:
    """Return a table that shows its first rows, and the other rows when its checkbox is ticked."""
    return table(Table(heads=heads, rows=rows, total=total, name=name, kind=kind, unfolded=FIRST_ROWS), {})


def _topic_lines(partitions: Sequence[PartitionStatus]) -> list[_TopicLine]:
    """Return one line per topic: first those that need an operator, then the others by descending lag."""
    topics: dict[str, list[PartitionStatus]] = {}
    for partition in partitions:
        topics.setdefault(partition.remote_topic, []).append(partition)
    lines = [_topic_line(topic, of) for topic, of in topics.items()]
    lines.sort(key=lambda line: (line.state is not CopyState.STOPPED, -(line.lag or 0), line.remote_topic))
    return lines


def _topic_line(topic: str, partitions: Sequence[PartitionStatus]) -> _TopicLine:
    """Return the row of a topic. It shows state and reason of the partition in the worst state."""
    lags = [partition.lag for partition in partitions]
    known_lags = [lag for lag in lags if lag is not None]
    worst = min(partitions, key=lambda partition: _BY_URGENCY.index(partition.state))
    reason = f"partition {worst.partition}: {worst.reason}" if worst.reason else ""
    return _TopicLine(
        remote_topic=topic,
        copied=sum(max(0, partition.next_offset) for partition in partitions),
        total=sum(max(0, partition.end_offset) for partition in partitions),
        lag=sum(known_lags) if len(known_lags) == len(lags) else None,
        records_per_s=sum(partition.records_per_s for partition in partitions),
        bytes_per_s=sum(partition.bytes_per_s for partition in partitions),
        state=worst.state,
        reason=reason,
    )


def _topic_row(line: _TopicLine) -> list[Cell]:
    return [
        Cell(line.remote_topic),
        Cell(f"{line.copied:,} / {line.total:,}", kind="number extra"),
        _share(line),
        Cell(f"{line.records_per_s:,.0f}", kind="number extra"),
        Cell(f"{line.bytes_per_s / 1e6:.1f}", kind="number extra"),
        Cell("unknown" if line.lag is None else f"{line.lag:,}", kind="number"),
        Cell(line.state, kind=f"state {line.state}"),
        *_note(line.reason, span=7),
    ]


def _share(line: _TopicLine) -> Cell:
    """Return the mirrored share of a topic as a bar and in percent. 100 percent means that there is no lag."""
    if not line.total:
        return Cell("", kind="share", remark="empty" if line.lag == 0 else "unknown")
    percent = 100 if line.lag == 0 else min(99, line.copied * 100 // line.total)
    return Cell(f"{percent}%", kind="share", percent=percent)


def _note(text: str, *, span: int) -> list[Cell]:
    """Return the note of a row. It has a row of its own, so that it is also visible on a narrow page."""
    return [Cell(text, kind="note", span=span)] if text else []


def _ends(flow: FlowProgress, filtered: _Filter) -> list[str]:
    """Return the section with the log ends on both sides, if records keep their offsets. Differing ones come first."""
    partitions = [each for each in flow.partitions if filtered.accepts(each.remote_topic)]
    if not flow.preserves_offsets or not partitions:
        return []
    equal = sum(each.ends_are_equal is True for each in partitions)
    rows = [_ends_row(each) for each in sorted(partitions, key=lambda each: each.ends_are_equal is True)[:MAX_ROWS]]
    heads = (
        ("Topic on the target", ""), ("Partition", "number"), ("Source end", "number"), ("Target end", "number"),
        ("Equal", ""),
    )  # fmt: skip
    return [
        f"<h3>Offsets on both sides: equal in {equal:,} of {len(partitions):,} partitions</h3>",
        _folded(f"ends-{flow.flow}", heads, rows, total=len(partitions), kind="ends"),
    ]


def _ends_row(partition: PartitionStatus) -> list[Cell]:
    source_end, target_end = ("unknown",) * 2 if partition.ends is None else (f"{end:,}" for end in partition.ends)
    return [
        Cell(partition.remote_topic),
        Cell(f"{partition.partition}", kind="number"),
        Cell(source_end, kind="number"),
        Cell(target_end, kind="number"),
        Cell(_EQUAL[partition.ends_are_equal], kind="state"),
    ]


def _topic_states(flow: FlowProgress, filtered: _Filter) -> list[str]:
    """Return the section with the topics that an operator paused, stopped, promoted or demoted."""
    states = [(topic, state) for topic, state in flow.topic_states if filtered.accepts(topic)]
    if not states:
        return []
    rows = [[Cell(topic), Cell(state, kind=f"state {state}")] for topic, state in states[:MAX_ROWS]]
    heads = (("Topic on the source", ""), ("State", ""))
    return [
        "<h3>Topics that were paused, stopped, promoted or demoted</h3>",
        _folded(f"states-{flow.flow}", heads, rows, total=len(states), kind="states"),
    ]


def _rejected(flow: FlowProgress, filtered: _Filter) -> list[str]:
    rejected = [(name, reason) for name, reason in flow.rejected if filtered.accepts(name)]
    if not rejected:
        return []
    rows = [[Cell(name), Cell(reason)] for name, reason in rejected[:MAX_ROWS]]
    heads = (("Topic", ""), ("Reason", ""))
    return [
        "<h3>Topics that the target rejected</h3>",
        _folded(f"rejected-{flow.flow}", heads, rows, total=len(rejected), kind="rejected"),
    ]


def _differences(flow: str, differences: Sequence[ConfigDifference] | None, filtered: _Filter) -> list[str]:
    """Return the section with config differences. Drift comes first."""
    if differences is None:
        return ['<p class="soft">The configs of both sides have not been compared yet.</p>']
    if not differences:
        return ['<p class="soft">The configs of all topics are the same on both sides.</p>']
    differences = [row for row in differences if filtered.accepts(row.topic)]
    if not differences:
        return ['<p class="soft">No topic whose configs differ has this in its name.</p>']
    rows = [_difference_row(row) for row in sorted(differences, key=_drift_first)[:MAX_ROWS]]
    drift = sum(row.is_drift for row in differences)
    heads = (("Topic", ""), ("Config", ""), ("Source", ""), ("Target", ""))
    return [
        f"<h3>Configs that differ: {len(differences)}, of which the next sync changes {drift}</h3>",
        _folded(f"configs-{flow}", heads, rows, total=len(differences)),
    ]


def _groups(flow: str, groups: FlowGroups, filtered: _Filter) -> list[str]:
    """Return the section with consumer groups. Groups with a problem come first, skipped groups last."""
    parts = ["<h3>Consumer groups</h3>"]
    if groups.problem:
        parts.append(f'<p class="WAITING">{shown(groups.problem)}</p>')
    parts += [f'<p class="WAITING">{shown(damage)}</p>' for damage in groups.damage]
    offsets = [row for row in groups.offsets if filtered.accepts(row.group, row.remote_topic)]
    skipped = [(group, reason) for group, reason in groups.skipped if filtered.accepts(group)]
    rows = [_group_row(row) for row in sorted(offsets, key=_reason_first)[:MAX_ROWS]]
    rows += [[Cell(group), Cell(reason, kind="soft", span=4)] for group, reason in skipped[:MAX_ROWS]]
    if not rows and (groups.offsets or groups.skipped):
        return [*parts, '<p class="soft">No group has this in its name or in that of a topic.</p>']
    if not rows:
        return [*parts, '<p class="soft">No group has an offset on a mirrored topic.</p>']
    heads = (
        ("Group", ""), ("Topic on the target", ""), ("Partition", "number"), ("Offset on the source", "number extra"),
        ("Translated", "number"),
    )  # fmt: skip
    total = len(offsets) + len(skipped)
    return [*parts, _folded(f"groups-{flow}", heads, rows, total=total, kind="groups")]


def _reason_first(row: MirroredGroupOffset) -> tuple[bool, str, str, int]:
    return (not (row.reason or row.sync_reason), row.group, row.remote_topic, row.partition)


def _group_row(row: MirroredGroupOffset) -> list[Cell]:
    reasons = "; ".join(part for part in (row.reason, row.sync_reason) if part)
    return [
        Cell(row.group),
        Cell(row.remote_topic),
        Cell(f"{row.partition}", kind="number"),
        Cell(f"{row.source_offset:,}", kind="number extra"),
        Cell("-" if row.target_offset is None else f"{row.target_offset:,}", kind="number"),
        *_note(reasons, span=5),
    ]


def _drift_first(row: ConfigDifference) -> tuple[bool, str, str]:
    return (not row.is_drift, row.topic, row.name)


def _difference_row(row: ConfigDifference) -> list[Cell]:
    return [
        Cell(row.topic, kind="name"),
        Cell(row.name, kind=f"name {'wait' if row.is_drift else ''}"),
        _value(row.name, row.source_value, is_default=row.source_is_default),
        _value(row.name, row.target_value, is_default=row.target_is_default),
        *_note(row.rule, span=4),
    ]


def _value(name: str, value: str | None, *, is_default: bool) -> Cell:
    words = None if value is None else value_in_words(name, value)
    text = "-" if value is None else words or value or '""'
    remark = "default" if is_default and value is not None else ""
    return Cell(text, exact=value or "" if words else "", remark=remark)


def _duration(seconds: float | None) -> str:
    whole = int(seconds or 0)
    if whole < 90:  # noqa: PLR2004 - seconds are shown up to 90 s
        return f"{whole} s"
    minutes, hours = whole // 60, whole // 3600
    return f"{minutes} min" if minutes < 120 else f"{hours} h {minutes % 60} min"  # noqa: PLR2004


FIGURES: Final = (("Records/s", count_text), ("Lag", count_text), ("Latency", lambda value: f"{value:,.0f} ms"))
"""Names of the values, and their texts."""


def flow_values(flow: FlowProgress) -> tuple[float | None, ...]:
    """Return records per second, lag, and the mean replication latency of partitions that copy records.

    The lag is the number of source offsets that are not on the target.
    """
    latencies = [
        partition.replication_latency.mean
        for partition in flow.partitions
        if partition.records_per_s and partition.replication_latency is not None
    ]
    return flow.records_per_s, flow.lag, sum(latencies) / len(latencies) if latencies else None
