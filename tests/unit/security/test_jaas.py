from __future__ import annotations

import pytest

from klamm.properties import SettingsError
from klamm.security.sasl import PLAIN_MODULE, parse_jaas


def test_users_of_a_plain_login_module_are_read() -> None:
    entry = parse_jaas(
        f'{PLAIN_MODULE} required username="broker" password="b" user_alice="a;=\\"x" user_bob=\'plain\' ;',
        setting="sasl.jaas.config",
    )
    assert entry.module == PLAIN_MODULE
    assert entry.users == {"alice": 'a;="x', "bob": "plain"}


@pytest.mark.parametrize(
    "text",
    ["", "Module required", f'{PLAIN_MODULE} user_a="hidden-pw";', f'{PLAIN_MODULE} required user_a="hidden-pw',
     f'{PLAIN_MODULE} required user_a "hidden-pw";', f'{PLAIN_MODULE} required user_a="hidden-pw"'],
)  # fmt: skip
def test_invalid_jaas_entry_is_rejected_without_its_password(text: str) -> None:
    with pytest.raises(SettingsError, match=r"listener\.name\.x") as rejected:
        parse_jaas(text, setting="listener.name.x.plain.sasl.jaas.config")
    assert "hidden-pw" not in str(rejected.value)


def test_jaas_entry_repr_hides_passwords() -> None:
    assert "hidden-pw" not in repr(parse_jaas(f'{PLAIN_MODULE} required user_a="hidden-pw";', setting="x"))
