"""Which folders of /sys hold the limits of this process, on faked trees of both versions."""

from pathlib import Path

import pytest

from strata.hardware.cgroups import control_groups

V2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "\n".join(
    f"{40 + i} 36 0:{31 + i} {{root}} /sys/fs/cgroup/{names} rw - cgroup cgroup rw,{names}"
    for i, names in enumerate(("cpu,cpuacct", "cpuset", "memory"))
)
SERVICE = "0::/system.slice/docker-abc.scope/inner"
DOCKER = "7:memory:/docker/abc\n5:cpuset:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/docker/abc"


def groups(root: Path, controller: str, cgroup: str, mountinfo: str) -> list[str]:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup + "\n")
    (root / "proc/self/mountinfo").write_text(f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n{mountinfo}\n")
    return [str(folder.relative_to(root / "sys/fs/cgroup")) for folder in control_groups(controller, root)]


@pytest.mark.parametrize("controller", ["cpu", "memory"])
def test_version_2_has_one_hierarchy_for_all(tmp_path, controller):
    assert groups(tmp_path, controller, SERVICE, V2.format(root="/")) == [
        "system.slice/docker-abc.scope/inner",
        "system.slice/docker-abc.scope",
        "system.slice",
        ".",
    ]


@pytest.mark.parametrize("controller, folder", [("cpu", "cpu,cpuacct"), ("memory", "memory")])
def test_version_1_has_one_for_each_controller(tmp_path, controller, folder):
    found = groups(tmp_path, controller, DOCKER, V1.format(root="/"))
    assert found == [f"{folder}/docker/abc", f"{folder}/docker", folder]


def test_a_container_sees_the_end_of_its_path(tmp_path):
    assert groups(tmp_path, "memory", DOCKER, V1.format(root="/docker/abc")) == ["memory"]


def test_both_versions_may_be_there(tmp_path):
    """systemd's hybrid layout: version 2 without controllers beside version 1."""
    hybrid = (
        V1.format(root="/") + "\n" + V2.format(root="/").replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
    )
    found = groups(tmp_path, "memory", "7:memory:/user.slice\n0::/user.slice/me", hybrid)
    assert found == ["memory/user.slice", "memory", "unified/user.slice/me", "unified/user.slice", "unified"]


def test_elsewhere_there_are_none(tmp_path):
    assert control_groups("memory", tmp_path) == []
