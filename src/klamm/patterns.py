"""Regular expressions from users, matched by RE2 in time linear in the length of the text.

Python's ``re`` backtracks and holds the interpreter lock meanwhile; ``(a+)+b`` takes it practically forever. RE2
follows all alternatives at once. It supports neither look-around nor back-references.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class PatternError(ValueError):
    """RE2 does not accept the pattern.

    Args:
        pattern: Rejected pattern.
        reason: Reason that RE2 gives.
    """

    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(f"{pattern!r}: {reason}")
        self.reason = reason


def full_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that returns whether a whole text matches, within microseconds.

    Raises:
        PatternError: RE2 does not accept the pattern.
    """
    import re2  # noqa: PLC0415 - only who has a pattern waits for it

    options = re2.Options()
    options.log_errors = False
    try:
        # A set only answers yes or no. A single pattern would also locate its groups, at ten times the cost.
        found = re2.Set.FullMatchSet(options)
        found.Add(pattern)
        found.Compile()
    except re2.error as error:
        raise PatternError(pattern, str(error)) from error
    return lambda text: bool(found.Match(text))
