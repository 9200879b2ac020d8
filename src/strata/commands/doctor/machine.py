"""`strata doctor`: what this machine is, what is installed, and what would go wrong."""

import json
from dataclasses import asdict
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata import __version__
from strata.commands.doctor.facts import Facts, gather
from strata.commands.doctor.findings import Finding, findings
from strata.errors import StrataError
from strata.hardware.description import Card, Hardware
from strata.options import Options


def run(options: Options) -> None:
    """Print the machine and the findings; with `--measure`, its bandwidths.

    Raises:
        StrataError: nothing can be written to the working directory, which is what `--measure` measures.
    """
    folder = Path.cwd()
    facts = gather(folder)
    hardware = facts.hardware
    if options.measure:
        with Console(stderr=True).status("measuring memory, disk and cards"):
            hardware = measured_machine(hardware)
    found = findings(facts)
    if options.as_json:
        installed = {"strata": __version__, **asdict(facts.torch)}
        print(
            json.dumps(
                {
                    "hardware": msgspec.to_builtins(hardware),
                    "installed": installed,
                    "findings": [asdict(finding) for finding in found],
                },
                indent=1,
            )
        )
    else:
        show(hardware, facts, found)


def measured_machine(hardware: Hardware) -> Hardware:
    """The machine with measured bandwidths: memory, disk, and those of the cards that PyTorch can use."""
    from strata.hardware.machine import measured

    try:
        hardware = measured(hardware)
    except OSError as error:
        raise StrataError(f"{hardware.disk.path}: cannot be measured: {error.strerror}") from error
    return msgspec.structs.replace(hardware, cards=tuple(_measured_cards(hardware.cards)))


def _measured_cards(cards: tuple[Card, ...]) -> list[Card]:
    """The cards; those that PyTorch lists, found by their PCI address, with what was measured."""
    import torch

    if not torch.cuda.is_available():
        return list(cards)
    from strata.ops.triton.bandwidth import card_bandwidths

    found = {}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        address = (
            f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        )
        found[address] = torch.device("cuda", index)
    return [
        msgspec.structs.replace(card, **card_bandwidths(found[card.pci_address]))
        if card.pci_address in found
        else card
        for card in cards
    ]


def show(hardware: Hardware, facts: Facts, found: list[Finding]) -> None:
    """Print everything for a person."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, text in _lines(hardware, facts):
        table.add_row(name, Text(text))
    console = Console(highlight=False, soft_wrap=False)
    console.print(table)
    console.print()
    if not found:
        console.print("Nothing was found that would go wrong.")
    for finding in found:
        console.print(Text(f"! {finding.problem}", style="yellow"))
        console.print(Text(f"  fix: {finding.fix}"))


def _lines(hardware: Hardware, facts: Facts) -> list[tuple[str, str]]:
    torch = facts.torch
    lines = [("strata", __version__)]
    build = (
        f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "for the processor only"
    )
    lines.append(("pytorch", f"{torch.version}, {build}; Triton {torch.triton or 'is not installed'}"))
    cpu = hardware.cpu
    lines.append(("processor", _joined(cpu.name, f"{cpu.cores} cores", cpu.isa and f"{cpu.isa} kernels")))
    ram = hardware.ram
    lines.append(
        (
            "memory",
            _joined(
                f"{_gib(ram.total_bytes)}, {_gib(ram.available_bytes)} available",
                ram.pinnable_bytes is not None
                and f"{_gib(ram.pinnable_bytes)} can be registered with a card",
                _rate("read at", cpu.memory_bandwidth),
            ),
        )
    )
    lines += [("card", _card(card)) for card in hardware.cards] or [("card", "none found")]
    if disk := hardware.disk:
        pages = disk.page_reads_per_second
        rates = (_rate("read at", disk.read_bandwidth), pages and f"{pages:,.0f} pages/s at random places")
        lines.append(("disk", _joined(f"{disk.path}, {_gib(disk.free_bytes)} free", *rates)))
    return lines


def _card(card: Card) -> str:
    link = card.pcie_generation and f"PCIe {card.pcie_generation} x{card.pcie_width}"
    power = card.power_w is not None and f"{card.power_w:.0f} W of {card.power_limit_w or 0:.0f}"
    return _joined(
        f"{card.name} ({card.arch})",
        f"{_gib(card.vram_bytes)}, {_gib(card.free_bytes)} free",
        _rate("memory", card.bandwidth),
        link,
        _rate("copies at", card.link_bandwidth),
        _rate("reads in place at", card.zero_copy_bandwidth),
        card.temperature_c is not None and f"{card.temperature_c:.0f} °C",
        power,
    )


def _joined(*parts: str | bool | float | None) -> str:
    return ", ".join(part for part in parts if isinstance(part, str) and part)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"


def _rate(what: str, bandwidth: float | None) -> str | None:
    return None if bandwidth is None else f"{what} {bandwidth / 1e9:.1f} GB/s"
