"""From logits to tokens on the card: the tokens that `engine/sampling.py` would choose, without a sort.

Four kernels, whatever the settings. The first adds bias and penalties, and finds each tile's largest logit.
Rows that only draw: the second adds noise in float32 and finds each tile's largest sum, the third does so
in float64 where a tile can win. Rows with top-k, top-p or min-p: the second counts logits in bins, the third
collects those of the bins that can matter. The fourth chooses: among the tiles' largest, or of the
collection, where it finds the lowest logits that top-k and top-p keep by halving the range they can lie in.

Probabilities are added up as integers, in units of 2**-44: in any order, their sum is the same.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.sampling_choice import choose_kernel
from strata.ops.triton.sampling_tiles import adjust_kernel, collect_kernel, spread_kernel

BINS = 4096
TILE = 2048
FEW, MANY = 256, 2048  # of the collection at once, as it has few or many
DRAWN = 512  # of many, to which noise is added at once: float64 is dear
PROMPT = 1 << 32  # what a token of the prompt adds to the history; one of the answer adds 1


class Lanes(NamedTuple):
    """How each lane samples; kernels take it whole.

    Attributes:
        numbers: float64 `[lanes, 6]`, see `settings`.
        whole: int64 `[lanes, 3]`: seed; top-k; 1 if the lane has a bias, else 0.
        history: int64 `[lanes, vocab]`: how often each token is in the answer, plus 2**32 times how often it
            is in the prompt (`count_tokens`).
        bias: float64 `[lanes, vocab]`.
    """

    numbers: torch.Tensor
    whole: torch.Tensor
    history: torch.Tensor
    bias: torch.Tensor

    @classmethod
    def new(cls, lanes: int, vocab: int, device: torch.device | str) -> "Lanes":
        """Lanes without penalties, bias or history; temperature 0."""
        numbers = torch.tensor(settings(temperature=0), dtype=torch.float64, device=device)
        whole = torch.zeros(lanes, 3, dtype=torch.int64, device=device)
        history = torch.zeros(lanes, vocab, dtype=torch.int64, device=device)
        bias = torch.zeros(lanes, vocab, dtype=torch.float64, device=device)
        return cls(numbers.repeat(lanes, 1), whole, history, bias)


def settings(
    temperature: float = 1.0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
) -> list[float]:
    """A row of `Lanes.numbers`; the arguments are those of `engine.messages.SamplingParams`."""
    floor = min(math.log(min_p), 0.0) if min_p > 0 else -math.inf
    return [temperature, top_p, floor, repetition_penalty, presence_penalty, frequency_penalty]


class Scratch(NamedTuple):
    """What the kernels hand on; kernels take it whole. Made by `new`."""

    x: torch.Tensor  # float64 [rows, vocab], logits with bias and penalties; NaN for what the mask excludes
    raw_top: torch.Tensor  # float32 [rows, tiles], of the logits as they came; inf for what is no number
    top_key: torch.Tensor  # int64 [rows, tiles], largest x in order of `_key`
    top_token: torch.Tensor  # int32 [rows, tiles]
    rough: torch.Tensor  # float32 [rows, tiles], largest sum with noise
    exact: torch.Tensor  # float64 [rows, tiles]
    drawn: torch.Tensor  # int32 [rows, tiles], the token of `exact`
    bins: torch.Tensor  # int32 [rows, BINS]
    sums: torch.Tensor  # int64 [rows, 2]: tokens collected, mass of all that min-p keeps
    found_x: torch.Tensor  # float64 [rows, vocab], scaled, of the collection
    found_mass: torch.Tensor  # int64 [rows, vocab]
    found_token: torch.Tensor  # int32 [rows, vocab]

    @classmethod
    def new(cls, rows: int, vocab: int, device: torch.device | str) -> "Scratch":
        tiles = cdiv(vocab, TILE)
        f32, f64, i32, i64 = torch.float32, torch.float64, torch.int32, torch.int64
        shapes = [
            (vocab, f64),
            (tiles, f32),
            (tiles, i64),
            (tiles, i32),
            (tiles, f32),
            (tiles, f64),
            (tiles, i32),
            (BINS, i32),
            (2, i64),
            (vocab, f64),
            (vocab, i64),
            (vocab, i32),
        ]
        return cls(*(torch.empty(rows, width, dtype=dtype, device=device) for width, dtype in shapes))


def sample(
    logits: torch.Tensor,
    lane: torch.Tensor,
    position: torch.Tensor,
    tokens: torch.Tensor,
    is_answer: torch.Tensor,
    mask: torch.Tensor,
    lanes: Lanes,
    scratch: Scratch,
    chosen: torch.Tensor,
) -> None:
    """The token that follows each row, as `engine.sampling.Sampler` chooses it.

    Args:
        logits: float32 `[rows, vocab]`, not changed.
        lane, position: int32 `[rows]`; rows of a lane are neighbours. Nothing is written for lane -1.
        tokens: int32 `[rows]`, the rows' own tokens. Those of the lane's rows up to a row's own count in its
            penalties; the lane's history has those before the window (`count_tokens`).
        is_answer: int32 `[rows]`, 0 where a row's own token belongs to the prompt.
        mask: int32 `[rows, ceil(vocab / 32)]`, bits of the tokens that a grammar allows, lowest first.
        lanes: settings and histories.
        scratch: of at least as many rows.
        chosen: int32 `[rows]`, written; -1 where the largest logit is not finite or one is no number.
    """
    num_rows, vocab = logits.shape
    rows, tiles = (lane, position), cdiv(vocab, TILE)
    sizes = {"TILES": triton.next_power_of_2(tiles), **step_launch()}
    grid, bins = (tiles, num_rows), {"TILE": TILE, "BINS": BINS, "num_warps": 8}
    adjust_kernel[grid](
        logits, rows, tokens, is_answer, mask, lanes, scratch, vocab, tiles, **bins, **step_launch()
    )
    spread_kernel[grid](rows, lanes, scratch, vocab, tiles, **bins, **sizes)
    collect_kernel[grid](rows, lanes, scratch, vocab, tiles, **bins, **sizes)
    choose_kernel[(num_rows,)](
        rows, lanes, scratch, chosen, vocab, tiles, FEW=FEW, MANY=MANY, DRAWN=DRAWN, num_warps=8, **sizes
    )


@kernel
def _count_kernel(rows, tokens, is_answer, accepted, num_rows, history, vocab, PROMPT: tl.constexpr):
    """Add one row's token to its lane's history, if the row stands."""
    begin_kernel()
    row = tl.program_id(0)
    lane = tl.load(rows + row)
    if lane < 0:
        return
    before = 0
    if accepted is not None:
        for other in range(0, row):
            before += (tl.load(rows + other) == lane).to(tl.int32)
        if before >= tl.load(accepted + lane):
            return
    adds = tl.where(tl.load(is_answer + row) != 0, tl.full([], 1, tl.int64), PROMPT)
    tl.atomic_add(history + lane.to(tl.int64) * vocab + tl.load(tokens + row), adds, sem="relaxed")


def count_tokens(
    lane: torch.Tensor,
    tokens: torch.Tensor,
    is_answer: torch.Tensor,
    lanes: Lanes,
    accepted: torch.Tensor | None = None,
) -> None:
    """Commit rows of the last step to their lanes' histories.

    Args:
        lane, tokens, is_answer: int32 `[rows]`, as they were given to `sample`.
        lanes: whose histories are added to.
        accepted: int32 `[lanes]`, how many of a lane's rows stand; None for all of them.
    """
    num_rows, vocab = lane.shape[0], lanes.history.shape[1]
    _count_kernel[(num_rows,)](
        lane, tokens, is_answer, accepted, num_rows, lanes.history, vocab, PROMPT=PROMPT, num_warps=1,
        **step_launch(),
    )  # fmt: skip
