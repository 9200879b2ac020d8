"""The table of planes and its decoder against what the native packer writes."""

import numpy as np
import pytest

from strata.formats.quants import FORMATS
from strata.formats.quants.integer import INTEGER_FORMATS, integer_decode
from strata.formats.quants.planes import PLANES, QUANT_PLANES, decode_planes, plane_bytes, random_planes
from strata.native import matrix as native
from tests.helpers.quant_blocks import random_blocks


def test_every_format_is_there():
    assert set(PLANES) == native.formats() and set(QUANT_PLANES) == set(INTEGER_FORMATS)


@pytest.mark.parametrize("format", PLANES)
def test_planes_are_as_large_as_packed_ones(format):
    for num_out, num_in in ((16, 256), (37, 768), (640, 2560)):
        assert plane_bytes(format, num_out, num_in) == native.plane_bytes(format, num_out, num_in)


@pytest.mark.parametrize("format", INTEGER_FORMATS)
def test_packed_planes_decode_to_the_blocks(format):
    num_out, num_in = 21, 512 if FORMATS[format].block_size == 256 else 192
    blocks = random_blocks(format, num_out, num_in)
    planes = native.empty_planes(native.plane_bytes(format, num_out, num_in))
    native.pack(format, num_out, num_in, blocks, planes)
    got = decode_planes(format, num_out, num_in, planes)
    want = integer_decode(format, blocks, num_out, num_in)
    for part in ("codes", "scales", "subscales", "minima", "sub_minima"):
        one, other = getattr(got, part), getattr(want, part)
        assert (one is None) == (other is None), part
        if one is not None:
            np.testing.assert_array_equal(one, other, err_msg=part)


@pytest.mark.parametrize("format", QUANT_PLANES)
def test_made_up_planes_are_numbers(format):
    matrix = decode_planes(format, 20, 256, random_planes(format, 20, 256, seed=0))
    assert np.isfinite(matrix.scales).all() and np.ptp(matrix.codes) > 0
