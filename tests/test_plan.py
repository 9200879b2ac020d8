"""The planner's promises: nothing over budget, sums that add up, more is never worse, and an honest no."""

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.cost import MIXED_USE, ONE_TOPIC, hit_rate
from strata.formats.checkpoint import open_checkpoint
from strata.formats.description import ModelDescription
from strata.formats.geometry import GEOMETRIES
from strata.hardware.description import Card, Cpu, Disk, Hardware, Ram
from strata.options import EMBEDDED_MODEL
from strata.plan import GIB, MIB, Plan, Wishes, plan

MODELS = [
    ModelDescription.of_release(GEOMETRIES[name], quant)
    for name, quant in (
        ("qwen3.8-flash-next", "q2_0"),
        ("qwen3.8-flash-next", "iq3_xxs"),
        ("qwen3.8-flash-next", "ud-q4_k_xl"),
        ("qwen3.6-35b-a3b", "iq4_xs"),
        ("qwen3-30b-a3b", "q4_k"),
        ("tiny", "q2_0"),
    )
]
FLASH = MODELS[0]


def machine(
    vram_gib: float = 12, ram_gib: float = 64, bandwidth: float = 600e9, host: float = 60e9, **card
) -> Hardware:
    vram = int(vram_gib * GIB)
    described = {
        "arch": "sm_89",
        "pcie_generation": 4,
        "pcie_width": 16,
        "compute_units": 48,
        "clock_hz": 2.5e9,
    }
    cards = [Card(name="card", vram_bytes=vram, free_bytes=vram, bandwidth=bandwidth, **described | card)]
    return Hardware(
        cpu=Cpu(name="", cores=8, isa="avx2", memory_bandwidth=host),
        ram=Ram(total_bytes=int(ram_gib * GIB), available_bytes=int(ram_gib * GIB)),
        cards=tuple(cards) if vram else (),
    )


def speeds(of: Plan) -> list[float]:
    return [speed.tokens_per_s for speed in of.decode]


PLANS = st.builds(
    lambda model, vram, ram, context, lanes, kv, dense, budget: (
        machine(vram, ram),
        model,
        Wishes(context=context, lanes=lanes, kv=kv, dense=dense, vram_budget_bytes=budget),
    ),
    st.sampled_from(MODELS),
    st.sampled_from([0, 2, 4, 6, 8, 12, 16, 24, 80]),
    st.sampled_from([4, 16, 32, 48, 64, 96, 256]),
    st.sampled_from([None, 4096, 32768, 262144]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(["f16", "int8"]),
    st.sampled_from(["as_stored", "q8_0"]),
    st.one_of(st.none(), st.integers(0, 20 * GIB)),
)


@settings(max_examples=40, deadline=None)
@given(PLANS)
def test_a_plan_that_fits_stays_in_its_budgets(arguments):
    hardware, model, wishes = arguments
    made = plan(hardware, model, wishes)
    budget = wishes.vram_budget_bytes
    assert made.vram_budget <= (hardware.cards[0].free_bytes if hardware.cards else 0)
    assert budget is None or made.vram_budget <= budget
    over = made.used("VRAM") > made.vram_budget or made.used("RAM") > made.ram_budget
    assert made.fits != (over or made.context > model.context_length)
    assert made.fits or made.reasons
    assert not (made.fits and made.changes)


@settings(max_examples=40, deadline=None)
@given(PLANS)
def test_sums_add_up_and_json_brings_the_plan_back(arguments):
    made = plan(*arguments)
    for speed in made.decode:
        step = sum(term.seconds for term in speed.terms)
        assert speed.tokens_per_s == pytest.approx(speed.tokens_per_step / step)
        assert all(term.seconds >= 0 for term in speed.terms)
        assert 0 <= speed.hit_rate <= 1 and 0 <= speed.cpu_share <= 1
    assert made.decode[0].tokens_per_s <= made.decode[1].tokens_per_s * 1.000001
    assert all(part.bytes >= 0 for part in made.parts)
    assert 0 <= made.resident_share <= 1
    assert Plan.from_json(made.to_json()) == made


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MODELS), st.floats(6, 100), st.floats(0, 40), st.sampled_from([4096, 32768]))
def test_more_vram_is_never_worse(model, vram, more, context):
    less, larger = (plan(machine(v, 256), model, Wishes(context=context)) for v in (vram, vram + more))
    assert larger.fits >= less.fits
    if less.fits:
        assert larger.slots >= less.slots and larger.resident_share >= less.resident_share
        assert all(b >= a * 0.999999 for a, b in zip(speeds(less), speeds(larger), strict=True))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(["bandwidth", "host", "clock_hz", "pcie_generation"]),
    st.sampled_from([0, 12, 24]),
)
def test_more_of_anything_is_never_slower(model, what, vram):
    base = {"bandwidth": 300e9, "host": 40e9, "clock_hz": 1e9, "pcie_generation": 3}
    slow = plan(machine(vram, 256, **base), model, Wishes(context=8192))
    better = base | {what: base[what] + 1 if what == "pcie_generation" else base[what] * 1.7}
    fast = plan(machine(vram, 256, **better), model, Wishes(context=8192))
    assert all(b >= a * 0.999999 for a, b in zip(speeds(slow), speeds(fast), strict=True))
    for before, after in zip(slow.prompts, fast.prompts, strict=True):
        assert after.low >= before.low * 0.999999


def test_a_small_models_prompt_takes_its_launches():
    """4 layers of 12 kernels, each of 5 to 16 us; without them it was millions of tokens a second."""
    (prompt,) = plan(machine(), MODELS[-1], Wishes(context=4096)).prompts
    assert 48 * 5e-6 < prompt.tokens / prompt.high < 2 * 48 * 5e-6
    assert 48 * 16e-6 < prompt.tokens / prompt.low < 2 * 48 * 16e-6


def test_with_all_experts_in_vram_nothing_is_missed():
    made = plan(machine(48, 32), MODELS[3], Wishes(context=8192))
    assert made.fits and made.resident_share == 1 and made.slots == 40 * 256
    assert all(speed.hit_rate == 1 for speed in made.decode)
    (missed,) = (term for term in made.decode[0].terms if term.name == "experts missed")
    assert missed.seconds == 0


@pytest.mark.parametrize("vram, experts", [(80, 0), (24, 16)])
def test_there_is_room_for_experts_that_a_step_fetches_where_any_are_missed(vram: float, experts: int):
    made = plan(machine(vram), FLASH, Wishes())
    rooms = [part.bytes for part in made.parts if part.purpose == "fetched experts"]
    assert rooms == [experts * max(FLASH.expert_bytes)] and (made.resident_share < 1) == bool(experts)


def test_a_slow_disk_holds_up_the_ngram_memory():
    speed_of = {}
    for reads in (None, 200.0, 400_000.0):
        disk = Disk(path="/", free_bytes=0, page_reads_per_second=reads)
        made = plan(msgspec.structs.replace(machine(), disk=disk), FLASH, Wishes())
        speed_of[reads] = made.decode[0].tokens_per_s
        terms = [term.seconds for term in made.decode[0].terms if term.name == "n-gram rows from disk"]
        assert bool(terms) == (reads is not None)
    assert speed_of[200.0] < 12  # 16 rows take 80 ms
    assert speed_of[400_000.0] == pytest.approx(speed_of[None])  # while the first layer computes


def test_a_dense_model_has_no_slots():
    none = {"expert_bytes": (), "expert_count": 0, "experts_used": 0, "expert_weights": 0}
    dense = msgspec.structs.replace(MODELS[4], context_length=8192, **none)
    made = plan(machine(12, 16), dense, Wishes())
    assert made.fits and made.slots == 0 and made.decode[0].hit_rate == 1
    assert [prompt.tokens for prompt in made.prompts] == [512]
    assert plan(machine(0, 16), dense, Wishes()).fits


def test_too_little_ram_is_said_with_the_number_and_the_change():
    made = plan(machine(12, 24), FLASH, Wishes(context=8192))
    assert not made.fits
    (reason,) = made.reasons
    assert (
        "RAM: needs 33.4 GiB, has 24.0 GiB: 9.4 GiB short (most of it: experts, pinned, 31.6 GiB)" in reason
    )
    assert made.changes == ("9.4 GiB more RAM",)


def test_too_little_vram_names_changes_that_help():
    wishes = Wishes(context=262144, lanes=4)
    made = plan(machine(12, 64), FLASH, wishes)
    assert not made.fits and made.reasons[0].startswith("VRAM: needs")
    assert "--lanes 1" in made.changes
    assert any(change.endswith("more VRAM") for change in made.changes)
    assert "--context 65536" in made.changes
    for context, fits in ((65536, True), (131072, False)):
        assert plan(machine(12, 64), FLASH, Wishes(context=context, lanes=4)).fits is fits


def test_nothing_helps_where_nothing_helps():
    made = plan(machine(2, 8), FLASH, Wishes())
    assert not made.fits and made.changes == ()


def test_a_context_beyond_the_model_is_refused():
    made = plan(machine(48, 128), MODELS[4], Wishes(context=100_000))
    assert not made.fits and "made for 40960 tokens" in made.reasons[0]
    assert made.changes == ("--context 32768",)


def test_what_is_not_known_is_assumed_aloud():
    unknown = Card(name="RX 1", arch="gfx1100", vram_bytes=24 * GIB, free_bytes=24 * GIB)
    hardware = msgspec.structs.replace(machine(ram_gib=64), cpu=Cpu(name="", cores=4), cards=(unknown,))
    made = plan(hardware, FLASH, Wishes())
    assert made.fits and len(made.reasons) == 3
    assert all(reason.startswith("not known, assumed: ") for reason in made.reasons)
    assert made.prompts[0].low is None


def test_the_reserve_is_kept_and_a_budget_caps():
    card = machine(12).cards[0]
    assert plan(machine(12), FLASH, Wishes()).vram_budget == card.free_bytes - 700 * MIB
    assert plan(machine(7), FLASH, Wishes()).vram_budget == 7 * GIB - 300 * MIB
    assert plan(machine(12), FLASH, Wishes(vram_reserve_bytes=GIB)).vram_budget == 11 * GIB
    assert plan(machine(80), FLASH, Wishes(vram_budget_bytes=16 * GIB)).vram_budget == 16 * GIB


def test_of_two_cards_the_freer_is_used_and_the_other_named():
    hardware = machine(12)
    small = msgspec.structs.replace(hardware.cards[0], name="small", free_bytes=GIB)
    hardware = msgspec.structs.replace(hardware, cards=(small, *hardware.cards))
    made = plan(hardware, FLASH, Wishes())
    assert made.card == "card" and made.fits and made.reasons == ("small: not used, one card is",)


def test_an_apu_is_planned_as_a_processor():
    made = plan(machine(32, 96, shares_ram=True), FLASH, Wishes())
    assert made.card == "" and made.fits and "shares its memory" in made.reasons[0]


def test_memory_that_cannot_be_pinned_is_said():
    hardware = machine(12)
    ram = msgspec.structs.replace(hardware.ram, pinnable_bytes=16 * GIB)
    made = plan(msgspec.structs.replace(hardware, ram=ram), FLASH, Wishes())
    assert not made.fits and "lets a card use 16.0 GiB" in made.reasons[0]


def test_q8_for_float_matrices_leaves_more_slots():
    stored, q8 = (plan(machine(), FLASH, Wishes(dense=dense)) for dense in ("as_stored", "q8_0"))
    assert q8.slots > stored.slots + 300 and speeds(q8)[0] > speeds(stored)[0]


@pytest.mark.parametrize("curve", [ONE_TOPIC, MIXED_USE])
def test_hit_rates_rise_with_what_is_held(curve):
    rates = [hit_rate(curve, share / 100) for share in range(101)]
    assert rates[0] == 0 and rates[-1] == 1 and rates == sorted(rates)
    assert all(share / 100 <= rate for share, rate in enumerate(rates))


def test_a_file_is_described_by_its_header():
    described = ModelDescription.of_checkpoint(open_checkpoint(EMBEDDED_MODEL))
    assert (described.layers, described.expert_count, described.experts_used) == (8, 32, 4)
    assert described.state_bytes == pytest.approx(466_960, abs=64)
    assert plan(machine(0, 4), described, Wishes()).fits


def test_planning_needs_no_torch():
    code = "import sys, strata.plan, strata.formats.geometry; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
