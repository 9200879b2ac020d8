"""What the page *About* tells of the model, of what is installed, and of clients."""

import platform
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from math import prod
from pathlib import Path

import strata
from strata.engine.scripted import PREFIX
from strata.formats.checkpoint import open_checkpoint
from strata.web.figures import size

# The launcher installs Strata in place, so that its source is there; a bare wheel has no such pages.
CLIENTS = Path(strata.__file__).parents[2] / "docs" / "clients"
# What the pages take for granted.
_PAGES_URL, _PAGES_MODEL, _PAGES_CONTEXT = "http://127.0.0.1:8080", "qwen3-coder", 65_536
_ANSWER = 16_384  # tokens of the longest answer, where the context has room for it
_WINDOW = 100_000, 200_000  # what Claude Code can be told that its window is
_NO_KEY = re.compile(r"""((?:KEY|TOKEN|Key)"?(?:=|: "?))none\b""")  # for a server that asks for none
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?://)[^)]*\)")


@dataclass(frozen=True, slots=True)
class ClientPage:
    """What to set in a client: a page of `docs/clients`.

    Args:
        name: of the client.
        text: Markdown, with this server's address and model, and with the model's context.
    """

    name: str
    text: str


def client_pages(
    url: str, model: str, context: int = _PAGES_CONTEXT, has_key: bool = False, folder: Path = CLIENTS
) -> list[ClientPage]:
    """The pages on clients as they are for one server; none where they are not installed.

    Args:
        url: of the server.
        model: its name.
        context: the model's, in tokens.
        has_key: a key is asked for.
        folder: of the pages.
    """
    pages = []
    for path in sorted(folder.glob("*.md")):
        text = _with_context(path.read_text("utf-8"), context)
        text = text.replace(_PAGES_URL, url).replace(_PAGES_MODEL, model)
        if has_key:
            text = _NO_KEY.sub(r"\1YOUR-KEY", text)
        title, _, rest = text.partition("\n")
        if path.stem != "README" and title.startswith("# "):
            # Links to other files of the folder would lead nowhere.
            pages.append(ClientPage(title.removeprefix("# "), _LINK.sub(r"\1", rest)))
    return sorted(pages, key=lambda page: page.name.lower())


def _with_context(text: str, context: int) -> str:
    """A page as it is for another context."""
    old, new = _numbers(_PAGES_CONTEXT), _numbers(context)
    pattern = "|".join(rf"(?<![\d,]){re.escape(number)}(?![\d,]\d)" for number in old)
    return re.sub(pattern, lambda found: new[old.index(found[0])], text)


def _numbers(context: int) -> list[str]:
    """What a page says that follows from the context, as it is written."""
    window = min(max(context, _WINDOW[0]), _WINDOW[1])
    percent = max(min(75 * context // window, 75), 1)  # of that window, at which the history is shortened
    return [
        *(str(context), f"{context:,}", str(min(_ANSWER, context // 4))),
        *(str(window), f"{window * percent // 100:,}", f"={percent}", f': "{percent}"'),
    ]


def model_facts(model: str) -> dict[str, str]:
    """What the header of a checkpoint says; nothing for a script.

    Raises:
        ModelFileError: it cannot be read.
    """
    if model.startswith(PREFIX):
        return {}
    checkpoint = open_checkpoint(model)
    tensors = checkpoint.tensors.values()
    formats: Counter[str] = Counter()
    for tensor in tensors:
        formats[tensor.format] += tensor.num_bytes
    total = sum(formats.values())
    common = [(name, stored) for name, stored in formats.most_common() if stored >= total / 100]
    facts = {
        "Name": checkpoint.metadata.get("general.name"),
        "Weights": f"{_short(sum(prod(tensor.shape) for tensor in tensors))} in {size(total)}",
        "Formats": ", ".join(f"{name} {100 * stored / total:.0f} %" for name, stored in common),
        "Licence": checkpoint.metadata.get("general.license"),
        "From": checkpoint.metadata.get("general.source.url"),
    }
    return {name: str(fact) for name, fact in facts.items() if fact}


def _short(count: int) -> str:
    """`22.4 million`, `80.1 billion`."""
    for divisor, name in ((10**9, "billion"), (10**6, "million")):
        if count >= divisor:
            return f"{count / divisor:.1f} {name}"
    return f"{count:,}"


@dataclass(frozen=True, slots=True)
class Package:
    """A package that Strata works with.

    Args:
        name: on the package index.
        version: that is installed.
        licence: as the package declares it; empty if it does not.
    """

    name: str
    version: str
    licence: str


def packages() -> list[Package]:
    """What Strata needs at run time, as far as it is installed."""
    found = [Package("Python", platform.python_version(), "PSF-2.0")]
    for name in _requirements():
        try:
            told = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue
        found.append(Package(name, told["Version"], _licence(told)))
    return found


def _requirements() -> Iterator[str]:
    try:
        requirements = metadata.requires("strata") or []
    except metadata.PackageNotFoundError:  # run from the source
        return
    for requirement in requirements:
        if "extra ==" not in requirement:
            yield re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def _licence(told: metadata.PackageMetadata) -> str:
    """The declared licence: the expression of today, the field of yesterday, or the classifiers."""
    field = (told.get("License") or "").strip()
    if expression := told.get("License-Expression") or (field if len(field) < 40 else ""):
        return expression
    classifiers = [c for c in told.get_all("Classifier") or [] if c.startswith("License ::")]
    return ", ".join(classifier.rpartition(" :: ")[2] for classifier in classifiers)
