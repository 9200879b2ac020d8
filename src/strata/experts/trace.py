"""Routing traces: which experts each token of a text was sent to, recorded or made up.

A made-up trace is drawn from the model below, whose constants were fitted to published replays of
Qwen3.8-Flash-Next (FIELD.md F 3.2: misses of LRU, LFRU and Belady's rule with 16 to 49 % of the experts held)
and to how the distinct experts of 2, 3 and 4 neighbouring tokens grow (F 3.1). `tests/experts/test_trace.py`
holds it to them.
"""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strata.errors import StrataError
from strata.outputs import whole_file

VERSION = 1

# An expert's logit is LEAN * tanh(SLOPE * (skew + topic - THRESHOLD)) + CONTEXT * context + Gumbel noise: the
# text's topic makes it likely or out of the question, the sentence at hand moves it, the token decides.
# `topic` and `context` are normal and of deviation 1; they forget in the numbers of tokens below.
LEAN, SLOPE, THRESHOLD = 5.06, 0.63, 0.42
SKEW = 0.18  # deviation of what is the same for every text: "static skew is weak"
TOPIC_TOKENS = 4800.0
CONTEXT, CONTEXT_TOKENS = 0.81, 4.4


# What numpy and zipfile raise on bytes that are no such file.
_DAMAGES = (
    ValueError, KeyError, TypeError, EOFError, RuntimeError, MemoryError, zlib.error, zipfile.BadZipFile,
)  # fmt: skip


class TraceError(StrataError):
    """A trace file is damaged or does not fit the model."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The router's choices for a run of tokens.

    Args:
        ids: int16 `[tokens, layers, used]`, the most probable expert first; only layers with experts.
        experts: how many each layer has.

    Raises:
        TraceError: an id does not exist, or a row names an expert twice.
    """

    ids: np.ndarray
    experts: int

    def __post_init__(self) -> None:
        if self.ids.ndim != 3 or self.ids.dtype != np.int16 or 0 in self.ids.shape:
            raise TraceError(
                f"a trace is int16 [tokens, layers, used], not {self.ids.dtype} {self.ids.shape}"
            )
        if not 0 <= self.ids.min() <= self.ids.max() < self.experts:
            raise TraceError(f"a trace of {self.experts} experts names {self.ids.min()} to {self.ids.max()}")
        ordered = np.sort(self.ids, axis=-1)
        if (ordered[..., 1:] == ordered[..., :-1]).any():
            raise TraceError("a trace names an expert twice for one token")

    @property
    def layers(self) -> int:
        return self.ids.shape[1]

    @property
    def used(self) -> int:
        """Experts of a token in each layer."""
        return self.ids.shape[2]

    def __len__(self) -> int:
        return self.ids.shape[0]

    def counts(self, start: int, stop: int) -> np.ndarray:
        """How often tokens `start` to `stop` use each expert: int32 `[layers, experts]`."""
        flat = self.ids[start:stop].astype(np.int64) + np.arange(self.layers)[:, None] * self.experts
        counts = np.bincount(flat.reshape(-1), minlength=self.layers * self.experts)
        return counts.reshape(self.layers, self.experts).astype(np.int32)

    def save(self, path: Path) -> None:
        """Write a `.npz` file, which appears when it is complete; StrataError where that cannot be."""
        with whole_file(path) as partial, partial.open("wb") as file:  # given a path, numpy adds a suffix
            np.savez_compressed(file, version=VERSION, ids=self.ids, experts=self.experts)

    def check_model(self, layers: int, experts: int, used: int) -> None:
        """TraceError where a model has other layers with experts, experts in one, or experts of a token."""
        if (self.layers, self.experts, self.used) != (layers, experts, used):
            raise TraceError(
                f"the trace has {self.layers} layers of {self.experts} experts, {self.used} for a token; "
                f"the model has {layers} of {experts}, {used} for a token"
            )

    @classmethod
    def load(cls, path: Path) -> "Trace":
        """Read what `save` wrote.

        Raises:
            TraceError: the file is missing, damaged, or of another version.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                version, ids, experts = int(file["version"]), file["ids"], int(file["experts"])
        except OSError as error:
            raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
        except _DAMAGES as error:
            raise TraceError(f"{path}: is not a routing trace: {error}") from error
        if version != VERSION:
            raise TraceError(f"{path}: is a trace of version {version}; this Strata reads version {VERSION}")
        try:
            return cls(ids, experts)
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from error

    @classmethod
    def generate(cls, tokens: int, layers: int, experts: int, used: int, seed: int = 0) -> "Trace":
        """Draw a text's trace; the skew that texts share is the same for every `seed`."""
        shape = layers, experts
        skew = SKEW * np.random.default_rng(shape).standard_normal(shape, np.float32)
        rng = np.random.default_rng(seed)
        topic, context = rng.standard_normal((2, *shape), np.float32)
        ids = np.empty((tokens, layers, used), np.int16)
        for token in range(tokens):
            topic = _drift(topic, TOPIC_TOKENS, rng)
            context = _drift(context, CONTEXT_TOKENS, rng)
            gumbel = -np.log(np.maximum(rng.standard_exponential(shape, np.float32), np.float32(1e-30)))
            logits = LEAN * np.tanh(SLOPE * (skew + topic - THRESHOLD)) + CONTEXT * context + gumbel
            chosen = np.argpartition(-logits, used - 1, axis=1)[:, :used]
            order = np.argsort(-np.take_along_axis(logits, chosen, 1), axis=1)
            ids[token] = np.take_along_axis(chosen, order, 1)
        return cls(ids, experts)


def _drift(x: np.ndarray, tokens: float, rng: np.random.Generator) -> np.ndarray:
    """The next state of a normal process of deviation 1 whose memory fades by 1 / e in `tokens` steps."""
    keep = np.float32(np.exp(-1 / tokens))
    return keep * x + np.sqrt(1 - keep * keep) * rng.standard_normal(x.shape, np.float32)
