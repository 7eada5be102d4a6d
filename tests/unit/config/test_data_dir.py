"""Who a broker is across its restarts."""

from __future__ import annotations

import random
import stat
from pathlib import Path

import pytest

from mqttree.broker.base.broker_key import id_of, make_key
from mqttree.broker.config.data_dir import MAX_BOOT, DataDir, fresh_identity
from mqttree.broker.config.yaml_file import ConfigError


def started(path: Path, wall: float, seed: int = 1) -> tuple[bytes, int]:
    data = DataDir(path)
    try:
        found = data.identity(wall, random.Random(seed))
    finally:
        data.close()
    return found.id, found.boot


def test_the_id_stays_and_the_boot_number_grows(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "where"
    first = started(folder, 1000.0, 1)
    again = started(folder, 1000.5, 2)
    later = started(folder, 5000.0, 3)
    back = started(folder, 10.0, 4)  # the clock was set back
    assert len(first[0]) == 8
    assert first[0] == again[0] == later[0] == back[0]
    assert [first[1], again[1], later[1], back[1]] == [1000, 1001, 5000, 5001]


def test_two_data_directories_make_two_brokers(tmp_path: Path) -> None:
    assert started(tmp_path / "a", 1.0, 1)[0] != started(tmp_path / "b", 1.0, 2)[0]


def test_files_are_for_their_owner_and_nothing_is_left_over(tmp_path: Path) -> None:
    started(tmp_path, 1000.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "boot",
        "broker-id",
        "broker-key",
        "lock",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_half_written_file_of_a_crash_does_no_harm(tmp_path: Path) -> None:
    first = started(tmp_path, 1000.0)
    (tmp_path / ".boot.new").write_text("99")
    (tmp_path / ".broker-id.new").write_text("")
    assert started(tmp_path, 1000.0) == (first[0], 1001)


def test_the_id_is_that_of_the_key(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    found = data.identity(1.0, random.Random(1))
    again = data.identity(2.0, random.Random(2))
    data.close()
    assert found.key == again.key == make_key(found.key.seed)
    assert found.id == again.id == found.key.id == id_of(found.key.public)
    fresh = fresh_identity(1.0, random.Random(3))
    assert fresh.id == fresh.key.id != found.id
    (tmp_path / "broker-id").write_text("00112233445566aa")
    with pytest.raises(
        ConfigError,
        match=f"broker-id: not the id of the key in broker-key, which is {found.id.hex()}",
    ):
        started(tmp_path, 1000.0)
    (tmp_path / "broker-key").unlink()
    with pytest.raises(ConfigError, match="broker-key: there is none"):
        started(tmp_path, 1000.0)
    assert not (tmp_path / "broker-key").exists()


@pytest.mark.parametrize("file", ["broker-id", "broker-key", "boot"])
@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"garbage", b"-1\n", b"\xff\xfe\0", b"12345678901234567890123", b"1 2", b"9" * 64],
)
def test_garbage_is_refused_and_kept(tmp_path: Path, file: str, content: bytes) -> None:
    started(tmp_path, 1000.0)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        started(tmp_path, 2000.0)
    assert str(tmp_path / file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (tmp_path / file).read_bytes() == content


def test_the_last_boot_number_can_be_used_once(tmp_path: Path) -> None:
    started(tmp_path, 1000.0)
    (tmp_path / "boot").write_text(str(MAX_BOOT - 1))
    assert started(tmp_path, 1000.0)[1] == MAX_BOOT
    with pytest.raises(ConfigError, match="last boot number"):
        started(tmp_path, 1000.0)


def test_a_data_directory_is_locked_by_one_broker(tmp_path: Path) -> None:
    holder = DataDir(tmp_path)
    with pytest.raises(ConfigError, match=r"in use by another broker \(process \d+\)"):
        DataDir(tmp_path)
    holder.close()
    holder.close()
    DataDir(tmp_path).close()


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError) as caught:
            DataDir(path)
        assert str(path) in str(caught.value)


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broker-id").mkdir()
    with pytest.raises(ConfigError, match="broker-id: Is a directory"):
        started(tmp_path, 1.0)


def test_without_a_folder_every_start_is_a_new_broker() -> None:
    rng = random.Random(7)
    first, second = fresh_identity(1234.9, rng), fresh_identity(0.0, rng)
    assert first.id != second.id
    assert (first.boot, second.boot) == (1234, 1)
    assert any(first.id)
