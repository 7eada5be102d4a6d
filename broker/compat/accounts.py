"""amqtt's `Session` objects, one for each of our sessions that a plugin looks at.

In this package an *account* is amqtt's `Session`; a session is ours
(`mqttree.broker.core.session`).
"""

from __future__ import annotations

from amqtt.session import Session as Account

from mqttree.broker.cluster.link.admission import split_peer
from mqttree.broker.core.client import Client
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.session import Session
from mqttree.broker.wire.packets import Connect


class Accounts:
    """amqtt's `Session` of each session, made when the first plugin needs it."""

    def __init__(self, keep_alive_delay: int) -> None:
        """`keep_alive_delay`: s, amqtt's timeout_disconnect_delay."""
        self.keep_alive_delay = keep_alive_delay
        # Whether a client that no plugin was asked about is anonymous.
        self.anonymous = False
        # By the identity of a CONNECT that plugins are asked about.
        self._connecting: dict[int, Account] = {}

    def of(self, session: Session) -> Account:
        """Return the account of a session."""
        account = session.account
        if account is None:
            account = session.account = Account()
            account.client_id = session.client_id
            account.username = session.username
            account.clean_session = session.clean
            account.is_anonymous = self.anonymous
            conn = session.conn
            client = None if conn is None else conn.owner
            if conn is not None and isinstance(client, Client):
                self._describe(account, conn, client.connect)
                account.transitions.connect()
            else:
                account.transitions.disconnect()
        return account

    def connecting(self, conn: Connection, connect: Connect) -> Account:
        """Return the account of a client that plugins are asked about; if they accept it, the
        account becomes its session's."""
        account = self._connecting[id(connect)] = Account()
        self._describe(account, conn, connect)
        return account

    def forget(self, connect: Connect) -> None:
        """Forget the account of a client that was refused, or has disconnected."""
        self._connecting.pop(id(connect), None)

    def connected(self, client: Client) -> None:
        """Give a client's session the account that plugins were asked about; content of an older
        account is kept."""
        session = client.session
        new = self._connecting.pop(id(client.connect), None)
        old = session.account
        if new is None:
            if not isinstance(old, Account):
                return
            self._describe(old, client.conn, client.connect)
        elif not isinstance(old, Account):
            session.account = old = new
            old.client_id = session.client_id
        # Plugins keep references to the object, so it stays and is updated.
        else:
            self._describe(old, client.conn, client.connect)
            old.is_anonymous = new.is_anonymous
            old.attributes.update(new.attributes)
        if not old.transitions.is_connected():
            old.transitions.connect()

    def on_disconnected(self, session: Session) -> None:
        """Note that a session's connection ended."""
        account = session.account
        if isinstance(account, Account) and account.transitions.is_connected():
            account.transitions.disconnect()

    def _describe(self, account: Account, conn: Connection, connect: Connect) -> None:
        account.remote_address, account.remote_port = split_peer(conn.peer)
        account.ssl_object = conn.secure
        account.client_id = connect.client_id
        account.clean_session = connect.clean_start
        account.keep_alive = connect.keep_alive + (
            self.keep_alive_delay if connect.keep_alive else 0
        )
        account.username = connect.username
        # Different bytes that are no text stay different, and make a plugin fail rather than match.
        password = connect.password
        account.password = None if password is None else password.decode(errors="surrogateescape")
        will = connect.will
        account.will_flag = will is not None
        account.will_topic = will.topic if will is not None else None
        account.will_message = will.payload if will is not None else None
        account.will_qos = will.qos if will is not None else None
        account.will_retain = will.retain if will is not None else None
