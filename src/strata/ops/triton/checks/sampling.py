"""Tokens chosen on the card against those of the engine's sampler."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
import triton.language as tl

from strata.engine.messages import SamplingParams
from strata.engine.sampling import Sampler
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.kernel import kernel
from strata.ops.triton.noise import exp, gumbel, log, rough_gumbel
from strata.ops.triton.sampling import PROMPT, Lanes, Scratch, count_tokens, sample, settings

_VOCAB = 5000  # two tiles and a bit, and a bit of a mask's word
_Cases = Iterator[tuple[str, torch.Tensor, torch.Tensor]]
_PROMPT_TOKENS = [3, 4999, 77, 3]


@kernel
def _noise_kernel(x, words, logs, exps, noise, rough, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value, word = tl.load(x + i), tl.load(words + i).to(tl.uint32, bitcast=True)
    tl.store(logs + i, log(value))
    tl.store(exps + i, exp(-value))
    tl.store(noise + i, gumbel(word))
    tl.store(rough + i, rough_gumbel(word))


def _compare_noise(device: torch.device) -> _Cases:
    generator = torch.Generator().manual_seed(0)
    x = 10 ** (torch.rand(1024, dtype=torch.float64, generator=generator) * 20 - 18)
    x[:4] = torch.tensor([1.0, 2**-33, 26.5, 1 - 2**-33], dtype=torch.float64)
    words = torch.randint(-(2**31), 2**31, (1024,), dtype=torch.int32, generator=generator)
    words[:4] = torch.tensor([0, -1, 2**31 - 1, -(2**31)], dtype=torch.int32)
    outs = [torch.empty(1024, dtype=torch.float64, device=device) for _ in range(3)]
    rough = torch.empty(1024, device=device)
    _noise_kernel[(1,)](x.to(device), words.to(device), *outs, rough, BLOCK=1024, enable_fp_fusion=False)
    u = ((words.numpy().view(np.uint32)) + 0.5) / 2**32
    want = torch.from_numpy(-np.log(-np.log(u)))
    yield "log", outs[0].cpu() / x.log(), torch.where(x == 1, torch.nan, torch.ones_like(x))
    yield "exp", outs[1].cpu() * x.exp(), torch.ones_like(x)
    yield "noise", outs[2], want
    far = (rough.cpu().double() - want).abs() - 1e-4
    yield "rough noise", far.clamp(min=0), torch.zeros_like(far)


@dataclass(frozen=True)
class _Lane:
    params: SamplingParams
    answer: list[int] = field(default_factory=list)
    allowed: list[int] | None = None


class _Mask:
    """A grammar that always allows the same tokens."""

    def __init__(self, tokens: list[int]):
        self.mask = np.zeros(_VOCAB, bool)
        self.mask[tokens] = True

    def allowed(self) -> np.ndarray:
        return self.mask

    def accept(self, token: int) -> None: ...


def _choose(logits: torch.Tensor, lanes: list[_Lane], device: torch.device) -> torch.Tensor:
    """int32 `[rows]`: a row for each lane, whose last token of the answer, if any, is the row's own."""
    rows = len(lanes)
    state = Lanes.new(rows, _VOCAB, device)
    mask = torch.full((rows, -(-_VOCAB // 32)), -1, dtype=torch.int32)
    for i, lane in enumerate(lanes):
        p = lane.params
        numbers = settings(
            p.temperature, p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty, p.frequency_penalty
        )
        state.numbers[i] = torch.tensor(numbers, dtype=torch.float64)
        state.whole[i] = torch.tensor([p.seed, p.top_k, int(bool(p.logit_bias))])
        for token, bias in p.logit_bias.items():
            state.bias[i, token] = bias
        for token in _PROMPT_TOKENS:
            state.history[i, token] += PROMPT
        for token in lane.answer[:-1]:
            state.history[i, token] += 1
        if lane.allowed is not None:
            bits = np.zeros(mask.shape[1] * 32, bool)
            bits[lane.allowed] = True
            mask[i] = torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))
    ints = {"dtype": torch.int32, "device": device}
    order = torch.arange(rows, **ints)
    own = torch.tensor([lane.answer[-1] if lane.answer else _PROMPT_TOKENS[-1] for lane in lanes], **ints)
    is_answer = torch.tensor([bool(lane.answer) for lane in lanes], **ints)
    position = torch.tensor([len(_PROMPT_TOKENS) + len(lane.answer) - 1 for lane in lanes], **ints)
    chosen = torch.full((rows,), -2, **ints)
    scratch = Scratch.new(rows, _VOCAB, device)
    sample(logits.to(device), order, position, own, is_answer, mask.to(device), state, scratch, chosen)
    return chosen


def _reference(logits: torch.Tensor, lane: _Lane) -> int:
    sampler = Sampler(lane.params, _PROMPT_TOKENS, _VOCAB, lane.allowed and _Mask(lane.allowed))
    for token in lane.answer:
        sampler._counts[token] += 1
        sampler._seen[token] = True
    sampler.position += len(lane.answer)
    return sampler.sample(logits.numpy()).id


def _lanes() -> dict[str, _Lane]:
    def params(**given) -> SamplingParams:
        return SamplingParams(**{"seed": 2**63 - 5} | given)

    odd = list(range(1, _VOCAB, 2))
    return {
        "greedy": _Lane(params(temperature=0.0)),
        "greedy, masked": _Lane(params(temperature=0.0), allowed=[4, 4998, 4999]),
        "penalties": _Lane(
            params(temperature=0.0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25),
            [9, 9, 10],
        ),
        "temperature": _Lane(params()),
        "hot": _Lane(params(temperature=3.0, seed=1), [5]),
        "temperature, masked": _Lane(params(seed=2), allowed=odd),
        "top-k": _Lane(params(top_k=20, temperature=0.7)),
        "top-k of all": _Lane(params(top_k=10**6, seed=3)),
        "top-p": _Lane(params(top_p=0.8, seed=4)),
        "top-p of nothing": _Lane(params(top_p=0.0, seed=5)),
        "min-p": _Lane(params(min_p=0.1, seed=6)),
        "all": _Lane(
            params(top_k=300, top_p=0.9, min_p=0.01, seed=7, logit_bias={17: 3.0, 4998: 2.5, 5: -100.0}),
            [5, 17],
            odd,
        ),
        "an infinite bias": _Lane(params(logit_bias={4321: float("inf")})),
    }


def _logits() -> Iterator[tuple[str, torch.Tensor]]:
    x = torch.randn(_VOCAB, generator=torch.Generator().manual_seed(9))
    yield "peaked", x * 3
    yield "flat and tied", (x * 2).round() * 0.1


def _compare_sample(device: torch.device) -> _Cases:
    for kind, logits in _logits():
        ties = kind != "peaked"  # which decide where filters cut
        lanes = {name: lane for name, lane in _lanes().items() if not ties or "top" in name or name == "all"}
        got = _choose(logits.repeat(len(lanes), 1), list(lanes.values()), device)
        want = torch.tensor([_reference(logits, lane) for lane in lanes.values()], dtype=torch.int32)
        for i, name in enumerate(lanes):
            yield f"{name}, {kind}", got[i : i + 1], want[i : i + 1]


def _compare_bad(device: torch.device) -> _Cases:
    """What is no distribution has no token."""
    logits = torch.zeros(4, _VOCAB)
    logits[0, 4000], logits[1, 7] = float("nan"), float("inf")
    logits[2] = float("-inf")
    logits[3, 0] = float("-inf")
    got = _choose(logits, [_Lane(SamplingParams(temperature=0.0, seed=0))] * 4, device)
    yield "nan, inf, -inf, one -inf", got, torch.tensor([-1, -1, -1, 1], dtype=torch.int32)


def _compare_history(device: torch.device) -> _Cases:
    """Drafts count in the rows after them, and in the history once they stand."""
    ints = {"dtype": torch.int32, "device": device}
    lane, tokens = torch.tensor([1, 1, 1, -1, 0], **ints), torch.tensor([7, 7, 8, 9, 7], **ints)
    position, is_answer = torch.tensor([4, 5, 6, 0, 9], **ints), torch.tensor([1, 1, 1, 1, 0], **ints)
    state = Lanes.new(2, _VOCAB, device)
    state.numbers[:] = torch.tensor(settings(0.0, frequency_penalty=1.0), dtype=torch.float64)
    logits = torch.zeros(5, _VOCAB)
    logits[:, 7], logits[:, 8], logits[:, 6] = 2.5, 1.75, 1.0
    mask = torch.full((5, -(-_VOCAB // 32)), -1, **ints)
    chosen = torch.full((5,), -2, **ints)
    scratch = Scratch.new(5, _VOCAB, device)
    sample(logits.to(device), lane, position, tokens, is_answer, mask, state, scratch, chosen)
    # after one 7: 1.5; after two: 0.5; after an 8: 0.75
    yield "chosen", chosen, torch.tensor([8, 8, 6, -2, 7], dtype=torch.int32)
    count_tokens(lane, tokens, is_answer, state, torch.tensor([1, 2], **ints))
    want = torch.zeros(2, _VOCAB, dtype=torch.int64)
    want[1, 7], want[0, 7] = 2, PROMPT
    yield "history", state.history, want
    count_tokens(lane, tokens, is_answer, state)
    want[1, 7], want[1, 8], want[0, 7] = 4, 1, 2 * PROMPT
    yield "history of all", state.history, want


def _launch(rows: int, vocab: int) -> None:
    ints = meta(rows, dtype=torch.int32)
    lanes, scratch = Lanes.new(4, vocab, "meta"), Scratch.new(rows, vocab, "meta")
    mask = meta(rows, vocab // 32, dtype=torch.int32)
    sample(meta(rows, vocab), ints, ints, ints, ints, mask, lanes, scratch, ints)
    count_tokens(ints, ints, ints, lanes, ints)


CHECKS = [
    Check("sampling noise", _compare_noise, 1e-15),
    Check("sample", _compare_sample),
    Check("sample from what is no number", _compare_bad),
    Check("sampling history", _compare_history),
]
LAUNCHES = [Launch("sample 248320", lambda: _launch(4, 248320))]
