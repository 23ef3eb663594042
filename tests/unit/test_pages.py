"""The Markdown of all pages: links have targets, and tables are well-formed."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.cases import case

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("docs", "benchmarks", "examples", "tests")
PAGES: Final = sorted([*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))])
FENCE: Final = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
CODE: Final = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
LINK: Final = re.compile(r"\]\(([^()\s]+)\)")
TABLE: Final = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
HEADING: Final = re.compile(r"^#+ (.*)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def anchors_of(page: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    anchors: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        number = 0
        while (unique := f"{anchor}-{number}" if number else anchor) in anchors:
            number += 1
        anchors.add(unique)
    return anchors


def test_links_lead_to_a_file_and_a_heading() -> None:
    for page in PAGES:
        with case(name_of(page)):
            text = CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
            for link in LINK.findall(text):
                if re.match(r"[a-z]+:", link):
                    continue
                path, _, anchor = link.partition("#")
                target = (page.parent / path).resolve() if path else page
                assert target.exists(), f"{name_of(page)} links to {link}"
                assert not anchor or target.suffix != ".md" or anchor in anchors_of(target), (
                    f"{name_of(page)} links to {link}"
                )


def test_tables_have_a_delimiter_row_and_rows_of_equal_length() -> None:
    """Without the row of dashes after its header a table is shown as a paragraph."""
    for page in PAGES:
        with case(name_of(page)):
            text = CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8"))).replace("\\|", "")
            for table in TABLE.findall(text):
                header, *rows = table.splitlines()
                assert rows, header
                assert re.fullmatch(r"[|:\- ]+", rows[0]), f"{header}\n{rows[0]}"
                for row in rows:
                    assert row.count("|") == header.count("|"), f"{header}\n{row}"
