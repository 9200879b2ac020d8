"""This machine, described for the planner."""

import platform
from pathlib import Path

import psutil

from strata.hardware.cpu import usable_cpus
from strata.hardware.description import Cpu, Hardware, Ram
from strata.hardware.memory import available_bytes


def this_machine() -> Hardware:
    """What is here and can be told without measuring; the models that run today run on its processor."""
    return Hardware(
        cpu=Cpu(name=_cpu_name(), cores=len(usable_cpus()), isa=_isa()),
        ram=Ram(total_bytes=psutil.virtual_memory().total, available_bytes=available_bytes()),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _isa() -> str:
    try:
        from strata.native import isa
    except ImportError:
        return ""
    return isa()
