"""Write a GGUF of random weights whose layers have the shape of a real model's, but fewer.

    python bench/synthetic.py qwen3moe OUT.gguf [--experts Q4_K] [--layers 8] [--vocab 151936]
    python bench/synthetic.py qwen4exp OUT.gguf [--layers 4] [--vocab 248320]

All codes are valid and no two experts share bytes. Scales are such that activations stay of order one, and
routers choose every expert about equally often. There is no tokenizer: token ids go in and come out.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import gguf
import numpy as np
from gguf import GGMLQuantizationType

from strata.formats.quants import FORMATS


@dataclass(frozen=True)
class Tensor:
    """A tensor; `value` is its constant, None for random weights of deviation 1 / sqrt(row length)."""

    name: str
    shape: tuple[int, ...]  # torch order
    format: str
    value: float | None = None


# What llama.cpp's quantiser makes of the other matrices of a file whose experts are in a format: (attn_q and
# attn_k, attn_v, attn_output, token_embd, output), from its dry run on the shape of Qwen3-30B-A3B.
QWEN3MOE_FORMATS = {
    "Q4_K": ("Q4_K", "Q4_K", "Q4_K", "Q4_K", "Q6_K"),  # file type Q4_K_S
    "Q3_K": ("Q3_K", "Q3_K", "Q3_K", "Q3_K", "Q6_K"),  # Q3_K_S
    "IQ3_XXS": ("IQ2_S", "Q4_K", "IQ3_S", "IQ3_S", "Q5_K"),
    "IQ4_NL": ("IQ4_NL", "Q5_K", "IQ4_NL", "IQ4_NL", "Q6_K"),
    "Q2_K": ("Q2_K", "Q4_K", "Q3_K", "Q2_K", "Q6_K"),
}


@dataclass(frozen=True)
class Qwen3Moe:
    """Qwen3-30B-A3B, which has 48 layers."""

    architecture: ClassVar[str] = "qwen3moe"
    experts: str = "Q4_K"  # format of their three matrices
    layers: int = 8
    vocab: int = 151936
    width: int = 2048
    heads: int = 32
    kv_heads: int = 4
    head_length: int = 128
    expert_count: int = 128
    used: int = 8
    ff: int = 768

    def metadata(self) -> dict[str, Any]:
        return {
            "block_count": self.layers,
            "context_length": 40960,
            "embedding_length": self.width,
            "feed_forward_length": 6144,  # of no layer; llama.cpp asks for it
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_length,
            "attention.value_length": self.head_length,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e6,
            "expert_count": self.expert_count,
            "expert_used_count": self.used,
            "expert_feed_forward_length": self.ff,
            "vocab_size": self.vocab,
        }

    def tensors(self) -> Iterator[Tensor]:
        width, q, kv = self.width, self.heads * self.head_length, self.kv_heads * self.head_length
        query_key, value, out, token_embd, output = QWEN3MOE_FORMATS[self.experts]
        yield Tensor("token_embd.weight", (self.vocab, width), token_embd)
        yield Tensor("output_norm.weight", (width,), "F32", 1)
        yield Tensor("output.weight", (self.vocab, width), output)
        for blk in (f"blk.{layer}" for layer in range(self.layers)):
            yield Tensor(f"{blk}.attn_norm.weight", (width,), "F32", 1)
            yield Tensor(f"{blk}.attn_q.weight", (q, width), query_key)
            yield Tensor(f"{blk}.attn_k.weight", (kv, width), query_key)
            yield Tensor(f"{blk}.attn_v.weight", (kv, width), value)
            yield Tensor(f"{blk}.attn_output.weight", (width, q), out)
            yield Tensor(f"{blk}.attn_q_norm.weight", (self.head_length,), "F32", 1)
            yield Tensor(f"{blk}.attn_k_norm.weight", (self.head_length,), "F32", 1)
            yield Tensor(f"{blk}.ffn_norm.weight", (width,), "F32", 1)
            yield Tensor(f"{blk}.ffn_gate_inp.weight", (self.expert_count, width), "F32")
            yield Tensor(f"{blk}.ffn_gate_exps.weight", (self.expert_count, self.ff, width), self.experts)
            yield Tensor(f"{blk}.ffn_up_exps.weight", (self.expert_count, self.ff, width), self.experts)
            yield Tensor(f"{blk}.ffn_down_exps.weight", (self.expert_count, width, self.ff), self.experts)


@dataclass(frozen=True)
class Qwen4Exp:
    """Qwen3.8-Flash-Next, which has 48 layers, without its n-gram memory.

    Formats are those of a published low-bit file (Unsloth's UD-IQ1_S), with experts in IQ3_XXS. Rows of 640
    are no multiple of its 256, so that `ffn_down_exps` is IQ4_NL, as there.
    """

    architecture: ClassVar[str] = "qwen4exp"
    layers: int = 4
    vocab: int = 248320
    expert_count: int = 512
    used: int = 10
    ff: int = 640
    width: int = 2560
    heads: int = 24
    kv_heads: int = 2
    head_length: int = 256
    key_heads: int = 16  # of a delta net
    value_heads: int = 48
    state: int = 128
    streams: int = 4
    low_rank: int = 320
    index_heads: int = 4
    index_length: int = 128

    def metadata(self) -> dict[str, Any]:
        return {
            "block_count": self.layers,
            "context_length": 262144,
            "embedding_length": self.width,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_length,
            "attention.value_length": self.head_length,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.indexer.head_count": self.index_heads,
            "attention.indexer.key_length": self.index_length,
            "attention.indexer.top_k": 2048,
            "attention.compress_ratios": [4 * self._has_attention(layer) for layer in range(self.layers)],
            "rope.freq_base": 1e7,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "full_attention_interval": 4,
            "expert_count": self.expert_count,
            "expert_used_count": self.used,
            "expert_feed_forward_length": self.ff,
            "expert_shared_feed_forward_length": self.ff,
            "ssm.conv_kernel": 4,
            "ssm.state_size": self.state,
            "ssm.group_count": self.key_heads,
            "ssm.time_step_rank": self.value_heads,
            "ssm.inner_size": self.value_heads * self.state,
            "hyper_connection.count": self.streams,
            "hyper_connection.low_rank": self.low_rank,
            "vocab_size": self.vocab,
        }

    def tensors(self) -> Iterator[Tensor]:
        yield Tensor("token_embd.weight", (self.vocab, self.width), "Q4_K")
        yield from self._hyper_connection("output_hc")
        yield Tensor("output.weight", (self.vocab, self.width), "Q4_K")
        for layer in range(self.layers):
            blk = f"blk.{layer}"
            for part in ("hc_attn", "hc_ffn"):
                yield from self._hyper_connection(f"{blk}.{part}")
                yield Tensor(f"{blk}.{part}_inject.weight", (self.streams, self.streams * self.width), "F32")
            yield from self._attention(blk) if self._has_attention(layer) else self._delta_net(blk)
            yield from self._experts(blk)

    @staticmethod
    def _has_attention(layer: int) -> bool:
        return layer % 4 == 3

    def _hyper_connection(self, prefix: str) -> Iterator[Tensor]:
        wide = self.streams * self.width
        yield Tensor(f"{prefix}_norm.weight", (wide,), "F32", 1)
        yield Tensor(f"{prefix}_down.weight", (self.low_rank, wide), "Q8_0")
        yield Tensor(f"{prefix}_up.weight", (wide, self.low_rank), "Q8_0")

    def _attention(self, blk: str) -> Iterator[Tensor]:
        width, q, kv = self.width, self.heads * self.head_length, self.kv_heads * self.head_length
        yield Tensor(f"{blk}.attn_q.weight", (2 * q, width), "Q5_K")
        yield Tensor(f"{blk}.attn_k.weight", (kv, width), "Q5_K")
        yield Tensor(f"{blk}.attn_v.weight", (kv, width), "Q5_K")
        yield Tensor(f"{blk}.attn_output.weight", (width, q), "Q5_K")
        yield Tensor(f"{blk}.attn_q_norm.weight", (self.head_length,), "F32", 1)
        yield Tensor(f"{blk}.attn_k_norm.weight", (self.head_length,), "F32", 1)
        yield Tensor(f"{blk}.indexer.q_proj.weight", (self.index_heads * self.index_length, width), "BF16")
        yield Tensor(f"{blk}.indexer.k_proj.weight", (self.index_length, width), "BF16")
        yield Tensor(f"{blk}.indexer.q_norm.weight", (self.index_length,), "F32", 1)
        yield Tensor(f"{blk}.indexer.k_norm.weight", (self.index_length,), "F32", 1)

    def _delta_net(self, blk: str) -> Iterator[Tensor]:
        width, value = self.width, self.value_heads * self.state
        qkv = 2 * self.key_heads * self.state + value
        yield Tensor(f"{blk}.attn_qkv.weight", (qkv, width), "Q5_K")
        yield Tensor(f"{blk}.attn_gate.weight", (value, width), "Q5_K")
        yield Tensor(f"{blk}.ssm_conv1d.weight", (qkv, 4), "F32")
        yield Tensor(f"{blk}.ssm_dt.bias", (self.value_heads,), "F32", 0)
        yield Tensor(f"{blk}.ssm_a", (self.value_heads,), "F32", -0.1)  # a state fades over some ten tokens
        yield Tensor(f"{blk}.ssm_alpha.weight", (self.value_heads, width), "BF16")
        yield Tensor(f"{blk}.ssm_beta.weight", (self.value_heads, width), "BF16")
        yield Tensor(f"{blk}.ssm_norm.weight", (self.state,), "F32", 1)
        yield Tensor(f"{blk}.ssm_out.weight", (width, value), "Q6_K")

    def _experts(self, blk: str) -> Iterator[Tensor]:
        width, ff, count = self.width, self.ff, self.expert_count
        yield Tensor(f"{blk}.ffn_gate_inp.weight", (count, width), "F32")
        yield Tensor(f"{blk}.ffn_gate_exps.weight", (count, ff, width), "IQ3_XXS")
        yield Tensor(f"{blk}.ffn_up_exps.weight", (count, ff, width), "IQ3_XXS")
        yield Tensor(f"{blk}.ffn_down_exps.weight", (count, width, ff), "IQ4_NL")
        yield Tensor(f"{blk}.ffn_gate_inp_shexp.weight", (width,), "F32")
        yield Tensor(f"{blk}.ffn_gate_shexp.weight", (ff, width), "Q5_K")
        yield Tensor(f"{blk}.ffn_up_shexp.weight", (ff, width), "Q5_K")
        yield Tensor(f"{blk}.ffn_down_shexp.weight", (width, ff), "Q8_0")


Shape = Qwen3Moe | Qwen4Exp


def random_blocks(format: str, rows: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Weights of mean 0 and deviation 1 / sqrt(width) with float16 scales, uint8 `[rows, row bytes]`."""
    fmt = FORMATS[format]
    num_bytes = rows * width // fmt.block_size * fmt.block_bytes
    words = rng.integers(0, 1 << 64, -(-num_bytes // 8), np.uint64)  # the fast way to random bytes
    blocks = words.view(np.uint8)[:num_bytes].view(fmt.layout)
    minimum = next((field for field in ("dmin", "m") if field in fmt.layout.names), None)
    sample = blocks[:4096].copy()

    def weights(scale: float, offset: float) -> np.ndarray:
        sample["d"] = scale
        if minimum:
            sample[minimum] = offset
        return fmt.dequantize(sample.view(np.uint8))

    # the offset that takes the mean away, in units of the scale
    offset = -weights(1, 0).mean() / weights(0, 1).mean() if minimum else 0.0
    scale = width**-0.5 / weights(1, offset).std()
    blocks["d"] = scale
    if minimum:
        blocks[minimum] = offset * scale
    return blocks.view(np.uint8).reshape(rows, -1)


def draw(tensor: Tensor, rng: np.random.Generator) -> np.ndarray:
    """The bytes of a tensor, uint8 `[*shape[:-1], bytes per row]`."""
    width = tensor.shape[-1]
    if tensor.format in ("F32", "BF16"):
        values = rng.standard_normal(tensor.shape, np.float32) * np.float32(width**-0.5)
        if tensor.value is not None:
            values[:] = tensor.value
        return gguf.quants.quantize(values, GGMLQuantizationType[tensor.format]).view(np.uint8)
    blocks = random_blocks(tensor.format, int(np.prod(tensor.shape[:-1])), width, rng)
    return blocks.reshape(*tensor.shape[:-1], -1)


def write(shape: Shape, path: Path, seed: int = 0) -> Path:
    """Write the model tensor by tensor, so that memory holds one at a time."""
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    add = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
    for key, value in shape.metadata().items():
        add[type(value)](f"{shape.architecture}.{key}", value)
    for tensor in shape.tensors():
        fmt = FORMATS[tensor.format]
        bytes_of_shape = (*tensor.shape[:-1], tensor.shape[-1] // fmt.block_size * fmt.block_bytes)
        writer.add_tensor_info(
            tensor.name,
            bytes_of_shape,
            np.dtype(np.uint8),
            int(np.prod(bytes_of_shape)),
            GGMLQuantizationType[tensor.format],
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.Generator(np.random.SFC64(seed))
    for tensor in shape.tensors():
        writer.write_tensor_data(draw(tensor, rng))
    writer.close()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("architecture", choices=["qwen3moe", "qwen4exp"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--experts", choices=list(QWEN3MOE_FORMATS), help="format of qwen3moe's experts")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--vocab", type=int)
    args = parser.parse_args()
    given = {
        key: value for key in ("experts", "layers", "vocab") if (value := getattr(args, key)) is not None
    }
    if args.architecture == "qwen4exp" and "experts" in given:
        parser.error("--experts is for qwen3moe")
    shape = Qwen3Moe(**given) if args.architecture == "qwen3moe" else Qwen4Exp(**given)
    write(shape, args.out)
    print(f"{args.out}: {args.out.stat().st_size / 1e9:.2f} GB, {asdict(shape)}")


if __name__ == "__main__":
    main()
