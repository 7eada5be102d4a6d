"""Retained messages (MQTT-3.3.1-5 to -8)."""

from __future__ import annotations

from broker import limits
from broker.counters import Counters
from broker.message import Message
from routing.trie import TopicTrie


class RetainedStore:
    """The last retained message of every topic."""

    __slots__ = ("_counters", "_trie")

    def __init__(self, counters: Counters) -> None:
        self._trie: TopicTrie[Message] = TopicTrie()
        self._counters = counters

    def __len__(self) -> int:
        return len(self._trie)

    def store(self, topic: str, message: Message) -> bool:
        """Keep `message`, or forget the topic's when its payload is empty (MQTT-3.3.1-6, -7). False: refused (full)."""
        if not message.payload:
            self._trie.pop(topic)
            return True
        if len(self._trie) >= limits.MAX_RETAINED and self._trie.get(topic) is None:
            self._counters.retained_refused += 1
            return False
        self._trie.set(topic, message)
        return True

    def get(self, topic: str) -> Message | None:
        """Return the topic's message."""
        return self._trie.get(topic)

    def match(self, topic_filter: str, now: float) -> list[Message]:
        """Return the messages that a new subscription gets; those that expired are forgotten (MQTT-3.3.2-5)."""
        messages = []
        for topic, message in self._trie.match(topic_filter):
            if message.expired(now):
                self._trie.pop(topic)
                self._counters.expired += 1
            else:
                messages.append(message)
        return messages

    def clear(self) -> None:
        """Forget everything."""
        self._trie = TopicTrie()

    def items(self) -> list[tuple[str, Message]]:
        """Return every topic with its message."""
        return list(self._trie.items())
