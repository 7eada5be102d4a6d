"""`mqttree completion`: a script has what the parsers have, and real shells complete by it."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttree.broker.cli.main import make_parser
from tests.kit.command import CLI, mqttree
from tests.kit.waiting import PATIENCE, until

pytestmark = pytest.mark.interop

BASH = ["bash", "--norc", "--noprofile"]
ZSH = ["zsh", "-f"]

needs_zsh = pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")


def script(shell: str) -> str:
    found = mqttree("completion", shell)
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script for bash, in a folder with those for the others and some files."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        (folder / f"completion.{shell}").write_text(script(shell))
    (folder / "a file.yaml").touch()
    (folder / "folder").mkdir()
    return folder / "completion.bash"


def completed(bash: Path, *words: str) -> set[str]:
    """What bash offers for the last one of these words."""
    line = """
        source completion.bash
        COMP_WORDS=(mqttree "$@")
        COMP_CWORD=$#
        _shtab_mqttree
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
        (["run", "--name", ""], set()),
        (["run", "-c", "a"], {"a file.yaml"}),
        (["run", "--data-dir", ""], {"folder"}),
        (["clients", "--state", "c"], {"connected"}),
        (["clients", "--json", "--lim"], {"--limit"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["completion", "f"], {"fish"}),
        (["passwd", "a"], {"a file.yaml"}),
        (["passwd", "--del"], {"--delete"}),
        (["live", "--bro"], {"--brokers"}),
        (["bench", "lo"], {"load"}),
        (["bench", "lab", "--lab", "name"], {"namespaces"}),
        (["nothing", "--no-such"], set()),
    ],
)
def test_bash_offers_commands_flags_values_and_files(
    bash: Path, words: list[str], offered: set[str]
) -> None:
    assert completed(bash, *words) == offered


@contextlib.contextmanager
def typing(folder: Path, shell: list[str]) -> Iterator[int]:
    """A `shell` on a terminal; the other end of that."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*shell, "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "TERM": "dumb",
            "PS1": "ready> ",
            "HOME": str(folder),
            "COLUMNS": "200",
        },
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield ours
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(ours)


class Terminal:
    """What a shell on a terminal has written."""

    def __init__(self, ours: int) -> None:
        self._ours = ours
        self._seen = b""

    def came(self, wanted: bytes) -> bool:
        if select.select([self._ours], [], [], 0.1)[0]:
            self._seen += os.read(self._ours, 65536)
        return wanted in self._seen

    def has(self, text: bytes) -> bool:
        return text in self._seen

    def says(self, keys: bytes, wanted: bytes) -> None:
        """Type `keys`, and wait for `wanted`."""
        self._seen = b""
        os.write(self._ours, keys)
        until(lambda: self.came(wanted), f"{wanted!r} behind {keys!r}")


@needs_zsh
def test_an_interactive_zsh_completes_by_the_tabulator(bash: Path) -> None:
    with typing(bash.parent, ZSH) as ours:
        terminal = Terminal(ours)
        until(lambda: terminal.came(b"ready> "), "a prompt")
        terminal.says(b"autoload -Uz compinit; compinit -u -D; echo be''gun\n", b"begun")
        terminal.says(b'eval "$(<completion.zsh)"; echo $? regis""tered\n', b"0 registered")
        # A word after the other: what is typed while zsh completes is not waited for.
        terminal.says(b"mqttree stat\t", b"status ")
        terminal.says(b"--js\t", b"--json ")
        terminal.says(b"\x01echo \n", b"\nmqttree status --json")
        terminal.says(b"mqttree run --routing sr\t", b"srt ")
        terminal.says(b"--data-dir f\t", b"folder/")
        terminal.says(b"\x15mqttree to\t\t", b"topics  -- show the busiest")
        terminal.says(b"\x15mqttree d\t\t", b"doctor  -- find out why")
        terminal.says(b"\x15mqttree passwd a\t", b"a\\ file.yaml ")
        terminal.says(b"\x15mqttree live --bro\t", b"kers ")
        terminal.says(b"\x15mqttree bench lo\t", b"load ")
        terminal.says(b"\x15mqttree bench lab --lab name\t", b"spaces ")
        # The bell: nothing is offered.
        terminal.says(b"\x15mqttree run --listen \t", b"\x07")
        assert not terminal.has(b"not found")


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
