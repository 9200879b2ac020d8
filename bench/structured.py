"""Time of a grammar's mask per token, over many schemas: `python bench/structured.py [MODEL.gguf]`.

One line for each percentile, in microseconds: the mask with its way to one boolean per token, and the step to
the chosen token. The tokens are drawn at random from those allowed, which wanders further through a schema
than a model does.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from strata.engine.grammar import GrammarCompiler
from strata.engine.messages import Grammar
from strata.errors import RequestError
from strata.formats.tokenizer import load_tokenizer
from strata.models import open_checkpoint
from strata.options import EMBEDDED_MODEL

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers.schemas import schemas


def times(model: Path, count: int, num_tokens: int) -> np.ndarray:
    """Microseconds of mask and step of each token `[tokens]`, over `count` schemas."""
    tokenizer = load_tokenizer(open_checkpoint(model))
    assert tokenizer is not None
    compiler = GrammarCompiler(lambda: tokenizer, tokenizer.vocab_size)
    rng, taken = np.random.default_rng(0), []
    for schema in schemas(7, count):
        mask = compiler.compile(Grammar("json_schema", json.dumps(schema))).result()
        for _ in range(num_tokens):
            start = time.perf_counter()
            allowed = mask.allowed()
            masked = time.perf_counter()
            assert allowed is not None
            choice = int(rng.choice(np.flatnonzero(allowed)))
            chosen = time.perf_counter()
            try:
                mask.accept(choice)
            except RequestError:
                break
            taken.append(masked - start + time.perf_counter() - chosen)
            if mask.ended or choice in tokenizer.stop_ids:
                break
    return np.array(taken) * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", default=EMBEDDED_MODEL)
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=64, help="most tokens under one schema")
    args = parser.parse_args()
    taken = times(args.model, args.schemas, args.tokens)
    print(f"{args.model.name}: {len(taken)} tokens under {args.schemas} schemas")
    for percentile in (50, 90, 99, 100):
        print(f"{percentile:4} %: {np.percentile(taken, percentile):8.1f} µs")


if __name__ == "__main__":
    main()
