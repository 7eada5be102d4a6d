"""The rules file: permissions, a line each (docs/guides/security.md).

listener NAME|*                           what follows is about clients of this listener only
user NAME | user * | anonymous            the clients that the following rules are about
client PATTERN | everyone
allow|deny  publish|subscribe|receive|all  FILTER
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from mqttree.broker.auth.authorization import ACTIONS, Rule, Rules, Subject
from mqttree.broker.auth.limits import AuthLimits
from mqttree.broker.config.yaml_file import ConfigError, did_you_mean, read_text
from mqttree.broker.wire.constants import MAX_TOPIC_LEVELS
from mqttree.routing.topic_filter import valid_topic_filter

HEADS = ("listener", "user", "anonymous", "client", "everyone")


def read_rules(
    path: str,
    canonical: Callable[[str], str] = str,
    listeners: Container[str] | None = None,
    *,
    limits: AuthLimits,
) -> Rules:
    """Return the rules in the file at `path`. `canonical`, `listeners` and `limits`: as for
    `parse_rules`. Raises ConfigError with one line that names the file and the line."""
    return parse_rules(path, read_text(path), canonical, listeners, limits=limits)


def parse_rules(
    path: str,
    text: str,
    canonical: Callable[[str], str] = str,
    listeners: Container[str] | None = None,
    *,
    limits: AuthLimits,
) -> Rules:
    """Return the rules in `text`, the content of a rules file.

    `path`: the file's name, for errors. `canonical`: returns the spelling in which a user name is
    compared, or raises ValueError for a name that cannot be. `listeners`: names of the listeners
    that exist; None: any name is taken. `limits`: of the rules.

    Raises ConfigError with one line that names the file and the line.
    """
    found: list[tuple[Subject, Rule]] = []
    subject = Subject()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            word, _, rest = line.replace("\t", " ").partition(" ")
            rest = rest.strip()
            if (
                word == "listener"
                and listeners is not None
                and rest not in ("", "*")
                and rest not in listeners
            ):
                raise ValueError(f"there is no listener {_shown(rest)}")
            if word in HEADS:
                subject = _subject(word, canonical(rest) if word == "user" else rest, subject)
            elif word in ("allow", "deny"):
                if len(found) >= limits.max_rules:
                    raise ValueError(f"more than {limits.max_rules} rules")
                found.append(
                    (
                        subject,
                        _rule(len(found), number, word == "allow", rest, MAX_TOPIC_LEVELS),
                    )
                )
            else:
                raise ValueError(_none_of(word, ("allow", "deny", *HEADS)))
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: {error}") from None
    return Rules(found)


def _subject(word: str, name: str, before: Subject) -> Subject:
    if word in ("anonymous", "everyone"):
        if name:
            raise ValueError(f"{_shown(name)} behind '{word}': nothing may stand there")
        return Subject(word, "", before.listener)
    if not name:
        what = "a pattern" if word == "client" else "a name"
        raise ValueError(f"'{word}' needs {what}")
    # A listener line starts again: subjects before it were of another listener.
    if word == "listener":
        return Subject(listener=None if name == "*" else name)
    if word == "client":
        return Subject("client", name, before.listener)
    return (
        Subject("users", "", before.listener)
        if name == "*"
        else Subject("user", name, before.listener)
    )


def _rule(order: int, line: int, allow: bool, rest: str, levels: int) -> Rule:
    action, _, topic_filter = rest.partition(" ")
    topic_filter = topic_filter.strip()
    if not action:
        raise ValueError(f"one of {', '.join(ACTIONS)} is missing")
    if action not in ACTIONS:
        raise ValueError(_none_of(action, ACTIONS))
    if not topic_filter:
        raise ValueError("the topic filter is missing")
    if topic_filter.startswith("$share/"):
        raise ValueError(
            "a rule about a shared subscription is one about the filter in it: "
            "leave $share/<group>/ out"
        )
    rule = Rule(order, line, allow, ACTIONS[action], topic_filter)
    if not valid_topic_filter(topic_filter) or not valid_topic_filter(rule.general):
        raise ValueError(f"{_shown(topic_filter)} is not a topic filter")
    if topic_filter.count("/") >= levels:
        raise ValueError(f"the filter has more than {levels} levels")
    return rule


def _none_of(word: str, known: Iterable[str]) -> str:
    words = list(known)
    return f"{_shown(word)} is none of {', '.join(words)}{did_you_mean(word[:60], words)}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")
