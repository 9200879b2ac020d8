"""The page *Plan*: what models would take on this machine or another, and how fast they would be."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
from nicegui import ui

from strata.engine.scripted import PREFIX
from strata.errors import StrataError
from strata.formats.checkpoint import open_checkpoint
from strata.formats.description import ModelDescription
from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import mixes_of
from strata.hardware.description import Hardware, Ram
from strata.hardware.known_cards import KNOWN_CARDS, known_card
from strata.hardware.machine import this_machine
from strata.plan import GIB, Plan, Wishes, plan
from strata.serve.backend import Backend
from strata.web.figures import number, size
from strata.web.panels import panel, rows, shares
from strata.web.shell import Page, frame

SERVED, HERE, NO_CARD = "the one that is served", "this machine's", "none"
TAKEN = 5 * GIB  # of another machine's memory: the system, a desktop, a browser
CONTEXTS = (4096, 8192, 32768, 65536, 131072, 262144)
RAM_GIB = (16, 32, 48, 64, 96, 128, 192, 256)


@dataclass(slots=True)
class Question:
    """What is asked of the planner.

    Args:
        model: a name of `GEOMETRIES`, or `SERVED`.
        card: a name of `KNOWN_CARDS`, `HERE` or `NO_CARD`.
        ram_gib: of another machine; None for this one's.
        context: tokens of a conversation; None leaves it to the planner.
    """

    model: str
    card: str
    ram_gib: int | None = None
    context: int | None = None


def answer(question: Question, served: str, here: Hardware) -> list[Plan]:
    """A plan for each quantisation of a known model, or the one of the served model.

    Args:
        question: what is asked.
        served: path of the served model.
        here: this machine.

    Raises:
        StrataError: the served model's file cannot be read.
    """
    hardware = here
    if question.card != HERE:
        cards = () if question.card == NO_CARD else (known_card(question.card),)
        hardware = msgspec.structs.replace(hardware, cards=cards)
    if question.ram_gib is not None:
        total = question.ram_gib * GIB
        ram = Ram(total_bytes=total, available_bytes=max(0, total - TAKEN))
        hardware = msgspec.structs.replace(hardware, ram=ram)
    if question.model == SERVED:
        models = [ModelDescription.of_checkpoint(open_checkpoint(served))]
    else:
        geometry = GEOMETRIES[question.model]
        models = [ModelDescription.of_release(geometry, quant) for quant in mixes_of(geometry)]
    wishes = Wishes(context=question.context)
    return [plan(hardware, model, wishes) for model in models]


def speed(low: float | None, high: float | None) -> str:
    """`48.2 to 85.0`; empty where it is not known."""
    if low is None or high is None:
        return ""
    texts = dict.fromkeys(number(float(value)) for value in (low, high))
    return " to ".join(texts)


class Planner:
    """The page in one browser.

    Args:
        backend: of the server.
        here: this machine.
    """

    def __init__(self, backend: Backend, here: Hardware):
        self.backend, self.here = backend, here
        scripted = backend.options.model.startswith(PREFIX)
        models = [*([] if scripted else [SERVED]), *GEOMETRIES]
        self.question = Question(models[0], HERE if here.cards else NO_CARD)
        self._models = models
        self._rows: dict[str, ui.element] = {}  # of the overview, by the model's name

    def build(self) -> None:
        """Make the page's elements."""
        cards = {NO_CARD: "none, the processor alone"} | {name: name.upper() for name in KNOWN_CARDS}
        if self.here.cards:
            cards = {HERE: f"this machine's {self.here.cards[0].name}"} | cards
        total = size(self.here.ram.total_bytes)
        rams = {None: f"this machine's {total}"} | {gib: f"{gib} GiB" for gib in RAM_GIB}
        contexts = {None: "as long as fits well"} | {tokens: f"{tokens:,} tokens" for tokens in CONTEXTS}
        with panel("What would fit, and how fast"):
            with ui.element("div").classes("strata-form"):
                self._select("model", "Model", {name: name for name in self._models})
                self._select("card", "Graphics card", cards)
                self._select("ram_gib", "Memory", rams)
                self._select("context", "Context", contexts)
            ui.label(
                "Estimates from the sizes of weights and the bandwidths of the machine, before anything is "
                "downloaded or loaded: from a slow case to a fast one. Of graphics cards, Strata was "
                "measured on one alone (docs/plan.md). They hold for large models; the time of a very small "
                "one goes elsewhere."
            ).classes("strata-note")
        self._answer = ui.element("div").classes("strata-answer").props("aria-live=polite")

    def _select(self, field: str, label: str, choices: dict) -> None:
        async def changed(event) -> None:
            setattr(self.question, field, event.value)
            await self.ask()

        select = ui.select(choices, label=label, value=getattr(self.question, field), on_change=changed)
        select.props("dense outlined options-dense")

    async def ask(self) -> None:
        """Plan, and show it."""
        asked = replace(self.question)
        try:
            plans = await asyncio.to_thread(answer, asked, self.backend.options.model, self.here)
        except StrataError as error:
            self._answer.clear()
            with self._answer:
                ui.label(str(error))
            return
        if asked != self.question:
            return  # another question was asked meanwhile, whose answer comes
        self._answer.clear()
        with self._answer:
            self._show(plans)

    def _show(self, plans: Sequence[Plan]) -> None:
        """An overview where there is more than one plan, and the one with most bits that fits in detail."""
        self._rows = {}
        if len(plans) > 1:
            self._overview(plans)
        self._detail = ui.element("div").classes("strata-answer")
        fitting = [made for made in plans if made.fits]
        self._show_detail(
            max(fitting, key=lambda made: made.used("VRAM") + made.used("RAM"), default=plans[0])
        )

    def _overview(self, plans: Sequence[Plan]) -> None:
        heads = ("Quantisation", "Fits", "VRAM", "RAM", "Disk", "Tokens/s")
        with panel("Quantisations"), ui.element("table").classes("strata-rows"):
            with ui.element("thead"), ui.element("tr"):
                for head in heads:
                    wide = "strata-wide" if head in ("VRAM", "Disk") else ""
                    with ui.element("th").props("scope=col").classes(wide):
                        ui.label(head)
            with ui.element("tbody"):
                for made in plans:
                    self._overview_row(made)

    def _overview_row(self, made: Plan) -> None:
        told = speed(*(case.tokens_per_s for case in made.decode)) if made.fits else ""
        with ui.element("tr") as self._rows[made.model]:
            with ui.element("th").props("scope=row"):
                quant = made.model.rpartition(" ")[2]
                button = ui.button(quant, on_click=lambda: self._show_detail(made), color=None)
                button.props("flat dense no-caps").classes("strata-choice")
            cells = ["yes" if made.fits else "no", *(_size(made, tier) for tier in ("VRAM", "RAM", "disk"))]
            for column, cell in enumerate([*cells, told]):
                with ui.element("td").classes("strata-wide" if column in (1, 3) else ""):
                    ui.label(cell)

    def _show_detail(self, made: Plan) -> None:
        for model, row in self._rows.items():
            row.classes(add="strata-chosen") if model == made.model else row.classes(remove="strata-chosen")
        self._detail.clear()
        with self._detail:
            _verdict(made)
            _memory(made)
            _step(made)


def _size(made: Plan, tier: str) -> str:
    used = made.used(tier)
    return size(used) if used else "–"


def _verdict(made: Plan) -> None:
    place = made.card or "the processor"
    with panel(f"{made.model} on {place}: {'fits' if made.fits else 'does not fit'}"):
        facts = {
            "Context": f"{made.context:,} tokens",
            "Writing": f"{speed(*(case.tokens_per_s for case in made.decode))} tokens/s",
        }
        for prompt in made.prompts:
            told = speed(prompt.low, prompt.high)
            if told and prompt.tokens <= made.context:
                facts[f"Reading {prompt.tokens:,} tokens"] = f"{told} tokens/s"
        if made.slots:
            low, high = (100 * case.hit_rate for case in made.decode)
            facts["Experts"] = (
                f"{made.slots:,} slots in VRAM hold {100 * made.resident_share:.0f} % of them; "
                f"{low:.0f} to {high:.0f} % of uses find theirs there"
            )
        if made.fits:
            rows((), facts.items())
        for reason in made.reasons:
            ui.label(reason).classes("strata-note")
        if made.changes:
            ui.label("Each of these would make it fit:")
            with ui.element("ul"):
                for change in made.changes:
                    with ui.element("li"):
                        ui.label(change)


def _memory(made: Plan) -> None:
    with panel("What goes where"):
        for tier, budget in (("VRAM", made.vram_budget), ("RAM", made.ram_budget), ("disk", None)):
            parts = {part.purpose: part.bytes for part in made.parts if part.tier == tier and part.bytes}
            if parts:
                limit = "" if budget is None else f" of {size(budget)}"
                shares(f"{tier}: {size(sum(parts.values()))}{limit}", parts, budget)


def _step(made: Plan) -> None:
    """Where the time of a token goes."""
    with panel("A step of writing, in milliseconds"):
        cases = zip(*(case.terms for case in made.decode), strict=True)
        table = [(slow.name, *(f"{1e3 * case.seconds:.2f}" for case in (slow, fast))) for slow, fast in cases]
        rows(("Part", "Slow case", "Fast case"), table, numbers=(1, 2))


async def build(backend: Backend, pages: Sequence[Page]) -> None:
    """Make the page, and plan for the served model on this machine."""
    shell = frame(PAGE, pages, backend, own_files=("monitor.css",))
    with shell, ui.element("div").classes("strata-page"):
        await ui.context.client.connected()
        info = backend.engine.info
        # The engine's own word for its kernels, e.g. "avx2, 2 threads": here they would bring torch along.
        isa = info.kernels.partition(",")[0] if info is not None else ""
        planner = Planner(backend, await asyncio.to_thread(this_machine, None, isa))
        planner.build()
        await planner.ask()


PAGE = Page("/plan", "Plan", "calculate", build)
