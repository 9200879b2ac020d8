"""`strata doctor`: findings on machines that are not here, and the report of this one."""

import json
from dataclasses import replace

import msgspec
import pytest

from strata.cli import main
from strata.commands import doctor
from strata.commands.doctor.facts import Facts, Torch
from strata.commands.doctor.findings import findings
from strata.commands.doctor.machine import show
from strata.errors import StrataError
from strata.hardware.description import Card, Cpu, Disk, Hardware, Ram
from strata.options import Options

GIB = 2**30
RTX = Card(name="RTX 4090", arch="sm_89", vram_bytes=24 * GIB, free_bytes=20 * GIB, link_bandwidth=27e9)
RADEON = Card(name="RX 9070", arch="gfx1201", vram_bytes=16 * GIB, free_bytes=15 * GIB)
CUDA = Torch("2.13.0+cu130", cuda="13.0", sees_card=True, archs=("sm_80", "sm_86", "sm_90"), triton="3.8.0")
ROCM = Torch("2.13.0+rocm7.14", hip="7.14", sees_card=True, archs=("gfx1100", "gfx1201"), triton="3.7.1")
NO_CARD = Torch("2.13.0+cpu")


def pc(*cards: Card, torch: Torch, pinnable: int | None = None, **facts) -> Facts:
    ram = Ram(total_bytes=64 * GIB, available_bytes=60 * GIB, pinnable_bytes=pinnable)
    hardware = Hardware(cpu=Cpu(name="A processor", cores=8), ram=ram, cards=cards)
    return Facts(hardware, torch, physical_ram=64 * GIB, cpus=16, **facts)


HEALTHY = {
    "geforce": pc(RTX, torch=CUDA),
    "radeon": pc(RADEON, torch=ROCM, kfd=(True, True), pinnable=58 * GIB),
    "none": pc(torch=NO_CARD),
    "windows": pc(RTX, torch=CUDA, system="win32", swap_bytes=40 * GIB),
}


@pytest.mark.parametrize("machine", HEALTHY)
def test_nothing_is_found_where_nothing_is_wrong(machine):
    assert findings(HEALTHY[machine]) == []


def as_arch(card: Card, arch: str) -> Card:
    return msgspec.structs.replace(card, arch=arch)


BLIND = replace(ROCM, sees_card=False)
SICK = {
    "a CPU build beside a GeForce": (
        pc(RTX, torch=replace(NO_CARD, triton="3.9.0")),
        "not built for NVIDIA",
        "--torch cuda",
    ),
    "a CUDA build beside a Radeon": (
        pc(RADEON, torch=replace(CUDA, sees_card=False)),
        "not built for AMD's cards",
        "--torch rocm",
    ),
    "an old driver": (pc(RTX, torch=replace(CUDA, sees_card=False)), "does not start on this", "update"),
    "no driver": (pc(torch=replace(CUDA, sees_card=False)), "no NVIDIA card or driver answers", "--gpus all"),
    "no access": (pc(RADEON, torch=BLIND, kfd=(True, False)), "may not use /dev/kfd", "-aG render,video"),
    "no device": (pc(torch=BLIND), "there is no /dev/kfd", "--device=/dev/kfd"),
    "no kernels for it": (
        pc(as_arch(RADEON, "gfx1102"), torch=ROCM),
        "no kernels for RX 9070 (gfx1102)",
        "build that lists gfx1102",
    ),
    "a card too new": (pc(as_arch(RTX, "sm_120"), torch=CUDA), "(sm_120)", "lists sm_120"),
    "no Triton": (pc(RTX, torch=replace(CUDA, triton=None)), "Triton is not installed", "triton-windows"),
    "RDNA2": (
        pc(as_arch(RADEON, "gfx1030"), torch=replace(ROCM, archs=(), triton="3.9.0")),
        "Triton 3.9.0 cannot compile",
        "Triton is 3.7",
    ),
    "Turing": (
        pc(as_arch(RTX, "sm_75"), torch=replace(CUDA, archs=("sm_75",))),
        "does not use its tensor cores",
        "nothing",
    ),
    "a narrow link": (
        pc(
            msgspec.structs.replace(RTX, link_bandwidth=3.4e9, pcie_generation=3, pcie_width=4),
            torch=CUDA,
        ),
        "PCIe 3 with 4 lanes, about 3 GB/s",
        "slot next to the processor",
    ),
    "amdgpu's limit": (pc(RADEON, torch=ROCM, pinnable=32 * GIB), "only 32 of 64 GiB", "=15099494"),
    "WSL": (pc(RTX, torch=CUDA, wsl=True, pinnable=32 * GIB), "under WSL", ".wslconfig"),
    "a small page file": (
        pc(RTX, torch=CUDA, system="win32", swap_bytes=4 * GIB),
        "page file of 4 GiB is small",
        "set 40 GiB",
    ),
    "no compiler": (pc(torch=NO_CARD, native_error="No module"), "not built (No module", "install GCC"),
    "a quota": (pc(torch=NO_CARD, cpu_quota=1.5), "1.5 of 16 CPUs' time", "--cpus"),
    "a limit of memory": (
        replace(pc(torch=NO_CARD), physical_ram=128 * GIB),
        "may use 64.0 of 128 GiB of memory",
        "--memory",
    ),
}


@pytest.mark.parametrize("machine", SICK)
def test_what_would_go_wrong_is_found_with_its_fix(machine):
    facts, problem, fix = SICK[machine]
    (found,) = findings(facts)
    assert problem in found.problem
    assert fix in found.fix


def test_a_later_card_runs_what_was_built_as_intermediate_code():
    card = as_arch(RTX, "sm_120")
    assert findings(pc(card, torch=replace(CUDA, archs=("sm_80", "compute_90")))) == []


def test_the_report_says_what_is_known(capsys):
    card = msgspec.structs.replace(
        RTX, bandwidth=1008e9, pcie_generation=4, pcie_width=16, temperature_c=45.0, power_w=31.5,
        power_limit_w=450.0, zero_copy_bandwidth=24e9,
    )  # fmt: skip
    facts = pc(card, RADEON, torch=CUDA, native_error="why")
    disk = Disk(path="/models", free_bytes=GIB, read_bandwidth=7e9, page_reads_per_second=123456.0)
    hardware = msgspec.structs.replace(facts.hardware, disk=disk)
    show(hardware, facts, findings(facts))
    text = " ".join(capsys.readouterr().out.split())
    assert "memory 64.0 GiB, 60.0 GiB available card" in text
    assert (
        "RTX 4090 (sm_89), 24.0 GiB, 20.0 GiB free, memory 1008.0 GB/s, PCIe 4 x16, copies at 27.0 GB/s, "
        "reads in place at 24.0 GB/s, 45 °C, 32 W of 450"
    ) in text
    assert "RX 9070 (gfx1201), 16.0 GiB, 15.0 GiB free disk" in text
    assert "/models, 1.0 GiB free, read at 7.0 GB/s, 123,456 pages/s at random places" in text
    assert "! the kernels for the processor are not built (why)" in text and "fix: install GCC" in text


def test_this_machine_as_json(capsys):
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    hardware = Hardware.from_json(json.dumps(told["hardware"]))
    assert hardware.cpu.cores >= 1 and hardware.ram.total_bytes > 0 and not hardware.measured
    assert told["installed"]["version"] and isinstance(told["findings"], list)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compile": True, "kernels": True}, "one at a time"),
        ({"targets": "sm_89"}, "go with --compile"),
        ({"only": "delta*"}, "goes with --compile or --kernels"),
    ],
)
def test_switches_that_would_do_nothing_are_refused(options: dict, says: str):
    with pytest.raises(StrataError, match=says):
        doctor.run(Options(**options))
