"""`qwen35` and `qwen35moe` against transformers, from safetensors and from GGUF, with their draft layer."""

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

from tests.helpers.hf_models import TOLERANCE, assert_agrees, assert_same_model, relative_error, save_hf
from tests.helpers.hybrid_models import (
    EXPERTS,
    assert_agrees_everywhere,
    assert_rewinds,
    prompt,
    randomize,
    save_hybrid_gguf,
    tiny_hybrid,
)
from tests.helpers.models import reference_model

MODELS = {
    "dense": ("qwen35", "Qwen3_5", {}),
    "dense tied": ("qwen35", "Qwen3_5", {"tie_word_embeddings": True, "linear_num_value_heads": 2}),
    "experts": ("qwen35moe", "Qwen3_5Moe", EXPERTS),
}


@pytest.mark.parametrize("case", MODELS)
def test_agrees_with_transformers(case: str, tmp_path: Path):
    architecture, name, fields = MODELS[case]
    reference = tiny_hybrid(f"{name}TextConfig", f"{name}ForCausalLM", **fields)
    model = reference_model(save_hf(reference, tmp_path / "hf"))
    assert_agrees_everywhere(model, reference)
    from_gguf = save_hybrid_gguf(reference, tmp_path / "model.gguf", architecture)
    assert_same_model(reference_model(from_gguf), model)


@pytest.fixture(scope="module")
def reference():
    return tiny_hybrid("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", seed=3, **EXPERTS)


def test_decodes_as_transformers_with_its_cache_and_rewinds(reference, tmp_path: Path):
    model = reference_model(save_hf(reference, tmp_path))
    assert_agrees(model, reference, length=3)
    assert_rewinds(model)


def test_text_model_inside_a_multimodal_checkpoint(reference, tmp_path: Path):
    """As released: names one level deeper, a vision tower, the text's fields in `text_config`."""
    plain = save_hf(reference, tmp_path / "plain")
    nested = tmp_path / "nested"
    nested.mkdir()
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(plain / "model.safetensors").items()
    }
    save_file(
        tensors | {"model.visual.patch_embed.proj.weight": torch.zeros(3, 3)}, nested / "model.safetensors"
    )
    config = (plain / "config.json").read_text()
    (nested / "config.json").write_text(f'{{"model_type": "qwen3_5_moe", "text_config": {config}}}')
    models = [reference_model(folder) for folder in (plain, nested)]
    assert_same_model(*models)


class ReferenceDraft(torch.nn.Module):
    """The MTP layer from transformers' modules; transformers itself leaves `mtp.*` aside.

    Equations: MODELS.md section 1.4 and llama.cpp's `qwen35moe` draft graph.
    """

    def __init__(self, config):
        super().__init__()
        config = copy.deepcopy(config)
        config.layer_types, config._attn_implementation = ["full_attention"], "eager"
        width, epsilon = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding = modeling.Qwen3_5MoeRMSNorm(width, eps=epsilon)
        self.pre_fc_norm_hidden = modeling.Qwen3_5MoeRMSNorm(width, eps=epsilon)
        self.fc = torch.nn.Linear(2 * width, width, bias=False)
        self.layers = torch.nn.ModuleList([modeling.Qwen3_5MoeDecoderLayer(config, 0)])
        self.norm = modeling.Qwen3_5MoeRMSNorm(width, eps=epsilon)
        self.rotary_emb = modeling.Qwen3_5MoeTextRotaryEmbedding(config)

    def forward(self, embedding: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], -1))[
            None
        ]
        count = x.shape[1]
        positions = torch.arange(count)[None, None].expand(3, 1, count)
        mask = torch.full((count, count), torch.finfo(x.dtype).min).triu(1)[None, None]
        y = self.layers[0](x, position_embeddings=self.rotary_emb(x, positions), attention_mask=mask)
        return self.norm(y[0] if isinstance(y, tuple) else y)[0]


@torch.no_grad()
def test_draft(reference, tmp_path: Path):
    mtp = ReferenceDraft(reference.config).eval()
    randomize(mtp, seed=4)
    folder = save_hf(reference, tmp_path)
    tensors = {f"mtp.{name}": tensor.contiguous() for name, tensor in mtp.state_dict().items()}
    save_file(tensors, folder / "mtp.safetensors")
    tokens = torch.tensor(prompt(40))
    hidden = reference.model(input_ids=tokens[None]).last_hidden_state[0]
    expected = mtp(reference.model.embed_tokens(tokens[1:]), hidden[:-1])

    model = reference_model(folder)
    assert model.config.block_count == 4
    state = model.new_state()
    ours = model.output_norm(model.hidden(tokens.tolist(), state))
    assert relative_error(ours, hidden) < TOLERANCE
    draft_state = model.draft.new_state()
    pieces = [(0, 11), (11, 12), (12, 39)]
    drafts = [model.draft(ours[a:b], tokens[a + 1 : b + 1], draft_state) for a, b in pieces]
    assert relative_error(torch.cat([hidden for hidden, _ in drafts]), expected) < TOLERANCE
    logits = torch.cat([logits for _, logits in drafts])
    assert relative_error(logits, reference.lm_head(expected)) < TOLERANCE
