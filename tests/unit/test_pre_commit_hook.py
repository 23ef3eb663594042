"""The hook of .pre-commit-hooks.yaml, run at each commit of a repository as pre-commit runs it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable

    Git = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).resolve().parents[2]
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
RULES = "rules: [{name: sizes, partitions: {max: 12}}]"


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Return git in a repository whose hook runs ``entry`` and ``args``, from where pre-commit installed klamm."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig"),
        **{f"GIT_{role}_{part}": "a" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")},
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["git", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert run("init", "--quiet", ".").returncode == 0
    return run


def install(repository: Path, *args: str) -> None:
    """Write the hook as a repository's configuration has it, with its own ``args`` or those of the hook."""
    words = [*shlex.split(HOOK["entry"]), *(args or HOOK["args"])]
    hook = repository / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nexec {shlex.join(words)}\n", encoding="utf-8")
    hook.chmod(0o755)


def test_hook_concerns_files_of_resources_and_gets_no_file_names() -> None:
    matching = [
        name for name in ("clusters/a.yaml", "b.yml", "c/d.json", "README.md") if re.search(HOOK["files"], name)
    ]
    assert matching == ["clusters/a.yaml", "b.yml", "c/d.json"]
    assert (HOOK["language"], HOOK["pass_filenames"]) == ("python", False)


@pytest.mark.process
def test_commit_with_a_broken_file_is_rejected_until_it_is_right(git: Git, tmp_path: Path) -> None:
    # given
    install(tmp_path)
    (tmp_path / "clusters" / "prod").mkdir(parents=True)
    (tmp_path / "clusters" / "prod" / "klamm.yaml").write_text("cluster: prod\n")
    topics = tmp_path / "clusters" / "prod" / "topics.yaml"
    topics.write_text("topics: {orders: {partitions: 48, configs: {retension.ms: 7d}}}\n")
    git("add", ".")
    # when
    rejected = git("commit", "--message", "Add orders")
    # then
    assert rejected.returncode == 1
    assert "retension.ms: Kafka 4.4 has no such config; did you mean retention.ms?" in rejected.stderr
    # when
    topics.write_text("topics: {orders: {partitions: 48, configs: {retention.ms: 7d}}}\n")
    git("add", ".")
    # then
    accepted = git("commit", "--message", "Add orders")
    assert accepted.returncode == 0, accepted.stderr
    assert git("log", "--format=%s").stdout == "Add orders\n"
    # when
    (tmp_path / "rules.yaml").write_text(RULES)
    install(tmp_path, "clusters", "--rules", "rules.yaml")
    rejected = git("commit", "--allow-empty", "--message", "Nothing")
    # then
    assert rejected.returncode == 1
    assert "Rule 'sizes'" in rejected.stderr
