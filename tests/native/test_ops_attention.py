"""Native attention against torch's, and a query's bits whatever else is computed with it."""

import pytest
import torch

from strata.native import ops
from strata.ops.attention import attend
from strata.ops.cached_attention import attend_cached

SPAN = 256  # attention.cpp: where keys are cut


def random(
    num_queries: int, length: int, heads: int = 6, kv_heads: int = 2, dim: int = 24, value_dim: int = 20
):
    generator = torch.Generator().manual_seed(num_queries * 1000 + length)
    q = torch.randn(num_queries, heads, dim, generator=generator)
    k = torch.randn(length, kv_heads, dim, generator=generator)
    v = torch.randn(length, kv_heads, value_dim, generator=generator)
    return q, k, v


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("num_queries", "length"), [(1, 1), (1, 9), (9, 9), (5, SPAN), (5, SPAN + 2), (300, 300), (70, 3 * SPAN)]
)
@pytest.mark.parametrize("window", [None, 1, 200, 300])
def test_agrees_with_torch(num_queries, length, window, isa, threads):
    q, k, v = random(num_queries, length)
    close(ops.attend(q, k, v, 0.3, window), attend(q, k, v, 0.3, window))


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (9, 3), (16, 1), (40, 1), (4, 4)])
@pytest.mark.parametrize(("dim", "value_dim"), [(8, 8), (64, 64), (3, 1), (72, 17), (192, 128)])
def test_head_counts_and_lengths(heads, kv_heads, dim, value_dim, isa):
    q, k, v = random(7, 40, heads, kv_heads, dim, value_dim)
    close(ops.attend(q, k, v, dim**-0.5), attend(q, k, v, dim**-0.5))


def test_a_mask_narrows_what_is_seen(isa, threads):
    length = 2 * SPAN + 50
    q, k, v = random(60, length)
    mask = torch.rand(60, length, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[:, SPAN : 2 * SPAN] = False  # a span of which nothing is seen
    mask[:, 3] = True
    close(ops.attend(q, k, v, 0.3, mask=mask), attend(q, k, v, 0.3, mask=mask))


@pytest.mark.parametrize("window", [None, 100])
def test_a_query_has_the_same_bits_in_any_piece_of_a_prompt(window, isa, threads):
    length = 2 * SPAN + 30
    q, k, v = random(length, length)
    whole = ops.attend(q, k, v, 0.3, window)
    for size in (1, 7, 100, SPAN, SPAN + 1):
        starts = range(0, length, size) if size > 1 else [0, 1, 17, SPAN - 1, SPAN, length - 1]
        for begin in starts:
            end = min(begin + size, length)
            piece = ops.attend(q[begin:end], k[:end], v[:end], 0.3, window)
            assert torch.equal(piece, whole[begin:end]), (begin, end)


def test_large_scores_do_not_overflow(isa):
    q, k, v = random(3, SPAN + 9)
    close(ops.attend(300 * q, k, v, 1.0), attend(300 * q, k, v, 1.0))


def test_keys_may_be_views_of_something_wider(isa, threads):
    q, k, v = random(4, 50)
    wide = torch.cat([k, v], -1)
    got = ops.attend(q, wide[..., : k.shape[2]], wide[..., k.shape[2] :], 0.3)
    assert torch.equal(got, ops.attend(q, k, v, 0.3))


def test_what_does_not_fit_is_refused():
    q, k, v = random(4, 9)
    with pytest.raises(ValueError, match="fewer positions"):
        ops.attend(q, k[:3], v[:3], 0.3)
    with pytest.raises(ValueError, match="cannot share"):
        ops.attend(q[:, :5], k, v, 0.3)
    with pytest.raises(ValueError, match=r"v has shape \[8, 2, 20\], expected \[9, 2, 20\]"):
        ops.attend(q, k, v[:8], 0.3)
    with pytest.raises(ValueError, match="mask has shape"):
        ops.attend(q, k, v, 0.3, mask=torch.ones(4, 8, dtype=torch.bool))


CACHED_OPTIONS = {
    "plain": {},
    "interleaved": {"interleaved": True, "window": 40},
    "normalized": {"q_norm": torch.rand(24), "k_norm": torch.rand(24), "epsilon": 1e-5},
    "gated": {"gate": torch.randn(70, 6, 40, generator=torch.Generator().manual_seed(3))[..., 20:]},
}


@pytest.mark.parametrize("options", CACHED_OPTIONS)
def test_one_step_is_its_parts(options, isa, threads):
    options = CACHED_OPTIONS[options]
    length, n = 50, 70
    q, k, v = random(n, n)
    cos, sin = torch.randn(2, n, 8, generator=torch.Generator().manual_seed(1))
    caches = [torch.ones(130, 2, 24), torch.ones(130, 2, 20)]
    native = [cache.clone() for cache in caches]
    want = attend_cached(q, k, v, cos, sin, *caches, length, 0.3, **options)
    got = ops.attend_cached(
        q.flatten(1), k.flatten(1), v.flatten(1), cos, sin, *native, length, 0.3, **options
    )
    close(got, want)
    close(native[0], caches[0])
    assert torch.equal(native[1], caches[1])  # rows outside untouched, values as they came
    rows = torch.cat([native[0][:length], native[0][length + n :]])
    assert torch.equal(rows, torch.ones_like(rows))

    by_token = [torch.ones(130, 2, 24), torch.ones(130, 2, 20)]
    gate = options.get("gate")
    for i in range(n):
        if gate is not None:
            options = options | {"gate": gate[i : i + 1]}
        part = (x[i : i + 1] for x in (q, k, v, cos, sin))
        alone = ops.attend_cached(*part, *by_token, length + i, 0.3, **options)
        assert torch.equal(alone[0], got[i]), i
    assert torch.equal(by_token[0], native[0])


def test_a_cache_without_room_is_refused():
    q, k, v = random(4, 4)
    cos, sin = torch.randn(2, 4, 8)
    keys, values = torch.ones(9, 2, 24), torch.ones(9, 2, 20)
    with pytest.raises(ValueError, match="no room"):
        ops.attend_cached(q, k, v, cos, sin, keys, values, 6, 0.3)
    with pytest.raises(ValueError, match="must be contiguous"):
        ops.attend_cached(q, k, v, cos, sin, torch.ones(9, 2, 30)[..., :24], values, 0, 0.3)
    with pytest.raises(ValueError, match=r"q must be \[n, heads, dim\]"):
        ops.attend_cached(q.flatten(1)[:, :-1], k, v, cos, sin, keys, values, 0, 0.3)
