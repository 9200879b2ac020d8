"""Many clients at once on a real server: errors, fairness, memory: `python bench/load.py [MODEL]`.

Every client asks for one streamed answer after the other, with prompts of its own of some ten to some hundred
tokens; each fourth answer it leaves in the middle. What is told: requests that failed, and how; tokens of
each client, and the longest waits for a first token and between two tokens, as they are spread over the
clients; and the memory of server and engine, ten times in the course of the run.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
import psutil

MAX_TOKENS = 48
LEAVES = 4  # each so many-th answer is left in the middle
TIMEOUT_S = 300.0
NUM_SAMPLES = 10  # of memory, in a run


@dataclass(slots=True)
class Client:
    """What one client saw; times in seconds."""

    tokens: int = 0
    answers: int = 0
    left: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    first_s: list[float] = field(default_factory=list)
    longest_gap_s: float = 0.0


@dataclass(slots=True)
class Load:
    """A run.

    Args:
        seconds: its length.
        clients: what each of them saw.
        memory: MiB of the server and its engine, in time.
    """

    seconds: float
    clients: list[Client]
    memory: list[tuple[float, float]]

    @property
    def errors(self) -> Counter[str]:
        """How often each thing went wrong."""
        return sum((client.errors for client in self.clients), Counter())

    @property
    def growth(self) -> float:
        """The last memory of both over that after a third of the run, when all is in use."""
        settled, last = self.memory[len(self.memory) // 3], self.memory[-1]
        return sum(last) / sum(settled)


def prompt(client: int, turn: int) -> str:
    """What a client asks: different for each, and of different lengths."""
    names = " ".join(f"animal {client * 31 + turn * 7 + i}" for i in range(1, 2 + (client + turn) % 40))
    return f"Tell me a story about {names}."


async def ask(http: httpx.AsyncClient, model: str, number: int, client: Client, until: float) -> None:
    """One client's answers, one after the other."""
    turn = 0
    while time.monotonic() < until:
        turn += 1
        body = {"model": model, "max_tokens": MAX_TOKENS, "stream": True, "seed": number * 1000 + turn}
        body["messages"] = [{"role": "user", "content": prompt(number, turn)}]
        try:
            await answer(http, body, client, leaves=turn % LEAVES == 0)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            client.errors[f"{type(error).__name__}: {error}"[:200]] += 1


async def answer(http: httpx.AsyncClient, body: dict, client: Client, leaves: bool) -> None:
    """One answer; raises on anything but a whole one, or one that was left."""
    start = last = time.monotonic()
    begun, reason, lines = False, None, []
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.is_error:
            raise ValueError((await response.aread()).decode())
        async for line in response.aiter_lines():
            lines.append(line)
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            choice = event["choices"][0]  # an error event has none
            if choice["delta"].get("content"):
                now = time.monotonic()
                if begun:
                    client.longest_gap_s = max(client.longest_gap_s, now - last)
                else:
                    client.first_s.append(now - start)
                begun, last = True, now
                client.tokens += 1
                if leaves and client.tokens % 7 == 0:
                    client.left += 1
                    return
            reason = choice["finish_reason"] or reason
    if reason not in ("stop", "length") or "data: [DONE]" not in lines:
        raise ValueError(f"an answer broke off: finish_reason {reason!r}")
    client.answers += 1


async def watch(process: psutil.Process, seconds: float) -> list[tuple[float, float]]:
    """Memory of a server and its engine, in MiB, at ten points of a run."""
    taken = []
    for _ in range(NUM_SAMPLES):
        await asyncio.sleep(seconds / NUM_SAMPLES)
        engines = process.children(recursive=True)
        mib = [p.memory_info().rss / 2**20 for p in (process, *engines)]
        taken.append((mib[0], sum(mib[1:])))
    return taken


async def run(url: str, process: psutil.Process, num_clients: int, seconds: float) -> Load:
    """Put load on the server at `url`, which runs as `process`."""
    clients = [Client() for _ in range(num_clients)]
    limits = httpx.Limits(max_connections=num_clients, max_keepalive_connections=num_clients)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits, trust_env=False) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        until = time.monotonic() + seconds
        asks = [ask(http, model, i, client, until) for i, client in enumerate(clients)]
        memory, *_ = await asyncio.gather(watch(process, seconds), *asks)
    return Load(seconds, clients, memory)


def serve_and_run(arguments: Sequence[str], num_clients: int, seconds: float) -> Load:
    """Start `strata serve` with these arguments and put load on it."""
    command = [sys.executable, "-m", "strata", "serve", "--port", "0", "--attached", *arguments]
    # Its log would fill a pipe that nobody reads.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            url = process.stdout.readline().split()[-1]
            return asyncio.run(run(url, psutil.Process(process.pid), num_clients, seconds))
        finally:
            process.stdin.close()  # which ends it


def spread(values: Sequence[float], unit: str = "") -> str:
    """Least, middle and greatest value."""
    ordered = sorted(values)
    return " / ".join(f"{ordered[i]:.4g}{unit}" for i in (0, len(ordered) // 2, -1))


def report(load: Load) -> str:
    """The run in words."""
    clients = load.clients
    tokens = sum(client.tokens for client in clients)
    answers, left = (sum(getattr(c, name) for c in clients) for name in ("answers", "left"))
    firsts = [max(client.first_s, default=load.seconds) for client in clients]
    lines = [
        f"{len(clients)} clients, {load.seconds:.0f} s: {answers} answers, {left} left, {tokens} tokens, "
        f"{tokens / load.seconds:.1f} tokens/s",
        f"errors: {dict(load.errors) or 'none'}",
        f"answers of a client (least / middle / most): {spread([c.answers + c.left for c in clients])}",
        f"tokens of a client: {spread([c.tokens for c in clients])}",
        f"longest wait for a first token: {spread(firsts, ' s')}",
        f"longest wait between tokens: {spread([c.longest_gap_s for c in clients], ' s')}",
        "server, MiB: " + " ".join(f"{server:.0f}" for server, _ in load.memory),
        "engine, MiB: " + " ".join(f"{engine:.0f}" for _, engine in load.memory),
    ]
    return "\n".join(lines)


def main() -> int:
    """Run and print; 1 if a request failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default="embedded")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--lanes", type=int, default=8)
    args = parser.parse_args()
    load = serve_and_run(["--model", args.model, "--lanes", str(args.lanes)], args.clients, args.seconds)
    print(report(load))
    return 1 if load.errors else 0


if __name__ == "__main__":
    sys.exit(main())
