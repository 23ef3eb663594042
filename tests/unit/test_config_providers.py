from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.config_providers import resolve
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = "org.apache.kafka.common.config.provider."


def with_provider(name: str, java_class: str, **more: str) -> dict[str, str]:
    return {"config.providers": name, f"config.providers.{name}.class": PACKAGE + java_class, **more}


def test_file_provider_reads_value_from_properties_file(tmp_path: Path) -> None:
    """K894-28: ``${provider:path:key}`` via config.providers."""
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("password=p:w}\nuser=alice\n")
    properties = with_provider(
        "file", "FileConfigProvider", login=f"${{file:{secrets}:user}}/${{file:{secrets}:password}}"
    )
    assert resolve(properties)["login"] == "alice/p:w}"


def test_directory_and_env_providers_read_file_and_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K894-28: ``${provider:path:key}`` via config.providers."""
    (tmp_path / "password").write_text("secret")
    monkeypatch.setenv("KLAMM_TEST_USER", "alice")
    properties = with_provider(
        "dir", "DirectoryConfigProvider", a=f"${{dir:{tmp_path}:password}}", b="${env:KLAMM_TEST_USER}"
    )
    properties |= {"config.providers": "dir, env", "config.providers.env.class": PACKAGE + "EnvVarConfigProvider"}
    resolved = resolve(properties)
    assert (resolved["a"], resolved["b"]) == ("secret", "alice")


def test_provider_path_ends_at_the_first_colon(tmp_path: Path) -> None:
    """As in Kafka's ConfigTransformer."""
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("a\\:b\\:c=secret\n")
    properties = with_provider("file", "FileConfigProvider", login=f"${{file:{secrets}:a:b:c}}")
    assert resolve(properties)["login"] == "secret"


@pytest.mark.parametrize("reference", ["${p:}", "${p:/tmp:}"])
@pytest.mark.parametrize("java_class", ["FileConfigProvider", "DirectoryConfigProvider", "EnvVarConfigProvider"])
def test_provider_reference_without_key_is_rejected(java_class: str, reference: str) -> None:
    with pytest.raises(SettingsError, match=r"^topics: "):
        resolve(with_provider("p", java_class, topics=reference))


def test_reference_without_its_provider_is_unchanged() -> None:
    assert resolve({"topics": "${file:a:b}"}) == {"topics": "${file:a:b}"}
    properties = with_provider("file", "FileConfigProvider", topics="${vault:a:b}")
    assert resolve(properties)["topics"] == "${vault:a:b}"


def test_unresolvable_reference_names_its_key_and_no_secret(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("password=hunter2\n")
    for reference in (f"${{file:{secrets}:other}}", f"${{file:{tmp_path}/missing:password}}"):
        with pytest.raises(SettingsError, match=r"A\.sasl\.jaas\.config: ") as rejected:
            resolve(with_provider("file", "FileConfigProvider", **{"A.sasl.jaas.config": reference}))
        assert "hunter2" not in str(rejected.value)


def test_unknown_provider_class_is_rejected() -> None:
    with pytest.raises(SettingsError, match=r"config\.providers\.vault\.class=.*VaultProvider: expected"):
        resolve(with_provider("vault", "VaultProvider"))


@pytest.mark.parametrize("java_class", ["FileConfigProvider", "DirectoryConfigProvider"])
def test_providers_read_only_allowed_paths(tmp_path: Path, java_class: str) -> None:
    """KIP-993."""
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "s").write_text("s=secret")
    place = "" if java_class.startswith("Dir") else "/s"
    limit = {"config.providers.p.param.allowed.paths": f"/nowhere, {tmp_path}/open"}
    read = resolve(with_provider("p", java_class, a=f"${{p:{tmp_path}/open{place}:s}}", **limit))["a"]
    assert "secret" in read
    for path in (f"{tmp_path}/closed{place}", f"{tmp_path}/open/../closed{place}"):
        with pytest.raises(
            SettingsError, match=r"^a: .*/closed.* is not within config\.providers\.p\.param\.allowed\.paths="
        ):
            resolve(with_provider("p", java_class, a=f"${{p:{path}:s}}", **limit))
    with pytest.raises(SettingsError, match=r"allowed\.paths=here: expected absolute paths, here is relative"):
        resolve(with_provider("p", java_class, **{"config.providers.p.param.allowed.paths": "here"}))


@pytest.mark.parametrize("java_class", ["FileConfigProvider", "DirectoryConfigProvider"])
def test_allowed_paths_apply_to_normalized_path(tmp_path: Path, java_class: str) -> None:
    """As in Kafka. The kernel would read ``open/link/../s`` beside the directory to which the link leads."""
    # given
    for name, value in (("open", "allowed"), ("closed", "secret")):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "s").write_text(f"s={value}")
    (tmp_path / "open" / "link").symlink_to(tmp_path / "closed" / "sub")
    place = "" if java_class.startswith("Dir") else "/s"
    properties = with_provider("p", java_class, a=f"${{p:{tmp_path}/open/link/..{place}:s}}")
    # when
    unlimited = resolve(properties)["a"]
    limited = resolve(properties | {"config.providers.p.param.allowed.paths": f"{tmp_path}/open"})["a"]
    # then
    assert unlimited.endswith("secret")
    assert limited.endswith("allowed")


def test_env_provider_reads_only_allowed_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-887."""
    monkeypatch.setenv("KLAMM_TEST_USER", "alice")
    limit = "config.providers.env.param.allowlist.pattern"
    properties = with_provider("env", "EnvVarConfigProvider", a="${env:KLAMM_TEST_USER}")
    assert resolve(properties | {limit: "KLAMM_.*"})["a"] == "alice"
    with pytest.raises(SettingsError, match=r"^a: KLAMM_TEST_USER is not one that .*allowlist\.pattern=TEST.* allows"):
        resolve(properties | {limit: "TEST.*"})
    with pytest.raises(SettingsError, match=r"allowlist\.pattern=\(: expected a regular expression"):
        resolve(properties | {limit: "("})
