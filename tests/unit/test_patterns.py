"""Regular expressions from users."""

from __future__ import annotations

import re

import pytest

from klamm.cli.connection import RefusedError
from klamm.cli.topics.names import parse_pattern
from klamm.mirror.filters import PatternList
from klamm.patterns import compile_pattern
from klamm.properties import SettingsError

TOO_MUCH = ["a{99999999999}", "(" * 5000 + ")" * 5000]


@pytest.mark.parametrize("expression", [*TOO_MUCH, "(", "a**"])
def test_every_invalid_expression_is_the_same_error(expression: str) -> None:
    with pytest.raises(re.error):
        compile_pattern(expression)


@pytest.mark.parametrize("expression", TOO_MUCH)
def test_an_expression_that_is_too_much_for_python_is_reported(expression: str) -> None:
    with pytest.raises(RefusedError, match="is an invalid regex"):
        parse_pattern(expression)
    with pytest.raises(SettingsError, match="expected a list of regular expressions"):
        PatternList.compile("topics", (expression,))
