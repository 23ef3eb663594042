"""scripts/project_metadata.py: addresses and links of the package's description."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.scripts import load_script

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parents[3]
script: Any = load_script("project_metadata")


def test_readme_is_unchanged_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(script.ADDRESS_VARIABLE, raising=False)
    metadata: dict[str, Any] = {}
    script.ProjectMetadata(str(ROOT), {}).update(metadata)
    assert metadata == {"readme": {"content-type": "text/markdown", "text": (ROOT / "README.md").read_text()}}


def test_with_an_address_relative_links_lead_to_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(script.ADDRESS_VARIABLE, "https://forge.example/klamm/")
    metadata: dict[str, Any] = {}
    script.ProjectMetadata(str(ROOT), {}).update(metadata)
    text = metadata["readme"]["text"]
    assert "](https://forge.example/klamm/blob/main/docs/mirror.md)" in text
    assert "](docs/" not in text
    assert metadata["urls"]["Changelog"] == "https://forge.example/klamm/blob/main/CHANGELOG.md"


def test_other_links_are_unchanged() -> None:
    text = "[a](https://a.example/x) [b](#below) [c](mailto:c@d.example)"
    assert script.with_absolute_links(text, "https://forge.example/klamm") == text
