"""What the scheduler drives: a lane answers one request at a time, from a model or from a script."""

from typing import Protocol

import numpy as np
import torch

from strata.engine.grammar import TokenMask
from strata.engine.messages import SamplingParams, Token
from strata.engine.sampling import Sampler
from strata.engine.session import Session
from strata.models.base import Model


class Lane(Protocol):
    """One timeline that answers requests one after the other."""

    def match(self, prompt: list[int]) -> int:
        """How many tokens of `prompt` need not be read again."""

    def begin(self, prompt: list[int], sampling: SamplingParams, mask: TokenMask | None = None) -> int:
        """Take up a request; returns how many tokens of its prompt need not be read."""

    def prefill(self) -> int:
        """Read the next part of the prompt; returns how many of its tokens are read by now."""

    def prepare(self) -> None:
        """`decode` will be called, as it will of all other lanes that this is called for now."""

    def decode(self) -> list[Token]:
        """The next tokens of the answer, once the whole prompt is read; none means: ask again."""

    def reset(self) -> None:
        """Forget everything, after an error."""

    def holds(self) -> tuple[int, int, int]:
        """Tokens in its state, bytes of the state, and bytes of checkpoints."""


class ModelLane:
    """A session with its sampler."""

    def __init__(self, model: Model, checkpoint_bytes: int):
        self.session = Session(model, checkpoint_bytes)
        self.vocab_size = model.config.vocab_size
        self._sampler: Sampler
        self._logits: torch.Tensor | None = None
        self._pending: int | None = None  # chosen, and read only if another token is wanted

    def match(self, prompt: list[int]) -> int:
        return self.session.plan(prompt).reused

    def begin(self, prompt: list[int], sampling: SamplingParams, mask: TokenMask | None = None) -> int:
        self._sampler = Sampler(sampling, prompt, self.vocab_size, mask)
        self._logits = self._pending = None
        return self.session.sync(prompt).reused

    def prefill(self) -> int:
        self._logits = self.session.prefill()
        return len(self.session.tokens)

    def prepare(self) -> None:
        """Nothing: lanes on the processor are computed one after the other."""

    def decode(self) -> list[Token]:
        mask = self._sampler.mask
        if mask is not None and mask.ended:
            return [Token(mask.end_id)]  # for which the model need not be asked
        if self._pending is not None:
            self._logits = self.session.decode(self._pending)
        assert self._logits is not None
        logits: np.ndarray = self._logits.numpy()
        token = self._sampler.sample(logits)
        self._pending = token.id
        return [token]

    def reset(self) -> None:
        self.session.reset()

    def holds(self) -> tuple[int, int, int]:
        session = self.session
        return len(session.tokens), session.state_bytes(), session.kept_bytes()
