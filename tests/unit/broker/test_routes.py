"""The table of served APIs, compared with the files on disk and with Kafka 4.4."""

from __future__ import annotations

import re
from pathlib import Path

from klamm.broker import handlers
from klamm.broker.routes import ROUTES
from klamm.protocol.api import ApiKey
from klamm.server import handlers as login_handlers

KAFKA_4_4 = (
    "0:0-13 1:4-18 2:1-11 3:0-13 8:2-10 9:1-10 10:0-6 11:0-9 12:0-4 13:0-5 14:0-5 15:0-6 16:0-5 17:0-1 18:0-5 19:2-7"
    " 20:1-6 21:0-2 22:0-5 23:2-4 24:0-5 25:0-4 26:0-5 27:1-2 28:0-6 29:1-3 30:1-3 31:1-3 32:1-4 33:0-2 35:1-5 36:0-2"
    " 37:0-3 42:0-3 43:0-2 44:0-1 45:0-1 46:0-0 47:0-0 48:0-1 49:0-1 50:0-0 51:0-0 60:0-2 61:0-0 65:0-0 66:0-2 68:0-1"
    " 69:0-1 71:0-0 72:0-0 74:0-1 75:0-0"
)
"""What a broker of Kafka 4.4 answers in ApiVersions, of the keys that klamm may serve. It announces 71
and 72 only with a receiver of client metrics.
"""


def test_every_handler_file_is_routed_and_named_after_its_key() -> None:
    files = {
        int(match[1]): match[2]
        for package in (handlers, login_handlers)
        for path in Path(package.__path__[0]).glob("api_*.py")
        if (match := re.fullmatch(r"api_(\d{3})_(\w+)\.py", path.name))
    }
    assert sorted(files) == sorted(ROUTES)
    for key, name in files.items():
        route = ROUTES[key]
        assert route.api.key == key
        assert name in {ApiKey(key).name.lower(), "describe_client_configs", "alter_client_configs"}


def test_served_versions_equal_kafkas() -> None:
    """K339-01: The broker offers a new RPC IncrementalAlterConfigs; AlterConfigs stays.

    K339-05: Versions: v0 required; v1 is flexible (compact types, tags).
    """
    kafka = {
        int(key): tuple(map(int, versions.split("-")))
        for key, versions in (entry.split(":") for entry in KAFKA_4_4.split())
    }
    served = {key: (route.api.min_version, route.api.max_version) for key, route in ROUTES.items()}
    assert served == {key: kafka[key] for key in served}
