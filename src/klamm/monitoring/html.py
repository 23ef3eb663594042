"""Frame of klamm's HTML pages: one self-contained document in the reader's preferred colour scheme. Pure."""

from __future__ import annotations

from html import escape
from typing import Final

_STYLE: Final = """
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
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head>\n<body>\n{body}\n"
        + (f"<script>{script}</script>" if script else "")
        + "</body></html>\n"
    )


def wide(content: str) -> str:
    """Return HTML that scrolls sideways on its own if it is wider than the screen."""
    return f'<div class="wide">{content}</div>'
