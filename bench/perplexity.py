"""Perplexity of a text by Strata and, on the same tokens, by transformers from the float checkpoint.

    python bench/perplexity.py MODEL --text FILE [--reference HF_FOLDER] [--max-tokens N] [--json OUT.json]

Windows of `--window` tokens, each from an empty context, every position but a window's first scored.
"""

import argparse
import json
from pathlib import Path

import torch

from strata.formats.tokenizer import load_tokenizer
from strata.models import DecodedWeights, load_model, open_checkpoint
from strata.models.base import PREFILL_CHUNK, Model


def strata_logits(model: Model, tokens: list[int]) -> torch.Tensor:
    """Float32 `[len(tokens), vocab]` from an empty context."""
    state = model.new_state()
    starts = range(0, len(tokens), PREFILL_CHUNK)
    return torch.cat([model.forward(tokens[s : s + PREFILL_CHUNK], state, all_logits=True) for s in starts])


def transformers_model(folder: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def losses(logits: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """Negative log-likelihood of each token but the first, float64 `[len(tokens) - 1]`."""
    targets = torch.tensor(tokens[1:])
    return torch.nn.functional.cross_entropy(logits[:-1].double(), targets, reduction="none")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="UTF-8 text")
    parser.add_argument("--reference", type=Path, help="folder of the float checkpoint, for transformers")
    parser.add_argument("--max-tokens", type=int, default=8192, help="of the text")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    checkpoint = open_checkpoint(args.model)
    text = args.text.read_text(encoding="utf-8")
    # The text may be a conversation: its control tokens are meant.
    tokens = load_tokenizer(checkpoint).encode(text, special=True)[: args.max_tokens]
    windows = [tokens[start : start + args.window] for start in range(0, len(tokens), args.window)]
    windows = [window for window in windows if len(window) > 1]
    model = load_model(DecodedWeights(checkpoint, cache_bytes=8 << 30))
    ours = torch.cat([losses(strata_logits(model, window), window) for window in windows])
    result = {"model": args.model.name, "scored": len(ours), "ours": ours.mean().exp().item()}
    if args.reference:
        reference = transformers_model(args.reference)
        with torch.no_grad():
            theirs = [losses(reference(torch.tensor([window])).logits[0], window) for window in windows]
        result["transformers"] = torch.cat(theirs).mean().exp().item()
        result["ratio"] = result["ours"] / result["transformers"]
    text = json.dumps(result, indent=1)
    if args.json:
        args.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
