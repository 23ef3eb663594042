"""Resolution of regular expressions in subscriptions (KIP-848): RE2 against the names of all topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.broker.groups.errors import InvalidRegularExpressionError
from klamm.patterns import PatternError, full_matcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def matching_topics(pattern: str, names: Iterable[str], may_describe: Callable[[str], bool]) -> frozenset[str]:
    """Return the topics that match a regular expression and that the principal may describe.

    Raises:
        InvalidRegularExpressionError: RE2 does not accept the expression.
    """
    try:
        matches = full_matcher(pattern)
    except PatternError as error:
        raise InvalidRegularExpressionError(
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error.reason}."
        ) from error
    return frozenset(name for name in names if matches(name) and may_describe(name))
