"""A configuration file: YAML in, values out, with the line of every key for errors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

MAX_FILE = 1024 * 1024
"""bytes; a configuration has a few hundred lines, so a larger file is not one."""

_MAX_SHOWN = 40
# Keys below these are a plugin's own; their lines are not kept.
_MAX_DEPTH = 6

KeyPath = tuple[str, ...]


class ConfigError(ValueError):
    """Input that cannot be used; the text is one line that names it."""


class ConfigFile:
    """The mapping that a YAML file holds: `path` is the file's name, `data` its content, `lines`
    the line of each key."""

    def __init__(self, path: str, data: dict[str, Any], lines: dict[KeyPath, int]) -> None:
        self.path = path
        self.data = data
        self._lines = lines

    @classmethod
    def read(cls, path: str) -> ConfigFile:
        """Read a file. Raises ConfigError with one line that names the file and, where there is
        one, the line."""
        return cls.parse(path, read_text(path))

    @classmethod
    def parse(cls, path: str, text: str) -> ConfigFile:
        """Return what `text` holds, the content of the file named `path`: one document of plain
        YAML, without tags that build objects. Raises ConfigError with one line that names the file
        and the line."""
        import yaml

        loader: yaml.SafeLoader | None = None
        node: yaml.Node | None = None
        try:
            # This refuses characters that cannot be printed.
            loader = yaml.SafeLoader(text)
            node = loader.get_single_node()
            data = loader.construct_document(node) if node is not None else None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f":{mark.line + 1}" if mark is not None else ""
            raise ConfigError(
                f"{path}{line}: {_one_line(error.problem or error.context or 'not YAML')}"
            ) from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{path}: {_one_line(str(error))}") from None
        except RecursionError:
            raise ConfigError(f"{path}: nested too deeply") from None
        # A value that looks like a date or number and is none.
        except ValueError as error:
            misfit = _misfit(node, yaml.SafeLoader(""))
            where, text = (
                (f"{path}:{misfit.start_mark.line + 1}", misfit.value)
                if misfit is not None
                else (path, "a value")
            )
            shown = (
                text
                if len(text) <= _MAX_SHOWN
                else f"{text[:_MAX_SHOWN]}... ({len(text)} characters)"
            )
            raise ConfigError(
                f"{where}: {shown} is out of range: {_one_line(str(error)).partition(';')[0]}"
            ) from None
        finally:
            if loader is not None:
                loader.dispose()
        if data is None:
            data = {}
        if not isinstance(data, dict):
            raise ConfigError(f"{path}:1: expected keys and values, not {kind_of(data)}")
        lines: dict[KeyPath, int] = {}
        twice = _note_lines(node, (), lines)
        if twice is not None:
            key_path, second = twice
            raise ConfigError(
                f"{path}:{second}: {'.'.join(key_path)}: is there twice, "
                f"first in line {lines[key_path]}"
            )
        return cls(path, data, lines)

    def where(self, key_path: KeyPath) -> str:
        """Return "FILE:LINE: KEY" of a key, or of the closest one above it that is in the file."""
        for length in range(len(key_path), 0, -1):
            line = self._lines.get(key_path[:length])
            if line is not None:
                return f"{self.path}:{line}: {'.'.join(key_path)}"
        return f"{self.path}: {'.'.join(key_path)}"

    def fail(self, key_path: KeyPath, reason: str) -> NoReturn:
        """Raise ConfigError about a key."""
        raise ConfigError(f"{self.where(key_path)}: {_one_line(reason)}")

    def spelt(self, key_path: KeyPath, key: str) -> str:
        """Return a `key` below `key_path`, given with underscores, as the file spells it: it may
        have hyphens."""
        hyphens = key.replace("_", "-")
        value: Any = self.data
        for step in key_path:
            value = value.get(step) if isinstance(value, dict) else None
        return hyphens if isinstance(value, dict) and hyphens in value else key

    def section(self, key_path: KeyPath, known: Iterable[str]) -> dict[str, Any]:
        """Return the mapping at `key_path`, with underscores for hyphens and keys checked against
        `known`; {} if it is missing. Raises ConfigError for a key that is unknown or is there in
        both spellings."""
        value: Any = self.data
        for key in key_path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.fail(key_path, f"expected keys and values, not {kind_of(value)}")
        names = list(known)
        found: dict[str, Any] = {}
        for key, entry in value.items():
            name = key.replace("-", "_") if isinstance(key, str) else key
            if name not in names:
                hint = did_you_mean(
                    str(key).replace("_", "-"), [name.replace("_", "-") for name in names]
                )
                self.fail((*key_path, str(key)), f"unknown key{hint}")
            if name in found:
                self.fail((*key_path, key), "is there twice")
            found[name] = entry
        return found


def read_text(path: str) -> str:
    """Read a text file of at most MAX_FILE bytes. Raises ConfigError with one line that names
    it."""
    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    # A NUL in the name.
    except ValueError:
        raise ConfigError(f"cannot read {path!r}: not a file name") from None
    if len(raw) > MAX_FILE:
        raise ConfigError(f"{path}: larger than {MAX_FILE} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text") from None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'NAME'?" with the one of the `known` names that is most like an
    unknown `name`, "" if none is."""
    import difflib

    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def not_one_of(value: object, words: Iterable[str]) -> str:
    """Return what is wrong with a `value` that is none of the `words`."""
    known = list(words)
    hint = did_you_mean(value, known) if isinstance(value, str) else ""
    return f"{value!r} is not one of {', '.join(known)}{hint}"


def kind_of(value: object) -> str:
    """Return the kind of a YAML value, for error texts."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "yes or no"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text {value!r}" if len(value) <= 60 else "a text"
        case list():
            return "a list"
        case dict():
            return "keys and values"
        case _:
            return f"a {type(value).__name__}"


def _note_lines(node: Any, path: KeyPath, lines: dict[KeyPath, int]) -> tuple[KeyPath, int] | None:
    """Note the line of every key under a YAML node. The depth bounds what aliases could make of it.
    Returns a duplicate key and its second line: YAML forbids duplicates, and their author expects
    both to count."""
    pairs = getattr(node, "value", None)
    if (
        type(node).__name__ != "MappingNode"
        or not isinstance(pairs, list)
        or len(path) >= _MAX_DEPTH
        or len(lines) > 10_000
    ):
        return None
    for key, value in pairs:
        if isinstance(key.value, str):
            below = (*path, key.value)
            line = key.start_mark.line + 1
            if below in lines and key.value != "<<":
                return below, line
            lines[below] = line
            if (twice := _note_lines(value, below, lines)) is not None:
                return twice
    return None


def _misfit(node: Any, loader: Any) -> Any:
    """Return the first scalar under a YAML node that looks like a number or a date and cannot be
    one; None when all can."""
    waiting, seen = [node], 0
    while waiting and (seen := seen + 1) <= 10_000:
        each = waiting.pop()
        value = getattr(each, "value", None)
        if isinstance(value, list):
            parts = [
                part
                for entry in value
                for part in (entry if isinstance(entry, tuple) else (entry,))
            ]
            waiting += reversed(parts)
        elif each is not None:
            try:
                loader.construct_object(each)
            except ValueError:
                return each
    return None


def _one_line(text: str) -> str:
    return " ".join(text.split())
