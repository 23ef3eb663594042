"""Generator of damaged keys and values of internal records, and of damaged small files."""

from __future__ import annotations

import copy
import json
import os
from functools import cache
from typing import Any, Final

from hypothesis import strategies as st

EXAMPLES: Final = 5_000 if os.environ.get("KLAMM_SOAK") else 60
NESTED: Final = b"[" * 100_000
_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 1.5, 2**31, 2**63, 10**400, float("nan"), float("inf")),
    *("", " ", "x", "-1", "1.5", "1" * 20, "2:x", "\ud800", "\0", "é" * 40_000, [], [1], [[]], {}, {"": ""}),
)


@cache
def damaged(data: bytes) -> st.SearchStrategy[bytes]:
    """Return other bytes in the place of a key, a value or a file: cut, changed, foreign, or other JSON."""
    strategies = [
        st.just(NESTED),
        st.just(b'{"configs":' + NESTED),
        st.binary(max_size=60),
        st.integers(0, max(len(data) - 1, 0)).map(lambda end: data[:end]),
        st.builds(
            _overwritten, st.just(data), st.integers(0, max(len(data) - 1, 0)), st.binary(min_size=1, max_size=4)
        ),
    ]
    try:
        document = json.loads(data)
    except ValueError:
        pass
    else:
        places = list(_places(document))
        strategies.append(st.builds(_replaced, st.just(document), st.sampled_from(places), st.sampled_from(_VALUES)))
    return st.one_of(strategies)


def _overwritten(data: bytes, at: int, other: bytes) -> bytes:
    return data[:at] + other + data[at + len(other) :]


def _places(document: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield from _places(value, (*path, key))


def _replaced(document: Any, path: tuple[Any, ...], value: object) -> bytes:
    if not path:
        return json.dumps(value).encode()
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(changed).encode()
