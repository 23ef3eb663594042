"""scripts/setup.sh on machines that lack things. The real installation is what ``make test`` itself went through."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ("sh", "awk", "cat", "cksum", "dirname", "find", "id", "rm", "printf", "mkdir", "chmod", "grep")

PYTHON_311 = """#!/bin/sh
case "$*" in
    *version_info*"<"*) exit 0 ;;
    --version) echo Python 3.11.9 ;;
    *"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *"import ensurepip"*) exit ${HAS_VENV:-0} ;;
    *"-m pip --version"*) exit ${HAS_PIP:-0} ;;
    *"-m pip"*" config list") printf '%s\n' "${PIP_SETTINGS:-}" ;;
    *"-m pip"*)
        echo "pip $*" >>"$PIP_LOG"
        cd "$(dirname "$0")"
        : >klamm
        printf '#!/bin/sh\necho "uv $*" >>"$PIP_LOG"\nexit ${UV_EXIT:-0}\n' >uv
        chmod +x klamm uv ;;
    *"-m virtualenv"*) exit 1 ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A clone that holds only what setting up reads."""
    root = tmp_path / "clone"
    for name in ("pyproject.toml", "requirements", "scripts"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        root.mkdir(exist_ok=True)
        copy(ROOT / name, root / name)
    return root


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A PATH with the tools that every system has, and no Python."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for tool in (*TOOLS, "cp"):
        program = shutil.which(tool)
        assert program is not None
        (directory / tool).symlink_to(program)
    (directory / "sudo").write_text("#!/bin/sh\nexit 1\n")
    (directory / "sudo").chmod(0o755)
    return directory


def python(path: Path, text: str = PYTHON_311, name: str = "python3") -> None:
    (path / name).write_text(text)
    (path / name).chmod(0o755)


def set_up(project: Path, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": str(path), "HOME": str(project), "PIP_LOG": str(project / "pip.log"), **environment}
    return subprocess.run(
        ["sh", project / "scripts" / "setup.sh"], env=variables, capture_output=True, text=True, check=False
    )


def pip_calls(project: Path) -> list[str]:
    log = project / "pip.log"
    return log.read_text().splitlines() if log.exists() else []


def test_setup_installs_pinned_packages_and_the_project(project: Path, path: Path) -> None:
    # given
    python(path)
    # when
    result = set_up(project, path)
    # then
    assert result.returncode == 0, result.stderr
    installed = "\n".join(pip_calls(project))
    assert re.search(r" install .*--require-hashes .*--requirement requirements/build.lock", installed)
    assert re.search(
        r"^uv pip install .*--require-hashes .*--requirement requirements/dev.lock", installed, re.MULTILINE
    )
    assert pip_calls(project)[-1].endswith("--no-deps --no-build-isolation --editable .")


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"UV_EXIT": "2"}, id="uv fails"),
        pytest.param({"PIP_SETTINGS": "global.index-url='https://packages.example/simple'"}, id="pip has an index"),
    ],
)
def test_pip_installs_what_uv_cannot(project: Path, path: Path, environment: dict[str, str]) -> None:
    # given
    python(path)
    # when
    result = set_up(project, path, **environment)
    # then
    assert result.returncode == 0, result.stderr
    calls = pip_calls(project)
    assert any(re.search(r"^pip .*--require-hashes .*--requirement requirements/dev.lock", call) for call in calls)
    assert any(call.startswith("uv ") for call in calls) == ("UV_EXIT" in environment)


def test_second_setup_changes_nothing(project: Path, path: Path) -> None:
    # given
    python(path)
    set_up(project, path)
    before = pip_calls(project)
    # when
    result = set_up(project, path)
    # then
    assert (result.returncode, result.stderr, pip_calls(project)) == (0, "", before)


def test_changed_lock_file_is_installed(project: Path, path: Path) -> None:
    # given
    python(path)
    set_up(project, path)
    before = pip_calls(project)
    with (project / "requirements" / "dev.lock").open("a") as lock:
        lock.write("# changed\n")
    # when
    set_up(project, path)
    # then
    assert len(pip_calls(project)) == 2 * len(before)


def test_moved_clone_is_set_up_again(project: Path, path: Path, tmp_path: Path) -> None:
    # given
    python(path)
    set_up(project, path)
    moved = project.rename(tmp_path / "elsewhere")
    # when
    result = set_up(moved, path)
    # then
    assert "making .venv" in result.stderr


def test_newer_python_is_found_by_its_versioned_name(project: Path, path: Path) -> None:
    # given
    python(path, "#!/bin/sh\nexit 1\n")
    python(path, name="python3.12")
    # when
    result = set_up(project, path)
    # then
    assert result.returncode == 0, result.stderr


def test_missing_python_is_reported_with_its_install_command(project: Path, path: Path) -> None:
    result = set_up(project, path)
    assert result.returncode == 1
    assert "no Python 3.11 or newer" in result.stderr
    assert "apt-get install python3" in result.stderr


def test_missing_venv_is_reported_with_its_install_command(project: Path, path: Path) -> None:
    # given
    python(path)
    # when
    result = set_up(project, path, HAS_VENV="1", HAS_PIP="1")
    # then
    assert result.returncode == 1
    assert "sudo apt-get install python3-venv" in result.stderr
    assert not (project / ".venv").exists()


def test_missing_venv_is_installed_by_the_package_manager_if_permitted(project: Path, path: Path) -> None:
    # given
    python(path, PYTHON_311.replace("exit ${HAS_VENV:-0}", '[ -e "$PIP_LOG.venv" ]'))
    (path / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (path / "env").symlink_to("/usr/bin/env")
    (path / "true").symlink_to(shutil.which("true") or "/bin/true")
    (path / "apt-get").write_text('#!/bin/sh\ncase "$*" in *install*) : >"$PIP_LOG.venv" ;; esac\n')
    (path / "apt-get").chmod(0o755)
    # when
    result = set_up(project, path, HAS_PIP="1")
    # then
    assert "installing python" in result.stderr
    assert (project / ".venv").exists()
