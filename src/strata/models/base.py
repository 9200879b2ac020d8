"""What every model offers to the engine."""

from abc import ABC, abstractmethod

import torch

from strata.layers.moe import Experts
from strata.layers.ngram import NgramMemory
from strata.layers.state import SequenceState
from strata.models.config import ModelConfig

# Prompts are cut and checkpoints are taken at absolute multiples of this many tokens, so that tiles
# inside a model (delta-net chunks of 64) fall on the same positions however a prompt arrives.
PREFILL_CHUNK = 512


class Model(ABC):
    """A decoder: token ids and a sequence's state in, logits out; float32 throughout."""

    config: ModelConfig
    ple: NgramMemory | None = None  # only qwen4exp has one

    @abstractmethod
    def new_state(self) -> SequenceState:
        """The state of an empty sequence."""

    def expert_layers(self) -> dict[int, Experts]:
        """The mixtures of experts by the number of their layer, ascending; a dense model has none."""
        return {}

    @abstractmethod
    def forward(self, tokens: list[int], state: SequenceState, all_logits: bool = False) -> torch.Tensor:
        """Append `tokens` to the sequence and return float32 logits.

        Args:
            tokens: 1 to `PREFILL_CHUNK` ids (more is allowed and gives the same result, with more memory).
            state: this sequence's state; advanced by `len(tokens)`.
            all_logits: return `[len(tokens), vocab]` instead of `[1, vocab]` for the last token.
        """
