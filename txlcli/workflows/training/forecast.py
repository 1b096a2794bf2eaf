"""`txl train --dry-run`: what a training would take, without starting it."""

import dataclasses
from typing import TYPE_CHECKING, Any

from txlcli import console
from txlcli.config import recipe
from txlcli.config.settings import Settings
from txlcli.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from txlcli.data.token_store import TokenStore

SHARE_OF_PEAK = 0.5
"""Of the rate of a large matrix product that a training is expected to reach; `txl speed` measures what it does."""
UNITS = (("years", 365 * 86_400.0), ("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


def store_if_any(settings: Settings, data_dir: "Path") -> "TokenStore | None":
    """The recipe's store; None where it is missing and the recipe says how large the benchmark's vocabulary is.

    Raises:
        StoreError: it is missing and the vocabulary size is not known, or it is damaged.
    """
    from txlcli.runs.loading import open_store

    try:
        return open_store(settings.corpus.store, data_dir)
    except StoreError as error:
        if (data_dir / f"{settings.corpus.store}.h5").exists() or settings.published.vocab_size is None:
            raise
        console.say(f"{error}; counting with the benchmark's V = {settings.published.vocab_size:,}")
        return None


def forecast(
    settings: Settings,
    vocab_size: int,
    store: "TokenStore | None",
    device: "torch.device",
    *,
    steps: int,
    processes: int,
) -> dict[str, Any]:
    """Parameters by part, bytes of a step of one process by purpose, operations per token, time of so many steps."""
    from txlcli.config.bands import bands
    from txlcli.core.measures.cost import counted_shares, training_flops_per_token
    from txlcli.core.measures.footprint import parameters_by_part, step_bytes
    from txlcli.core.measures.timing import peak_flops_per_s
    from txlcli.core.training.data_parallel import micro_batches

    train = settings.train
    parts = parameters_by_part(settings.model, vocab_size)
    part = max(len(lanes) for lanes in micro_batches(train, processes))
    of_one = dataclasses.replace(train, batch_size=part * train.accumulate)
    needed = step_bytes(settings.model, vocab_size, of_one, device=device)
    shares = counted_shares(bands(settings.model, vocab_size), store.ids("train")) if store else None
    flops = training_flops_per_token(
        settings.model,
        vocab_size,
        seg_len=train.seg_len,
        mem_len=train.mem_len,
        batch_size=train.batch_size,
        shares=shares,
    )
    peak = peak_flops_per_s(device, train.precision)
    devices = 1 if device.type == "cpu" else processes  # on a CPU processes share the cores
    rate = devices * SHARE_OF_PEAK * peak / flops
    tokens = steps * train.batch_size * train.seg_len
    return {
        "parameters_by_part": parts,
        "step_bytes": {**needed, "total": sum(needed.values())},
        "training_flops_per_token": flops,
        "tails": len(settings.model.cutoffs),
        "tails_by": "the store's text" if store else "Zipf's law",
        "training_flops": tokens * flops,
        "peak_flops_per_s": peak,
        "share_of_peak": SHARE_OF_PEAK,
        "tokens_per_s": rate,
        "seconds": tokens / rate,
        "published": recipe.to_keys(settings.published),
    }


def show(plan: dict[str, Any], words: str) -> None:
    """The plan in words, then what it would take as a table."""
    console.show_text(f"would train {words}")
    rows = [[f"parameters, {part}", f"{count:,}"] for part, count in plan["parameters_by_part"].items() if count]
    rows.append(["parameters", f"{plan['parameters']:,}"])
    memory = "memory of a step" if plan["processes"] == 1 else "memory of a process"
    rows += [[f"{memory}, {what}", _bytes(size)] for what, size in plan["step_bytes"].items() if size]
    rows.append(["operations per token", f"{plan['training_flops_per_token'] / 1e9:,.3f} GFLOP"])
    what = "the whole recipe" if plan["steps"] == plan["max_steps"] else f"{plan['steps']:,} steps"
    rows.append([f"operations of {what}", f"{plan['training_flops']:.3g} FLOP"])
    rows.append(["tokens/s expected", f"{plan['tokens_per_s']:,.0f}"])
    rows.append([f"time of {what}", duration(plan["seconds"])])
    paper = {key: plan["published"][key] for key in ("valid", "test") if key in plan["published"]}
    rows += [[f"the paper's {split} result", f"{value}"] for split, value in paper.items()]
    caption = (
        f"Expected: {plan['share_of_peak']:.0%} of the {plan['peak_flops_per_s'] / 1e9:,.0f} GFLOP/s that a matrix "
        "product reached just now.\n"
        + (f"How often tail bands are computed: by {plan['tails_by']}.\n" if plan["tails"] else "")
        + "Workspace of single operations comes on top of the memory."
    )
    console.show_table("", ("", ""), rows, caption)


def _bytes(size: float) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


def duration(seconds: float) -> str:
    """A time span in the unit that suits it."""
    for unit, length in UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} seconds"
