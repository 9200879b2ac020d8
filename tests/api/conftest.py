"""One server for all API tests; `LINES` says which seed gets which answer."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from helpers.api_server import ApiServer

EURO = "€".encode()
FAMILY = "👩‍👧".encode()

LINES: dict[str, list] = {
    "hello": ["Hello", ", ", "wor", "ld", "!"],
    "thinking": ["<think>", "\nLet me", " see.\n", "</think>", "\n\n", "It is ", "4."],
    "closes": ["Only the end", "</think>", "\n\nshows."],
    "unclosed": ["<think>", "for ever"],
    "unicode": [[EURO[0]], [EURO[1], EURO[2], FAMILY[0]], *([byte] for byte in FAMILY[1:]), "ß"],
    "invalid": ["a", [0xFF], "b", [0xE2, 0x82], "c", [0xF0]],
    "slow": ["go", *(["x", {"sleep": 0.02}] * 1500)],
    "silent": [{"sleep": 1.0}, "late"],
    "crash": ["before", {"sleep": 0.1}, {"crash": True}],
    "stops": ["one ST", "OP", "two"],
    "part of stop": ["one ST"],
    "lines": ["a\nb", "\r\n", "data: c\n\n"],
    "call": [
        *(
            "<think>",
            "\nI look.\n",
            "</think>",
            "\n\n",
            "Let me",
            " see.",
            "\n\n",
            "<tool_call>",
            "\n<function=",
        ),
        *("weather", ">\n<parameter=city>\n", "Kö", "ln", "\n</para", "meter>\n<parameter=days>\n", "3"),
        *("\n</parameter>\n</function>\n", "</tool_call>"),
    ],
    "withheld call": [
        *("<tool_call>", "\n<function=weather>\n", "<parameter=days>\n"),
        *(["1", {"sleep": 0.1}] * 8),
        *("\n</parameter>\n</function>\n", "</tool_call>"),
    ],
    "two calls": ["<tool_call>", "\n<function=now>\n</function>\n", "</tool_call>", "\n"] * 2,
    "stranded": ["<think>", "\nNow.\n", "<tool_call>", "\n<function=now>\n</function>\n", "</tool_call>"],
    "rest of a call": ["<parameter=city>\n", "Bonn", "\n</parameter>\n", "</function>\n", "</tool_call>"],
    "thought and rest of a call": [
        *("Where?", "</think>", "\n\n", "<parameter=city>\n", "Bonn", "\n</parameter>\n"),
        *("</function>\n", "</tool_call>"),
    ],
    "name and rest": ["now", ">\n</function>\n", "</tool_call>"],
    "rest of thinking": [
        *("I look.\n", "</think>", "\n\n", "Reading.", "\n\n", "<tool_call>", "\n<function=Read>\n"),
        *("<parameter=file_path>\n", "/src/a.py", "\n</parameter>\n</function>\n", "</tool_call>"),
    ],
    "patch": [
        *("<tool_call>", "\n<function=apply_patch>\n", "<parameter=input>\n", "*** Begin", ' Patch\n+say "'),
        *("Köln\\", '"\n*** End Patch', "\n</parameter>\n</function>\n", "</tool_call>"),
    ],
    "search": [
        *("<tool_call>", "\n<function=mcp__docs__search>\n", "<parameter=query>\n", "b"),
        *("\n</parameter>\n</function>\n", "</tool_call>"),
    ],
    "thoughts": ["one ", "two ", "three ", "four"],
    "loop": [*["so ", "again "] * 700, "</think>", "Done."],
    **{f"voice {i}": [f"{i}-{j} " for j in range(20)] for i in range(12)},
}
SEEDS = {name: i for i, name in enumerate(LINES)}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder: Path = tmp_path_factory.mktemp("api")
    with ApiServer(list(LINES.values()), folder, "--lanes", "2", "--keep-alive-s", "0.2") as server:
        yield server


@pytest.fixture(scope="session")
def client(server: ApiServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client
