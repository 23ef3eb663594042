"""Files at paths from the wire: devices, FIFOs and large files are rejected without being read."""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING

import pytest

from klamm.policy.rule import RuleFileError
from klamm.policy.rules import RulesPolicy
from klamm.properties import SettingsError
from klamm.small_file import MAX_BYTES, read_small_file
from klamm.tls import load_own, load_trusted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def large_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)


UNREADABLE = [(fifo, "Not a regular file"), (link_to_device, "Not a regular file"), (large_file, "Larger than 1048576")]


@pytest.mark.parametrize(("make", "reason"), UNREADABLE)
def test_file_is_rejected_unless_small_and_regular(make: Callable[[Path], None], reason: str, tmp_path: Path) -> None:
    # given
    make(path := tmp_path / "file")
    # when
    with pytest.raises(OSError, match=reason):
        read_small_file(str(path))


def test_missing_file_and_path_with_null_byte_are_os_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_small_file(str(tmp_path / "gone"))
    with pytest.raises(OSError, match="null byte"):
        read_small_file("a\0b")


def test_file_of_maximum_size_is_read_through_a_link(tmp_path: Path) -> None:
    # given
    (tmp_path / "file").write_bytes(b"x" * MAX_BYTES)
    (tmp_path / "link").symlink_to("file")
    # when
    content = read_small_file(str(tmp_path / "link"))
    # then
    assert len(content) == MAX_BYTES


@pytest.mark.parametrize("kind", ["JKS", "PEM"])
@pytest.mark.parametrize(("make", "reason"), UNREADABLE)
def test_store_is_rejected_unless_small_and_regular(
    kind: str, make: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    # given
    make(path := tmp_path / "store")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    settings = {
        f"ssl.{store}.{name}": value
        for store in ("keystore", "truststore")
        for name, value in (("type", kind), ("location", str(path)), ("password", "store-pw"))
    }
    for load in (load_own, load_trusted):
        # when
        with pytest.raises(SettingsError, match=f"cannot be read: {reason}"):
            load(context, settings.get)


@pytest.mark.parametrize(("make", "reason"), UNREADABLE)
def test_rules_file_is_rejected_unless_small_and_regular(
    make: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    # given
    make(path := tmp_path / "rules.yaml")
    # when
    with pytest.raises(RuleFileError, match=f"cannot be read: {reason}"):
        RulesPolicy().configure({"policy.rules.file": str(path)})
