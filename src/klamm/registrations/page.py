"""The report as one HTML page that needs nothing else: tables, and plots drawn as SVG. Pure: a report in, text out."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.registrations.report import Report, VersionWindow

COLOURS: Final = ("#2563a8", "#d97706", "#0f766e", "#9d3c72", "#5b7a1f", "#6b5bb5", "#a3423a", "#4a5568")
"""Of lines, in the order of versions; distinct in light and dark, and for most who see colours differently."""
MAX_LINES: Final = len(COLOURS)
MAX_BARS: Final = 40
MAX_NAMED: Final = 200

_BAR_HEIGHT: Final = 24
_LABEL_WIDTH: Final = 250
_PLOT_WIDTH: Final = 420
_CHART_HEIGHT: Final = 240
_CHART_WIDTH: Final = 660
_MARGIN: Final = 44
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #667080; --line: #d8dde4; --back: #fff;
  --follow: #2563a8; --ignore: #e3b778; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #98a2b3; --line: #38404c; --back: #161b22;
  --follow: #6aa5e3; --ignore: #8a6a35; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 780px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } p.note { color: var(--soft); }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .3rem .6rem .3rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: break-word; }
th, td.number { white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; } svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }
svg .soft { fill: var(--soft); } svg .axis { stroke: var(--line); }
.follow { fill: var(--follow); } .ignore { fill: var(--ignore); }
.entry { white-space: nowrap; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .4em 0 1em; }
"""


def render(report: Report, *, title: str) -> str:
    """Return the page."""
    body = [f"<h1>{escape(title)}</h1>"]
    if not report.rows:
        body.append("<p>No client has registered yet.</p>")
    else:
        body.append(f"<p>{report.clients} clients, {report.records} registration records.</p>")
        body += _reach(report)
        body += _ignoring(report)
        body += _over_time(report.windows)
        body += _table(report)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _reach(report: Report) -> list[str]:
    """Return one plot per config: of each software version, how many follow and how many would ignore it."""
    parts = [
        "<h2>Who follows when a config is set</h2>",
        '<p class="note"><span class="key" style="background:var(--follow)"></span>follow'
        '<span class="key" style="background:var(--ignore)"></span>would ignore it</p>',
    ]
    for config in dict.fromkeys(row.config for row in report.rows):
        rows = [row for row in report.rows if row.config == config]
        bars = [(f"{row.software} {row.version}", row.clients, row.clients_total) for row in rows]
        bars.sort(key=lambda bar: -bar[2])
        following = sum(row.clients for row in rows)
        total = sum(row.clients_total for row in rows)
        parts.append(f"<h3>{escape(config)}: {following} of {total}</h3>")
        parts.append(_bars(bars[:MAX_BARS], config))
        if len(bars) > MAX_BARS:
            parts.append(f'<p class="note">and {len(bars) - MAX_BARS} more versions, in the table below</p>')
    return parts


def _bars(bars: Sequence[tuple[str, int, int]], name: str) -> str:
    longest = max(total for _, _, total in bars) or 1
    height = len(bars) * _BAR_HEIGHT + 4
    drawn = [_svg(_LABEL_WIDTH + _PLOT_WIDTH, height, f"Clients that follow {name}, by software version")]
    for number, (label, clients, total) in enumerate(bars):
        top = number * _BAR_HEIGHT + 4
        middle = top + _BAR_HEIGHT / 2 - 3
        room = _PLOT_WIDTH - 90
        whole, part = total / longest * room, clients / longest * room
        drawn.append(f'<text x="{_LABEL_WIDTH - 8}" y="{middle}" text-anchor="end">{escape(_short(label))}</text>')
        for kind, left, width in (("follow", 0.0, part), ("ignore", part, whole - part)):
            if width > 0:
                drawn.append(
                    f'<rect class="{kind}" x="{_LABEL_WIDTH + left:.1f}" y="{top}" width="{width:.1f}"'
                    f' height="{_BAR_HEIGHT - 8}"/>'
                )
        drawn.append(f'<text class="soft" x="{_LABEL_WIDTH + whole + 6:.1f}" y="{middle}">{clients} of {total}</text>')
    return "".join([*drawn, "</svg>"])


def _ignoring(report: Report) -> list[str]:
    if not report.ignoring:
        return ["<h2>Who would ignore it</h2>", "<p>Nobody: every client follows every config.</p>"]
    shown = report.ignoring[:MAX_NAMED]
    more = report.ignoring_total - len(shown)
    return [
        "<h2>Who would ignore it</h2>",
        _html_table(
            ("Config", "User", "Client id", "Newest software"),
            [(one.config, one.user, one.client_id, f"{one.software} {one.version}") for one in shown],
        ),
        *([f'<p class="note">and {more} more</p>'] if more > 0 else []),
    ]


def _over_time(windows: Sequence[VersionWindow]) -> list[str]:
    """Return a plot of how many clients have registered each version so far; the largest versions, the rest as one."""
    if not windows:
        return []
    by_version: dict[str, dict[int, int]] = defaultdict(dict)
    for one in windows:
        by_version[f"{one.software} {one.version}"][one.start_ms] = one.clients
    largest = sorted(by_version, key=lambda name: (-sum(by_version[name].values()), name))
    named = largest if len(largest) <= MAX_LINES else largest[: MAX_LINES - 1]
    times = sorted({one.start_ms for one in windows})
    lines = {name: _running_sum(by_version[name], times) for name in named}
    if rest := largest[len(named) :]:
        joined = {time: sum(by_version[name].get(time, 0) for name in rest) for time in times}
        lines[f"{len(rest)} others"] = _running_sum(joined, times)
    keys = "".join(
        f'<span class="entry"><span class="key" style="background:{colour}"></span>{escape(name)}</span> '
        for name, colour in zip(lines, COLOURS, strict=False)
    )
    return [
        "<h2>Versions over time</h2>",
        '<p class="note">Registrations so far, by software version; a client that changed it counts in both.</p>',
        f"<p>{keys}</p>",
        _lines(times, lines),
    ]


def _running_sum(counts: Mapping[int, int], times: Sequence[int]) -> list[int]:
    total, sums = 0, []
    for time in times:
        total += counts.get(time, 0)
        sums.append(total)
    return sums


def _lines(times: Sequence[int], lines: Mapping[str, Sequence[int]]) -> str:
    highest = max(max(values) for values in lines.values()) or 1
    width, height = _CHART_WIDTH - 2 * _MARGIN, _CHART_HEIGHT - 2 * _MARGIN
    first, last = times[0], times[-1]

    def x(time: int) -> float:
        return _MARGIN + (width / 2 if last == first else (time - first) / (last - first) * width)

    def y(value: float) -> float:
        return _CHART_HEIGHT - _MARGIN - value / highest * height

    drawn = [_svg(_CHART_WIDTH, _CHART_HEIGHT, "Registrations so far, by software version")]
    drawn += [
        f'<line class="axis" x1="{_MARGIN}" x2="{_CHART_WIDTH - _MARGIN}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        f'<text class="soft" x="{_MARGIN - 6}" y="{y(value):.1f}" text-anchor="end">{value}</text>'
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
            f'<g><title>{escape(name)}</title><polyline points="{points}" fill="none" stroke="{colour}"'
            f' stroke-width="2.5" stroke-linejoin="round"/>'
            f'<circle cx="{x(last):.1f}" cy="{y(values[-1]):.1f}" r="4" fill="{colour}"/></g>'
        )
    return "".join([*drawn, "</svg>"])


def _table(report: Report) -> list[str]:
    rows = [
        (row.software, row.version, row.config, f"{row.clients} of {row.clients_total}", ", ".join(row.users[:5]))
        for row in report.rows
    ]
    return ["<h2>Every version</h2>", _html_table(("Software", "Version", "Config", "Clients", "Users"), rows, {3})]


def _html_table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    right = set(numbers)

    def cell(tag: str, column: int, text: str) -> str:
        kind = ' class="number"' if column in right else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    lines = ["<tr>" + "".join(cell("th", column, text) for column, text in enumerate(heads)) + "</tr>"]
    lines += ["<tr>" + "".join(cell("td", column, text) for column, text in enumerate(row)) + "</tr>" for row in rows]
    return "<table>" + "\n".join(lines) + "</table>"


def _svg(width: int, height: int, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-label="{escape(label)}" dominant-baseline="middle">'
    )


def _short(label: str, longest: int = 34) -> str:
    return label if len(label) <= longest else f"{label[: longest - 1]}…"


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M")
