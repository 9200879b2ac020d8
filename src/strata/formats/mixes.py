"""Which format each tensor of a quantised release has.

Files are named after the format of their experts; all else is finer. Mixes of qwen4exp follow the published
files (MODELS.md 4.6), GSQ-RCO's and Unsloth's (`ud-`). Their lists of tensors are not all public: sizes are
met to a few per cent, not to the byte. The others are what llama.cpp's quantiser makes, from its dry run on
Qwen3-30B-A3B.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from strata.errors import StrataError
from strata.formats.checkpoint import TensorInfo
from strata.formats.geometry import Geometry
from strata.formats.quants import FORMATS

# What llama.cpp takes where rows are no multiple of a format's block.
_FALLBACKS = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "Q2_0": "Q4_0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mix:
    """A format for each role of a tensor (`geometry.Tensor.role`); several alternate from layer to layer."""

    roles: Mapping[str, str | tuple[str, ...]]

    def format(self, role: str, name: str, row_length: int) -> str:
        """The format of a tensor, or its fallback where the rows are too short for it."""
        choice = "F32" if role == "vector" else self.roles[role]
        if isinstance(choice, tuple):
            choice = choice[int(name.split(".")[1]) % len(choice)]
        if row_length % FORMATS[choice].block_size == 0:
            return choice
        return _FALLBACKS.get(choice, "IQ4_NL")


def tensors_of(geometry: Geometry, mix: Mix) -> dict[str, TensorInfo]:
    """What a checkpoint of this geometry and mix holds, by name."""
    infos = {}
    for tensor in geometry.tensors():
        fmt = FORMATS[mix.format(tensor.role, tensor.name, tensor.shape[-1])]
        rows = 1
        for length in tensor.shape[:-1]:
            rows *= length
        num_bytes = rows * (tensor.shape[-1] // fmt.block_size) * fmt.block_bytes
        infos[tensor.name] = TensorInfo(tensor.name, tensor.shape, fmt.name, num_bytes)
    return infos


def mixes_of(geometry: Geometry) -> Mapping[str, Mix]:
    """The quantisations that a model comes in, by name."""
    return _OF_MODEL.get(geometry.name) or _OF_ARCHITECTURE[geometry.architecture]


def find_mix(geometry: Geometry, name: str) -> Mix:
    """The mix `name` of a geometry's architecture.

    Raises:
        StrataError: there is none; names those there are.
    """
    known = mixes_of(geometry)
    mix = known.get(name.lower())
    if mix is None:
        raise StrataError(f"--quant {name}: {geometry.name} comes in {', '.join(known)}")
    return mix


def _quantiser(experts: str, query_key: str, value: str, attn_output: str, embd: str, output: str) -> Mix:
    """What llama.cpp's quantiser makes: routers stay F32, and what is small stays BF16."""
    return Mix({
        "experts": experts, "experts_down": experts, "token_embd": embd, "output": output,
        "query_key": query_key, "value": value, "attn_output": attn_output, "gate": query_key,
        "ssm_out": attn_output, "ssm_ba": "BF16", "shared": attn_output, "shared_down": attn_output,
        "router": "F32",
    })  # fmt: skip


def _gsq(experts: tuple[str, ...], down: tuple[str, ...], wide: str, fine: str, rest: tuple[str, ...]) -> Mix:
    """GSQ-RCO: hyper-connections, routers and what is small stay BF16.

    Args:
        experts: gate and up, from layer to layer.
        down: of the experts, likewise.
        wide: attention's and the delta nets' inputs.
        fine: their outputs and gates.
        rest: token embedding, output, shared expert, n-gram key.
    """
    token_embd, output, shared, ple_key = rest
    return Mix({
        "experts": experts, "experts_down": down, "token_embd": token_embd, "output": output,
        "query_key": wide, "value": fine, "attn_output": fine, "gate": fine, "ssm_out": fine,
        "ssm_ba": "BF16", "hyper": "BF16", "inject": "BF16", "indexer": "BF16", "router": "BF16",
        "shared": shared, "shared_down": shared, "ple_key": ple_key, "ple_value": "BF16",
        "ngram_table": "IQ4_NL",
    })  # fmt: skip


def _unsloth(experts: tuple[str, ...], down: tuple[str, ...], dense: str, output: str) -> Mix:
    """Unsloth's dynamic files: hyper-connections Q8_0, routers F32."""
    return Mix({
        "experts": experts, "experts_down": down, "token_embd": output, "output": output,
        "query_key": dense, "value": dense, "attn_output": dense, "gate": dense,
        "ssm_out": "Q6_K" if dense == "Q5_K" else dense, "ssm_ba": "BF16", "hyper": "Q8_0", "inject": "F32",
        "indexer": "BF16", "router": "F32", "shared": dense, "shared_down": "Q8_0", "ple_key": "Q8_0",
        "ple_value": "Q8_0", "ngram_table": "IQ4_NL",
    })  # fmt: skip


_QUANTISER = {
    "q2_k": _quantiser("Q2_K", "Q2_K", "Q4_K", "Q3_K", "Q2_K", "Q6_K"),
    "iq3_xxs": _quantiser("IQ3_XXS", "IQ2_S", "Q4_K", "IQ3_S", "IQ3_S", "Q5_K"),
    "q3_k": _quantiser("Q3_K", "Q3_K", "Q3_K", "Q3_K", "Q3_K", "Q6_K"),
    "iq4_xs": _quantiser("IQ4_XS", "IQ4_XS", "Q5_K", "IQ4_XS", "IQ4_XS", "Q6_K"),
    "iq4_nl": _quantiser("IQ4_NL", "IQ4_NL", "Q5_K", "IQ4_NL", "IQ4_NL", "Q6_K"),
    "q4_k": _quantiser("Q4_K", "Q4_K", "Q4_K", "Q4_K", "Q4_K", "Q6_K"),
    "q8_0": _quantiser("Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0"),
}
_OF_ARCHITECTURE: dict[str, dict[str, Mix]] = {
    "qwen3moe": _QUANTISER,
    "qwen3next": _QUANTISER,
    "qwen35moe": _QUANTISER,
    "qwen4exp": {
        "q2_0": _gsq(("Q2_0",), ("Q2_0",), "Q3_K", "Q4_K", ("Q3_K", "Q5_K", "Q3_K", "Q2_0")),
        "iq2_xs": _gsq(
            ("IQ2_S", "IQ2_XXS", "IQ2_S"), ("Q2_0",), "Q3_K", "Q4_K", ("IQ4_XS", "IQ4_XS", "Q4_K", "BF16")
        ),
        "iq3_xxs": _gsq(
            ("IQ3_XXS",) * 4 + ("IQ3_S",), ("Q2_0",), "Q4_K", "Q5_K", ("Q4_K", "Q6_K", "Q5_K", "BF16")
        ),
        "iq3_s": _gsq(("IQ3_S", "IQ4_XS"), ("Q2_0",), "Q4_K", "Q5_K", ("Q4_K", "Q6_K", "Q5_K", "BF16")),
        "ud-iq1_s": _unsloth(("IQ1_S",) * 2 + ("IQ2_XXS",), ("IQ4_NL",), "Q5_K", "Q4_K"),
        "ud-iq3_xxs": _unsloth(("IQ3_XXS",), ("IQ4_NL",), "Q5_K", "Q4_K"),
        "ud-iq4_xs": _unsloth(("IQ3_S",) * 3 + ("IQ4_XS",), ("IQ4_NL",), "Q8_0", "Q6_K"),
        "ud-q4_k_xl": _unsloth(("Q4_K",), ("Q5_1",) * 9 + ("Q8_0",), "Q8_0", "Q8_0"),
    },
}
_OF_MODEL: dict[str, dict[str, Mix]] = {
    "qwen3.8-flash-next-coder": {
        "iq1_m": _gsq(("IQ3_XXS",), ("IQ4_NL", "Q2_0"), "Q8_0", "Q8_0", ("Q6_K", "Q8_0", "Q8_0", "BF16"))
    }
}
