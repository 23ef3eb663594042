"""The snippets of the README and of docs/: each is run, or checked as far as possible without a cluster."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import markdown  # type: ignore[import-untyped]
import pytest
import yaml

from klamm import cli
from klamm.broker import settings as broker_settings
from klamm.cli import COMMANDS
from klamm.cli.completion import words_of
from klamm.cli.profiles import find_profile
from klamm.gateway import settings as gateway_settings
from klamm.mirror.settings.mirror import parse_settings
from klamm.policy.rule_file import parse_rules
from klamm.policy.testing import a_topic, assert_denied, make_policy
from klamm.properties import parse_properties
from klamm.resources.files import parse_documents
from klamm.server.listeners import SecurityProtocol
from klamm.server.security.endpoints import open_endpoint
from tests.support.cases import case
from tests.support.klamm import KlammBroker
from tests.support.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
"""Snippets, also those of a list, which are indented."""


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
        Snippet(page=name, language=match[2], text=dedent(match[3]), line=text[: match.start()].count("\n") + 1)
        for match in FENCE.finditer(text)
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


def test_every_page_with_python_is_tested() -> None:
    assert {snippet.page for snippet in PYTHON} <= {
        "README.md",
        "docs/policies.md",
        "docs/adding.md",
        *RECIPES,
        *ON_SPARK,
    }


@pytest.mark.parametrize("snippet", PYTHON, ids=where)
def test_imports_of_python_snippets_exist(snippet: Snippet) -> None:
    tree = ast.parse(snippet.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("klamm"):
            exec(compile(ast.Module([node], []), where(snippet), "exec"), {})  # noqa: S102 - our own page


def test_architecture_page_lists_every_package() -> None:
    # given
    source = ROOT / "src" / "klamm"
    top = {path.stem for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    inner = {path.parent.name for name in ("broker", "mirror") for path in (source / name).glob("*/__init__.py")}
    # when
    named = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")))
    # then
    assert sorted((top | inner) - named - {"__init__", "__main__"}) == []


def misplaced_in_lists(text: str) -> Iterator[str]:
    """Yield what ends a numbered list on the site, whose renderer wants four spaces before the blocks of an item."""
    last, indent_of_fence = 0, -1
    for line in text.splitlines():
        if fence := re.match(r"( *)```", line):
            indent_of_fence = -1 if indent_of_fence >= 0 else len(fence[1])
            if indent_of_fence in {1, 2, 3}:
                yield line
            if indent_of_fence == 0:
                last = 0
        elif indent_of_fence < 0 and (item := re.match(r"([0-9]+)\. ", line)):
            if int(item[1]) > 1 and int(item[1]) != last + 1:
                yield line
            last = int(item[1])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_numbered_lists_go_on_behind_snippets(page: Path) -> None:
    assert list(misplaced_in_lists(page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_item_of_a_list_ends_up_in_a_paragraph_of_the_site(page: Path) -> None:
    """The renderer of the site takes an item for text if it follows a paragraph without an empty line in between."""
    rendered = markdown.markdown(page.read_text(encoding="utf-8"), extensions=["tables", "pymdownx.superfences"])
    text = re.sub("<pre.*?</pre>", "", rendered, flags=re.DOTALL)
    assert re.findall(r"^ *(?:[0-9]+\.|[-*|]) .*", text, re.MULTILINE) == []


MODULE_PATH = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`")
PATHS_BEGIN_AT = [ROOT / name for name in ("", "src/klamm", "src/klamm/mirror", "src/klamm/gateway", "tests")]


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs" / "adr").glob("*.md"))], ids=lambda page: page.name)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    for path in MODULE_PATH.findall(page.read_text(encoding="utf-8")):
        with case(path):
            assert any((place / path).exists() for place in PATHS_BEGIN_AT)


@pytest.mark.process
def test_first_program_of_the_readme_prints_its_record(capfd: pytest.CaptureFixture[str]) -> None:
    program = python_of("README.md", containing="klamm.Broker(control=True)")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert capfd.readouterr().out == "[b'1']\n"


@pytest.mark.process
def test_pytest_example_of_readme_passes(pytester: pytest.Pytester) -> None:
    # given
    pytester.makepyfile(python_of("README.md", containing="klamm_broker"))
    # when
    result = pytester.runpytest_subprocess("-q", "-p", "no:randomly")
    # then
    result.assert_outcomes(passed=2)


RECIPES = ("docs/testing.md", "docs/from-testcontainers.md")


@pytest.mark.long
@pytest.mark.process
def test_recipes_for_tests_pass(pytester: pytest.Pytester) -> None:
    # given
    recipes = [snippet.text for snippet in PYTHON if snippet.page in RECIPES]
    pytester.makepyfile(**{f"test_recipe_{number}": text for number, text in enumerate(recipes)})
    # A consumer of kafka-python may lose its assignment on a busy machine, and then waits 45 s for the next one.
    pytester.makeconftest(
        f"import sys\nsys.path.append({str(ROOT)!r})\n"
        "from tests.support.kafka_python import mend_kafka_python\nmend_kafka_python()\n"
    )
    # when
    result = pytester.runpytest_subprocess("-v", "-p", "no:randomly", timeout=240)
    # then
    assert len(recipes) == 11
    result.assert_outcomes(passed=12)


def test_readme_policy_denies_with_its_message() -> None:
    namespace: dict[str, Any] = {}
    exec(python_of("README.md", containing="SmallTopics"), namespace)  # noqa: S102 - our own page
    policy = make_policy(namespace["SmallTopics"])
    assert_denied(policy, a_topic(num_partitions=13), match="asks for 13 partitions; at most 12 are allowed")


def test_policies_page_runs_from_top_to_bottom() -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    first, *others = [snippet.text for snippet in PYTHON if snippet.page == "docs/policies.md"]
    exec(first, namespace)  # noqa: S102 - our own page
    house = namespace["House"]
    computing = []
    for text in others:
        exec(text, namespace)  # noqa: S102 - our own page
        computing += [text] if getattr(namespace["House"], "only_computes", False) else []
        namespace["House"] = house
    assert [text for text in others if "# no files" in text] == computing
    namespace["test_large_topics_are_denied"]()


@pytest.mark.parametrize(("page", "line"), COMMAND_LINES, ids=[f"{page}: {line}"[:100] for page, line in COMMAND_LINES])
def test_commands_and_flags_of_the_pages_exist(page: str, line: str) -> None:
    # given
    _, name, *words = shlex.split(line, comments=True)
    assert name in {command.name for command in COMMANDS}, f"{page} names no command: {name}"
    # when
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    # then
    assert set(flags) <= {*words_of(name), "--help", "--version"}


SESSIONS = (
    "README.md",
    "docs/client-configs.md",
    "docs/client-metrics.md",
    "docs/gateway.md",
    "docs/gateway-operations.md",
    "docs/security.md",
)
"""Pages whose commands run one after the other on a broker."""
SERVERS = [
    (page, line)
    for page, line in COMMAND_LINES
    if re.match("klamm (broker|gateway)", line) and " ready on " not in line
]
OTHERWISE_RUN = re.compile("klamm (broker|gateway|mirror|registrations) ")
"""Commands that serve, and commands on Spark, which tests/spark runs with the same flags."""


@pytest.mark.parametrize(("page", "line"), SERVERS, ids=[f"{page}: {line}"[:100] for page, line in SERVERS])
def test_servers_of_the_pages_accept_their_settings(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for snippet in SNIPPETS:
        if snippet.page == page and snippet.text.startswith("# server.properties"):
            Path("server.properties").write_text(snippet.text)
    _, name, *words = shlex.split(line)
    parse = broker_settings.parse_arguments if name == "broker" else gateway_settings.parse_arguments
    assert parse(words).data_dir, page


@pytest.mark.parametrize(
    "snippet", [snippet for snippet in SNIPPETS if snippet.text.startswith("# server.properties")], ids=where
)
def test_clients_can_log_in_at_the_listeners_of_the_pages(snippet: Snippet, tmp_path: Path) -> None:
    (file := tmp_path / "server.properties").write_text(snippet.text)
    settings = broker_settings.parse_arguments(["--config", str(file)])
    for listener in settings.listeners:
        protocol = SecurityProtocol.SASL_PLAINTEXT if listener.protocol.uses_sasl else SecurityProtocol.PLAINTEXT
        open_endpoint(replace(listener, protocol=protocol), settings.static_configs, lambda *_: None)


@pytest.fixture(scope="module")
def broker_of_the_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start a broker with metrics and ACLs; return what the values of flags in the pages mean for it."""
    metrics, data_dir = f"127.0.0.1:{free_port()}", tmp_path_factory.mktemp("pages") / "data"
    (properties := data_dir.with_name("admin.properties")).touch()
    acls = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    options = ["--metrics", metrics, "--set", acls, "--set", "super.users=User:ANONYMOUS"]
    with KlammBroker(options=options, data_dir=data_dir) as broker:
        yield {
            "--bootstrap-server": broker.bootstrap_servers,
            "--metrics": metrics,
            "--data-dir": str(data_dir),
            "--command-config": str(properties),
            "--to": "2024-01-31T12:00:00Z",
            "--wait": "1",
        }


@pytest.mark.process
@pytest.mark.parametrize("page", SESSIONS)
def test_commands_of_a_page_run_in_order(
    page: str, broker_of_the_pages: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for where, line in COMMAND_LINES if where == page and not OTHERWISE_RUN.match(line)]
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        arguments = [broker_of_the_pages.get(before, word) for before, word in pairwise(["", *words])]
        code = 3 if "--wait" in words else 0  # no client whose configs could be in line is connected
        assert (line, cli.main(arguments), capsys.readouterr().err) == (line, code, ANY)


NOT_RUN_COMMANDS = [
    (page, line)
    for page, line in COMMAND_LINES
    if page not in SESSIONS and not OTHERWISE_RUN.match(line) and "..." not in line
]


@pytest.mark.parametrize(
    ("page", "line"), NOT_RUN_COMMANDS, ids=[f"{page}: {line}"[:100] for page, line in NOT_RUN_COMMANDS]
)
def test_values_of_other_commands_are_accepted_until_a_cluster_is_needed(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KLAMM_BOOTSTRAP_SERVER", "127.0.0.1:1")
    words = shlex.split(line, comments=True)[1:]
    arguments = ["127.0.0.1:1" if before == "--bootstrap-server" else word for before, word in pairwise(["", *words])]
    # when
    code = cli.main([*arguments, "--timeout", "1"])
    # then
    shown = "".join(capsys.readouterr())
    is_reached = "No broker at 127.0.0.1:1 responded" in shown or "cannot be read: No such file" in shown
    assert (code, is_reached) == (1, True), (page, shown)


@pytest.mark.parametrize("snippet", [snippet for snippet in SNIPPETS if snippet.language == "yaml"], ids=where)
def test_yaml_files_of_the_pages_are_valid(snippet: Snippet) -> None:
    if snippet.page == "docs/gitops.md":
        assert parse_documents(snippet.text)
    elif snippet.text.startswith("steps:"):
        action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
        step, *_ = yaml.safe_load(snippet.text)["steps"]
        assert step["with"].keys() <= action["inputs"].keys()
    else:
        assert parse_rules(snippet.text, source=where(snippet))


@pytest.mark.parametrize("snippet", [snippet for snippet in SNIPPETS if snippet.language == "toml"], ids=where)
def test_profiles_of_the_pages_are_valid(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "klamm").mkdir()
    (tmp_path / "klamm" / "config.toml").write_text(snippet.text, encoding="utf-8")
    for name in tomllib.loads(snippet.text)["clusters"]:
        assert find_profile(name).bootstrap_server


GATEWAY_SETTINGS = [
    snippet for snippet in SNIPPETS if snippet.page == "docs/gateway.md" and "listeners=" in snippet.text
]


@pytest.mark.parametrize("snippet", GATEWAY_SETTINGS, ids=where)
def test_settings_of_the_gateways_page_are_understood(snippet: Snippet) -> None:
    configs = parse_properties(snippet.text) | {"upstream.bootstrap.servers": "kafka:9092"}
    settings = gateway_settings.read_settings(configs)
    assert settings.broker_hosts is not None or settings.terminates


RUN = re.compile(r"^clusters *=|^# server.properties|^(\$ )?klamm [a-z]+ ", re.MULTILINE)
NOT_RUN = re.compile(r"^(make |pip install |podman |spark-submit )|^[0-9]{4}-|\+-{5,}|^A->B|^GROUP ")
"""Other commands, which CI or tests/unit/test_containers.py run, pictures, and output of commands."""


def test_every_snippet_is_run_or_excluded() -> None:
    for snippet in SNIPPETS:
        with case(where(snippet)):
            is_run = snippet in PYTHON or snippet.language in {"yaml", "toml"} or snippet in GATEWAY_SETTINGS
            assert is_run or RUN.search(snippet.text) or NOT_RUN.search(snippet.text)


@pytest.mark.parametrize(
    "snippet",
    [snippet for snippet in SNIPPETS if re.search(r"^clusters *=", snippet.text, re.MULTILINE)],
    ids=where,
)
def test_properties_files_of_the_pages_are_understood(snippet: Snippet) -> None:
    assert parse_settings(parse_properties(snippet.text)).flows
