"""HTML of the page: escaped cells, bounded tables with a pager, and the frame. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

from klamm.display import MAX_SHOWN, escaped
from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Query = Mapping[str, str]

_FRAME_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5f6b7a; --line: #d8dde4; --back: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #98a2b3; --line: #38404c; --back: #161b22; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
"""
NO_ICON: Final = '<link rel="icon" href="data:,">'
"""Element for the head of a served page. Without it, browsers request an icon."""
Row = TypeVar("Row")

ROWS: Final = 25
"""Rows of a table on the overview."""
DETAIL_ROWS: Final = 100
"""Rows of a table on the page of one topic or group, and in a JSON document."""
UNKNOWN: Final = "unknown"
_NUMBER: Final = re.compile("[0-9]{1,9}")
_NO_ANCHOR: Final = re.compile("[^a-z0-9]+")
_MAX_ALIKE: Final = 5
"""Warnings of one kind that the page lists."""
_MAX_TEXT: Final = 300
"""Limit for a displayed text in characters. Clients choose names and values of any length."""
_MAX_NOTE: Final = 2_000
"""Limit for a note in characters, such as the reason of an error."""
_MAX_UNBROKEN: Final = 13
"""Characters of a word that a narrow column does not break, if it is no name."""
_PIECES: Final = re.compile(rf"[^.:,_/=]{{1,{_MAX_UNBROKEN}}}[.:,_/=]*|[.:,_/=]+")
"""Parts of a word between which a narrow column may break it: after a dot or the like, or inside a very long part."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024
_STYLE: Final = """
:root { --link: #2563a8; --bad: #b3261e; --wait: #9a5b00; --good: #1f7a4d; --tint: #f3f5f8; }
@media (prefers-color-scheme: dark) { :root { --link: #6aa5e3; --bad: #f2877f; --wait: #e0a34a; --good: #5fc08f;
  --tint: #1e252e; } }
body { max-width: 1240px; margin: 1.2rem auto; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
h2 a, h3 a { color: inherit; }
h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; overflow-wrap: anywhere; }
p { margin: .2rem 0 .6rem; overflow-wrap: anywhere; }
.soft { color: var(--soft); } .bad { color: var(--bad); } .wait { color: var(--wait); }
.good { color: var(--good); } .narrow { display: none; }
ul.warnings { margin: .6rem 0; padding: .6rem .8rem .6rem 2rem; background: var(--tint); border-radius: 4px;
  overflow-wrap: anywhere; }
form { display: flex; gap: .5rem; margin: .8rem 0; } input { font: inherit; padding: .2rem .5rem; flex: 1 1 8rem;
  min-width: 0; max-width: 24rem; color: inherit; background: var(--back); border: 1px solid var(--line);
  border-radius: 4px; }
button { font: inherit; padding: .2rem .8rem; }
th, td { padding: .3rem .9rem .3rem 0; } th { font-weight: 600; white-space: nowrap; }
td { min-width: 5rem; max-width: 26rem; } tr.note td { overflow-wrap: anywhere; } td.number { min-width: 0; }
th.number:not(:last-child), td.number:not(:last-child) { padding-right: 1.8rem; }
td.name { min-width: 9rem; } .word { white-space: nowrap; } h3 { font-size: 1rem; margin: 1rem 0 .2rem; }
tr:has(+ tr.note) td { border-bottom: 0; padding-bottom: 0; } tr.note td { color: var(--soft); padding-top: 0;
  max-width: none; }
.track { display: inline-block; width: 7rem; height: .7rem; margin-right: .5rem; background: var(--line);
  border-radius: 2px; overflow: hidden; vertical-align: -.05rem; } .track div { height: 100%; background: var(--link); }
.block:not(:has(input:checked)) .rest { display: none; } .block label { display: inline-block; margin: .3rem 0; }
.block input { flex: none; }
nav.pages { margin: .4rem 0; } nav.pages > * { margin-right: 1rem; }
@media (max-width: 42rem) { .extra, .track { display: none; } .narrow { display: block; }
  th, td { padding-right: .6rem; } td { min-width: 4.4rem; }
  th.number:not(:last-child), td.number:not(:last-child) { padding-right: .8rem; }
  th, th.number { white-space: normal; } td.name { min-width: 6.5rem; } }
@media (max-width: 27rem) { table { font-size: .88em; } td, td.name { min-width: 0; }
  th, td, th.number:not(:last-child), td.number:not(:last-child) { padding-right: .4rem; } }
"""


def page(*, title: str, style: str, body: str, script: str = "", head: str = "") -> str:
    """Return a document.

    Args:
        title: Title of the window, plain text.
        style: CSS after the common one. The common one defines ``--ink``, ``--soft``, ``--line`` and ``--back``, and
            ``.wide`` for parts that scroll sideways on a narrow screen, so that the page itself does not.
        body: HTML.
        script: JavaScript at the end of the body; empty for none.
        head: HTML for the head.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{head}'
        f"<title>{escape(title)}</title><style>{_FRAME_STYLE}{style}</style></head>\n<body>\n{body}\n"
        + (f"<script>{script}</script>" if script else "")
        + "</body></html>\n"
    )


def wide(content: str, *, name: str = "") -> str:
    """Return HTML that scrolls sideways on its own if it is wider than the screen.

    Args:
        content: HTML.
        name: Id of the part. Empty: it has none.
    """
    identity = f' id="{escape(name)}"' if name else ""
    return f'<div class="wide"{identity}>{content}</div>'


class Cell(NamedTuple):
    """One cell of a table."""

    text: str
    """Plain text. It is escaped and truncated."""
    link: str = ""
    """Target of a link, relative to the page; empty for none."""
    kind: str = ""
    """CSS classes: ``number``, ``name``, ``word`` (in one line), ``time`` (date and time, each in one line), ``extra``
    (hidden on a narrow screen), ``bad``, ``wait``, ``good``, ``soft``, ``note`` (in a row of its own below the others,
    where longer texts fit).
    """
    exact: str = ""
    """Plain text after the text, in a soft colour and hidden on a narrow screen: the value that the text rounds."""
    remark: str = ""
    """Plain text after the others, in a soft colour."""
    narrow: str = ""
    """Plain text below the others, in a soft colour, on a narrow screen only: what a cell hidden there says."""
    percent: int | None = None
    """Share that a bar before the text shows. None: there is no bar."""
    span: int = 1
    """Number of columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One page of a longer table."""

    heads: Sequence[tuple[str, str]]
    """Texts of the head with CSS classes."""
    rows: Sequence[Sequence[Cell]]
    """Rows of this page."""
    total: int
    """Number of rows on all pages."""
    first: int = 0
    """Number of rows on the pages before."""
    size: int = 0
    """Number of rows per page; 0 for a table without pages."""
    parameter: str = ""
    """Query parameter with the number of the page."""
    empty: str = "None."
    """Text in place of a table without rows."""
    name: str = ""
    """Id that is unique on the page. It lets a refreshed page keep the checkbox and the scroll position."""
    kind: str = ""
    """CSS class."""
    unfolded: int = 0
    """Number of rows that are visible until a checkbox is ticked. 0: all."""


def document(title: str, parts: Sequence[str], *, style: str = "", head: str = NO_ICON, script: str = "") -> str:
    """Return the page with the given HTML as its body, with CSS, HTML of the head and JavaScript of its own."""
    return page(title=title, style=f"{_STYLE}{style}", body="\n".join(parts), head=head, script=script)


def section(title: str, content: str, *, note: str = "") -> str:
    """Return a part of the page with a heading, and a note below it; both are plain text."""
    below = f'<p class="soft">{shown(note)}</p>' if note else ""
    return f"<section>{heading(title)}{below}\n{content}</section>"


def heading(title: str, *, level: int = 2) -> str:
    """Return a heading of plain text that links to itself, so that a part of the page has an address."""
    anchor = _NO_ANCHOR.sub("-", title.lower()).strip("-")
    return f'<h{level} id="{anchor}"><a href="#{anchor}">{shown(title)}</a></h{level}>'


def warning_list(warnings: Sequence[str]) -> str:
    """Return warnings as a list; empty HTML without warnings."""
    if not warnings:
        return '<p class="good">No warnings.</p>'
    return f'<ul class="warnings bad">{"".join(f"<li>{shown(warning)}</li>" for warning in warnings)}</ul>'


def first_of(warnings: Sequence[str]) -> list[str]:
    """Return the first of many warnings of one kind, and how many more there are."""
    more = len(warnings) - _MAX_ALIKE
    return [*warnings[:_MAX_ALIKE], *([f"... and {more} more of this kind"] if more > 0 else ())]


def filter_form(text: str, *, hint: str) -> str:
    """Return the form that filters all tables by a part of a name. ``hint`` says whose name, as plain text."""
    return (
        '<form method="get" action="/" role="search">'
        f'<input name="q" value="{escape(text)}" placeholder="{escape(hint)}" aria-label="Filter">'
        "<button>Filter</button></form>"
    )


def table(content: Table, query: Query) -> str:
    """Return a table with links to its other pages.

    Args:
        content: The rows.
        query: Query of the present page, which the links keep.
    """
    if not content.rows:
        return f'<p class="soft">{escape(content.empty)}</p>'
    heads = "".join(f'<th class="{kind}">{escape(text)}</th>' for text, kind in content.heads)
    rows = [_row(row) for row in content.rows]
    first, rest = (rows[: content.unfolded], rows[content.unfolded :]) if content.unfolded else (rows, [])
    body = f"<tbody>{''.join(first)}</tbody>" + (f'<tbody class="rest">{"".join(rest)}</tbody>' if rest else "")
    kind = f' class="{content.kind}"' if content.kind else ""
    whole = wide(f"<table{kind}><thead><tr>{heads}</tr></thead>{body}</table>", name=content.name)
    return (f'<div class="block">{whole}{_unfold(content)}</div>' if rest else whole) + _pager(content, query)


def _unfold(content: Table) -> str:
    """Return the checkbox that shows the folded rows."""
    count = "all" if content.total == len(content.rows) else f"{len(content.rows):,} of"
    box = f'<input type="checkbox" id="all-{escape(content.name)}">'
    return f'<label class="soft">{box} show {count} {content.total:,}</label>'


def _row(cells: Sequence[Cell]) -> str:
    row = "".join(_cell(cell) for cell in cells if cell.kind != "note")
    notes = (_cell(cell) for cell in cells if cell.kind == "note")
    return f"<tr>{row}</tr>" + "".join(f'<tr class="note">{note}</tr>' for note in notes)


def _bar(percent: int) -> str:
    """Return a bar. A percentage is read aloud in place of the picture."""
    return f'<div class="track" role="img" aria-label="{percent} percent"><div style="width:{percent}%"></div></div>'


def _cell(cell: Cell) -> str:
    if cell.kind == "note":
        text = shown(cell.text, limit=_MAX_NOTE)
    elif "time" in cell.kind:
        text = " ".join(f'<span class="word">{escape(word)}</span>' for word in cell.text.split())
    else:
        text = _breakable(_plain(cell.text), is_name="name" in cell.kind)
    inner = f'<a href="{escape(cell.link)}">{text}</a>' if cell.link else text
    if cell.percent is not None:
        inner = f"{_bar(cell.percent)}<span>{inner}</span>"
    if cell.exact:
        inner += f' <span class="soft extra">{shown(cell.exact)}{"," if cell.remark else ""}</span>'
    if cell.remark:
        inner += f' <span class="soft">{shown(cell.remark)}</span>'
    if cell.narrow:
        inner += f'<span class="soft narrow">{_breakable(_plain(cell.narrow), is_name=True)}</span>'
    kind = f' class="{cell.kind}"' if cell.kind else ""
    return f"<td{kind}{f' colspan={cell.span}' if cell.span > 1 else ''}>{inner}</td>"


def _breakable(text: str, *, is_name: bool) -> str:
    """Return plain text as HTML that can be broken inside of names and long words, but not inside of short values."""
    return " ".join(
        "<wbr>".join(map(escape, _PIECES.findall(word))) if is_name or len(word) > _MAX_UNBROKEN else escape(word)
        for word in text.split(" ")
    )


def _pager(content: Table, query: Query) -> str:
    if not content.size or content.total <= content.size:
        return ""
    number, last = content.first // content.size + 1, -(-content.total // content.size)

    def to(target: int, text: str) -> str:
        link = escape(link_to({**query, content.parameter: str(target)}))
        return f'<a href="{link}">{text}</a>' if 1 <= target <= last else f'<span class="soft">{text}</span>'

    here = f"{content.first + 1:,} to {content.first + len(content.rows):,} of {content.total:,}"
    return f'<nav class="pages">{to(number - 1, "previous")}<span>{here}</span>{to(number + 1, "next")}</nav>'


def page_of(rows: Sequence[Row], number: str | None, size: int) -> tuple[int, Sequence[Row]]:
    """Return the number of rows before a page, and the rows of the page. Any other number means the first page."""
    wanted = int(number) if number is not None and _NUMBER.fullmatch(number) else 1
    first = (wanted - 1) * size
    if not 0 <= first < len(rows):
        first = 0
    return first, rows[first : first + size]


def time_text(at_s: float) -> str:
    """Return a time in seconds since the epoch as date and time in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def link_to(query: Query) -> str:
    """Return the relative URL of the page with a query. It is not escaped for HTML."""
    return f"/?{urlencode(query)}" if query else "/"


def shown(text: str, *, limit: int = _MAX_TEXT) -> str:
    """Return plain text as HTML, with control characters spelled out and truncated if it is too long."""
    return escape(_plain(text, limit=limit))


def _plain(text: str, *, limit: int = _MAX_TEXT) -> str:
    plain = escaped(text[:limit])
    return plain if len(text) <= limit else f"{plain}..."


def short(name: str) -> str:
    """Return a name, truncated for a narrow column."""
    return name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}..."


def size_text(size: int, *, is_partial: bool = False) -> str:
    """Return a number of bytes in binary units, with a plus sign if it is only a lower bound."""
    number, unit = float(size), 0
    while number >= _STEP and unit < len(_UNITS) - 1:
        number, unit = number / _STEP, unit + 1
    text = f"{number:,.1f} {_UNITS[unit]}" if unit else f"{size} B"
    return f"{text}+" if is_partial else text
