"""A machine as numbers: what `plan()` takes, for the machine at hand or one that somebody describes.

Bytes are bytes (not MiB), bandwidths bytes per second. A bandwidth is None where neither a measurement nor
the hardware's own clock and width tell it.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from strata.errors import StrataError

Bytes = Annotated[int, Meta(ge=0)]
BytesPerSecond = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class DescriptionError(StrataError):
    """A description of hardware is no such thing; names the field."""


class Card(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graphics card.

    Attributes:
        name: as its driver calls it.
        arch: what its kernels are compiled for: `sm_89`, `gfx1201`.
        vram_bytes: its memory; for a chip without its own, what it may take of the machine's.
        free_bytes: of these, what is free now.
        shares_ram: its memory is the machine's (an APU).
        bandwidth: of its memory, read and written together.
        link_bandwidth: from pinned host memory to the card by its copy engine.
        zero_copy_bandwidth: at which a kernel reads pinned host memory in place.
        pcie_generation, pcie_width: of the link as it is now, or at its best where it rests at a lower speed.
        compute_units: streaming multiprocessors, or compute units.
        clock_hz: highest of its compute clock.
        temperature_c, power_w, power_limit_w: now.
        link_load: bytes per second that reach the card over the link now.
        pci_address: `0000:0b:00.0`; tells equal cards apart.
    """

    name: str
    arch: Annotated[str, Meta(pattern="^(sm_[0-9]{2,3}|gfx[0-9a-f]{3,4})$")]
    vram_bytes: Bytes
    free_bytes: Bytes
    shares_ram: bool = False
    bandwidth: BytesPerSecond | None = None
    link_bandwidth: BytesPerSecond | None = None
    zero_copy_bandwidth: BytesPerSecond | None = None
    pcie_generation: Count | None = None
    pcie_width: Count | None = None
    compute_units: Count | None = None
    clock_hz: Annotated[float, Meta(gt=0)] | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    link_load: Annotated[float, Meta(ge=0)] | None = None
    pci_address: str = ""

    @property
    def vendor(self) -> str:
        """`NVIDIA` or `AMD`."""
        return "AMD" if self.arch.startswith("gfx") else "NVIDIA"


class Cpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The processor.

    Attributes:
        name: as it calls itself.
        cores: that Strata would compute on; see `usable_cpus`.
        isa: the instruction set whose kernels compute, as `strata.native.isa()` says; "" without kernels.
        memory_bandwidth: at which all these cores together read memory.
    """

    name: str
    cores: Count
    isa: str = ""
    memory_bandwidth: BytesPerSecond | None = None


class Ram(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Main memory, of the machine or of the container that Strata is in.

    Attributes:
        total_bytes: there is.
        available_bytes: can still be taken.
        pinnable_bytes: at most, can be registered with a card; None where nothing limits it.
    """

    total_bytes: Bytes
    available_bytes: Bytes
    pinnable_bytes: Bytes | None = None


class Disk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The drive that models are on.

    Attributes:
        path: of a folder on it.
        free_bytes: there.
        read_bandwidth: of large reads, past the page cache.
        page_reads_per_second: of 4 KiB at random places, past the page cache, 64 in flight.
    """

    path: str
    free_bytes: Bytes
    read_bandwidth: BytesPerSecond | None = None
    page_reads_per_second: Annotated[float, Meta(gt=0)] | None = None


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine.

    Attributes:
        cards: those that Strata can use, in the driver's order; none is fine.
        measured: bandwidths are measurements; else they follow from clocks and widths.
    """

    cpu: Cpu
    ram: Ram
    cards: tuple[Card, ...] = ()
    disk: Disk | None = None
    measured: bool = False

    def to_json(self) -> str:
        """An indented JSON object that `from_json` reads back to an equal description."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Hardware":
        """Read what `to_json` wrote, or somebody by hand.

        Raises:
            DescriptionError: it is no JSON, lacks a field, has an unknown one, or a value is impossible.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:  # validation errors are decode errors
            raise DescriptionError(f"description of hardware: {error}") from None
