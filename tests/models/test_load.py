"""What loading a model says about files that are no model, or not a whole one."""

import numpy as np
import pytest

from strata.errors import ModelFileError, UnsupportedModelError
from strata.models import open_checkpoint
from tests.helpers.gguf_files import write_gguf
from tests.helpers.models import reference_model


def test_unknown_architecture_is_refused_by_name(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"token_embd.weight": np.ones((4, 32))}, architecture="mamba7")
    with pytest.raises(
        UnsupportedModelError, match=r"m\.gguf: architecture 'mamba7' is not supported.*qwen4exp"
    ):
        reference_model(open_checkpoint(path), 0)


def test_draft_layer_alone_is_named_as_such(tmp_path):
    tensors = {"blk.8.nextn.enorm.weight": np.ones(32)}
    path = write_gguf(tmp_path / "mtp.gguf", tensors, architecture="qwen4exp")
    with pytest.raises(ModelFileError, match=r"mtp\.gguf: holds a draft \(MTP\) layer alone"):
        reference_model(open_checkpoint(path), 0)


def test_missing_embedding_is_named(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"output.weight": np.ones((4, 32))}, architecture="qwen3")
    with pytest.raises(ModelFileError, match=r"m\.gguf: tensor token_embd\.weight is missing"):
        reference_model(open_checkpoint(path), 0)
