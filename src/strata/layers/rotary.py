"""Rotary positions: which angle a position turns each pair by, and the context extensions of it.

Angles are computed as transformers computes them - float32 inverse frequencies times float32
positions - because at long positions the rounding of the frequency is what decides the angle.
"""

import math
from dataclasses import dataclass

import torch

from strata.errors import ModelFileError, UnsupportedModelError
from strata.layers.weights import Weights
from strata.models.config import Keys, ModelConfig
from strata.ops.rotary import rotate

Angles = tuple[torch.Tensor, torch.Tensor]  # cos and sin of the positions, see `Rotary.angles`
_BLOCK = 256  # positions whose angles are computed at once


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """`rope.scaling.*`: how the angles are changed for contexts longer than the trained one."""

    type: str = "none"  # none, linear or yarn
    factor: float = 1.0
    original_context_length: int = 0
    attention_factor: float = 1.0  # of cos and sin; YaRN multiplies it by its own
    beta_fast: float = 32.0  # yarn: pairs that turn more often than this keep their frequency
    beta_slow: float = 1.0  # yarn: pairs that turn less often are interpolated

    @classmethod
    def from_keys(cls, keys: Keys, context_length: int) -> "RopeScaling":
        """Read the keys as llama.cpp does: a file without a type but with a factor means `linear`."""
        key = "rope.scaling.factor" if "rope.scaling.factor" in keys else "rope.scale_linear"
        factor = keys.positive(key, 1.0) if keys.number(key, 0.0) else 1.0  # some files say 0 for none
        path, prefix = keys.checkpoint.path, keys.prefix
        type = keys.checkpoint.metadata.get(prefix + "rope.scaling.type", "linear")
        if type == "none" or (type == "linear" and factor == 1.0):
            return cls()
        if type not in ("linear", "yarn"):
            raise UnsupportedModelError(
                f"{path}: {prefix}rope.scaling.type is {type!r}; Strata has none, linear and yarn"
            )
        attention_factor = keys.positive("rope.scaling.attn_factor", 1.0)
        return cls(
            type=type,
            factor=factor,
            original_context_length=keys.count("rope.scaling.original_context_length", context_length),
            attention_factor=attention_factor * keys.positive("rope.scaling.yarn_attn_factor", 1.0),
            beta_fast=keys.positive("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.positive("rope.scaling.yarn_beta_slow", 1.0),
        )


def yarn_attention_factor(factor: float) -> float:
    """YaRN's factor of cos and sin (Peng et al. 2023, arXiv 2309.00071, equation 22)."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0


class Rotary:
    """Turns the first `dimension_count` values of queries and keys by their position.

    Args:
        dimension_count: rotated values per head, even.
        freq_base: base of the frequencies (theta).
        interleaved: pair `(2i, 2i + 1)` (GGUF's `llama`) instead of `(i, i + dimension_count / 2)`.
        scaling: context extension.
        factors: float32 `[dimension_count / 2]` divisors of the frequencies (`rope_freqs.weight`, Llama 3.1).
    """

    def __init__(
        self,
        dimension_count: int,
        freq_base: float,
        interleaved: bool = False,
        scaling: RopeScaling | None = None,
        factors: torch.Tensor | None = None,
    ):
        scaling = scaling or RopeScaling()
        self.interleaved = interleaved
        exponents = torch.arange(0, dimension_count, 2, dtype=torch.int64).float() / dimension_count
        self.inv_freq = 1.0 / freq_base**exponents
        if factors is not None:
            self.inv_freq = self.inv_freq / factors
        self.attention_factor = scaling.attention_factor
        if scaling.type == "linear":
            self.inv_freq = self.inv_freq / scaling.factor
        elif scaling.type == "yarn":
            kept = _yarn_kept(dimension_count, freq_base, scaling)
            self.inv_freq = self.inv_freq / scaling.factor * (1 - kept) + self.inv_freq * kept
            self.attention_factor *= yarn_attention_factor(scaling.factor)
        self._cos = self._sin = torch.empty(0, dimension_count // 2)

    @classmethod
    def from_checkpoint(cls, config: ModelConfig, weights: Weights, interleaved: bool = False) -> "Rotary":
        """As the metadata and, where there is one, the tensor `rope_freqs.weight` say."""
        count = config.rope_dimension_count
        if config.rope_freq_base <= 1:
            raise ModelFileError(
                f"{weights.checkpoint.path}: rope.freq_base must be above 1, not {config.rope_freq_base}"
            )
        if count % 2 or count > config.key_length:
            raise ModelFileError(
                f"{weights.checkpoint.path}: {count} rotated values (rope.dimension_count) do not make pairs "
                f"within a head of {config.key_length}"
            )
        factors = None
        if "rope_freqs.weight" in weights:
            name = weights.require("rope_freqs.weight", count // 2)
            factors = weights.read(name)  # `get` would put it where layers compute
        scaling = RopeScaling.from_keys(Keys(weights.checkpoint), config.context_length)
        return cls(count, config.rope_freq_base, interleaved, scaling, factors)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, float32 `[n, dimension_count / 2]`, of int64 `positions` `[n]`."""
        last = int(positions.max())
        while self._cos.shape[0] <= last:
            self._grow()
        return self._cos[positions], self._sin[positions]

    def _grow(self) -> None:
        """Twice the table, in blocks of one size: a vector of another length may round differently."""
        for _ in range(max(1, self._cos.shape[0] // _BLOCK)):
            first = self._cos.shape[0]
            angles = torch.arange(first, first + _BLOCK).float()[:, None] * self.inv_freq
            self._cos = torch.cat([self._cos, angles.cos() * self.attention_factor])
            self._sin = torch.cat([self._sin, angles.sin() * self.attention_factor])

    def apply(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Turn `x` float32 `[n, heads, dim]` by `positions` int64 `[n]`."""
        return rotate(x, *self.angles(positions), self.interleaved)


def _yarn_kept(dimension_count: int, freq_base: float, scaling: RopeScaling) -> torch.Tensor:
    """float32 `[dimension_count / 2]`: 1 where a pair keeps its frequency, 0 where it is interpolated."""

    def pair_of(num_turns: float) -> float:
        """Index of the pair that turns `num_turns` times within the trained context."""
        # a difference of logarithms: the quotient of extreme values leaves the range of floats
        log_turns = math.log(scaling.original_context_length) - math.log(num_turns) - math.log(2 * math.pi)
        return dimension_count * log_turns / (2 * math.log(freq_base))

    low = max(math.floor(pair_of(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_of(scaling.beta_slow)), dimension_count - 1)
    pairs = torch.arange(dimension_count // 2, dtype=torch.float32)
    return 1 - ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
