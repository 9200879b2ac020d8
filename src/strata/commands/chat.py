"""`strata chat`: a conversation in the terminal, with a server of its own or a running one."""

from contextlib import closing

from rich.console import Console

from strata.client import ChatClient, ServerError
from strata.commands.model_path import with_model_path
from strata.local_server import LocalServer
from strata.options import Options
from strata.terminal import line_reader, read_message, show_answer

HELP = """\
/reset   start a new conversation
/help    this text
/exit    leave, as Ctrl+D does
A line that ends in \\ goes on in the next one; \"\"\" begins and ends a text of several lines.
Ctrl+C stops an answer."""


def run(options: Options) -> None:
    """Talk until /exit or Ctrl+D."""
    console = Console()
    if options.url:
        with ChatClient(options.url, options.api_key) as client:
            Chat(options, client, console).run()
        return
    options = with_model_path(options)  # a download shows its own progress
    with LocalServer(options) as server:
        with console.status("loading the model"):
            url = server.wait_ready()
        with ChatClient(url) as client:
            Chat(options, client, console, server).run()


class Chat:
    """The conversation so far and the loop that extends it.

    Args:
        options: system message and sampling.
        client: speaks to the server.
        console: where answers go.
        server: the server when it is our own, to say why it ended.
    """

    def __init__(
        self, options: Options, client: ChatClient, console: Console, server: LocalServer | None = None
    ):
        self.options, self.client, self.console, self.server = options, client, console, server
        self.model = client.model_name()
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        system = self.options.system
        self.messages = [{"role": "system", "content": system}] if system else []

    def run(self) -> None:
        """Read messages and answer them until the person leaves."""
        read_line = line_reader()
        if self.console.is_terminal:
            title = f"{self.model}   /help lists the commands, Ctrl+D leaves"
            self.console.print(title, style="bold", markup=False, highlight=False)
        while True:
            try:
                text = read_message(read_line).strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                self.console.print("Ctrl+D or /exit leaves")
                continue
            if text == "/exit":
                return
            if text.startswith("/") and "\n" not in text:
                self.command(text)
            elif text:
                self.answer(text)

    def command(self, text: str) -> None:
        """Do what a line that begins with a slash says."""
        if text == "/reset":
            self.reset()
            self.console.print("a new conversation")
        elif text == "/help":
            self.console.print(HELP, markup=False, highlight=False)
        else:
            self.console.print(f"{text.split()[0]} is no command; /help lists them", markup=False)

    def answer(self, text: str) -> None:
        """Send `text`, show the answer, and keep both; of a stopped answer, what was shown of it.

        Raises:
            ServerError: our own server has ended.
        """
        self.messages.append({"role": "user", "content": text})
        collected: list[str] = []
        sampling = {"temperature": self.options.temperature, "max_tokens": self.options.max_tokens}
        sampling = {name: value for name, value in sampling.items() if value is not None}
        try:
            with closing(self.client.stream(self.model, self.messages, **sampling)) as deltas:
                show_answer(self.console, deltas, collected)
        except KeyboardInterrupt:
            self.console.print("\n[dim]stopped[/dim]")
        except ServerError as error:
            if self.server and not self.server.alive:
                raise ServerError(self.server.obituary()) from error
            self.console.print(f"\n{error}", style="red", markup=False, highlight=False)
        if collected:
            self.messages.append({"role": "assistant", "content": "".join(collected)})
        else:
            self.messages.pop()  # unanswered: two user messages in a row would confuse the template
