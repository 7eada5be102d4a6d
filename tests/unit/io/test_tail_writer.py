"""The files of the log's tail."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from mqttree.broker.config.yaml_file import ConfigError
from mqttree.broker.core.effects import TailDrop, TailRead, TailSync, TailWrite
from mqttree.broker.io.tail_writer import TailEffect, TailWriter
from mqttree.broker.persistence.tail_segment import Away, encode_away, encode_header

ID = b"brokerid"


class Writer:
    """Gives effects to the files and waits for the answers."""

    def __init__(self, folder: Path) -> None:
        self.files = TailWriter(folder, ID)
        self.files.start(self._told)
        self.said = threading.Event()
        self.answer: object = None

    def _told(self, effect: TailEffect, answer: object) -> None:
        self.answer = answer
        self.said.set()

    def do(self, effect: TailEffect) -> object:
        self.said.clear()
        self.files.put(effect)
        assert self.said.wait(20)
        return self.answer


def test_pieces_that_were_written_are_read(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    head = encode_header(ID, 1)
    away = encode_away([Away(b"broker-b", 5, 4, (b"#",))])
    assert writer.do(TailWrite(1, 0, head, 1)) is None
    assert writer.do(TailWrite(1, len(head), away, 2)) is None
    assert writer.do(TailSync(3)) is None
    assert writer.do(TailRead(1, len(head), len(away), 4)) == away
    assert writer.do(TailRead(1, len(head), 1000, 5)) == away
    assert writer.do(TailRead(2, 0, 10, 6)) is None
    assert writer.do(TailWrite(2, 0, encode_header(ID, 2), 7)) is None
    writer.files.put(TailDrop(2))
    writer.files.close()
    loaded = TailWriter(tmp_path, ID).load()
    assert not loaded.cuts
    [(number, size, [found])] = loaded.segments
    assert (number, size) == (1, len(head) + len(away))
    assert found.away == (Away(b"broker-b", 5, 4, (b"#",)),)


def test_a_removed_folder_is_an_error_once_and_made_again(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    head = encode_header(ID, 1)
    assert writer.do(TailWrite(1, 0, head, 1)) is None
    shutil.rmtree(tmp_path / "tail")
    assert writer.do(TailWrite(1, len(head), b"x", 2)) == f"{tmp_path}/tail/00000001 is gone"
    assert writer.do(TailWrite(2, 0, encode_header(ID, 2), 3)) is None
    assert writer.do(TailSync(4)) is None
    writer.files.close()
    assert [number for number, *_ in TailWriter(tmp_path, ID).load().segments] == [2]


def test_a_segment_that_was_cut_off_is_written_no_more(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    head = encode_header(ID, 1)
    assert writer.do(TailWrite(1, 0, head, 1)) is None
    os.truncate(tmp_path / "tail" / "00000001", 0)
    why = f"{tmp_path}/tail/00000001 has 0 bytes instead of {len(head)}"
    assert writer.do(TailWrite(1, len(head), b"x", 2)) == why
    writer.files.close()


def test_each_unreadable_file_is_reported_in_one_line(tmp_path: Path) -> None:
    files = TailWriter(tmp_path, ID)
    away = encode_away([Away(b"broker-b", 5, 4, ())])
    (tmp_path / "tail" / "00000001").write_bytes(encode_header(ID, 1) + away + away[:-1])
    (tmp_path / "tail" / "00000002").write_bytes(b"something else")
    (tmp_path / "tail" / "00000003").write_bytes(encode_header(b"another1", 3) + away)
    (tmp_path / "tail" / "00000004").mkdir()
    (tmp_path / "tail" / "notes").write_text("nothing of ours")
    loaded = files.load()
    assert [number for number, _, _ in loaded.segments] == [1, 2, 3, 4]
    assert [len(frames) for _, _, frames in loaded.segments] == [1, 0, 0, 0]
    assert len(loaded.cuts) == 4
    assert all("\n" not in line for line in loaded.cuts)


def test_errors_are_reported_as_answers(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    (tmp_path / "tail" / "00000001").mkdir()
    assert writer.do(TailWrite(1, 0, b"x", 1)) == "Is a directory"
    writer.files.put(TailDrop(1))
    assert writer.do(TailSync(2)) is None
    writer.files.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError):
        TailWriter(tmp_path / "file", ID)


def test_without_absent_members_there_is_no_thread(tmp_path: Path) -> None:
    files = TailWriter(tmp_path, ID)
    files.start(lambda effect, answer: None)
    assert not [thread for thread in threading.enumerate() if thread.name == "tail"]
    files.close()
