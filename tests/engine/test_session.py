"""Whatever a session reuses, its logits are those of a session that starts from nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.engine import session as session_module
from strata.engine.session import Session, Sync, common_prefix
from tests.engine.fakes import HashModel

CHUNK = 8
PLENTY = 1 << 20


@pytest.fixture(autouse=True, scope="module")
def small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_module, "PREFILL_CHUNK", CHUNK)
        yield


def read(session: Session) -> torch.Tensor:
    while (logits := session.prefill()) is None:
        pass
    return logits


def fresh(tokens: list[int], recurrent: bool) -> torch.Tensor:
    session = Session(HashModel(recurrent))
    session.sync(tokens)
    return read(session)


tokens_of = st.lists(st.integers(0, 2), max_size=12).map(lambda tail: [1] * 20 + tail)
# A step takes up a prompt that shares `keep` tokens with the timeline, then writes `answer`.
steps_of = st.lists(
    st.tuples(
        st.integers(0, 60),
        tokens_of | st.lists(st.integers(0, 2), min_size=1, max_size=40),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(steps=steps_of, recurrent=st.booleans(), room=st.sampled_from([0, 8, 24, PLENTY]))
def test_reuse_changes_no_logits(steps, recurrent, room) -> None:
    session = Session(HashModel(recurrent), room)
    for keep, tail, num_answer in steps:
        prompt = session.tokens[:keep] + tail
        planned = session.plan(prompt)
        assert session.sync(prompt) == planned
        assert session.tokens == prompt[: planned.reused]
        assert planned.reused < len(prompt)  # the last token is always read
        assert torch.equal(read(session), fresh(prompt, recurrent))
        for i in range(num_answer):
            logits = session.decode(i)
        if num_answer:
            assert torch.equal(logits, fresh([*prompt, *range(num_answer)], recurrent))
        assert session.tokens == [*prompt, *range(num_answer)]


@settings(max_examples=100, deadline=None)
@given(shared=st.integers(1, 50), first=st.integers(1, 30), second=st.integers(1, 30))
def test_a_checkpoint_resumes_through_the_same_chunks(shared, first, second) -> None:
    model = HashModel(recurrent=True)
    session = Session(model, PLENTY)
    session.sync([1] * shared + [2] * first)
    read(session)
    model.calls.clear()
    prompt = [1] * shared + [3] * second
    sync = session.sync(prompt)
    read(session)
    assert sync.reused == min(shared, len(prompt) - 1) // CHUNK * CHUNK
    alone = HashModel(recurrent=True)
    other = Session(alone)
    other.sync(prompt)
    read(other)
    assert model.calls == [call for call in alone.calls if call[0] >= sync.reused]


def test_the_same_prompt_again() -> None:
    for recurrent, sync in ((False, Sync(19, "cut")), (True, Sync(16, "checkpoint"))):
        session = Session(HashModel(recurrent), PLENTY)
        session.sync([5] * 20)
        read(session)
        assert session.sync([5] * 20) == sync


def test_an_answer_is_part_of_the_timeline() -> None:
    session = Session(HashModel(recurrent=True), PLENTY)
    session.sync([5] * 10)
    read(session)
    for token in (1, 2, 3):
        session.decode(token)
    assert session.sync([5] * 10 + [1, 2, 3, 9]) == Sync(13, "live")


def test_the_last_line_of_a_prompt_changes() -> None:
    """CASES 116: a different last line (a date) costs the rest after the last checkpoint, not everything."""
    session = Session(HashModel(recurrent=True), PLENTY)
    session.sync([5] * 30 + [1])
    read(session)
    assert session.sync([5] * 30 + [2]) == Sync(24, "checkpoint")


def test_checkpoints_stay_within_their_bytes_and_spread_out() -> None:
    session = Session(HashModel(recurrent=True), 3 * 8)  # a copy of the fake's state has 8 bytes
    session.sync([5] * 100)
    read(session)
    positions = [c.position for c in session._checkpoints]
    assert len(positions) == 3
    assert positions[-1] == 96  # the deepest is the likeliest to serve
    assert positions[0] <= 48  # and the head of the prompt is not forgotten


def test_no_room_for_checkpoints_means_none() -> None:
    """CASES 122: size 0 is off."""
    session = Session(HashModel(recurrent=True), 0)
    session.sync([5] * 100)
    read(session)
    assert session.sync([5] * 90 + [1]) == Sync(0, "fresh")


def test_reset_forgets() -> None:
    session = Session(HashModel(recurrent=True), PLENTY)
    session.sync([5] * 20)
    read(session)
    session.reset()
    assert session.sync([5] * 20) == Sync(0, "fresh")
    assert torch.equal(read(session), fresh([5] * 20, True))


def test_common_prefix() -> None:
    assert [common_prefix([1, 2, 3], b) for b in ([], [1], [1, 2, 3, 4], [1, 9, 3])] == [0, 1, 3, 1]
