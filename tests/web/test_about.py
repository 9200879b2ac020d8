"""What the page *About* tells, and the page in a browser."""

from collections.abc import Callable

from helpers.api_server import ApiServer
from helpers.web_page import WebPage, containing
from playwright.sync_api import expect

from strata.options import EMBEDDED_MODEL
from strata.web.about import _shown
from strata.web.facts import CLIENTS, client_pages, model_facts, packages


def test_client_pages_get_this_servers_address_and_model() -> None:
    pages = {page.name: page.text for page in client_pages("http://10.0.0.5:9000", "my-model")}
    assert {"Claude Code", "Codex CLI", "opencode", "aider", "Open WebUI", "Zed", "Continue"} <= set(pages)
    assert 'base_url = "http://10.0.0.5:9000/v1"' in pages["Codex CLI"]
    assert 'model = "my-model"' in pages["Codex CLI"]
    for text in pages.values():
        assert "127.0.0.1:8080" not in text and "qwen3-coder" not in text and ".md)" not in text


def test_client_pages_get_the_models_context() -> None:
    """Every number that follows from it, each on its own: 16384 is a context here and an answer there."""
    pages = {page.name: page.text for page in client_pages("http://h:65536", "m-16384", 16_384)}
    assert '"limit": { "context": 16384, "output": 4096 }' in pages["opencode"]
    assert "model_context_window = 16384\n" in pages["Codex CLI"] and '"m-16384"' in pages["Codex CLI"]
    assert "contextLength: 16384\n      maxTokens: 4096" in pages["Continue"]
    assert "http://h:65536" in pages["Zed"]
    claude = pages["Claude Code"]
    assert "WINDOW=100000\n" in claude and "PCT_OVERRIDE=12\n" in claude and 'OVERRIDE": "12"' in claude
    assert "12,000 tokens" in claude and "a context of 16,384" in claude
    large = {page.name: page.text for page in client_pages("http://h", "m", 262_144)}
    assert 'WINDOW": "200000"' in large["Claude Code"] and 'OVERRIDE": "75"' in large["Claude Code"]
    assert '"max_input_tokens": 262144' in large["aider"] and '"max_output_tokens": 16384' in large["aider"]


def test_client_pages_ask_for_a_key_wherever_one_is_set() -> None:
    pages = {page.name: page.text for page in client_pages("http://h", "m", has_key=True)}
    assert "ANTHROPIC_AUTH_TOKEN=YOUR-KEY" in pages["Claude Code"]
    assert '"ANTHROPIC_AUTH_TOKEN": "YOUR-KEY"' in pages["Claude Code"]
    assert '"apiKey": "YOUR-KEY"' in pages["opencode"] and "apiKey: YOUR-KEY\n" in pages["Continue"]
    assert sum(text.count("none") for text in pages.values()) == 1  # Codex's least effort


def test_client_pages_are_those_of_docs_where_all_is_as_they_say() -> None:
    shown = {page.text for page in client_pages("http://127.0.0.1:8080", "qwen3-coder", 65_536)}
    for path in CLIENTS.glob("[!R]*.md"):
        text = path.read_text("utf-8").partition("\n")[2]
        assert text in shown or "](" in text, path  # links lead nowhere there


def test_model_facts() -> None:
    facts = model_facts(str(EMBEDDED_MODEL))
    assert facts["Weights"].startswith("22.1 million in ")
    assert facts["Formats"].startswith("Q4_K ") and facts["Licence"] == "apache-2.0"
    assert model_facts("scripted:m.jsonl") == {}


def test_packages_have_versions_and_licences() -> None:
    found = {package.name: package for package in packages()}
    assert {"Python", "torch", "numpy", "fastapi"} <= set(found)
    assert "MIT" in found["fastapi"].licence and "BSD" in found["psutil"].licence


def test_a_key_is_not_shown() -> None:
    assert (_shown("api_key", "hush"), _shown("api_key", None)) == ("set", "not set")
    assert (_shown("attached", True), _shown("context", None), _shown("lanes", 4)) == (
        "yes",
        "not given",
        "4",
    )


def test_about_tells_addresses_options_and_clients(
    open_page: Callable[..., WebPage], server: ApiServer
) -> None:
    page = open_page("/about")
    addresses = page.region("For clients")
    expect(addresses).to_contain_text(f"{server.url}/v1")
    expect(addresses).to_contain_text("any text will do")
    option = page.page.get_by_role("row").filter(has_text="--lanes")
    expect(option.get_by_role("cell")).to_have_text(["2", "--lanes", containing("answered at the same")])
    unset = page.page.get_by_role("row").filter(has_text="--context")
    expect(unset.get_by_role("cell").nth(1)).to_have_text("default")
    expect(page.region("Versions and licences")).to_contain_text("Apache-2.0")
    clients = page.region("What to set in well-known clients")
    clients.get_by_text("Codex CLI").click()
    expect(clients.get_by_text(f'base_url = "{server.url}/v1"')).to_be_visible()
    expect(clients.get_by_text('model = "parrot"')).to_be_visible()


def test_nothing_is_wider_than_a_phone(open_page: Callable[..., WebPage], embedded: ApiServer) -> None:
    page = open_page("/about", url=embedded.url, width=360, height=700)
    expect(page.region("Versions and licences")).to_be_visible()
    assert page.fits()
