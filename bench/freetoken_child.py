"""FreeToken 0.1.3 with made-up weights and forced routes, for `card_vs_freetoken.py`, which starts this file.

    python bench/freetoken_child.py REQUEST.json RESULTS.jsonl

It runs where FreeToken can be imported: on PYTHONPATH is a folder that its wheel, flashlib 0.3.0, einops,
msgpack, pyzmq and apache-tvm-ffi 0.1.13.post3 were installed to (`pip install --no-deps --target SITE ...`);
in Python 3.12 with torch 2.11, Triton 3.6 and transformers 5.16 or 5.17 (5.24 has other names for kinds of
layers), with ninja and nvcc for what it compiles at its first start.

The engine is FreeToken's own `LLM`: the scheduler of `freetoken serve` without the server, with its defaults;
prompts are token ids. Two things are changed. Routed experts are those of a trace, by position, which costs a
step one gather; the router is computed as ever. And expert banks are filled with one piece of random codes
again and again, as its generator would take a minute. A line of results is written for each number of slots,
largest first.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from freetoken.core import SamplingParams, get_global_ctx
from freetoken.layers.moe import OffloadMoELayer
from freetoken.llm import LLM
from freetoken.message import DetokenizeMsg
from freetoken.mm.config import ENCODER_KINDS, MultimodalConfig
from freetoken.moe import expert_banks

PIECE = 16 << 20  # bytes of random codes


class Routes:
    """The experts that tokens use, in place of the router's: int32 `[positions, layers, used]`."""

    def __init__(self, ids):
        self._ids = ids
        self._rows = None  # of the step at hand

    def of(self, layer, chosen):
        """`[rows, used]`, which may be written to, as `chosen` is."""
        if layer == 0:
            self._ids = self._ids.to(chosen.device)  # not before the engine has chosen its device
            self._rows = self._ids.index_select(0, get_global_ctx().batch.positions)
        ids = self._rows[:, layer].contiguous()
        assert ids.shape == chosen.shape, (ids.shape, chosen.shape)
        return ids

    def force(self):
        """On all layers that are made from now on; the router and its weights are computed as ever."""
        for name in ("_decode_routed", "_prefill_routed"):
            setattr(OffloadMoELayer, name, self._with_ours(getattr(OffloadMoELayer, name)))

    def _with_ours(self, method):
        def routed(layer, hidden_states, topk_weights, topk_ids):
            return method(layer, hidden_states, topk_weights, self.of(layer.layer_id, topk_ids))

        return routed


def fill_with_pieces(fill):
    """`fill`, a function of a bank's role and its tensor, but quicker for random codes."""
    piece = torch.randint(0, 256, (PIECE,), dtype=torch.uint8)

    def filled(role, tensor):
        if role.endswith("_scale") or tensor.dtype != torch.uint8:
            return fill(role, tensor)
        for part in tensor.view(-1).split(PIECE):
            part.copy_(piece[: len(part)])

    return filled


class TimedLLM(LLM):
    """Notes when each token has come, and begins to count hits when the first `settled` of an answer have."""

    def __init__(self, settled, **config):
        self.times, self._settled = [], settled
        super().__init__(**config)

    def offline_send_result(self, reply):
        super().offline_send_result(reply)
        self.times += [time.perf_counter() for message in reply if isinstance(message, DetokenizeMsg)]
        if len(self.times) == self._settled:
            self.engine.moe_offload_cache.reset_stats()

    def answer(self, prompt, tokens):
        """When each of so many tokens behind a prompt has come, in seconds from the asking."""
        self.times = []
        start = time.perf_counter()
        self.generate([prompt], SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=tokens))
        return [moment - start for moment in self.times]

    def use(self, slots, counted):
        """Empty slots, as many as that, whose hits are counted or not."""
        self.engine.moe_offload_cache.collect_stats = counted
        self.rebuild_cache(moe_cache_size=slots)


def open_llm(request):
    slots = request["slots"][0]
    return TimedLLM(
        settled=request["settled"],
        model_path=request["model"],
        use_dummy_weight=True,
        moe_strategy=request["strategy"],
        moe_cache_size=slots,
        moe_prefill_overlap=slots >= 2 * request["experts"],
        max_running_req=1,
        cuda_graph_max_bs=1,
        num_token_override=request["context"],
        mm=MultimodalConfig(disabled_encoders=frozenset(ENCODER_KINDS)),
    )


def measure(llm, request, slots, rng):
    """Tokens per second of prompts and of the tokens behind them, and how many uses found their expert."""

    def prompt(length):  # no two alike: FreeToken keeps the states of prompts
        return rng.integers(0, request["vocab"], length).tolist()

    settled, tokens, result = request["settled"], request["tokens"], {"slots": slots}
    is_free = request["strategy"] == "offload"  # whose kernel counts on the way; `hybrid` has ops for it
    llm.use(slots, counted=is_free)
    for length in request["prompts"]:
        llm.answer(prompt(length), tokens)  # compiles, and fills slots
        first = [llm.answer(prompt(length), 1)[0] for _ in range(2)]
        times = llm.answer(prompt(length), tokens)
        result[f"prompt_{length}"] = length / statistics.median([*first, times[0]])
        steps = np.diff(times[settled:])
        result[f"decode_{length}"] = 1 / float(np.median(steps))
        result[f"decode_mean_{length}"] = 1 / float(steps.mean())
    if not is_free:
        llm.use(slots, counted=True)
        for _ in range(2):
            llm.answer(prompt(request["prompts"][-1]), tokens)
    stats = llm.engine.moe_offload_cache.decode_miss_stats()
    return result | {"hit_rate": 1 - stats["miss_rate"], "stats": stats}


def main():
    request = json.loads(Path(sys.argv[1]).read_text())
    Routes(torch.from_numpy(np.load(request["routes"]).astype(np.int32))).force()
    expert_banks._dummy_fill = fill_with_pieces(expert_banks._dummy_fill)
    start, rng = time.perf_counter(), np.random.default_rng(0)
    with torch.inference_mode(), Path(sys.argv[2]).open("a") as results:
        llm = open_llm(request)
        print(f"ready after {time.perf_counter() - start:.1f} s", flush=True)
        for slots in request["slots"]:
            result = measure(llm, request, slots, rng)
            print(f"{result} after {time.perf_counter() - start:.1f} s", flush=True)
            results.write(json.dumps(result) + "\n")
            results.flush()
    os._exit(0)  # nothing is left to be saved, and its threads may take long to end


if __name__ == "__main__":
    main()
