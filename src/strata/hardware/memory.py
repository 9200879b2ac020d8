"""How much memory there is for this process, and how much of it is left."""

from collections.abc import Iterator
from pathlib import Path

import psutil

from strata.hardware.cgroups import control_groups
from strata.hardware.sysfs import read_fields, read_number

# What a group is killed at, and what it is slowed down at until it hardly moves; version 2, then 1.
_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
_USAGES = ("memory.current", "memory.usage_in_bytes")
_INACTIVE_FILES = ("inactive_file", "total_inactive_file")  # with those of the groups below


def total_bytes(root: Path = Path("/")) -> int:
    """What the machine has, or the lowest limit of this process's control groups; `root` as below."""
    return min([psutil.virtual_memory().total, *(limit for _, limit in _limits(root))])


def available_bytes(root: Path = Path("/")) -> int:
    """What the machine has free, or what is left of the limit of a control group where that is less.

    Args:
        root: where /proc and /sys are.
    """
    free = psutil.virtual_memory().available
    for group, limit in _limits(root):
        used = next((n for name in _USAGES if (n := read_number(group / name)) is not None), 0)
        fields = read_fields(group / "memory.stat")
        # Cached files count as used, and are given up when memory is asked for.
        cached = max(fields.get(name, 0) for name in _INACTIVE_FILES)
        free = min(free, max(0, limit - used + cached))
    return free


def _limits(root: Path) -> Iterator[tuple[Path, int]]:
    """The limits of the groups that this process is in; groups without one are left out."""
    for group in control_groups("memory", root):
        limits = [n for name in _LIMITS if (n := read_number(group / name)) is not None]
        if limits:
            yield group, min(limits)
