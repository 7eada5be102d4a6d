"""`mqttree completion`: a script has what the parsers have, and a real bash completes by it."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cli.main import make_parser
from tests.kit.waiting import PATIENCE, until

CLI = [sys.executable, "-m", "broker.cli"]
BASH = ["bash", "--norc", "--noprofile"]


def script(shell: str) -> str:
    command = [*CLI, "completion", shell]
    found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert found.stderr == ""
    return found.stdout


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script for bash, in a folder with some files."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "completion.bash").write_text(script("bash"))
    (folder / "a file.yaml").touch()
    (folder / "folder").mkdir()
    return folder / "completion.bash"


def completed(bash: Path, *words: str) -> set[str]:
    """What bash offers for the last one of these words."""
    line = """
        source completion.bash
        COMP_WORDS=(mqttree "$@")
        COMP_CWORD=$#
        _mqttree
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    found = subprocess.run(
        [*BASH, "-c", line, "bash", *words],
        cwd=bash.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert found.stderr == ""
    return set(found.stdout.splitlines()) - {""}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["st"], {"status"}),
        (["to"], {"top", "topics"}),
        (["run", "--adm"], {"--admin", "--admin-token-file"}),
        (["run", "--routing", "sr"], {"srt"}),
        (["run", "--discovery", ""], {"multicast", "static", "dns", "off"}),
        (["run", "--discovery", "=", "st"], {"static"}),
        (["run", "--discovery", "="], {"multicast", "static", "dns", "off"}),
        (["run", "--name", ""], set()),
        (["run", "-c", "a"], {"a file.yaml"}),
        (["run", "--data-dir", ""], {"folder"}),
        (["clients", "--state", "c"], {"connected"}),
        (["--json", "clients", "--lim"], {"--limit"}),
        (["completion", ""], {"bash", "zsh", "fish", "-h", "--help"}),
        (["completion", "f"], {"fish"}),
        (["passwd", "a"], {"a file.yaml"}),
        (["passwd", "--del"], {"--delete"}),
        (["live", "--bro"], {"--brokers"}),
        (["bench", "lo"], {"load"}),
        (["bench", "load", "--mode", "lat"], {"latency"}),
        (["nothing", "--no-such"], set()),
    ],
)
def test_bash_offers_commands_flags_values_and_files(
    bash: Path, words: list[str], offered: set[str]
) -> None:
    assert completed(bash, *words) == offered


@contextlib.contextmanager
def typing(folder: Path) -> Iterator[int]:
    """A bash on a terminal; the other end of that."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*BASH, "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "ready> "},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield ours
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(ours)


def test_an_interactive_bash_completes_by_the_tabulator(bash: Path) -> None:
    seen = b""

    def came(wanted: bytes) -> bool:
        nonlocal seen
        if select.select([ours], [], [], 0.1)[0]:
            seen += os.read(ours, 65536)
        return wanted in seen

    with typing(bash.parent) as ours:
        until(lambda: came(b"ready> "), "a prompt")
        os.write(ours, b"source completion.bash; complete -p mqttree\n")
        until(lambda: came(b"complete -F _mqttree mqttree\r\n"), "the completion of mqttree")
        os.write(ours, b"mqttree stat\t --js\t\x01echo \n")
        until(lambda: came(b"\nmqttree status --json"), "the whole line")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_has_all_commands_and_flags(shell: str) -> None:
    text = script(shell)
    actions = make_parser()._subparsers
    assert actions is not None
    commands = actions._group_actions[0].choices
    assert isinstance(commands, dict)
    for name, parser in commands.items():
        assert name in text
        for action in parser._actions:
            for flag in action.option_strings:
                if flag.startswith("--") and action.help != "==SUPPRESS==":
                    assert (f"-l {flag[2:]} " if shell == "fish" else flag) in text, (name, flag)
    assert "--die-with-parent" not in text


def test_another_shell_is_refused_with_one_line() -> None:
    command = [*CLI, "completion", "csh"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("mqttree: argument shell: invalid choice: 'csh'")
