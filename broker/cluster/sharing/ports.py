"""What the modules of shared subscriptions ask of `SharedSubscriptions`, which puts them
together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mqttree.broker.cluster.sharing.assignment_ledger import Ref
    from mqttree.broker.core.message import Message
    from mqttree.broker.core.receiver_assignment import Tries


class Giver(Protocol):
    """Gives a message to a member of one group."""

    def target(self, group_id: bytes, message: Message, skip: tuple[bytes, ...]) -> bytes | None:
        """Return where a `message` may be given that was given to a member before: `HERE`, the id
        of a broker, or None. `group_id`: of the group; `skip`: ids of brokers that do not get
        it."""

    def give(
        self,
        target: bytes,
        group_id: bytes,
        message: Message,
        visited: tuple[bytes, ...],
        *,
        retain: bool,
        tries: Tries | None = None,
    ) -> None:
        """Give a message to a group alone, here or at another broker.

        Args:
            `target`: `HERE`, or the id of a broker.
            `group_id`: of the group.
            `message`: what is given.
            `visited`: brokers that had no member for it.
            `retain`: whether it was retained where it was published.
            `tries`: brokers that gave it back.
        """

    def give_late(self, group_id: bytes, message: Message) -> bool:
        """Give a message that was published here to a group that was not known then. Returns
        whether it has a member that can be reached."""

    def is_closed(self, ref: Ref) -> bool:
        """Whether no member gets the message `ref` any more: another broker has given it, or keeps
        it for a member."""

    def deliver_here(self, group_id: bytes, message: Message) -> None:
        """Give a message to a local member of a group."""
