"""Argument parser of klamm's commands."""

from __future__ import annotations

import argparse
import re
from typing import Final, NoReturn

from klamm.properties import did_you_mean

_PASSWORD: Final = re.compile(r"(password\s*=\s*)\S+")


_UNRECOGNIZED: Final = "unrecognized arguments: "


class CommandParser(argparse.ArgumentParser):
    """Argument parser whose errors are one line: the mistake, and the command that prints the help."""

    def error(self, message: str) -> NoReturn:
        """Write the error to stderr with passwords removed, and exit with 2."""
        if message.startswith(_UNRECOGNIZED):
            flags = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
            message += next(filter(None, (did_you_mean(flag, self._option_string_actions) for flag in flags)), "")
        message = _PASSWORD.sub(r"\1(hidden)", message)
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")
