"""Command ``klamm completion bash|zsh``: shell completion of commands, flags, topics and groups.

The flags are taken from the ``--help`` of each command when the script is printed. Pressing Tab therefore starts Python
only to complete names of topics and groups, and only if the command line contains a ``--bootstrap-server``.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final

from klamm.cli import COMMANDS
from klamm.cli.arguments import ToolParser
from klamm.cli.output import print_line
from klamm.configs.definitions import topic_configs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.cli import Command

_FLAG: Final = re.compile(r"(?<![\w-])--[a-z][a-z0-9.-]*")
_FLAG_LINE: Final = re.compile(r"\s+-")
_SUBCOMMANDS: Final = {
    "configs": ("plan", "apply", "export", "history", "revert"),
    "rollout": ("start", "status", "list", "pause", "resume", "abort"),
    "policy": ("test",),
    "clients": ("list", "watch", "history", "revert"),
    "registrations": ("report",),
    "mirror": ("cutover", "demote", "pause", "promote", "reset", "restart", "resume", "status", "stop", "verify"),
    "completion": ("bash", "zsh"),
    "schema": ("rules", "resources"),
}

_NAMES_TIMEOUT_MS: Final = 5_000
"""Time after which completion gives up a cluster that does not answer."""

_BASH: Final = r"""\
# klamm completion: source <(klamm completion bash)
_klamm_value() {{ # the value of flag $1; bash divides it at colons
    local at value=""
    for ((at = 1; at < COMP_CWORD - 1; at++)); do
        [[ ${{COMP_WORDS[at]}} == "$1" ]] || continue
        value=${{COMP_WORDS[at + 1]//[\"\'\\]/}}
        while [[ ${{COMP_WORDS[at + 2]}} == : ]]; do
            value=$value:${{COMP_WORDS[at + 3]}}
            ((at += 2))
        done
    done
    [[ $value == "~/"* ]] && value=$HOME/${{value#*/}}
    printf %s "$value"
}}
_klamm_names() {{ # offers what klamm $1 --list prints; any client can create such a name, so none is ever expanded
    local name quotes server config
    local -a flags
    server=$(_klamm_value --bootstrap-server)
    config=$(_klamm_value --command-config)
    [[ -n $server ]] || return
    flags=(--bootstrap-server "$server" --timeout {timeout_ms})
    [[ -n $config ]] && flags+=(--command-config "$config")
    compopt +o filenames 2>/dev/null # where this fails (zsh, bash 3), the shell itself quotes what it inserts
    quotes=$?
    while IFS= read -r name; do
        ((quotes == 0)) && printf -v name %q "$name"
        [[ $name == "$current"* ]] && COMPREPLY+=("$name")
    done <<< "$(klamm "$1" "${{flags[@]}}" --list 2>/dev/null)"
}}
_klamm() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "{commands} --help --version" -- "$current"))
        return
    fi
    case $previous in
        --topic) _klamm_names topics; return ;;
        --group) _klamm_names groups; return ;;
        --entity-type) COMPREPLY=($(compgen -W "{entity_types}" -- "$current")); return ;;
        --config | --add-config | --delete-config) COMPREPLY=($(compgen -W "{configs}" -- "$current")); return ;;
        -o | --output) COMPREPLY=($(compgen -W "human json yaml markdown" -- "$current")); return ;;
        --compression-codec) COMPREPLY=($(compgen -W "none gzip snappy lz4 zstd" -- "$current")); return ;;
        --isolation-level) COMPREPLY=($(compgen -W "read_committed read_uncommitted" -- "$current")); return ;;
        --command-config | --add-config-file | --from-file) COMPREPLY=($(compgen -f -- "$current")); return ;;
    esac
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    [[ $current == -* ]] || COMPREPLY+=($(compgen -f -- "$current"))
}}
complete -o filenames -F _klamm klamm
"""
_ZSH: Final = """\
#compdef klamm
# klamm completion: source <(klamm completion zsh)
autoload -Uz compinit bashcompinit && compinit && bashcompinit
"""


def main(arguments: Sequence[str]) -> int:
    """Print the completion script for a shell and return 0; an unknown shell exits with 2 (SystemExit)."""
    parser = ToolParser(
        prog="klamm completion",
        description="Print a script that makes the shell complete klamm. To load it: source <(klamm completion bash)",
    )
    parser.add_argument("shell", choices=("bash", "zsh"))
    shell = parser.parse_args(list(arguments)).shell
    print_line((_ZSH if shell == "zsh" else "") + bash_completion().rstrip("\n"))
    return 0


def bash_completion() -> str:
    """Return the completion script for bash; zsh can load it too."""
    from klamm.cli.configs.entities import ENTITY_TYPES  # noqa: PLC0415  # --help needs none of it

    return _BASH.format(
        timeout_ms=_NAMES_TIMEOUT_MS,
        commands=" ".join(command.name for command in COMMANDS),
        entity_types=" ".join(ENTITY_TYPES),
        configs=" ".join(name for name, definition in topic_configs().items() if not definition.is_internal),
        cases="\n".join(
            f'        {command.name}) COMPREPLY=($(compgen -W "{" ".join(words_of(command.name))}" -- "$current")) ;;'
            for command in COMMANDS
        ),
    )


def words_of(name: str) -> tuple[str, ...]:
    """Return the words that may follow a command: its sub-commands and every flag of its help."""
    command = next(command for command in COMMANDS if command.name == name)
    if command.module == __name__:
        return _SUBCOMMANDS[name]
    lines = _help(command, ["--help"])
    for subcommand in _SUBCOMMANDS.get(name, ()):
        lines += _help(command, [subcommand, "--help"])
    flags = [flag for line in lines for flag in _FLAG.findall(line.strip().partition("  ")[0])]
    return (*_SUBCOMMANDS.get(name, ()), *dict.fromkeys(flags))


def _help(command: Command, words: Sequence[str]) -> list[str]:
    """Return the lines of a command's help that describe flags."""
    text = io.StringIO()
    with redirect_stdout(text), suppress(SystemExit):  # argparse exits after printing the help
        getattr(import_module(command.module), command.function)(words)
    return [line for line in text.getvalue().splitlines() if _FLAG_LINE.match(line)]
