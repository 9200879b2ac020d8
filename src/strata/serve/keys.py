"""The keys that open a server: where they come from, and how one that a client shows is compared."""

import hashlib
import hmac
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from strata.errors import StrataError
from strata.options import Options, checked_key

_log = logging.getLogger("strata.serve")


class Keys:
    """Any of these keys opens the server. Kept are digests, so that no text of a key can be printed.

    Args:
        keys: their texts; without any, none is asked for.
    """

    def __init__(self, keys: Iterable[str] = ()):
        self._digests = tuple(_digest(key.encode()) for key in dict.fromkeys(keys))

    def __bool__(self) -> bool:
        """Whether a key is asked for."""
        return bool(self._digests)

    def match(self, given: bytes) -> bool:
        """Whether this is one of them, white space around it left out.

        It takes the same time for each key, and for one that is wrong.
        """
        digest = _digest(given.strip())
        return sum(hmac.compare_digest(digest, own) for own in self._digests) > 0  # not `any`: all of them

    def marks(self, purpose: bytes) -> list[str]:
        """For each key what `mark` makes of it."""
        return [_mark(digest, purpose) for digest in self._digests]


def mark(key: bytes, purpose: bytes) -> str:
    """A text that only who has the key can make, and from which the key does not follow."""
    return _mark(_digest(key.strip()), purpose)


def read_keys(options: Options) -> Keys:
    """The keys of `--api-key` and of `--api-key-file` together.

    Raises:
        StrataError: the file cannot be read, holds no key, or one that cannot be sent; names file and line.
    """
    keys = options.api_key.split(",") if options.api_key else []
    if options.api_key_file is not None:
        keys += _keys_in(options.api_key_file.expanduser())
    return Keys(keys)


def _keys_in(path: Path) -> list[str]:
    """A key a line; a # at the beginning or behind white space begins a comment."""
    try:
        with path.open(encoding="utf-8") as file:
            _warn_if_open(os.fstat(file.fileno()).st_mode, path)
            lines = file.read().splitlines()
    except OSError as error:
        raise StrataError(f"--api-key-file {path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StrataError(f"--api-key-file {path}: is not a text file in UTF-8") from error
    keys = []
    for number, line in enumerate(lines, 1):
        text = "" if line.startswith("#") else line.split(" #")[0].split("\t#")[0].strip()
        try:
            keys += [checked_key(text)] if text else []
        except ValueError as error:
            raise StrataError(f"--api-key-file {path}: line {number}: {error}") from error
    if not keys:
        raise StrataError(f"--api-key-file {path}: holds no key; write one a line")
    return keys


def _warn_if_open(mode: int, path: Path) -> None:
    if os.name == "posix" and stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        _log.warning(
            "--api-key-file %s: its mode %03o lets other users of this machine read the keys; chmod 600 %s",
            *(path, stat.S_IMODE(mode), path),
        )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _mark(digest: bytes, purpose: bytes) -> str:
    return hmac.new(digest, purpose, hashlib.sha256).hexdigest()
