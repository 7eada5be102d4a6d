"""Users and rules as files: read at the start and at each reload. Passwords are checked in threads
(docs/guides/security.md)."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from mqttree.broker.auth.acl_file import read_rules
from mqttree.broker.auth.authorization import Access
from mqttree.broker.auth.scram import NAME, Scram, Verifier, prepare
from mqttree.broker.config.options import AccessSettings
from mqttree.broker.io.limits import IoLimits

if TYPE_CHECKING:
    from mqttree.broker.auth.users_file import Users

WORKERS = 2
"""threads that check passwords. They release Python's lock while they hash, so that messages flow
meanwhile; each needs the memory that its hash asks for."""


class AuthService:
    """The users and rules of one broker. `access` is None if neither is configured."""

    def __init__(
        self,
        settings: AccessSettings,
        listeners: Container[str],
        limits: IoLimits,
    ) -> None:
        """Read the files.

        `settings`: which files; `listeners`: the names that rules may speak of; `limits`: of rules
        and passwords.

        Raises:
            ConfigError: with one line, for a file that cannot be used.
        """
        self._limits = limits
        self._listeners = listeners
        self._pool: ThreadPoolExecutor | None = None
        self._secret = os.urandom(32)
        self._right: set[bytes] = set()
        self._checks: dict[bytes, asyncio.Future[bool]] = {}
        self.users: Users | None = None
        self.access: Access | None = None
        self.take(*self.read(settings))

    def read(self, settings: AccessSettings) -> tuple[Users | None, Access | None]:
        """Return the content of the files; changes nothing, and may be called in a thread. Raises
        ConfigError as above."""
        if settings.users is None and settings.rules is None and settings.anonymous is None:
            return None, None
        users = _read_users(str(settings.users)) if settings.users is not None else None
        # Spellings that are equal for the users file are equal for the rules.
        canonical = prepare if users is not None else str
        rules = (
            read_rules(str(settings.rules), canonical, self._listeners, limits=self._limits)
            if settings.rules is not None
            else None
        )
        return users, Access(users, rules, settings.anonymous, canonical)

    def take(self, users: Users | None, access: Access | None) -> None:
        """Put what `read` returned in force."""
        self._right.clear()
        self.users = users
        self.access = access

    def describe(self) -> list[str]:
        """Return what is in force, for a log line."""
        access = self.access
        rules = None if access is None else access.rules
        users = [] if self.users is None else [f"users {len(self.users)}"]
        return users if rules is None else [*users, f"rules {rules.size}"]

    def methods(self, known: Container[str]) -> dict[str, Scram]:
        """Return the methods of enhanced authentication for which there are users, but those
        `known`. They look up users in what holds at that time."""
        return (
            {} if self.users is None or NAME in known else {NAME: Scram(self._verifier, os.urandom)}
        )

    def _verifier(self, name: str) -> Verifier | None:
        return self.users.verifier(name) if self.users is not None else None

    async def verify(self, username: str, password: bytes) -> bool:
        """Return whether a password is right. One that was right lately, or is being checked, is
        not computed again. Callers with one password are answered in the order in which they
        asked, as two connections of one client must be."""
        users = self.users
        if users is None:
            return False
        name = username.encode()
        digest = hmac.digest(self._secret, len(name).to_bytes(4, "big") + name + password, "sha256")
        if digest in self._right:
            return True
        check = self._checks.get(digest)
        if check is None:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(WORKERS, "passwords")
            check = self._checks[digest] = asyncio.get_running_loop().run_in_executor(
                self._pool, users.verify, username, password
            )
            check.add_done_callback(lambda _: self._checks.pop(digest, None))
        right = await check
        if right and self.users is users:
            if len(self._right) >= self._limits.passwords_known:
                self._right.clear()
            self._right.add(digest)
        return right

    def close(self) -> None:
        """End the threads; questions under way are not answered any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _read_users(path: str) -> Users:
    """Return the users of a file. Raises ConfigError."""
    # It loads argon2, which most brokers do not need.
    from mqttree.broker.auth.users_file import Users

    return Users.read(path)
