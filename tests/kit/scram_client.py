"""The client's side of SCRAM-SHA-256, written from RFC 5802 alone: what the broker's side is tried
against."""

from __future__ import annotations

import base64
import hashlib
import hmac


class ScramClient:
    """One exchange. What is sent can be bent: every step returns bytes."""

    def __init__(
        self, user: str, password: str, nonce: str = "fyko+d2lbbFgONRv9qkxdawL", gs2: str = "n,,"
    ) -> None:
        self.password = password
        self.nonce = nonce
        self.gs2 = gs2
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self.signature = b""

    def first(self) -> bytes:
        return f"{self.gs2}{self.bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """Answer server-first; `signature` is then what server-final has to show."""
        text = challenge.decode()
        nonce, salt, count = (part[2:] for part in text.split(","))
        assert nonce.startswith(self.nonce)
        assert len(nonce) > len(self.nonce)
        salted = hashlib.pbkdf2_hmac(
            "sha256", self.password.encode(), base64.b64decode(salt), int(count)
        )
        without_proof = f"c={base64.b64encode(self.gs2.encode()).decode()},r={nonce}"
        auth = f"{self.bare},{text},{without_proof}".encode()
        key = hmac.digest(salted, b"Client Key", "sha256")
        mask = hmac.digest(hashlib.sha256(key).digest(), auth, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, mask, strict=True))
        self.signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), auth, "sha256")
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def proves(self, last: bytes) -> bool:
        """Whether the server knows the password, too."""
        return last == b"v=" + base64.b64encode(self.signature)
