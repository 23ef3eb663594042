"""Validation of documents by jsonschema."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest


def draft_validator() -> Any:
    """Return the class of jsonschema's validators, which is imported here: workers without its tests save the time."""
    with pytest.MonkeyPatch.context() as modules:
        modules.setitem(sys.modules, "rfc3987_syntax", None)  # two seconds for a format that is not checked
        return importlib.import_module("jsonschema").Draft202012Validator
