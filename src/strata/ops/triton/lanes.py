"""Which rows of a step belong to which lane.

A step computes rows of one or more lanes. `lane` int32 `[rows]` says whose a row is (-1: nobody's, nothing is
computed for it); rows of a lane are neighbours, in the order of their positions.

**State is committed by the next step.** A step of drafts does not know which of its rows will stand. So it
leaves a lane's state as it was before its rows, and what the update needs of each row in `pending`; the next
step takes `accepted` int32 `[lanes]`, the number of those rows that stand, applies them, and goes on. A lane
that has no rows in a step is committed by it too, if `accepted` says so; the engine then sets its count to 0.
A step whose rows all stand (a prompt) commits them itself.
"""

import triton
import triton.language as tl

# Rows that a lane can have pending: the longest window of drafts.
MAX_PENDING = 16


@triton.jit
def lane_rows(lane, num_rows, which, BLOCK: tl.constexpr):
    """First row (int64) and number of rows of lane `which`, looked for in blocks of BLOCK."""
    first, count = num_rows, 0
    for start in range(0, num_rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        is_mine = tl.load(lane + row, mask=row < num_rows, other=-1) == which
        count += tl.sum(is_mine.to(tl.int32), 0)
        first = tl.minimum(first, tl.min(tl.where(is_mine, row, num_rows), 0))
    return first.to(tl.int64), count


def lane_block(num_rows: int) -> int:
    """BLOCK for `lane_rows`."""
    return min(max(triton.next_power_of_2(num_rows), 16), 1024)
