"""Every block of code on the pages, and in docstrings, is what it looks like: commands that exist
with options that they know, programs that compile and find what they import, files that our readers
accept. What is none of these is a drawing or what a program prints (`PRINTED`)."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests
from mqttree.bench.scenarios import scenario
from mqttree.broker.auth.acl_file import parse_rules
from mqttree.broker.cli.main import main
from mqttree.broker.config import mqtt_options
from mqttree.broker.config.listener_options import split_options
from mqttree.broker.config.mosquitto_bridges import read_bridges
from mqttree.broker.config.options import OPTIONS, read_settings
from mqttree.broker.config.yaml_file import ConfigFile
from mqttree.broker.limits import DEFAULTS
from tests.kit.source import parse
from tests.process.certificates import Authority
from tests.text.test_architecture import ROOT, files, read

PROGRAMS = re.compile(
    r"\.|base64|cat|chrt|curl|docker|head|kill|kubectl|make|mkdir|mosquitto_[ps]ub|mqttree|pip|python3?|sleep"
    r"|spark-submit|umask|xdg-open|\.venv/bin/\w+|[A-Z]+=\S+"
)
"""What a command begins with: ours, and programs of others that the pages call."""

MODULES = {"tests.sim": "tests.sim.__main__", "tests.chaos": "tests.chaos.__main__"}
"""What `python -m` runs, and where its parser is."""

PRINTED = re.compile(
    r"->|\S  +\S|^the compiled core was|^redirect sent|^listeners.tcp|^  \S+ \(mqtt:", re.M
)
"""Drawings, and what programs print."""

TREE = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

CODE = re.compile(r"^(from \S+ )?import \S|^async with .*:$|^def |^node = ", re.M)


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """The blocks of code in `text`, each with the number of its first line: those between fences,
    and those that are indented by four more than the text around them."""
    margin, start, found, fenced = 0, 0, list[str](), False
    lines = text.split("\n")
    for number, line in enumerate([*lines, "end"], 1):
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("```"):
            if fenced:
                yield start, "\n".join(found)
            fenced, start, found = not fenced, number + 1, []
        elif fenced or (line.strip() and found and indent >= margin + 4):
            found.append(line if fenced else line[margin + 4 :])
        elif not line.strip():
            found += [""] * bool(found)
        elif indent >= margin + 4 and not lines[number - 2].strip():
            start, found = number, [line[margin + 4 :]]
        else:
            if found:
                yield start, "\n".join(found).rstrip()
            found = []
            if item := re.match(r"\s*([*-]|\d+\.)\s+", line):
                margin = len(item.group())
            elif indent < margin:
                margin = indent


def every_block() -> Iterator[Any]:
    for name in files():
        if name.endswith(".md") and "licences" not in name:
            for number, block in blocks(read(name)):
                yield pytest.param(block, id=f"{name}:{number}")
        elif name == "tests/__init__.py" or re.match(r"(?!tests/).*\.py$", name):
            for node in ast.walk(parse(read(name))):
                if isinstance(
                    node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
                ):
                    for number, block in blocks(ast.get_docstring(node) or ""):
                        if CODE.search(block) or re.match(r"mqttree [a-z]|python3? -m", block):
                            yield pytest.param(block, id=f"{name}:{number}")


def test_the_example_of_a_split_runs() -> None:
    [(_, block)] = blocks(tests.__doc__ or "")
    exec(compile(block, "tests/__init__.py", "exec"), {})


class Parsed(BaseException):
    """A command line was parsed, and is not carried out."""


@pytest.mark.parametrize("block", [*every_block()])
def test_a_block_of_code_is_right(
    block: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if re.match(r"[{[]", block):
        json.loads(block)
    elif CODE.search(block):
        check_program(block)
    elif re.match(r"[a-z]+:( .*)?\n", block) and not PRINTED.search(re.sub(" +#.*", "", block)):
        check_file(block, tmp_path)
    elif re.search(r"^connection ", block, re.M):
        (tmp_path / "bridges").write_text(block)
        assert read_bridges(str(tmp_path / "bridges"))
    elif re.search(r"^(allow|deny) ", block, re.M):
        assert parse_rules("page", block, limits=DEFAULTS)
        # A comment has not swallowed one.
        assert not re.search(r"#.*\b(allow|deny) +(publish|subscribe|all)\b", block)
    elif variables := re.findall(r"^MQTTREE_([A-Z_]+)=", block, re.M):
        assert {name.lower() for name in variables} <= {*OPTIONS, "config"}
    elif block.startswith("persistence "):
        assert all(re.fullmatch(r"[a-z_]+ \w+", line) for line in block.splitlines())
    elif PROGRAMS.fullmatch(block.lstrip("(").split()[0]) or "$ " in block:
        check_commands(block, monkeypatch)
    else:
        assert PRINTED.search(block)


def check_program(block: str) -> None:
    """A program compiles, and what it imports is there."""
    for node in ast.walk(compile(block, "page", "exec", TREE)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            module = importlib.import_module(node.module)
            for name in node.names:
                found = hasattr(module, name.name)
                assert found or importlib.import_module(f"{node.module}.{name.name}")


def check_file(block: str, folder: Path) -> None:
    """A file in YAML is a scenario of ours, or a configuration; the files that it names are
    made."""
    for key, name in re.findall(r"\b((?:cert|key|ca|secret-|password-)file): ([^\s,}]+)", block):
        path = folder / Path(name).name
        block = block.replace(f"{key}: {name}", f"{key}: {path}")
        if key in ("secret-file", "password-file"):
            path.write_text("s" * 32)
            path.chmod(0o600)
        elif key == "cafile":
            path.write_bytes(Authority(folder / "ca").ca.read_bytes())
        elif key == "certfile":
            issued = Authority(folder / "issuer").issue("broker")
            path.write_bytes(issued[0].read_bytes())
            path.with_suffix(".key").write_bytes(issued[1].read_bytes())
    file = ConfigFile.parse("page", block)
    if "title" in file.data:
        scenario.parse(file, "page")
        return
    assert file.data.keys() <= {"access", "federation", "legs", "listeners", "mqtt", "plugins"}
    read_settings({"config": file}, {})
    mqtt_options.read_section(file)
    split_options(file.data.get("listeners", {}))


def check_commands(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a shell is given it can read; all programs are known, and ours know their options."""
    lines = block.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    # Behind three spaces stands what a line is for.
    lines = [re.sub(r"\s{3,}\S.*", "", line) for line in lines]
    text = "\n".join(lines)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    for line in lines:
        command: list[str] = []
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        for word in [*words, ";"]:
            if not set(word) <= set("();&|"):
                command.append(word)
            elif command:
                check_command(command, monkeypatch)
                command = []


def check_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert PROGRAMS.fullmatch(words[0]), words[0]
    for word in words:
        assert not word.startswith("tests/") or (ROOT / word).exists(), word
    run = next(
        (at for at, word in enumerate(words) if re.fullmatch(r"(.*/bin/)?mqttree", word)),
        len(words),
    )
    if words[0] == "make":
        goals = [word for word in words[1:] if "=" not in word]
        assert all(re.search(rf"^{goal}:", read("Makefile"), re.M) for goal in goals)
    elif "-m" in words and (module := MODULES.get(words[words.index("-m") + 1])) is not None:
        options = words[words.index("-m") + 2 :]
        check_options(importlib.import_module(module).main, options, monkeypatch)
    elif (
        words[run + 1 :]
        and "--entrypoint" not in words
        and (not run or {"chrt", "exec", "run"} & {*words[:run]})
    ):
        options = words[run + 1 :]
        end = options.index(">") if ">" in options else len(options)
        check_options(main, options[:end], monkeypatch)


def check_options(run: Any, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of ours knows its options; it is not carried out."""
    parse, depth = argparse.ArgumentParser.parse_known_args, [0]

    def parse_known_args(self: argparse.ArgumentParser, *given: Any, **named: Any) -> Any:
        depth[0] += 1
        found, unknown = parse(self, *given, **named)
        depth[0] -= 1
        if not depth[0]:
            assert not unknown
            raise Parsed
        return found, unknown

    with monkeypatch.context() as patch, pytest.raises((Parsed, SystemExit)) as end:
        patch.setattr(argparse.ArgumentParser, "parse_known_args", parse_known_args)
        raise SystemExit(run(words))
    assert end.type is Parsed or not end.value.code


LABELS = {"mqttree link 1", "mqttree broker id 1", r"mqttree journal\n"}
"""Texts within our protocols, which are no commands."""


@pytest.mark.parametrize("page", [name for name in files() if name.endswith(".md")])
def test_commands_within_sentences_exist(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for found in re.findall(r"`(mqttree [^`]+)`", read(page)):
        if (command := " ".join(found.split())) not in LABELS:
            try:
                check_options(main, shlex.split(command.partition(" > ")[0])[1:], monkeypatch)
            except AssertionError:
                # A sentence may name a command without what it needs.
                said = capsys.readouterr().err
                assert re.search("are required|expected one argument", said), (command, said)
