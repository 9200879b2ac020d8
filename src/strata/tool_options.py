"""Options of commands that look at machines and models, and of cards; part of the schema in `options.py`."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from strata.choices import KV, Dense
from strata.flags import Flag, Scope

ENGINE = ("serve", "demo", "chat")  # commands that start an engine


class ToolOptions(BaseModel):
    """What `doctor`, `plan` and `synth` take, and what says how a card is used."""

    compile: Annotated[
        bool,
        Scope("doctor"),
        Flag(in_file=False),
        Field(description="Compile the kernels for every card; none need be here."),
    ] = False
    kernels: Annotated[
        bool,
        Scope("doctor"),
        Flag(in_file=False),
        Field(description="Compare the kernels with their reference, on the card at hand."),
    ] = False
    measure: Annotated[
        bool,
        Scope("doctor"),
        Flag(in_file=False),
        Field(
            description="Measure memory, cards, and the working directory's disk, for which 512 MiB are "
            "written there and deleted."
        ),
    ] = False
    targets: Annotated[
        str | None,
        Scope("doctor"),
        Flag("LIST", in_file=False),
        Field(description="With --compile: only these, e.g. gfx1201,sm_89."),
    ] = None
    only: Annotated[
        str,
        Scope("doctor"),
        Flag("PATTERNS", in_file=False),
        Field(description="With --compile or --kernels: what is called so, e.g. 'router*,*Q4_K 1'."),
    ] = "*"
    changed: Annotated[
        bool,
        Scope("doctor"),
        Flag(in_file=False),
        Field(description="With --compile: each launch for one card, for all only those that have changed."),
    ] = False
    rewrite_budgets: Annotated[
        bool,
        Scope("doctor"),
        Flag(in_file=False),
        Field(description="With --compile: what is found becomes what is allowed."),
    ] = False
    quant: Annotated[
        str | None,
        Scope("plan", "synth"),
        Flag("NAME", in_file=False),
        Field(min_length=1, description="Quantisation of a known model, e.g. iq3_xxs."),
    ] = None
    card: Annotated[
        str | None,
        Scope(*ENGINE, "plan"),
        Flag("NAME", in_file=False),
        Field(
            min_length=1,
            description="`none`: the processor alone; 0, 1, ...: this card of the machine, not the best one; "
            "plan also takes 16g, `rtx 4090`, ...: as if the machine had it.",
        ),
    ] = None
    ram: Annotated[
        str | None,
        Scope("plan"),
        Flag("SIZE", in_file=False, allowed="1g to 9999g (GiB)"),
        Field(
            pattern=r"^[1-9]\d{0,3}[gG]?$",
            description="Plan for so many GiB of memory, e.g. 64g, not the machine's.",
        ),
    ] = None
    cores: Annotated[
        int | None,
        Scope("plan"),
        Flag(in_file=False),
        Field(ge=1, le=1024, description="Plan for so many cores instead of the machine's."),
    ] = None
    memory_bandwidth: Annotated[
        float | None,
        Scope("plan"),
        Flag("GB/S", in_file=False),
        Field(ge=1, le=2000, description="Plan for memory that is read so fast."),
    ] = None
    hardware: Annotated[
        Path | None,
        Scope("plan"),
        Flag("FILE.json", in_file=False),
        Field(description="Plan for the machine that this file describes: `hardware` of doctor --json."),
    ] = None
    vram_budget_mib: Annotated[
        int | None,
        Scope(*ENGINE, "plan"),
        Flag("MIB"),
        Field(ge=0, description="Use at most so much of the card's memory; all that is free when not given."),
    ] = None
    vram_reserve_mib: Annotated[
        int | None,
        Scope(*ENGINE, "plan"),
        Flag("MIB"),
        Field(
            ge=0, description="Leave so much of the card's memory free; 700 when not given, 300 below 8 GiB."
        ),
    ] = None
    ram_budget_mib: Annotated[
        int | None,
        Scope("plan"),
        Flag("MIB"),
        Field(ge=0, description="Use at most so much memory; all that is free when not given."),
    ] = None
    dense: Annotated[
        Dense,
        Scope(*ENGINE, "plan", "logits", "synth"),
        Field(description="Float matrices: as_stored, or q8_0, half the bytes; changes text slightly."),
    ] = "as_stored"
    kv: Annotated[
        KV,
        Scope(*ENGINE, "plan"),
        Field(description="Keys and values on the card: f16, or int8, which changes text slightly."),
    ] = "f16"
    layers: Annotated[
        int | None,
        Scope("synth"),
        Flag(in_file=False),
        Field(ge=2, description="Layers; as many as the model has when not given."),
    ] = None
    experts: Annotated[
        int | None,
        Scope("synth"),
        Flag(in_file=False),
        Field(ge=1, le=32767, description="Experts of a layer; as many as the model has when not given."),
    ] = None
    gguf: Annotated[
        Path | None,
        Scope("synth"),
        Flag("FILE.gguf", in_file=False, name="out", output=True),
        Field(description="Write the model to this file instead of running it."),
    ] = None
    trace: Annotated[
        Path | None,
        Scope("synth"),
        Flag("FILE.npz", in_file=False),
        Field(description="Use experts as this trace says; a made-up one when not given."),
    ] = None
    prompt_tokens: Annotated[
        int,
        Scope("synth"),
        Flag(in_file=False),
        Field(ge=1, le=1 << 20, description="Length of the prompt that is read."),
    ] = 512
    decode_tokens: Annotated[
        int,
        Scope("synth"),
        Flag(in_file=False),
        Field(ge=1, le=1 << 20, description="Tokens that are decoded."),
    ] = 64
    record_trace: Annotated[
        Path | None,
        Scope("logits"),
        Flag("FILE.npz", in_file=False, output=True),
        Field(description="Also write which experts each token was sent to."),
    ] = None
    as_json: Annotated[
        bool,
        Scope("doctor", "plan", "synth"),
        Flag(in_file=False, name="json"),
        Field(description="Print JSON instead of a table."),
    ] = False
