"""Perplexity of one text by Strata and by llama.cpp, for each format that llama.cpp quantises to.

    python bench/perplexity_by_format.py [--formats Q4_K,...] [--model FILE.gguf] [--text FILE] [--json FILE]

llama.cpp's own quantiser writes the model, the embedded one unless another is named, with every matrix in
the format, or in the one it falls back to where rows are no multiple of its block. Most formats of about
two bits are given to the experts' gate and up matrices alone, and Q8_0 to the rest, as published files mix
them: a model wholly rounded to so few values predicts too badly to compare anything. Both engines score the
same windows of 1,024 tokens of the same file.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from llamacpp import LlamaCpp, quantize
from ours import Strata
from perplexity import perplexity, text_windows

from strata.hardware.cpu import usable_cpus
from strata.options import EMBEDDED_MODEL

FORMATS = [
    "BF16", "F16", "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS",
    "MXFP4", "Q3_K", "IQ3_S", "IQ3_XXS", "Q2_K", "IQ2_S", "IQ2_XS", "IQ2_XXS", "Q2_0", "IQ1_M", "IQ1_S",
]  # fmt: skip
EXPERTS_ONLY = {"Q2_0", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"}
HELD_OUT = Path(__file__).parents[1] / "tests" / "data" / "heldout.txt"


def compare(model: Path, windows: list[list[int]], threads: int) -> dict[str, float]:
    """Both engines on one file."""
    ours = perplexity(Strata(model, threads), windows)
    theirs = LlamaCpp(model, max(map(len, windows)), threads)
    other = perplexity(theirs, windows)
    theirs.close()
    return {"ours": ours, "theirs": other, "ratio": ours / other}


def measure(source: Path, format: str, windows: list[list[int]], threads: int) -> dict[str, Any]:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{format}.gguf"
        quantize(source, path, format, threads, experts_only=format in EXPERTS_ONLY)
        return {"name": format, **compare(path, windows, threads)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--model", type=Path, default=EMBEDDED_MODEL, help="the source")
    parser.add_argument("--text", type=Path, default=HELD_OUT, help="UTF-8 text")
    parser.add_argument("--max-tokens", type=int, default=8192, help="of the text")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    windows = text_windows(args.model, args.text, args.max_tokens, 1024)
    results = []
    print(f"{'format':8} {'ours':>9} {'llama.cpp':>9}   ratio")
    for format in args.formats.split(","):
        line = measure(args.model, format, windows, len(usable_cpus()))
        results.append(line)
        print(f"{format:8} {line['ours']:9.4f} {line['theirs']:9.4f}  {line['ratio']:.5f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"model": args.model.name, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
