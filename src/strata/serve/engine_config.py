"""From the options of a server to the configuration of its engine."""

from strata.engine.messages import EngineConfig
from strata.errors import StrataError
from strata.options import Options


def engine_config(options: Options) -> EngineConfig:
    """What the engine is started with.

    Raises:
        StrataError: --card describes a card, as `plan` takes it.
    """
    card = (options.card or "auto").lower()
    if card not in ("auto", "none") and not card.isdecimal():
        raise StrataError(
            f"--card {options.card}: must be `none` or a card's number, from 0; names are for `strata plan`"
        )
    return EngineConfig(
        model=options.model,
        lanes=options.lanes,
        threads=options.threads,
        reference=options.reference,
        cache_bytes=_bytes(options.cache_mib),
        context=options.context,
        card=card,
        vram_budget_bytes=_bytes(options.vram_budget_mib),
        vram_reserve_bytes=_bytes(options.vram_reserve_mib),
        dense=options.dense,
        kv=options.kv,
    )


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib << 20
