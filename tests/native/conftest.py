"""Every instruction set of this machine, one and several threads."""

import pytest

from strata.native import _core, num_threads, set_num_threads


@pytest.fixture(params=_core.isas())
def isa(request):
    before = _core.isa()
    _core.use_isa(request.param)
    yield request.param
    _core.use_isa(before)


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = num_threads()
    set_num_threads(request.param)
    yield request.param
    set_num_threads(before)
