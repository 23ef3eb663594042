"""Install the packages of lock files by uv, in a tenth of pip's time, from where pip would take them.

    .venv/bin/python scripts/install_pinned.py requirements/dev.lock

uv does not read pip's configuration (pip.conf, PIP_INDEX_URL and so on): this reads it and hands uv its equivalents.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# In the order in which pip lets one override the other.
_SECTIONS: Final = ("global", "install", ":env:")
_FLAGS: Final = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
_VARIABLES: Final = {
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}


def pip_settings(listed: str) -> dict[str, list[str]]:
    """Return the values by key of what ``pip config list`` prints, such as ``install.find-links='/wheels'``."""
    sections: dict[str, dict[str, list[str]]] = {section: {} for section in _SECTIONS}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in sections:
            sections[section][key] = str(ast.literal_eval(value)).split()
    return {key: values for section in _SECTIONS for key, values in sections[section].items()}


def uv_equivalents(settings: Mapping[str, list[str]]) -> tuple[list[str], dict[str, str]]:
    """Return the flags and the environment variables that tell uv what pip is set to."""
    flags = [part for key, flag in _FLAGS.items() for value in settings.get(key, ()) for part in (flag, value)]
    if settings.get("no-index", ["0"])[0].lower() in {"1", "true", "yes", "on"}:
        flags.append("--no-index")
    return flags, {variable: settings[key][0] for key, variable in _VARIABLES.items() if settings.get(key)}


def main() -> None:
    """Install."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    flags, variables = uv_equivalents(pip_settings(listed))
    requirements = [part for lock in sys.argv[1:] for part in ("--requirement", lock)]
    # As pip: trust the system's certificates too, and take a version from whichever index has it.
    command = [
        str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", sys.executable,
        "--require-hashes", "--no-deps", "--no-build-isolation", "--system-certs",
        "--index-strategy", "unsafe-best-match", *flags, *requirements,
    ]  # fmt: skip
    if not os.access(os.environ.get("HOME", ""), os.W_OK):
        variables["UV_CACHE_DIR"] = str(Path(".cache/uv").absolute())
    sys.exit(subprocess.run(command, env={**variables, **os.environ}, check=False).returncode)


if __name__ == "__main__":
    main()
