"""Panels and tables that more than one page is made of."""

from collections.abc import Collection, Iterable, Sequence

from nicegui import ui


def panel(name: str) -> ui.element:
    """A framed part of a page with a heading; a context manager for what is in it."""
    section = ui.element("section").classes("strata-panel").props(f'aria-label="{name}"')
    with section, ui.element("h2"):
        ui.label(name)
    return section


def rows(heads: Sequence[str], table: Iterable[Sequence[str]], wide: Collection[int] = ()) -> None:
    """A table of texts whose first column names the rows.

    Args:
        heads: of the columns; none for a table of two columns that needs no heads.
        table: its rows.
        wide: columns that a narrow window does without.
    """

    def classes(column: int) -> str:
        return "strata-wide" if column in wide else ""

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
