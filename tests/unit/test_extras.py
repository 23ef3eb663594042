"""Extras: errors name the install command of a missing extra, and pyproject.toml lists the same extras."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from klamm import cli, extras
from klamm.extras import EXTRAS, MissingExtraError, require_extra
from klamm.security.oauth import KeysError, parse_keys
from klamm.security.stores import StoreError, read_store

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)


def test_extras_match_pyproject() -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) == {*EXTRAS, "all"}
    everything = project["optional-dependencies"]["all"][0]
    assert set(everything.partition("[")[2].rstrip("]").split(",")) == set(EXTRAS)


@pytest.mark.parametrize("extra", EXTRAS)
def test_installed_extra_is_accepted(extra: str) -> None:
    assert all(importlib.util.find_spec(module) for module in EXTRAS[extra])
    require_extra(extra, feature="this")


@pytest.mark.usefixtures("nothing_installed")
def test_missing_extra_error_has_install_command() -> None:
    with pytest.raises(MissingExtraError) as caught:
        require_extra("security", feature="a PKCS12 store")
    assert str(caught.value) == (
        "a PKCS12 store needs cryptography and jwt, which klamm does not install by default and "
        f"{sys.executable} lacks. Install it with: pip install 'klamm[security]'"
    )


@pytest.mark.usefixtures("nothing_installed")
def test_command_without_its_extra_exits_with_2_before_reading_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mirror", "no-such-file.properties"]) == 2
    assert capsys.readouterr().err.startswith(
        "klamm: klamm mirror needs pyspark, pyarrow, pandas and rich, which klamm does not install by default"
    )


@pytest.mark.usefixtures("nothing_installed")
def test_stores_and_keys_name_the_missing_extra_in_their_own_errors() -> None:
    with pytest.raises(KeysError, match=r"klamm\[security\]"):
        parse_keys('{"keys": []}')
    with pytest.raises(StoreError, match=r"klamm\[security\]"):
        read_store(b"\x30\x82", password="p")  # noqa: S106 - of no store


@pytest.mark.process
@pytest.mark.parametrize("program", ["klamm.admin", "klamm.broker.main", "klamm.cli.connection", "klamm.gateway.main"])
def test_start_imports_neither_kafka_python_nor_an_extra(program: str) -> None:
    """kafka-python alone takes 10 MiB of each process of the gateway. It is needed for SASL logins only."""
    heavy = {"kafka", "urllib.request", "pyspark", "rich", "pandas", "pyarrow", "numpy"}
    code = f"import sys, {program}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.process
def test_admin_client_imports_no_config_definitions() -> None:
    code = "import sys; from klamm.admin import AdminClient; print('klamm.configs.definitions' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.process
def test_command_that_needs_an_extra_names_it_before_it_imports_it() -> None:
    hide = "import sys; sys.modules['rich'] = sys.modules['pyspark'] = None; "
    code = f"{hide}from klamm.cli import main; sys.exit(main(['mirror', 'mm2.properties']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'klamm[spark]'" in done.stderr
    assert done.stderr.count("\n") == 1
