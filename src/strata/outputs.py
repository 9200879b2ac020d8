"""Files that Strata writes: checked before the work whose result they take, there only when complete."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from strata.errors import StrataError


def check_output(path: Path) -> None:
    """Find out now whether a file can be written later.

    Raises:
        StrataError: it is a folder, a device or a pipe, its folder is missing, or this user may not write.
    """
    try:
        if path.is_dir():
            raise StrataError(f"{path}: is a folder; name a file in it")
        if path.exists() and not path.is_file():  # it would be replaced: see `whole_file`
            raise StrataError(f"{path}: is a device or a pipe; name a file")
        if not path.parent.is_dir():
            raise StrataError(f"{path}: there is no folder {path.parent}; make it first")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise StrataError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields another name in the same folder to write to; the file gets its own when the block ends well.

    Raises:
        StrataError: it cannot be written, or not in full.
    """
    check_output(path)
    partial = path.with_name(path.name + ".part")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        raise StrataError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
