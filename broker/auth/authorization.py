"""Authorization: rules in the order of their file, evaluated once for each client and topic
(docs/guides/security.md).

Nothing here waits or looks anything up elsewhere. A rule is found by its topic in a trie, so a
thousand rules cost what one does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Protocol, TypeVar

from mqttree.broker.base.record import Record
from mqttree.routing.subscription_trie import SubscriptionTrie
from mqttree.routing.topic_filter import covers, matches

MAX_RULE_GROUPS = 10_000
"""combinations of rules about one client that are kept as one object for all to whom they
apply; then they are forgotten, and clients that come later have another one."""

PUBLISH = 1
SUBSCRIBE = 2
RECEIVE = 4
ACTIONS = {
    "publish": PUBLISH,
    "subscribe": SUBSCRIBE | RECEIVE,
    "receive": RECEIVE,
    "all": PUBLISH | SUBSCRIBE | RECEIVE,
}
"""Words of rules as flags. A client that may subscribe may receive what the subscription
delivers."""

_NAMES = re.compile("%[uc]")


class Subject(Record):
    """The clients that a rule is about. `kind`: "everyone", "user", "users" (all that have a name),
    "anonymous" or "client" (`name` is a pattern with * and ?). `listener`: only clients of this
    listener; None: of any."""

    kind: str = "everyone"
    name: str = ""
    listener: str | None = None


class Rule:
    """One line of the rules: `order` is its place among all, and the first rule that fits decides;
    `line` its number in the file; `allow` whether it allows or denies; `actions` which actions it
    is about, as flags; `topic_filter` the filter as written, with %u and %c."""

    __slots__ = ("actions", "allow", "filter", "general", "line", "named", "order")

    def __init__(self, order: int, line: int, allow: bool, actions: int, topic_filter: str) -> None:
        self.order = order
        self.line = line
        self.allow = allow
        self.actions = actions
        self.filter = topic_filter
        self.named = _NAMES.search(topic_filter) is not None
        """Whether the filter differs for each client."""
        self.general = "/".join(
            "+" if _NAMES.search(level) else level for level in topic_filter.split("/")
        )
        """A filter without names that matches whatever this one matches for any client."""


class Group:
    """The rules about one subject."""

    __slots__ = ("trie",)

    def __init__(self) -> None:
        self.trie: SubscriptionTrie[Rule] = SubscriptionTrie()

    def add(self, rule: Rule) -> None:
        """Add a rule to those of the group."""
        self.trie.insert(rule.general, rule.order, rule)


class Rules:
    """All rules of a file."""

    def __init__(self, rules: Iterable[tuple[Subject, Rule]]) -> None:
        self._most = MAX_RULE_GROUPS
        self._groups: dict[Subject, Group] = {}
        self._patterns: list[tuple[str | None, re.Pattern[str], Group]] = []
        self._known: dict[tuple[int, ...], tuple[Group, ...]] = {}
        self._depth = 1
        self.size = 0
        # Some are about users.
        self.by_user = False
        for subject, rule in rules:
            self.size += 1
            self.by_user = self.by_user or subject.kind in ("user", "users") or "%u" in rule.filter
            self._depth = max(self._depth, rule.filter.count("/") + 2)
            group = self._groups.get(subject)
            if group is None:
                group = self._groups[subject] = Group()
                if subject.kind == "client" and ("*" in subject.name or "?" in subject.name):
                    self._patterns.append((subject.listener, _pattern(subject.name), group))
            group.add(rule)

    def about(self, user: str | None, client_id: str, listener: str) -> tuple[Group, ...]:
        """Return the rules that concern a client: the user `user` (None: anonymous) with
        `client_id` at the listener named `listener`. Clients with the same rules get the same
        object."""
        kinds = [("everyone", ""), ("client", client_id)]
        kinds += [("anonymous", "")] if user is None else [("user", user), ("users", "")]
        subjects = (
            Subject(kind, name, where) for kind, name in kinds for where in (None, listener)
        )
        groups = {
            id(group): group
            for subject in subjects
            if (group := self._groups.get(subject)) is not None
        }
        for where, pattern, group in self._patterns:
            if where in (None, listener) and pattern.fullmatch(client_id):
                groups[id(group)] = group
        found = tuple(groups.values())
        if len(self._known) >= self._most:
            self._known.clear()
        return self._known.setdefault(tuple(groups), found)

    def probe(self, topic_filter: str) -> str:
        """Return a topic that a filter matches only if it covers `topic_filter`: its levels occur
        nowhere else, and it has more of them than any rule."""
        levels = ["\0" if level == "+" else level for level in topic_filter.split("/")]
        if levels[-1] == "#":
            levels[-1:] = ["\0"] * self._depth
        return "/".join(levels)


class Permissions:
    """The permissions of one client."""

    __slots__ = ("client_id", "groups", "listener", "rules", "user")

    def __init__(
        self, rules: Rules | None, user: str | None, client_id: str, listener: str
    ) -> None:
        """`rules`: those that concern the client, None: nothing is allowed. `user`: its verified
        name, None: anonymous. `client_id`, `listener`: its client id and the name of its
        listener."""
        self.rules = rules
        self.groups = rules.about(user, client_id, listener) if rules is not None else ()
        self.user = user
        self.client_id = client_id
        self.listener = listener

    def same(self, other: Permissions | None) -> bool:
        """Whether `other` allows the same."""
        return (
            other is not None
            and other.groups is self.groups
            and (other.user, other.client_id, other.rules)
            == (self.user, self.client_id, self.rules)
        )

    def may_publish(self, topic: str) -> bool:
        """Whether the client may publish to a topic name."""
        rule = self.publish_rule(topic)
        return rule is not None and rule.allow

    def publish_rule(self, topic: str) -> Rule | None:
        """Return the rule that decides about publishing; None: no rule does, which means no."""
        return self.first(candidates(self.groups, PUBLISH, topic), topic)

    def may_receive(self, topic: str) -> bool:
        """Whether messages of a topic may be sent to the client."""
        rule = self.first(candidates(self.groups, RECEIVE, topic), topic)
        return rule is not None and rule.allow

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether the client may subscribe to a filter (without `$share/<group>/`). The first rule
        that covers all of the filter decides; rules about a part of it decide when messages of that
        part come."""
        rule = self.subscribe_rule(topic_filter)
        return rule is not None and rule.allow

    def subscribe_rule(self, topic_filter: str) -> Rule | None:
        """Return the rule that decides about a subscription; None: no rule does, which means no."""
        if self.rules is None:
            return None
        for rule in candidates(self.groups, SUBSCRIBE, self.rules.probe(topic_filter)):
            own = self.filter_of(rule)
            if own is not None and covers(own, topic_filter):
                return rule
        return None

    def first(self, rules: list[Rule], topic: str) -> Rule | None:
        """Return the first of `rules`, which match the topic for some client, that does so for this
        one."""
        for rule in rules:
            own = self.filter_of(rule)
            if own is rule.filter or (own is not None and matches(own, topic)):
                return rule
        return None

    def filter_of(self, rule: Rule) -> str | None:
        """Put this client's names into a rule's filter. A name that would be more than a literal
        there (empty, with a wildcard or a slash, beginning with `$`) is never put in: then a rule
        that allows does not apply (None), and one that denies holds for every name."""
        if not rule.named:
            return rule.filter
        names = {"%u": self.user, "%c": self.client_id}
        for mark in set(_NAMES.findall(rule.filter)):
            name = names[mark]
            if not name or name.startswith("$") or any(letter in name for letter in "+#/\0"):
                return None if rule.allow else rule.general
        return _NAMES.sub(lambda mark: names[mark.group()] or "", rule.filter)


def candidates(groups: tuple[Group, ...], action: int, topic: str) -> list[Rule]:
    """Return the rules of `groups` for `action` that match `topic` for some client, in the order of
    the file, up to the first that matches for every client."""
    found = [rule for group in groups for rule in group.trie.match(topic) if rule.actions & action]
    found.sort(key=lambda rule: rule.order)
    for index, rule in enumerate(found):
        if not rule.named:
            return found[: index + 1]
    return found


class Restricted(Protocol):
    """A session, as rules see it."""

    @property
    def permissions(self) -> Permissions | None:
        """None: it may do everything."""


R = TypeVar("R", bound=Restricted)


def receivers(topic: str, sessions: Iterable[R]) -> set[R]:
    """Return those of `sessions` that messages of a topic may be sent to."""
    # By the identity of groups: most sessions have the same.
    known: dict[int, list[Rule]] = {}
    allowed: set[R] = set()
    for session in sessions:
        permissions = session.permissions
        if permissions is None:
            allowed.add(session)
            continue
        rules = known.get(id(permissions.groups))
        if rules is None:
            rules = known[id(permissions.groups)] = candidates(permissions.groups, RECEIVE, topic)
        rule = permissions.first(rules, topic)
        if rule is not None and rule.allow:
            allowed.add(session)
    return allowed


class Access:
    """The configuration in force: which clients need a password, which may connect without, and the
    rules."""

    def __init__(
        self,
        users: Container[str] | None = None,
        rules: Rules | None = None,
        anonymous: bool | Mapping[str, bool] | None = None,
        canonical: Callable[[str], str] = str,
    ) -> None:
        """`users`: None if passwords are not checked here. `rules`: None: accepted clients may do
        everything. `anonymous`: for all listeners, or by listener with None for the others; without
        users it is yes. `canonical`: returns one spelling for all spellings of a user name that
        `users` treats as equal."""
        self.users = users
        self.rules = rules
        self._anonymous = anonymous
        self._canonical = canonical

    def lets_anonymous(self, listener: str) -> bool:
        """Whether a client without a user name may connect at a listener, as far as this
        configuration says."""
        chosen = (
            self._anonymous.get(listener)
            if isinstance(self._anonymous, Mapping)
            else self._anonymous
        )
        return self.users is None if chosen is None else chosen

    @property
    def anonymous_somewhere(self) -> bool:
        """Whether any listener may accept clients without a user name."""
        if isinstance(self._anonymous, Mapping):
            return self.users is None or any(self._anonymous.values())
        return self.lets_anonymous("")

    def known_as(self, user: str | None, *, verified: bool, certified: bool) -> str | None:
        """Return the user name in the spelling that is compared, or None if the client has none or
        nothing has checked it.

        `user`: the name that the client claims. `verified`: plugins have agreed to it. `certified`:
        it is from the client's certificate.
        """
        return (
            None
            if user is None or (self.users is None and not (verified or certified))
            else self._canonical(user)
        )

    def unknown(self, client_id: str) -> Permissions | None:
        """Return the permissions of a session whose user and listener are unknown."""
        return self.permissions(None, client_id, "", verified=False, certified=False)

    def permissions(
        self, user: str | None, client_id: str, listener: str, *, verified: bool, certified: bool
    ) -> Permissions | None:
        """Return what a client may do; None: everything.

        `user`: the name that it claims, None for none. `client_id`, `listener`: its client id and
        the name of its listener. `verified`: plugins have agreed to the user's name. `certified`:
        the name is from a certificate, so the users file is not asked. If nothing checks names, a
        name is a mere claim and counts as none. A client that would no longer be accepted may do
        nothing, and is not disconnected.
        """
        user = self.known_as(user, verified=verified, certified=certified)
        if user is None:
            out = not self.lets_anonymous(listener)
        else:
            out = self.users is not None and user not in self.users and not certified
        if out:
            return Permissions(None, user, client_id, listener)
        return None if self.rules is None else Permissions(self.rules, user, client_id, listener)


def _pattern(text: str) -> re.Pattern[str]:
    escaped = re.escape(text).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(escaped, re.DOTALL)
