"""``pip install klamm`` without extras: a broker, clients, the command line and policies in 30 MiB."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import klamm
from tests.support.base_install import BaseInstall

pytestmark = pytest.mark.long

MIB = 1024 * 1024

TRY_INSTALL = Path(__file__).resolve().parents[2] / "scripts" / "try_install.py"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> BaseInstall:
    install = BaseInstall(tmp_path_factory.mktemp("base-install"))
    install.compile()
    return install


def test_base_install_takes_at_most_30_mib(installed: BaseInstall) -> None:
    assert installed.distributions == {"cramjam", "crc32c", "google-re2", "kafka-python", "PyYAML"}
    assert MIB < installed.size_bytes() <= 30 * MIB


def test_broker_producer_consumer_policy_and_command_line_work(installed: BaseInstall) -> None:
    # when
    done = installed.run(str(TRY_INSTALL))
    # then
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["value"] == "1"
    assert "at most 12 partitions" in report["rejected"]
    assert report["listed"] == ["orders"]
    assert report["version"] == f"klamm {klamm.__version__}"
    assert report["plugin"] == ["klamm.pytest_plugin"]
    assert (report["has_type_marker"], report["has_licence"], report["extensions"]) == (True, True, 0)


def test_package_metadata_is_complete(installed: BaseInstall) -> None:
    metadata = installed.metadata()
    assert metadata["Version"] == klamm.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "A broker in your tests" in str(metadata.get_payload())
    assert {"Typing :: Typed", "Framework :: Pytest"} <= set(metadata.get_all("Classifier", []))
    assert "Project-URL" not in metadata  # no public address is known: scripts/project_metadata.py


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["mirror", "mm2.properties"], "spark"),
        (["registrations", "report", "--bootstrap-server", "127.0.0.1:1"], "spark"),
    ],
)
def test_command_without_its_extra_names_the_extra(installed: BaseInstall, words: list[str], extra: str) -> None:
    done = installed.run("-m", "klamm.cli", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"pip install 'klamm[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("statement", "extra"),
    [
        ("import klamm.dataframes.spark", "spark"),
        ("from klamm.mirror.spark import start", "spark"),
        ("import klamm.clients.confluent", "confluent"),
        ("import klamm.clients.aio", "aiokafka"),
    ],
)
def test_import_without_its_extra_names_the_extra(installed: BaseInstall, statement: str, extra: str) -> None:
    done = installed.run("-c", statement)
    assert f"MissingExtraError: {statement.split()[1]}" in done.stderr
    assert f"pip install 'klamm[{extra}]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("action", ["status", "verify", "cutover"])
def test_mirror_status_verify_and_cutover_need_no_spark(installed: BaseInstall, action: str, tmp_path: Path) -> None:
    # given
    file = tmp_path / "mm2.properties"
    file.write_text(
        "clusters=A,B\nA.bootstrap.servers=127.0.0.1:1\nB.bootstrap.servers=127.0.0.1:1\nA->B.enabled=true\n"
    )
    words = ["cutover", "billing", str(file)] if action == "cutover" else [action, str(file)]
    # when
    done = installed.run("-m", "klamm.cli", "mirror", *words)
    # then
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "klamm[" not in done.stderr
    assert "Traceback" not in done.stderr
