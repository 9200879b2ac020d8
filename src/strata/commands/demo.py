"""`strata demo`: load, serve, ask one question through the OpenAI endpoint, and say how fast it was."""

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from rich.console import Console

from strata.client import ChatClient, Delta
from strata.commands.model_path import with_model_path
from strata.local_server import LocalServer
from strata.options import Options
from strata.terminal import say, show_answer

MAX_TOKENS = 200  # a short answer will do, and a model that never ends must not hold the demo


@dataclass
class Stopwatch:
    """When a request began and when the first and last piece of its answer came, in seconds."""

    start: float = field(default_factory=time.perf_counter)
    first: float | None = None
    last: float = 0.0

    def watch(self, deltas: Iterable[Delta]) -> Iterator[Delta]:
        """Pass the pieces on and note their times."""
        for delta in deltas:
            if delta.kind != "silence":
                self.last = time.perf_counter()
                self.first = self.first or self.last
            yield delta

    def speeds(self, prompt_tokens: int, completion_tokens: int) -> tuple[float, float]:
        """Prompt and decode speed in tokens/s, as a client sees them; 0 where there is nothing to measure.

        The first token ends the prompt's time, so the decode time covers all tokens but it.
        """
        if self.first is None:
            return 0.0, 0.0
        decode_s = self.last - self.first
        decode = (completion_tokens - 1) / decode_s if decode_s > 0 else 0.0
        return prompt_tokens / (self.first - self.start), decode


def run(options: Options) -> None:
    """Run the demo; with `--stay` the server goes on until Ctrl+C."""
    console = Console()
    options = with_model_path(options)
    with LocalServer(options) as server:
        with console.status("loading the model"):
            url = server.wait_ready()
        with ChatClient(url) as client:
            model = client.model()["id"]
            say(console, f"{model} at {url}/v1\n", style="bold")
            say(console, f"> {options.question}\n", style="bold")
            watch = Stopwatch()
            messages = [{"role": "user", "content": options.question}]
            stream = client.stream(model, messages, max_tokens=MAX_TOKENS, temperature=0)
            with closing(stream) as deltas:
                show_answer(console, watch.watch(deltas))
            report(console, client.get("/health"), watch.speeds(*tokens_of(client.reply.usage)))
        advise(console, url if options.stay else None)
        if options.stay:
            server.wait()


def tokens_of(usage: dict) -> tuple[int, int]:
    """Prompt and completion tokens of a usage object."""
    return usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)


def report(console: Console, health: dict, speeds: tuple[float, float]) -> None:
    """Print load time, speeds, and memory by purpose."""
    prompt, decode = speeds
    say(console, f"\nkernels {health['kernels']}")
    say(console, f"load    {health['load_s']:8.2f} s")
    say(console, f"prompt  {prompt:8.1f} tokens/s")
    say(console, f"decode  {decode:8.1f} tokens/s")
    for part in health["memory"]:
        say(console, f"memory  {part['bytes'] / 2**20:8.1f} MiB  {part['purpose']} ({part['tier']})")


def advise(console: Console, url: str | None) -> None:
    """Say what to run next; `url` is the server that stays, if it does."""
    say(console, f"\nTalk to it            ./strata chat{f' --url {url}' if url else ''}")
    if url:
        say(console, f"                      or in your browser: {url}")
    say(console, "Serve a bigger model  ./strata serve --model FILE.gguf")
    say(console, "                      ./strata serve --model hf:owner/repo[:file]")
    if url:
        say(console, "\nServing until Ctrl+C.")
