"""Argument parser of klamm's commands."""

from __future__ import annotations

import argparse
import re
from typing import Final, NoReturn

_PASSWORD: Final = re.compile(r"(password\s*=\s*)\S+")


class CommandParser(argparse.ArgumentParser):
    """Argument parser whose errors are one line: the mistake, and the command that prints the help."""

    def error(self, message: str) -> NoReturn:
        """Write the error to stderr with passwords removed, and exit with 2."""
        message = _PASSWORD.sub(r"\1(hidden)", message)
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")
