"""Do Strata and llama.cpp say the same on the same GGUF? Greedy tokens, margins and perplexity.

    python bench/agree_with_llamacpp.py MODEL.gguf [--text FILE] [--prompts FILE.json] [--json OUT.json]

Needs `pip install llama-cpp-python==0.3.36`. For each prompt llama.cpp decodes greedily; Strata reads the
same tokens, and wherever its own choice differs the position, both tokens and both margins are listed.
llama.cpp rounds activations to 8 bits before it multiplies them with quantised weights, so its choice is
a near-tie exactly where that rounding decides it: each difference is put to llama.cpp again with the same
weights written as F32, and is explained when it then chooses as Strata does. Perplexity is over windows of
`--window` tokens of the text, each from an empty context, first half of a window not scored.
"""

import argparse
import json
import platform
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import torch

from strata.formats.checkpoint import Checkpoint
from strata.models import DecodedWeights, load_model, open_checkpoint
from strata.models.base import PREFILL_CHUNK, Model

PROMPTS = [
    "Once upon a time there was a little fox who",
    "The capital of France is",
    "Water boils at 100 degrees. Ice melts at",
    "def fibonacci(n):\n    ",
    "Tom has three apples and gives one to Anna. Now Tom has",
    "Dear Mr. Brown,\n\nThank you for",
    "1, 2, 3, 5, 8,",
    "The best way to learn a new language is to",
]


class LlamaCpp:
    """llama.cpp with the logits of every position."""

    def __init__(self, path: str, num_ctx: int):
        self.llm = llama_cpp.Llama(
            model_path=path,
            n_ctx=num_ctx,
            n_batch=num_ctx,
            n_ubatch=num_ctx,
            logits_all=True,
            verbose=False,
            n_threads=torch.get_num_threads(),
            n_threads_batch=torch.get_num_threads(),
        )

    def tokenize(self, text: str) -> list[int]:
        return self.llm.tokenize(text.encode(), add_bos=False, special=True)

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Float32 `[len(tokens), vocab]` from an empty context."""
        self.llm.reset()
        self.llm.eval(tokens)
        return np.array(self.llm.scores[: len(tokens)], dtype=np.float32)

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        self.llm.reset()
        self.llm.eval(prompt)
        out = []
        for _ in range(count):
            out.append(int(np.argmax(self.llm.scores[self.llm.n_tokens - 1])))
            self.llm.eval(out[-1:])
        return out


def strata_logits(model: Model, tokens: list[int]) -> np.ndarray:
    state = model.new_state()
    parts = [
        model.forward(tokens[start : start + PREFILL_CHUNK], state, all_logits=True)
        for start in range(0, len(tokens), PREFILL_CHUNK)
    ]
    return torch.cat(parts).numpy()


def decode_logits(model: Model, prompt: list[int], answer: list[int]) -> np.ndarray:
    """Logits that choose each token of `answer`, by prefill and then one decode step a token."""
    state = model.new_state()
    for start in range(0, len(prompt), PREFILL_CHUNK):
        logits = model.forward(prompt[start : start + PREFILL_CHUNK], state)
    rows = [logits]
    for token in answer[:-1]:
        rows.append(model.forward([token], state))
    return torch.cat(rows).numpy()


def margin(row: np.ndarray) -> float:
    second, first = np.partition(row, -2)[-2:]
    return float(first - second)


def write_f32_copy(path: Path, checkpoint: Checkpoint, out: Path) -> None:
    """The same model with every tensor decoded to F32, so that llama.cpp multiplies floats."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, checkpoint.architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        writer.add_key_value(key, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    for name in checkpoint.tensors:
        writer.add_tensor(name, checkpoint.read(name).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compare_greedy(model: Model, theirs: LlamaCpp, floats: LlamaCpp, prompts: list[list[int]]) -> dict:
    exceptions, compared, unexplained = [], 0, 0
    for number, prompt in enumerate(prompts):
        answer = theirs.greedy(prompt, 64)
        reference = theirs.logits(prompt + answer)[len(prompt) - 1 : -1]
        ours = decode_logits(model, prompt, answer)
        compared += len(answer)
        float_choices = floats.logits(prompt + answer)[len(prompt) - 1 : -1].argmax(-1)
        for step, token in enumerate(answer):
            choice = int(ours[step].argmax())
            if choice == token:
                continue
            unexplained += choice != int(float_choices[step])
            exceptions.append(
                {
                    "prompt": number,
                    "step": step,
                    "theirs": token,
                    "ours": choice,
                    "theirs_from_f32": int(float_choices[step]),
                    "their_margin": round(margin(reference[step]), 4),
                    "our_margin": round(margin(ours[step]), 4),
                }
            )
    return {"compared": compared, "exceptions": exceptions, "unexplained": unexplained}


def nll(logits: np.ndarray, tokens: list[int], first: int) -> np.ndarray:
    """Negative log-likelihood of `tokens[first + 1:]`, float64."""
    rows = logits[first:-1].astype(np.float64)
    targets = np.array(tokens[first + 1 :])
    top = rows.max(-1, keepdims=True)
    return np.log(np.exp(rows - top).sum(-1)) + top[:, 0] - rows[np.arange(len(targets)), targets]


def compare_perplexity(model: Model, theirs: LlamaCpp, tokens: list[int], window: int) -> dict:
    ours_all, theirs_all = [], []
    for start in range(0, len(tokens) - window + 1, window):
        part = tokens[start : start + window]
        ours_all.append(nll(strata_logits(model, part), part, window // 2))
        theirs_all.append(nll(theirs.logits(part), part, window // 2))
    ours, peer = (float(np.exp(np.concatenate(x).mean())) for x in (ours_all, theirs_all))
    return {"scored": sum(map(len, ours_all)), "ours": ours, "theirs": peer, "ratio": ours / peer}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, help="UTF-8 text for the perplexity")
    parser.add_argument("--prompts", type=Path, help="JSON list of texts or token lists")
    parser.add_argument("--max-tokens", type=int, default=8192, help="of the text")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    checkpoint = open_checkpoint(args.model)
    model = load_model(DecodedWeights(checkpoint, cache_bytes=8 << 30))
    theirs = LlamaCpp(str(args.model), max(args.window, 512))
    prompts = json.loads(args.prompts.read_text()) if args.prompts else PROMPTS
    prompts = [theirs.tokenize(p) if isinstance(p, str) else p for p in prompts]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "f32.gguf"
        write_f32_copy(args.model, checkpoint, copy)
        floats = LlamaCpp(str(copy), max(args.window, 512))
        greedy = compare_greedy(model, theirs, floats, prompts)
    result = {
        "model": args.model.name,
        "llama_cpp": llama_cpp.__version__,
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "greedy": greedy,
    }
    if args.text:
        tokens = theirs.tokenize(args.text.read_text())[: args.max_tokens]
        result["perplexity"] = compare_perplexity(model, theirs, tokens, args.window)
    text = json.dumps(result, indent=1)
    if args.json:
        args.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
