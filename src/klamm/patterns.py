"""Regular expressions from users: compiled by Python's ``re``, from Java's syntax or its own, or matched by RE2.

Python's ``re`` backtracks and holds the interpreter lock meanwhile; ``(a+)+b`` takes it practically forever. RE2
follows all alternatives at once, in linear time. It supports neither look-around nor back-references.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


class PatternError(ValueError):
    """RE2 does not accept the pattern.

    Args:
        pattern: Rejected pattern.
        reason: Reason that RE2 gives.
    """

    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(f"{pattern!r}: {reason}")
        self.reason = reason


def compile_pattern(expression: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a regular expression with ``re``.

    Raises:
        re.error: The expression is invalid, has a too large repetition such as ``a{99999999999}``, or is nested too
            deeply. For the latter two, ``re.compile`` raises errors of other types.
    """
    try:
        return re.compile(expression, flags)
    except OverflowError as error:
        raise re.error(str(error)) from error
    except RecursionError as error:
        raise re.error("it is nested too deeply") from error


_MAX_CLIENT_COST: Final = 100_000
_CLIENT_MEMORY_BYTES: Final = 3 * 1024 * 1024
"""Memory for a pattern of a client. The pattern may still list a thousand topics."""
_UNICODE_CLASS_COST: Final = 2000
_OPTIONAL_COST: Final = 50
_SET_COST: Final = 20
"""Cost of a set of characters, of an alternative, and of ``*`` or ``+``."""
_PART: Final = re.compile(
    r"(?P<open>\((?:\?[a-zA-Z-]*(?:<\w*>|:)?)?)"
    r"|(?P<close>\))"
    r"|(?P<repetition>[?*+]|\{(?P<least>\d{1,4})(?:,(?P<most>\d{0,4}))?\})\??"
    r"|[\w-]+(?![?*+{])"
    r"|\\[pPx](?:\{\^?\w{1,40}\}|\w)"
    # Without its end, a quotation or a set extends to the end of the pattern: RE2 rejects it.
    r"|\\Q.*?(?:\\E|\Z)|\[\^?\]?(?:\\.|\[:\^?\w++:\]|[^\]\\])*+(?:\]|\Z)|\\?.",
    re.DOTALL,
)


def full_matcher(pattern: str, *, is_from_client: bool = False) -> Callable[[str], bool]:
    """Return a function that returns whether a whole text matches, within microseconds.

    RE2 takes up to seconds to compile a pattern of 30 KB, and holds the interpreter lock meanwhile. So a pattern that a
    client chooses may have a limited number of repetitions, of optional parts and of Unicode classes. A part in a
    repetition counts as often as it may occur.

    Args:
        pattern: Pattern in the syntax of RE2.
        is_from_client: Whether to reject a pattern that takes more than some 100 ms to compile, or to match a name.

    Raises:
        PatternError: RE2 does not accept the pattern, or it is too complex.
    """
    import re2  # noqa: PLC0415 - only who has a pattern waits for it

    options = re2.Options()
    options.log_errors = False
    if is_from_client:
        if _is_complex(pattern):
            raise PatternError(pattern, "it is too complex")
        options.max_mem = _CLIENT_MEMORY_BYTES
    try:
        # A set only answers yes or no. A single pattern would also locate its groups, at ten times the cost.
        patterns = re2.Set.FullMatchSet(options)
        patterns.Add(pattern)
        patterns.Compile()
    except re2.error as error:
        raise PatternError(pattern, str(error)) from error
    return lambda text: bool(patterns.Match(text))


def _is_complex(pattern: str) -> bool:
    """Return whether the approximate cost of a pattern, in units of a plain character, exceeds that for clients."""
    outer: list[int] = []
    total = last = 0
    for part in _PART.finditer(pattern):
        if part["open"]:
            outer.append(total)
            total = last = 0
        elif part["close"]:
            total, last = (outer.pop() if outer else 0) + total, total
        elif part["repetition"]:
            repeated = _repeated(last, part)
            total, last = total - last + repeated, repeated
        else:
            last = _cost(part[0])
            total += last
        if total > _MAX_CLIENT_COST:
            return True
    return sum(outer, total) > _MAX_CLIENT_COST


def _repeated(cost: int, repetition: re.Match[str]) -> int:
    if repetition["least"] is None:
        return cost + (_OPTIONAL_COST if repetition["repetition"] == "?" else _SET_COST)
    least = int(repetition["least"])
    most = least if repetition["most"] is None else int(repetition["most"] or least + 1)
    return cost * most + _OPTIONAL_COST * max(0, most - least)


def _cost(plain: str) -> int:
    """Return the cost of characters, an escape sequence, a set or a quotation."""
    is_set = plain[0] in "[.|" or (plain[0] == "\\" and plain[1:2].isalpha())
    unicode_classes = plain.count(r"\p") + plain.count(r"\P")
    return len(plain) + _SET_COST * is_set + _UNICODE_CLASS_COST * unicode_classes


_LINE_ENDS: Final = r"\n\r\x85\u2028\u2029"
_AT_END: Final = rf"(?=(?:\r\n|[{_LINE_ENDS}])?\Z)"
_JAVA_SETS: Final = {
    "d": r"\d", "D": r"\D", "w": r"\w", "W": r"\W", "s": r"\s", "S": r"\S",
    "h": r" \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000", "v": rf"{_LINE_ENDS}\x0b\f",
    "p{Lower}": "a-z", "p{Upper}": "A-Z", "p{Alpha}": "a-zA-Z", "p{Digit}": "0-9", "p{Alnum}": "a-zA-Z0-9",
    "p{XDigit}": "0-9a-fA-F", "p{ASCII}": r"\x00-\x7f", "p{Cntrl}": r"\x00-\x1f\x7f", "p{Graph}": "!-~",
    "p{Print}": " -~", "p{Punct}": r"!-/:-@\[-`{-~", "p{Blank}": r" \t", "p{Space}": r"\s",
}  # fmt: skip
"""Contents of Python's sets for Java's classes of characters. Without flags, Java's are those of ASCII."""
_JAVA_CHARACTERS: Final = {"a": "\a", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_JAVA_CODE: Final = re.compile(
    r"x\{(?P<code>[0-9a-fA-F]{1,6})\}|x(?P<hex>[0-9a-fA-F]{2})|u(?P<utf>[0-9a-fA-F]{4})"
    r"|0(?P<octal>[0-3]?[0-7]{1,2})|c(?P<control>[@-_])"
)
_JAVA_ESCAPED: Final = re.compile(r"\w\{\w*\}|[pP]?.", re.DOTALL)
_JAVA_GROUP: Final = re.compile(
    r"\((?!\?)|\(\?(?:[:=!>]|<[=!]|<(?P<name>[a-zA-Z][a-zA-Z0-9]*)>|(?P<flags>-?i)(?P<end>[:)]))"
)
_JAVA_REPETITION: Final = re.compile(r"\{\d+(?:,\d*)?\}")


def java_pattern(expression: str) -> re.Pattern[str]:
    """Compile a regular expression in Java's syntax, for ``fullmatch``.

    The pattern matches exactly what ``java.util.regex.Pattern`` matches. Constructs with another meaning in Python are
    translated or rejected.

    Raises:
        re.error: The expression is invalid, or has a construct that is not supported.
    """
    try:
        translated = _JavaTranslation(expression).translated()
    except RecursionError as error:
        raise re.error("it is nested too deeply") from error
    return compile_pattern(translated, re.ASCII)


class _JavaTranslation:
    """Recursive-descent parser of one expression in Java's syntax. Produces Python's syntax."""

    def __init__(self, expression: str) -> None:
        self._text = expression
        self._at = 0

    def translated(self) -> str:
        out = self._alternatives()
        if self._at < len(self._text):
            raise self._error("unbalanced parenthesis")
        return out

    def _alternatives(self) -> str:
        """Translate up to the end of the enclosing group."""
        out: list[str] = []
        is_start = True
        while self._at < len(self._text) and self._text[self._at] != ")":
            group = _JAVA_GROUP.match(self._text, self._at)
            if group is not None and group["end"] == ")":
                if not is_start:
                    raise self._error(f"{group[0]} is supported only at the start of an alternative")
                self._at = group.end()
                out.append(f"(?{group['flags']}:{self._alternatives()})")  # counts up to the end of the group
                break
            is_start = self._text[self._at] == "|"
            out.append(self._group(group) if group is not None else self._atom())
        return "".join(out)

    def _group(self, opening: re.Match[str]) -> str:
        self._at = opening.end()
        content = self._alternatives()
        if not self._text.startswith(")", self._at):
            raise self._error("missing ), unterminated group")
        self._at += 1
        begin = f"(?P<{opening['name']}>" if opening["name"] else opening[0]
        return f"{begin}{content})"

    def _atom(self) -> str:
        character = self._text[self._at]
        match character:
            case "(":
                raise self._error(f"{self._text[self._at : self._at + 4]} is not supported")
            case "[":
                return self._set()
            case "\\":
                return self._escape()
            case "{":
                repetition = _JAVA_REPETITION.match(self._text, self._at)
                if repetition is None:
                    raise self._error("{ is not a repetition: write \\{ for a literal brace")
                self._at = repetition.end()
                return repetition[0]
        self._at += 1
        return {".": f"[^{_LINE_ENDS}]", "$": _AT_END}.get(character, character)

    def _escape(self) -> str:
        """Translate an escape outside a set."""
        rest = self._text[self._at + 1 :]
        for name, python in (("A", r"\A"), ("z", r"\Z"), ("Z", _AT_END), ("b", r"\b"), ("B", r"\B")):
            if rest.startswith(name):
                self._at += 2
                return python
        if (reference := re.match(r"k<([a-zA-Z][a-zA-Z0-9]*)>|([1-9])(?!\d)", rest)) is not None:
            self._at += 1 + reference.end()
            return f"(?P={reference[1]})" if reference[1] else f"(?:\\{reference[2]})"
        if (quoted := self._quoted()) is not None:
            return re.escape(quoted)
        if (content := self._set_escape()) is not None:
            return content if content in (r"\D", r"\W", r"\S") else f"[{content}]"
        if (negated := re.match(r"P(\{\w+\})|([HV])", rest)) is not None:
            content = _JAVA_SETS.get(f"p{negated[1]}" if negated[1] else negated[2].lower())
            if content is not None:
                self._at += 1 + negated.end()
                return f"[^{content}]"
        return re.escape(self._character())

    def _quoted(self) -> str | None:
        r"""Return the text of ``\Q...\E``. None: there is none here."""
        if not self._text.startswith("\\Q", self._at):
            return None
        quoted, _, _ = self._text[self._at + 2 :].partition("\\E")
        self._at += len(quoted) + 4
        return quoted

    def _set_escape(self) -> str | None:
        """Return the contents of a set for an escape that stands for many characters. None: there is none here."""
        name = re.compile(r"\\(p\{\w+\}|[dDwWsShv])").match(self._text, self._at)
        if name is None or name[1] not in _JAVA_SETS:
            return None
        self._at = name.end()
        return _JAVA_SETS[name[1]]

    def _character(self) -> str:
        """Return the character that comes next, or that the next escape stands for."""
        character = self._text[self._at : self._at + 1]
        self._at += 1
        if character != "\\":
            return character
        escaped = self._text[self._at : self._at + 1]
        if (code := _JAVA_CODE.match(self._text, self._at)) is not None and int(
            code["code"] or "0", 16
        ) <= sys.maxunicode:
            self._at = code.end()
            if code["control"]:
                return chr(ord(code["control"]) ^ 64)
            return chr(int(code["octal"], 8) if code["octal"] else int(code["code"] or code["hex"] or code["utf"], 16))
        if (escaped.isascii() and escaped.isalnum() and escaped not in _JAVA_CHARACTERS) or not escaped:
            construct = _JAVA_ESCAPED.match(self._text, self._at)
            raise self._error(f"\\{construct[0] if construct else ''} is not supported")
        self._at += 1
        return _JAVA_CHARACTERS.get(escaped, escaped)

    def _set(self) -> str:
        begin = "[^" if self._text.startswith("[^", self._at) else "["
        self._at += len(begin)
        out: list[str] = []
        while not self._text.startswith("]", self._at) or not out:
            if self._at >= len(self._text):
                raise self._error("unterminated character class")
            if self._text[self._at] == "[" or self._text.startswith("&&", self._at):
                raise self._error("a class within a class, or &&, is not supported: escape a literal [ or &")
            out.append(self._set_item())
        self._at += 1
        return f"{begin}{''.join(out)}]"

    def _set_item(self) -> str:
        if (quoted := self._quoted()) is not None:
            return "".join(map(_in_set, quoted))
        if (content := self._set_escape()) is not None:
            return content
        first = self._character()
        following = self._text[self._at : self._at + 2]
        if not following.startswith("-") or following[1:] in ("", "]", "["):
            return _in_set(first)
        self._at += 1
        last = self._character()
        if last < first:
            raise self._error(f"bad character range {first}-{last}")
        return f"{_in_set(first)}-{_in_set(last)}"

    def _error(self, reason: str) -> re.error:
        return re.error(reason, self._text, min(self._at, len(self._text)))


def _in_set(character: str) -> str:
    return f"\\{character}" if character in r"\]^[-&~|#" else character
