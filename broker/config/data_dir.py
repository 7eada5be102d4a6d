"""The identity of a broker across restarts: an id with its key and a boot number, kept beside its
data."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import re
from pathlib import Path
from typing import Any

from mqttree.broker.base.broker_key import SEED_BYTES, BrokerKey, make_key
from mqttree.broker.base.record import Record
from mqttree.broker.config.yaml_file import ConfigError

MAX_BOOT = (1 << 32) - 1
"""The highest boot number: it is sent as u32."""

# Bytes read of a file that holds one short line.
_MAX_FILE = 160

_MAX_ALARMS = 1 << 20


class BrokerIdentity(Record):
    """Id (8 bytes), boot number (u32, grows with every start), and the key whose hash the id is."""

    id: bytes
    boot: int
    key: BrokerKey


def check_file(number: int, path: Path, size: int | None = None) -> None:
    """Check that an open file (`number`) is still the one at `path`: data written to a file that
    was removed, renamed or replaced would never be found. Raises OSError.

    `size`: bytes that it must have, if that matters.
    """
    try:
        there = os.stat(path)
    except FileNotFoundError:
        raise OSError(errno.ENOENT, f"{path} is gone") from None
    if not os.path.samestat(there, os.fstat(number)):
        raise OSError(errno.ESTALE, f"{path} is another file")
    if size is not None and there.st_size != size:
        raise OSError(errno.ESTALE, f"{path} has {there.st_size} bytes instead of {size}")


class DataDir:
    """The folder of one broker, locked while the object is open."""

    def __init__(self, path: Path) -> None:
        """Make the folder if it does not exist, and lock it. Raises ConfigError if that fails, or
        another broker has it."""
        self.path = path
        # What the next start needs to be the same broker: name -> text.
        self._texts: dict[str, str] = {}
        self._lock = self._locked()

    def _locked(self) -> int:
        """Make the folder if it does not exist. Returns its lock, an open file. Raises
        ConfigError."""
        path, lock = self.path, -1
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            holder = os.pread(lock, _MAX_FILE, 0).strip()
            os.close(lock)
            process = f" (process {holder.decode()})" if holder.isdigit() else ""
            raise ConfigError(
                f"data directory {path} is in use by another broker{process}"
            ) from None
        except OSError as error:
            if lock >= 0:
                os.close(lock)
            raise ConfigError(f"data directory {path}: {error.strerror or error}") from None
        return lock

    def close(self) -> None:
        """Release the lock, so that another broker may use the folder; harmless when repeated."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def identity(self, wall: float, rng: random.Random) -> BrokerIdentity:
        """Return the id kept here, made by `rng` the first time, and the next boot number, which is
        not below `wall` (s since the epoch).

        The clock alone would not do, because it may be set back; the count alone would not, because
        the file may be lost. Both are on the disk before this returns. Raises ConfigError with the
        name of the file that cannot be used.
        """
        raw_id, raw_boot = self._read("broker-id"), self._read("boot")
        if raw_id is not None and not re.fullmatch(rb"[0-9a-fA-F]{16}\s*", raw_id):
            raise ConfigError(
                f"{self.path / 'broker-id'}: not a broker id of 16 hexadecimal digits"
            )
        key = self._key(raw_id is None, rng)
        if raw_id is None:
            self._write("broker-id", key.id.hex())
        elif bytes.fromhex(raw_id.decode().strip()) != key.id:
            raise ConfigError(
                f"{self.path / 'broker-id'}: not the id of the key in broker-key, "
                f"which is {key.id.hex()}"
            )
        previous = 0
        if raw_boot is not None:
            if not re.fullmatch(rb"[0-9]{1,10}\s*", raw_boot) or int(raw_boot) > MAX_BOOT:
                raise ConfigError(f"{self.path / 'boot'}: not a boot number from 0 to {MAX_BOOT}")
            previous = int(raw_boot)
        boot = max(previous + 1, min(int(wall), MAX_BOOT))
        if boot > MAX_BOOT:
            raise ConfigError(
                f"{self.path / 'boot'}: {previous} is the last boot number; "
                "remove the folder for a new broker id"
            )
        self._write("boot", str(boot))
        self._texts = {
            "broker-key": (key.seed + key.public).hex(),
            "broker-id": key.id.hex(),
            "boot": str(boot),
        }
        return BrokerIdentity(key.id, boot, key)

    def check(self) -> None:
        """Check that the next start would be the same broker, and that no other one can start here
        meanwhile. Raises OSError or ConfigError."""
        check_file(self._lock, self.path / "lock")
        for name, text in self._texts.items():
            if (there := self._text(name)) != text:
                raise ConfigError(f"{self.path / name} is {'changed' if there else 'gone'}")

    def restore(self) -> None:
        """Lock the folder again, and write again who the broker is, where that is not there any
        more. Raises ConfigError; also if the folder is another broker's by now, which is left as it
        is."""
        lock = self._lock
        try:
            check_file(lock, self.path / "lock")
        except OSError:
            lock = self._locked()
        try:
            for name, text in self._texts.items():
                there = self._text(name)
                if there and there != text and name != "boot":
                    raise ConfigError(f"{self.path / name} is another broker's")
                if there != text:
                    self._write(name, text)
        except ConfigError:
            if lock != self._lock:
                os.close(lock)
            raise
        if lock != self._lock:
            os.close(self._lock)
            self._lock = lock

    def alarms(self) -> list[Any]:
        """Return the alarms of brokers that are gone, as `keep_alarms` wrote them. Raises
        ConfigError for a file that cannot be used."""
        try:
            found = json.loads(self._read("alarms", _MAX_ALARMS) or b"[]")
        except ValueError:
            found = None
        if not isinstance(found, list):
            raise ConfigError(f"{self.path / 'alarms'}: not a list in JSON")
        return found

    def keep_alarms(self, alarms: list[dict[str, Any]]) -> None:
        """Write alarms for the next start. Raises ConfigError."""
        self._write("alarms", json.dumps(alarms), sync=False)

    def _key(self, new: bool, rng: random.Random) -> BrokerKey:
        """Return the key kept here. If there is none, that of a `new` broker is made by `rng`."""
        raw, path = self._read("broker-key"), self.path / "broker-key"
        if raw is None:
            if not new:
                raise ConfigError(
                    f"{path}: there is none, so the id in broker-id is not ours; "
                    "begin with an empty folder"
                )
            key = new_key(rng)
            self._write("broker-key", (key.seed + key.public).hex())
            return key
        if not re.fullmatch(rb"[0-9a-fA-F]{128}\s*", raw):
            raise ConfigError(f"{path}: not a broker's key of 128 hexadecimal digits")
        both = bytes.fromhex(raw.decode().strip())
        return BrokerKey(both[:SEED_BYTES], both[SEED_BYTES:])

    def _read(self, name: str, most: int = _MAX_FILE) -> bytes | None:
        path = self.path / name
        try:
            with path.open("rb") as stream:
                return stream.read(most)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None

    def _text(self, name: str) -> str:
        """Return what a file has; an empty text if there is none."""
        return (self._read(name) or b"").decode(errors="replace").strip().lower()

    def _write(self, name: str, text: str, *, sync: bool = True) -> None:
        """Replace a file as a whole: after a crash there is the old text or the new one, never half
        of it. `sync`: it is on the disk when this returns."""
        path, fresh = self.path / name, self.path / f".{name}.new"
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, f"{text}\n".encode())
                if sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            fresh.replace(path)
            if not sync:
                return
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None


def new_key(rng: random.Random) -> BrokerKey:
    """Return a new key. Its id, 64 bits of a hash, differs for each of a thousand brokers, and is
    never zero, which means no broker."""
    while not any((key := make_key(rng.randbytes(SEED_BYTES))).id):
        pass
    return key


def fresh_identity(wall: float, rng: random.Random) -> BrokerIdentity:
    """Return the identity of a broker without a data directory: it is a new one with every
    start."""
    key = new_key(rng)
    return BrokerIdentity(key.id, max(1, min(int(wall), MAX_BOOT)), key)
