"""The snippets of the README and of docs/: each is run, or checked as far as it can be without a cluster."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from klamm.cli import COMMANDS
from klamm.cli.completion import words_of
from klamm.mirror.settings.mirror import parse_settings
from klamm.policy.testing import a_topic, assert_refused, make_policy
from klamm.properties import parse_properties
from tests.support.klamm import KlammBroker
from tests.support.processes import free_port

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Snippet:
    page: str
    language: str
    text: str
    line: int


def snippets_of(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    return [
        Snippet(page=name, language=found[1], text=found[2], line=text[: found.start()].count("\n") + 1)
        for found in FENCE.finditer(text)
    ]


SNIPPETS = [snippet for page in PAGES if page.exists() for snippet in snippets_of(page)]
PYTHON = [snippet for snippet in SNIPPETS if snippet.language == "python"]
COMMAND_LINES = [
    (snippet.page, line.strip().removeprefix("$ "))
    for snippet in SNIPPETS
    for line in snippet.text.replace("\\\n", " ").splitlines()
    if snippet.language in {"", "console", "sh"} and re.match(r"(\$ )?klamm [a-z]+ .*", line.strip())
]
ON_SPARK = {"docs/dataframes.md", "docs/mirror.md"}
"""Pages whose Python needs a Spark session; tests/spark runs the same calls."""


def where(snippet: Snippet) -> str:
    return f"{snippet.page}:{snippet.line}"


def python_of(page: str, *, containing: str) -> str:
    (text,) = [snippet.text for snippet in PYTHON if snippet.page == page and containing in snippet.text]
    return text


def test_every_page_with_python_is_covered_here() -> None:
    assert {snippet.page for snippet in PYTHON} <= {
        "README.md",
        "docs/policies.md",
        "docs/adding.md",
        "docs/testing.md",
        *ON_SPARK,
    }


@pytest.mark.parametrize("snippet", PYTHON, ids=where)
def test_what_python_snippets_import_exists(snippet: Snippet) -> None:
    tree = ast.parse(snippet.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("klamm"):
            exec(compile(ast.Module([node], []), where(snippet), "exec"), {})  # noqa: S102 - our own page


def test_the_architecture_page_names_every_package() -> None:
    # given
    source = ROOT / "src" / "klamm"
    top = {path.stem for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    inner = {path.parent.name for name in ("broker", "mirror") for path in (source / name).glob("*/__init__.py")}
    # when
    named = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")))
    # then
    assert sorted((top | inner) - named - {"__init__"}) == []


@pytest.mark.process
def test_the_pytest_example_of_the_readme_passes(pytester: pytest.Pytester) -> None:
    # given
    pytester.makepyfile(python_of("README.md", containing="klamm_broker"))
    # when
    result = pytester.runpytest_subprocess("-q", "-p", "no:randomly")
    # then
    result.assert_outcomes(passed=2)


@pytest.mark.process
def test_the_recipes_for_tests_pass(pytester: pytest.Pytester) -> None:
    # given
    recipes = [snippet.text for snippet in PYTHON if snippet.page == "docs/testing.md"]
    pytester.makepyfile(**{f"test_recipe_{number}": text for number, text in enumerate(recipes)})
    # A consumer of kafka-python may lose its assignment on a busy machine, and then waits 45 s for the next one.
    pytester.makeconftest(
        f"import sys\nsys.path.append({str(ROOT)!r})\n"
        "from tests.support.kafka_python import keep_assignments\nkeep_assignments()\n"
    )
    # when
    result = pytester.runpytest_subprocess("-v", "-p", "no:randomly", timeout=240)
    # then
    assert len(recipes) == 10
    result.assert_outcomes(passed=11)


def test_the_policy_of_the_readme_refuses_with_its_message() -> None:
    namespace: dict[str, Any] = {}
    exec(python_of("README.md", containing="SmallTopics"), namespace)  # noqa: S102 - our own page
    policy = make_policy(namespace["SmallTopics"])
    assert_refused(policy, a_topic(num_partitions=13), match="asks for 13 partitions; at most 12 are allowed")


def test_the_policies_page_can_be_followed_from_top_to_bottom() -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    first, *others = [snippet.text for snippet in PYTHON if snippet.page == "docs/policies.md"]
    exec(first, namespace)  # noqa: S102 - our own page
    house = namespace["House"]
    for text in others:
        exec(text, namespace)  # noqa: S102 - our own page
    namespace["House"] = house
    namespace["test_large_topics_are_refused"]()


@pytest.mark.parametrize(("page", "line"), COMMAND_LINES, ids=[f"{page}: {line}"[:100] for page, line in COMMAND_LINES])
def test_commands_and_flags_of_the_pages_exist(page: str, line: str) -> None:
    # given
    _, name, *words = shlex.split(line, comments=True)
    assert name in {command.name for command in COMMANDS}, f"{page} names no command: {name}"
    # when
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    # then
    assert set(flags) <= {*words_of(name), "--help", "--version"}


@pytest.mark.process
def test_the_shell_session_of_the_readme_runs(tmp_path: Path) -> None:
    # given
    lines = [line for page, line in COMMAND_LINES if page == "README.md" and "mm2.properties" not in line]
    started, *commands = lines
    assert started == "klamm broker --listen 127.0.0.1:9092 --data-dir data --metrics 127.0.0.1:9404"
    metrics, data_dir = f"127.0.0.1:{free_port()}", tmp_path / "data"
    with KlammBroker(options=["--metrics", metrics], data_dir=data_dir) as broker:
        here = {"127.0.0.1:9092": broker.bootstrap_servers, "127.0.0.1:9404": metrics, "data": str(data_dir)}
        for command in commands:
            words = shlex.split(command)[1:]
            # when
            done = subprocess.run(
                [sys.executable, "-m", "klamm.cli", *(here.get(word, word) for word in words)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            # then
            assert (command, done.returncode, done.stderr) == (command, 0, done.stderr)


@pytest.mark.parametrize(
    "snippet",
    [snippet for snippet in SNIPPETS if re.search(r"^clusters *=", snippet.text, re.MULTILINE)],
    ids=where,
)
def test_properties_files_of_the_pages_are_understood(snippet: Snippet) -> None:
    assert parse_settings(parse_properties(snippet.text)).flows
