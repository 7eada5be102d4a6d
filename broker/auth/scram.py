"""SCRAM-SHA-256, the server's side, pure (RFC 5802, RFC 7677): a client proves a password that is
neither sent nor stored."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import unicodedata
from collections.abc import Callable

from mqttree.broker.auth.enhanced_auth import AuthenticationFailed
from mqttree.broker.base.record import Record

NAME = "SCRAM-SHA-256"
"""Its name in Authentication Method (MQTT 5, 4.12)."""

ITERATIONS = 15_000
"""rounds of PBKDF2 in new verifiers: some 4 ms for a client on a computer, a second for a small
device. RFC 7677 demands 4096 at least."""

MIN_ITERATIONS = 4096
MAX_ITERATIONS = 1_000_000
"""of a stored verifier: a plain password of that user costs us this, about a second."""

MAX_NONCE = 256
"""characters of a client's nonce: ten times what is useful."""

SALT_SIZE = 16
"""bytes."""
NONCE_SIZE = 18
"""random bytes in this side's half of the nonce, 24 characters."""

_KEY_SIZE = 32


def saslprep(text: str) -> str:
    """Prepare a user name or password, so that the same text typed on different systems compares
    equal (RFC 4013).

    Raises ValueError for characters that neither may have.
    """
    # Its tables take 2 ms, and most brokers have no users file.
    import stringprep

    prohibited = (
        stringprep.in_table_c12,
        stringprep.in_table_c21_c22,
        stringprep.in_table_c3,
        stringprep.in_table_c4,
        stringprep.in_table_c5,
        stringprep.in_table_c6,
        stringprep.in_table_c7,
        stringprep.in_table_c8,
        stringprep.in_table_c9,
    )
    mapped = "".join(
        " " if stringprep.in_table_c12(letter) else letter
        for letter in text
        if not stringprep.in_table_b1(letter)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for letter in prepared:
        if any(table(letter) for table in prohibited) or stringprep.in_table_a1(letter):
            raise ValueError(
                f"character U+{ord(letter):04X} is not allowed in a user name or password"
            )
    # RFC 3454, 6: right-to-left throughout, or not at all.
    if any(map(stringprep.in_table_d1, prepared)) and (
        any(map(stringprep.in_table_d2, prepared))
        or not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1]))
    ):
        raise ValueError("right-to-left and left-to-right characters are mixed")
    return prepared


def prepare(text: str) -> str:
    """Prepare a text that may have characters that SASLprep's old Unicode does not know: those stay
    as they are (as in PostgreSQL)."""
    try:
        return saslprep(text)
    except ValueError:
        return text


class Verifier(Record):
    """The stored form of a password (RFC 5802, 3): it verifies a client, and cannot be used to log
    in."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
        """Return the verifier of `password` with `salt` (random bytes) and `iterations` rounds of
        PBKDF2. Takes milliseconds."""
        salted = hashlib.pbkdf2_hmac("sha256", prepare(password).encode(), salt, iterations)
        return cls(
            iterations, salt, _sha256(_hmac(salted, b"Client Key")), _hmac(salted, b"Server Key")
        )

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """Read `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`, base64 (the form that
        PostgreSQL stores, too).

        Raises ValueError with one clear line.
        """
        try:
            name, first, second = text.split("$")
            count, salt = first.split(":")
            stored, server = second.split(":")
            iterations = (
                int(count) if count.isascii() and count.isdecimal() and len(count) < 10 else 0
            )
            found = cls(iterations, _unbase64(salt), _unbase64(stored), _unbase64(server))
        except ValueError:
            raise ValueError(f"not {NAME}$<iterations>:<salt>$<StoredKey>:<ServerKey>") from None
        if (
            name != NAME
            or not found.salt
            or {len(found.stored_key), len(found.server_key)} != {_KEY_SIZE}
        ):
            raise ValueError(f"not {NAME}$<iterations>:<salt>$<StoredKey>:<ServerKey>")
        if not MIN_ITERATIONS <= found.iterations <= MAX_ITERATIONS:
            raise ValueError(
                f"{found.iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed"
            )
        return found

    def __str__(self) -> str:
        """The form that `parse` reads."""
        return (
            f"{NAME}${self.iterations}:{_base64(self.salt)}"
            f"${_base64(self.stored_key)}:{_base64(self.server_key)}"
        )

    def matches(self, password: str) -> bool:
        """Return whether this is the verifier of a password; takes milliseconds."""
        return hmac.compare_digest(
            Verifier.of(password, self.salt, self.iterations).stored_key, self.stored_key
        )


class Scram:
    """The method: makes an exchange for each client that asks."""

    def __init__(
        self, lookup: Callable[[str], Verifier | None], random_bytes: Callable[[int], bytes]
    ) -> None:
        """`lookup`: returns the verifier of a user name, None for an unknown one. `random_bytes`: a
        source of unpredictable bytes (os.urandom)."""
        self.lookup = lookup
        self.random_bytes = random_bytes
        self._secret = random_bytes(_KEY_SIZE)

    def __call__(self) -> Exchange:
        """Begin an exchange."""
        return Exchange(self)

    def nonce(self) -> str:
        """Return this side's half of an exchange's nonce."""
        return _base64(self.random_bytes(NONCE_SIZE))

    def made_up_verifier(self, name: str) -> Verifier:
        """Return a made-up verifier for an unknown name, the same each time: an exchange must not
        reveal which names exist."""
        salt = _hmac(self._secret, b"salt" + name.encode())[:SALT_SIZE]
        return Verifier(
            ITERATIONS, salt, _hmac(self._secret, b"key" + name.encode()), bytes(_KEY_SIZE)
        )


class Exchange:
    """One authentication: client-first -> server-first, client-final -> server-final (RFC 5802,
    5)."""

    __slots__ = ("_auth", "_gs2", "_known", "_nonce", "_scram", "_verifier", "done", "username")

    def __init__(self, scram: Scram) -> None:
        self._scram = scram
        self._auth = b""
        self._gs2 = b""
        self._nonce = ""
        self._known = False
        self._verifier: Verifier | None = None
        self.username = ""
        self.done = False

    def step(self, data: bytes | None) -> bytes | None:
        """Return the answer to the client's next message; `done` says whether it was the last.
        None: the client has sent no data yet, and is to begin. Raises AuthenticationFailed."""
        if data is None and self._verifier is None:
            return None
        try:
            text = (data or b"").decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("a SCRAM message is not UTF-8") from None
        return self._first(text) if self._verifier is None else self._final(text)

    def _first(self, text: str) -> bytes:
        flag, _, rest = text.partition(",")
        authzid, _, bare = rest.partition(",")
        # p=...: channel binding, which this side does not offer.
        if flag not in ("n", "y"):
            raise AuthenticationFailed("SCRAM with channel binding, which is not offered")
        name, nonce = _attributes(bare, "n", "r")
        self.username = prepare(_saslname(name))
        if authzid and _saslname(authzid.removeprefix("a=")) != self.username:
            raise AuthenticationFailed("SCRAM in the name of another user")
        if not self.username or not nonce or len(nonce) > MAX_NONCE or not _printable(nonce):
            raise AuthenticationFailed("a SCRAM message without user name or nonce")
        found = self._scram.lookup(self.username)
        self._known = found is not None
        self._verifier = verifier = (
            found if found is not None else self._scram.made_up_verifier(self.username)
        )
        self._nonce = nonce + self._scram.nonce()
        self._gs2 = f"{flag},{authzid},".encode()
        answer = f"r={self._nonce},s={_base64(verifier.salt)},i={verifier.iterations}"
        self._auth = f"{bare},{answer}".encode()
        return answer.encode()

    def _final(self, text: str) -> bytes:
        verifier = self._verifier
        assert verifier is not None
        if self.done:
            raise AuthenticationFailed("a SCRAM message too many")
        without_proof, _, proof = text.rpartition(",p=")
        binding, nonce = _attributes(without_proof, "c", "r")
        try:
            sent, bound = _unbase64(proof), _unbase64(binding)
        except ValueError:
            raise AuthenticationFailed("a SCRAM message that is not base64") from None
        if bound != self._gs2 or not hmac.compare_digest(nonce.encode(), self._nonce.encode()):
            raise AuthenticationFailed("a SCRAM message of another exchange")
        auth = self._auth + b"," + without_proof.encode()
        key = bytes(a ^ b for a, b in zip(sent, _hmac(verifier.stored_key, auth), strict=False))
        right = hmac.compare_digest(_sha256(key), verifier.stored_key)
        if len(sent) != _KEY_SIZE or not right or not self._known:
            raise AuthenticationFailed("wrong user name or password")
        self.done = True
        return b"v=" + _base64(_hmac(verifier.server_key, auth)).encode()


def _attributes(text: str, *names: str) -> list[str]:
    """Return the first attributes of a message, which have fixed places; unknown ones behind them
    are ignored (RFC 5802, 5.1)."""
    parts = text.split(",")
    if len(parts) < len(names) or any(
        not part.startswith(f"{name}=") for part, name in zip(parts, names, strict=False)
    ):
        # `m=` would be here, too.
        raise AuthenticationFailed(f"a SCRAM message without {', '.join(names)} in their places")
    return [part[2:] for part in parts[: len(names)]]


def _saslname(text: str) -> str:
    """Undo the escapes of a user name (RFC 5802, 5.1)."""
    parts = text.split("=")
    if any(part[:2] not in ("2C", "3D") for part in parts[1:]):
        raise AuthenticationFailed("a user name with a wrong escape")
    return parts[0] + "".join(("," if part[:2] == "2C" else "=") + part[2:] for part in parts[1:])


def _printable(nonce: str) -> bool:
    return nonce.isascii() and nonce.isprintable() and " " not in nonce


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("not base64") from None
