"""Peak rates of GPUs by their data sheets, and the share of a product's rate that training has reached on one."""

import functools
import math
import tomllib
from importlib.resources import files
from typing import Any, NamedTuple

from txlcli.config.model_settings import ModelSettings

CPU_SHARE = 0.5
"""Share of the rate of a large matrix product that a training step is expected to reach on a CPU."""


class ExpectedShare(NamedTuple):
    """Share of the rate of a large matrix product that a training step is expected to reach."""

    share: float
    source: str
    """The measurement that it is from, in words; empty if it is not measured."""
    of_data_sheet: float
    """Share of the peak rate by the data sheet, which a large matrix product does not reach."""


@functools.cache
def _data() -> dict[str, Any]:
    return tomllib.loads(files("txlcli.core.measures").joinpath("gpus.toml").read_text(encoding="utf-8"))


def data_sheet_flops_per_s(card: str, precision: str) -> float | None:
    """Return the peak rate of a card's matrix products, in FLOP/s; None if its data sheet is not known."""
    tflops: float | None = _data()["peaks"].get(card, {}).get(precision)
    if tflops is None:
        return None
    return 1e12 * tflops


def expected_share(model: ModelSettings, step_flops: float, device_type: str) -> ExpectedShare:
    """Return the share that the most similar training step has reached on a GPU: with or without tail bands, as large.

    `step_flops` are the operations of a step on one device.
    """
    if device_type != "cuda":
        return ExpectedShare(CPU_SHARE, "", CPU_SHARE)
    measured = _data()["measured"]
    has_tails = bool(model.cutoffs)
    similar = [step for step in measured["steps"] if step["has_tails"] == has_tails]
    nearest = min(similar, key=lambda step: abs(math.log(step_flops / (1e12 * step["tflop"]))))  # by ratio
    share = nearest["share"]
    of_data_sheet = share * measured["product_tflops"] / _data()["peaks"][measured["card"]]["bf16"]
    return ExpectedShare(share, f"{nearest['recipe']} on one {measured['card']}", of_data_sheet)
