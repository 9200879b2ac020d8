"""Small models of every architecture on a card: logits beside the processor's, and bits that never change.

    PYTHONPATH=src python bench/card_models.py [--only NAME] [--json FILE]

Weights are made up. A sequence is computed by windows of one row; its logits are compared with those of the
processor's kernels. Then the same bits are asked for: by windows of 3 and 4 rows, beside another lane, as one
prompt, and with all, some and none of the experts in the card's memory, the rest read by the card or computed
by the processor. Each model runs in a process of its own, since compiling takes most of the time.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from strata.card.cache import ExpertCache
from strata.card.device import Card
from strata.card.host_experts import HostExperts
from strata.card.model import CardModel
from strata.card.rows import Inputs
from strata.card.weights import CardWeights
from strata.formats.checkpoint import TensorInfo
from strata.formats.geometry import DeltaNet, Geometry
from strata.formats.mixes import Mix
from strata.formats.synthetic import SyntheticCheckpoint
from strata.layers.planes import PlaneWeights
from strata.layers.weights import DecodedWeights
from strata.models import load_model
from strata.native import set_num_threads

LENGTH = 24  # tokens
MAX_ROWS = 4  # of a window
CUTS = {"windows of 4": [4] * 6, "windows of 1, 3 and 4": [1, 3, 4, 4, 1, 1, 3, 3, 4]}
# Keys and values are float16 on a card. Where activations are quantised, so small a difference moves some of
# them to the next code; then the card and the processor differ about as much as each does from float
# activations. Their error may be the first, plus the second times that. Medians, for a token may go to
# another expert.
FLOAT_ERROR, TIMES_ROUNDING = 1e-3, 1.5

# Sizes are few, so that models share compiled kernels.
BASE = Geometry(
    "small", "llama", layers=2, width=256, vocab=512, context=4096, heads=4, kv_heads=2, head_length=64,
    expert_count=0, used=0, ff=256, rope_base=1e4, rope_dimensions=64, interval=2, qk_norm=False,
)  # fmt: skip
EXPERTS = {"expert_count": 16, "used": 4}
DELTA = {"qk_norm": True, "rope_dimensions": 16, "layers": 4, "delta": DeltaNet(2, 4, state=64)}
SHARED = {"shared_ff": 256}
QUANTISED = defaultdict(lambda: "Q8_0", experts="Q4_K", experts_down="Q4_K", router="F32", ssm_ba="BF16")
BF16, F32 = defaultdict(lambda: "BF16"), defaultdict(lambda: "F32")
NVFP4 = QUANTISED | {"experts": "NVFP4", "experts_down": "NVFP4"}
IQ3 = QUANTISED | {"experts": "IQ3_XXS", "experts_down": "IQ4_NL", "ssm_ba": "F32"}
NEXT = replace(BASE, architecture="qwen3next", **EXPERTS, **SHARED, **DELTA)


def small(geometry: Geometry, formats: dict[str, str], *scaled: str) -> SyntheticCheckpoint:
    """A model; the experts' matrices called `scaled` have factors beside them."""
    checkpoint = SyntheticCheckpoint(geometry, Mix(formats))
    factors = [f"blk.{layer}.ffn_{part}_exps.scale" for layer in range(geometry.layers) for part in scaled]
    count = geometry.expert_count
    checkpoint.tensors = {**checkpoint.tensors} | {
        name: TensorInfo(name, (count,), "F32", 4 * count) for name in factors
    }
    return checkpoint


MODELS: dict[str, Callable[[], SyntheticCheckpoint]] = {
    "llama BF16": partial(small, BASE, BF16),
    "llama Q8_0, tied": partial(small, replace(BASE, tied=True, kv_heads=4), QUANTISED),
    "mixtral Q4_K": partial(small, replace(BASE, **EXPERTS), QUANTISED),
    "mixtral F32": partial(small, replace(BASE, **EXPERTS), F32),
    "qwen3 Q8_0": partial(small, replace(BASE, architecture="qwen3", qk_norm=True), QUANTISED),
    "qwen3moe NVFP4": partial(
        small, replace(BASE, architecture="qwen3moe", qk_norm=True, **EXPERTS), NVFP4, "gate", "up", "down"
    ),
    "qwen3next Q4_K": partial(small, replace(NEXT, delta=replace(NEXT.delta, fused=True)), QUANTISED),
    "qwen35 Q8_0": partial(small, replace(BASE, architecture="qwen35", **DELTA), QUANTISED),
    "qwen35moe IQ3_XXS": partial(small, replace(NEXT, architecture="qwen35moe"), IQ3),
}


@dataclass(frozen=True)
class Outcome:
    """What a model came to.

    Attributes:
        error: median over tokens of the largest difference between the card's logits and the processor's,
            over the largest logit.
        rounding: likewise between the processor's and those of decoded weights and float32 activations.
        same_bits: by case.
    """

    name: str
    error: float
    rounding: float
    same_bits: dict[str, bool]
    seconds: float

    @property
    def passed(self) -> bool:
        most = FLOAT_ERROR + TIMES_ROUNDING * self.rounding
        return self.error < most and all(self.same_bits.values())


class OnCard:
    """A model with this share of its experts in the card's memory, and this share of the rest left to the
    processor. Steps are launched one by one; bench/card_identity.py has graphs."""

    def __init__(self, checkpoint: SyntheticCheckpoint, held: float, cpu_share: float):
        self.card = Card()
        weights = CardWeights(checkpoint, self.card)
        model = load_model(weights)
        CardModel.require(model)
        layers = weights.load_experts(len(model.expert_layers()), lambda done, total: None)
        cache = ExpertCache(self.card, weights.store)
        self.host, used = None, model.config.expert_used_count
        take = [round(cpu_share * missed) for missed in range(MAX_ROWS * used + 1)]
        if cpu_share:
            width = model.config.embedding_length
            self.host = HostExperts(self.card, layers, width, MAX_ROWS, used, num_threads=2)
        self.model = CardModel(model, weights, cache, lanes=2, context=256, host=self.host, take=take)
        cache.allocate(int(held * cache.residency.size.sum()), slack=0)
        cache.fill(range(weights.store.addresses.size))

    def sequence(self, tokens: list[int], cuts: Sequence[int], neighbour: bool = False) -> np.ndarray:
        """Logits of `tokens` in lane 0, by windows of these lengths; a neighbour has two rows beside them."""
        self.model.reset(0)
        self.model.reset(1)
        got, at, accepted = [], 0, [0, 0]
        for count in cuts:
            rows = [(0, at + i, tokens[at + i]) for i in range(count)]
            beside = [(1, at + i, tokens[i]) for i in range(2)] if neighbour else []
            got.append(self._step(rows + beside, accepted, commit=False)[:count])
            at, accepted = at + count, [count, len(beside)]
        return np.concatenate(got)

    def prompt(self, tokens: list[int]) -> np.ndarray:
        """Logits of `tokens` in lane 0 as one prompt."""
        self.model.reset(0)
        return self._step([(0, at, token) for at, token in enumerate(tokens)], [0, 0], commit=True)

    def _step(self, rows: list[tuple[int, int, int]], accepted: list[int], commit: bool) -> np.ndarray:
        """Logits of rows: lane, position, token."""
        device = self.card.device
        lane, position, tokens = torch.tensor(rows, dtype=torch.int32).T.contiguous()
        embedding = self.model.model.token_embd(tokens.long()).to(device)
        stands = torch.tensor(accepted, dtype=torch.int32).to(device)
        step = self.model.rows(lane.to(device), position.to(device), stands, commit)
        logits = self.model.step(Inputs(embedding, None), step).cpu().numpy()
        if self.host is not None:
            HostExperts.check(int(self.host.error))
        return logits

    def close(self) -> None:
        self.card.synchronize()
        if self.host is not None:
            self.host.close()
        self.model.weights.store.close()


def check(name: str) -> Outcome:
    """Compute with a model in all ways."""
    torch.set_grad_enabled(False)
    torch.set_num_threads(2)
    set_num_threads(2)
    start = time.perf_counter()
    tokens = np.random.default_rng(0).integers(0, BASE.vocab, LENGTH).tolist()
    want, exact = (
        model.forward(tokens, model.new_state(), all_logits=True).numpy()
        for model in (
            load_model(PlaneWeights(MODELS[name]())),
            load_model(DecodedWeights(MODELS[name](), cache_bytes=1 << 30)),
        )
    )
    on_card = OnCard(MODELS[name](), held=1.0, cpu_share=0.0)
    first = on_card.sequence(tokens, [1] * LENGTH)
    results = {case: on_card.sequence(tokens, cuts) for case, cuts in CUTS.items()}
    results["beside another lane"] = on_card.sequence(tokens, [1, 2] * (LENGTH // 3), neighbour=True)
    results["prompt"] = on_card.prompt(tokens)
    on_card.close()
    has_experts = MODELS[name]().geometry.expert_count
    shares = [(held, cpu) for held in (0.25, 0.0) for cpu in (0.0, 1.0)] if has_experts else []
    for held, cpu in shares:
        on_card = OnCard(MODELS[name](), held, cpu)
        cuts = CUTS["windows of 1, 3 and 4"]
        results[f"{held:.0%} held, processor takes {cpu:.0%}"] = on_card.sequence(tokens, cuts)
        on_card.close()
    same = {case: np.array_equal(first, got) for case, got in results.items()}
    return Outcome(name, error(first, want), error(want, exact), same, time.perf_counter() - start)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Median over tokens of the largest difference, over the largest logit."""
    return float(np.median(np.abs(got - want).max(1)) / np.abs(want).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=MODELS, help="one of them")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    names = [args.only] if args.only else list(MODELS)
    outcomes = []
    spawn = multiprocessing.get_context("spawn")  # a forked process cannot use the card
    with ProcessPoolExecutor(len(names), spawn) as pool:
        for future in as_completed([pool.submit(check, name) for name in names]):
            outcome = future.result()
            outcomes.append(outcome)
            different = [case for case, same in outcome.same_bits.items() if not same]
            print(
                f"{outcome.name}: {'passed' if outcome.passed else 'FAILED'}, error {outcome.error:.1e}, "
                f"the processor's rounding {outcome.rounding:.1e}, "
                f"other bits: {', '.join(different) or 'never'} ({outcome.seconds:.0f} s)",
                flush=True,
            )
    if args.json:
        report = {"device": torch.cuda.get_device_name(), "models": [asdict(o) for o in outcomes]}
        args.json.write_text(json.dumps(report, indent=1))
    sys.exit(not all(outcome.passed for outcome in outcomes))


if __name__ == "__main__":
    main()
