"""Data directories of earlier versions: this version opens them with the same content and continues."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaConsumer

import klamm
from klamm.storage.metadata.schema import FORMAT_VERSION
from tests.support.data_archive import (
    ARCHIVES,
    OPEN_TRANSACTION,
    PASSWORD,
    SETTINGS,
    USER,
    broker_on,
    describe,
)
from tests.support.security import sasl_settings
from tests.support.transaction_wire import TransactionClient, committed_offset, read_committed
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SAFE: Any = getattr(tarfile, "data_filter", None)
"""Python 3.11 has it since 3.11.4 only."""
NAMES = sorted(path.name.removesuffix(".json") for path in ARCHIVES.glob("*.json"))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def data_dir(name: str, tmp_path: Path) -> Path:
    """The data directory of an earlier version."""
    with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
        archive.extraction_filter = SAFE
        archive.extractall(tmp_path)  # noqa: S202 - our own archive
    return tmp_path / "data"


def covers(served: Mapping[str, list[int]], key: str, low: int, high: int) -> bool:
    """Return whether an API is still served in all versions from ``low`` to ``high``."""
    return key in served and served[key][0] <= low and served[key][1] >= high


def test_earlier_data_directory_has_the_same_content_and_continues(name: str, data_dir: Path) -> None:
    with broker_on(data_dir) as broker:
        # when
        content = describe(broker.bootstrap_servers)
        # then
        recorded = json.loads((ARCHIVES / f"{name}.json").read_text(encoding="utf-8"))
        served, earlier = content.pop("api versions"), recorded.pop("api versions")
        assert content == recorded
        narrower = {key: served.get(key) for key, (low, high) in earlier.items() if not covers(served, key, low, high)}
        assert not narrower, "these APIs have lost versions that an earlier klamm served"
        with WireClient(broker.bootstrap_servers.split(",", maxsplit=1)[0]) as wire:
            # the open transaction is aborted by its successor, with its offsets
            successor = TransactionClient(wire, OPEN_TRANSACTION)
            code, identity = successor.init(4)
            assert code == 0
            assert successor.add(identity, 3, "payments", 0) == [0]
            assert successor.produce(identity, 9, "payments", 0, "after", sequence=0) == 0
            assert successor.end(identity, 3, commit=True)[0] == 0
            assert read_committed(wire, "payments")[-2:] == ["payments-f", "after"]
            assert committed_offset(wire, "payers", "orders", stable=True) == (0, len("payments-f"))


def test_user_of_earlier_version_logs_in_with_its_acls(data_dir: Path) -> None:
    settings = {**SETTINGS, **sasl_settings(authorizer=True)}
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=settings, data_dir=data_dir, brokers=2) as broker:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            consumer = KafkaConsumer(
                bootstrap_servers=broker.bootstrap_servers,
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism=mechanism,
                sasl_plain_username=USER,
                sasl_plain_password=PASSWORD,
            )
            assert consumer.topics() == {"orders"}
            consumer.close()


def test_current_format_has_an_archive_with_a_row_in_every_table(tmp_path: Path) -> None:
    formats = {}
    for name in NAMES:
        with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
            archive.extraction_filter = SAFE
            archive.extract("data/metadata.sqlite", tmp_path / name)
        database = sqlite3.connect(tmp_path / name / "data" / "metadata.sqlite")
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        empty = [table for table in tables if not database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]]  # noqa: S608
        assert not empty
        formats[name] = database.execute("PRAGMA user_version").fetchone()[0]
        database.close()
    # python -m tests.support.data_archive writes the archive of a new format
    assert FORMAT_VERSION in formats.values()
