"""The control groups that this process is in: containers, services and users have their limits there."""

from pathlib import Path, PurePosixPath

from strata.hardware.sysfs import read_text


def control_groups(controller: str, root: Path = Path("/")) -> list[Path]:
    """Folders of the groups whose limits hold for this process: its own, and all above it up to the mount.

    Args:
        controller: "cpu" or "memory". In version 2 one hierarchy has all of them, in version 1 each its own.
        root: where /proc and /sys are.
    """
    paths = {}  # controllers -> path in their hierarchy; "" for version 2
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        paths[controllers] = path
    folders = []
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        mounted, mount_point = before.split()[3:5]
        if kind == "cgroup2":
            path = paths.get("")
        elif kind == "cgroup" and controller in options.split(","):
            path = next((p for names, p in paths.items() if controller in names.split(",")), None)
        else:
            continue
        top = root / mount_point.lstrip("/")
        folders += _from_leaf_to_top(top, _path_below(path or "/", mounted))
    return folders


def _path_below(path: str, mounted: str) -> str:
    """A cgroup's path as seen below its mount, which may show only part of the hierarchy (a container's)."""
    inside = PurePosixPath(path)
    return str(inside.relative_to(mounted)) if inside.is_relative_to(mounted) else ""


def _from_leaf_to_top(top: Path, path: str) -> list[Path]:
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    return [top.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]
