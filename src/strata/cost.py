"""How fast a machine would be: the cost model of FIELD.md F 3.1, term by term.

A decode step takes: the dense weights once, states and keys, and in each layer the larger of what the card
does with the experts it holds and what processor and link do with those it misses; launches are on top. The
constants are published or measured and say where they are from; `tests/test_plan_published.py` compares the
outcome with published figures.
"""

import math
from dataclasses import replace

import msgspec
import numpy as np

from strata.experts.split import Costs, finish_times, split
from strata.formats.description import ModelDescription
from strata.hardware.description import Card, Hardware

LANE_BYTES = {
    1: 0.25e9,
    2: 0.5e9,
    3: 0.985e9,
    4: 1.97e9,
    5: 3.94e9,
    6: 7.56e9,
}  # PCIe, each lane, in a second
COPY_SHARE = 0.87  # of that: 55 of 63 GB/s were measured on generation 5 x 16
# Bytes of weights that a core multiplies in a second; AVX2 from bench/cpu_kernels.py on Zen 3, VNNI:
# FIELD.md F 3.1
CORE_BYTES = {"avx2": 5e9, "avx_vnni": 10e9, "avx512": 12e9, "amx": 12e9, "": 1e9, "portable": 1e9}
# Multiply-adds of prompts likewise; above AVX2 in proportion to what an instruction does
CORE_PRODUCTS = {"avx2": 20e9, "avx_vnni": 40e9, "avx512": 80e9, "amx": 400e9, "": 1e9, "portable": 2e9}
KERNELS_PER_LAYER = 12  # of a step, or of a chunk of a prompt
HANDSHAKE_S = 8e-6  # the smallest job from a card and back: docs/JOBS.md, on an H200
EXPERTS_S = 11e-6  # five launches of a layer's experts besides reading them: 19.9 us on an H200 for ten
CPU_ROW = 0.3  # of an expert's time, for each further row (F 3.4: from two rows on products are the limit)
# Distinct experts of a window of 1, 2, ... rows over those of one: F 3.1
DISTINCT = (1.0, 1.70, 2.31, 2.88, 3.40, 3.89, 4.35, 4.80)
# int8 multiply-adds (float16 before sm_75) of a compute unit in a clock, from the vendors' peaks
UNIT_PRODUCTS = {
    "sm_7": 512, "sm_75": 1024, "sm_80": 2048, "sm_8": 1024, "sm_90": 4096, "sm_10": 4096, "sm_12": 1024,
    "gfx9": 256, "gfx10": 256, "gfx11": 256, "gfx12": 1024,
}  # fmt: skip
# Of these peaks, what prompts reached: FIELD.md C and E, RTX 3090 7.6 %, R9700 7.6, RTX 5070 13, RTX 5090 13,
# RX 7900 XTX 16; without matrix cores more
# Share of experts held -> share of uses that find theirs. While the topic lasts: LFRU on traces of
# `experts.trace`, which meet FIELD.md F 3.2's row of it; `experts.policy` misses less there. In mixed use:
# ggml#27861 (0.67 and 0.81 of LRU at an eighth and a quarter) and the original's 0.64 at 4,105 of 24,576 (B
# 3.1).
ONE_TOPIC = (
    (0.0, 0.0), (0.02, 0.263), (0.04, 0.422), (0.08, 0.628), (0.12, 0.748), (0.16, 0.825), (0.20, 0.876),
    (0.26, 0.923), (0.33, 0.953), (0.41, 0.972), (0.49, 0.982), (0.60, 0.990), (0.75, 0.994), (1.0, 1.0),
)  # fmt: skip
MIXED_USE = ((0.0, 0.0), (0.08, 0.42), (0.167, 0.64), (0.25, 0.80), (0.41, 0.90), (0.60, 0.96), (1.0, 1.0))


class Efficiency(msgspec.Struct, frozen=True):
    """What an engine makes of a machine.

    Attributes:
        vram: share of a card's bandwidth that products of a few rows reach.
        kernel: seconds that each kernel of a step takes besides reading its weights.
        host: share of main memory's bandwidth that the processor's products reach.
        link: share of the link that kernels reach which read host memory in place.
        prompt: share of the card's int8 peak that prompts reach.
    """

    vram: float
    kernel: float
    host: float
    link: float
    prompt: float


# What engines make of their machines, and what is to be had. LOW: Strata decoded Flash-Next in IQ3_XXS, all
# in VRAM, on an H200 (copies at 2.77 TB/s) in 12.6 ms a token when it first ran, and its kernels of
# experts read 35 of a link's 63 GB/s; SGLang takes 11.5 ms where weights alone would take 5.5 (FIELD.md E
# 2a). HIGH: an isolated kernel takes 5 us (F 3.1), plain reads over the link reach 51 GB/s. Prompts reach
# 7.6 % of the peak on an RTX 3090 and an R9700, 13 % on an RTX 5070 and 5090, 16 % on an RX 7900 XTX (C,
# E).
LOW = Efficiency(vram=0.55, kernel=16e-6, host=0.6, link=0.55, prompt=0.075)
HIGH = Efficiency(vram=0.8, kernel=5e-6, host=0.8, link=0.81, prompt=0.16)


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine does in a second.

    Attributes:
        vram: bytes of weights that the card's products read.
        link: bytes of host memory that the card reads in place.
        copy: bytes that the card's copy engine brings.
        host: bytes of main memory, read by all together.
        cpu: bytes of expert weights that the processor's products read.
        cpu_products, card_products: multiply-adds of prompts; None: unknown, or no card.
        kernel: seconds of a kernel besides reading weights.
        page_reads: places of a disk that are read; None: unknown.
        assumed: what the description does not tell, and what was taken for it.
    """

    vram: float | None
    link: float
    copy: float
    host: float
    cpu: float
    cpu_products: float
    card_products: float | None
    kernel: float
    page_reads: float | None
    assumed: tuple[str, ...]


class Term(msgspec.Struct, frozen=True):
    """A part of a step's time, in seconds."""

    name: str
    seconds: float


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """A step of decoding; `terms` add up to its time.

    Attributes:
        tokens_per_s: of one sequence.
        tokens_per_step: more than 1 with drafts.
        hit_rate: share of uses of experts that find theirs in VRAM; 1 without a card.
        cpu_share: of the misses, what the processor takes.
    """

    tokens_per_s: float
    tokens_per_step: float
    hit_rate: float
    cpu_share: float
    terms: tuple[Term, ...]


def rates_of(hardware: Hardware, card: Card | None, efficiency: Efficiency) -> Rates:
    """What an engine gets from the machine as far as it is known, and from assumptions for the rest."""
    assumed = []
    host = hardware.cpu.memory_bandwidth
    if host is None:
        host = 50e9
        assumed.append("memory bandwidth 50 GB/s")
    vram, pcie, products = None, 0.0, None
    if card is not None:
        vram = card.bandwidth
        if vram is None:
            vram = 400e9
            assumed.append(f"{card.name}: memory bandwidth 400 GB/s")
        pcie = LANE_BYTES.get(card.pcie_generation or 0, 0.0) * (card.pcie_width or 0)
        if not pcie and not (card.link_bandwidth and card.zero_copy_bandwidth):
            pcie = LANE_BYTES[4] * 16
            assumed.append(f"{card.name}: PCIe 4 x 16")
        products = _peak_products(card)
    isa = hardware.cpu.isa
    return Rates(
        vram=None if vram is None else efficiency.vram * vram,
        link=min(host, (card and card.zero_copy_bandwidth) or efficiency.link * pcie),
        copy=min(host, (card and card.link_bandwidth) or COPY_SHARE * pcie),
        host=host,
        cpu=min(efficiency.host * host, hardware.cpu.cores * CORE_BYTES.get(isa, CORE_BYTES["avx2"])),
        cpu_products=hardware.cpu.cores * CORE_PRODUCTS.get(isa, CORE_PRODUCTS["avx2"]),
        card_products=products and efficiency.prompt * products,
        kernel=efficiency.kernel,
        page_reads=hardware.disk and hardware.disk.page_reads_per_second,
        assumed=tuple(assumed),
    )


def _peak_products(card: Card) -> float | None:
    """int8 multiply-adds in a second, by the vendor."""
    if card.compute_units is None or card.clock_hz is None:
        return None
    prefix = max((p for p in UNIT_PRODUCTS if card.arch.startswith(p)), key=len, default=None)
    return prefix and card.compute_units * card.clock_hz * UNIT_PRODUCTS[prefix]


def hit_rate(curve: tuple[tuple[float, float], ...], share: float) -> float:
    """Share of uses that find their expert when `share` of all are held."""
    return float(np.interp(share, [x for x, _ in curve], [y for _, y in curve]))


def miss_costs(model: ModelDescription, rates: Rates, rows: int) -> Costs:
    """Of an average expert; the card's other work of a layer is left to the caller."""
    size = sum(model.expert_bytes) / max(len(model.expert_bytes), 1)
    cpu = size / rates.cpu
    return Costs(
        handshake=HANDSHAKE_S,
        cpu=cpu,
        cpu_row=CPU_ROW * cpu if rows > 1 else 0.0,
        link=size / rates.link if rates.link else math.inf,
        host=size / rates.host,
    )


def window_costs(model: ModelDescription, rates: Rates, held: int) -> Costs:
    """Of an average expert, in a layer of a window of one row that finds `held` of its experts in VRAM.

    The card copies its share of the others there before it begins with any.
    """
    costs = miss_costs(model, rates, rows=1)
    read = sum(model.expert_bytes) / max(len(model.expert_bytes), 1) / rates.vram
    return replace(costs, link=costs.link + read, card=EXPERTS_S + held * read)


def decode_on_card(
    model: ModelDescription,
    rates: Rates,
    cache_bytes: float,
    hits: float,
    rows: int = 1,
    acceptance: float = 0.0,
) -> Speed:
    """One step of `rows` rows, of which the first is a token and each further one a draft.

    Args:
        cache_bytes: keys and values that a row reads.
        hits: share of experts that are held.
        acceptance: probability that a draft is right if those before it are.
    """
    layers = len(model.expert_bytes)
    terms = [
        Term("dense weights", model.dense_bytes / rates.vram),
        Term("keys, values and states", (rows * cache_bytes + 2 * model.state_bytes) / rates.vram),
        Term("launches", model.layers * KERNELS_PER_LAYER * rates.kernel),
    ]
    cpu_share = 0.0
    if layers:
        held, waiting, cpu_share = _experts_of_layer(model, rates, hits, rows)
        terms += [Term("experts in VRAM", layers * held), Term("experts missed", layers * waiting)]
    if rows > 1:  # each draft runs the draft layer and the output matrix
        terms.append(Term("drafts", (rows - 1) * _draft_seconds(model, rates)))
    terms += _ngram_terms(model, rates, rows, sum(term.seconds for term in terms) / model.layers)
    tokens = sum(acceptance**n for n in range(rows))
    step = sum(term.seconds for term in terms)
    return Speed(
        tokens_per_s=tokens / step,
        tokens_per_step=tokens,
        hit_rate=hits,
        cpu_share=cpu_share,
        terms=tuple(terms),
    )


def _experts_of_layer(
    model: ModelDescription, rates: Rates, hits: float, rows: int
) -> tuple[float, float, float]:
    """Expected seconds for held experts, seconds beyond that for missed ones, and the processor's share.

    The number of misses is binomial: one miss in one layer of two costs more than half a miss in each.
    """
    size = sum(model.expert_bytes) / len(model.expert_bytes)
    used = min(model.expert_count, round(model.experts_used * DISTINCT[min(rows, len(DISTINCT)) - 1]))
    costs = miss_costs(model, rates, rows)
    held = waiting = taken = missed = 0.0
    for misses in range(used + 1):
        chance = math.comb(used, misses) * (1 - hits) ** misses * hits ** (used - misses)
        card = (used - misses) * size / rates.vram
        of_rows = np.full(misses, rows * model.experts_used / used)
        at = Costs(costs.handshake, costs.cpu, costs.cpu_row, costs.link, costs.host, card)
        held += chance * card
        waiting += chance * (float(finish_times(of_rows, at).min()) - card)
        taken += chance * len(split(of_rows, at))
        missed += chance * misses
    return held, waiting, taken / missed if missed else 0.0


def _ngram_terms(model: ModelDescription, rates: Rates, rows: int, hidden: float) -> list[Term]:
    """Waiting for rows of the n-gram table beyond the `hidden` seconds in which the first layer computes."""
    if not model.ngram_rows or rates.page_reads is None:
        return []
    return [Term("n-gram rows from disk", max(0.0, rows * model.ngram_rows / rates.page_reads - hidden))]


def _draft_seconds(model: ModelDescription, rates: Rates) -> float:
    """An MTP layer is one more layer; its output matrix is the model's."""
    size = sum(model.expert_bytes) / max(len(model.expert_bytes), 1)
    dense = model.dense_bytes / model.layers + model.output_bytes
    return (dense + model.experts_used * size) / rates.vram + KERNELS_PER_LAYER * rates.kernel


def decode_on_cpu(model: ModelDescription, rates: Rates, cache_bytes: float) -> Speed:
    """One token, everything on the processor."""
    experts = model.experts_used * sum(model.expert_bytes)
    terms = (
        Term("dense weights", model.dense_bytes / rates.cpu),
        Term("experts", experts / rates.cpu),
        Term("keys, values and states", (cache_bytes + 2 * model.state_bytes) / rates.host),
        *_ngram_terms(model, rates, rows=1, hidden=0.0),
    )
    step = sum(term.seconds for term in terms)
    return Speed(tokens_per_s=1 / step, tokens_per_step=1, hit_rate=1.0, cpu_share=1.0, terms=terms)


def prompt_seconds(
    model: ModelDescription, rates: Rates, tokens: int, chunk: int, held: float, on_card: bool
) -> float:
    """A prompt read in chunks: in each, products and the stream of missing experts run side by side.

    On a card a chunk takes as many kernels as a step of decoding; of a small model's, nothing else is left.
    The processor's calls are lost in its products: the embedded model, 22 million weights, reads 512 tokens
    in 0.18 s of a Zen 3 core where this says 0.21 (30 November 2026).

    Args:
        held: share of experts where they are computed.
        on_card: on the card, whose products must be known, or on the processor.
    """
    products = rates.card_products if on_card else rates.cpu_products
    work = model.dense_weights + len(model.expert_bytes) * model.experts_used * model.expert_weights
    launches = model.layers * KERNELS_PER_LAYER * rates.kernel if on_card else 0.0
    seconds = 0.0
    for start in range(0, tokens, chunk):
        part = min(chunk, tokens - start)
        used = 1 - (1 - model.experts_used / model.expert_count) ** part if model.expert_count else 0.0
        stream = (1 - held) * used * model.all_expert_bytes
        stream = stream / rates.copy if stream else 0.0
        attention = part * 2 * model.query_values * min(start + part / 2, model.attended or math.inf)
        compute = (part * work + attention) / products + launches
        # the first layer's experts have nothing to hide behind
        seconds += max(compute, stream) + stream / max(len(model.expert_bytes), 1)
    return seconds
