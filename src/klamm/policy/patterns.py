"""Regular expressions for names.

RE2 matches in linear time; Python's ``re`` handles patterns that RE2 does not support.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from klamm.patterns import PatternError, compile_pattern, full_matcher

if TYPE_CHECKING:
    from collections.abc import Callable


class NamePattern:
    """Regular expression that matches a whole name. Names are ASCII, like topic names.

    Args:
        pattern: Pattern in the syntax of ``re``.

    Raises:
        re.error: The pattern is invalid.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern: Final = pattern
        self._compiled = compile_pattern(pattern, re.ASCII)
        self._matches: Callable[[str], bool] | None = None
        with contextlib.suppress(PatternError):  # look-around and the like, which only re supports
            self._matches = full_matcher(pattern)

    @property
    def is_linear(self) -> bool:
        """Return whether matching takes linear time in the length of the name. With ``re`` there is no such bound."""
        return self._matches is not None

    def matches(self, name: str) -> bool:
        """Return whether the whole name matches."""
        return self._compiled.fullmatch(name) is not None if self._matches is None else self._matches(name)
