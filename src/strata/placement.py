"""Where the bytes of a model go on a machine: every byte of a budget has a purpose."""

from typing import Any, Literal

import msgspec
import numpy as np

from strata.choices import KV, Dense
from strata.cost import (
    HIGH,
    LOW,
    MIXED_USE,
    ONE_TOPIC,
    Rates,
    Speed,
    decode_on_card,
    decode_on_cpu,
    hit_rate,
    prompt_seconds,
    rates_of,
)
from strata.experts.policy import align, slot_classes
from strata.formats.description import ModelDescription
from strata.hardware.description import Card, Hardware
from strata.prompt_memory import chunk_bytes, short_bytes

MIB, GIB = 1 << 20, 1 << 30
RESERVE, SMALL_RESERVE, SMALL_CARD = 700 * MIB, 300 * MIB, 8 * GIB  # FIELD.md A 2.2
RUNTIME_VRAM = 500 * MIB  # driver's context, graphs, workspaces of libraries
RUNTIME_RAM, CPU_RUNTIME_RAM = 1536 * MIB, 768 * MIB  # Python and torch, with and without a card's runtime
CHECKPOINTS = 256 * MIB  # copies of recurrent states, of each lane; the engine's default
# Tokens of a prompt that are read at a time, and of those, tokens that pass a layer at once. Experts come
# over the link once for a chunk, and are taken out of their planes once for a part.
PIECES = ((8192, 4096), (4096, 4096), (4096, 2048), (2048, 2048), (2048, 1024), (1024, 1024), (512, 512))
CPU_CHUNK = 512
# One part in so many of what is left: for prompts, then for streamed experts.
PROMPT_PART, RING_PART = 8, 16
SLACK = 64  # slots of a class that are empty or being filled
FETCHED = 16  # missed experts of a layer that a window copies to the card before it computes them
SMALLEST_CONTEXT = 4096
PROMPTS = (512, 32768)  # lengths whose speed is told
KV_BYTES = {"f32": 4.0, "f16": 2.0, "int8": 1 + 2 / 64}  # of a value; int8 has a float16 scale for 64


class Wishes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person asks for; None leaves it to the planner.

    Attributes:
        context: tokens of a conversation.
        lanes: conversations at a time.
        vram_budget_bytes: at most so much of the card; None: all that is free.
        vram_reserve_bytes: stays free for others.
        ram_budget_bytes: at most so much memory; None: all that can be taken.
        dense: float matrices as stored, or as Q8_0, which changes text slightly (`formats.requantized`).
        kv: storage of keys and values on a card.
        use_card: False plans for the processor alone.
        window: rows of a decode step, 1 without drafts.
        acceptance: probability that a draft is right if those before it are.
    """

    context: int | None = None
    lanes: int = 1
    vram_budget_bytes: int | None = None
    vram_reserve_bytes: int | None = None
    ram_budget_bytes: int | None = None
    dense: Dense = "as_stored"
    kv: KV = "f16"
    use_card: bool = True
    window: int = 1
    acceptance: float = 0.0


class Part(msgspec.Struct, frozen=True):
    """Bytes of one purpose in one tier."""

    purpose: str
    tier: Literal["VRAM", "RAM", "disk"]
    bytes: int


class PromptSpeed(msgspec.Struct, frozen=True):
    """Tokens per second of reading a prompt; None where the card's compute units are not known."""

    tokens: int
    low: float | None
    high: float | None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What goes where.

    Attributes:
        model: its name.
        card: the one that is used, by name; "" for none.
        fits: all parts stay in their budgets.
        parts: every purpose with its bytes. Experts in VRAM are copies of those in RAM, which holds all.
        vram_budget, ram_budget: what the parts of these tiers must stay in.
        context, lanes: tokens of a conversation, and conversations at a time.
        slots: places for experts in VRAM; `resident_share` is what they hold of all experts' bytes.
        prefill_chunk: tokens of a prompt that are read at a time.
        prefill_part: of those, tokens that pass a layer of the card at once.
        decode: (low, high) speeds of one conversation, half its context read: low with the uses of experts of
            mixed work and what published engines reach, high while a topic lasts and with good kernels.
        prompts: speeds of reading, of lengths that the model was made for.
        reasons: why it does not fit, what was assumed, what is left unused.
        changes: of the wishes or the machine; each alone would make it fit.
    """

    model: str
    card: str
    fits: bool
    parts: tuple[Part, ...]
    vram_budget: int
    ram_budget: int
    context: int
    lanes: int
    slots: int
    resident_share: float
    prefill_chunk: int
    prefill_part: int
    decode: tuple[Speed, Speed]
    prompts: tuple[PromptSpeed, ...]
    reasons: tuple[str, ...]
    changes: tuple[str, ...] = ()

    def used(self, tier: str) -> int:
        """Bytes of all parts in a tier."""
        return sum(part.bytes for part in self.parts if part.tier == tier)

    def to_json(self) -> str:
        """An indented JSON object that `from_json` reads back to an equal plan."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Plan":
        """Read what `to_json` wrote; msgspec.DecodeError where it is something else."""
        return msgspec.json.decode(text, type=cls)


def place(hardware: Hardware, model: ModelDescription, wishes: Wishes) -> Plan:
    """The plan, without changes that would make it fit."""
    if wishes.dense == "q8_0":
        model = model.requantized()
    own = [card for card in hardware.cards if not card.shares_ram] if wishes.use_card else []
    if not own:
        return _plan_for_cpu(hardware, model, wishes)
    return _plan_for_card(hardware, max(own, key=lambda card: card.free_bytes), model, wishes)


def cache_bytes(model: ModelDescription, kv: str, context: int) -> int:
    """Keys and values of one conversation with those of the indexer (stored like activations)."""
    index = 4 if kv == "f32" else 2
    return int(context * (model.kv_values * KV_BYTES[kv] + model.index_values * index))


def _context(model: ModelDescription, wishes: Wishes, kv: str, room: int) -> int:
    """The wished context, or the longest power of two whose keys and values take an eighth of the room."""
    if wishes.context is not None:
        return wishes.context
    context = model.context_length
    while context > SMALLEST_CONTEXT and wishes.lanes * cache_bytes(model, kv, context) > room // 8:
        context = 1 << (context - 1).bit_length() - 1
    return context


def _read_bytes(model: ModelDescription, kv: str, context: int) -> float:
    """Bytes of keys and values that a token reads half way through its context."""
    length = context // 2
    attended = min(length, model.attended or length)
    return attended * model.kv_values * KV_BYTES[kv] + length * model.index_values * (4 if kv == "f32" else 2)


def _ram_budget(hardware: Hardware, wishes: Wishes) -> int:
    available = hardware.ram.available_bytes
    return available if wishes.ram_budget_bytes is None else min(available, wishes.ram_budget_bytes)


def _plan_for_cpu(hardware: Hardware, model: ModelDescription, wishes: Wishes) -> Plan:
    budget, rates = _ram_budget(hardware, wishes), [rates_of(hardware, None, e) for e in (LOW, HIGH)]
    weights = model.dense_bytes + model.draft_bytes + model.all_expert_bytes
    context = _context(model, wishes, "f32", budget - CPU_RUNTIME_RAM - weights)
    parts = [
        Part("runtime", "RAM", CPU_RUNTIME_RAM),
        Part("dense weights", "RAM", model.dense_bytes + model.draft_bytes),
        Part("experts", "RAM", model.all_expert_bytes),
        *_sequence_parts(model, wishes, "f32", context, "RAM"),
        *_checkpoints(model, wishes),
        *_disk_parts(model),
    ]
    read = _read_bytes(model, "f32", context)
    prompts = [
        _prompt_speed(model, rates, n, CPU_CHUNK, 1.0, on_card=False) for n in _prompts(model, context)
    ]
    notes = [f"{card.name} shares its memory with the processor: not used" for card in hardware.cards]
    return _checked(
        model, wishes, rates, parts, _missing("RAM", budget, parts), notes * wishes.use_card,
        card="", vram_budget=0, ram_budget=budget, context=context,
        slots=0, resident_share=0.0, prefill_chunk=CPU_CHUNK, prefill_part=CPU_CHUNK,
        decode=tuple(decode_on_cpu(model, speeds, read) for speeds in rates), prompts=tuple(prompts),
    )  # fmt: skip


def _plan_for_card(hardware: Hardware, card: Card, model: ModelDescription, wishes: Wishes) -> Plan:
    rates, ram = [rates_of(hardware, card, e) for e in (LOW, HIGH)], _ram_budget(hardware, wishes)
    reserve = wishes.vram_reserve_bytes
    if reserve is None:
        reserve = SMALL_RESERVE if card.vram_bytes < SMALL_CARD else RESERVE
    vram = max(0, card.free_bytes - reserve)
    vram = vram if wishes.vram_budget_bytes is None else min(vram, wishes.vram_budget_bytes)
    context = _context(model, wishes, wishes.kv, vram - RUNTIME_VRAM - model.dense_bytes)
    parts = [
        Part("runtime", "VRAM", RUNTIME_VRAM),
        Part("dense weights", "VRAM", model.dense_bytes),
        *_sequence_parts(model, wishes, wishes.kv, context, "VRAM"),
    ]
    left = vram - sum(part.bytes for part in parts)
    prompt_parts, (chunk, part) = _prompt_parts(model, left)
    left -= sum(part.bytes for part in prompt_parts)
    slots, fetched = _slots(model, left), 0
    if _held_share(model, slots) < 1:
        fetched = FETCHED * max(model.expert_bytes)
        slots = _slots(model, left - fetched)
    slot_bytes = sum(size * count for size, count in slots.items())
    held = _held_share(model, slots)
    parts += [
        *prompt_parts,
        Part("fetched experts", "VRAM", fetched),
        Part("expert slots", "VRAM", slot_bytes),
        Part("runtime", "RAM", RUNTIME_RAM),
        Part("experts, pinned", "RAM", model.all_expert_bytes),
        *_checkpoints(model, wishes),
        *_disk_parts(model),
    ]
    missing = _missing("VRAM", vram, parts) + _missing("RAM", ram, parts) + _unpinnable(hardware, model)
    notes = [f"{other.name}: not used, one card is" for other in hardware.cards if other is not card]
    read = _read_bytes(model, wishes.kv, context)
    decode = tuple(
        decode_on_card(model, speeds, read, hit_rate(curve, held), wishes.window, wishes.acceptance)
        for speeds, curve in zip(rates, (MIXED_USE, ONE_TOPIC), strict=True)
    )
    return _checked(
        model, wishes, rates, parts, missing, notes, card=card.name, vram_budget=vram, ram_budget=ram,
        context=context, slots=sum(slots.values()), resident_share=held, prefill_chunk=chunk,
        prefill_part=part, decode=decode,
        prompts=tuple(
            _prompt_speed(model, rates, n, chunk, held, on_card=True) for n in _prompts(model, context)
        ),
    )  # fmt: skip


def _checked(
    model: ModelDescription,
    wishes: Wishes,
    rates: list[Rates],
    parts: list[Part],
    missing: list[str],
    notes: list[str],
    **fields: Any,
) -> Plan:
    """The plan; it fits if nothing is missing and the context is one the model was made for."""
    if fields["context"] > model.context_length:
        limit = f"{model.name} was made for {model.context_length} tokens"
        missing = [*missing, f"context {fields['context']}: {limit}"]
    notes = notes + [f"not known, assumed: {what}" for what in rates[0].assumed]
    return Plan(
        model=model.name,
        fits=not missing,
        parts=tuple(parts),
        lanes=wishes.lanes,
        reasons=(*missing, *notes),
        **fields,
    )


def _sequence_parts(
    model: ModelDescription, wishes: Wishes, kv: str, context: int, tier: Literal["VRAM", "RAM"]
) -> list[Part]:
    caches, states = cache_bytes(model, kv, context), model.state_bytes
    return [
        Part("keys and values", tier, wishes.lanes * caches),
        Part("recurrent states", tier, wishes.lanes * states),
    ]


def _checkpoints(model: ModelDescription, wishes: Wishes) -> list[Part]:
    """Of models whose state cannot be cut."""
    return [Part("checkpoints", "RAM", wishes.lanes * CHECKPOINTS)] if model.state_bytes else []


def _disk_parts(model: ModelDescription) -> list[Part]:
    """What stays in the mapped file: rows are read from it when they are needed."""
    tables = [("token embedding", model.table_bytes), ("n-gram table", model.ngram_bytes)]
    return [Part(name, "disk", size) for name, size in tables if size]


def _prompt_parts(model: ModelDescription, left: int) -> tuple[list[Part], tuple[int, int]]:
    """Activations, of chunks and of short pieces, and the ring that streamed experts go through; and which of
    `PIECES` a chunk is.

    The activations' part grows with what is left, not in steps, so that no larger card has fewer slots. What
    a chunk does not need of it, slots get when the model is loaded.
    """
    short, needs = short_bytes(model), {pieces: chunk_bytes(model, *pieces) for pieces in PIECES}
    activations = min(max(left // PROMPT_PART, needs[PIECES[-1]]), needs[PIECES[0]])
    pieces = next(pieces for pieces, needed in needs.items() if needed <= activations)
    largest = max(model.expert_bytes, default=0)
    ring = min(max((left - short - activations) // RING_PART, 16 * largest), 2 * model.expert_count * largest)
    parts = [
        Part("prompt activations", "VRAM", short + activations),
        Part("ring of streamed experts", "VRAM", ring),
    ]
    return parts, pieces


def _expert_sizes(model: ModelDescription) -> np.ndarray:
    return np.repeat(np.array(model.expert_bytes, np.int64), model.expert_count)


def _slots(model: ModelDescription, left: int) -> dict[int, int]:
    """Slots of each size in `left` bytes; at least two rows' worth in a layer, which may then not fit."""
    if not model.expert_bytes:
        return {}
    sizes = _expert_sizes(model)
    least = 2 * model.experts_used * int(align(sizes).max()) + SLACK * int(np.unique(align(sizes)).sum())
    return slot_classes(sizes, max(left, least))


def _held_share(model: ModelDescription, slots: dict[int, int]) -> float:
    """Share of the experts' bytes that slots hold, those apart that copies are under way to."""
    sizes, counts = np.unique(align(_expert_sizes(model)), return_counts=True)
    if not len(sizes):
        return 1.0
    held = 0
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        held += size * (count if slots[size] >= count else max(0, slots[size] - SLACK))
    return held / int((sizes * counts).sum())


def _prompts(model: ModelDescription, context: int) -> list[int]:
    return [tokens for tokens in PROMPTS if tokens <= min(context, model.context_length)]


def _prompt_speed(
    model: ModelDescription, rates: list[Rates], tokens: int, chunk: int, held: float, on_card: bool
) -> PromptSpeed:
    if on_card and rates[0].card_products is None:
        return PromptSpeed(tokens, None, None)
    low, high = (tokens / prompt_seconds(model, speeds, tokens, chunk, held, on_card) for speeds in rates)
    return PromptSpeed(tokens, low, high)


def _missing(tier: str, budget: int, parts: list[Part]) -> list[str]:
    """A reason where a tier's parts are more than its budget; what can give way is at its smallest."""
    needed = sum(part.bytes for part in parts if part.tier == tier)
    if needed <= budget:
        return []
    largest = max((part for part in parts if part.tier == tier), key=lambda part: part.bytes)
    return [
        f"{tier}: needs {gib(needed)}, has {gib(budget)}: {gib(needed - budget)} short "
        f"(most of it: {largest.purpose}, {gib(largest.bytes)})"
    ]


def _unpinnable(hardware: Hardware, model: ModelDescription) -> list[str]:
    limit = hardware.ram.pinnable_bytes
    if limit is None or model.all_expert_bytes <= limit:
        return []
    return [
        f"RAM: the system lets a card use {gib(limit)} of it, the experts take "
        f"{gib(model.all_expert_bytes)}: {gib(model.all_expert_bytes - limit)} short"
    ]


def gib(num_bytes: int) -> str:
    """For a person."""
    return f"{num_bytes / GIB:.1f} GiB"
