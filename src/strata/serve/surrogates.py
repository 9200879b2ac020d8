"""Halves of surrogate pairs: JSON can spell them (RFC 8259, section 8.2), and no text can hold them.

A program that cuts text by UTF-16's units, as those in JavaScript do, leaves one where it cuts an emoji. An
agent that has it in its history sends it with every request from then on: a refusal would end the session.
"""

import re

# Behind an even number of backslashes: an odd one would make the escape's own backslash plain text.
_ESCAPED = re.compile(
    r"(?<!\\)((?:\\\\)*)\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def replace_halves(json_text: str) -> str:
    """JSON text with U+FFFD for each half of a pair whose other half is missing."""
    return _ESCAPED.sub(lambda found: found[0] if found[2] else f"{found[1]}\\ufffd", json_text)
