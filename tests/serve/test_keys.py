"""Keys: from the option and from a file, and which of what clients show is one."""

import logging
import sys
from pathlib import Path

import pytest
from serve.test_app import send

from strata.errors import StrataError
from strata.options import Options
from strata.serve.app import create_app
from strata.serve.keys import Keys, mark, read_keys


def test_any_of_several_keys_opens() -> None:
    options = {"api_key": "first, sécond,third"}
    for key, status in (
        ("first", 200),
        ("sécond", 200),
        (" third ", 200),
        ("firs", 401),
        ("first,third", 401),
    ):
        for headers in ({"X-Api-Key": key.encode()}, {"Authorization": f"Bearer {key}".encode()}):
            assert send("GET", "/v1/models", app_options=options, headers=headers).status_code == status, key


def test_one_right_key_is_enough() -> None:
    """A client may have one in each header, of which an old one is no harm."""
    headers = {"X-Api-Key": "old", "Authorization": "Bearer new"}
    assert send("GET", "/v1/models", app_options={"api_key": "new"}, headers=headers).status_code == 200


def test_no_key_is_no_lock() -> None:
    assert not Keys() and Keys(["a"])
    assert not Keys().match(b"") and Keys().marks(b"x") == []


def keys_of(path: Path, text: str, **options: object) -> Keys:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return read_keys(Options(api_key_file=path, **options))


def test_a_file_has_a_key_a_line(tmp_path: Path) -> None:
    text = "# of the family\n\n  anna \r\nwith,comma # her phone\nhash#inside\n\t# nobody's\n"
    keys = keys_of(tmp_path / "keys", text, api_key="flag")
    assert all(map(keys.match, (b"anna", b"with,comma", b"hash#inside", b"flag")))
    assert not any(
        map(keys.match, (b"", b"# of the family", b"her phone", b"with", b"with,comma # her phone"))
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no key"),
        ("# none\n\n", "holds no key"),
        ("good\nb\x07d\n", "line 2: a key holds a character"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(StrataError, match=f"keys: {words}") as caught:
        keys_of(tmp_path / "keys", text)
    assert "\x07" not in str(caught.value) and "good" not in str(caught.value)


def test_a_missing_file_and_one_that_is_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(StrataError, match=r"--api-key-file .*nowhere: cannot be read: No such file"):
        create_app(Options(model="scripted:m.jsonl", api_key_file=tmp_path / "nowhere"))
    (tmp_path / "keys").write_bytes(b"\xff\xfe")
    with pytest.raises(StrataError, match="is not a text file"):
        read_keys(Options(api_key_file=tmp_path / "keys"))


@pytest.mark.skipif(sys.platform == "win32", reason="its files have no such modes")
@pytest.mark.parametrize(("mode", "told"), [(0o600, False), (0o640, True), (0o644, True)])
def test_a_file_that_others_can_read_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, told: bool
) -> None:
    path = tmp_path / "keys"
    path.write_text("hush")
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        read_keys(Options(api_key_file=path))
    assert (f"mode {mode:o} lets other users" in caplog.text) == told
    assert "hush" not in caplog.text


def test_a_file_is_enough_for_other_addresses(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("k")
    create_app(Options(model="scripted:m.jsonl", host="0.0.0.0", api_key_file=tmp_path / "keys"))


def test_keys_do_not_show() -> None:
    options, keys = Options(api_key="hush"), Keys(["hush"])
    assert "hush" not in repr(options)
    assert "hush" not in repr(vars(keys))


def test_a_mark_belongs_to_its_key_and_purpose() -> None:
    keys = Keys(["a", "b"])
    assert keys.marks(b"x") == [mark(b"a", b"x"), mark(b" b\n", b"x")]
    assert len({*keys.marks(b"x"), *keys.marks(b"y"), mark(b"c", b"x")}) == 5
