"""The rules file and the configuration's `access:` section: what they may say, and one line about
what they may not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.auth.acl_file import parse_rules, read_rules
from mqttree.broker.auth.scram import NAME
from mqttree.broker.auth.users_file import entries
from mqttree.broker.config.options import AccessSettings, read_access
from mqttree.broker.config.yaml_file import ConfigError, ConfigFile
from mqttree.broker.io.auth_service import AuthService
from mqttree.broker.limits import Limits

FIRST_WORDS = "allow, deny, listener, user, anonymous, client, everyone"
WRONG = [
    ("allow", "1: one of publish, subscribe, receive, all is missing"),
    ("allow publish", "1: the topic filter is missing"),
    ("\n\nallow write a", "3: 'write' is none of publish, subscribe, receive, all"),
    ("# x\n allow all a/#/b", "2: 'a/#/b' is not a topic filter"),
    ("allow all a+", "1: 'a+' is not a topic filter"),
    ("allow all a/+%c", "1: 'a/+%c' is not a topic filter"),
    (
        "allow all $share/g/a",
        (
            "1: a rule about a shared subscription is one about the filter in it: "
            "leave $share/<group>/ out"
        ),
    ),
    ("allow all " + "/" * 201, "1: the filter has more than 201 levels"),
    ("topic read a", f"1: 'topic' is none of {FIRST_WORDS}"),
    ("Allow all a", f"1: 'Allow' is none of {FIRST_WORDS}; did you mean 'allow'?"),
    ("usr anna", f"1: 'usr' is none of {FIRST_WORDS}; did you mean 'user'?"),
    (
        "allow pubish a",
        "1: 'pubish' is none of publish, subscribe, receive, all; did you mean 'publish'?",
    ),
    ("user", "1: 'user' needs a name"),
    ("client", "1: 'client' needs a pattern"),
    ("listener", "1: 'listener' needs a name"),
    ("anonymous x", "1: 'x' behind 'anonymous': nothing may stand there"),
    ("everyone x", "1: 'x' behind 'everyone': nothing may stand there"),
    ("listener tsl", "1: there is no listener 'tsl'"),
]


@pytest.mark.parametrize(("text", "line"), WRONG)
def test_a_wrong_rule_is_named_with_its_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rules("rules", text, listeners={"tls"}, limits=Limits())
    assert str(caught.value) == f"rules:{line}"


def test_the_number_of_rules_is_bounded() -> None:
    with pytest.raises(ConfigError, match=r"^rules:3: more than 2 rules$"):
        parse_rules("rules", "allow all a\nallow all b\nallow all c", limits=Limits(max_rules=2))


def test_spaces_tabs_comments_and_line_ends_are_forgiven() -> None:
    text = (
        "\ufeff# by whom\r\n\r\n\tuser\tanna \r\n  allow\tall   a b/#  \r\n"
        "listener tls\r\nlistener *\r\n"
    )
    rules = parse_rules("rules", text.lstrip("\ufeff"), listeners={"tls"}, limits=Limits())
    assert rules.size == 1
    assert rules.about("anna", "c", "tls")
    assert not rules.about("bert", "c", "tls")


def test_names_are_compared_in_one_spelling() -> None:
    rules = parse_rules("rules", "user ANNA\nallow all #", str.lower, limits=Limits())
    assert rules.about("anna", "c", "l")


def test_a_rules_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_rules(str(tmp_path / "rules"), limits=Limits())
    (tmp_path / "rules").write_bytes(b"allow all a\nallow all \xff\n")
    with pytest.raises(ConfigError, match="rules:2: not UTF-8"):
        read_rules(str(tmp_path / "rules"), limits=Limits())


@given(st.text(st.sampled_from("allowdenyuserclient *\n\t%uc+#/$ share"), max_size=60))
def test_any_text_is_rules_or_one_line_of_error(text: str) -> None:
    try:
        parse_rules("rules", text, limits=Limits())
    except ConfigError as error:
        assert "\n" not in str(error)
        assert str(error).startswith("rules:")


def section(text: str) -> AccessSettings:
    file = ConfigFile.parse("c.yaml", text)
    return read_access(file)


def test_the_access_section_names_files_and_who_is_anonymous() -> None:
    assert section("") == read_access(None) == AccessSettings()
    assert section("access:\n  users: u\n  rules: r\n  anonymous: yes") == AccessSettings(
        Path("u"), Path("r"), True
    )
    assert section("access: {anonymous: {default: no}}") == AccessSettings(
        anonymous={"default": False}
    )


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("user: x", "unknown key; did you mean 'users'?"),
        ("users: 7", "expected a text, not the number 7; put it in quotes"),
        ("rules: ''", "'' is not a file name"),
        (
            "anonymous: maybe",
            "expected yes or no, or listeners with yes or no each, not the text 'maybe'",
        ),
        ("anonymous: {tls: 1}", "listener 'tls': expected yes or no, not the number 1"),
    ],
)
def test_a_wrong_access_section_is_answered_by_one_line(entry: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=r"^c.yaml:1: access: expected keys and values, not"):
        section("access: x")
    with pytest.raises(ConfigError) as caught:
        section(f"access:\n  {entry}")
    assert str(caught.value) == f"c.yaml:2: access.{entry.partition(':')[0]}: {reason}"


async def test_verified_passwords_are_remembered_until_the_next_reload(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(
        "\n".join(entries("anna", "right", os.urandom) + entries("bert", "right", os.urandom))
    )
    settings = AccessSettings(users=path)
    service = AuthService(settings, (), Limits(passwords_known=1))
    assert list(service.methods(())) == [NAME]
    assert not service.methods([NAME])
    assert not await service.verify("anna", b"wrong")
    for name in ("anna", "anna", "bert", "anna"):
        assert await service.verify(name, b"right")
    assert not await service.verify("annar", b"ight")
    path.write_text("\n".join(entries("anna", "other", os.urandom)))
    service.take(*service.read(settings))
    assert not await service.verify("anna", b"right")
    assert await service.verify("anna", b"other")
    assert not await service.verify("bert", b"right")
    assert service.access is not None
    assert service.describe() == ["users 1"]
    service.take(*service.read(AccessSettings()))
    assert service.access is None
    assert not await service.verify("anna", b"other")
    assert service.describe() == []
    service.close()


def test_rules_apply_to_users_however_they_spell_their_names(tmp_path: Path) -> None:
    """The users' file takes full-width letters for the plain ones: typing them evades no rule."""
    users, rules = tmp_path / "users", tmp_path / "rules"
    users.write_text("\n".join(entries("anna", "right", os.urandom)))
    rules.write_text("user anna\ndeny all secret\nuser *\nallow all #")
    access = AuthService(AccessSettings(users, rules), (), Limits()).access
    assert access is not None
    for name in ("anna", "\uff41\uff4e\uff4e\uff41"):
        permissions = access.permissions(name, "c", "l", verified=False, certified=False)
        assert permissions is not None
        assert permissions.may_publish("open")
        assert not permissions.may_publish("secret")
