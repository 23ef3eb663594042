"""A server imports only what every start needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

UNUSED = {
    "cryptography",
    "difflib",
    "email",
    "http",
    "importlib.metadata",
    "jwt",
    "kafka",
    "klamm.admin",
    "klamm.broker.faults",
    "klamm.cli.resources",
    "klamm.mirror",
    "klamm.page",
    "klamm.policy.rules",
    "klamm.security.oauth",
    "multiprocessing",
    "pyspark",
    "urllib.request",
    "yaml",
}
"""Modules that only some settings, requests or commands need."""


@pytest.mark.process
def test_broker_start_imports_no_optional_modules() -> None:
    program = "import sys, klamm.broker.main; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert UNUSED.isdisjoint(ended.stdout.split())
