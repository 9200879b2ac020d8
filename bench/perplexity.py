"""Perplexity of a text by Strata and, on the same tokens, by llama.cpp and by transformers' float checkpoint.

    python bench/perplexity.py MODEL --text FILE [--llamacpp] [--reference HF_FOLDER] [--json OUT.json]

Windows of `--window` tokens, each from an empty context, every position but a window's first scored.
"""

import argparse
import json
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from ours import Strata

from strata.formats.tokenizer import load_tokenizer
from strata.hardware.cpu import usable_cpus
from strata.models import open_checkpoint


class Sequence(Protocol):
    """One sequence of some engine."""

    def reset(self) -> None: ...

    def forward(self, tokens: list[int], all_logits: bool) -> np.ndarray:
        """Append tokens; float32 `[len(tokens), vocab]`."""


class Transformers:
    """The float checkpoint in float32."""

    def __init__(self, folder: Path):
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def reset(self) -> None:
        """Nothing: `forward` sees whole sequences."""

    def forward(self, tokens: list[int], all_logits: bool) -> np.ndarray:
        with torch.no_grad():
            return self.model(torch.tensor([tokens])).logits[0].numpy()


def losses(logits: np.ndarray, tokens: list[int], first: int = 0) -> torch.Tensor:
    """Negative log-likelihoods of `tokens[first + 1:]`, float64."""
    rows, targets = torch.from_numpy(logits[first:-1]).double(), torch.tensor(tokens[first + 1 :])
    return torch.nn.functional.cross_entropy(rows, targets, reduction="none")


def perplexity(engine: Sequence, windows: list[list[int]], first: int = 0) -> float:
    """Of each window by itself, after its tokens up to position `first`."""
    parts = []
    for window in windows:
        engine.reset()
        parts.append(losses(engine.forward(window, all_logits=True), window, first))
    return torch.cat(parts).mean().exp().item()


def text_windows(model: Path, text: Path, max_tokens: int, size: int) -> list[list[int]]:
    """The text's first tokens, cut; it may be a conversation: its control tokens are meant."""
    tokenizer = load_tokenizer(open_checkpoint(model))
    tokens = tokenizer.encode(text.read_text(encoding="utf-8"), special=True)[:max_tokens]
    windows = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    return [window for window in windows if len(window) > 1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="UTF-8 text")
    parser.add_argument("--llamacpp", action="store_true", help="compare with llama.cpp")
    parser.add_argument("--reference", type=Path, help="folder of the float checkpoint, for transformers")
    parser.add_argument("--max-tokens", type=int, default=8192, help="of the text")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    windows = text_windows(args.model, args.text, args.max_tokens, args.window)
    threads = len(usable_cpus())
    result = {"model": args.model.name, "scored": sum(len(window) - 1 for window in windows)}
    result["ours"] = perplexity(Strata(args.model, threads), windows)
    if args.llamacpp:
        from llamacpp import LlamaCpp

        result["llama.cpp"] = perplexity(LlamaCpp(args.model, args.window, threads), windows)
        result["ratio to llama.cpp"] = result["ours"] / result["llama.cpp"]
    if args.reference:
        result["transformers"] = perplexity(Transformers(args.reference), windows)
        result["ratio to transformers"] = result["ours"] / result["transformers"]
    text = json.dumps(result, indent=1)
    if args.json:
        args.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
