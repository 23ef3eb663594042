from __future__ import annotations

import pytest

from klamm.properties import SettingsError
from klamm.security.principals import parse_super_users


def test_super_users_are_separated_by_semicolons() -> None:
    assert parse_super_users("User:CN=a,OU=b; User:admin;") == {"User:CN=a,OU=b", "User:admin"}
    assert parse_super_users(None) == frozenset()


def test_super_user_without_type_is_rejected() -> None:
    with pytest.raises(SettingsError, match="admin"):
        parse_super_users("admin")
