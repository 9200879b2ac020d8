"""The shapes of known models: what their files hold, without a file.

A geometry lists a model's GGUF keys and tensors; a mix (`formats/mixes.py`) gives each tensor its format. The
planner reads from both what a model takes before it is downloaded, and `formats/synthetic.py` fills them with
made-up weights. Sources: MODELS.md sections 1 and 4, and the `config.json` of the originals.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

# MODELS.md 2.8: the hash of the n-gram table; its products with token ids must stay below 2 ** 63
_MULTIPLIERS = [23703573157769, 20109073645365, 8052911324071]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor; `value` is its constant, None for random weights of deviation 1 / sqrt(row length)."""

    name: str
    shape: tuple[int, ...]  # torch order
    role: str  # what a mix knows formats for; "vector" is always F32
    value: float | None = None


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Sizes of gated delta net layers; `fused` where beta and alpha are one matrix (qwen3next)."""

    key_heads: int
    value_heads: int
    state: int = 128
    kernel: int = 4
    fused: bool = False

    @property
    def value_width(self) -> int:
        return self.value_heads * self.state

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.state + self.value_width


@dataclass(frozen=True, slots=True)
class Hyper:
    """What only qwen4exp has: residual streams, the indexer of sparse attention, the n-gram memory."""

    streams: int = 4
    low_rank: int = 320
    index_heads: int = 4
    index_length: int = 128
    top_k: int = 2048
    block: int = 4
    ngram_rows: int = 20_000_000  # of each hash head, at least; 0: no n-gram memory
    ngram_heads: int = 8  # for bigrams, and as many for trigrams
    ngram_length: int = 160


@dataclass(frozen=True, slots=True)
class Geometry:
    """A decoder. `delta` is None where every layer has attention; else one in `interval` has.

    Without experts (`expert_count` 0), `ff` is the inner length of dense layers; `tied`: the embedding is the
    output matrix too.
    """

    name: str
    architecture: str
    layers: int
    width: int
    vocab: int
    context: int
    heads: int
    kv_heads: int
    head_length: int
    expert_count: int
    used: int
    ff: int
    shared_ff: int = 0
    rope_base: float = 1e7
    rope_dimensions: int = 64
    rope_sections: tuple[int, ...] = ()
    interval: int = 4
    delta: DeltaNet | None = None
    hyper: Hyper | None = None
    eos: int = 0
    qk_norm: bool = True
    tied: bool = False

    def has_attention(self, layer: int) -> bool:
        return self.delta is None or layer % self.interval == self.interval - 1

    def metadata(self) -> dict[str, Any]:
        """GGUF keys without the architecture's prefix."""
        keys: dict[str, Any] = {
            "block_count": self.layers,
            "context_length": self.context,
            "embedding_length": self.width,
            # with experts, of no layer; llama.cpp asks for it
            "feed_forward_length": 3 * self.width if self.expert_count else self.ff,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_length,
            "attention.value_length": self.head_length,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": self.rope_base,
            "rope.dimension_count": self.rope_dimensions,
            "vocab_size": self.vocab,
        }
        if self.expert_count:
            keys |= {
                "expert_count": self.expert_count,
                "expert_used_count": self.used,
                "expert_feed_forward_length": self.ff,
            }
        if self.rope_sections:
            keys["rope.dimension_sections"] = list(self.rope_sections)
        if self.shared_ff:
            keys["expert_shared_feed_forward_length"] = self.shared_ff
        if self.delta:
            keys |= {
                "full_attention_interval": self.interval,
                "ssm.conv_kernel": self.delta.kernel,
                "ssm.state_size": self.delta.state,
                "ssm.group_count": self.delta.key_heads,
                "ssm.time_step_rank": self.delta.value_heads,
                "ssm.inner_size": self.delta.value_width,
            }
        return keys | (self._hyper_metadata(self.hyper) if self.hyper else {})

    def _hyper_metadata(self, hyper: Hyper) -> dict[str, Any]:
        keys: dict[str, Any] = {
            "attention.indexer.head_count": hyper.index_heads,
            "attention.indexer.key_length": hyper.index_length,
            "attention.indexer.top_k": hyper.top_k,
            "attention.compress_ratios": [
                hyper.block * self.has_attention(layer) for layer in range(self.layers)
            ],
            "hyper_connection.count": hyper.streams,
            "hyper_connection.low_rank": hyper.low_rank,
        }
        if hyper.ngram_rows:
            sizes = _primes_from(hyper.ngram_rows, 2 * hyper.ngram_heads)
            keys |= {
                "ple.layers": [1],
                "ple.ngram_size": 3,
                "ple.heads_per_ngram": hyper.ngram_heads,
                "ple.conv_kernel": 4,
                "ple.eos_token_id": self.eos,
                "ple.layer_multipliers": _MULTIPLIERS,
                "ple.head_vocab_sizes": sizes,
                "ple.head_offsets": [sum(sizes[:head]) for head in range(len(sizes))],
                "embedding_length_per_layer_input": hyper.ngram_length,
            }
        return keys

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, in the order of the layers."""
        yield Tensor("token_embd.weight", (self.vocab, self.width), "token_embd")
        if self.hyper:
            yield from self._hyper_connection(self.hyper, "output_hc")
            yield from self._ngram_table(self.hyper)
        else:
            yield Tensor("output_norm.weight", (self.width,), "vector", 1)
        if not self.tied:
            yield Tensor("output.weight", (self.vocab, self.width), "output")
        for layer in range(self.layers):
            blk = f"blk.{layer}"
            yield from self._norms(blk)
            if self.hyper and self.hyper.ngram_rows and layer == 1:
                yield from self._ngram_memory(self.hyper, blk)
            if self.delta and not self.has_attention(layer):
                yield from self._delta_net(self.delta, blk)
            else:
                yield from self._attention(blk)
            yield from self._experts(blk) if self.expert_count else self._feed_forward(blk, "", self.ff)

    def _norms(self, blk: str) -> Iterator[Tensor]:
        if self.hyper is None:
            yield Tensor(f"{blk}.attn_norm.weight", (self.width,), "vector", 1)
            name = "post_attention_norm" if self.delta else "ffn_norm"
            yield Tensor(f"{blk}.{name}.weight", (self.width,), "vector", 1)
            return
        wide = self.hyper.streams * self.width
        for part in ("hc_attn", "hc_ffn"):
            yield from self._hyper_connection(self.hyper, f"{blk}.{part}")
            yield Tensor(f"{blk}.{part}_inject.weight", (self.hyper.streams, wide), "inject")

    def _hyper_connection(self, hyper: Hyper, prefix: str) -> Iterator[Tensor]:
        wide = hyper.streams * self.width
        yield Tensor(f"{prefix}_norm.weight", (wide,), "vector", 1)
        yield Tensor(f"{prefix}_down.weight", (hyper.low_rank, wide), "hyper")
        yield Tensor(f"{prefix}_up.weight", (wide, hyper.low_rank), "hyper")

    def _ngram_table(self, hyper: Hyper) -> Iterator[Tensor]:
        if hyper.ngram_rows:
            rows = sum(_primes_from(hyper.ngram_rows, 2 * hyper.ngram_heads))
            yield Tensor(
                "per_layer_token_embd.weight", (-(-rows // 128) * 128, hyper.ngram_length), "ngram_table"
            )

    def _ngram_memory(self, hyper: Hyper, blk: str) -> Iterator[Tensor]:
        wide, inner = hyper.streams * self.width, 2 * hyper.ngram_heads * hyper.ngram_length
        yield Tensor(f"{blk}.ple_key.weight", (wide, inner), "ple_key")
        yield Tensor(f"{blk}.ple_value.weight", (self.width, inner), "ple_value")
        for norm in ("key", "query", "conv"):
            yield Tensor(f"{blk}.ple_norm_{norm}.weight", (wide,), "vector", 1)
        yield Tensor(f"{blk}.ple_conv1d.weight", (wide, 4), "vector")

    def _attention(self, blk: str) -> Iterator[Tensor]:
        gated = 2 if self.delta else 1  # [query | gate] of each head
        q, kv = self.heads * self.head_length, self.kv_heads * self.head_length
        yield Tensor(f"{blk}.attn_q.weight", (gated * q, self.width), "query_key")
        yield Tensor(f"{blk}.attn_k.weight", (kv, self.width), "query_key")
        yield Tensor(f"{blk}.attn_v.weight", (kv, self.width), "value")
        yield Tensor(f"{blk}.attn_output.weight", (self.width, q), "attn_output")
        for norm in ("q", "k") if self.qk_norm else ():
            yield Tensor(f"{blk}.attn_{norm}_norm.weight", (self.head_length,), "vector", 1)
        if self.hyper:
            index = self.hyper.index_length
            yield Tensor(
                f"{blk}.indexer.q_proj.weight", (self.hyper.index_heads * index, self.width), "indexer"
            )
            yield Tensor(f"{blk}.indexer.k_proj.weight", (index, self.width), "indexer")
            for norm in ("q", "k"):
                yield Tensor(f"{blk}.indexer.{norm}_norm.weight", (index,), "vector", 1)

    def _delta_net(self, delta: DeltaNet, blk: str) -> Iterator[Tensor]:
        yield Tensor(f"{blk}.attn_qkv.weight", (delta.channels, self.width), "query_key")
        yield Tensor(f"{blk}.attn_gate.weight", (delta.value_width, self.width), "gate")
        yield Tensor(f"{blk}.ssm_conv1d.weight", (delta.channels, delta.kernel), "vector")
        yield Tensor(f"{blk}.ssm_dt.bias", (delta.value_heads,), "vector", 0)
        yield Tensor(
            f"{blk}.ssm_a", (delta.value_heads,), "vector", -0.1
        )  # a state fades over some ten tokens
        if delta.fused:
            yield Tensor(f"{blk}.ssm_ba.weight", (2 * delta.value_heads, self.width), "ssm_ba")
        else:
            yield Tensor(f"{blk}.ssm_alpha.weight", (delta.value_heads, self.width), "ssm_ba")
            yield Tensor(f"{blk}.ssm_beta.weight", (delta.value_heads, self.width), "ssm_ba")
        yield Tensor(f"{blk}.ssm_norm.weight", (delta.state,), "vector", 1)
        yield Tensor(f"{blk}.ssm_out.weight", (self.width, delta.value_width), "ssm_out")

    def _experts(self, blk: str) -> Iterator[Tensor]:
        count, ff, width = self.expert_count, self.ff, self.width
        yield Tensor(f"{blk}.ffn_gate_inp.weight", (count, width), "router")
        yield Tensor(f"{blk}.ffn_gate_exps.weight", (count, ff, width), "experts")
        yield Tensor(f"{blk}.ffn_up_exps.weight", (count, ff, width), "experts")
        yield Tensor(f"{blk}.ffn_down_exps.weight", (count, width, ff), "experts_down")
        if self.shared_ff:
            yield Tensor(f"{blk}.ffn_gate_inp_shexp.weight", (width,), "vector")
            yield from self._feed_forward(blk, "_shexp", self.shared_ff)

    def _feed_forward(self, blk: str, suffix: str, length: int) -> Iterator[Tensor]:
        yield Tensor(f"{blk}.ffn_gate{suffix}.weight", (length, self.width), "shared")
        yield Tensor(f"{blk}.ffn_up{suffix}.weight", (length, self.width), "shared")
        yield Tensor(f"{blk}.ffn_down{suffix}.weight", (self.width, length), "shared_down")


def _primes_from(start: int, count: int) -> list[int]:
    """The first `count` primes above `start`."""
    primes: list[int] = []
    n = start | 1
    while len(primes) < count:
        if all(n % d for d in range(3, int(n**0.5) + 1, 2)):
            primes.append(n)
        n += 2
    return primes


_FLASH_NEXT = Geometry(
    "qwen3.8-flash-next", "qwen4exp", layers=48, width=2560, vocab=248320, context=262144,
    heads=24, kv_heads=2, head_length=256, expert_count=512, used=10, ff=640, shared_ff=640,
    rope_sections=(11, 11, 10, 0), eos=248044, delta=DeltaNet(16, 48), hyper=Hyper(),
)  # fmt: skip
_KNOWN = (
    _FLASH_NEXT,
    replace(_FLASH_NEXT, name="qwen3.8-flash-next-coder", expert_count=256),
    Geometry(
        "qwen3.6-35b-a3b", "qwen35moe", layers=40, width=2048, vocab=248320, context=262144,
        heads=16, kv_heads=2, head_length=256, expert_count=256, used=8, ff=512, shared_ff=512,
        rope_sections=(11, 11, 10, 0), delta=DeltaNet(16, 32),
    ),
    Geometry(
        "qwen3-next-80b-a3b", "qwen3next", layers=48, width=2048, vocab=151936, context=262144,
        heads=16, kv_heads=2, head_length=256, expert_count=512, used=10, ff=512, shared_ff=512,
        delta=DeltaNet(16, 32, fused=True),
    ),
    Geometry(
        "qwen3-30b-a3b", "qwen3moe", layers=48, width=2048, vocab=151936, context=40960,
        heads=32, kv_heads=4, head_length=128, expert_count=128, used=8, ff=768,
        rope_base=1e6, rope_dimensions=128,
    ),
    Geometry(
        "tiny", "qwen4exp", layers=4, width=256, vocab=512, context=4096,
        heads=4, kv_heads=2, head_length=64, expert_count=16, used=4, ff=64, shared_ff=64,
        rope_dimensions=16, rope_sections=(3, 3, 2, 0), delta=DeltaNet(2, 4, state=64),
        hyper=Hyper(
            low_rank=32, index_heads=2, index_length=64, top_k=64,
            ngram_rows=1000, ngram_heads=4, ngram_length=32,
        ),
    ),
)  # fmt: skip
GEOMETRIES: dict[str, Geometry] = {geometry.name: geometry for geometry in _KNOWN}
