"""Flags ``--impact`` and ``--max-impact``: the predicted impact of a change, shown or limited before it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from klamm.cli import EXIT_IMPACT
from klamm.cli.connection import RequestError
from klamm.cli.output import print_result

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from klamm.admin import AdminClient
    from klamm.cli.arguments import ToolParser
    from klamm.impact.changes import Change
    from klamm.impact.findings import Impact

IMPACT_FLAGS: Final = ("impact", "max-impact")
_LEVELS: Final = ("none", "notice", "disruption", "loss")


class ImpactExceededError(RequestError):
    """The predicted impact of a change is, or may be, worse than ``--max-impact`` allows."""

    exit_code = EXIT_IMPACT


def add_impact_flags(parser: ToolParser) -> None:
    """Add ``--impact`` and ``--max-impact``."""
    parser.add_switch("--impact", help="show what the change would do to records and clients; with --validate-only too")
    add_max_impact_flag(parser)


def add_max_impact_flag(parser: ToolParser) -> None:
    """Add ``--max-impact``."""
    parser.add_value(
        "--max-impact",
        choices=_LEVELS,
        metavar="LEVEL",
        help=f"change nothing and exit with {EXIT_IMPACT} if the impact is, or may be, worse than LEVEL:"
        f" {', '.join(_LEVELS)}",
    )


def excess(impact: Impact, options: argparse.Namespace) -> str | None:
    """Return how an impact exceeds ``--max-impact``; None if it does not.

    The findings of a partition without a leader, for example, are unknown. As in rules of policies, an impact for which
    facts are missing counts as too bad, unless the worst level is allowed anyway.
    """
    limit = options.max_impact
    if limit in {None, _LEVELS[-1]}:
        return None
    if impact.level > _LEVELS.index(limit):
        return f"the impact {impact.level.name.lower()} is worse than --max-impact {limit}"
    if impact.missing:
        unknown = "; ".join(impact.unknown)
        return f"the impact may be worse than --max-impact {limit}, because facts are missing: {unknown}"
    return None


def predicted(admin: AdminClient, changes: Sequence[Change], options: argparse.Namespace) -> Impact | None:
    """Return the impact of changes if a flag requests it.

    Raises:
        ImpactExceededError: It is, or may be, worse than ``--max-impact``. The findings were printed.
    """
    if not options.impact and options.max_impact is None:
        return None
    from klamm.admin.impact import impact_of  # noqa: PLC0415  # only these flags need the rules

    impact = impact_of(changes, admin)
    if (reason := excess(impact, options)) is not None:
        print_result(options.output, {"impact": impact.document()}, impact.lines)
        raise ImpactExceededError(f"Nothing was changed: {reason}")
    return impact if options.impact else None


def impact_lines(impact: Impact | None) -> list[str]:
    """Return the impact as lines; none if it was not requested."""
    return [] if impact is None else impact.lines()


def with_impact(document: Any, impact: Impact | None) -> Any:
    """Return a document with the impact as a further key. A list becomes the key ``results`` of such a document."""
    if impact is None:
        return document
    whole = document if isinstance(document, dict) else {"results": document}
    return {**whole, "impact": impact.document()}
