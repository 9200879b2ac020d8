"""Sizes of models before they are downloaded, against the published ones."""

import math

import pytest

from strata.errors import StrataError
from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import find_mix, mixes_of, tensors_of

# GB: all files (the n-gram table among them), and experts alone; MODELS.md 4.6 and 7.1, FIELD.md A 1.6 and
# 2.1
PUBLISHED = {
    ("qwen3.8-flash-next", "q2_0"): (66.4, 34.0),
    ("qwen3.8-flash-next", "iq2_xs"): (68.0, 35.5),
    ("qwen3.8-flash-next", "iq3_xxs"): (75.8, 42.9),
    ("qwen3.8-flash-next", "iq3_s"): (83.6, 50.3),
    ("qwen3.8-flash-next", "ud-iq4_xs"): (93.7, 59.5),
    ("qwen3.8-flash-next", "ud-q4_k_xl"): (111, 77),
    ("qwen3.8-flash-next-coder", "iq1_m"): (58.4, 23.4),
    ("qwen3.6-35b-a3b", "iq4_xs"): (18.2, None),
}
# billions of weights, and of them used by a token; MODELS.md 1.1 (with the n-gram table), and the models'
# names
WEIGHTS = {
    "qwen3.8-flash-next": 176.94,
    "qwen3.6-35b-a3b": 34.7,
    "qwen3-next-80b-a3b": 79.7,
    "qwen3-30b-a3b": 30.5,
}


@pytest.mark.parametrize("name, quant", PUBLISHED)
def test_sizes_are_those_of_the_published_files(name, quant):
    tensors = tensors_of(GEOMETRIES[name], find_mix(GEOMETRIES[name], quant))
    total, experts = PUBLISHED[name, quant]
    assert sum(t.num_bytes for t in tensors.values()) / 1e9 == pytest.approx(total, rel=0.03)
    if experts:
        found = sum(t.num_bytes for t in tensors.values() if "_exps." in t.name) / 1e9
        assert found == pytest.approx(experts, rel=0.025)


@pytest.mark.parametrize("name, billions", WEIGHTS.items())
def test_weights_are_counted_as_published(name, billions):
    count = sum(math.prod(tensor.shape) for tensor in GEOMETRIES[name].tensors()) / 1e9
    assert count == pytest.approx(billions, rel=0.003)


def test_flash_next_has_the_tensors_of_its_files():
    names = [tensor.name for tensor in GEOMETRIES["qwen3.8-flash-next"].tensors()]
    assert len(names) == len(set(names)) == 1224  # MODELS.md 4.3


def test_the_ngram_hash_is_the_models_own():
    metadata = GEOMETRIES["qwen3.8-flash-next"].metadata()
    assert metadata["ple.head_vocab_sizes"][:4] == [20000003, 20000023, 20000033, 20000047]
    assert metadata["ple.head_offsets"][-1] == 300001275
    table = next(t for t in GEOMETRIES["qwen3.8-flash-next"].tensors() if t.role == "ngram_table")
    assert table.shape == (320001536, 160)


def test_every_mix_knows_every_role():
    for geometry in GEOMETRIES.values():
        for quant in mixes_of(geometry):
            for tensor in tensors_of(geometry, find_mix(geometry, quant)).values():
                assert tensor.num_bytes > 0


def test_an_unknown_quant_names_the_known():
    with pytest.raises(StrataError, match="q9_z: tiny comes in q2_0, iq2_xs"):
        find_mix(GEOMETRIES["tiny"], "q9_z")
