"""How much memory this process may still take."""

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """What the machine has free, or what is left of the container's limit where that is less.

    `cgroup` is the mount of the process's own control group, version 2 or 1: a container sees its own there.
    """
    free = psutil.virtual_memory().available
    for limit_file, usage_file, stat_file in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        limit, used = _number(cgroup / limit_file), _number(cgroup / usage_file)
        if limit is not None and used is not None:
            # Cached files count as used, and are given up when memory is asked for.
            free = min(free, max(0, limit - used + _inactive_file(cgroup / stat_file)))
    return free


def _number(path: Path) -> int | None:
    """The number in a file; None where the file is missing or says `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _inactive_file(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
