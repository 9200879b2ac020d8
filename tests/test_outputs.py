"""Files are written whole or not at all, and what cannot be written is said before the work."""

import os
import sys
from pathlib import Path

import pytest

from strata.errors import StrataError
from strata.outputs import check_output, whole_file


def test_a_file_appears_when_it_is_complete(tmp_path: Path):
    path = tmp_path / "result.bin"
    path.write_text("old")
    with whole_file(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_work_that_fails_leaves_the_file_before(tmp_path: Path, error: type[BaseException]):
    path = tmp_path / "result.bin"
    path.write_text("old")
    with pytest.raises(error), whole_file(path) as partial:
        partial.write_text("half")
        raise error
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (".", ": is a folder; name a file in it"),
        ("folder", "folder: is a folder"),
        ("/", "/: is a folder"),
        ("none/file", "none/file: there is no folder none; make it first"),
        ("file/in", "file/in: there is no folder file"),
        ("n" * 300, "cannot be written: File name too long"),
    ],
)
def test_what_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").write_text("")
    with pytest.raises(StrataError, match=says):
        check_output(Path(name))
    with pytest.raises(StrataError, match=says), whole_file(Path(name)):
        pytest.fail("the work began")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_replaced(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StrataError, match="pipe: is a device or a pipe"):
        check_output(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_without_the_right_to_write_is_named(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(StrataError, match=r"file: cannot be written: Permission denied"):
        check_output(tmp_path / "file")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder where nobody can write, root included")
def test_a_folder_that_takes_no_files_is_named():
    with pytest.raises(StrataError, match="cannot be written"):
        check_output(Path("/proc/self/file"))
