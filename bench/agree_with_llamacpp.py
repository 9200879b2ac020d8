"""Do Strata and llama.cpp say the same on the same GGUF? Greedy tokens, margins and perplexity.

    python bench/agree_with_llamacpp.py MODEL.gguf [--text FILE] [--prompts FILE.json] [--json OUT.json]

For each prompt llama.cpp decodes greedily; Strata's float32 reference reads the same tokens, and wherever
its own choice differs the position, both tokens and both margins are listed. llama.cpp rounds activations
to 8 bits before it multiplies them with quantised weights, so its choice is a near-tie exactly where that
rounding decides it: each difference is put to llama.cpp again with the same weights written as F32, and is
explained when it then chooses as Strata does. Perplexity is that of Strata's kernels, which round too, over
windows of `--window` tokens of the text, each from an empty context, first half of a window not scored.
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
from llamacpp import LlamaCpp
from ours import Strata
from perplexity import perplexity

from strata.formats.checkpoint import Checkpoint
from strata.hardware.cpu import usable_cpus
from strata.models import open_checkpoint

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


def greedy(engine: LlamaCpp, prompt: list[int], count: int) -> list[int]:
    engine.reset()
    logits = engine.forward(prompt)
    answer = [int(logits.argmax())]
    while len(answer) < count:
        answer.append(int(engine.forward(answer[-1:]).argmax()))
    return answer


def prefill_logits(engine: LlamaCpp, prompt: list[int], answer: list[int]) -> np.ndarray:
    """Logits that choose each token of `answer`, all read at once: float32 `[len(answer), vocab]`."""
    engine.reset()
    return engine.forward(prompt + answer, all_logits=True)[len(prompt) - 1 : -1]


def decode_logits(engine: Strata, prompt: list[int], answer: list[int]) -> np.ndarray:
    """Logits that choose each token of `answer`, by prefill and then one decode step a token."""
    engine.reset()
    return np.concatenate([engine.forward(prompt), *(engine.forward([token]) for token in answer[:-1])])


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


def compare_greedy(ours: Strata, theirs: LlamaCpp, floats: LlamaCpp, prompts: list[list[int]]) -> dict:
    exceptions, compared, unexplained = [], 0, 0
    for number, prompt in enumerate(prompts):
        answer = greedy(theirs, prompt, 64)
        reference = prefill_logits(theirs, prompt, answer)
        own = decode_logits(ours, prompt, answer)
        compared += len(answer)
        float_choices = prefill_logits(floats, prompt, answer).argmax(-1)
        for step, token in enumerate(answer):
            choice = int(own[step].argmax())
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
                    "our_margin": round(margin(own[step]), 4),
                }
            )
    return {"compared": compared, "exceptions": exceptions, "unexplained": unexplained}


def compare_perplexity(ours: Strata, theirs: LlamaCpp, tokens: list[int], size: int) -> dict:
    windows = [tokens[start : start + size] for start in range(0, len(tokens) - size + 1, size)]
    own, peer = (perplexity(engine, windows, first=size // 2) for engine in (ours, theirs))
    return {"scored": len(windows) * (size - size // 2 - 1), "ours": own, "theirs": peer, "ratio": own / peer}


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

    threads, context = len(usable_cpus()), max(args.window, 512)
    theirs = LlamaCpp(args.model, context, threads)
    prompts = json.loads(args.prompts.read_text()) if args.prompts else PROMPTS
    prompts = [theirs.tokenize(p) if isinstance(p, str) else p for p in prompts]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "f32.gguf"
        write_f32_copy(args.model, open_checkpoint(args.model), copy)
        reference, floats = Strata(args.model, threads, reference=True), LlamaCpp(copy, context, threads)
        choices = compare_greedy(reference, theirs, floats, prompts)
    result = {
        "model": args.model.name,
        "llama_cpp": llama_cpp.__version__,
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "greedy": choices,
    }
    if args.text:
        tokens = theirs.tokenize(args.text.read_text())[: args.max_tokens]
        result["perplexity"] = compare_perplexity(Strata(args.model, threads), theirs, tokens, args.window)
    text = json.dumps(result, indent=1)
    if args.json:
        args.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
