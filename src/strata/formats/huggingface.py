"""A folder with `config.json` and safetensors, seen through GGUF's keys and tensor names.

What each model type's fields and tensors are called is in the tables (`hf_dense`, `hf_hybrid`): a
function of the configuration and the tensors that returns the GGUF architecture, its metadata, and a
recipe per GGUF tensor.
"""

import json
import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from strata.errors import ModelFileError, UnsupportedModelError
from strata.formats.checkpoint import Checkpoint, TensorInfo
from strata.formats.hf_recipes import Reader, Recipe

# GGUF architecture, metadata, and a recipe per tensor
Translation = tuple[str, dict[str, Any], dict[str, Recipe]]
Table = Callable[["HFConfig", Reader], Translation]

# model_type of config.json (of its text_config, where there is one) -> module with its entry in `TABLES`
MODEL_TYPES = {
    "llama": "hf_dense",
    "mistral": "hf_dense",
    "mixtral": "hf_dense",
    "qwen3": "hf_dense",
    "qwen3_moe": "hf_dense",
    "qwen3_next": "hf_hybrid",
    "qwen3_5": "hf_hybrid",
    "qwen3_5_text": "hf_hybrid",
    "qwen3_5_moe": "hf_hybrid",
    "qwen3_5_moe_text": "hf_hybrid",
    "qwen4_exp": "hf_hybrid",
    "qwen4_exp_text": "hf_hybrid",
}


class HFConfig(dict[str, Any]):
    """The fields of `config.json`; a missing or odd one is named.

    Where there is a `text_config`, its fields win over the outer ones of the same name.
    """

    def __init__(self, path: Path, fields: dict[str, Any]):
        text = fields.get("text_config")
        super().__init__({**fields, **text} if isinstance(text, dict) else fields)
        self.path = path

    def __missing__(self, field: str) -> Any:
        raise ModelFileError(f"{self.path}: field {field} is missing")

    def value(self, field: str, default: Any = None) -> Any:
        """The field, or `default` where it is absent or null."""
        value = self.get(field)
        return default if value is None else value

    def count(self, field: str, default: int | None = None) -> int:
        """A positive integer field; without a default it must be there."""
        value = self[field] if default is None else self.value(field, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
            raise ModelFileError(f"{self.path}: field {field} must be a positive count, not {value!r}")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        """A finite number; without a default it must be there."""
        value = self[field] if default is None else self.value(field, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ModelFileError(f"{self.path}: field {field} must be a number, not {value!r}")
        return float(value)

    def positive(self, field: str, default: float | None = None) -> float:
        """A finite number above 0; without a default it must be there."""
        value = self.number(field, default)
        if value <= 0:
            raise ModelFileError(f"{self.path}: field {field} must be positive, not {value}")
        return value

    def expect(self, field: str, expected: Any) -> None:
        """Refuse a model whose `field` says something other than the one thing that is implemented."""
        value = self.value(field, expected)
        if value != expected:
            raise UnsupportedModelError(
                f"{self.path}: {field} is {value!r}; for {self['model_type']} Strata has only {expected!r}"
            )


class SafetensorsCheckpoint(Checkpoint):
    """A model in Hugging Face's layout: one safetensors file, or several with their index.

    Elements may be float32, float16 or bfloat16, and F8_E4M3 in matrices with a scale for each 128 x 128
    block. Float32 tensors that are taken as they are come back as views of the mapped file and must not be
    written to.

    Args:
        path: the folder.

    Raises:
        ModelFileError: a file, field or tensor is missing or damaged.
        UnsupportedModelError: an unknown model type or element type, or tensors that have no place in it.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        config = HFConfig(self.path / "config.json", _read_json(self.path / "config.json"))
        table = _table(config)
        reader = _open_reader(self.path)
        self.architecture, metadata, self._recipes = table(config, reader)
        reader.ignore(*(name for name in reader.unused() if name.endswith(".rotary_emb.inv_freq")))
        if unused := reader.unused():
            raise UnsupportedModelError(
                f"{self.path}: {len(unused)} tensors have no place in model type {config['model_type']}: "
                f"{', '.join(unused[:5])}{', ...' if len(unused) > 5 else ''}"
            )
        self.metadata = {
            "general.architecture": self.architecture,
            "general.name": self.path.resolve().name,
            **metadata,
        }
        self.tensors = {
            name: TensorInfo(name, recipe.shape, recipe.format, recipe.num_bytes)
            for name, recipe in self._recipes.items()
        }

    def read(self, name: str, index: int | None = None) -> torch.Tensor:
        recipe = self._recipes[name]
        return recipe.read() if index is None else recipe.read_slice(index)

    def read_fp8(self, name: str, index: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return self._recipes[name].read_fp8(index)

    def read_rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return self._recipes[name].read_rows(rows)


def _table(config: HFConfig) -> Table:
    model_type = config["model_type"]
    module = MODEL_TYPES.get(model_type) if isinstance(model_type, str) else None
    if module is None:
        raise UnsupportedModelError(
            f"{config.path}: model_type {model_type!r} is not supported; "
            f"Strata knows {', '.join(sorted(MODEL_TYPES))}"
        )
    _check_quantization(config, config.value("quantization_config"))
    return import_module(f"strata.formats.{module}").TABLES[model_type]


def _check_quantization(config: HFConfig, quantization: Any) -> None:
    """Of the ways to quantise there is one that Strata reads: fp8 with a scale for each 128 x 128 block."""
    if not quantization:
        return
    fields = quantization if isinstance(quantization, dict) else {"quant_method": quantization}
    method, block = fields.get("quant_method"), fields.get("weight_block_size")
    if method != "fp8" or block != [128, 128] or fields.get("fmt", "e4m3") != "e4m3":
        of_blocks = "" if method != "fp8" else f" in blocks of {block}"
        raise UnsupportedModelError(
            f"{config.path}: the weights are quantised with {method!r}{of_blocks}; Strata reads float32, "
            "float16, bfloat16 and fp8 (e4m3, blocks of [128, 128]) safetensors, and quantised models as GGUF"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ModelFileError(f"{path}: holds no JSON object")
    return fields


def _open_reader(folder: Path) -> Reader:
    """Open the files that the index names.

    Without an index these are `model.safetensors`, with `mtp.safetensors` where there is one; what else
    lies beside them (adapters, activations) is not the model. Without `model.safetensors`, all are taken.
    """
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise ModelFileError(f"{folder}: holds no .safetensors file")
        if folder / "model.safetensors" in paths:
            paths = [path for path in paths if path.name in ("model.safetensors", "mtp.safetensors")]
        return Reader(folder, paths)
    files = _read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise ModelFileError(f"{index}: weight_map must map each tensor to its file")
    names = sorted(set(files.values()))
    # An index is as untrusted as any other file of the checkpoint: it names files of its own folder only.
    if outside := [name for name in names if Path(name).name != name]:
        raise ModelFileError(f"{index}: {outside[0]!r} is not the name of a file in this folder")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise ModelFileError(
            f"{folder}: {len(missing)} of {len(names)} safetensors files are missing: "
            f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}"
        )
    return Reader(folder, [folder / name for name in names], files)
