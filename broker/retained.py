"""Retained messages (MQTT-3.3.1-5 to -8)."""

from __future__ import annotations

from broker import limits
from broker.counters import Counters
from broker.message import Message, size_of
from routing.trie import TopicTrie


class RetainedStore:
    """The last retained message of every topic."""

    __slots__ = ("_bytes", "_counters", "_trie")

    def __init__(self, counters: Counters) -> None:
        self._trie: TopicTrie[Message] = TopicTrie()
        self._counters = counters
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._trie)

    @property
    def size(self) -> int:
        """Bytes of all messages, as they are counted for the limit."""
        return self._bytes

    def store(self, topic: str, message: Message) -> bool:
        """Keep `message`, or forget the topic's when its payload is empty (MQTT-3.3.1-6, -7). False: refused (full)."""
        if not message.payload:
            self._forget(topic)
            return True
        old = self._trie.get(topic)
        grown = self._bytes + size_of(message) - (0 if old is None else size_of(old))
        if (old is None and len(self._trie) >= limits.MAX_RETAINED) or grown > limits.MAX_RETAINED_BYTES:
            self._counters.retained_refused += 1
            return False
        self._trie.set(topic, message)
        self._bytes = grown
        return True

    def _forget(self, topic: str) -> None:
        old = self._trie.pop(topic)
        if old is not None:
            self._bytes -= size_of(old)

    def get(self, topic: str) -> Message | None:
        """Return the topic's message."""
        return self._trie.get(topic)

    def match(self, topic_filter: str, now: float) -> list[Message]:
        """Return the messages that a new subscription gets; those that expired are forgotten (MQTT-3.3.2-5)."""
        messages = []
        for topic, message in self._trie.match(topic_filter):
            if message.expired(now):
                self._forget(topic)
                self._counters.expired += 1
            else:
                messages.append(message)
        return messages

    def clear(self) -> None:
        """Forget everything."""
        self._trie = TopicTrie()
        self._bytes = 0

    def items(self) -> list[tuple[str, Message]]:
        """Return every topic with its message."""
        return list(self._trie.items())
