"""`qwen4exp` against transformers and llama.cpp, its sparse selection, n-gram memory and draft layer."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.qwen4_exp import modeling_qwen4_exp as modeling

from strata.errors import ModelFileError, UnsupportedModelError
from strata.formats.checkpoint import Checkpoint
from strata.models import open_checkpoint
from tests.helpers.hf_models import TOLERANCE, assert_same_model, relative_error, save_hf
from tests.helpers.hybrid_models import (
    QWEN4,
    assert_agrees_everywhere,
    assert_rewinds,
    forward_in_pieces,
    prompt,
    randomize,
    reference_logits,
    tiny_hybrid,
)
from tests.helpers.models import reference_model

ORACLE = Path(__file__).parents[1] / "oracle"
TABLE = "per_layer_token_embd.weight"


@pytest.fixture(scope="module")
def reference():
    return tiny_hybrid("Qwen4ExpTextConfig", "Qwen4ExpForCausalLM", **QWEN4)


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_hf(reference, tmp_path_factory.mktemp("hf"))


@pytest.fixture(scope="module")
def model(folder: Path):
    return reference_model(folder)


def test_agrees_with_transformers(model, reference):
    """Relative 1e-4 at every position.

    No near-tie is in the way: the closest router decision on this prompt has a margin of 1.6e-4 in
    logits, the closest block decision one of 1.0e-4 in score, both some fifty times the rounding
    errors; of 176 selections 3 are exact ties, in which Strata takes transformers' blocks.
    """
    assert_agrees_everywhere(model, reference)


@torch.no_grad()
def test_decodes_as_transformers_with_its_cache(model, reference):
    tokens = prompt(72)
    state, cache = model.new_state(), None
    for begin, end in [(0, 66), *((step, step + 1) for step in range(66, 72))]:
        output = reference(input_ids=torch.tensor([tokens[begin:end]]), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        ours = model.forward(tokens[begin:end], state)
        assert relative_error(ours[-1], output.logits[0, -1]) < TOLERANCE, begin


def test_rewinds(model):
    assert_rewinds(model)


def test_state_says_what_it_takes(model):
    """float32 everywhere but for the token window; growing buffers may hold room for more."""
    state = model.new_state()
    model.forward(prompt(70), state)
    delta_net = 4 * (6 * 16 * 16 + 3 * (2 * 2 * 16 + 6 * 16))
    assert [layer.num_bytes() for layer in state.layers[:3]] == [delta_net] * 3
    keys_and_values, index = 2 * 70 * 2 * 16 * 4, (70 // 4 + 70 % 4) * 16 * 4
    assert keys_and_values + index <= state.layers[3].num_bytes() <= 4 * (keys_and_values + index)
    assert state.layers[4].num_bytes() == 8 * 2 + 4 * 9 * 4 * 32
    assert state.num_bytes() == sum(layer.num_bytes() for layer in state.layers)


def test_selection_cuts(reference, folder: Path, tmp_path: Path):
    """With a budget above the length logits differ from the first position that the selection cuts at."""
    config = (folder / "config.json").read_text()
    assert '"indexer_budget": 16' in config
    (tmp_path / "config.json").write_text(config.replace('"indexer_budget": 16', '"indexer_budget": 4096'))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    tokens = prompt(40)
    sparse, dense = (forward_in_pieces(reference_model(path), tokens, []) for path in (folder, tmp_path))
    assert relative_error(sparse[:19], dense[:19]) < 1e-5
    assert relative_error(sparse[19:], dense[19:]) > 1e-2


def test_without_ngram_memory(tmp_path: Path):
    reference = tiny_hybrid("Qwen4ExpTextConfig", "Qwen4ExpForCausalLM", **QWEN4 | {"ple_layer_ids": []})
    model = reference_model(save_hf(reference, tmp_path))
    tokens = prompt(40)
    assert (
        relative_error(forward_in_pieces(model, tokens, [7]), reference_logits(reference, tokens)) < TOLERANCE
    )


def test_ngram_table_is_never_decoded_whole(folder: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoint = open_checkpoint(folder)
    read, read_rows, num_rows = checkpoint.read, checkpoint.read_rows, []

    def guarded_read(name: str, index: int | None = None) -> torch.Tensor:
        assert name != TABLE
        return read(name, index)

    def counted_rows(name: str, rows: torch.Tensor) -> torch.Tensor:
        if name == TABLE:
            num_rows.append(len(rows))
        return read_rows(name, rows)

    monkeypatch.setattr(checkpoint, "read", guarded_read)
    monkeypatch.setattr(checkpoint, "read_rows", counted_rows)
    forward_in_pieces(reference_model(checkpoint), prompt(10), [9])
    assert num_rows == [9 * 4, 1 * 4]  # 2-grams and 3-grams, two heads each


def test_agrees_with_llama_cpp():
    """llama.cpp's own file and logits: layout of every tensor, value conventions, quantised types.

    Tolerance 2 % relative RMS: llama.cpp's activations have 8 bits (1.5 % measured, MODELS.md section 5).
    """
    model = reference_model(ORACLE / "qwen4exp-IQ1_M.gguf")
    io = load_file(ORACLE / "qwen4exp-IQ1_M.safetensors")
    logits = forward_in_pieces(model, io["input_ids"].tolist(), [20])
    error = (logits - io["logits"]).square().mean().sqrt() / logits.std()
    assert error < 0.02
    assert torch.equal(logits.argmax(-1), io["logits"].argmax(-1))


class Edited(Checkpoint):
    """A checkpoint with other metadata, or another name for one tensor."""

    def __init__(
        self,
        inner: Checkpoint,
        metadata: dict[str, Any] | None = None,
        renamed: tuple[str, str] | None = None,
    ):
        self.inner, self.path, self.architecture = inner, inner.path, inner.architecture
        self.metadata = {
            **inner.metadata,
            **{f"qwen4exp.{key}": value for key, value in (metadata or {}).items()},
        }
        self.metadata = {key: value for key, value in self.metadata.items() if value is not None}
        old, self.new = renamed or ("", "")
        self.old = old
        self.tensors = {self.new if name == old else name: info for name, info in inner.tensors.items()}

    def read(self, name: str, index: int | None = None) -> torch.Tensor:
        return self.inner.read(name, index)

    def read_rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return self.inner.read_rows(self.old if name == self.new else name, rows)


def test_earlier_name_of_the_ngram_table(model, folder: Path):
    renamed = Edited(open_checkpoint(folder), renamed=(TABLE, "ple_ngram_embd.weight"))
    assert_same_model(reference_model(renamed), model)


def test_expert_count_from_the_router(model, folder: Path):
    assert_same_model(reference_model(Edited(open_checkpoint(folder), {"expert_count": None})), model)


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"ple.layers": [1, 2]}, UnsupportedModelError, "qwen4exp.ple.layers names 2 layers"),
        ({"ple.layers": [4]}, ModelFileError, "names layer 4 of 4"),
        ({"ple.ngram_size": 1}, ModelFileError, "ple.ngram_size must be 2 or more"),
        ({"ple.eos_token_id": 96}, ModelFileError, "96 is outside the vocabulary of 96"),
        ({"ple.layer_multipliers": [1, 2**61, 3]}, ModelFileError, "exceed 63 bits"),
        ({"ple.layer_multipliers": [1, 2]}, ModelFileError, "must hold 3 integers, it holds 2"),
        ({"ple.head_offsets": [0, 101, 10_000, 0]}, ModelFileError, "reach row 101"),
        ({"attention.compress_ratios": [0, 0, 0, 0]}, UnsupportedModelError, "gives 0 for attention layer 3"),
        ({"attention.compress_ratios": [4]}, ModelFileError, "has 1 entries for 4 layers"),
        ({"attention.indexer.top_k": 18}, UnsupportedModelError, "18 is no multiple of the block size 4"),
        ({"attention.indexer.key_length": 4}, ModelFileError, "4 is less than rope.dimension_count 8"),
        ({"hyper_connection.count": 2}, ModelFileError, r"\[128, 24\], the metadata asks for \[64, 24\]"),
        ({"expert_gating_func": 2}, UnsupportedModelError, "expert_gating_func is 2"),
    ],
)
def test_refuses_keys_it_would_not_obey(folder: Path, metadata: dict, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        reference_model(Edited(open_checkpoint(folder), metadata))


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("output_gate_type", "null", UnsupportedModelError),
        ("indexer_kv_heads", "2", UnsupportedModelError),
        ("linear_num_key_heads", "4", ModelFileError),
        ("hidden_act", '"gelu"', UnsupportedModelError),
        ("ple_layer_ids", "[1, 2]", UnsupportedModelError),
        ("ple_layer_ids", "2", ModelFileError),
        ("ple_layer_ids", '["2"]', ModelFileError),
        ("num_hidden_layers", "2147483647", ModelFileError),
    ],
)
def test_refuses_fields_it_would_not_obey(folder: Path, tmp_path: Path, field: str, value: str, error):
    config = json.loads((folder / "config.json").read_text()) | {field: json.loads(value)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    with pytest.raises(error, match=field):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("shape", [(2, 32), (32,), (0, 32)])
def test_a_shared_gate_of_another_shape_is_named(folder: Path, tmp_path: Path, shape: tuple[int, ...]):
    name = "model.layers.0.mlp.shared_expert_gate.weight"
    tensors = load_file(folder / "model.safetensors") | {name: torch.ones(shape)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").symlink_to(folder / "config.json")
    with pytest.raises(ModelFileError, match=rf"{name} has shape .*, not \[1, width\]"):
        open_checkpoint(tmp_path)


class ReferenceDraft(torch.nn.Module):
    """The MTP layer (MODELS.md section 2.9) from the modules of transformers, which leaves `mtp.*` aside."""

    def __init__(self, config):
        super().__init__()
        config = copy.deepcopy(config)
        config.layer_types, config.num_hidden_layers, config.ple_layer_ids = ["indexed_attention"], 1, []
        config._attn_implementation = "eager"
        self.width, self.streams, epsilon = config.hidden_size, config.hc_count, config.rms_norm_eps
        self.pre_fc_norm_embedding = modeling.Qwen4ExpTextRMSNorm(self.width, eps=epsilon)
        self.pre_fc_norm_hidden = modeling.Qwen4ExpTextRMSNorm(self.streams * self.width, eps=epsilon)
        self.fc_embedding = torch.nn.Linear(self.width, self.width, bias=False)
        self.fc_hidden = torch.nn.Linear(self.width, self.width, bias=False)
        self.layers = torch.nn.ModuleList([modeling.Qwen4ExpTextDecoderLayer(config, 0)])
        self.hyper_connection_mixer = modeling.Qwen4ExpTextGatedResidual(config, use_combine=False)
        self.rotary_emb = modeling.Qwen4ExpTextRotaryEmbedding(config)

    def forward(self, embedding: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`[n, width]`, `[n, streams * width]` -> the layer's residual, and the output matrix's input."""
        e = self.fc_embedding(self.pre_fc_norm_embedding(embedding))
        h = self.fc_hidden(self.pre_fc_norm_hidden(residual).unflatten(-1, (self.streams, self.width)))
        x = (h + e[:, None]).flatten(1)[None]
        count = x.shape[1]
        positions = self.rotary_emb(x, torch.arange(count)[None, None].expand(3, 1, count))
        mask = torch.full((count, count), torch.finfo(x.dtype).min).triu(1)[None, None]
        y = self.layers[0](x, positions, attention_mask=mask, conv_mask=None, cache=None)
        return y[0], self.hyper_connection_mixer(y)[0]


@torch.no_grad()
def test_draft(reference, folder: Path, tmp_path: Path):
    """One pass over a prompt in pieces, and a second draft chained to the first."""
    mtp = ReferenceDraft(reference.config).eval()
    randomize(mtp, seed=4)
    save_file(
        {f"mtp.{name}": tensor.contiguous() for name, tensor in mtp.state_dict().items()},
        tmp_path / "mtp.safetensors",
    )
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).symlink_to(folder / file)
    model = reference_model(tmp_path)
    assert model.config.block_count == 4

    tokens = torch.tensor(prompt(40))
    residual = model.residual(tokens.tolist(), model.new_state())
    draft_state = model.draft.new_state()
    pieces = [(0, 11), (11, 12), (12, 39)]
    drafts = [model.draft(residual[a:b], tokens[a + 1 : b + 1], draft_state) for a, b in pieces]
    ours, logits = (torch.cat(parts) for parts in zip(*drafts, strict=True))
    embed = reference.model.embed_tokens
    expected, mixed = mtp(embed(tokens[1:]), residual[:-1].flatten(1))
    assert relative_error(ours.flatten(1), expected) < TOLERANCE
    assert relative_error(logits, reference.lm_head(mixed)) < TOLERANCE

    chained, chained_logits = model.draft(ours[-1:], tokens[:1], draft_state)
    inputs = torch.cat([residual[:-1].flatten(1), expected[-1:]])
    expected, mixed = mtp(embed(torch.cat([tokens[1:], tokens[:1]])), inputs)
    assert relative_error(chained.flatten(1), expected[-1:]) < TOLERANCE
    assert relative_error(chained_logits, reference.lm_head(mixed[-1:])) < TOLERANCE
