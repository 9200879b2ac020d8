"""One timeline of tokens and the model's state of it.

The caller gives whole prompts; `sync` finds how much of one the state already holds. Three ways:

- all that the state has seen is a prefix of the prompt: go on from there ("live");
- the state has no recurrent part: cut it where the two part ("cut");
- else return to the deepest checkpoint before they part ("checkpoint"), or start over ("fresh").

Checkpoints lie at absolute multiples of `PREFILL_CHUNK`, where prompts are cut anyway. So a prompt that
resumes at one runs through the same chunks as one that starts from nothing, and gets the same bits.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from strata.engine.prefix import common_prefix
from strata.layers.state import SequenceState, StateCheckpoint
from strata.models.base import PREFILL_CHUNK, Model


@dataclass(frozen=True, slots=True)
class Sync:
    """What `Session.sync` found."""

    reused: int  # tokens of the prompt that need not be read again
    how: Literal["live", "cut", "checkpoint", "fresh"]


class Session:
    """A model's state and the tokens in it.

    Args:
        model: shared by any number of sessions.
        checkpoint_bytes: memory for checkpoints; 0 keeps none.
    """

    def __init__(self, model: Model, checkpoint_bytes: int = 0):
        self.model = model
        self.tokens: list[int] = []  # in the state, in order
        self.checkpoint_bytes = checkpoint_bytes
        self._prompt: list[int] = []
        self._state: SequenceState = model.new_state()
        self._checkpoints: list[StateCheckpoint] = []  # ascending; all on the present prefix

    def plan(self, prompt: list[int]) -> Sync:
        """What `sync` would do."""
        # The last token is read in any case: its logits are what the caller wants.
        common = min(common_prefix(self.tokens, prompt), len(prompt) - 1)
        if common == 0:
            return Sync(0, "fresh")
        if common == len(self.tokens):
            return Sync(common, "live")
        if not self._state.recurrent:
            return Sync(common, "cut")
        deepest = max((c.position for c in self._checkpoints if c.position <= common), default=0)
        return Sync(deepest, "checkpoint" if deepest else "fresh")

    def sync(self, prompt: list[int]) -> Sync:
        """Make the state a prefix of `prompt` (at least one token); `prefill` then reads the rest."""
        assert prompt
        sync = self.plan(prompt)
        match sync.how:
            case "cut":
                self._state.truncate(sync.reused)
            case "checkpoint":
                self._state.rewind(next(c for c in self._checkpoints if c.position == sync.reused))
            case "fresh":
                self._state = self.model.new_state()
        self._checkpoints = [c for c in self._checkpoints if c.position <= sync.reused]
        self.tokens = list(prompt[: sync.reused])
        self._prompt = list(prompt)
        return sync

    def prefill(self) -> torch.Tensor | None:
        """Read the prompt up to the next multiple of `PREFILL_CHUNK` or its end.

        Returns:
            Logits float32 `[vocab]` of the last prompt token, or None when more is to be read.
        """
        start = len(self.tokens)
        end = min(start - start % PREFILL_CHUNK + PREFILL_CHUNK, len(self._prompt))
        logits = self._extend(self._prompt[start:end])
        if end % PREFILL_CHUNK == 0:
            self._keep_checkpoint()
        return logits if end == len(self._prompt) else None

    def decode(self, token: int) -> torch.Tensor:
        """Append a chosen token; float32 logits `[vocab]` of what follows it."""
        return self._extend([token])

    def reset(self) -> None:
        """Forget everything: after an error inside the model its state cannot be trusted."""
        self.tokens, self._checkpoints = [], []
        self._state = self.model.new_state()

    def state_bytes(self) -> int:
        """Memory of the state: keys, values and recurrent parts."""
        return self._state.num_bytes()

    def kept_bytes(self) -> int:
        """Memory of the checkpoints."""
        return sum(checkpoint.num_bytes for checkpoint in self._checkpoints)

    def _extend(self, tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits = self.model.forward(tokens, self._state)
        self.tokens += tokens
        return logits[-1]

    def _keep_checkpoint(self) -> None:
        if not self._state.recurrent or self.checkpoint_bytes == 0:
            return
        self._checkpoints.append(self._state.checkpoint())
        kept = self._checkpoints
        while kept and self.kept_bytes() > self.checkpoint_bytes:
            # Thin them out evenly and keep the deepest: drop the one whose neighbours are closest.
            edges = [0, *(c.position for c in kept)]
            gaps = [edges[i + 1] - edges[i - 1] for i in range(1, len(kept))]
            del kept[gaps.index(min(gaps)) if gaps else 0]
