"""Which cores Strata computes on, on machines that are not here: their /proc and /sys as files."""

import os
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from strata.hardware.cpu import Core, cpu_quota, parse_cpu_list, usable_cpus

CPU = "sys/devices/system/cpu"


def write(root: Path, files: Mapping[str, object]) -> Path:
    """The tree `root` with these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def machine(cores: list[list[int]], **per_core: list[int]) -> dict[str, object]:
    """Files of a processor: each core's logical CPUs, and its number in files such as `cpu_capacity`."""
    files: dict[str, object] = {f"{CPU}/online": f"0-{max(map(max, cores))}"}
    for index, cpus in enumerate(cores):
        for cpu in cpus:
            files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = ",".join(map(str, cpus))
            for name, numbers in per_core.items():
                folder = "cpufreq/" if name == "cpuinfo_max_freq" else ""
                files[f"{CPU}/cpu{cpu}/{folder}{name}"] = numbers[index]
    return files


def core_i9_12900k() -> dict[str, object]:
    cores = [[2 * i, 2 * i + 1] for i in range(8)] + [[i] for i in range(16, 24)]
    clock = [5_100_000] * 2 + [5_200_000] * 2 + [5_100_000] * 4 + [3_900_000] * 8  # two cores boost higher
    return machine(cores, cpuinfo_max_freq=clock) | {
        "sys/bus/event_source/devices/cpu_core/cpus": "0-15",
        "sys/bus/event_source/devices/cpu_atom/cpus": "16-23",
    }


def test_hybrid_processor_gives_performance_cores_first(tmp_path):
    cores = usable_cpus(write(tmp_path, core_i9_12900k()), set(range(24)))
    assert [core.cpus for core in cores[:3]] == [(4, 5), (6, 7), (0, 1)]
    assert [core.cpus for core in cores[8:]] == [(cpu,) for cpu in range(16, 24)]
    assert cores[0].speed == 1 and 0.9 < cores[7].speed < 1
    assert all(0.45 < core.speed < 0.6 for core in cores[8:])


def test_efficiency_cores_alone_are_full_cores(tmp_path):
    cores = usable_cpus(write(tmp_path, core_i9_12900k()), {17, 18, 19})
    assert cores == [Core((cpu,)) for cpu in (17, 18, 19)]


def test_low_power_efficiency_cores_are_left_out(tmp_path):
    clock = [4_800_000] * 6 + [3_800_000] * 8 + [2_500_000] * 2  # Core Ultra 7 155H
    files = machine(
        [[2 * i, 2 * i + 1] for i in range(6)] + [[i] for i in range(12, 22)], cpuinfo_max_freq=clock
    )
    files["sys/bus/event_source/devices/cpu_atom/cpus"] = "12-21"
    cores = usable_cpus(write(tmp_path, files), set(range(22)))
    assert {cpu for core in cores for cpu in core.cpus} == set(range(20))


def test_the_schedulers_capacity_counts_more_than_clocks(tmp_path):
    capacity = [1024] * 2 + [600] * 4
    files = machine([[0, 1], [2, 3], [4], [5], [6], [7]], cpu_capacity=capacity, cpuinfo_max_freq=[1] * 6)
    assert [core.speed for core in usable_cpus(write(tmp_path, files), set(range(8)))] == [1, 1] + [
        600 / 1024
    ] * 4


def test_smt_siblings_are_one_core(tmp_path):
    root = write(tmp_path, machine([[i, i + 16] for i in range(16)]))  # Ryzen 9 7950X
    assert usable_cpus(root, set(range(32))) == [Core((i, i + 16)) for i in range(16)]
    assert usable_cpus(root, {0, 3, 16, 19, 20}) == [Core((0, 16)), Core((3, 19)), Core((20,))]


def test_old_kernels_name_siblings_otherwise(tmp_path):
    files = {f"{CPU}/cpu{cpu}/topology/thread_siblings_list": "0-1" for cpu in (0, 1)}
    assert usable_cpus(write(tmp_path, files | {f"{CPU}/online": "0-1"}), {0, 1}) == [Core((0, 1))]


def test_little_cores_are_left_out_until_they_are_all_there_is(tmp_path):
    capacity = [400] * 4 + [1024] * 4  # RK3588: Cortex-A55 and Cortex-A76
    root = write(tmp_path, machine([[i] for i in range(8)], cpu_capacity=capacity))
    assert usable_cpus(root, set(range(8))) == [Core((cpu,)) for cpu in range(4, 8)]
    assert usable_cpus(root, {1, 2}) == [Core((1,)), Core((2,))]


def test_taskset_leaves_one_cpu(tmp_path):
    root = write(tmp_path, machine([[i] for i in range(8)]))
    assert usable_cpus(root, {5}) == [Core((5,))]


def test_a_cpu_that_is_offline_is_no_core(tmp_path):
    files = machine([[0], [1], [2], [3]]) | {f"{CPU}/online": "0,2-3"}
    assert [core.cpus for core in usable_cpus(write(tmp_path, files), {0, 1, 2, 3})] == [(0,), (2,), (3,)]


def test_where_there_is_no_sysfs_cores_are_counted(tmp_path):
    count = psutil.cpu_count(logical=False)
    assert usable_cpus(tmp_path, None) == [Core(())] * count
    assert usable_cpus(tmp_path, {0}) == [Core(())]


CONTAINER_V2 = {
    "proc/self/cgroup": "0::/",
    "proc/self/mountinfo": "35 30 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw",
}
HOST_V2 = {
    "proc/self/cgroup": "0::/user.slice/user-1000.slice/strata.service",
    "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate",
}
V1 = "sys/fs/cgroup/cpu,cpuacct"
DOCKER_V1 = {  # without a namespace of its own: the path is the host's, the mount shows its end
    "proc/self/cgroup": "5:cpuset:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/docker/abc",
    "proc/self/mountinfo": f"40 36 0:31 /docker/abc /{V1} ro - cgroup cgroup rw,cpu,cpuacct",
}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        (CONTAINER_V2 | {"sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        (CONTAINER_V2 | {"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        (HOST_V2 | {"sys/fs/cgroup/user.slice/user-1000.slice/strata.service/cpu.max": "max 100000"}, None),
        (
            HOST_V2
            | {
                "sys/fs/cgroup/user.slice/cpu.max": "200000 100000",
                "sys/fs/cgroup/user.slice/user-1000.slice/strata.service/cpu.max": "600000 200000",
            },
            2,
        ),
        (DOCKER_V1 | {f"{V1}/cpu.cfs_quota_us": "-1", f"{V1}/cpu.cfs_period_us": "100000"}, None),
        (DOCKER_V1 | {f"{V1}/cpu.cfs_quota_us": "250000", f"{V1}/cpu.cfs_period_us": "100000"}, 2.5),
    ],
)
def test_the_tightest_cgroup_is_the_quota(tmp_path, files, quota):
    assert cpu_quota(write(tmp_path, files)) == quota


@pytest.mark.parametrize(
    ("cpu_max", "count"), [("150000 100000", 1), ("10000 100000", 1), ("1700000 100000", 16)]
)
def test_no_more_threads_than_the_quota_feeds(tmp_path, cpu_max, count):
    files = core_i9_12900k() | CONTAINER_V2 | {"sys/fs/cgroup/cpu.max": cpu_max}
    cores = usable_cpus(write(tmp_path, files), set(range(24)))
    assert len(cores) == count and cores[0].speed == 1


def test_this_machine():
    cores = usable_cpus()
    assert cores and max(core.speed for core in cores) == 1
    if hasattr(os, "sched_getaffinity"):
        assert {cpu for core in cores for cpu in core.cpus} <= os.sched_getaffinity(0)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_this_machine_with_one_cpu_allowed():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cpus() == [Core((min(before),))]
    finally:
        os.sched_setaffinity(0, before)


def test_cpu_lists():
    assert parse_cpu_list("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_cpu_list("") == set()
