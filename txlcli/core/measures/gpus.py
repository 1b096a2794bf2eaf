"""Peak rates of GPUs by their data sheets, and the time that training steps took on one."""

import functools
import math
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from txlcli.config.model_settings import ModelSettings

CPU_SHARE = 0.5
"""Share of the rate of a large matrix product that a training step is expected to reach on a CPU."""


@dataclass(frozen=True)
class ExpectedStep:
    """Time that a training step is expected to take on one device, by its rate of large matrix products."""

    layers_s: float
    """Time of the layers that depends neither on the number of lanes nor on that rate."""
    share: float
    """Share of that rate in the rest of the step."""
    source: str
    """The measurement that both are from, in words; empty if there is none."""

    def seconds(self, flops: float, product_flops_per_s: float) -> float:
        """Return the time of a step of so many operations."""
        return self.layers_s + flops / (self.share * product_flops_per_s)


@functools.cache
def _data() -> dict[str, Any]:
    return tomllib.loads(files("txlcli.core.measures").joinpath("gpus.toml").read_text(encoding="utf-8"))


def data_sheet_flops_per_s(card: str, precision: str) -> float | None:
    """Return the peak rate of a card's matrix products, in FLOP/s; None if its data sheet is not known."""
    tflops: float | None = _data()["peaks"].get(card, {}).get(precision)
    if tflops is None:
        return None
    return 1e12 * tflops


def product_flops_per_s(data_sheet: float) -> float:
    """Return the rate that a large matrix product reaches on a card with this peak rate by its data sheet."""
    measured = _data()["measured"]
    share: float = measured["product_tflops"] / _data()["peaks"][measured["card"]]["bf16"]
    return share * data_sheet


def expected_step(
    model: ModelSettings, flops_per_token: float, device_type: str, micro_batches: int = 1
) -> ExpectedStep:
    """Return the time that a training step is expected to take on one device.

    On a GPU, it follows from the most similar step that was measured: with or without adaptive softmax, and with about
    as many operations per token.
    """
    if device_type != "cuda":
        return ExpectedStep(0.0, CPU_SHARE, "")
    measured = _data()["measured"]
    has_tails = bool(model.cutoffs)
    similar = [step for step in measured["steps"] if step["has_tails"] == has_tails]
    nearest = min(similar, key=lambda step: abs(math.log(1e6 * step["mflop_per_token"] / flops_per_token)))  # by ratio
    layers_s = 1e-6 * measured["layer_us"] * model.n_layers * micro_batches
    return ExpectedStep(layers_s, nearest["share"], f"{nearest['recipe']} on one {measured['card']}")
