"""PLE, the n-gram memory of `qwen4_exp`: a token's last n-grams look up rows of a large table.

MODELS.md sections 2.7 and 2.8. The table is larger than everything else in the model; only the rows
asked for are read.
"""

import torch

from strata.errors import ModelFileError
from strata.layers.convolution import CausalConvolution
from strata.layers.linear import Embedding, Linear
from strata.layers.weights import Weights
from strata.models.config import Keys, ModelConfig
from strata.ops.ngram_hash import ngram_rows


class NgramTable:
    """The hash and the table `per_layer_token_embd` (`ple_ngram_embd` in files of an earlier converter)."""

    def __init__(self, weights: Weights, config: ModelConfig):
        keys = Keys(weights.checkpoint)
        self.size = keys.count("ple.ngram_size")
        if self.size < 2:
            raise ModelFileError(f"{keys.checkpoint.path}: {keys.prefix}ple.ngram_size must be 2 or more")
        self.eos = self._integer(
            keys, "ple.eos_token_id", keys.checkpoint.metadata.get("tokenizer.ggml.eos_token_id")
        )
        num_heads = (self.size - 1) * keys.count("ple.heads_per_ngram")
        row_length = keys.count("embedding_length_per_layer_input")
        self.width = num_heads * row_length
        self.multipliers = self._integers(keys, "ple.layer_multipliers", self.size)
        self.head_sizes = self._integers(keys, "ple.head_vocab_sizes", num_heads)
        self.head_offsets = self._integers(keys, "ple.head_offsets", num_heads)
        name = "per_layer_token_embd.weight"
        if name not in weights and "ple_ngram_embd.weight" in weights:
            name = "ple_ngram_embd.weight"
        info = weights.checkpoint.tensors.get(name)
        num_rows = info.shape[0] if info is not None else 0
        self.table = Embedding(weights, name, num_rows, row_length)
        self._check(keys, config.vocab_size, num_rows)

    def _check(self, keys: Keys, vocab_size: int, num_rows: int) -> None:
        where = f"{keys.checkpoint.path}: {keys.prefix}ple"
        largest = int(self.multipliers.max()) * (vocab_size - 1)
        if int(self.multipliers.min()) < 1 or largest >= 2**63:
            raise ModelFileError(
                f"{where}.layer_multipliers: products with {vocab_size} token ids exceed 63 bits"
            )
        if not 0 <= self.eos < vocab_size:
            raise ModelFileError(f"{where}.eos_token_id {self.eos} is outside the vocabulary of {vocab_size}")
        last = int((self.head_offsets + self.head_sizes).max())
        if int(self.head_sizes.min()) < 1 or int(self.head_offsets.min()) < 0 or last > num_rows:
            raise ModelFileError(
                f"{where}.head_offsets and head_vocab_sizes reach row {last}, "
                f"{self.table.name} has {num_rows}"
            )

    @staticmethod
    def _integer(keys: Keys, key: str, default: int | None) -> int:
        value = keys.checkpoint.metadata.get(keys.prefix + key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelFileError(
                f"{keys.checkpoint.path}: metadata key {keys.prefix}{key} must be a token id"
            )
        return value

    @staticmethod
    def _integers(keys: Keys, key: str, count: int) -> torch.Tensor:
        values = keys.list(key)
        if len(values) != count or not all(isinstance(v, int) and 0 <= v < 2**62 for v in values):
            raise ModelFileError(
                f"{keys.checkpoint.path}: metadata key {keys.prefix}{key} must hold {count} integers, "
                f"it holds {len(values)} values"
            )
        return torch.tensor(values, dtype=torch.int64)

    def new_window(self) -> torch.Tensor:
        """The tokens before a sequence begins, int64 `[size - 1]`."""
        return torch.full((self.size - 1,), self.eos)

    def __call__(self, tokens: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        """Embeddings float32 `[n, width]` of int64 `tokens` `[n]` that follow `window` `[size - 1]`."""
        return self.table(self.row_numbers(tokens, window).flatten()).view(tokens.shape[0], self.width)

    def row_numbers(self, tokens: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        """Rows of the table int64 `[n, rows of a token]`; arguments as of `__call__`."""
        return ngram_rows(tokens, window, self.multipliers, self.head_sizes, self.head_offsets, self.eos)


class NgramState:
    """The last tokens and the last rows before the convolution; both replaced, never changed."""

    def __init__(self, window: torch.Tensor, past: torch.Tensor):
        self.window = window  # int64 [size - 1]
        self.past = past  # [(kernel - 1) * size, streams * width]

    def save(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.window, self.past

    def load(self, saved: tuple[torch.Tensor, torch.Tensor], length: int) -> None:
        self.window, self.past = saved

    def num_bytes(self) -> int:
        return self.window.nbytes + self.past.nbytes


class NgramMemory:
    """What the n-gram table adds to each stream: gated by how well its key fits the stream, then convolved.

    Args:
        weights: the checkpoint's weights.
        prefix: `blk.N`.
        config: the model's hyper-parameters.
    """

    def __init__(self, weights: Weights, prefix: str, config: ModelConfig):
        keys = Keys(weights.checkpoint)
        self.weights, self.ops = weights, weights.ops
        self.epsilon = config.rms_epsilon
        self.streams, self.width = keys.count("hyper_connection.count"), config.embedding_length
        wide = self.streams * self.width
        self.table = NgramTable(weights, config)
        self.ple_key = Linear(weights, f"{prefix}.ple_key.weight", wide, self.table.width)
        self.ple_value = Linear(weights, f"{prefix}.ple_value.weight", self.width, self.table.width)
        self.ple_norm_key = weights.require(f"{prefix}.ple_norm_key.weight", wide)
        self.ple_norm_query = weights.require(f"{prefix}.ple_norm_query.weight", wide)
        self.ple_norm_conv = weights.require(f"{prefix}.ple_norm_conv.weight", wide)
        # the taps lie as far apart as an n-gram is long
        self.ple_conv1d = CausalConvolution(
            weights,
            f"{prefix}.ple_conv1d.weight",
            wide,
            keys.count("ple.conv_kernel"),
            dilation=self.table.size,
        )

    def new_state(self) -> NgramState:
        return NgramState(self.table.new_window(), self.ple_conv1d.new_past())

    def __call__(self, residual: torch.Tensor, tokens: torch.Tensor, state: NgramState) -> torch.Tensor:
        """Streams float32 `[n, streams, width]` and ids int64 `[n]` -> the streams with the memory added."""
        embedding = self.table(tokens, state.window)
        state.window = torch.cat([state.window, tokens])[-(self.table.size - 1) :].clone()
        key = self._normalized(self.ple_key(embedding).view_as(residual), self.ple_norm_key)
        query = self._normalized(residual, self.ple_norm_query)
        fit = (key * query).sum(-1) / self.width**0.5  # [n, streams]
        fit = fit.abs().clamp_min(1e-6).sqrt() * fit.sign()
        gated = self.ops.sigmoid(fit)[:, :, None] * self.ple_value(embedding)[:, None]
        normalized = self._normalized(gated, self.ple_norm_conv).flatten(1)
        convolved, state.past = self.ple_conv1d(normalized, state.past)
        return residual + gated + self.ops.silu(convolved).view_as(residual)

    def _normalized(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """RMS norm of each stream by itself."""
        return self.ops.rms_norm(x, self.weights.get(name).view(self.streams, self.width), self.epsilon)
