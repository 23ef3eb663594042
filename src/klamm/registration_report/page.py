"""The report as one self-contained HTML page with tables and SVG plots. Pure: a report in, text out."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from typing import TYPE_CHECKING, Final

from klamm.page.html import Cell, Table, document, section, shown, table, wide
from klamm.registration_report.text import NO_NAME, moment, named, never_registered, supports, unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.registration_report.report import Report, VersionWindow

COLOURS: Final = tuple(f"var(--line-{number})" for number in range(8))
"""Line colours in the order of versions, distinct for most kinds of colour blindness; brighter on dark ground."""
MAX_LINES: Final = len(COLOURS)
MAX_BARS: Final = 25
MAX_PLOTS: Final = 10
MAX_NAMED: Final = 200
"""Maximum number of rows in a table. JSON and Parquet contain all of them."""

_BAR_HEIGHT: Final = 24
_DIGIT_WIDTH: Final = 8
_LETTER_WIDTH: Final = 8
_LABEL_WIDTH: Final = 250
_BARS_WIDTH: Final = 740
_MIN_ROOM: Final = 30
"""Pixels for the longest bar on a narrow screen."""
_CHART_HEIGHT: Final = 320
_CHART_WIDTH: Final = 740
_MARGIN: Final = 60
_ABOVE: Final = 16
_BELOW: Final = 40
_UNBROKEN: Final = 24
"""Maximum length of a cell that is not wrapped, in characters."""
_STYLE: Final = """
:root { --follow: #2563a8; --ignore: #e3b778; --unknown: #b9c0ca;
  --line-0: #2563a8; --line-1: #c96a06; --line-2: #0f766e; --line-3: #9d3c72;
  --line-4: #5b7a1f; --line-5: #6b5bb5; --line-6: #a3423a; --line-7: #4a5568; }
@media (prefers-color-scheme: dark) { :root { --follow: #6aa5e3; --ignore: #8a6a35; --unknown: #59626f;
  --line-0: #6aa5e3; --line-1: #f0a04b; --line-2: #3fc1b0; --line-3: #e07fb4;
  --line-4: #a5c85a; --line-5: #a99cf0; --line-6: #ee8379; --line-7: #b3bccb; } }
body { max-width: 60rem; } h1 { overflow-wrap: anywhere; } table { min-width: 40rem; }
svg { max-width: 100%; min-width: 36rem; height: auto; }
svg.bars { width: 100%; max-width: 740px; }
svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }
svg .soft { fill: var(--soft); } svg .axis { stroke: var(--line); }
.follow { fill: var(--follow); } .ignore { fill: var(--ignore); } .unknown { fill: var(--unknown); }
.entry { white-space: nowrap; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .4em 0 1em; }
"""


def render(report: Report, *, title: str) -> str:
    """Return the registration report as an HTML page."""
    body = [f"<h1>{escape(title)}</h1>"]
    if not report.clients:
        body.append("<p>No client has registered yet.</p>")
    else:
        body.append(f"<p>Clients: {report.clients:,}. Software versions: {report.versions_total:,}.")
        body.append(f"Registration records: {report.records:,}.</p>")
        body += map(_note, (*never_registered(report), *unreadable(report)))
        body.append(_overview(report))
        body.append(_by_version(report))
        body.append(_ignoring(report))
        body.append(_by_user(report))
        body.append(_over_time(report.windows))
        body.append(_every_version(report))
    return document(title, body, style=_STYLE, head="")


def _note(text: str) -> str:
    return f'<p class="soft">{shown(text)}</p>'


def _overview(report: Report) -> str:
    """Return one bar per config: clients that would follow it, that would ignore it, and that never registered."""
    parts = [
        "<p>",
        _key("follow", "follow"),
        _key("ignore", "would ignore it"),
        *([_key("unknown", "unknown (never registered)")] if report.never_registered else []),
        "</p>",
    ]
    bars = [(row.config, row.following, row.unknown, row.clients) for row in report.reach[:MAX_BARS]]
    if bars:
        parts.append(_bars(bars, "Clients that follow, by config"))
    if len(report.reach) > MAX_BARS:
        parts.append(_note(f"and {len(report.reach) - MAX_BARS} more configs"))
    note = (
        "The newest version that a client registered counts. A config concerns producers or consumers; clients of the "
        "other kind are not counted."
    )
    return section("Who follows when a config is set", "\n".join(parts), note=note)


def _key(kind: str, text: str) -> str:
    return f'<span class="entry"><span class="key" style="background:var(--{kind})"></span>{text}</span>'


def _by_version(report: Report) -> str:
    """Return one plot per config with the number of supporting clients of each software version."""
    configs = list(dict.fromkeys(row.config for row in report.rows))
    order = {row.config: number for number, row in enumerate(report.reach)}
    configs.sort(key=lambda config: order.get(config, len(order)))
    parts: list[str] = []
    for config in configs[:MAX_PLOTS]:
        rows = sorted((row for row in report.rows if row.config == config), key=lambda row: -row.clients_total)
        bars = [
            (named(row.software, row.version), row.clients, row.unknown, row.clients_total) for row in rows[:MAX_BARS]
        ]
        parts.append(f"<h3>{escape(config)}</h3>")
        parts.append(_bars(bars, f"Clients that support {config}, by software version"))
        if len(rows) > MAX_BARS:
            parts.append(_note(f"and {len(rows) - MAX_BARS:,} more versions with fewer clients"))
    if len(configs) > MAX_PLOTS:
        parts.append(_note(f"and {len(configs) - MAX_PLOTS} more configs"))
    return section("By software version", "\n".join(parts))


def _bars(bars: Sequence[tuple[str, int, int, int]], name: str) -> str:
    """Draw bars with label, number of following clients, number of never registered ones, and total."""
    longest = max(total for *_, total in bars) or 1
    height = len(bars) * _BAR_HEIGHT + 4
    labels = [_short(label) for label, *_ in bars]
    counts = [f"{clients:,} of {total:,}" for _, clients, _, total in bars]
    # Counts are left of the bars, so that they remain visible where a narrow screen cuts the bars.
    names_end = min(_LABEL_WIDTH, _LETTER_WIDTH * max(map(len, labels)) + 16)
    begin = names_end + _DIGIT_WIDTH * max(map(len, counts)) + 10
    drawn = [
        f'<svg class="bars" width="{_BARS_WIDTH}" height="{height}" role="img" aria-label="{escape(name)}"'
        f' dominant-baseline="middle" style="height:{height}px;min-width:{begin + _MIN_ROOM}px">'
    ]
    for number, (_, clients, unknown, total) in enumerate(bars):
        top = number * _BAR_HEIGHT + 4
        middle = top + _BAR_HEIGHT / 2 - 3
        drawn.append(f'<text x="{names_end - 8}" y="{middle}" text-anchor="end">{escape(labels[number])}</text>')
        drawn.append(f'<text class="soft" x="{begin - 8}" y="{middle}" text-anchor="end">{counts[number]}</text>')
        left = 0.0
        for kind, count in (("follow", clients), ("ignore", total - clients - unknown), ("unknown", unknown)):
            if count > 0:
                drawn.append(_bar(kind, top, begin, left, count / longest))
            left += count / longest
    return wide("".join([*drawn, "</svg>"]))


def _bar(kind: str, top: int, begin: int, left: float, width: float) -> str:
    """Draw a part of a bar. ``left`` and ``width`` are fractions of the space to the right of ``begin``."""
    room = _BARS_WIDTH - begin
    return (
        f'<rect class="{kind}" x="{begin + left * room:.1f}" y="{top}" width="{width * room:.1f}"'
        f' height="{_BAR_HEIGHT - 8}" style="x:calc({begin}px + (100% - {begin}px)*{left:.5f});'
        f'width:calc((100% - {begin}px)*{width:.5f})"/>'
    )


def _ignoring(report: Report) -> str:
    clients = report.ignoring[:MAX_NAMED]
    rows = [
        (row.config, row.user, row.client_id or NO_NAME, named(row.software, row.version), supports(row))
        for row in clients
    ]
    heads = ("Config", "User", "Client id", "Newest software", "Supports")
    content = _table(heads, rows, empty="Nobody: every client follows every config.")
    return section("Who would ignore it", content + _more(report.ignoring_total - len(clients)))


def _by_user(report: Report) -> str:
    if not report.users:
        return ""
    users = report.users[:MAX_NAMED]
    rows = [(row.user or "", row.config, f"{row.following:,} of {row.clients:,}") for row in users]
    more = report.users_total - len({row.user for row in users})
    content = _table(("User", "Config", "Clients that follow"), rows, number=2)
    return section("By user", content + _more(more, " users"))


def _more(count: int, what: str = "") -> str:
    return _note(f"and {count:,} more{what}") if count > 0 else ""


def _over_time(windows: Sequence[VersionWindow]) -> str:
    """Return a plot of the number of clients that have registered each of the largest versions over time."""
    if not windows:
        return ""
    by_version: dict[str, dict[int, int]] = defaultdict(dict)
    for window in windows:
        by_version[named(window.software, window.version)][window.start_ms] = window.clients
    largest = sorted(by_version, key=lambda name: (-sum(by_version[name].values()), name))
    times = sorted({window.start_ms for window in windows})
    lines = {name: _running_sum(by_version[name], times) for name in largest[:MAX_LINES]}
    rest = len(largest) - len(lines)
    keys = "".join(
        f'<span class="entry"><span class="key" style="background:{colour}"></span>{escape(_short(name))}</span> '
        for name, colour in zip(lines, COLOURS, strict=False)
    )
    parts = [f"<p>{keys}</p>", _lines(times, lines)]
    if rest:
        parts.append(_note(f"{rest:,} more versions with fewer registrations are not drawn"))
    note = "Registrations so far, by software version; a client that changed it counts in both."
    return section("Versions over time", "\n".join(parts), note=note)


def _running_sum(counts: Mapping[int, int], times: Sequence[int]) -> list[int]:
    total, sums = 0, []
    for time in times:
        total += counts.get(time, 0)
        sums.append(total)
    return sums


def _lines(times: Sequence[int], lines: Mapping[str, Sequence[int]]) -> str:
    highest = max(max(values) for values in lines.values()) or 1
    width, height = _CHART_WIDTH - 2 * _MARGIN, _CHART_HEIGHT - _ABOVE - _BELOW
    first, last = times[0], times[-1]

    def x(time: int) -> float:
        return _MARGIN + (width / 2 if last == first else (time - first) / (last - first) * width)

    def y(value: float) -> float:
        return _CHART_HEIGHT - _BELOW - value / highest * height

    drawn = [
        f'<svg viewBox="0 0 {_CHART_WIDTH} {_CHART_HEIGHT}" width="{_CHART_WIDTH}" height="{_CHART_HEIGHT}" role="img"'
        ' aria-label="Registrations so far, by software version" dominant-baseline="middle">'
    ]
    drawn += [
        f'<line class="axis" x1="{_MARGIN}" x2="{_CHART_WIDTH - _MARGIN}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        f'<text class="soft" x="{_MARGIN - 6}" y="{y(value):.1f}" text-anchor="end">{value:,}</text>'
        for value in sorted({0, highest // 2, highest})
    ]
    foot = _CHART_HEIGHT - 14
    drawn += [
        f'<text class="soft" x="{x(time):.1f}" y="{foot}" text-anchor="{anchor}">{_moment(time)}</text>'
        for time, anchor in (((first, "start"), (last, "end")) if first != last else ((first, "middle"),))
    ]
    for (name, values), colour in zip(lines.items(), COLOURS, strict=False):
        points = " ".join(f"{x(time):.1f},{y(value):.1f}" for time, value in zip(times, values, strict=True))
        drawn.append(
            f'<g><title>{escape(name)}</title><polyline points="{points}" fill="none" style="stroke:{colour}"'
            f' stroke-width="2.5" stroke-linejoin="round"/>'
            f'<circle cx="{x(last):.1f}" cy="{y(values[-1]):.1f}" r="4" style="fill:{colour}"/></g>'
        )
    return wide("".join([*drawn, "</svg>"]))


def _every_version(report: Report) -> str:
    rows = [
        (row.software, row.version, row.config, f"{row.clients:,} of {row.clients_total:,}", ", ".join(row.users[:5]))
        for row in report.rows[:MAX_NAMED]
    ]
    content = _table(("Software", "Version", "Config", "Clients", "Users"), rows, number=3)
    return section("Every version", content + _more(len(report.rows) - len(rows)))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, number: int = -1, empty: str = "None.") -> str:
    """Return a table. ``number`` is the index of the column with numbers."""

    def cell(column: int, text: str) -> Cell:
        return Cell(text, kind="number" if column == number else "word" if len(text) <= _UNBROKEN else "name")

    content = Table(
        heads=[(text, "number" if column == number else "") for column, text in enumerate(heads)],
        rows=[[cell(column, text) for column, text in enumerate(row)] for row in rows],
        total=len(rows),
        empty=empty,
    )
    return table(content, {})


def _short(label: str, longest: int = 34, kept: int = 12) -> str:
    """Shorten a long name in the middle, because versions differ at the end."""
    return label if len(label) <= longest else f"{label[: longest - kept - 1]}…{label[-kept:]}"


def _moment(at_ms: int) -> str:
    return moment(at_ms).removesuffix(":00")
