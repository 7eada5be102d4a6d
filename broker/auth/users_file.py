"""The users file: names with stored forms of their passwords, for plain passwords and for SCRAM. It
is read, checked and changed here.

    # a comment
    anna:$argon2id$v=19$m=19456,t=2,p=1$...       for CONNECT with User Name and Password
    anna:SCRAM-SHA-256$15000:<salt>$<StoredKey>:<ServerKey>
                                                  for the authentication method SCRAM-SHA-256

`mqttree passwd FILE USER` writes both lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import argon2

from mqttree.broker.auth.scram import ITERATIONS, NAME, SALT_SIZE, Verifier, prepare
from mqttree.broker.config.yaml_file import ConfigError, read_text

MAX_ARGON2_MEMORY = 1024 * 1024
"""KiB; a stored hash that takes more to check would be a mistake, or the end of the broker."""

MAX_NAME = 1024
"""bytes of a user name; MQTT would allow 65,535."""

HASHER = argon2.PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
"""argon2id with 19 MiB (OWASP's least): about 20 ms a log-in. More memory would let a few log-ins
at a time exhaust a small machine; a stronger hash of another program is taken as it is, up to
MAX_ARGON2_MEMORY."""


@dataclass(slots=True, eq=False, repr=False)
class User:
    """One user. None: the user cannot log in that way."""

    argon2: str | None = None
    scram: Verifier | None = None


class Users:
    """All users who may log in."""

    def __init__(self, users: dict[str, User] | None = None) -> None:
        self._users = users or {}

    @classmethod
    def read(cls, path: str) -> Users:
        """Read a file. Raises ConfigError with one line that names the file and the line."""
        return cls.parse(path, read_text(path))

    @classmethod
    def parse(cls, path: str, text: str) -> Users:
        """Return the users in `text`, the content of a users file; `path` is its name, for errors.
        Raises ConfigError with one line that names the file and the line, in place of the
        ValueError of a single entry."""
        users: dict[str, User] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, colon, secret = line.partition(":")
            try:
                if not colon:
                    raise ValueError("expected USER:HASH")
                check_name(name)
                _take(users.setdefault(prepare(name), User()), secret.strip())
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: {error}") from None
        return cls(users)

    def __len__(self) -> int:
        return len(self._users)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and prepare(name) in self._users

    def verifier(self, name: str) -> Verifier | None:
        """Return the SCRAM verifier of a user (`scram.Scram`), None without one."""
        user = self._users.get(prepare(name))
        return user.scram if user is not None else None

    def verify(self, name: str, password: bytes) -> bool:
        """Return whether a plain password is right. Takes some 20 ms and 19 MiB, for unknown names
        too: call it in a thread."""
        user = self._users.get(prepare(name), User())
        try:
            text = prepare(password.decode())
        except UnicodeDecodeError:
            text = None
        if user.argon2 is None and user.scram is not None:
            return text is not None and user.scram.matches(text)
        stored = user.argon2 or _no_password()
        try:
            HASHER.verify(stored, password if text is None else text.encode())
        except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
            return False
        return user.argon2 is not None


def check_name(name: str) -> None:
    """Raise ValueError for a name that the file cannot hold."""
    if not name or name.strip() != name:
        raise ValueError("a user name must not be empty, or begin or end with a space")
    if ":" in name or name.startswith("#") or not name.isprintable():
        raise ValueError(
            f"user name {name!r}: ':', control characters and '#' at the begin are not possible"
        )
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME:
        raise ValueError(f"a user name is longer than {MAX_NAME} bytes")


def entries(
    name: str,
    password: str,
    random_bytes: Callable[[int], bytes],
    *,
    scram: bool = True,
    iterations: int = ITERATIONS,
) -> list[str]:
    """Return the lines of the users file for a user.

    `name`, `password`: of the user. `random_bytes`: returns so many random bytes, for salts.
    `scram`: whether to add a SCRAM-SHA-256 verifier, of so many `iterations`.

    Raises ValueError for a name that the file cannot hold, and for a password that is empty or
    longer than a CONNECT can carry.
    """
    check_name(name)
    if not password:
        raise ValueError("the password is empty")
    prepared = prepare(password)
    if len(prepared.encode()) > 0xFFFF:
        raise ValueError("the password is longer than 65535 bytes")
    lines = [f"{name}:{HASHER.hash(prepared)}"]
    if scram:
        lines.append(f"{name}:{Verifier.of(prepared, random_bytes(SALT_SIZE), iterations)}")
    return lines


def replace_user(text: str, name: str, lines: list[str]) -> str:
    """Return `text`, the content of a users file, with the lines of the user `name` replaced by
    `lines`: in their place, at the end if the user is new. Without lines the user is removed."""
    wanted = prepare(name)
    result: list[str] = []
    at: int | None = None
    for line in text.splitlines():
        if not line.startswith("#") and ":" in line and prepare(line.partition(":")[0]) == wanted:
            at = len(result) if at is None else at
        else:
            result.append(line)
    at = len(result) if at is None else at
    result[at:at] = lines
    return "".join(f"{line}\n" for line in result)


def _take(user: User, secret: str) -> None:
    if secret.startswith(f"{NAME}$"):
        if user.scram is not None:
            raise ValueError(f"a second {NAME} line of this user")
        user.scram = Verifier.parse(secret)
        return
    try:
        parameters = argon2.extract_parameters(secret)
    except argon2.exceptions.InvalidHashError:
        raise ValueError(
            f"neither an argon2 hash nor {NAME}; `mqttree passwd` makes them"
        ) from None
    if parameters.memory_cost > MAX_ARGON2_MEMORY:
        raise ValueError(
            f"this hash takes {parameters.memory_cost} KiB to check, "
            f"at most {MAX_ARGON2_MEMORY} are allowed"
        )
    if user.argon2 is not None:
        raise ValueError("a second argon2 line of this user")
    user.argon2 = secret


@cache
def _no_password() -> str:
    """A hash that matches no password: a check of an unknown name takes as long as of a known
    one."""
    return HASHER.hash("nobody")
