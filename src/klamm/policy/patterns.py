"""Regular expressions over names: by RE2 in linear time, by Python's ``re`` where RE2 does not know what is asked."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from klamm.patterns import PatternError, full_matcher

if TYPE_CHECKING:
    from collections.abc import Callable


class NamePattern:
    """A regular expression that a whole name matches or not. Names are ASCII, as those of topics are.

    Args:
        pattern: As ``re`` understands it.

    Raises:
        re.error: It is none.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern: Final = pattern
        self._compiled = re.compile(pattern, re.ASCII)
        self._matches: Callable[[str], bool] | None = None
        with contextlib.suppress(PatternError):  # look-around and the like: up to re
            self._matches = full_matcher(pattern)

    @property
    def is_linear(self) -> bool:
        """Whether the time is bounded by the name's length; otherwise it is up to ``re``."""
        return self._matches is not None

    def matches(self, name: str) -> bool:
        """Tell whether the whole name matches."""
        return self._compiled.fullmatch(name) is not None if self._matches is None else self._matches(name)
