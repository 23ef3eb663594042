"""Values that a policy of klamm stored in place of the requested ones, as commands show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.admin import PolicyOverride


def override_lines(override: PolicyOverride | None, requested: Mapping[str, str | None]) -> list[str]:
    """Return one line per stored value, and the reason of the policy; none without an override."""
    if override is None:
        return []
    lines = [
        f"  policy: {name}={_text(value)} in place of {_text(requested.get(name))}"
        for name, value in override.values.items()
    ]
    return [*lines, f"  policy: {override.reason}"]


def override_document(override: PolicyOverride | None) -> dict[str, Any] | None:
    """Return an override for JSON or YAML output."""
    return None if override is None else {"stored": dict(override.values), "reason": override.reason}


def _text(value: str | None) -> str:
    return "(not set)" if value is None else value
