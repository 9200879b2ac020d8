"""The processor's cores that this process should compute on.

Linux says everything in /proc and /sys: the SMT siblings of a core, the kinds of cores of a hybrid processor,
and how much of their time a container may use (cgroups). Elsewhere only the number of cores is known.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from strata.hardware.cgroups import control_groups
from strata.hardware.sysfs import read_number, read_text

ATOM_WORK = (
    0.65  # what an Intel efficiency core does at the clock of a performance core, with 256-bit integers
)
SLOWEST = 0.45  # of the fastest core; slower ones (low-power E cores, LITTLE cores) cost more than they bring


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core.

    Args:
        cpus: its logical CPUs that this process may run on; empty where the system does not say.
        speed: its work in a given time, beside the fastest core's: 0 to 1.
    """

    cpus: tuple[int, ...]
    speed: float = 1.0


def usable_cpus(root: Path = Path("/"), affinity: set[int] | None = None) -> list[Core]:
    """The cores to compute on, one thread for each, the fastest first; at least one.

    Left out are CPUs that `taskset` or a container forbids, cores less than `SLOWEST` as fast as the fastest,
    and those that a CPU quota cannot feed: a quota of 1.5 CPUs is one thread, since a second one would use up
    the rest of each period early, and both would then stand still.

    Args:
        root: where /proc and /sys are.
        affinity: the logical CPUs this thread may run on; asked of the system when not given.
    """
    if affinity is None:
        affinity = _affinity()
    cores = _linux_cores(root, affinity) or _counted_cores(affinity)
    quota = cpu_quota(root)
    return cores if quota is None else cores[: max(1, int(quota))]


def _affinity() -> set[int] | None:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    process = psutil.Process()
    return set(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else None


def _counted_cores(affinity: set[int] | None) -> list[Core]:
    """As many cores as there are, where nothing says which."""
    count = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if affinity is not None:
        count = min(count, len(affinity))
    return [Core(())] * max(1, count)


def _linux_cores(root: Path, affinity: set[int] | None) -> list[Core]:
    cpu_dir = root / "sys/devices/system/cpu"
    present = parse_cpu_list(read_text(cpu_dir / "online"))
    usable = present if affinity is None else present & affinity
    siblings: dict[frozenset[int], list[int]] = {}
    for cpu in sorted(usable):
        topology = cpu_dir / f"cpu{cpu}/topology"
        names = read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list")
        siblings.setdefault(frozenset(parse_cpu_list(names) or {cpu}), []).append(cpu)
    work = _work_of_cpus(root, sorted(usable))
    cpus_of_cores = list(siblings.values())
    fastest = max((work[cpus[0]] for cpus in cpus_of_cores), default=1.0)
    cores = [Core(tuple(cpus), work[cpus[0]] / fastest) for cpus in cpus_of_cores]
    return sorted((core for core in cores if core.speed >= SLOWEST), key=lambda core: -core.speed)


def _work_of_cpus(root: Path, cpus: list[int]) -> dict[int, float]:
    """What each CPU does in a given time, in a unit of its own; 1 for all where that is unknown."""
    cpu_dir = root / "sys/devices/system/cpu"
    # The scheduler's own measure: on ARM always there, on hybrid x86 since Linux 6.12.
    capacity = [read_number(cpu_dir / f"cpu{cpu}/cpu_capacity") for cpu in cpus]
    if all(capacity) and len(set(capacity)) > 1:
        return dict(zip(cpus, capacity, strict=True))
    clock = [read_number(cpu_dir / f"cpu{cpu}/cpufreq/cpuinfo_max_freq") for cpu in cpus]
    if not all(clock):
        clock = [1.0] * len(cpus)
    atoms = parse_cpu_list(read_text(root / "sys/bus/event_source/devices/cpu_atom/cpus"))
    return {cpu: hz * (ATOM_WORK if cpu in atoms else 1) for cpu, hz in zip(cpus, clock, strict=True)}


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs whose time this process may use, by the tightest of the cgroups it is in; None without a limit."""
    limits = []
    for folder in control_groups("cpu", root):
        quota, _, period = read_text(folder / "cpu.max").partition(" ")  # version 2
        if not period:
            quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):  # not "max", not -1
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def parse_cpu_list(text: str) -> set[int]:
    """The numbers in a kernel list such as `0-3,8,10-11`."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers
