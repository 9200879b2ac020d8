"""A forced trace decides which experts compute, and nothing else; a recording is what was chosen."""

import numpy as np
import pytest
import torch

from strata.engine.routing import RouteRecorder, TraceRouter, force_routes
from strata.experts.trace import Trace, TraceError
from strata.formats.checkpoint import open_checkpoint
from strata.models import DecodedWeights, Model, load_model
from strata.ops.router import route, shares_of
from strata.options import EMBEDDED_MODEL

TOKENS = [1, 5, 9, 400, 77, 3, 12, 900]


@pytest.fixture
def model() -> Model:
    return load_model(DecodedWeights(open_checkpoint(EMBEDDED_MODEL), cache_bytes=1 << 28))


def test_shares_are_those_of_the_router():
    logits = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
    for normalize in (True, False):
        experts, shares = route(logits, 4, normalize)
        assert torch.allclose(shares_of(logits, experts, normalize), shares, rtol=1e-6)


def test_a_recording_forced_back_gives_the_same_logits(model):
    expected = model.forward(TOKENS, model.new_state(), all_logits=True)
    recorder = RouteRecorder(model)
    state = model.new_state()
    model.forward(TOKENS[:5], state, all_logits=True)
    model.forward(TOKENS[5:], state, all_logits=True)
    trace = recorder.trace()
    assert (len(trace), trace.layers, trace.used, trace.experts) == (8, 8, 4, 32)
    force_routes(model, trace)
    forced = model.forward(TOKENS, model.new_state(), all_logits=True)
    assert torch.allclose(forced, expected, atol=1e-4)


def test_another_trace_gives_other_logits_and_is_what_is_counted(model):
    expected = model.forward(TOKENS, model.new_state(), all_logits=True)
    trace = Trace.generate(3, layers=8, experts=32, used=4)
    force_routes(model, trace)
    forced = model.forward(TOKENS, model.new_state(), all_logits=True)
    assert not torch.allclose(forced, expected, atol=1e-2)
    counts = model.expert_layers()[3].counts
    counts.settle()
    wanted = trace.counts(0, 3)[3] * 2 + trace.counts(0, 2)[3]  # 8 tokens: the trace twice, and two more
    before = counts.total.numpy() - wanted  # the router's own
    assert before.min() >= 0 and before.sum() == 8 * 4


def test_a_trace_starts_again_at_its_end():
    router = TraceRouter(np.array([[0, 1], [2, 3], [1, 3]], np.int16), normalize=True)
    logits = torch.zeros(2, 4)
    assert [router(logits)[0].tolist() for _ in range(2)] == [[[0, 1], [2, 3]], [[1, 3], [0, 1]]]


@pytest.mark.parametrize("layers, experts, used", [(7, 32, 4), (8, 16, 4), (8, 32, 2)])
def test_a_trace_of_another_model_is_refused(model, layers, experts, used):
    with pytest.raises(
        TraceError, match=f"the trace has {layers} layers of {experts} experts, {used} for a token"
    ):
        force_routes(model, Trace.generate(1, layers, experts, used))
