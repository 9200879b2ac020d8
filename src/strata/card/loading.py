"""A model onto a card: first everything but the experts' slots, then as many slots as there is room for."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from strata.card.cache import ExpertCache
from strata.card.compile_ahead import Compiling, num_jobs
from strata.card.device import Card
from strata.card.host_experts import HostExperts
from strata.card.model import CardModel
from strata.card.prompts import Processor, PromptReader
from strata.card.rehearsal import Stage
from strata.card.runner import CardRunner
from strata.card.weights import CardWeights
from strata.cost import HIGH, miss_costs, rates_of, window_costs
from strata.errors import StrataError
from strata.experts.split import num_taken
from strata.experts.trace import Trace
from strata.formats.checkpoint import Checkpoint
from strata.formats.description import ModelDescription
from strata.hardware import description
from strata.hardware.cpu import usable_cpus
from strata.hardware.description import Hardware
from strata.models import load_model
from strata.native import Experts
from strata.ops.triton.bandwidth import card_bandwidths
from strata.ops.triton.float_matmul import WINDOW_ROWS
from strata.plan import Plan, Wishes, plan
from strata.prompt_memory import activation_bytes

_PROBE_BYTES = 32 << 20
_SMALLER = 0.95  # what is tried where the driver has less memory than it says
_KV_TYPES = {"f16": torch.float16, "int8": torch.int8}


class DoesNotFitError(StrataError):
    """The planner sees no room on the card."""


@dataclass(frozen=True, slots=True)
class LoadedOnCard:
    """A model on a card.

    Attributes:
        runner: computes.
        plan: that it was loaded by.
        memory: bytes on the card by purpose.
        host_bytes: experts in host memory.
    """

    runner: CardRunner
    plan: Plan
    memory: dict[str, int]
    host_bytes: int


def find_card(hardware: Hardware, index: int | None = None) -> tuple[int, description.Card] | None:
    """PyTorch's number of a card, and its description.

    Args:
        hardware: with its cards.
        index: PyTorch's number; None: the one with the most free memory.

    Returns:
        None where PyTorch sees no card (that it is asked for).
    """
    if not torch.cuda.is_available():
        return None
    count = torch.cuda.device_count()
    numbers = range(count) if index is None else [index] if index < count else []
    cards = {number: _described(hardware, number) for number in numbers}
    if not cards:
        return None
    number = max(cards, key=lambda n: cards[n].free_bytes)
    return number, cards[number]


def _described(hardware: Hardware, number: int) -> description.Card:
    """What the driver says of the card that PyTorch gives a number, or else PyTorch."""
    properties = torch.cuda.get_device_properties(number)
    place = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    known = next((card for card in hardware.cards if card.pci_address == place), None)
    if known is not None:
        return known
    # A container may hide what the driver would say. To ask PyTorch takes some of the card's memory.
    arch = getattr(properties, "gcnArchName", "").partition(":")[0]
    return description.Card(
        name=properties.name,
        arch=arch or f"sm_{properties.major}{properties.minor}",
        vram_bytes=properties.total_memory,
        free_bytes=torch.cuda.mem_get_info(number)[0],
    )


def load_on_card(
    checkpoint: Checkpoint,
    hardware: Hardware,
    number: int,
    wishes: Wishes,
    report: Callable[[int, int], None],
    say: Callable[[str], None] = lambda text: None,
    learn: Callable[[np.ndarray, int], None] = lambda counts, tokens: None,
    frequency: np.ndarray | None = None,
    threads: int | None = None,
    trace: Trace | None = None,
    cpu_share: float | None = None,
    held_share: float | None = None,
) -> LoadedOnCard:
    """Load a model as `plan` says.

    Args:
        checkpoint: the model.
        hardware: with one card, the one that is used.
        number: PyTorch's of that card.
        wishes: as of `plan`; also how much of the card's memory may be used.
        report: gets bytes done and bytes to do.
        say: is told what is done after reading.
        learn: see `CardRunner`.
        frequency: how often an earlier run used the experts, float32 `[layers * experts]`.
        threads: of the processor's share.
        trace: routes to force, for made-up weights.
        cpu_share: of a layer's missed experts that the processor computes; None: as costs say.
        held_share: of the experts' bytes that get slots, at most; None: all that there is room for.

    Raises:
        DoesNotFitError: the planner sees no room.
        UnsupportedModelError: the model does not run on a card yet.
        card.device.CardError: the card refuses.
    """
    torch.cuda.set_device(number)
    card = Card(number)
    described = msgspec.structs.replace(
        hardware.cards[0], **card_bandwidths(card.device, num_bytes=_PROBE_BYTES)
    )
    torch.cuda.empty_cache()
    hardware = msgspec.structs.replace(hardware, cards=(described,))
    model_description = ModelDescription.of_checkpoint(checkpoint)
    made = plan(hardware, model_description, wishes)
    if not made.fits:
        raise DoesNotFitError(f"{checkpoint.path}: does not fit on {described.name}. {made.reasons[0]}")
    weights = CardWeights(checkpoint, card)
    model = load_model(weights)
    CardModel.require(model)
    all_held = made.resident_share == 1 and held_share is None
    take = _take(hardware, model_description, cpu_share, all_held)
    with _compiling(checkpoint, hardware, model_description, wishes, made, take) as compiling:
        layers = weights.load_experts(len(model.expert_layers()), report)
        compiling.wait(lambda done, of: say(f"compiling kernels for this card: {done} of {of}"))
    say("preparing the card")
    cache = ExpertCache(card, weights.store, frequency)
    host = _host_experts(card, layers, model_description, model.config.embedding_length, take, threads)
    kv_type = _KV_TYPES[wishes.kv]
    on_card = CardModel(model, weights, cache, wishes.lanes, made.context, kv_type, host, take)
    if trace is not None:
        on_card.force_routes(torch.from_numpy(trace.ids))
    ring = sum(part.bytes for part in made.parts if part.purpose == "ring of streamed experts")
    processor = None if host is None else _processor(hardware, model_description, cpu_share)
    link = described.link_bandwidth or 1e10
    reader = PromptReader(on_card, cache, ring, made.prefill_part, link, processor)
    runner = CardRunner(on_card, cache, reader, link, learn)
    activations = _warm(runner, model_description, made)
    say("filling the card with experts")
    reserve = described.free_bytes - made.vram_budget
    used = described.free_bytes - torch.cuda.mem_get_info(number)[0]
    budget = made.vram_budget - used
    total = int(cache.residency.size.sum())
    if held_share is not None:
        budget = min(budget, int(held_share * total))
    _allocate(cache, max(0, min(budget, total)), number, reserve)
    del activations
    return LoadedOnCard(runner, made, _memory(runner, used, ring), weights.store.num_bytes)


def _processor(hardware: Hardware, model: ModelDescription, share: float | None) -> Processor:
    """What decides about its share of prompts."""
    rates = rates_of(hardware, hardware.cards[0], HIGH)
    return Processor(miss_costs(model, rates, rows=2), rates.copy, share)


def _compiling(
    checkpoint: Checkpoint,
    hardware: Hardware,
    model: ModelDescription,
    wishes: Wishes,
    made: Plan,
    take: list[int] | None,
) -> Compiling:
    """Begin to compile what the model will launch."""
    kv_type = _KV_TYPES[wishes.kv]
    stage = Stage(wishes.lanes, made.context, kv_type, take, made.prefill_part)
    left = hardware.ram.available_bytes - model.all_expert_bytes
    return Compiling(checkpoint, stage, made.prefill_chunk, num_jobs(len(usable_cpus()), left))


def _warm(runner: CardRunner, model: ModelDescription, made: Plan) -> torch.Tensor:
    """Compute a chunk, so that all is compiled; returns memory for chunks, to be held until slots are taken.

    Chunks take their tensors out of one block that torch keeps. What is taken out of many has gaps, which
    made it twice as much; and torch would give the block back to make room for slots.
    """
    torch.cuda.empty_cache()
    size = activation_bytes(model, made.prefill_chunk, made.prefill_part)
    runner.model.weights.card.empty(size)  # taken and left to torch at once
    runner.warm(made.prefill_chunk)
    return runner.model.weights.card.empty(size)


def _take(
    hardware: Hardware, model: ModelDescription, share: float | None, all_held: bool
) -> list[int] | None:
    """How many of 0, 1, ... missed experts of a layer the processor takes.

    None where `all_held` are to have slots. To ask the processor and to fetch takes five launches in each
    layer; should there be less room than planned after all, the card reads the few that it then misses.
    """
    most = WINDOW_ROWS * model.experts_used
    if share is not None:
        return [round(share * missed) for missed in range(most + 1)]
    if all_held or not model.expert_bytes:
        return None
    rates = rates_of(hardware, hardware.cards[0], HIGH)
    costs = [window_costs(model, rates, max(0, model.experts_used - missed)) for missed in range(most + 1)]
    rows = np.ones(most)
    return [num_taken(rows[:missed], of) for missed, of in enumerate(costs)]


def _host_experts(
    card: Card,
    layers: list[Experts],
    model: ModelDescription,
    width: int,
    take: list[int] | None,
    threads: int | None,
) -> HostExperts | None:
    """The processor's pool, where it has a share."""
    if not any(take or ()):
        return None
    return HostExperts(card, layers, width, WINDOW_ROWS, model.experts_used, threads)


def _allocate(cache: ExpertCache, budget: int, number: int, reserve: int) -> None:
    """Slots of `budget` bytes, or of what the driver really has besides the reserve; then fill them."""
    budget = min(budget, torch.cuda.mem_get_info(number)[0] - reserve)
    while budget > 0:
        try:
            cache.allocate(budget, slack=_slack(cache, budget))
            break
        except torch.cuda.OutOfMemoryError:
            budget = int(_SMALLER * budget)
    cache.fill(np.argsort(-cache.policy.frequency, kind="stable").tolist())


def _slack(cache: ExpertCache, budget: int) -> int:
    """Slots of a size that copies may be on their way to; none is needed where all experts have one."""
    mean = max(1.0, cache.mean_bytes)
    return 0 if budget >= cache.residency.size.sum() else max(1, min(64, int(budget / mean) // 16))


def _memory(runner: CardRunner, used: int, ring: int) -> dict[str, int]:
    """Where the card's bytes are."""
    model = runner.model
    parts = {
        "dense weights": model.weights.dense_bytes,
        "keys and values": model.lanes * model.context * model.bytes_per_token(),
        "recurrent states": model.lanes * model.state_bytes(),
        "ring of streamed experts": ring,
        "fetched experts": 0 if model.memory.misses is None else model.memory.misses.memory.nbytes,
        "expert slots": runner.cache.num_bytes,
    }
    known = sum(parts.values()) - parts["expert slots"]
    return {name: size for name, size in {**parts, "runtime and activations": used - known}.items() if size}
