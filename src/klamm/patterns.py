"""Regular expressions from users, compiled by Python's ``re`` or matched by RE2 in linear time.

Python's ``re`` backtracks and holds the interpreter lock meanwhile; ``(a+)+b`` takes it practically forever. RE2
follows all alternatives at once. It supports neither look-around nor back-references.
"""

from __future__ import annotations

import re
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


def compile_pattern(expression: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a regular expression with ``re``.

    Raises:
        re.error: The expression is invalid, has a too large repetition such as ``a{99999999999}``, or is nested too
            deeply. For the latter two, ``re.compile`` raises errors of other types.
    """
    try:
        return re.compile(expression, flags)
    except OverflowError as error:
        raise re.error(str(error)) from error
    except RecursionError as error:
        raise re.error("it is nested too deeply") from error


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
