"""Metadata hook of the build: the description, and the project's addresses where they are known.

The address of the public repository is no part of the source. The build takes it from ``KLAMM_PROJECT_URL``, which the
release workflow sets. With it, the metadata get their URLs, and the relative links of README.md, which lead nowhere on
a package index, become absolute ones.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

ADDRESS_VARIABLE: Final = "KLAMM_PROJECT_URL"
_LINK: Final = re.compile(r"(\[[^\]]*\]\()(?![a-z]+:|#)([^)\s]+)\)")


class ProjectMetadata(MetadataHookInterface):
    """Fields of ``[project]`` that depend on where the project is published."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme, and the URLs if the address of the repository is set."""
        address = os.environ.get(ADDRESS_VARIABLE, "").rstrip("/")
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": with_absolute_links(text, address)}
        if address:
            metadata["urls"] = urls(address)


def urls(address: str) -> dict[str, str]:
    """Return the project's URLs by the labels that package indexes know."""
    return {
        "Homepage": address,
        "Documentation": f"{address}/blob/main/docs/README.md",
        "Changelog": f"{address}/blob/main/CHANGELOG.md",
        "Source": address,
        "Issues": f"{address}/issues",
    }


def with_absolute_links(text: str, address: str) -> str:
    """Return Markdown whose relative links lead to the repository; without an address the text stays as it is."""
    return _LINK.sub(rf"\1{address}/blob/main/\2)", text) if address else text
