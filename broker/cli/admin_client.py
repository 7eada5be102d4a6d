"""Asks `/api/v1` of a broker's admin port: where it is, what opens it, answers page by page."""

from __future__ import annotations

import argparse
import http.client
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from mqttree.broker.base.address import Address, is_wildcard
from mqttree.broker.cli.command_line import DEFAULT_ADMIN

if TYPE_CHECKING:
    import ssl

MAX_ANSWER = 64 * 1024 * 1024
"""bytes: a page of a thousand rows with the longest names fits."""

SEARCH_TIMEOUT = 300.0
"""s for a search, as the broker gives it."""

MAX_ROWS = 1000
"""rows of one page of `/api/v1`."""


class StatusError(Exception):
    """No answer, or one that is not from a broker; the text is one line."""


class TokenError(StatusError):
    """The token is wrong, or there is none."""


class Credentials(NamedTuple):
    """What opens an admin port that asks for more than a connection."""

    token: str = ""
    """Of its token file, "": none."""
    context: ssl.SSLContext | None = None
    """TLS, with a certificate if the port wants one; None: plain HTTP."""


class AdminPort(NamedTuple):
    """An admin port, and what opens it."""

    address: Address
    credentials: Credentials = Credentials()
    """None for a port on this machine that asks for nothing."""

    def get(
        self, path: str, query: Mapping[str, str | int] | None = None, timeout: float = 10.0
    ) -> dict[str, Any]:
        """Return the JSON of an answer.

        `path`: below `/api/v1`; `query`: its parameters; `timeout`: s for each step. Raises
        ConfigError if the broker cannot use a parameter, and StatusError if the answer is
        bad or missing; the text of both is one line.
        """
        status, found, said = self._ask("GET", path, query, timeout)
        if status == 400:
            from mqttree.broker.config.yaml_file import ConfigError

            raise ConfigError(said)
        if status != 200:
            raise StatusError(f"{self.where} does not answer {path}: {said}")
        return found

    def delete(self, path: str, timeout: float = 10.0) -> None:
        """Have something deleted. `path`: below `/api/v1`; `timeout`: s for each step. Raises
        StatusError with one line if the broker refuses or no answer comes."""
        status, _, said = self._ask("DELETE", path, None, timeout)
        if status != 200:
            raise StatusError(f"{self.where} refuses: {said}")

    def post(self, path: str, query: Mapping[str, str | int], timeout: float) -> dict[str, Any]:
        """Begin something, and return the JSON of the answer.

        `path`: below `/api/v1`; `query`: its parameters; `timeout`: s for each step. Raises
        ValueError if the broker cannot use a parameter, and StatusError for any other refusal and
        if no answer comes; the text of both is one line.
        """
        status, found, said = self._ask("POST", path, query, timeout)
        if status != 202:
            refused = f"{self.where} refuses: {said}"
            raise ValueError(refused) if status == 400 else StatusError(refused)
        return found

    def federation(self, timeout: float = 3.0) -> dict[str, Any]:
        """Return the federation as the broker sees it, within about `timeout` s. Raises
        StatusError."""
        state = self.get("/federation", timeout=timeout)
        if not isinstance(state.get("links"), list) or "root" not in state:
            raise StatusError(self._stranger)
        return state

    @property
    def where(self) -> Address:
        """The address that is asked."""
        host = "127.0.0.1" if is_wildcard(self.address.host) else self.address.host
        return Address(host, self.address.port)

    @property
    def _stranger(self) -> str:
        return f"{self.where} does not answer as a broker's admin port does"

    def _ask(
        self, method: str, path: str, query: Mapping[str, str | int] | None, timeout: float
    ) -> tuple[int, dict[str, Any], str]:
        """Return the status of an answer, its JSON, and what is wrong, in a line. Raises
        StatusError."""
        where, (token, context) = self.where, self.credentials
        target = f"/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
        connection = _connection(where, timeout, context)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            connection.request(method, target, headers=headers)
            answer = connection.getresponse()
            if answer.status == 401:
                raise TokenError(
                    f"{where} does not take this token"
                    if token
                    else f"{where} wants a token (--admin-token-file)"
                )
            body = answer.read(MAX_ANSWER)
        except http.client.HTTPException:
            raise StatusError(self._stranger) from None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise StatusError(f"no broker answers at {where}: {reason}") from None
        finally:
            connection.close()
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            if answer.status < 300:
                raise StatusError(self._stranger)
            found = {"error": body.decode(errors="replace")}
        said = " ".join(str(found.get("error", "")).split())[:200]
        return answer.status, found, said or str(answer.status)

    def rows(
        self, path: str, name: str, query: Mapping[str, str | int], most: int
    ) -> dict[str, Any]:
        """Return an answer that comes in pages as if it were one page.

        `path`, `query`: of the request; `name`: of its rows; `most`: how many of them. Raises
        StatusError with one line if the answer is bad or missing.
        """
        found: list[Any] = []
        after: Mapping[str, str | int] = {}
        while True:
            limit = min(MAX_ROWS, most - len(found))
            page = self.get(path, {**query, **after, "limit": limit}, SEARCH_TIMEOUT)
            found += page[name]
            following = page["next"]
            if following is None or len(found) >= most:
                return {name: found, "total": page["total"], "next": following}
            after = {"after": following}


def _connection(
    where: Address, timeout: float, context: ssl.SSLContext | None
) -> http.client.HTTPConnection:
    if context is None:
        return http.client.HTTPConnection(where.host, where.port, timeout=timeout)
    return http.client.HTTPSConnection(where.host, where.port, timeout=timeout, context=context)


def admin_port(arguments: argparse.Namespace) -> AdminPort:
    """Return the admin port that the command line names, or where the broker of this machine has
    it. Raises ConfigError."""
    return AdminPort(admin_address(arguments), credentials_of(arguments))


def _setting(arguments: argparse.Namespace, name: str) -> tuple[str, str | None]:
    """Return the setting of the broker of this machine, and where it stands: as a flag, in the
    environment, or in the file that MQTTREE_CONFIG names. Raises ConfigError."""
    flag, variable = f"--{name}", f"MQTTREE_{name.replace('-', '_').upper()}"
    if (value := getattr(arguments, name.replace("-", "_"))) is not None:
        return flag, value
    if value := os.environ.get(variable):
        return variable, value
    path = os.environ.get("MQTTREE_CONFIG")
    # What --admin names is another broker.
    if not path or arguments.admin is not None:
        return flag, None
    from mqttree.broker.config.yaml_file import ConfigFile

    file = ConfigFile.read(path)
    section = file.data.get("federation")
    key = file.spelt(("federation",), name.replace("-", "_"))
    value = section.get(key) if isinstance(section, dict) else None
    return file.where(("federation", key)), None if value is None else str(value)


def admin_address(arguments: argparse.Namespace) -> Address:
    """Return the admin address from the flag, the environment, the file or the default. Raises
    ConfigError."""
    from mqttree.broker.config.options import OPTIONS
    from mqttree.broker.config.yaml_file import ConfigError

    where, value = _setting(arguments, "admin")
    try:
        found: Address = OPTIONS["admin"].read(DEFAULT_ADMIN if value is None else value)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not found.port:
        raise ConfigError(f"{where}: address {value!r} has no port to ask")
    return found


def credentials_of(arguments: argparse.Namespace) -> Credentials:
    """Return what opens the admin port, from flags, the environment and the file. Raises
    ConfigError."""
    from pathlib import Path

    from mqttree.broker.config.yaml_file import ConfigError

    where, file = _setting(arguments, "admin-token-file")
    token = ""
    if file:
        from mqttree.broker.io.admin_access import read_token

        try:
            token = read_token(Path(file)).decode()
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
    return Credentials(token, _context(arguments))


def _context(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    """Return TLS as flags ask for it. Raises ConfigError."""
    from pathlib import Path

    from mqttree.broker.config.yaml_file import ConfigError

    cafile, cert, key = arguments.admin_cafile, arguments.admin_cert, arguments.admin_key
    for flag, value, needed, other in (
        ("--admin-cert", cert, "--admin-cafile", cafile),
        ("--admin-key", key, "--admin-cert", cert),
    ):
        if value is not None and other is None:
            raise ConfigError(f"{flag}: needs {needed}")
    if cafile is None:
        return None
    from mqttree.broker.io.tls import client_context, describe_error

    flag, files = "--admin-cafile", cafile
    try:
        context = client_context(Path(cafile))
        if cert is not None:
            flag, files = "--admin-cert", " with ".join([cert, *([key] if key else [])])
            context.load_cert_chain(cert, key)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{flag}: cannot use {files}: {describe_error(error)}") from None
    return context
