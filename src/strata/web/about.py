"""The page *About*: addresses for clients, options and where their values come from, model, versions."""

import asyncio
import json
from collections.abc import Iterable, Sequence

from nicegui import ui

from strata import __version__
from strata.errors import StrataError
from strata.options import SCHEMA, Options, flag_name, options_of
from strata.serve.backend import Backend
from strata.web.facts import Package, client_pages, model_facts, packages
from strata.web.markdown import render
from strata.web.panels import panel, rows
from strata.web.shell import Page, frame, icon_button


def _addresses(url: str, backend: Backend) -> None:
    asks = backend.options.asks_for_key
    key = "one that the server was started with" if asks else "none is asked for; any text will do"
    addresses = {
        "OpenAI": f"{url}/v1",
        "Anthropic": url,
        "llama.cpp": url,
        "Model": backend.name,
    }
    with panel("For clients"), ui.element("table").classes("strata-rows"), ui.element("tbody"):
        for name, value in addresses.items():
            with ui.element("tr"):
                with ui.element("th").props("scope=row"):
                    ui.label(name)
                with ui.element("td"):
                    ui.label(value).classes("strata-address")
                with ui.element("td").classes("strata-number"):
                    button = icon_button("content_copy", f"Copy {value}")
                    button.on("click", js_handler=f"() => strata.copyAndTell({json.dumps(value)})")
        with ui.element("tr"):
            with ui.element("th").props("scope=row"):
                ui.label("Key")
            with ui.element("td").props("colspan=2"):
                ui.label(key)


def _clients(pages: Sequence[tuple[str, str]]) -> None:
    with panel("What to set in well-known clients"):
        for name, html in pages:
            with ui.element("details").classes("strata-client"):
                with ui.element("summary"):
                    ui.label(name)
                ui.html(html, sanitize=False).classes("strata-text")  # `render` made it safe


def _options(options: Options) -> None:
    with panel("Options"):
        table = []
        for name in options_of("serve"):
            value = _shown(name, getattr(options, name))
            table.append((flag_name(name), value, options.origin(name), str(SCHEMA[name].description)))
        rows(("Option", "Value", "From", "What it does"), table, wide=(3,))


def _shown(name: str, value: object) -> str:
    if name == "api_key":
        return "set" if value else "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not given" if value is None else str(value)


def _model(backend: Backend, file_facts: dict[str, str]) -> None:
    state = backend.state()
    facts = {
        "Served as": ", ".join(dict.fromkeys([backend.name, *map(str, backend.aliases)])),
        "Architecture": state.get("architecture"),
        "Context": f"{state['context_length']:,} tokens" if "context_length" in state else None,
        "Computing with": state.get("kernels"),
        "Float matrices": "as Q8_0" if state.get("dense") == "q8_0" else None,
        "Loaded in": f"{state['load_s']:.1f} s" if "load_s" in state else None,
    }
    info = backend.engine.info
    if info is not None and (experts := info.experts) is not None:
        facts["Experts"] = (
            f"{experts.experts} in each of {len(experts.layers)} layers, {experts.experts_used} for a token"
        )
    facts |= file_facts
    with panel("Model"):
        rows((), [(name, fact) for name, fact in facts.items() if fact])


def _versions(packages: Iterable[Package]) -> None:
    with panel("Versions and licences"):
        table = [(package.name, package.version, package.licence) for package in packages]
        rows(("Package", "Version", "Licence"), [("Strata", __version__, "Apache-2.0"), *table])


async def build(backend: Backend, pages: Sequence[Page]) -> None:
    """Make the page: first what is at hand, then what is read from files."""
    client = ui.context.client
    url = f"{client.request.url.scheme}://{client.request.url.netloc}"  # as this browser reaches the server
    shell = frame(PAGE, pages, backend, own_files=("chat.css", "monitor.css"))
    with shell, ui.element("div").classes("strata-page"):
        _addresses(url, backend)
        await client.connected()
        clients, facts, installed = await asyncio.to_thread(_read, url, backend)
        if clients:
            _clients(clients)
        _model(backend, facts)
        _options(backend.options)
        _versions(installed)


def _read(url: str, backend: Backend) -> tuple[list[tuple[str, str]], dict[str, str], list[Package]]:
    """Pages on clients as HTML, facts of the model's file, and packages."""
    known = {} if backend.engine.info is None else {"context": backend.engine.info.context_length}
    pages = client_pages(url, backend.name, has_key=backend.options.asks_for_key, **known)
    clients = [(page.name, render(page.text)) for page in pages]
    try:
        facts = model_facts(backend.options.model)
    except StrataError as error:
        facts = {"File": str(error)}
    return clients, facts, packages()


PAGE = Page("/about", "About", "info", build)
