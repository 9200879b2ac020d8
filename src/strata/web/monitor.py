"""The page *Monitor*: what the server does, live."""

from collections.abc import Sequence

from nicegui import ui

from strata.engine.messages import MemoryPart
from strata.errors import RequestError
from strata.serve.backend import Backend
from strata.serve.requests import RequestReport
from strata.serve.status_schemas import CardReport, Status
from strata.web.figures import FIGURES, Tile, number, size
from strata.web.heatmap import HeatMap
from strata.web.panels import panel, shares
from strata.web.sampling import PERIOD_S, Sampler
from strata.web.shell import Page, frame, icon_button


class Monitor:
    """The page in one browser.

    Args:
        sampler: looks at the server.
    """

    def __init__(self, sampler: Sampler):
        self.sampler = sampler
        self._client = ui.context.client
        self._parts: list[MemoryPart] = []
        self._rows: dict[str, RequestRow] = {}
        self._card_rows: list[CardRow] = []
        self._heat: HeatMap | None = None

    def build(self) -> None:
        """Make the page's elements, and keep them up to date while the page is shown."""
        with ui.element("div").classes("strata-page"):
            with ui.element("div").classes("strata-state").props("role=status"):
                self._dot = ui.element("span").classes("strata-dot").props("aria-hidden=true")
                self._state = ui.label()
            with ui.element("div").classes("strata-tiles"):
                self._tiles = [Tile(figure) for figure in FIGURES]
            self._requests()
            with panel("Memory by purpose") as self._memory:
                self._tiers = ui.element("div")
            self._cards = panel("Graphics cards")
            self._cards.set_visibility(False)
            self._experts = panel("Use of experts")
        ui.timer(PERIOD_S, self.refresh)

    def _requests(self) -> None:
        heads = ("Request", "State", "Prompt read", "Written", "Speed", "Age", "Cancel")
        with panel("Requests under way"):
            self._none = ui.label("None.").classes("strata-note")
            with ui.element("div").classes("strata-scroll-x"):
                self._table = ui.element("table").classes("strata-rows strata-requests")
            with self._table:
                with ui.element("thead"), ui.element("tr"):
                    for head in heads:
                        cell = ui.element("th").props("scope=col")
                        cell.classes("strata-number" if head in ("Written", "Speed", "Age") else "")
                        cell.classes("strata-wide" if head in ("Prompt read", "Age") else "")
                        with cell:
                            ui.label(head).classes("strata-unseen" if head == "Cancel" else "")
                self._body = ui.element("tbody")

    async def refresh(self) -> None:
        """Show the newest look at the server."""
        if not self._client.has_socket_connection:
            return  # nobody sees it; NiceGUI waits a while for the page to come back
        sample = await self.sampler.sample()
        status = sample.status
        self._dot.props["data-status"] = status.status
        self._state.text = _state(status)
        for tile in self._tiles:
            tile.show(self.sampler.history)
        self._show_requests(status.requests)
        self._show_memory(status.memory or [])
        self._show_cards(status.cards)
        self._experts.set_visibility(status.experts is not None)
        if sample.experts is not None:
            if self._heat is None:
                with self._experts:
                    self._heat = HeatMap()
            self._heat.show(sample.experts)

    def _show_requests(self, requests: Sequence[RequestReport]) -> None:
        self._none.set_visibility(not requests)
        self._table.set_visibility(bool(requests))
        ids = {request.id for request in requests}
        for id_ in [id_ for id_ in self._rows if id_ not in ids]:
            self._rows.pop(id_).remove()
        for request in requests:
            if request.id not in self._rows:
                with self._body:
                    self._rows[request.id] = RequestRow(request, self.sampler.backend)
            self._rows[request.id].show(request)

    def _show_memory(self, parts: list[MemoryPart]) -> None:
        self._memory.set_visibility(bool(parts))
        if parts == self._parts:
            return
        self._parts = parts
        self._tiers.clear()
        with self._tiers:
            for tier in dict.fromkeys(part.tier for part in parts):
                own = {part.purpose: part.bytes for part in parts if part.tier == tier}
                shares(f"{tier}: {size(sum(own.values()))}", own)

    def _show_cards(self, cards: Sequence[CardReport]) -> None:
        if not cards:
            return  # nor will there be any
        self._cards.set_visibility(True)
        if len(self._card_rows) != len(cards):
            with self._cards:
                self._card_rows = [CardRow(card.name) for card in cards]
        for row, card in zip(self._card_rows, cards, strict=True):
            row.show(card)


class CardRow:
    """A graphics card: what its memory holds, and what its sensors say."""

    def __init__(self, name: str):
        with ui.element("div").classes("strata-card"):
            ui.label(name).classes("strata-tier")
            with ui.element("div").classes("strata-bar").props("aria-hidden=true"):
                self._bar = ui.element("div")
            self._words = ui.label().classes("strata-note")

    def show(self, card: CardReport) -> None:
        """Show it as it is now."""
        used = card.vram_bytes - card.free_bytes
        self._bar.style(f"width: {100 * used / max(card.vram_bytes, 1):.1f}%")
        self._words.text = describe_card(card)


def describe_card(card: CardReport) -> str:
    """`3.1 GiB of 24.0 GiB VRAM in use · 62 °C · 180 W of 300 W · PCIe 4 x16 · 2.1 GB/s to it`."""
    told = [f"{size(card.vram_bytes - card.free_bytes)} of {size(card.vram_bytes)} VRAM in use"]
    if card.temperature_c is not None:
        told.append(f"{card.temperature_c:.0f} °C")
    if card.power_w is not None:
        limit = "" if card.power_limit_w is None else f" of {card.power_limit_w:.0f} W"
        told.append(f"{card.power_w:.0f} W{limit}")
    if card.pcie_generation is not None and card.pcie_width is not None:
        told.append(f"PCIe {card.pcie_generation} x{card.pcie_width}")
    if card.link_load is not None:
        told.append(f"{card.link_load / 1e9:.1f} GB/s to it")
    return " · ".join(told)


class RequestRow:
    """A request in the table.

    Args:
        request: its first report.
        backend: can end it.
    """

    def __init__(self, request: RequestReport, backend: Backend):
        self.id, self.backend = request.id, backend
        with ui.element("tr") as self._row:
            with ui.element("td"):
                ui.label(request.protocol)
                ui.label(request.id).classes("strata-id strata-wide")
            with ui.element("td"):
                self._state = ui.label()
            with ui.element("td").classes("strata-wide"):
                with ui.element("div").classes("strata-bar").props("aria-hidden=true"):
                    self._bar = ui.element("div")
                self._read = ui.label().classes("strata-note")
            self._written, self._speed = _number_cell(), _number_cell()
            self._age = _number_cell("strata-wide")
            with ui.element("td").classes("strata-number"):
                icon_button("close", f"Cancel {request.protocol} request {request.id[-4:]}", self._cancel)

    def show(self, request: RequestReport) -> None:
        """Show how far it is."""
        self._state.text = request.state
        share = request.prompt_tokens_read / request.prompt_tokens
        self._bar.style(f"width: {100 * share:.1f}%")
        self._read.text = f"{request.prompt_tokens_read:,} of {request.prompt_tokens:,}"
        self._written.text = f"{request.completion_tokens:,}"
        speed = request.tokens_per_s
        self._speed.text = "–" if speed is None else f"{number(round(speed, 1))}/s"
        self._age.text = f"{request.age_s:.0f} s"

    def remove(self) -> None:
        """Take the row out of the table."""
        self._row.delete()

    async def _cancel(self) -> None:
        try:
            await self.backend.cancel(self.id)
        except RequestError:
            ui.notify("This request had ended already.")


def _number_cell(classes: str = "") -> ui.label:
    with ui.element("td").classes(f"strata-number {classes}"):
        return ui.label()


def _state(status: Status) -> str:
    """One line on the server."""
    if status.status == "ok":
        busy = "" if status.lanes_held is not None else " · busy with one long step"
        return f"{status.model} · {status.architecture} · {status.kernels}{busy}"
    if status.status == "loading":
        return status.progress or "loading the model"
    return f"dead: {status.reason}; {status.note}" if status.note else f"dead: {status.reason}"


_SAMPLERS: dict[Backend, Sampler] = {}  # a process serves one, a test may serve more


async def build(backend: Backend, pages: Sequence[Page]) -> None:
    """Make the page."""
    sampler = _SAMPLERS.setdefault(backend, Sampler(backend))
    with frame(PAGE, pages, backend, own_files=("monitor.css", "monitor.js")):
        Monitor(sampler).build()


PAGE = Page("/monitor", "Monitor", "monitor_heart", build)
