"""One timeline of tokens and the model's state of it.

The caller gives whole prompts; `sync` finds how much of one the state already holds:

- all that the state has seen is a prefix of the prompt: go on from there ("live");
- the state has no recurrent part: cut it where the two part ("cut");
- else return to the deepest checkpoint before they part ("checkpoint"), or start over ("fresh").

Checkpoints lie at absolute multiples of `PREFILL_CHUNK`, where prompts are cut anyway. So a prompt that
resumes at one runs through the same chunks as one that starts from nothing, and gets the same bits.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch

from strata.engine.prefix import common_prefix
from strata.layers.state import SequenceState, StateCheckpoint
from strata.models.base import PREFILL_CHUNK, Model


@dataclass(frozen=True, slots=True)
class Sync:
    """What `Session.sync` found."""

    reused: int  # tokens of the prompt that need not be read again
    how: Literal["live", "cut", "checkpoint", "fresh"]


class Timeline(ABC):
    """The tokens in a sequence's state, and checkpoints of it; where the state is, subclasses know.

    Args:
        checkpoint_bytes: memory for checkpoints; 0 keeps none.
        chunk: tokens of a prompt that are read at a time, a multiple of `PREFILL_CHUNK`.
    """

    recurrent: bool  # the state has a part that cannot be cut

    def __init__(self, checkpoint_bytes: int, chunk: int):
        self.tokens: list[int] = []  # in the state, in order
        self.checkpoint_bytes = checkpoint_bytes
        self._chunk = chunk
        self._prompt: list[int] = []
        self._checkpoints: list[StateCheckpoint] = []  # ascending; all on the present prefix

    def plan(self, prompt: list[int]) -> Sync:
        """What `sync` would do."""
        # The last token is read in any case: its logits are what the caller wants.
        common = min(common_prefix(self.tokens, prompt), len(prompt) - 1)
        if common == 0:
            return Sync(0, "fresh")
        if common == len(self.tokens):
            return Sync(common, "live")
        if not self.recurrent:
            return Sync(common, "cut")
        deepest = max((c.position for c in self._checkpoints if c.position <= common), default=0)
        return Sync(deepest, "checkpoint" if deepest else "fresh")

    def sync(self, prompt: list[int]) -> Sync:
        """Make the state a prefix of `prompt` (at least one token); `prefill` then reads the rest."""
        assert prompt
        sync = self.plan(prompt)
        match sync.how:
            case "cut":
                self._cut(sync.reused)
            case "checkpoint":
                self._rewind(next(c for c in self._checkpoints if c.position == sync.reused))
            case "fresh":
                self._restart()
        self._checkpoints = [c for c in self._checkpoints if c.position <= sync.reused]
        self.tokens = list(prompt[: sync.reused])
        self._prompt = list(prompt)
        return sync

    def prefill(self) -> Any:
        """Read the prompt up to the next multiple of the chunk or its end.

        Returns:
            What `_read` gives for the last prompt token, or None when more is to be read.
        """
        start = len(self.tokens)
        end = min(start - start % self._chunk + self._chunk, len(self._prompt))
        keep = end - end % PREFILL_CHUNK
        wanted = self.recurrent and self.checkpoint_bytes > 0 and keep > start
        result, checkpoint = self._read(self._prompt[start:end], keep if wanted else None)
        self.tokens += self._prompt[start:end]
        if checkpoint is not None:
            self._keep(checkpoint)
        return result if end == len(self._prompt) else None

    def reset(self) -> None:
        """Forget everything: after an error inside the model its state cannot be trusted."""
        self.tokens, self._checkpoints = [], []
        self._restart()

    def kept_bytes(self) -> int:
        """Memory of the checkpoints."""
        return sum(checkpoint.num_bytes for checkpoint in self._checkpoints)

    @abstractmethod
    def _read(self, tokens: list[int], keep: int | None) -> tuple[Any, StateCheckpoint | None]:
        """Append some of the prompt; also copy the state when it has `keep` tokens, if it ever has."""

    @abstractmethod
    def _restart(self) -> None:
        """Begin with no tokens."""

    @abstractmethod
    def _cut(self, length: int) -> None:
        """Keep the first `length` tokens of a state that is not recurrent."""

    @abstractmethod
    def _rewind(self, checkpoint: StateCheckpoint) -> None:
        """Return to a checkpoint."""

    def _keep(self, checkpoint: StateCheckpoint) -> None:
        self._checkpoints.append(checkpoint)
        kept = self._checkpoints
        while kept and self.kept_bytes() > self.checkpoint_bytes:
            # Thin them out evenly and keep the deepest: drop the one whose neighbours are closest.
            edges = [0, *(c.position for c in kept)]
            gaps = [edges[i + 1] - edges[i - 1] for i in range(1, len(kept))]
            del kept[gaps.index(min(gaps)) if gaps else 0]


class Session(Timeline):
    """A timeline of a model that the processor computes.

    Args:
        model: shared by any number of sessions.
        checkpoint_bytes: memory for checkpoints; 0 keeps none.
    """

    def __init__(self, model: Model, checkpoint_bytes: int = 0):
        super().__init__(checkpoint_bytes, PREFILL_CHUNK)
        self.model = model
        self._state: SequenceState = model.new_state()

    @property
    def recurrent(self) -> bool:  # type: ignore[override]
        return self._state.recurrent

    def decode(self, token: int) -> torch.Tensor:
        """Append a chosen token; float32 logits `[vocab]` of what follows it."""
        logits = self._forward([token])
        self.tokens.append(token)
        return logits

    def state_bytes(self) -> int:
        """Memory of the state: keys, values and recurrent parts."""
        return self._state.num_bytes()

    def _read(self, tokens: list[int], keep: int | None) -> tuple[torch.Tensor, StateCheckpoint | None]:
        logits = self._forward(tokens)
        return logits, self._state.checkpoint() if keep == self._state.position else None

    def _forward(self, tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return self.model.forward(tokens, self._state)[-1]

    def _restart(self) -> None:
        self._state = self.model.new_state()

    def _cut(self, length: int) -> None:
        self._state.truncate(length)

    def _rewind(self, checkpoint: StateCheckpoint) -> None:
        self._state.rewind(checkpoint)
