"""Parameters with which a test runs only in ``make test-long`` and ``make soak``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet  # pytest has no public name for it


def long_only(*values: object) -> list[ParameterSet]:
    """Return parameters with the mark ``long``. A list of parameters begins with those of ``make test``."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]
