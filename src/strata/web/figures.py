"""Figures of the monitor: a number each, what it is of, and its last two minutes as a line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nicegui import ui

from strata.web.sampling import HISTORY_S, Sample

_COLOUR = "#2a8f7a"  # seen well on light and on dark


@dataclass(frozen=True, slots=True)
class Figure:
    """What a tile shows.

    Args:
        name: of the figure.
        unit: behind its number.
        value: the number, if there is one.
        note: a line below it.
    """

    name: str
    unit: str
    value: Callable[[Sample], float | None]
    note: Callable[[Sample], str]


def number(value: float) -> str:
    """`0`, `0.42`, `7.0`, `48.2`, `1,204`; integers as they are."""
    if isinstance(value, int) or value == 0 or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 1 else f"{value:.1f}"


def size(num_bytes: float) -> str:
    """`512 KiB`, `4.9 MiB`, `73.0 GiB`."""
    for unit in ("KiB", "MiB", "GiB"):
        num_bytes /= 1024
        if num_bytes < 1000 or unit == "GiB":
            break
    return f"{number(num_bytes)} {unit}"


def _count(value: int | None, words: str) -> str:
    return "" if value is None else f"{value:,} {words}"


def _lanes(sample: Sample) -> str:
    status = sample.status
    waiting = sum(request.state == "queued" for request in status.requests)
    note = f"{len(status.requests) - waiting} of {status.lanes} lanes at work"
    return f"{note}, {waiting} waiting" if waiting else note


def _machine(sample: Sample) -> str:
    cpus = sample.status.machine.cpus
    busy = "" if sample.machine_share is None else f"{100 * sample.machine_share:.0f} % of "
    return f"the machine: {busy}{cpus} CPUs{' busy' if busy else ''}"


def _rss(sample: Sample) -> float:
    processes = sample.status.processes
    return sum(use.rss_bytes for use in (processes.server, processes.engine) if use) / 2**30


FIGURES = (
    Figure(
        *("Writing", "tokens/s", lambda s: s.status.speed.tokens_per_s),
        lambda s: _count(s.status.completion_tokens, "written so far"),
    ),
    Figure(
        *("Reading", "tokens/s", lambda s: s.status.speed.prompt_tokens_per_s),
        lambda s: _count(s.status.cached_tokens, "needed no reading"),
    ),
    Figure(
        *("First token", "s", lambda s: s.status.speed.first_token_s),
        lambda s: "of the answer that began last" if s.status.speed.first_token_s else "no request yet",
    ),
    Figure("Requests", "", lambda s: len(s.status.requests), _lanes),
    Figure("Processor", "cores", lambda s: s.engine_cores, _machine),
    Figure(
        *("Memory", "GiB", _rss),
        lambda s: f"{size(s.status.machine.ram_available_bytes)} can still be taken",
    ),
)


class Tile:
    """A figure on a page."""

    def __init__(self, figure: Figure):
        self.figure = figure
        with ui.element("section").classes("strata-tile").props(f'aria-label="{figure.name}"'):
            with ui.element("div").classes("strata-tile-head"):
                ui.label(figure.name)
                self._peak = ui.label().classes("strata-tile-peak")
            with ui.element("div").classes("strata-tile-value"):
                self._value = ui.label("–").classes("strata-tile-number")
                ui.label(figure.unit)
            self._note = ui.label().classes("strata-note")
            self._chart = ui.echart(_line(figure.unit)).classes("strata-tile-chart").props("aria-hidden=true")

    def show(self, history: Sequence[Sample]) -> None:
        """Show the newest of some looks, and all as a line."""
        newest = history[-1]
        value = self.figure.value(newest)
        self._value.text = "–" if value is None else number(value)
        self._note.text = self.figure.note(newest)
        points = [[round(sample.at - newest.at, 1), self.figure.value(sample)] for sample in history]
        peak = max((y for _, y in points if y is not None), default=None)
        self._peak.text = f"peak {number(peak)}" if peak else ""
        options = self._chart.options
        options["yAxis"]["max"] = max(1, peak or 0)  # or an idle server's noise would fill the tile
        options["series"][0]["data"] = [[x, None if y is None else round(y, 3)] for x, y in points]
        self._chart.update()


def _line(unit: str) -> dict:
    """ECharts' options of a line without axes; seconds before now to the left."""
    ago = "`${Math.round(-p[0].value[0])} s ago: ${(+p[0].value[1]).toLocaleString('en')} " + unit + "`"
    return {
        "animation": False,
        "grid": {"left": 0, "right": 0, "top": 4, "bottom": 1},
        "xAxis": {"type": "value", "show": False, "min": -HISTORY_S, "max": 0},
        "yAxis": {"type": "value", "show": False, "min": 0},
        "tooltip": {"trigger": "axis", ":formatter": f"(p) => {ago}", "confine": True},
        "series": [
            {
                "type": "line",
                "showSymbol": False,
                "data": [],
                "lineStyle": {"width": 2, "color": _COLOUR},
                "itemStyle": {"color": _COLOUR},
                "areaStyle": {"color": _COLOUR, "opacity": 0.15},
            }
        ],
    }
