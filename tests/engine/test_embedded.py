"""The embedded model, which has every kind of state, under the session and behind the socket."""

import asyncio

import numpy as np
import pytest
import torch

from strata.engine import session as session_module
from strata.engine.client import EngineClient
from strata.engine.messages import EngineConfig, Finished, Generate, SamplingParams, Tokens
from strata.engine.session import Session, Sync
from strata.models import Model, open_checkpoint
from strata.options import EMBEDDED_MODEL
from tests.helpers.models import reference_model

PROMPT = [(i * 37) % 7000 + 300 for i in range(100)]
CHANGED = [*PROMPT[:90], 301, 302]


@pytest.fixture(scope="module")
def model() -> Model:
    return reference_model(open_checkpoint(EMBEDDED_MODEL), 1 << 30)


def read(session: Session) -> torch.Tensor:
    while (logits := session.prefill()) is None:
        pass
    return logits.clone()


@pytest.mark.slow
def test_a_checkpoint_gives_the_bits_of_a_fresh_run(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        session_module, "PREFILL_CHUNK", 64
    )  # a multiple of the delta net's own tile, as 256 is
    used, fresh = Session(model, 1 << 20), Session(model)
    used.sync(PROMPT)
    read(used)
    used.decode(7)
    assert used.sync(CHANGED) == Sync(64, "checkpoint")
    fresh.sync(CHANGED)
    assert torch.equal(read(used), read(fresh))


@pytest.mark.slow
def test_greedy_tokens_through_the_socket_are_the_models(model: Model) -> None:
    session = Session(model)
    session.sync(PROMPT[:20])
    expected = [int(read(session).argmax())]
    while len(expected) < 4:
        expected.append(int(session.decode(expected[-1]).argmax()))

    async def go() -> None:
        client = EngineClient(EngineConfig(str(EMBEDDED_MODEL), lanes=1, context=24))
        info = await client.start()
        assert (info.architecture, info.vocab_size, info.context_length) == ("qwen4exp", 8192, 24)
        memory = {part.purpose: part.bytes for part in info.memory}
        assert set(memory) == {"dense weights", "experts", "token embedding", "n-gram table"}
        assert memory["token embedding"] + memory["n-gram table"] < EMBEDDED_MODEL.stat().st_size
        sampling = SamplingParams(temperature=0, logprobs=1)
        for cached in (0, 0):  # one prompt shorter than a chunk leaves no checkpoint to return to
            events = [e async for e in client.generate(Generate("a", PROMPT[:20], sampling))]
            tokens = [token for event in events if isinstance(event, Tokens) for token in event.tokens]
            assert [token.id for token in tokens] == expected
            assert all(token.top == [(token.id, token.logprob)] for token in tokens)
            end = events[-1]
            assert isinstance(end, Finished)
            assert (end.reason, end.cached_tokens) == ("length", cached)  # 20 + 4 fill the context
        layout, use = info.experts, await client.count_experts()
        assert layout is not None and layout.tier == "RAM"
        total = np.frombuffer(use.total, "<i8").reshape(len(layout.layers), layout.experts)
        # the last token is not read, and the last layer needs the prompt's last token only
        assert (total[:-1].sum(1) == 2 * (20 + 3) * layout.experts_used).all()
        assert total[-1].sum() == 2 * (1 + 3) * layout.experts_used
        assert np.frombuffer(use.recent, "<f4").sum() == pytest.approx(total.sum(), rel=0.05)
        await client.stop()

    asyncio.run(go())
