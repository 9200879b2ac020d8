"""A card's model whose logits are a hash of all tokens: a slip in reuse or commits changes them."""

import zlib
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from strata.engine.messages import SamplingParams
from strata.engine.sampling import Sampler
from strata.ops.triton.sampling import PROMPT, Lanes
from tests.card.fakes import FakeCard

VOCAB = 40
LAYERS = 2


def advance(state: int, token: int) -> int:
    """The recurrent state after a token."""
    return (state * 31 + token + 1) % 1_000_003


def logits_of(tokens: list[int], recurrent: bool) -> np.ndarray:
    """What the model says after `tokens`: float32 `[vocab]`."""
    state = 0
    for token in tokens:
        state = advance(state, token)
    keys = _hash_keys(torch.tensor(tokens))
    return _logits([state if recurrent else keys, keys])


def _hash_keys(tokens: torch.Tensor) -> int:
    return zlib.crc32(tokens.numpy().astype(np.int64).tobytes())


def _logits(digests: list[int]) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(repr(digests).encode()))
    return (3 * rng.normal(size=VOCAB)).astype(np.float32)


class NgramTable:
    """The two tokens before each."""

    def new_window(self) -> torch.Tensor:
        return torch.full((2,), -1)

    def row_numbers(self, ids: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        past = torch.cat([window, ids])
        return torch.stack([past[:-2], past[1:-1]], 1)


@dataclass
class Stream:
    """What blocks hand on: digests of each row, by layers so far, and the rows' tokens."""

    digests: list[list[int]]
    tokens: list[int]

    def last(self) -> "Stream":
        return Stream(self.digests[-1:], self.tokens[-1:])


class TokenModel:
    """What `CardModel` does: state is committed by the step after, keys are overwritten.

    Args:
        recurrent: the first layer's state is a running hash, which cannot be cut.
    """

    def __init__(self, lanes: int, context: int, recurrent: bool):
        self.lanes, self.context, self.recurrent = lanes, context, recurrent
        self.weights = SimpleNamespace(card=FakeCard())
        self.host, self.num_layers = None, LAYERS
        self.memory = SimpleNamespace(workspace=SimpleNamespace(make_room=lambda num_bytes: None))
        self.addresses, self.counts = (
            torch.zeros(0, 0, dtype=torch.int64),
            torch.zeros(0, 0, dtype=torch.int32),
        )
        self.model = SimpleNamespace(
            config=SimpleNamespace(vocab_size=VOCAB, embedding_length=2),
            ple=SimpleNamespace(table=NgramTable()),
        )
        self.tokens = SimpleNamespace(fetch=lambda ids: torch.stack([ids, -ids], 1).float())
        self.ngrams = SimpleNamespace(fetch=lambda numbers: numbers.view(-1, 2).float())
        self._state = torch.zeros(lanes, 1, dtype=torch.int64)
        self._pending: list[tuple[int, int]] = []  # of the recurrent layer: lane, token
        self._keys = torch.full((LAYERS, lanes, context), -1)

    def experts_of(self, layer: int) -> None:
        return None

    def rows(
        self, lane, position, accepted, commit, addresses=None, share=None, gate=None
    ) -> SimpleNamespace:
        return SimpleNamespace(
            lane=lane.tolist(), position=position.tolist(), accepted=accepted.tolist(), commit=commit
        )

    def inputs(self, tokens: torch.Tensor, ngrams: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(embedding=tokens, ngrams=ngrams)

    def embed(self, inputs) -> Stream:
        return Stream([[] for _ in inputs.embedding], [int(token) for token in inputs.embedding[:, 0]])

    def block(self, layer: int, stream: Stream, ngrams: torch.Tensor, rows) -> Stream:
        if layer == 0 and self.recurrent:
            found = self._recur(stream.tokens, rows)
        else:
            found = self._attend(layer, stream.tokens, ngrams, rows)
        digests = [[*before, digest] for before, digest in zip(stream.digests, found, strict=True)]
        return Stream(digests, stream.tokens)

    def _recur(self, tokens: list[int], rows) -> list[int]:
        for lane, accepted in enumerate(rows.accepted):
            mine = [token for of, token in self._pending if of == lane]
            assert accepted <= len(mine), "more rows stand than were pending"
            for token in mine[:accepted]:
                self._state[lane] = advance(int(self._state[lane]), token)
        self._pending = []
        states, digests = self._state[:, 0].tolist(), []
        for lane, token in zip(rows.lane, tokens, strict=True):
            if lane >= 0:
                states[lane] = advance(states[lane], token)
                if not rows.commit:
                    self._pending.append((lane, token))
            digests.append(states[lane])
        if rows.commit:
            self._state[:, 0] = torch.tensor(states)
        return digests

    def _attend(self, layer: int, tokens: list[int], ngrams: torch.Tensor, rows) -> list[int]:
        digests = []
        for lane, position, token, ngram in zip(rows.lane, rows.position, tokens, ngrams, strict=True):
            if lane < 0:
                digests.append(0)
                continue
            keys = self._keys[layer, lane]
            keys[position] = token
            before = torch.cat([torch.full((2,), -1), keys[:position]])[-2:]
            assert ngram.tolist() == before.tolist(), "the n-gram rows are of other tokens"
            digests.append(_hash_keys(keys[: position + 1]))
        return digests

    def logits(self, stream: Stream) -> torch.Tensor:
        return torch.from_numpy(np.stack([_logits(digests) for digests in stream.digests]))

    def state_of(self, layer: int, lane: int) -> list[torch.Tensor]:
        return [self._state[lane]] if layer == 0 and self.recurrent else []

    def state_bytes(self) -> int:
        return 8 * self.recurrent

    def reset(self, lane: int) -> None:
        self._state[lane] = 0


class TokenWindow:
    """`card.window.Window` without a graph; what is no row of the run holds no numbers."""

    def __init__(self, model: TokenModel, sampler, size: int):
        self._model, self._sampler, self._size = model, sampler, size
        self.counts = torch.zeros(0, 0, dtype=torch.int32)
        self.logits = torch.full((size, VOCAB), torch.nan)

    def capture(self) -> "TokenWindow":
        return self

    def run(self, rows, accepted) -> None:
        model, empty = self._model, self._size - len(rows)
        assert empty >= 0
        order = [(row.lane, row.position) for row in rows]
        lanes = [lane for lane, _ in order]
        for lane in lanes:  # neighbours, by position
            mine = [position for of, position in order if of == lane]
            assert lanes[lanes.index(lane) :][: len(mine)] == [lane] * len(mine)
            assert mine == list(range(mine[0], mine[0] + len(mine)))
        accepted = torch.tensor(accepted)
        self._sampler.commit(accepted)
        inputs = SimpleNamespace(
            embedding=torch.stack([row.embedding for row in rows] + [torch.zeros(2)] * empty),
            ngrams=torch.stack([row.ngram for row in rows] + [torch.zeros(2)] * empty),
        )
        lane, position = torch.tensor([*order, *[(-1, 0)] * empty], dtype=torch.int32).T
        step, stream = model.rows(lane, position, accepted, commit=False), model.embed(inputs)
        for layer in range(LAYERS):
            stream = model.block(layer, stream, inputs.ngrams, step)
        self.logits = torch.full_like(
            self.logits, torch.nan
        )  # a card's are copied to the host, never seen there
        self.logits[: len(rows)] = model.logits(stream)[: len(rows)]
        integers = torch.tensor([[row.token, row.is_answer] for row in rows] + [[0, 0]] * empty).int().T
        masks = [np.full(2, -1, np.int32) if row.mask is None else row.mask for row in rows]
        mask = torch.from_numpy(np.stack(masks + [np.zeros(2, np.int32)] * empty))
        self._chosen = torch.full((self._size,), -7, dtype=torch.int32)
        self._sampler.choose(self.logits, lane, position, *integers, mask, self._chosen)

    def wait(self) -> list[int]:
        return self._chosen.tolist()


def sample(logits, lane, position, tokens, is_answer, mask, lanes: Lanes, scratch, chosen) -> None:
    """`ops.triton.sampling.sample`, by `engine.sampling.Sampler`."""
    for row, of in enumerate(lane.tolist()):
        if of < 0:
            continue
        history = lanes.history[of].clone()
        for other in range(row + 1):
            if lane[other] == of:
                history[tokens[other]] += 1 if is_answer[other] else PROMPT
        temperature, top_p, floor, *penalties = lanes.numbers[of].tolist()
        seed, top_k, _ = lanes.whole[of].tolist()
        params = SamplingParams(temperature, top_k, top_p, float(np.exp(floor)), *penalties, seed=seed)
        sampler = Sampler(params, [], VOCAB)
        sampler.position = int(position[row]) + 1
        sampler._seen[:] = history.numpy() > 0
        sampler._counts[:] = history.numpy() & (PROMPT - 1)
        allowed = np.unpackbits(mask[row].numpy().view(np.uint8), bitorder="little")[:VOCAB].astype(bool)
        ids = np.flatnonzero(allowed)
        chosen[row] = sampler._draw(sampler._penalise(logits[row].numpy())[ids], ids)


def count_tokens(lane, tokens, is_answer, lanes: Lanes, accepted) -> None:
    """`ops.triton.sampling.count_tokens`."""
    left = accepted.tolist()
    for of, token, answers in zip(lane.tolist(), tokens.tolist(), is_answer.tolist(), strict=True):
        if of >= 0 and left[of] > 0:
            left[of] -= 1
            lanes.history[of, token] += 1 if answers else PROMPT
