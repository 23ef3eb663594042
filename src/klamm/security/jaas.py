"""Parser for ``sasl.jaas.config``: one login module with its options.

``org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret" user_bob="other";``
Error messages never repeat the text, because it holds passwords.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_CONTROL_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_USER_PREFIX: Final = "user_"
_TOKEN: Final = re.compile(r"""\s*(?:(?P<punct>[=;])|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'"""
                           r"""|(?P<word>[^\s=;"']+))""", re.DOTALL)  # fmt: skip
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class JaasEntry:
    """A login module and its options."""

    module: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def users(self) -> dict[str, str]:
        """Return passwords by user name, from the options ``user_NAME``."""
        return {
            name.removeprefix(_USER_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(_USER_PREFIX) and name != _USER_PREFIX
        }


def parse_jaas(text: str, *, setting: str) -> JaasEntry:
    """Parse one entry.

    Args:
        text: Value of the setting.
        setting: Name of the setting, for messages.

    Raises:
        SettingsError: The text is not a JAAS entry.
    """
    tokens = _tokens(text, setting)
    minimum = 3
    if len(tokens) < minimum or tokens[-1] != (";", True):
        raise SettingsError(f'{setting}: expected MODULE required name="value" ... ending in a semicolon')
    (module, module_is_punct), (flag, flag_is_punct) = tokens[:2]
    if module_is_punct or flag_is_punct or flag.lower() not in _CONTROL_FLAGS:
        raise SettingsError(f"{setting}: expected a login module and one of {', '.join(sorted(_CONTROL_FLAGS))}")
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    for position in range(0, len(rest), 3):
        group = rest[position : position + 3]
        if [is_punct for _, is_punct in group] != [False, True, False] or group[1][0] != "=":
            raise SettingsError(f'{setting}: option {position // 3 + 1} is not of the form name="value"')
        options[group[0][0]] = group[2][0]
    return JaasEntry(module=module, options=options)


def _tokens(text: str, setting: str) -> list[tuple[str, bool]]:
    """Return each token with whether it is punctuation."""
    tokens: list[tuple[str, bool]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise SettingsError(f"{setting}: a quoted value does not end")
        position = match.end()
        if (punct := match["punct"]) is not None:
            tokens.append((punct, True))
        elif (word := match["word"]) is not None:
            tokens.append((word, False))
        else:
            quoted = match["double"] if match["double"] is not None else match["single"]
            tokens.append((_ESCAPE.sub(r"\1", quoted), False))
    return tokens
