"""Conversations that the page Chat keeps, in several windows and long after."""

import re
from collections.abc import Callable

from helpers.web_page import WebPage, containing
from playwright.sync_api import expect
from web.conftest import SEEDS

from strata.web.conversation import Conversation, Entry, dump

OpenPage = Callable[..., WebPage]


def test_conversations_outlive_the_browser_s_page(open_page: OpenPage) -> None:
    page = open_page(line="hello")
    page.ask("First question")
    page.page.goto(page.url + "/")  # a new conversation; the other is in the list
    page.ready()
    expect(page.answers).to_have_count(0)
    page.button("First question").click()
    expect(page.answers).to_contain_text("Hello, world!")


def test_a_large_conversation_comes_back_whole(open_page: OpenPage) -> None:
    page = open_page()
    page.ready()
    conversation = Conversation("f" * 32, "Large")
    for i in range(10):
        conversation.entries.append(Entry("user", f"{i}. " + "👩‍👧" * 100))
        answer = f"**{i}** of *10*." + ("\n\n" + "word " * 1000) * 22
        conversation.entries.append(Entry("assistant", answer, ending="length"))
    text = dump(conversation)
    assert len(text) > 1_000_000  # a page cannot send as much at once
    page.page.evaluate("text => strata.store.put('f'.repeat(32), 'Large', 1, 1, text)", text)
    page.page.goto(f"{page.url}/?c={conversation.id}")
    expect(page.answers).to_have_count(10)
    expect(page.answers.last).to_contain_text("9 of 10")
    assert [text.strip() for text in page.said.locator(".strata-said").all_inner_texts()] == [
        entry.content for entry in conversation.entries[::2]
    ]


def test_long_conversations_are_shown_from_their_end(open_page: OpenPage) -> None:
    page = open_page(line="hello")
    page.ready()
    conversation = Conversation("e" * 32, "Long", settings={"seed": SEEDS["hello"]})
    for i in range(50):
        conversation.entries += [
            Entry("user", f"Question {i}."),
            Entry("assistant", f"Answer {i}.", ending="stopped"),
        ]
    page.page.evaluate("text => strata.store.put('e'.repeat(32), 'Long', 1, 1, text)", dump(conversation))
    page.page.goto(f"{page.url}/?c={conversation.id}")
    expect(page.answers).to_have_count(20)
    expect(page.answers.last).to_contain_text("Answer 49.")
    page.button("Show earlier messages").click()
    expect(page.answers).to_have_count(40)
    assert page.answers.first.inner_text().startswith("Answer 10.")
    page.answers.nth(38).get_by_role("button", name="Answer again").click()
    page.button("Remove them").click()
    expect(page.answers).to_have_count(39)
    expect(page.answers.last).to_contain_text("Hello, world!")
    expect(page.said.last).to_contain_text("Question 48.")


def test_an_answer_goes_on_while_earlier_messages_are_shown(open_page: OpenPage) -> None:
    page = open_page(line="slow")
    page.ready()
    conversation = Conversation("d" * 32, "Long", settings={"seed": SEEDS["slow"]})
    conversation.entries = [Entry("user", f"Question {i}.") for i in range(50)]
    page.page.evaluate("text => strata.store.put('d'.repeat(32), 'Long', 1, 1, text)", dump(conversation))
    page.page.goto(f"{page.url}/?c={conversation.id}")
    page.say("Go on for ever")
    expect(page.answers).to_contain_text("go on on")
    page.button("Show earlier messages").click()
    expect(page.said).to_have_count(51)
    expect(page.answers).to_contain_text("go on on")
    words = page.answers.inner_text().count("on")
    page.page.wait_for_function(
        f"document.querySelector('.strata-answer').innerText.split('on').length > {words + 20}"
    )
    page.button("Stop").click()
    expect(page.answers).to_contain_text("stopped by you")


def test_windows_share_a_conversation(open_page: OpenPage) -> None:
    one = open_page(line="hello")
    one.ask("First")
    two = one.window(one.address)
    expect(two.answers).to_have_count(1)
    one.ask("Second")
    expect(two.said).to_have_count(2)  # without being asked
    expect(two.answers.last).to_contain_text("Hello, world!")
    two.ask("Third")
    expect(one.answers).to_have_count(3)
    one.answers.last.get_by_role("button", name="Answer again").click()
    expect(two.answers).to_have_count(3)
    for window in (one, two):
        window.page.reload()
        expect(window.said).to_have_text([containing(text) for text in ("First", "Second", "Third")])
        expect(window.answers).to_have_count(3)


def test_what_is_typed_outlives_a_change_in_another_window(open_page: OpenPage) -> None:
    one = open_page(line="hello")
    one.ask("First")
    two = one.window(one.address)
    one.field.fill("Begun.")
    one.said.get_by_role("button", name="Edit this message").click()
    one.page.get_by_label("Your message").fill("Typed here")
    two.said.get_by_role("button", name="Edit this message").click()
    two.page.get_by_label("Your message").fill("Changed there")
    two.button("Send").first.click()
    expect(one.said).to_contain_text("Changed there")
    expect(one.field).to_have_value("Begun.\n\nTyped here")


def test_a_conversation_deleted_in_another_window_stays_deleted(open_page: OpenPage) -> None:
    one = open_page(line="slow")
    one.say("First")
    expect(one.answers).to_contain_text("go on")
    two = one.window("/")
    two.page.get_by_role("button", name="Rename or delete: First").click()
    two.page.get_by_text("Delete", exact=True).click()
    two.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(one.page.get_by_text("deleted in another window")).to_be_visible()
    expect(one.answers).to_have_count(0)
    one.page.reload()
    expect(one.page.get_by_text("No conversations yet")).to_be_visible()


def test_a_late_window_does_not_undo_what_was_kept(open_page: OpenPage) -> None:
    page = open_page().ready()
    kept = page.page.evaluate(
        """async () => {
            await strata.store.put("x", "New", 1, 5, "new");
            await strata.store.put("x", "Old", 1, 4, "old");
            return strata.store.part("x", 0);
        }"""
    )
    assert kept == "new"


def test_conversations_are_searched_renamed_and_deleted(open_page: OpenPage) -> None:
    page = open_page(line="hello")
    page.ask("About foxes")
    page.button("New conversation").click()
    expect(page.answers).to_have_count(0)
    page.ask("About lanterns")
    items = page.page.get_by_role("listitem")
    expect(items).to_have_count(2)
    page.page.get_by_label("Search conversations").fill("foxes")
    expect(items).to_have_count(1)
    page.page.get_by_role("button", name="Rename or delete: About foxes").click()
    page.page.get_by_text("Rename", exact=True).click()
    page.page.get_by_role("textbox", name="Name of the conversation").fill("Animals")
    page.button("Save").click()
    expect(items).to_have_text(re.compile("Animals"))
    page.page.get_by_role("button", name="Rename or delete: Animals").click()
    page.page.get_by_text("Delete", exact=True).click()
    page.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(items).to_have_count(0)
    page.page.get_by_label("Search conversations").fill("")
    expect(items).to_have_text(re.compile("About lanterns"))


def test_many_conversations_are_listed_in_parts(open_page: OpenPage) -> None:
    page = open_page().ready()
    page.page.evaluate(
        """async () => {
            for (let i = 0; i < 120; i++) await strata.store.put(`id${i}`, `About ${i}`, i, 1, "");
            await strata.store.put("bad", "Broken", 999, 1, "{");
        }"""
    )
    page.page.reload()
    items = page.page.get_by_role("listitem")
    expect(items).to_have_count(50)
    page.button("Show older ones").click()
    expect(items).to_have_count(100)
    page.button("Show older ones").click()
    expect(items).to_have_count(121)
    expect(page.button("Show older ones")).to_be_hidden()
    page.page.get_by_label("Search conversations").fill("about 17")  # one that cannot be read is in no way
    expect(items).to_have_count(2)
