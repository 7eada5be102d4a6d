"""Asks `/api/v1` of a broker's admin port: where it is, what opens it, answers page by page."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from mqttree.broker.base.address import Address
from mqttree.broker.cli.command_line import DEFAULT_ADMIN
from mqttree.broker.cli.status import NONE, Credentials, StatusError, ask

MAX_ANSWER = 64 * 1024 * 1024
"""bytes: a page of a thousand rows with the longest names fits."""

SEARCH_TIMEOUT = 300.0
"""s for a search, as the broker gives it."""

MOST_ROWS = 1000
"""rows of one page of `/api/v1`."""


class AdminPort(NamedTuple):
    """An admin port, and what opens it."""

    address: Address
    credentials: Credentials = NONE

    def get(
        self, path: str, query: Mapping[str, str | int] | None = None, timeout: float = 10.0
    ) -> dict[str, Any]:
        """Return the JSON of an answer.

        `path`: below `/api/v1`; `query`: its parameters; `timeout`: s for each step. Raises
        StatusError with one line if there is no good answer.
        """
        full = f"/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
        where, status, body = ask(
            self.address, "GET", full, timeout, MAX_ANSWER, credentials=self.credentials
        )
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if status == 200 and isinstance(found, dict):
            return found
        said = found.get("error") if isinstance(found, dict) else body.decode(errors="replace")
        reason = " ".join(str(said).split())[:200] or status
        raise StatusError(f"{where} does not answer {path}: {reason}")

    def rows(
        self, path: str, name: str, query: Mapping[str, str | int], most: int
    ) -> dict[str, Any]:
        """Return an answer that comes in pages as if it were one page.

        `path`, `query`: of the request; `name`: of its rows; `most`: how many of them. Raises
        StatusError with one line if there is no good answer.
        """
        found: list[Any] = []
        after: Mapping[str, str | int] = {}
        while True:
            limit = min(MOST_ROWS, most - len(found))
            page = self.get(path, {**query, **after, "limit": limit}, SEARCH_TIMEOUT)
            found += page[name]
            following = page["next"]
            if following is None or len(found) >= most:
                return {name: found, "total": page["total"], "next": following}
            after = {"after": following}


def admin_port(arguments: argparse.Namespace) -> AdminPort:
    """Return the admin port that the command line or the environment names. Raises ConfigError."""
    return AdminPort(admin_address(arguments), credentials_of(arguments))


def admin_address(arguments: argparse.Namespace) -> Address:
    """Return the admin address from the flag, the environment or the default. Raises
    ConfigError."""
    from mqttree.broker.config.options import OPTIONS
    from mqttree.broker.config.yaml_file import ConfigError

    where, value = "", DEFAULT_ADMIN
    if arguments.admin is not None:
        where, value = "--admin: ", arguments.admin
    elif os.environ.get("MQTTREE_ADMIN"):
        where, value = "MQTTREE_ADMIN: ", os.environ["MQTTREE_ADMIN"]
    try:
        found: Address = OPTIONS["admin"].read(value)
    except ValueError as error:
        raise ConfigError(f"{where}{error}") from None
    return found


def credentials_of(arguments: argparse.Namespace) -> Credentials:
    """Return what opens the admin port, from flags and the environment. Raises ConfigError."""
    from pathlib import Path

    from mqttree.broker.config.yaml_file import ConfigError

    where, file = "--admin-token-file", arguments.admin_token_file
    if file is None:
        where, file = "MQTTREE_ADMIN_TOKEN_FILE", os.environ.get("MQTTREE_ADMIN_TOKEN_FILE")
    if not file and arguments.admin_cafile is None:
        return NONE
    token, context = "", None
    try:
        if file:
            from mqttree.broker.io.admin_access import read_token

            token = read_token(Path(file)).decode()
        if arguments.admin_cafile is not None:
            from mqttree.broker.io.tls import client_context

            where = "--admin-cafile, --admin-cert"
            context = client_context(Path(arguments.admin_cafile))
            if arguments.admin_cert is not None:
                context.load_cert_chain(arguments.admin_cert, arguments.admin_key)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{where}: {reason}") from None
    return Credentials(token, context)
