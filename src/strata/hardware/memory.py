"""How much memory there is for this process, and how much of it is left."""

from pathlib import Path

import psutil

from strata.hardware.sysfs import read_fields, read_number

_CGROUP = Path("/sys/fs/cgroup")


def total_bytes(cgroup: Path = _CGROUP) -> int:
    """What the machine has, or the container's limit where that is less; `cgroup` as below."""
    limits = (read_number(cgroup / name) for name in ("memory.max", "memory/memory.limit_in_bytes"))
    return min([psutil.virtual_memory().total, *(limit for limit in limits if limit is not None)])


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """What the machine has free, or what is left of the container's limit where that is less.

    `cgroup` is the mount of the process's own control group, version 2 or 1: a container sees its own there.
    """
    free = psutil.virtual_memory().available
    for limit_file, usage_file, stat_file in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        limit, used = read_number(cgroup / limit_file), read_number(cgroup / usage_file)
        if limit is not None and used is not None:
            # Cached files count as used, and are given up when memory is asked for.
            free = min(free, max(0, limit - used + _inactive_file(cgroup / stat_file)))
    return free


def _inactive_file(path: Path) -> int:
    fields = read_fields(path)
    return fields.get("total_inactive_file", fields.get("inactive_file", 0))
