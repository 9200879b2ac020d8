"""The planner: what of a model goes where on a machine, and how fast it would be, before anything is loaded.

`plan` is a pure function of three descriptions; nothing else decides about memory. What does not fit is
said with the number that is missing and the changes that would help.
"""

from typing import Any

import msgspec

from strata.formats.description import ModelDescription
from strata.hardware.description import Hardware
from strata.placement import GIB, MIB, SMALLEST_CONTEXT, Part, Plan, PromptSpeed, Wishes, gib, place

__all__ = ["GIB", "MIB", "SMALLEST_CONTEXT", "Part", "Plan", "PromptSpeed", "Wishes", "plan"]


def plan(hardware: Hardware, model: ModelDescription, wishes: Wishes) -> Plan:
    """Decide where everything goes on a machine.

    Where it does not fit, `changes` are those found to help, tried one at a time, each as small as it can be.
    """
    made = place(hardware, model, wishes)
    return (
        made if made.fits else msgspec.structs.replace(made, changes=_changes(hardware, model, wishes, made))
    )


def _changes(hardware: Hardware, model: ModelDescription, wishes: Wishes, made: Plan) -> tuple[str, ...]:
    """Changes that would each make it fit, found by planning with them."""
    changes = []

    def helps(**changed: Any) -> bool:
        return place(hardware, model, msgspec.structs.replace(wishes, **changed)).fits

    context = min(made.context, model.context_length + 1)
    while (context := 1 << (context - 1).bit_length() - 1) >= SMALLEST_CONTEXT:
        if helps(context=context):
            changes.append(f"--context {context}")
            break
    if wishes.lanes > 1 and helps(lanes=1):
        changes.append("--lanes 1")
    if made.card and wishes.kv == "f16" and helps(kv="int8"):
        changes.append("--kv int8 (changes text slightly)")
    if wishes.dense == "as_stored" and helps(dense="q8_0"):
        changes.append("--dense q8_0 (changes text slightly)")
    for tier, budget in (("VRAM", made.vram_budget), ("RAM", made.ram_budget)):
        short = made.used(tier) - budget
        if short > 0 and _fits_with(hardware, model, wishes, tier, short):
            changes.append(f"{gib(short)} more {tier}")
    if made.card and helps(use_card=False):
        changes.append("the processor alone")
    return tuple(changes)


def _fits_with(hardware: Hardware, model: ModelDescription, wishes: Wishes, tier: str, more: int) -> bool:
    """Whether it would fit in a machine with `more` bytes in a tier, and budgets raised by as much."""
    if tier == "RAM":
        ram = hardware.ram
        larger = msgspec.structs.replace(ram, available_bytes=ram.available_bytes + more)
        hardware = msgspec.structs.replace(hardware, ram=larger)
        budget = wishes.ram_budget_bytes
        wishes = msgspec.structs.replace(wishes, ram_budget_bytes=None if budget is None else budget + more)
    else:
        cards = tuple(
            msgspec.structs.replace(c, vram_bytes=c.vram_bytes + more, free_bytes=c.free_bytes + more)
            for c in hardware.cards
        )
        hardware = msgspec.structs.replace(hardware, cards=cards)
        budget = wishes.vram_budget_bytes
        wishes = msgspec.structs.replace(wishes, vram_budget_bytes=None if budget is None else budget + more)
    return place(hardware, model, wishes).fits
