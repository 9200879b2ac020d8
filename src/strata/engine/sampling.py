"""From logits to a token.

Order: logit bias; repetition penalty (over prompt and answer, Keskar et al. 2019, as transformers
applies it); presence and frequency penalty (over the answer, as the OpenAI API defines them); a
grammar's mask; temperature; top-k; min-p (Nguyen et al. 2024); top-p (Holtzman et al. 2019); then the
Gumbel-max draw `argmax(logit / T + gumbel)`, whose noise is Philox keyed by the seed and counted by token
id and position. So the token depends on the logits, the seed and the position and on nothing else: not on
other requests, not on the order in which the vocabulary is visited.

Every tie goes to the lowest id.
"""

import secrets

import numpy as np

from strata.engine.grammar import TokenMask
from strata.engine.messages import SamplingParams, Token
from strata.engine.philox import uniform
from strata.errors import StrataError

GREEDY_TEMPERATURE = 1e-5  # up to here a division by the temperature says no more than argmax

# Noise from u = (w + 1/2) / 2^32 lies within -log(-log(u)) = -3.13 .. 22.88, so a token this far below
# the likeliest one cannot win. Neither filters nor noise look at it; the mass that top-p misses is below
# 1e-6 for any vocabulary of up to 300,000.
_MAX_NOISE_GAP = 26.5


class Sampler:
    """The choices of one request, in order.

    Args:
        params: how to choose; ids in `logit_bias` lie in the vocabulary.
        prompt: the ids before the answer.
        vocab_size: length of the logits.
        mask: the grammar that the answer follows, if there is one.
    """

    def __init__(
        self, params: SamplingParams, prompt: list[int], vocab_size: int, mask: TokenMask | None = None
    ):
        self.params, self.mask = params, mask
        self.seed = (secrets.randbits(63) if params.seed is None else params.seed) & (2**64 - 1)
        self.position = len(prompt)  # of the next token in the sequence
        self._seen = np.zeros(vocab_size, bool)  # in prompt or answer
        self._seen[prompt] = True
        self._counts = np.zeros(vocab_size, np.int64)  # in the answer

    def sample(self, logits: np.ndarray) -> Token:
        """Choose the next token, with its log-probability if asked for.

        Args:
            logits: float32 `[vocab_size]`; not changed.

        Raises:
            StrataError: a logit is not a number or is +inf, or all are -inf.
            RequestError: the answer cannot follow its grammar any further.
        """
        if not np.isfinite(logits.max()):
            raise StrataError(f"the model's largest logit at position {self.position} is {logits.max()}")
        adjusted = self._penalise(logits)
        allowed = self.mask.allowed() if self.mask else None
        if allowed is None:
            chosen = self._draw(adjusted)
        else:
            ids = np.flatnonzero(allowed)
            chosen = self._draw(adjusted[ids], ids)
        if self.mask:
            self.mask.accept(chosen)
        self._seen[chosen] = True
        self._counts[chosen] += 1
        self.position += 1
        if self.params.logprobs is None:
            return Token(chosen)
        return with_logprobs(logits, chosen, self.params.logprobs)

    def _penalise(self, logits: np.ndarray) -> np.ndarray:
        """float64 `[vocab_size]`: logits with bias and penalties."""
        p, x = self.params, logits.astype(np.float64)
        for token, bias in p.logit_bias.items():
            x[token] += bias
        if p.repetition_penalty != 1.0:
            seen = x[self._seen]
            x[self._seen] = np.where(seen > 0, seen / p.repetition_penalty, seen * p.repetition_penalty)
        if p.presence_penalty or p.frequency_penalty:
            x -= p.presence_penalty * (self._counts > 0) + p.frequency_penalty * self._counts
        return x

    def _draw(self, x: np.ndarray, ids: np.ndarray | None = None) -> int:
        """Choose by adjusted logits: of `ids`, ascending, if those are not all there are."""
        p = self.params
        best = int(np.argmax(x))
        if p.temperature <= GREEDY_TEMPERATURE or not np.isfinite(x[best]):
            # An infinite bias leaves no distribution to draw from.
            return best if ids is None else int(ids[best])
        x = (x - x[best]) / p.temperature
        near = np.flatnonzero(x >= -_MAX_NOISE_GAP)
        x = x[near]
        ids = near if ids is None else ids[near]
        ids, x = _filtered(ids, x, p)
        noise = -np.log(-np.log(uniform(self.seed, self.position, ids)))
        return int(ids[np.argmax(x + noise)])


def _filtered(ids: np.ndarray, x: np.ndarray, p: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """What top-k, min-p and top-p keep of `ids` (ascending) by their scaled logits `x` (maximum 0)."""
    if 0 < p.top_k < len(ids):
        keep = np.sort(_largest(x, p.top_k))
        ids, x = ids[keep], x[keep]
    if p.min_p > 0:
        keep = x >= min(np.log(p.min_p), 0.0)
        ids, x = ids[keep], x[keep]
    if p.top_p < 1:
        order = np.argsort(-x, kind="stable")
        mass = np.cumsum(np.exp(x[order]))
        # A token stays when those before it have not reached top_p yet; the first one always does.
        num_kept = 1 + int(np.count_nonzero(mass[:-1] < p.top_p * mass[-1]))
        keep = np.sort(order[:num_kept])
        ids, x = ids[keep], x[keep]
    return ids, x


def with_logprobs(logits: np.ndarray, chosen: int, num_top: int) -> Token:
    x = logits.astype(np.float64)
    x -= x.max()
    x -= np.log(np.exp(x).sum())
    top = _largest(x, num_top) if num_top else []
    return Token(chosen, float(x[chosen]), [(int(i), float(x[i])) for i in top])


def _largest(x: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` largest of `x`, descending, the lower index first among equals."""
    count = min(count, len(x))
    bound = np.partition(x, -count)[-count]
    candidates = np.flatnonzero(x >= bound)
    return candidates[np.argsort(-x[candidates], kind="stable")[:count]]
