"""The planner's bytes must be those that the loader takes."""

import pytest

from strata.errors import ModelFileError
from strata.formats.checkpoint import open_checkpoint
from strata.formats.description import ModelDescription
from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import find_mix
from strata.formats.quants.planes import plane_bytes
from strata.formats.synthetic import SyntheticCheckpoint
from strata.models import load_model
from strata.options import EMBEDDED_MODEL

_core = pytest.importorskip("strata.native._core")


@pytest.mark.parametrize("shape", [(640, 2560), (5, 256), (33, 512), (16, 10240)])
def test_planes_take_what_the_kernels_say(shape):
    assert {f: plane_bytes(f, *shape) for f in _core.formats()} == {
        f: _core.plane_bytes(f, *shape) for f in _core.formats()
    }


@pytest.mark.parametrize("quant", [None, "q2_0", "iq3_xxs", "ud-q4_k_xl"])
def test_weights_take_what_the_loader_takes(quant):
    from strata.layers.planes import PlaneWeights

    geometry = GEOMETRIES["tiny"]
    checkpoint = (
        SyntheticCheckpoint(geometry, find_mix(geometry, quant)) if quant else open_checkpoint(EMBEDDED_MODEL)
    )
    weights = PlaneWeights(checkpoint)
    state = load_model(weights).new_state()
    described = ModelDescription.of_checkpoint(checkpoint)
    assert described.all_expert_bytes == weights.expert_bytes()
    assert described.dense_bytes == pytest.approx(weights.matrix_bytes(), rel=0.02)  # and vectors
    assert described.state_bytes == pytest.approx(state.num_bytes(), abs=256)
    if quant:
        assert ModelDescription.of_release(geometry, quant).dense_bytes == described.dense_bytes


def test_flash_next_by_hand():
    """MODELS.md 2.10 and 7."""
    described = ModelDescription.of_release(GEOMETRIES["qwen3.8-flash-next"], "q2_0")
    assert described.kv_values * 2 == 24576 and described.index_values * 2 == 768
    assert described.state_bytes == 113_246_208 + 4_423_680 + 368_640
    assert set(described.expert_bytes) == {1_382_400}
    assert described.dense_bytes == pytest.approx(3.37e9, rel=0.03)
    assert described.attended == 2051 and described.ngram_rows == 16
    dense = described.dense_weights - 635.7e6  # without the output matrix
    assert dense == pytest.approx(3.676e9, rel=0.001)
    assert described.experts_used * 48 * described.expert_weights == pytest.approx(2.359e9, rel=0.001)


def test_a_key_that_is_no_count_is_named():
    geometry = GEOMETRIES["tiny"]
    checkpoint = SyntheticCheckpoint(geometry, find_mix(geometry, "q2_0"))
    checkpoint.metadata["qwen4exp.block_count"] = "four"
    with pytest.raises(ModelFileError, match="block_count is no count"):
        ModelDescription.of_checkpoint(checkpoint)
