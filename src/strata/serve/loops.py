"""The loop guard: notices that a model has begun to say the same for ever.

It sees token ids only. A cycle is certain: 512 tokens that repeat a period of up to 64 exactly. Repeated
passages are likely: of the last 2,048 tokens, half lie in runs of 24 that occur four times there. Long tables
and generated code may look like that, so passages are looked at only where a client asks for it.
"""

from collections import Counter, deque
from itertools import islice

CYCLE_TOKENS = 512
MAX_PERIOD = 64
WINDOW = 2048
PASSAGE_TOKENS = 24
PASSAGE_TIMES = 4
PASSAGE_SHARE = 0.5
CYCLE_STEP, PASSAGE_STEP = 64, 512  # tokens between two looks


class LoopGuard:
    """Watches one answer.

    Args:
        passages: look for repeated passages as well as for cycles.
    """

    def __init__(self, passages: bool = False):
        self._passages = passages
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._recent: deque[int] = deque(maxlen=WINDOW)
        self._num_tokens = 0

    def push(self, token_id: int) -> bool:
        """Take a token; whether the answer loops by now."""
        self._recent.append(token_id)
        self._num_tokens += 1
        if self._num_tokens >= CYCLE_TOKENS + MAX_PERIOD and self._num_tokens % CYCLE_STEP == 0:
            recent = list(islice(self._recent, max(0, len(self._recent) - CYCLE_TOKENS - MAX_PERIOD), None))
            if _is_cycle(recent):
                return True
        full = self._num_tokens >= WINDOW and self._num_tokens % PASSAGE_STEP == 0
        return self._passages and full and _repeats_passages(list(self._recent))


def _is_cycle(ids: list[int]) -> bool:
    tail = ids[-CYCLE_TOKENS:]
    return any(tail == ids[-CYCLE_TOKENS - n : -n] for n in range(1, MAX_PERIOD + 1))


def _repeats_passages(ids: list[int]) -> bool:
    passages = [tuple(ids[i : i + PASSAGE_TOKENS]) for i in range(len(ids) - PASSAGE_TOKENS + 1)]
    times = Counter(passages)
    repeated = sum(times[passage] >= PASSAGE_TIMES for passage in passages)
    return repeated >= PASSAGE_SHARE * len(passages)
