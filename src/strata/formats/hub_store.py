"""The cache folder of huggingface_hub, filled so that a broken transfer goes on where it stopped.

Layout (huggingface_hub's guide "Manage the cache"): `models--OWNER--REPO/` with `refs/REVISION` (a
commit), `blobs/ID` (contents) and `snapshots/COMMIT/FILE` (links to blobs). Recent versions of the
library delete a partial file when the process fails; this module keeps it as `blobs/ID.incomplete`.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, hf_hub_download, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers

from strata.errors import DownloadError

_BLOB_ID = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file of a repository."""

    name: str
    size: int  # bytes
    blob_id: str  # SHA-256 of a large file, git's SHA-1 of a small one


class Store:
    """One repository's folder in the cache.

    Args:
        cache_dir: huggingface_hub's cache folder.
        repo: `owner/repo`.
        endpoint: base URL of the hub; None is the library's own.
    """

    def __init__(self, cache_dir: Path, repo: str, endpoint: str | None):
        self.cache_dir = cache_dir
        self.repo = repo
        self.endpoint = endpoint
        self.folder = cache_dir / ("models--" + repo.replace("/", "--"))
        self.lock_file = self.folder / ".strata.lock"

    def snapshot(self, commit: str) -> Path:
        """The folder that holds the files of a commit."""
        return self.folder / "snapshots" / commit

    def record(self, revision: str, commit: str) -> None:
        """Note which commit a branch or tag stands for, to find it again without a network."""
        if revision == commit:
            return
        ref = self.folder / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit)

    def recorded(self, revision: str) -> str | None:
        """The commit that was last recorded for a revision and has a snapshot; a commit stands for itself."""
        ref = self.folder / "refs" / revision
        commit = ref.read_text().strip() if ref.is_file() else revision
        return commit if self.snapshot(commit).is_dir() else None

    def files_present(self, commit: str) -> dict[str, int]:
        """Names and bytes of the files in a commit's snapshot."""
        root = self.snapshot(commit)
        return {p.relative_to(root).as_posix(): p.stat().st_size for p in root.rglob("*") if p.is_file()}

    def has(self, file: RepoFile, commit: str) -> bool:
        """Whether a file is there in full; of another size, it is not that file."""
        return _is_complete(self.snapshot(commit) / file.name, file)

    def bytes_missing(self, file: RepoFile, commit: str) -> int:
        """Bytes still to download for a file, after what complete and partial files hold."""
        if self.has(file, commit) or _is_complete(self._blob(file), file):
            return 0
        partial = _size_of(self._partial(file))
        return file.size - partial if partial <= file.size else file.size

    def fetch(self, file: RepoFile, commit: str) -> None:
        """Download a file, or the rest of it, verify it and link it into the commit's snapshot.

        Raises:
            DownloadError: what arrived is not the file.
            HTTPError, OSError: the transfer failed; what arrived is kept for the next attempt.
        """
        blob = self._blob(file)
        if not _is_complete(blob, file):
            blob.parent.mkdir(parents=True, exist_ok=True)
            partial = self._partial(file)
            if _size_of(partial) > file.size:
                partial.unlink()
            if file.size > constants.MAX_HTTP_DOWNLOAD_SIZE and _size_of(partial) == 0:
                self._fetch_whole(file, commit)
                return
            while not self._transfer(file, commit, partial):
                pass
            _verify(partial, file)
            os.replace(partial, blob)
        _link(blob, self.snapshot(commit) / file.name)

    def _transfer(self, file: RepoFile, commit: str, partial: Path) -> bool:
        """Append to a partial file what is missing; False where the connection broke after some progress."""
        url = hf_hub_url(self.repo, file.name, revision=commit, endpoint=self.endpoint)
        before = _size_of(partial)
        try:
            with partial.open("ab") as target:
                http_get(
                    url,
                    target,
                    resume_size=before,
                    headers=build_hf_headers(),
                    expected_size=file.size,
                    displayed_filename=file.name,
                )
        except HfHubHTTPError as error:
            if error.response.status_code != 416:
                raise
            partial.unlink()  # kept, it would fail for ever
            raise DownloadError(
                f"{file.name}: the hub has less than the {file.size} bytes announced"
            ) from error
        except HTTPError:
            if _size_of(partial) == before:
                raise
            return False
        return True

    def _fetch_whole(self, file: RepoFile, commit: str) -> None:
        """Fetch what the hub does not give over plain HTTP; the library then needs its hf_xet package."""
        try:
            hf_hub_download(
                self.repo, file.name, revision=commit, cache_dir=self.cache_dir, endpoint=self.endpoint
            )
        except ValueError as error:
            raise DownloadError(
                f"{self.repo}: {file.name} has {file.size} bytes; over {constants.MAX_HTTP_DOWNLOAD_SIZE} "
                "the hub needs the hf_xet package: pip install hf_xet"
            ) from error

    def _blob(self, file: RepoFile) -> Path:
        if not _BLOB_ID.fullmatch(file.blob_id):
            raise DownloadError(
                f"{self.repo}: the hub gives {file.blob_id!r} as the id of {file.name}, not a hash"
            )
        return self.folder / "blobs" / file.blob_id

    def _partial(self, file: RepoFile) -> Path:
        return self._blob(file).with_suffix(".incomplete")


def _size_of(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    return path.stat().st_size if path.is_file() else 0


def _is_complete(path: Path, file: RepoFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size


def _verify(path: Path, file: RepoFile) -> None:
    """Compare a download with its size and hash; a wrong one is deleted, so that it is not used again."""
    size = _size_of(path)
    if size != file.size:
        if size > file.size:
            path.unlink()
        raise DownloadError(f"{file.name}: {size} bytes arrived, the hub announced {file.size}")
    if len(file.blob_id) == 64:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)  # git's name of a blob
    with path.open("rb") as data:
        while chunk := data.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != file.blob_id:
        path.unlink()
        raise DownloadError(
            f"{file.name}: its hash is {digest.hexdigest()}, the hub announced {file.blob_id}; "
            "the copy was deleted, pull again"
        )


def _link(blob: Path, path: Path) -> None:
    """Make `path` show the blob: by a symbolic link, a hard link, or where there are none by moving it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        path.symlink_to(os.path.relpath(blob, path.parent))
    except OSError:  # Windows without the privilege, FAT
        try:
            os.link(blob, path)
        except OSError:
            os.replace(blob, path)
