"""`mqttree completion bash | zsh | fish`: scripts by which a shell completes command lines, made of
the parsers themselves.

A script knows commands, flags and values that are chosen from a few; it starts no program while
somebody types.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

PROGRAM: Final = "mqttree"

FILES: Final = "files"
FOLDERS: Final = "folders"

CHOICES = re.compile(r"[a-z0-9.-]+(\|[a-z0-9.-]+)+")
"""A metavar that names all values, `none|async|sync`."""


class Value(NamedTuple):
    """What a flag or an argument takes: files, folders, one of some words, or anything."""

    kind: str = ""
    words: tuple[str, ...] = ()


class Flag(NamedTuple):
    """One option, in all its spellings; `value` is None for a switch."""

    names: tuple[str, ...]
    text: str
    value: Value | None


class Command(NamedTuple):
    """What may stand behind a command, whose words are its `path`."""

    path: tuple[str, ...]
    text: str
    flags: tuple[Flag, ...]
    arguments: tuple[Value, ...]
    commands: tuple[str, ...]


def script(shell: str, commands: list[Command]) -> str:
    """Return the script for a `shell`, bash, zsh or fish, that completes these `commands`, of which
    the first one is the program itself."""
    makers: Mapping[str, Callable[[list[Command]], Iterator[str]]] = {
        "bash": _bash,
        "zsh": _zsh,
        "fish": _fish,
    }
    return "\n".join(makers[shell](commands)) + "\n"


# -------------------------------------------------------------------- what there is


def read(
    parser: argparse.ArgumentParser,
    path: tuple[str, ...],
    text: str,
    others: Mapping[str, argparse.ArgumentParser],
) -> Iterator[Command]:
    """Return the command of a parser and all below it.

    `parser`: of the command; `path`: its words; `text`: what it is for; `others`: parsers of
    commands that have one of their own, by name.
    """
    flags: list[Flag] = []
    values: list[Value] = []
    below: dict[str, argparse.ArgumentParser] = {}
    texts: dict[str, str] = {}
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
            texts = {each.dest: each.help or "" for each in action._choices_actions}
        elif action.option_strings:
            value = None if action.nargs == 0 else _value(action)
            flags.append(Flag(tuple(action.option_strings), action.help or "", value))
        else:
            values.append(_value(action))
    yield Command(path, text, tuple(flags), tuple(values), tuple(below))
    for name, each in below.items():
        yield from read(others.get(name, each), (*path, name), texts.get(name, ""), {})


def _value(action: argparse.Action) -> Value:
    if action.choices is not None:
        return Value("words", tuple(str(choice) for choice in action.choices))
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if CHOICES.fullmatch(metavar):
        return Value("words", tuple(metavar.split("|")))
    return Value({"FILE": FILES, "DIR": FOLDERS}.get(metavar, ""))


# -------------------------------------------------------------------- bash


def _bash(commands: list[Command]) -> Iterator[str]:
    yield f"# Completion of {PROGRAM} in bash: source <({PROGRAM} completion bash)"
    yield f"_{PROGRAM}() {{"
    yield "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}"
    yield f"    local path={PROGRAM} kind= words= i"
    # --state=all comes as three words.
    yield "    if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then"
    yield "        prev=${COMP_WORDS[COMP_CWORD-2]}"
    yield "    fi"
    yield "    for ((i = 1; i < COMP_CWORD; i++)); do"
    yield '        case "$path ${COMP_WORDS[i]}" in'
    below = [" ".join(command.path) for command in commands[1:]]
    yield "            " + "|".join(map(_quoted, below)) + ")"
    yield '                path="$path ${COMP_WORDS[i]}" ;;'
    yield "        esac"
    yield "    done"
    yield '    case "$path $prev" in'
    for command in commands:
        for flag in command.flags:
            if flag.value is not None:
                here = [_quoted(" ".join((*command.path, name))) for name in flag.names]
                yield f"        {'|'.join(here)}) {_bash_value(flag.value)} ;;"
    yield '        *) case "$path" in'
    for command in commands:
        found = [*command.commands]
        files = False
        for value in command.arguments:
            found += value.words
            files = files or value.kind == FILES
        found += [name for flag in command.flags for name in flag.names]
        kind = "kind=-f " if files else ""
        words = f"{kind}words={_quoted(' '.join(found))}"
        yield f"            {_quoted(' '.join(command.path))}) {words} ;;"
    yield "        esac ;;"
    yield "    esac"
    yield "    COMPREPLY=()"
    yield "    if [[ -n $words && ( -z $kind || $cur == -* ) ]]; then"
    yield '        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")'
    yield "    elif [[ -n $kind ]]; then"
    yield "        compopt -o filenames 2>/dev/null"
    yield '        mapfile -t COMPREPLY < <(compgen "$kind" -- "$cur")'
    yield "    fi"
    yield "}"
    yield f"complete -F _{PROGRAM} {PROGRAM}"


def _bash_value(value: Value) -> str:
    if value.words:
        return f"words={_quoted(' '.join(value.words))}"
    return {FILES: "kind=-f", FOLDERS: "kind=-d"}.get(value.kind, ":")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -------------------------------------------------------------------- zsh


def _zsh(commands: list[Command]) -> Iterator[str]:
    yield f"#compdef {PROGRAM}"
    yield f"# Completion of {PROGRAM} in zsh: source <({PROGRAM} completion zsh)"
    texts = {command.path: command.text for command in commands}
    for command in commands:
        yield f"{_function(command.path)}() {{"
        if command.commands:
            yield "    local state line"
            yield "    local -a commands"
        specs = [_zsh_flag(flag) for flag in command.flags]
        if command.commands:
            specs += ["'1: :->command'", "'*:: :->arguments'"]
        else:
            specs += [f"':argument:{_zsh_value(value)}'" for value in command.arguments]
        yield "    _arguments -C \\"
        for spec in specs:
            yield f"        {spec} \\"
        yield "        && return"
        if command.commands:
            yield "    case $state in"
            yield "        command)"
            yield "            commands=("
            for name in command.commands:
                text = texts[(*command.path, name)].replace(":", "\\:")
                yield f"                {_quoted(f'{name}:{text}')}"
            yield "            )"
            yield "            _describe command commands ;;"
            yield "        arguments)"
            yield "            case $line[1] in"
            for name in command.commands:
                yield f"                {name}) {_function((*command.path, name))} ;;"
            yield "            esac ;;"
            yield "    esac"
        yield "}"
    # Sourced, it registers itself; found by compinit, it is the body of the function.
    yield "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then"
    yield f'    _{PROGRAM} "$@"'
    yield "else"
    yield f"    compdef _{PROGRAM} {PROGRAM}"
    yield "fi"


def _function(path: tuple[str, ...]) -> str:
    return "_" + "_".join(path).replace("-", "_")


def _zsh_flag(flag: Flag) -> str:
    text = re.sub(r"([\[\]:\\])", r"\\\1", flag.text.replace("%%", "%"))
    value = "" if flag.value is None else f":value:{_zsh_value(flag.value)}"
    names = flag.names[0]
    if len(flag.names) > 1:
        every = " ".join(flag.names)
        return f"'({every})'{{{','.join(flag.names)}}}{_quoted(f'[{text}]{value}')}"
    return _quoted(f"{names}[{text}]{value}")


def _zsh_value(value: Value) -> str:
    if value.words:
        return f"({' '.join(value.words)})"
    return {FILES: "_files", FOLDERS: "_files -/"}.get(value.kind, "")


# -------------------------------------------------------------------- fish


def _fish(commands: list[Command]) -> Iterator[str]:
    yield f"# Completion of {PROGRAM} in fish: {PROGRAM} completion fish | source"
    yield f"complete -c {PROGRAM} -f"
    texts = {command.path: command.text for command in commands}
    for command in commands:
        here = _fish_condition(command)
        for name in command.commands:
            text = _quoted_fish(texts[(*command.path, name)])
            yield f"complete -c {PROGRAM} -n {here} -a {name} -d {text}"
        for flag in command.flags:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in flag.names
            )
            value = "" if flag.value is None else _fish_value(flag.value)
            text = _quoted_fish(flag.text.replace("%%", "%"))
            yield f"complete -c {PROGRAM} -n {here} {names}{value} -d {text}"
        for argument in command.arguments:
            if argument.words:
                yield f"complete -c {PROGRAM} -n {here} -a {_quoted_fish(' '.join(argument.words))}"
            elif argument.kind == FILES:
                yield f"complete -c {PROGRAM} -n {here} -F"


def _fish_condition(command: Command) -> str:
    """Return what is true in fish behind the words of a command, and before one below it."""
    words = command.path[1:]
    parts = [f"__fish_seen_subcommand_from {word}" for word in words]
    if command.commands:
        parts.append(f"not __fish_seen_subcommand_from {' '.join(command.commands)}")
    return _quoted_fish("; and ".join(parts) or "true")


def _fish_value(value: Value) -> str:
    if value.words:
        return f" -x -a {_quoted_fish(' '.join(value.words))}"
    return {FILES: " -r -F", FOLDERS: " -x -a '(__fish_complete_directories)'"}.get(
        value.kind, " -x"
    )


def _quoted_fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
