"""Panels and tables that more than one page is made of."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import cycle

from nicegui import ui

from strata.web.figures import size

# Of the parts of memory; told apart on light and dark.
_COLOURS = ("#2a8f7a", "#e8a33d", "#5b8fd9", "#b06fc4", "#c4695a", "#7d8b88", "#93b545", "#6a5acd")


def panel(name: str) -> ui.element:
    """A framed part of a page with a heading; a context manager for what is in it."""
    section = ui.element("section").classes("strata-panel").props(f'aria-label="{name}"')
    with section, ui.element("h2"):
        ui.label(name)
    return section


def rows(
    heads: Sequence[str],
    table: Iterable[Sequence[str]],
    wide: Collection[int] = (),
    numbers: Collection[int] = (),
) -> None:
    """A table of texts whose first column names the rows.

    Args:
        heads: of the columns; none for a table of two columns that needs no heads.
        table: its rows.
        wide: columns that a narrow window does without.
        numbers: columns of numbers.
    """

    def classes(column: int) -> str:
        return f"{'strata-wide' if column in wide else ''} {'strata-number' if column in numbers else ''}"

    with (
        ui.element("div").classes("strata-scroll-x"),
        ui.element("table").classes("strata-rows strata-facts"),
    ):
        if heads:
            with ui.element("thead"), ui.element("tr"):
                for column, head in enumerate(heads):
                    with ui.element("th").props("scope=col").classes(classes(column)):
                        ui.label(head)
        with ui.element("tbody"):
            for name, *cells in table:
                with ui.element("tr"):
                    with ui.element("th").props("scope=row"):
                        ui.label(name)
                    for column, cell in enumerate(cells, 1):
                        with ui.element("td").classes(classes(column)):
                            ui.label(cell)


def shares(title: str, parts: Mapping[str, int], total: int | None = None) -> None:
    """What some memory is used for, as a bar and a table.

    Args:
        title: above them.
        parts: purposes and their bytes.
        total: of the memory, which the bar stands for; the sum of the parts where it is larger or not given.
    """
    whole = max(total or 0, sum(parts.values()), 1)
    coloured = list(zip(parts.items(), cycle(_COLOURS), strict=False))
    ui.label(title).classes("strata-tier")
    with ui.element("div").classes("strata-shares").props("aria-hidden=true"):
        for (_, num_bytes), colour in coloured:
            ui.element("div").style(f"width: {100 * num_bytes / whole:.3f}%; background: {colour}")
    with ui.element("table").classes("strata-rows"), ui.element("tbody"):
        for (purpose, num_bytes), colour in coloured:
            with ui.element("tr"):
                with ui.element("td"):
                    ui.element("span").classes("strata-swatch").style(f"background: {colour}")
                    ui.label(purpose).classes("strata-purpose")
                with ui.element("td").classes("strata-number"):
                    ui.label(size(num_bytes))
