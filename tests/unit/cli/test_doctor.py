"""``klamm doctor``."""

from __future__ import annotations

import json
import resource
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from klamm import cli
from tests.support.by_thread import replace_for_this_thread

if TYPE_CHECKING:
    import pytest

ANY_PORT = "127.0.0.1:0"


def checks(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, dict[str, Any]]]:
    code = cli.main(["doctor", *flags, "-o", "json"])
    return code, {check["subject"]: check for check in json.loads(capsys.readouterr().out)}


def test_doctor_passes_on_the_test_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, results = checks(capsys, "--listen", ANY_PORT, "--data-dir", str(tmp_path))
    del results["fsync"]  # a busy disk is slow
    assert {check["status"] for check in results.values()} <= {"ok", "optional"}
    assert {"klamm", "uvloop", "spark", "java", "port", "descriptors", "clock", "data dir"} <= set(results)
    assert list(tmp_path.iterdir()) == []


def test_port_in_use_and_missing_directory_are_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        code, results = checks(capsys, "--listen", listen, "--data-dir", str(tmp_path / "missing"))
    assert code == 1
    assert (results["port"]["status"], results["data dir"]["status"]) == ("bad", "bad")
    assert listen in results["port"]["detail"]
    assert "No such file or directory" in results["data dir"]["detail"]


def test_few_descriptors_and_a_wrong_clock_are_bad(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    replace_for_this_thread(monkeypatch, time, "time", lambda: 0.0)
    code, results = checks(capsys, "--listen", ANY_PORT)
    assert code == 1
    assert (results["descriptors"]["status"], results["clock"]["status"]) == ("bad", "bad")


def test_missing_extra_is_optional_and_names_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("klamm.extras.find_spec", lambda _: None)
    _, results = checks(capsys, "--listen", ANY_PORT)
    assert results["spark"]["status"] == "optional"
    assert "pip install 'klamm[spark]'" in results["spark"]["detail"]


def test_address_without_a_port_is_bad(capsys: pytest.CaptureFixture[str]) -> None:
    assert checks(capsys, "--listen", "localhost")[1]["port"]["detail"] == "--listen localhost: expected HOST:PORT"


def test_class_archive_of_spark_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: a Java, a Spark, and a directory without an archive
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    (tmp_path / "jdk" / "bin" / "java").touch(mode=0o755)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="21.0.4"\n')
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("KLAMM_CLASS_ARCHIVE", str(tmp_path))
    flags = ("--listen", ANY_PORT, "--data-dir", str(tmp_path))
    # when
    missing = checks(capsys, *flags)[1]["class archive"]
    Path(missing["detail"].partition(" ")[0]).touch()
    written = checks(capsys, *flags)[1]["class archive"]
    # then
    assert (missing["status"], written["status"]) == ("optional", "ok")
    assert written["detail"] in missing["detail"]
