"""What processes and the machine use now. Times are sums: a load is their growth between two looks."""

from dataclasses import dataclass

import psutil

from strata.hardware.memory import available_bytes


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process.

    Args:
        pid: its number.
        cpu_s: seconds of processor time since its start, of all its threads.
        rss_bytes: memory that it has in RAM, pages of mapped files included.
        threads: how many it has.
    """

    pid: int
    cpu_s: float
    rss_bytes: int
    threads: int


@dataclass(frozen=True, slots=True)
class ProcessWork:
    """What a process has done since its start.

    Args:
        cpu_s: seconds of processor time, of all its threads.
        disk_bytes: read and written, pages of mapped files included; 0 where the system does not count them.
    """

    cpu_s: float
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class MachineUse:
    """The machine, whoever uses it.

    Args:
        cpus: logical processors.
        cpu_busy_s: seconds since its start that they worked, summed over them.
        ram_bytes: memory there is.
        ram_available_bytes: of it, what this process may still take; see `available_bytes`.
    """

    cpus: int
    cpu_busy_s: float
    ram_bytes: int
    ram_available_bytes: int


def process_use(pid: int | None = None) -> ProcessUse | None:
    """What process `pid` (None: this one) uses; None if it has ended or is not to be looked at."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            seconds = times.user + times.system
            return ProcessUse(process.pid, seconds, process.memory_info().rss, process.num_threads())
    except psutil.Error:
        return None


def process_work(pid: int) -> ProcessWork | None:
    """What process `pid` has done; None if it has ended or is not to be looked at."""
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        disk = process.io_counters() if hasattr(process, "io_counters") else None
    except psutil.Error:
        return None
    return ProcessWork(times.user + times.system, disk.read_bytes + disk.write_bytes if disk else 0)


def machine_use() -> MachineUse:
    """What the machine's processors and memory are used for."""
    times = psutil.cpu_times()
    # Not every system counts all of these. Waiting for a disk is no work, and guests are in `user`.
    names = ("user", "system", "nice", "irq", "softirq", "interrupt", "dpc")
    busy = sum(getattr(times, name, 0.0) for name in names)
    cpus = psutil.cpu_count() or 1
    return MachineUse(cpus, busy, psutil.virtual_memory().total, available_bytes())
