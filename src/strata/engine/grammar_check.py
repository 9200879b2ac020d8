"""`python -m strata.engine.grammar_check`: tells of grammars whether they can be used.

A grammar is a client's text, and some compile for ever or take all memory. So each is first compiled here,
in a process that ends itself when one takes too long, and only those that came through reach the engine.

Lines of JSON, `[kind, text]`, come in on standard input; each is answered by `[source, error]`: the grammar
as llguidance takes it, or what is wrong with it.
"""

import contextlib
import faulthandler
import json
import os
import sys

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

LIMIT_S = 5.0  # for one grammar
LIMIT_BYTES = 2 << 30  # of memory
LIMITS = LLParserLimits(verbose_errors=False, initial_lexer_fuel=500_000, max_grammar_size=200_000)

# Some white space, as models like to lay out JSON; without a bound weak models write nothing else.
WHITE_SPACE = r"[ \n\t]{0,32}"
JSON_OPTIONS = {"whitespace_pattern": WHITE_SPACE, "lenient": False, "coerce_one_of": False}


class _Bytes:
    """A vocabulary of the 256 bytes, an end, and room for ids that a grammar may name."""

    is_tokenizer_wrapper = True
    bos_token_id, eos_token_id = None, 256
    special_token_ids = (256,)
    tokens = (*(bytes([i]) for i in range(256)), b"<end>", *[b""] * (1 << 19))

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def source_of(kind: str, text: str) -> str:
    """A grammar in llguidance's form; raises ValueError where it cannot be read."""
    match kind:
        case "json_schema":
            schema = json.loads(text)
            if isinstance(schema, dict) and "x-guidance" in schema:
                raise ValueError("'x-guidance' is not a keyword of JSON schema")
            if schema is False:
                raise ValueError("no answer can ever satisfy it")
            if schema is True:  # llguidance takes its options into an object only
                text = "{}"
            return LLMatcher.grammar_from_json_schema(text, overrides=JSON_OPTIONS)
        case "regex":
            return LLMatcher.grammar_from_regex(text)
        case "choice":
            choices = json.loads(text)
            if not choices:
                raise ValueError("there is nothing to choose from")
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, choices)))
        case "lark":
            return LLMatcher.grammar_from_lark(any_to_lark(text))
    raise ValueError(f"there are no grammars of kind {kind!r}")


def check(kind: str, text: str, tokenizer: LLTokenizer) -> tuple[str, str]:
    """`(source, error)`; one of them is empty."""
    try:
        source = source_of(kind, text)
    except RecursionError:
        return "", "is nested too deeply"
    except Exception as error:  # the converter of GBNF raises whatever it stumbles over
        return "", str(error) or type(error).__name__
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    error = matcher.get_error()
    if "NoExtension" in error:
        error = "no answer can ever satisfy it"
    return ("", error.replace("<non-verbose/>", "").strip()) if error else (source, "")


def main() -> None:
    """Answer until standard input ends."""
    with contextlib.suppress(ImportError):  # there is none on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    tokenizer = LLTokenizer(_Bytes(), eos_token=[256])
    with open(os.devnull, "w") as nowhere:
        for line in sys.stdin:
            faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=nowhere)
            answer = check(*json.loads(line), tokenizer)
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
