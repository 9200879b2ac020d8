"""`strata plan`: what of a model would go where, and how fast it would be, before anything is loaded."""

import textwrap
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from strata.cost import Speed
from strata.errors import StrataError
from strata.formats.description import ModelDescription
from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import mixes_of
from strata.hardware.description import Hardware, Ram
from strata.hardware.known_cards import known_card
from strata.options import Options
from strata.plan import GIB, MIB, Part, Plan, PromptSpeed, Wishes, plan

TAKEN = 5 * GIB  # of a described machine's memory: the system, a desktop, a browser


def run(options: Options, model: str) -> None:
    """Print the plan of a file or a release, or one line for each quantisation of a known model."""
    hardware = _hardware(options)
    wishes = Wishes(
        context=options.context,
        lanes=options.lanes,
        vram_budget_bytes=_bytes(options.vram_budget_mib),
        vram_reserve_bytes=_bytes(options.vram_reserve_mib),
        ram_budget_bytes=_bytes(options.ram_budget_mib),
        dense=options.dense,
        kv=options.kv,
    )
    plans = [plan(hardware, described, wishes) for described in _models(options, model)]
    if options.as_json:
        print(f"[{', '.join(p.to_json() for p in plans)}]" if len(plans) > 1 else plans[0].to_json())
        return
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if len(plans) > 1:
        _compare(console, model, plans)
    else:
        _show(console, plans[0])


def _models(options: Options, model: str) -> list[ModelDescription]:
    if model in GEOMETRIES:
        geometry = GEOMETRIES[model]
        quants = [options.quant] if options.quant else list(mixes_of(geometry))
        return [ModelDescription.of_release(geometry, quant) for quant in quants]
    if options.quant:
        raise StrataError(f"--quant {options.quant} is for known models: {', '.join(GEOMETRIES)}")
    if not Path(model).expanduser().exists():
        raise StrataError(f"{model}: no such file or folder; known models are {', '.join(GEOMETRIES)}")
    from strata.formats.checkpoint import open_checkpoint

    return [ModelDescription.of_checkpoint(open_checkpoint(model))]


def _hardware(options: Options) -> Hardware:
    """The machine that was asked for: a file's or this one, with what was said to be different."""
    hardware = _this_machine() if options.hardware is None else _described(options.hardware)
    changed = {}
    if options.card is not None:
        changed["cards"] = () if options.card.lower() == "none" else (known_card(options.card),)
    if options.ram is not None:
        total = int(options.ram.rstrip("gG")) * GIB
        changed["ram"] = Ram(total_bytes=total, available_bytes=max(0, total - TAKEN))
    cpu = {"cores": options.cores, "memory_bandwidth": (options.memory_bandwidth or 0) * 1e9}
    changed["cpu"] = msgspec.structs.replace(hardware.cpu, **{name: n for name, n in cpu.items() if n})
    return msgspec.structs.replace(hardware, **changed)


def _this_machine() -> Hardware:
    from strata.commands.doctor.facts import native_isa
    from strata.hardware.machine import this_machine

    return this_machine(Path.cwd(), native_isa()[0])


def _described(path: Path) -> Hardware:
    """The machine in a file: its description, or what `strata doctor --json` prints."""
    try:
        document = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise StrataError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise StrataError(f"{path}: is not JSON: {error}") from error
    if isinstance(document, dict) and "hardware" in document:
        document = document["hardware"]
    return Hardware.from_json(msgspec.json.encode(document))


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * MIB


def _compare(console: Console, model: str, plans: list[Plan]) -> None:
    """A line for each quantisation of `model`, and below them why some do not fit."""
    _tell(console, f"{model} on {plans[0].card or 'the processor'}; memory in GiB")
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)  # 60 columns at most
    table.add_column("quant", no_wrap=True)
    for column in ("fits", "VRAM", "RAM", "disk", "experts\nin VRAM", "tokens/s", "long\nprompt"):
        table.add_column(column, no_wrap=True, justify="right")
    names = [p.model.removeprefix(f"{model} ") for p in plans]
    for name, p in zip(names, plans, strict=True):
        table.add_row(
            name,
            "yes" if p.fits else "no",
            *(_gib(p.used(tier)) for tier in ("VRAM", "RAM", "disk")),
            f"{100 * p.resident_share:.0f} %",
            _tokens_per_s(p.decode).replace(" to ", "–") if p.fits else "",
            _prompt(p.prompts[-1]).replace(" to ", "–") if p.fits and p.prompts else "",
        )
    console.print(table)
    for name, p in zip(names, plans, strict=True):
        if not p.fits:
            _tell(console, f"- {name}: {p.reasons[0].split(' (')[0]}")


def _tell(console: Console, text: str) -> None:
    """A line; in a terminal, one that is too long goes on below, indented; in a pipe it stays one."""
    if console.is_terminal:
        text = textwrap.fill(
            text, console.width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    console.print(text)


def _show(console: Console, p: Plan) -> None:
    _tell(console, f"{p.model} on {p.card or 'the processor'}: " + ("fits" if p.fits else "does not fit"))
    table = Table(show_header=False)
    for tier, budget in (("VRAM", p.vram_budget), ("RAM", p.ram_budget), ("disk", None)):
        parts = [part for part in p.parts if part.tier == tier and part.bytes]
        if parts:
            _add_tier(table, tier, parts, budget)
    console.print(table)
    if p.slots:
        slow, fast = p.decode
        _tell(
            console,
            f"{p.slots} slots in VRAM hold {100 * p.resident_share:.0f} % of all experts: "
            f"{100 * slow.hit_rate:.0f} to {100 * fast.hit_rate:.0f} % of uses find theirs; "
            f"of the others the processor computes {100 * slow.cpu_share:.0f} %",
        )
    _tell(console, f"context {p.context} tokens, {p.lanes} at a time; prompts in pieces of {p.prefill_chunk}")
    if p.fits:
        _tell(console, f"expected: {_tokens_per_s(p.decode)} tokens/s; a step, in ms (slow and fast case):")
        console.print(_steps(p.decode))
        for prompt in p.prompts:
            _tell(console, f"prompt of {prompt.tokens}: {_prompt(prompt)} tokens/s")
    for reason in p.reasons:
        _tell(console, f"- {reason}")
    if p.changes:
        _tell(console, "each of these would make it fit: " + "; ".join(p.changes))
    elif not p.fits:
        _tell(console, "no single change makes it fit: take a smaller quantisation")


def _add_tier(table: Table, tier: str, parts: list[Part], budget: int | None) -> None:
    total = sum(part.bytes for part in parts)
    table.add_row(tier, f"{_gib(total)} GiB" + (f" of {_gib(budget)}" if budget is not None else ""))
    for part in sorted(parts, key=lambda part: -part.bytes):
        table.add_row(f"  {part.purpose}", f"{_gib(part.bytes)} GiB")
    table.add_section()


def _steps(decode: tuple[Speed, Speed]) -> Table:
    table = Table(show_header=False)
    for slow, fast in zip(*(speed.terms for speed in decode), strict=True):
        table.add_row(slow.name, f"{1e3 * slow.seconds:.1f}", f"{1e3 * fast.seconds:.1f}")
    return table


def _tokens_per_s(decode: tuple[Speed, Speed]) -> str:
    return _range(*(speed.tokens_per_s for speed in decode))


def _prompt(prompt: PromptSpeed) -> str:
    if prompt.low is None:
        return "unknown"
    return _range(prompt.low, prompt.high)


def _range(low: float, high: float) -> str:
    texts = [f"{value:.1f}" if value < 10 else f"{value:.0f}" for value in (low, high)]
    return " to ".join(dict.fromkeys(texts))


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f}"
