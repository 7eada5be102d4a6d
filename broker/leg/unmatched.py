"""Which rules let out messages for which the foreign broker has no subscriber, as far as it says so
(Reason Code 0x10 of PUBACK and PUBREC, MQTT 5). Pure."""

from __future__ import annotations

from mqttree.broker.leg.packets import messages_with_ids, places
from mqttree.broker.leg.rules import MAPPED, Rules
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.publish_header import PUBACK, PUBREC
from mqttree.routing.topic_filter import matches

ANSWERS = (PUBACK, PUBREC)
ID_AND_CODE = 3
"""bytes of an answer with a Reason Code, at least."""


class Unmatched:
    """Counts such messages by rule, if there are several rules."""

    def __init__(self, rules: Rules) -> None:
        """`rules`: of the leg."""
        self._rules = rules.outward_rules
        self.kept = len(self._rules) > 1
        """Whether messages are to be shown to `sent`: for one rule the sum is enough."""
        self._topics: dict[bytes, bytes] = {}  # packet identifier -> topic of the last message
        self._found: dict[bytes, str] = {}  # topic -> filter of the first rule that matches it
        self._counts: dict[str, int] = {}

    def sent(self, packets: bytes) -> None:
        """Note which topics have messages in flight. `packets`: to the foreign broker."""
        self._topics.update(messages_with_ids(packets))

    def count(self, packets: bytes) -> None:
        """Count by rule what has no subscriber. `packets`: of the foreign broker."""
        if not self.kept:
            return
        for begin, body, end in places(packets):
            if (
                packets[begin] in ANSWERS
                and end - body >= ID_AND_CODE
                and packets[body + 2] == ReasonCode.NO_MATCHING_SUBSCRIBERS
            ):
                topic = self._topics.get(packets[body : body + 2])
                if topic is not None and (rule := self._rule(topic)):
                    self._counts[rule] = self._counts.get(rule, 0) + 1

    def by_rule(self) -> dict[str, int]:
        """Return how many there were, by the filter of their rule at the foreign broker."""
        return dict(self._counts)

    def _rule(self, topic: bytes) -> str:
        found = self._found.get(topic)
        if found is None:
            if len(self._found) >= MAPPED:
                self._found.clear()
            name = topic.decode(errors="replace")
            rules = (rule.remote for rule in self._rules if matches(rule.remote, name))
            found = self._found[topic] = next(rules, "")
        return found
