"""The workflows for a public forge: they parse, and their commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import yaml

from klamm.admin import AdminClient, NewTopic
from tests.support.processes import free_port
from tests.support.scripts import SCRIPTS, load_script

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
release: Any = load_script("check_release")

FIRST_ON_NODE_24 = {
    "actions/attest-build-provenance": 4,
    "actions/attest-sbom": 4,
    "actions/cache": 5,
    "actions/checkout": 5,
    "actions/download-artifact": 7,
    "actions/setup-java": 5,
    "actions/setup-python": 6,
    "actions/upload-artifact": 6,
}
"""First major version of each action that runs on the forge's runners. They lost Node 20 in September 2026."""


def load(path: Path) -> dict[str, Any]:
    text = re.sub(r"^on:", '"on":', path.read_text(encoding="utf-8"), flags=re.MULTILINE)  # YAML 1.1 reads on as true
    return dict(yaml.safe_load(text))


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in load(path)["jobs"].values() for step in job.get("steps", [])]


def test_there_are_workflows_for_tests_wheels_and_publishing() -> None:
    assert [path.stem for path in FILES] == ["ci", "publish", "wheels"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_workflow_runs_only_existing_targets_and_scripts(path: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for step in steps(path):
        assert ("run" in step) != ("uses" in step), step
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[\w./-]+", step["uses"]), step
            continue
        program, argument, *_ = step["run"].removeprefix("sudo ").split()
        if program == "go":
            assert re.match(r"go run \S+/actionlint@v[\d.]+ ", step["run"]), step
            continue
        if program == "make":
            assert argument in targets, step
        else:
            assert (program, (SCRIPTS.parent / argument).is_file()) == ("python", True), step


def test_continuous_integration_runs_make_test_without_flags_of_its_own() -> None:
    *_, last = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert last == "exec make test"


@pytest.mark.parametrize("path", [*FILES, ROOT / "examples" / "gitops" / "workflow.yaml"], ids=lambda path: path.stem)
def test_actions_use_supported_runners_and_persist_no_credentials(path: Path) -> None:
    for step in steps(path):
        name, _, version = step.get("uses", "").partition("@v")
        if name.startswith("actions/"):
            assert int(version) >= FIRST_ON_NODE_24[name], step
        if name == "actions/checkout":
            assert step["with"] == {"persist-credentials": False}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_jobs_have_time_limits_and_minimal_permissions(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file()
            continue
        assert job["timeout-minutes"] <= 60
        needed = job.get("needs", [])
        assert {needed} if isinstance(needed, str) else set(needed) <= set(workflow["jobs"])
        # only the job that uploads gets an identity, and only in the environment that people approve
        rights = {"attestations": "write", "id-token": "write"} if name == "publish" else None
        assert (job.get("permissions"), job.get("environment")) == (rights, "pypi" if rights else None)


def test_every_supported_python_has_wheels_and_unit_tests() -> None:
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    by_name = {path.stem: load(path)["jobs"] for path in FILES}
    assert by_name["wheels"]["build"]["strategy"]["matrix"]["python"] == classifiers
    assert ["3.11", *by_name["ci"]["unit"]["strategy"]["matrix"]["python"]] == classifiers


def test_releasing_page_names_variables_of_reproducible_builds() -> None:
    page = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")
    (rebuild,) = re.findall(r"^Anyone can check a file: .*?\n\n", page, re.DOTALL | re.MULTILINE)
    (build,) = [
        step for step in steps(ROOT / ".github" / "workflows" / "wheels.yml") if step.get("run") == "make wheel"
    ]
    assert [name for name in build["env"] if f"{name}=" not in rebuild] == []


def test_release_tag_requires_version_changelog_and_data(tmp_path: Path) -> None:
    # given
    (tmp_path / "src" / "klamm").mkdir(parents=True)
    (tmp_path / "src" / "klamm" / "__init__.py").write_text('"""klamm."""\n\n__version__ = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n")
    # then
    assert len(release.problems("v1.3.0", tmp_path)) == 3
    # when
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 1.2.0 (2026-11-23)\n")
    (tmp_path / "tests" / "data").mkdir(parents=True)
    for suffix in ("tar.xz", "json"):
        (tmp_path / "tests" / "data" / f"klamm-1.2.0.{suffix}").touch()
    # then
    assert release.problems("v1.2.0", tmp_path) == []


@pytest.mark.process
@pytest.mark.parametrize("is_port_chosen", [True, False])
def test_action_starts_broker_and_exports_its_address(is_port_chosen: bool, tmp_path: Path) -> None:
    # given a Python whose environments hold this klamm
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(
        f"""#!{sys.executable}
import pathlib, sys
bin = pathlib.Path(sys.argv[3], "bin")
bin.mkdir(parents=True)
for name, command in {{"klamm": "exec {sys.executable} -m klamm.cli", "pip": "echo >>{tmp_path}/pip"}}.items():
    (bin / name).write_text(f'#!/bin/sh\\n{{command}} "$@"\\n')
    (bin / name).chmod(0o755)
"""
    )
    python.chmod(0o755)
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    (step,) = action["runs"]["steps"]
    environment = {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "KLAMM_VERSION": "0.1.0",
        "KLAMM_PORT": str(free_port() if is_port_chosen else 0),
        "KLAMM_PROPERTIES": "num.partitions=3",
    }
    # when
    started = subprocess.run(
        ["bash", "-e", "-c", f"{step['run']}\necho $broker"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    # then
    assert started.returncode == 0, started.stdout + started.stderr
    pid = int(started.stdout)
    try:
        port = environment["KLAMM_PORT"] if is_port_chosen else r"[1-9]\d*"
        output = re.fullmatch(rf"bootstrap-servers=(127\.0\.0\.1:{port})\n", (tmp_path / "output").read_text())
        assert output is not None
        servers = output[1]
        assert (tmp_path / "pip").read_text() == "install --quiet klamm==0.1.0\n"
        with AdminClient(servers) as admin:
            admin.create_topics([NewTopic(name="orders")]).values()["orders"].result()
            assert len(admin.describe_topics(["orders"]).result()["orders"].partitions) == 3
    finally:
        broker = psutil.Process(pid)
        broker.terminate()
        broker.wait(30)
