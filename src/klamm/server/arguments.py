"""Argument parser of klamm's commands."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Final, NoReturn

from klamm.display import one_line
from klamm.properties import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

_PASSWORD: Final = re.compile(r"(password\s*=\s*)\S+")


_UNRECOGNIZED: Final = "unrecognized arguments: "


class CommandParser(argparse.ArgumentParser):
    """Argument parser whose errors are one line: the mistake, and the command that prints the help."""

    def error(self, message: str) -> NoReturn:
        """Write the error to stderr with passwords removed, and exit with 2."""
        if message.startswith(_UNRECOGNIZED):
            flags = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
            message += next(filter(None, (did_you_mean(flag, self._option_string_actions) for flag in flags)), "")
        message = one_line(_PASSWORD.sub(r"\1(hidden)", message))
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def whole_number(highest: int, *, lowest: int | None = None) -> Callable[[str], int]:
    """Return a converter for flag values that accepts only whole numbers within the given range."""
    least = -highest - 1 if lowest is None else lowest

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= highest:
            allowed = f"up to {highest}" if lowest is None else f"from {lowest} to {highest}"
            raise argparse.ArgumentTypeError(f"{text}: expected a whole number {allowed}")
        return number

    return read
