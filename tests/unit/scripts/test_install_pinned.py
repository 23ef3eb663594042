"""scripts/install_pinned.py: uv takes packages from where pip would."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from scripts.install_pinned import pip_settings, uv_equivalents

if TYPE_CHECKING:
    from pathlib import Path

PIP_CONF = """[global]
index-url = https://packages.example/simple
timeout = 7
trusted-host =
    packages.example
    other.example
[install]
find-links = /wheels
no-index = true
[list]
format = json
"""


@pytest.mark.process
def test_settings_of_pip_become_flags_and_variables_of_uv(tmp_path: Path) -> None:
    # given
    (tmp_path / "pip.conf").write_text(PIP_CONF)
    environment = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_CERT": "/certificates.pem", "PIP_TIMEOUT": "9"}
    # when
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], env=environment, check=True, capture_output=True, text=True
    ).stdout
    flags, variables = uv_equivalents(pip_settings(listed))
    # then
    assert flags == [
        "--default-index", "https://packages.example/simple",
        "--find-links", "/wheels",
        "--allow-insecure-host", "packages.example",
        "--allow-insecure-host", "other.example",
        "--no-index",
    ]  # fmt: skip
    assert variables == {"SSL_CERT_FILE": "/certificates.pem", "UV_HTTP_TIMEOUT": "9"}


@pytest.mark.parametrize("value", ["0", "false"])
def test_index_that_is_not_switched_off_is_used(value: str) -> None:
    assert uv_equivalents({"no-index": [value]}) == ([], {})
