"""Models from a Hugging Face hub: `hf:owner/repo[:file]` to a path on this machine."""

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import WeakFileLock

from strata.errors import DownloadError
from strata.formats.gguf_split import part_name
from strata.formats.hub_store import RepoFile, Store

PREFIX = "hf:"
DEFAULT_REVISION = "main"
_REFERENCE = re.compile(r"hf:(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?::(?P<file>.+))?", re.ASCII)
# GGUF files that go with a model and are none: projectors of vision towers, importance matrices.
_COMPANION = re.compile(r"(^|[-_.])(mmproj|imatrix)", re.IGNORECASE)
_CONFIGURATION = {
    "config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "tokenizer.model", "chat_template.jinja", "chat_template.json",
}  # fmt: skip


class Reference(NamedTuple):
    """A model on a hub: `owner/repo`, and a file in it where one is named."""

    repo: str
    file: str | None

    def __str__(self) -> str:
        return PREFIX + self.repo + (f":{self.file}" if self.file else "")


def parse_reference(text: str) -> Reference:
    """Take `hf:owner/repo` or `hf:owner/repo:file` apart.

    Raises:
        DownloadError: the text is not of that form.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None or (match["file"] and not _is_inside(match["file"])):
        raise DownloadError(
            f"{text!r} is not a model on a hub; write hf:owner/repo or hf:owner/repo:file.gguf"
        )
    return Reference(match["repo"], match["file"])


def pull(
    reference: str | Reference,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    endpoint: str | None = None,
    progress: Callable[[str], None] = print,
) -> Path:
    """Download a model, or what is missing of it, and return where it lies.

    The revision is resolved to a commit first, and all files come from that commit. A file that is there
    already is not fetched again; a broken transfer goes on where it stopped; every file is verified by
    its hash. Without a network, what an earlier pull left is used.

    Args:
        reference: `hf:owner/repo[:file]`. Of a split GGUF all parts are fetched, whichever is named. With
            no file named, the repository must hold one GGUF model, or safetensors and no GGUF.
        revision: branch, tag or commit; None is `main`.
        cache_dir: huggingface_hub's cache folder; None is its default.
        endpoint: base URL of the hub; None is the library's, which honours `HF_ENDPOINT`.
        progress: called with each line for the user; bars go to stderr by the library.

    Returns:
        The GGUF file (part 1 of a split one), or the folder of a safetensors checkpoint.

    Raises:
        DownloadError: not found, ambiguous, no access, no room, or the transfer broke.
    """
    wanted = parse_reference(reference) if isinstance(reference, str) else reference
    store = Store(Path(cache_dir or constants.HF_HUB_CACHE).expanduser(), wanted.repo, endpoint)
    revision = revision or DEFAULT_REVISION
    if not _is_inside(revision):
        raise DownloadError(f"{revision!r} is not a revision; name a branch, a tag or a commit")
    try:
        return _pull(wanted, revision, store, progress)
    except OSError as error:
        raise DownloadError(f"{wanted}: {error}") from error


def _pull(wanted: Reference, revision: str, store: Store, progress: Callable[[str], None]) -> Path:
    commit, files = _list_files(wanted.repo, revision, store)
    if files is None:
        progress(f"{wanted.repo}: no answer from the hub, using what is here of commit {commit}")
        names = select_files(wanted, store.files_present(commit))
    else:
        progress(f"{wanted.repo}: revision {revision} is commit {commit}")
        names = select_files(wanted, {file.name: file.size for file in files.values()})
        store.folder.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(store.lock_file):
            missing = [files[name] for name in names if not store.has(files[name], commit)]
            _check_space(wanted, store, missing, commit)
            for file in missing:
                _fetch(wanted, store, file, commit)
            store.record(revision, commit)
    first = store.snapshot(commit) / names[0]
    return store.snapshot(commit) if first.name == "config.json" and not wanted.file else first


def select_files(wanted: Reference, sizes: Mapping[str, int]) -> list[str]:
    """Which of a repository's files make up the model that is wanted.

    Args:
        wanted: the repository and maybe a file in it.
        sizes: name -> bytes of all its files.

    Returns:
        Names; first the file to open (`config.json` for safetensors).

    Raises:
        DownloadError: nothing fits, parts are missing, or several models do and none was named.
    """
    models: dict[str, list[str]] = {}
    for name in sorted(sizes):
        if name.endswith(".gguf") and not _COMPANION.search(PurePosixPath(name).name):
            models.setdefault(_parts(name)[0], []).append(name)
    if wanted.file:
        if wanted.file not in sizes:
            raise DownloadError(
                f"{wanted.repo} has no file {wanted.file}.{_choices(wanted.repo, models, sizes)}"
            )
        return _complete(wanted, wanted.file, sizes)
    if len(models) == 1:
        return _complete(wanted, next(iter(models)), sizes)
    if models:
        raise DownloadError(
            f"{wanted.repo} holds {len(models)} GGUF models.{_choices(wanted.repo, models, sizes)}"
        )
    weights = sorted(name for name in sizes if name.endswith(".safetensors") and "/" not in name)
    if "config.json" in sizes and weights:
        return ["config.json", *sorted(_CONFIGURATION & set(sizes) - {"config.json"}), *weights]
    raise DownloadError(f"{wanted.repo} holds no GGUF file, and no config.json with safetensors")


def _parts(name: str) -> list[str]:
    """The names of all parts of the split GGUF that `name` is a part of, else `name` alone."""
    path = PurePosixPath(name)
    part = part_name(path.name)
    if part is None:
        return [name]
    return [str(path.with_name(part.sibling(number))) for number in range(1, part.count + 1)]


def _complete(wanted: Reference, name: str, sizes: Mapping[str, int]) -> list[str]:
    names = _parts(name)
    missing = [part for part in names if part not in sizes]
    if missing:
        raise DownloadError(
            f"{wanted.repo}: {len(missing)} of the {len(names)} parts of {name} are missing, "
            f"the first is {missing[0]}"
        )
    return names


def _choices(repo: str, models: Mapping[str, list[str]], sizes: Mapping[str, int]) -> str:
    lines = [f"\n  {PREFIX}{repo}:{name}  {_gb(sum(sizes[n] for n in ns))}" for name, ns in models.items()]
    return " Name one of these:" + "".join(lines) if lines else ""


def _list_files(repo: str, revision: str, store: Store) -> tuple[str, dict[str, RepoFile] | None]:
    """The commit of a revision and its files; None for the files where the hub does not answer."""
    try:
        info = HfApi(endpoint=store.endpoint).model_info(repo, revision=revision, files_metadata=True)
    except GatedRepoError as error:
        raise DownloadError(
            f"{repo} is gated: accept its terms on its page, then set HF_TOKEN or run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise DownloadError(f"{repo}: no such repository, or a private one (set HF_TOKEN)") from error
    except RevisionNotFoundError as error:
        raise DownloadError(f"{repo} has no revision {revision}") from error
    except (HTTPError, OfflineModeIsEnabled) as error:
        commit = store.recorded(revision)
        if commit is None:
            raise DownloadError(
                f"{repo}: the hub does not answer ({error}), "
                f"and {store.folder} holds nothing of revision {revision}"
            ) from error
        return commit, None
    files = {}
    for sibling in info.siblings or []:
        blob_id = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
        if sibling.size is None or blob_id is None or not _is_inside(sibling.rfilename):
            continue  # nothing that could be fetched and verified
        files[sibling.rfilename] = RepoFile(sibling.rfilename, sibling.size, blob_id)
    if info.siblings and not files:
        raise DownloadError(f"{repo}: the hub gives no sizes and hashes of its files")
    if not info.sha or not _is_inside(info.sha):
        raise DownloadError(f"{repo}: the hub names no commit for revision {revision}")
    return info.sha, files


def _check_space(wanted: Reference, store: Store, missing: list[RepoFile], commit: str) -> None:
    needed = sum(store.bytes_missing(file, commit) for file in missing)
    free = shutil.disk_usage(store.folder).free
    if needed > free:
        total = sum(file.size for file in missing)
        raise DownloadError(
            f"{wanted}: {_gb(needed)} are still to download ({_gb(total - needed)} of {_gb(total)} are here) "
            f"and {store.folder} has {_gb(free)} free. Make room or choose another cache folder."
        )


def _fetch(wanted: Reference, store: Store, file: RepoFile, commit: str) -> None:
    try:
        store.fetch(file, commit)
    except (HTTPError, OSError) as error:
        status = f"status {error.response.status_code}" if isinstance(error, HfHubHTTPError) else str(error)
        here = file.size - store.bytes_missing(file, commit)
        raise DownloadError(
            f"{wanted}: the download of {file.name} broke off at {here} of {file.size} bytes ({status}). "
            "Pull again to go on from there."
        ) from error


def _is_inside(name: str) -> bool:
    """Whether a name from outside stays inside the folder that it is joined to."""
    path = PurePosixPath(name)
    return not (path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or not path.parts)


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e7 else f"{num_bytes} bytes"
