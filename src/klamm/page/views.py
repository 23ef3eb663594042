"""JSON documents of the page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from klamm.monitoring.http import View
    from klamm.page.html import Query

    Document = dict[str, Any]

HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"
POLICIES_PAGE: Final = "/policies.json"
TOPICS_PAGE: Final = "/topics.json"


def json_view(document: Callable[[Query], Awaitable[Document]]) -> View:
    """Return the view that serves a document as JSON."""

    async def view(query: Query) -> tuple[str, str]:
        return JSON, await encoded(await document(query))

    return view


async def encoded(document: Mapping[str, Any]) -> str:
    """Return a JSON object as text. The items of its lists are encoded in time slices."""
    slices, parts = TimeSlice(), []
    for name, value in document.items():
        if isinstance(value, list):
            text = f"[{', '.join(await slices.listed(json.dumps(item) for item in value))}]"
        else:
            text = json.dumps(value)
        parts.append(f"{json.dumps(name)}: {text}")
    return f"{{{', '.join(parts)}}}"
