"""`strata chat`: a conversation in the terminal, with a server of its own or a running one."""

import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from strata.client import ChatClient, ServerError, whole_characters
from strata.commands.model_path import with_model_path
from strata.errors import StrataError, UsageError
from strata.local_server import LocalServer
from strata.options import Options, Think
from strata.terminal import line_reader, read_message, say, show_answer

HELP = """\
/system TEXT       set the system message; alone it shows it, "" removes it
/think LEVEL       off, low, medium or high; alone it leaves thinking to the model
/retry             answer the last message again
/clear             start a new conversation
/save FILE         write the conversation, as JSON of OpenAI's messages
/load FILE         go on with one
/stats             tokens and speed of the last answer
/help              this text
/exit              leave, as Ctrl+D does
A line that ends in \\ goes on in the next one, as with Alt+Enter; \"\"\" begins and ends a longer text.
Ctrl+C stops an answer."""
# Options of `chat` that go into requests under their own names.
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens")


class CommandError(StrataError):
    """A command cannot be done as it was typed."""


def run(options: Options) -> None:
    """Talk until /exit or Ctrl+D; what is piped in is one message, and its answer is all that is written.

    Raises:
        UsageError: nothing is piped in.
    """
    console, message = Console(), _piped_message()
    tools = None if options.tools is None else _read_list(options.tools, "tools")  # before a model is loaded
    if options.url:
        key = options.api_key.split(",")[0] if options.api_key else None
        with ChatClient(options.url, key) as client:
            _talk(Chat(options, client, console, tools), message)
        return
    options = with_model_path(options)  # a download shows its own progress
    with LocalServer(options) as server:
        with Console(stderr=True).status("loading the model"):
            url = server.wait_ready()
        with ChatClient(url) as client:
            _talk(Chat(options, client, console, tools, server), message)


def _piped_message() -> str | None:
    """What is piped in; None where a person types."""
    if sys.stdin is not None and sys.stdin.isatty():
        return None
    text = sys.stdin.buffer.read().decode("utf-8", "replace").strip() if sys.stdin is not None else ""
    if not text:
        raise UsageError("nothing came in: pipe a message into `strata chat`, or run it in a terminal")
    return text


def _talk(chat: "Chat", message: str | None) -> None:
    if message is None:
        chat.run()
    else:
        chat.once(message)


class Chat:
    """The conversation so far and the loop that extends it.

    Args:
        options: system message, thinking and sampling.
        client: speaks to the server.
        console: where answers go.
        tools: that the model may call.
        server: the server when it is our own, to say why it ended.
    """

    def __init__(
        self,
        options: Options,
        client: ChatClient,
        console: Console,
        tools: list[dict[str, Any]] | None = None,
        server: LocalServer | None = None,
    ):
        self.client, self.console, self.server = client, console, server
        self.card = client.model()
        self.think: Think | None = options.think
        self.fields: dict[str, Any] = {
            name: value for name in _SAMPLING if (value := getattr(options, name)) is not None
        }
        if tools is not None:
            self.fields["tools"] = tools
        self.messages: list[dict[str, Any]] = []
        self._read_line: Callable[[str], str] = _nobody
        if options.system:
            self.system(options.system)
        self._commands: dict[str, Callable[[str], None]] = {
            "/system": self.system,
            "/think": self.set_think,
            "/retry": self.retry,
            "/clear": self.clear,
            "/save": self.save,
            "/load": self.load,
            "/stats": self.stats,
            "/help": lambda rest: say(self.console, HELP),
        }

    def run(self) -> None:
        """Read messages and answer them until the person leaves."""
        self._read_line = line_reader()
        if self.console.is_terminal:
            title = f"{self.card['id']}   /help lists the commands, Ctrl+D leaves"
            say(self.console, title, style="bold")
        while True:
            try:
                text = read_message(self._read_line).strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                say(self.console, "Ctrl+D or /exit leaves")
                continue
            if text == "/exit":
                return
            try:
                if text.startswith("/") and "\n" not in text:
                    self.command(text)
                elif text:
                    self.answer(text)
            except (CommandError, ServerError) as error:
                if self.server and not self.server.alive:
                    raise ServerError(self.server.obituary()) from error
                say(self.console, f"{error}", style="red")

    def once(self, text: str) -> None:
        """Answer one message: the answer alone goes to standard output.

        Raises:
            ServerError: it did not come, or not in full.
        """
        self.messages.append({"role": "user", "content": text})
        self._stream(asides=Console(stderr=True))

    # --- commands -----------------------------------------------------------------------------------

    def command(self, text: str) -> None:
        """Do what a line that begins with a slash says."""
        name, _, rest = text.partition(" ")
        if name not in self._commands:
            raise CommandError(f"{name} is no command; /help lists them")
        self._commands[name](rest.strip())

    def system(self, text: str) -> None:
        """Set, show or remove the system message."""
        spoken = [m for m in self.messages if m["role"] != "system"]
        if not text:
            system = [str(m.get("content") or "") for m in self.messages if m["role"] == "system"]
            say(self.console, "\n".join(system) or "there is no system message")
        elif text == '""':
            self.messages = spoken
        else:
            self.messages = [{"role": "system", "content": text}, *spoken]

    def set_think(self, level: str) -> None:
        """Choose how much the model thinks."""
        if level and level not in get_args(Think):
            raise CommandError(f"/think {level}: {', '.join(get_args(Think))} or nothing is expected")
        self.think = level or None  # type: ignore[assignment]  # one of them
        say(self.console, f"thinking: {level or 'as the model does'}")

    def clear(self, rest: str) -> None:
        """Forget everything but the system message."""
        self.messages = [m for m in self.messages if m["role"] == "system"]
        say(self.console, "a new conversation")

    def retry(self, rest: str) -> None:
        """Answer the last message of the person again."""
        last = next((i for i, m in reversed([*enumerate(self.messages)]) if m["role"] == "user"), None)
        if last is None:
            raise CommandError("/retry: nothing was asked yet")
        before = list(self.messages)
        del self.messages[last:]
        try:
            self.answer(before[last]["content"])
        finally:
            if len(self.messages) <= last:  # no answer came: the one before stays
                self.messages = before

    def save(self, path: str) -> None:
        """Write the conversation."""
        if not path:
            raise CommandError("/save: the name of a file is missing")
        text = json.dumps(self.messages, ensure_ascii=False, indent=1)
        try:
            _path(path).write_text(whole_characters(text) + "\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{path}: cannot be written: {error.strerror}") from error
        say(self.console, f"{len(self.messages)} messages in {path}")

    def load(self, path: str) -> None:
        """Go on with a conversation that was saved."""
        if not path:
            raise CommandError("/load: the name of a file is missing")
        messages = _read_list(_path(path), "messages")
        if not all(isinstance(m.get("role"), str) for m in messages):
            raise CommandError(f"{path}: holds a message without a role")
        self.messages = messages
        say(self.console, f"{len(messages)} messages from {path}")

    def stats(self, rest: str) -> None:
        """Tokens and speed of the last answer."""
        reply = self.client.reply
        prompt, answer = reply.usage.get("prompt_tokens", 0), reply.usage.get("completion_tokens", 0)
        if not reply.usage:
            raise CommandError("/stats: there is no answer that came to its end yet")
        cached = (reply.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        context = f" of {length}" if (length := self.card.get("context_length")) else ""
        read, written = (_speed(reply.timings, part) for part in ("prompt", "predicted"))
        say(self.console, f"prompt   {prompt:7} tokens, {cached} of them cached{read}")
        say(self.console, f"answer   {answer:7} tokens{written}")
        say(self.console, f"context  {prompt + answer:7}{context} tokens")

    # --- answers ------------------------------------------------------------------------------------

    def answer(self, text: str) -> None:
        """Send `text` and show the answer, and those to what its calls give.

        Of an answer that is stopped, what was shown is kept.

        Raises:
            ServerError: there is no answer; the message is forgotten.
        """
        begin = len(self.messages)
        self.messages.append({"role": "user", "content": text})
        try:
            self._stream()
            while self._take_results():
                self._stream()
        except (KeyboardInterrupt, EOFError):  # at an answer, or at the result of a call
            say(self.console, "\nstopped", style="dim")
        finally:
            # Unanswered messages would stand beside the next one, which confuses templates.
            if self.messages[-1]["role"] != "assistant" or "tool_calls" in self.messages[-1]:
                del self.messages[begin:]

    def _stream(self, asides: Console | None = None) -> None:
        """Show an answer and append it, as far as it comes."""
        fields = self.fields
        if self.think is not None:
            fields = fields | {"reasoning_effort": "none" if self.think == "off" else self.think}
        ended = False
        try:
            with closing(self.client.stream(self.card["id"], self.messages, **fields)) as deltas:
                show_answer(self.console, deltas, asides)
            ended = True
        finally:
            if ended or self.client.reply.content:
                self.messages.append(self.client.reply.message())

    def _take_results(self) -> bool:
        """Ask the person what the calls of the last answer give; returns whether there are any."""
        calls = self.messages[-1].get("tool_calls", ())
        for call in calls:
            result = read_message(self._read_line, f"{call['function']['name']} gives> ")
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return bool(calls)


def _nobody(prompt: str) -> str:
    """Reads lines where nobody types."""
    raise EOFError


def _speed(timings: dict[str, Any], part: str) -> str:
    rate = timings.get(f"{part}_per_second")
    return f", {rate:.1f} tokens/s" if rate else ""


def _path(text: str) -> Path:
    """A path that a person typed."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~ of nobody
        raise CommandError(f"{text}: {error}") from error


def _read_list(path: Path, what: str) -> list[dict[str, Any]]:
    """A list of objects from a JSON file."""
    try:
        items = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path}: is not JSON: {error}") from error
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise CommandError(f"{path}: is not a list of {what}")
    return items
