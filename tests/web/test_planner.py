"""The page *Plan*: questions to the planner, and the page in a browser."""

from collections.abc import Callable

import pytest
from helpers.api_server import ApiServer
from helpers.web_page import WebPage
from playwright.sync_api import expect

from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import mixes_of
from strata.hardware.description import Cpu, Hardware, Ram
from strata.hardware.known_cards import KNOWN_CARDS, known_card
from strata.options import EMBEDDED_MODEL
from strata.plan import GIB
from strata.web.planner import HERE, NO_CARD, SERVED, TAKEN, Question, answer, speed

LAPTOP = Hardware(
    cpu=Cpu(name="a laptop", cores=8),
    ram=Ram(total_bytes=16 * GIB, available_bytes=12 * GIB),
    cards=(known_card("rtx 4060"),),
)


@pytest.mark.parametrize(
    ("low", "high", "text"), [(4.0, 7.25, "4.0 to 7.2"), (868.2, 868.2, "868"), (None, None, "")]
)
def test_speeds(low: float | None, high: float | None, text: str) -> None:
    assert speed(low, high) == text


def test_questions_change_the_machine() -> None:
    def ask(**fields) -> list:
        return answer(Question("qwen3-30b-a3b", **fields), "unused", LAPTOP)

    plans = ask(card=HERE)
    assert [made.model for made in plans] == [
        f"qwen3-30b-a3b {quant}" for quant in mixes_of(GEOMETRIES["qwen3-30b-a3b"])
    ]
    assert {made.card for made in plans} == {"RTX 4060"}
    assert {made.ram_budget for made in plans} == {12 * GIB}
    assert {made.card for made in ask(card=NO_CARD)} == {""}
    larger = ask(card="rtx 5090", ram_gib=64, context=8192)
    assert {(made.card, made.ram_budget, made.context) for made in larger} == {
        ("RTX 5090", 64 * GIB - TAKEN, 8192)
    }
    assert sum(made.fits for made in larger) > sum(made.fits for made in plans)


def test_the_served_model_is_read_from_its_file() -> None:
    (made,) = answer(Question(SERVED, NO_CARD), str(EMBEDDED_MODEL), LAPTOP)
    assert made.fits and made.used("RAM") > 0


@pytest.mark.parametrize("card", KNOWN_CARDS)
def test_every_card_can_be_asked_for(card: str) -> None:
    assert len(answer(Question("tiny", card), "unused", LAPTOP)) == len(list(mixes_of(GEOMETRIES["tiny"])))


def choose(page: WebPage, label: str, choice: str) -> None:
    page.page.get_by_role("combobox", name=label).click()
    page.page.get_by_role("option", name=choice, exact=True).click()


def test_a_model_is_planned_for_another_pc(open_page: Callable[..., WebPage], embedded: ApiServer) -> None:
    page = open_page("/plan", url=embedded.url, width=360, height=700)
    expect(page.region("qwen4_exp tiny on the processor: fits")).to_be_visible()
    choose(page, "Model", "qwen3.8-flash-next")
    choose(page, "Graphics card", "RTX 5070")
    choose(page, "Memory", "64 GiB")
    expect(page.region("qwen3.8-flash-next ud-iq4_xs on RTX 5070: fits")).to_be_visible()
    page.button("ud-q4_k_xl").click()
    refused = page.region("qwen3.8-flash-next ud-q4_k_xl on RTX 5070: does not fit")
    expect(refused).to_contain_text("short")
    expect(refused.get_by_role("listitem").first).to_contain_text("more RAM")
    expect(page.region("What goes where")).to_contain_text("n-gram table")
    assert page.fits()


def test_a_script_is_no_model_to_plan_for(open_page: Callable[..., WebPage], server: ApiServer) -> None:
    page = open_page("/plan")
    first = next(iter(GEOMETRIES))
    expect(page.page.get_by_role("combobox", name="Model")).to_have_value(first)
    expect(page.region("Quantisations")).to_be_visible()
