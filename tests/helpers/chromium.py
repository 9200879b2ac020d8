"""A Chromium for tests of pages, from the npm registry: Playwright's own downloads need another network.

`@sparticuz/chromium` is a headless Chromium for x86-64 Linux, compressed with Brotli, which npm's Node.js
undoes. It is fetched once and stays in the user's cache.
"""

import shutil
import subprocess
from pathlib import Path

from helpers.npm_file import NpmError, cached, fetch

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
    target = cached(f"chromium-{VERSION}")
    try:
        return fetch(f"@sparticuz/chromium@{VERSION}", "bin/chromium.br", target, _unpack)
    except NpmError as error:
        if found := next(filter(None, map(shutil.which, _NAMES)), None):
            return Path(found)
        raise NoChromiumError(
            f"tests of pages need Chromium. {error}, and none of {', '.join(_NAMES)} is installed: "
            "install npm or one of those"
        ) from error


def _unpack(packed: Path, program: Path) -> None:
    command = ["node", "-e", _UNPACK, str(packed), str(program)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    program.chmod(0o755)
