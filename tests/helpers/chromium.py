"""A Chromium for tests of pages, from the npm registry: Playwright's own downloads need another network.

`@sparticuz/chromium` is a headless Chromium for x86-64 Linux, compressed with Brotli, which npm's Node.js
undoes. It is fetched once and stays in the user's cache.
"""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

VERSION = "147.0.0"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
_UNPACK = """
const {createReadStream, createWriteStream} = require("node:fs");
const {createBrotliDecompress} = require("node:zlib");
const {pipeline} = require("node:stream");
const [from, to] = process.argv.slice(1);
pipeline(createReadStream(from), createBrotliDecompress(), createWriteStream(to), (e) => { if (e) throw e; });
"""


class NoChromiumError(Exception):
    """There is none, and the text says how to get one."""


def chromium() -> Path:
    """The program, fetched if need be.

    Raises:
        NoChromiumError: it cannot be fetched and the system has none.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strata-tests"
    program = cache / f"chromium-{VERSION}"
    if program.is_file():
        return program
    try:
        return _fetch(program)
    except (OSError, subprocess.SubprocessError, tarfile.TarError, KeyError) as error:
        if found := next(filter(None, map(shutil.which, _NAMES)), None):
            return Path(found)
        said = getattr(error, "stderr", None) or str(error)
        raise NoChromiumError(
            f"tests of pages need Chromium. `npm pack @sparticuz/chromium@{VERSION}` did not bring one "
            f"({said}), and none of {', '.join(_NAMES)} is installed: install npm or one of those"
        ) from error


def _fetch(program: Path) -> Path:
    folder = program.parent / f"fetching-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        npm = ["npm", "pack", f"@sparticuz/chromium@{VERSION}", "--silent"]
        subprocess.run(npm, cwd=folder, check=True, capture_output=True, text=True, timeout=240)
        with tarfile.open(next(folder.glob("*.tgz"))) as archive:
            archive.extract("package/bin/chromium.br", folder, filter="data")
        unpacked = folder / "chromium"
        command = ["node", "-e", _UNPACK, str(folder / "package/bin/chromium.br"), str(unpacked)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        unpacked.chmod(0o755)
        return unpacked.replace(program)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
