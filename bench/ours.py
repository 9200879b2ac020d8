"""Strata's engine without its server, with the interface of `llamacpp.LlamaCpp`."""

from pathlib import Path

import numpy as np
import torch

from strata.engine.loading import load
from strata.formats.checkpoint import Checkpoint
from strata.models import open_checkpoint
from strata.models.base import PREFILL_CHUNK
from strata.native import set_num_threads


class Strata:
    """A model on the processor's kernels, or on torch's, and one sequence, which `forward` appends to."""

    def __init__(self, model: Path | Checkpoint, threads: int, reference: bool = False):
        checkpoint = model if isinstance(model, Checkpoint) else open_checkpoint(model)
        self.model = load(checkpoint, threads, reference, None, report=lambda *_: None).model
        self.reset()

    def set_threads(self, threads: int) -> None:
        torch.set_num_threads(threads)
        set_num_threads(threads)

    def reset(self) -> None:
        """Begin an empty sequence."""
        self.state = self.model.new_state()

    def forward(self, tokens: list[int], all_logits: bool = False) -> np.ndarray:
        """Append `tokens`, cut as the engine cuts prompts; float32 logits `[1, vocab]` of the last or all."""
        parts = [
            self.model.forward(tokens[start : start + PREFILL_CHUNK], self.state, all_logits)
            for start in range(0, len(tokens), PREFILL_CHUNK)
        ]
        return torch.cat(parts).numpy() if all_logits else parts[-1].numpy()
