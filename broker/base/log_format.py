"""The format of the log: lines of text, or one JSON object a line.

Levels: error - this broker cannot do what it should. warning - an operator should look at it, or
something was refused. info - start, stop, links, the tree. debug - everything else, each client's
connect and disconnect included: at ten thousand a second, lines would slow the broker down; metrics
and $SYS count them.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
import warnings
from typing import Any

QUIET = ("amqtt", "transitions", "asyncio", "websockets")
"""Loggers of libraries: they log from warning on, or at debug."""

PLUGINS = "amqtt.broker.plugins"
"""The logger of configured plugins; the event logger, for example, logs each CONNECT."""


def set_up(level: str, form: str = "text") -> None:
    """Log to the standard error from `level` on ("debug" to "error"); `form`: "text" or "json"."""
    # A broken pipe is no reason to fail.
    logging.raiseExceptions = False
    number = getattr(logging, level.upper())
    handler: logging.Handler = (
        logging.StreamHandler() if sys.stderr is not None else logging.NullHandler()
    )
    handler.setFormatter(JsonLines() if form == "json" else OneLine())
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(
            max(number, logging.WARNING) if level != "debug" else logging.DEBUG
        )
    logging.getLogger("transitions").setLevel(max(number, logging.WARNING))
    logging.getLogger(PLUGINS).setLevel(number)
    logging.getLogger(PLUGINS).addFilter(lambda record: record.name != PLUGINS or level == "debug")
    if not sys.warnoptions:
        warnings.simplefilter("ignore", DeprecationWarning)


LOG = logging.getLogger("mqttree")


def log_line(level: str, text: str) -> None:
    """Write one line to the log of the broker; `level`: "debug" to "error"."""
    LOG.log(getattr(logging, level.upper(), logging.INFO), "%s", text)


MAX_LINE = 4000
"""characters of a line of the log, without its traceback; 16,000 bytes at most. Container engines
break longer lines than 16 KiB in pieces, of which one could look like a line of its own."""


def printable(text: str) -> str:
    """Return a text in which control characters, and those that change the direction of writing,
    are escapes as in Python."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def json_text(value: object, indent: int | None = None) -> str:
    """Return JSON that may go to a terminal: `value` in ASCII without control characters, but for
    the ends of lines with an `indent`."""
    # json leaves this one alone. It can only stand within a string.
    return json.dumps(value, default=str, indent=indent).replace("\x7f", "\\u007f")


class OneLine(logging.Formatter):
    """Keeps each record on one line, so that text from a peer cannot forge lines. The lines of a
    traceback are indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line without a traceback."""
        line = printable(super().formatMessage(record))
        return line if len(line) <= MAX_LINE else line[: MAX_LINE - 3] + "..."

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return a traceback; the text of an exception may be a peer's."""
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {printable(line)}" for line in lines)


class JsonLines(logging.Formatter):
    """One JSON object a line: ts (RFC 3339, UTC), level, logger, event (the text), and the `fields`
    of the call.

    `log.info("text", extra={"fields": {"client": "c1"}})` adds "client"; a field never replaces one
    of the four.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line of ASCII."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        entry: dict[str, object] = {
            "ts": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _bounded(record.getMessage()),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            entry = fields | entry
            entry = {key: entry[key] for key in ("ts", "level", "logger", "event", *fields)}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json_text(entry)


def _bounded(text: str) -> str:
    """Return the text of a record, cut if it would take more of a line of JSON than MAX_LINE."""
    if len(json_text(text)) <= MAX_LINE:
        return text
    # A letter outside of the basic plane takes 12 bytes.
    return text[: MAX_LINE // 12] + "..."
