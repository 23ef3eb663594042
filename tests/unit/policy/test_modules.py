"""Modules that a policy imports from its own directory are reloaded with it."""

from __future__ import annotations

import ast
import importlib
import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from uuid import uuid4

import pytest

from klamm.policy.loader import FreshModules
from klamm.policy.modules import own_modules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Names that no other test has."""
    monkeypatch.syspath_prepend(str(tmp_path))
    word = f"t{uuid4().hex}"
    yield word
    for name in [name for name in sys.modules if word in name]:
        del sys.modules[name]


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def fresh(name: str) -> tuple[Any, FreshModules]:
    modules = FreshModules()
    return modules.get(name), modules


def test_own_modules_lists_dependencies_first(tmp_path: Path, tag: str) -> None:
    write(
        tmp_path,
        {
            f"{tag}_rules.py": f"import json, {tag}_limits\nfrom {tag}_names import PREFIX\n"
            "from klamm.policy import Policy\n",
            f"{tag}_limits.py": f"import {tag}_names\nimport {tag}_rules\nMOST = 1\n",
            f"{tag}_names.py": "PREFIX = 'a'\n",
        },
    )
    module = importlib.import_module(f"{tag}_rules")
    assert list(own_modules(module)) == [f"{tag}_names", f"{tag}_limits"]
    assert own_modules(module)[f"{tag}_limits"] == tmp_path / f"{tag}_limits.py"


def test_imports_are_found_in_functions_of_a_large_module_while_a_thread_parses(
    tmp_path: Path, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ast, "parse", Mock(side_effect=SystemError("AST constructor recursion depth mismatch")))
    constants = "".join(f"C{number} = {number}.5\n" for number in range(300))
    write(
        tmp_path,
        {
            f"{tag}_rules.py": f"{constants}class Rules:\n    def all(self):\n        import {tag}_limits as limits\n"
            f"try:\n    from {tag}_names import A as B, C\nexcept ImportError:\n    pass\n",
            f"{tag}_limits.py": "",
            f"{tag}_names.py": "A = C = 1\n",
        },
    )
    module = importlib.import_module(f"{tag}_rules")
    importlib.import_module(f"{tag}_limits")
    assert set(own_modules(module)) == {f"{tag}_names", f"{tag}_limits"}


def test_changed_dependency_is_reloaded_and_restored_by_undo(tmp_path: Path, tag: str) -> None:
    write(
        tmp_path,
        {
            f"{tag}_rules.py": f"from {tag}_limits import MOST\n",
            f"{tag}_limits.py": f"from {tag}_deep import MOST\n",
            f"{tag}_deep.py": "MOST = 1\n",
        },
    )
    old = importlib.import_module(f"{tag}_rules")
    write(tmp_path, {f"{tag}_deep.py": "MOST = 22\n"})
    new, modules = fresh(f"{tag}_rules")
    assert (old.MOST, new.MOST) == (1, 22)
    modules.undo()
    assert sys.modules[f"{tag}_rules"] is old
    assert sys.modules[f"{tag}_deep"].MOST == 1


def test_relative_and_absolute_imports_of_own_modules_are_followed(tmp_path: Path, tag: str) -> None:
    write(
        tmp_path,
        {
            f"{tag}/__init__.py": "",
            f"{tag}/rules/__init__.py": "",
            f"{tag}/rules/topics.py": f"from . import sizes\nfrom ..common import NAME\nimport {tag}.other\n"
            f"def all():\n    return sizes.MOST, NAME, {tag}.other.WORD\n",
            f"{tag}/rules/sizes.py": "MOST = 1\n",
            f"{tag}/common.py": "NAME = 'old'\n",
            f"{tag}/other.py": "WORD = 'old'\n",
        },
    )
    old: Any = importlib.import_module(f"{tag}.rules.topics")
    write(
        tmp_path,
        {
            f"{tag}/rules/sizes.py": "MOST = 22\n",
            f"{tag}/common.py": "NAME = 'newer'\n",
            f"{tag}/other.py": "WORD = 'newer'\n",
        },
    )
    assert set(own_modules(old)) == {f"{tag}.rules.sizes", f"{tag}.common", f"{tag}.other"}
    new, modules = fresh(f"{tag}.rules.topics")
    assert new.all() == (22, "newer", "newer")
    modules.undo()
    assert old.all() == (1, "old", "old")


def test_installed_packages_and_klamm_are_not_own_modules(tmp_path: Path, tag: str) -> None:
    installed = tmp_path / "site-packages"
    write(installed, {f"{tag}_rules.py": f"import {tag}_other\n", f"{tag}_other.py": ""})
    sys.path.insert(0, str(installed))
    try:
        assert not own_modules(importlib.import_module(f"{tag}_rules"))
    finally:
        sys.path.remove(str(installed))
    assert not own_modules(importlib.import_module("klamm.policy.rules"))
