"""The animation of the picture in the README."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree as ET

from rich.console import Console

from tests.support.scripts import SCRIPTS, load_script

script = load_script("picture")


def test_lines_appear_step_by_step_and_are_visible_without_animation() -> None:
    # given
    console = Console(record=True, width=40, file=io.StringIO(), force_terminal=True)
    steps = []
    for text in ("one", "two\nthree", "four"):
        steps.append(script.printed_lines(console))
        console.print(text)
    # when
    picture = script.animated(console.export_svg(unique_id="klamm"), steps)
    # then
    delays = dict(re.findall(r'line-(\d+)\)" style="animation-delay:([^"]*)"', picture))
    assert delays == {"1": "1.2s", "2": "1.2s", "3": "2.4s"}
    assert "opacity: 0" not in picture.replace("from { opacity: 0; }", "")
    ET.fromstring(picture)  # noqa: S314 - our own picture


def test_picture_of_the_readme_is_animated_and_small() -> None:
    picture = (SCRIPTS.parent / "docs" / "images" / "change.svg").read_text(encoding="utf-8")
    assert picture.count("animation-delay") > 10
    assert not re.findall(r"""(?:href=|url\()["']?http""", picture), "it loads nothing"
    assert len(picture) < 20_000
