"""axe-core, which knows what screen readers and keyboards need of a page, from the npm registry."""

from functools import cache

from playwright.sync_api import Page

from helpers.npm_file import cached, fetch

VERSION = "4.14.1"


@cache
def _source() -> str:
    return fetch(f"axe-core@{VERSION}", "axe.min.js", cached(f"axe-{VERSION}.js")).read_text("utf-8")


def complaints(page: Page) -> list[str]:
    """What is wrong with a page as it is now, by the rules of WCAG 2.2 A and AA, and where.

    Raises:
        NpmError: axe-core cannot be fetched.
    """
    page.evaluate(_source())
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    found = page.evaluate("tags => axe.run(document, {runOnly: tags})", tags)
    return [
        f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]
