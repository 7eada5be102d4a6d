"""Users and rules in force, and how new ones are put in force while clients are connected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mqttree.broker.core.client import Client
from mqttree.broker.core.serving_broker import ServingBroker
from mqttree.broker.core.session_owner import LEG_LISTENER

if TYPE_CHECKING:
    from mqttree.broker.auth.authorization import Access, Permissions
    from mqttree.broker.core.session import Session

SESSIONS_AT_ONCE, SESSION_WORK = 100, 8
"""sessions that new rules are put in force for at a time, and steps of work for each."""


class AccessControl:
    """What the clients of one broker may do."""

    def __init__(self, broker: ServingBroker) -> None:
        self._broker = broker
        self.access: Access | None = None
        """Users and rules in force; None: the plugins alone have a say."""

    def put_in_force(self, access: Access | None) -> None:
        """Put users and rules in force, for all from their next packet on; of some thousand clients
        a few ms later, as they take turns. No client is disconnected."""
        self.access = self._broker.dispatcher.access = access
        self._broker.dispatcher.forget_routes()
        self._broker.turns.go(
            self._apply(list(self._broker.sessions.values())), lambda: self.access is not access
        )

    def _apply(self, sessions: list[Session]) -> Iterator[int]:
        """Have sessions keep to the rules, some of them at a time; yields the steps of work that it
        took."""
        for number, session in enumerate(sessions, 1):
            conn, old = session.conn, session.permissions
            listener = (
                conn.listener
                if conn is not None
                else old.listener
                if old is not None
                else session.listener
            )
            if listener is not None:
                session.permissions = self.permissions(
                    session.username, session.client_id, listener
                )
            if conn is not None and isinstance(conn.owner, Client):
                conn.owner.choose_routes()
            if not number % SESSIONS_AT_ONCE:
                yield SESSIONS_AT_ONCE * SESSION_WORK
        self._broker.dispatcher.forget_routes()  # those that were made meanwhile
        for number, session in enumerate(sessions, 1):
            self.revoke(session)
            if not number % SESSIONS_AT_ONCE:
                yield SESSIONS_AT_ONCE * SESSION_WORK

    def permissions(
        self, username: str | None, client_id: str, listener: str
    ) -> Permissions | None:
        """Return what a client may do; None: everything.

        `username`: None for a client that gave none; `client_id`: as it is known here; `listener`:
        the name of the one where it came in.
        """
        if self.access is None or (listener == LEG_LISTENER and username is None):
            return None
        certified = listener == LEG_LISTENER or listener in self._broker.config.identity_listeners
        return self.access.permissions(
            username, client_id, listener, verified=self._broker.hooks.verified, certified=certified
        )

    def revoke(self, session: Session) -> None:
        """Drop what is queued for a session that may not receive it any more; others of its groups
        get what was theirs."""
        for outgoing in session.revoke():
            self._broker.dispatcher.pass_on(outgoing)
