"""Downloads from a hub on this machine: choice, resume, verification, room, and work without a network."""

import os
import random
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from huggingface_hub import constants, try_to_load_from_cache

from strata.errors import DownloadError
from strata.formats.hub import Reference, parse_reference, pull, select_files
from tests.helpers.fake_hub import COMMIT, serve

MODEL = random.Random(1).randbytes(50_000)
SMALL = b"small enough for git"


class Puller:
    """`pull` from a fake hub into a folder of the test; keeps the lines that it reports."""

    def __init__(self, hub, cache_dir: Path):
        self.hub = hub
        self.cache_dir = cache_dir
        self.lines: list[str] = []

    def __call__(self, reference: str = "hf:owner/repo", **options) -> Path:
        options = {"endpoint": self.hub.endpoint, "cache_dir": self.cache_dir, **options}
        return pull(reference, progress=self.lines.append, **options)

    def fails(self, text: str, reference: str = "hf:owner/repo", **options) -> str:
        with pytest.raises(DownloadError, match=text) as caught:
            self(reference, **options)
        return str(caught.value)

    @property
    def blobs(self) -> Path:
        return self.cache_dir / "models--owner--repo" / "blobs"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    # The library writes whole chunks of 10 MB; what a break leaves of the last one is lost.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4096)


@pytest.fixture
def hub():
    with serve({"model.gguf": MODEL, "README.md": SMALL}) as hub:
        yield hub


@pytest.fixture
def puller(hub, tmp_path):
    return Puller(hub, tmp_path / "cache")


@pytest.mark.parametrize(
    ("text", "repo", "file"),
    [
        ("hf:owner/repo", "owner/repo", None),
        ("hf:Some-Owner/a.b_c-GGUF:m.gguf", "Some-Owner/a.b_c-GGUF", "m.gguf"),
        ("hf:owner/repo:UD-Q4/m-00001-of-00002.gguf", "owner/repo", "UD-Q4/m-00001-of-00002.gguf"),
    ],
)
def test_references(text, repo, file):
    assert parse_reference(text) == Reference(repo, file)
    assert str(parse_reference(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "hf:", "owner/repo", "hf:repo", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b:", "hf:a/b:../x",
     "hf:a/b:/x", "hf:a/b:c\\d", "hf:a b/c", "https://host/a/b"],
)  # fmt: skip
def test_what_is_no_reference(text):
    with pytest.raises(DownloadError, match=r"write hf:owner/repo or hf:owner/repo:file\.gguf"):
        parse_reference(text)


def test_one_gguf_needs_no_name(puller, hub):
    path = puller()
    assert path.name == "model.gguf" and path.read_bytes() == MODEL
    assert puller.lines == [f"owner/repo: revision main is commit {COMMIT}"]
    assert hub.transfers() == ["model.gguf"]  # and not the README


def test_huggingface_hub_finds_the_file_too(puller):
    path = puller()
    assert try_to_load_from_cache("owner/repo", "model.gguf", cache_dir=puller.cache_dir) == str(path)


def test_a_second_pull_transfers_nothing(puller, hub):
    assert puller() == puller("hf:owner/repo:model.gguf")
    assert len(hub.transfers()) == 1


def test_small_files_are_verified_by_their_git_hash(puller, hub):
    assert puller("hf:owner/repo:README.md").read_bytes() == SMALL
    hub.files["README.md"] = SMALL.upper()
    hub.commit = "d" * 40
    assert puller("hf:owner/repo:README.md").read_bytes() == SMALL.upper()


def test_unchanged_files_are_shared_between_commits(puller, hub):
    first = puller()
    hub.commit = "d" * 40
    second = puller()
    assert first != second and second.read_bytes() == MODEL
    assert not [entry for entry in hub.log if f"/resolve/{'d' * 40}/" in entry]


def test_an_empty_file(puller, hub):
    hub.files["empty.txt"] = b""
    assert puller("hf:owner/repo:empty.txt").read_bytes() == b""


def test_a_pinned_revision_stays(puller, hub):
    path = puller(revision=COMMIT)
    assert COMMIT in path.parts
    puller.fails("owner/repo has no revision v9", revision="v9")
    puller.fails("is not a revision", revision="../v9")


def test_a_short_break_is_resumed_at_once(puller, hub):
    hub.break_after, hub.num_breaks = 20_480, 1
    assert puller().read_bytes() == MODEL
    assert hub.transfers() == ["model.gguf", "model.gguf bytes=20480-"]


def test_a_broken_pull_is_resumed_by_the_next(puller, hub):
    hub.break_after, hub.num_breaks, hub.refuse_next = 20_480, 1, 1
    puller.fails(r"download of model\.gguf broke off at 20480 of 50000 bytes \(status 403\)")
    assert [p.stat().st_size for p in puller.blobs.glob("*.incomplete")] == [20_480]
    assert puller().read_bytes() == MODEL
    assert hub.transfers()[-1] == "model.gguf bytes=20480-"
    assert not list(puller.blobs.glob("*.incomplete"))


def test_a_full_partial_file_is_only_verified(puller, hub):
    blob = Path(puller()).resolve()
    puller().unlink()
    blob.rename(blob.with_suffix(".incomplete"))
    assert puller().read_bytes() == MODEL
    assert len(hub.transfers()) == 1


def test_a_damaged_partial_file_is_not_kept(puller, hub):
    hub.break_after, hub.num_breaks, hub.refuse_next = 20_480, 1, 1
    puller.fails("broke off")
    next(puller.blobs.glob("*.incomplete")).write_bytes(bytes(20_480))
    puller.fails(r"model\.gguf: its hash is \w{64}, the hub announced \w{64}; the copy was deleted")
    assert puller().read_bytes() == MODEL


def test_a_partial_file_that_is_too_long_is_started_again(puller, hub):
    blob = Path(puller()).resolve()
    puller().unlink()
    blob.rename(blob.with_suffix(".incomplete"))
    with blob.with_suffix(".incomplete").open("ab") as file:
        file.write(b"more")
    assert puller().read_bytes() == MODEL
    assert hub.transfers() == ["model.gguf"] * 2


@pytest.mark.parametrize("wrong", [MODEL + b"oversized", MODEL[:-1]])
def test_a_file_of_the_wrong_size_is_replaced(puller, hub, wrong):
    path = puller()
    path.resolve().write_bytes(wrong)
    assert puller().read_bytes() == MODEL
    assert hub.transfers() == ["model.gguf"] * 2
    path.unlink()
    path.write_bytes(wrong)  # a copy in the place of the link; the blob is still good
    assert puller().read_bytes() == MODEL
    assert len(hub.transfers()) == 2


def test_copied_files_of_the_right_size_are_taken(puller, hub):
    folder = puller.cache_dir / "models--owner--repo" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "model.gguf").write_bytes(MODEL)
    assert puller().read_bytes() == MODEL
    assert hub.transfers() == []


def test_fewer_bytes_than_announced(puller, hub):
    hub.announced["model.gguf"] = (60_000, "a" * 64)
    puller.fails("broke off at 50000 of 60000 bytes")
    puller.fails("the hub has less than the 60000 bytes announced")
    assert not list(puller.blobs.glob("*"))


def test_more_bytes_than_announced(puller, hub):
    hub.announced["model.gguf"] = (40_000, "a" * 64)
    puller.fails(r"model\.gguf broke off")
    hub.announced.clear()
    assert puller().read_bytes() == MODEL


Usage = namedtuple("Usage", "total used free")


def test_room_counts_what_is_here_already(puller, hub, monkeypatch):
    hub.break_after, hub.num_breaks, hub.refuse_next = 20_480, 1, 1
    puller.fails("broke off")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 29_519))
    puller.fails(
        r"29520 bytes are still to download \(20480 bytes of 50000 bytes are here\) "
        r"and .* has 29519 bytes free"
    )
    assert len(hub.transfers()) == 2  # of the first pull: the check comes before any request for a file
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 29_520))
    assert puller().read_bytes() == MODEL


def test_a_disk_that_fills_while_downloading(puller, hub, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("strata.formats.hub_store.http_get", full)
    puller.fails(r"broke off at 0 of 50000 bytes \(.*No space left on device")


def test_what_http_does_not_give(puller, monkeypatch):
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", 40_000)
    puller.fails(r"model\.gguf has 50000 bytes; over 40000 the hub needs the hf_xet package")


def test_no_such_repository(puller):
    puller.fails("owner/absent: no such repository, or a private one", "hf:owner/absent")


def test_gated_repository(puller):
    puller.fails(r"owner/gated is gated: .* HF_TOKEN", "hf:owner/gated")


def test_no_such_file(puller):
    text = puller.fails("owner/repo has no file absent.gguf", "hf:owner/repo:absent.gguf")
    assert "hf:owner/repo:model.gguf  50000 bytes" in text


def test_a_file_that_the_hub_lists_and_does_not_have(puller, hub):
    listing = hub.listing()
    hub.listing = lambda: listing
    del hub.files["model.gguf"]
    puller.fails(r"broke off at 0 of 50000 bytes \(status 404\)")


def test_without_a_network(puller, hub, tmp_path):
    path = puller()
    nowhere = "http://127.0.0.1:1"
    assert puller(endpoint=nowhere) == path
    assert puller(endpoint=nowhere, revision=COMMIT) == path
    assert puller.lines[-1] == f"owner/repo: no answer from the hub, using what is here of commit {COMMIT}"
    puller.fails("the hub does not answer", endpoint=nowhere, revision="v2")
    puller.fails("the hub does not answer", endpoint=nowhere, cache_dir=tmp_path / "empty")


def test_the_endpoint_of_the_environment(hub, tmp_path):
    code = (
        "import sys; from strata.formats.hub import pull; print(pull('hf:owner/repo', cache_dir=sys.argv[1]))"
    )
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.splitlines()[-1]).read_bytes() == MODEL


def test_without_links_the_file_itself_is_moved(puller, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("not supported")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert os.path.samefile(puller(), next(puller.blobs.iterdir()))  # a hard link
    shutil.rmtree(puller.cache_dir)
    monkeypatch.setattr(os, "link", refuse)
    assert puller().read_bytes() == MODEL
    assert puller().stat().st_nlink == 1 and not list(puller.blobs.iterdir())


def test_all_parts_of_a_split_model(puller, hub):
    parts = {f"Q4/m-0000{i}-of-00003.gguf": MODEL[i:] for i in (1, 2, 3)}
    hub.files = {**parts, "Q8/m.gguf": MODEL}
    path = puller("hf:owner/repo:Q4/m-00002-of-00003.gguf")
    assert path.name == "m-00001-of-00003.gguf"
    assert sorted(p.name for p in path.parent.iterdir()) == [Path(name).name for name in parts]
    assert sorted(hub.transfers()) == sorted(parts)


def test_a_safetensors_repository(puller, hub):
    hub.files = {
        "config.json": b"{}", "model-00001-of-00002.safetensors": MODEL, "tokenizer.json": b"{ }",
        "model-00002-of-00002.safetensors": MODEL[1:], "model.safetensors.index.json": b"[]",
        "README.md": b"no", "pytorch_model.bin": MODEL, "onnx/model.safetensors": MODEL,
    }  # fmt: skip
    folder = puller()
    assert folder.name == COMMIT
    assert {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} == {
        "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "model.safetensors.index.json", "tokenizer.json",
    }  # fmt: skip
    assert puller("hf:owner/repo:config.json").name == "config.json"


def choose(names: dict[str, int] | list[str], file: str | None = None) -> list[str]:
    sizes = names if isinstance(names, dict) else dict.fromkeys(names, 1)
    return select_files(Reference("owner/repo", file), sizes)


def test_projectors_and_importance_matrices_are_no_models():
    assert choose(["m.gguf", "mmproj-m.gguf", "m-mmproj-f16.gguf", "imatrix.gguf", "m.imatrix.gguf"]) == [
        "m.gguf"
    ]


def test_several_models_are_listed_with_their_sizes():
    sizes = {"a-00001-of-00002.gguf": 10**10, "a-00002-of-00002.gguf": 2 * 10**9, "b.gguf": 5 * 10**8}
    with pytest.raises(DownloadError, match="owner/repo holds 2 GGUF models") as caught:
        choose(sizes)
    assert "hf:owner/repo:a-00001-of-00002.gguf  12.00 GB" in str(caught.value)
    assert "hf:owner/repo:b.gguf  0.50 GB" in str(caught.value)


def test_a_split_model_with_a_part_missing():
    for file in (None, "a-00003-of-00003.gguf"):
        with pytest.raises(DownloadError, match=r"1 of the 3 parts .* the first is a-00002-of-00003.gguf"):
            choose(["a-00001-of-00003.gguf", "a-00003-of-00003.gguf"], file)


def test_a_repository_without_a_model():
    for names in ([], ["README.md"], ["config.json"], ["model.safetensors"]):
        with pytest.raises(DownloadError, match="holds no GGUF file"):
            choose(names)


@pytest.mark.parametrize("name", ["../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf", "c:\\evil.gguf"])
def test_names_that_leave_the_folder_are_ignored(puller, hub, name):
    hub.files = {name: MODEL}
    puller.fails("gives no sizes and hashes")
    assert not list(puller.cache_dir.rglob("*evil*"))
