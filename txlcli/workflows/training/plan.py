"""What a training will do: sizes, text, device, for people and machines."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from txlcli.config.settings import Settings
from txlcli.errors import RecipeError, UsageError
from txlcli.options import Device

if TYPE_CHECKING:
    import torch

    from txlcli.data.token_store import TokenStore


def plan(
    recipe_name: str,
    settings: Settings,
    folder: Path,
    *,
    vocab_size: int,
    parameters: int,
    until_step: int | None,
    store: "TokenStore | None",
    device: "torch.device",
    processes: int,
) -> dict[str, Any]:
    """What will be done, for people and machines; the last step may come before the recipe's."""
    from txlcli.core.training.segments import lane_length, segments_per_epoch

    train = settings.train
    tokens = store.info("train").tokens if store else None
    steps = min(until_step or train.max_steps, train.max_steps)
    per_epoch = segments_per_epoch(lane_length(tokens, train.batch_size), train.seg_len) if tokens else None
    return {
        "recipe": recipe_name,
        "parameters": parameters,
        "vocab_size": vocab_size,
        "store": str(store.path) if store else None,
        "train_tokens": tokens,
        "lanes": train.batch_size,
        "seg_len": train.seg_len,
        "mem_len": None if settings.model.recurrent_state else train.mem_len,
        "steps": steps,
        "max_steps": train.max_steps,
        "epochs": steps / per_epoch if per_epoch else None,
        "precision": train.precision,
        "processes": processes,
        "device": devices(device, processes),
        "folder": str(folder),
    }


def devices(device: "torch.device", processes: int) -> str:
    """Where a training runs, in a few words."""
    from txlcli.core.kernels.device import describe

    return describe(device) if processes == 1 else f"{processes} processes, {describe(device)} each"


def in_words(plan: dict[str, Any]) -> str:
    """The plan as one line."""
    text = "{store} ({train_tokens:,} tokens)" if plan["store"] else "a text that is not here"
    steps = "{steps:,} steps" if plan["steps"] == plan["max_steps"] else "{steps:,} of {max_steps:,} steps"
    epochs = " ({epochs:.3g} epochs)" if plan["store"] else ""
    memory = "a state carried along" if plan["mem_len"] is None else f"memory {plan['mem_len']}"
    return (
        "{recipe}: {parameters:,} parameters (V = {vocab_size:,}) on " + text + ", {lanes} lanes x {seg_len} tokens, "
        "{memory}, " + steps + epochs + ", {precision}, {device}, into {folder}"
    ).format(**plan, memory=memory)


def parameters(settings: Settings, vocab_size: int, source: str) -> int:
    """Parameters at a vocabulary size.

    Raises:
        RecipeError: the model's bands do not fit that size; `source` is where it is from.
    """
    from txlcli.core.model.registry import count_parameters

    try:
        return count_parameters(settings.model, vocab_size)
    except RecipeError as error:
        raise RecipeError(f"{error}; that size is from {source}, for {settings.corpus.store}") from error


def checked_device(settings: Settings, device_choice: Device, *, processes: int) -> "torch.device":
    """The device, once it is known to manage what the settings ask for."""
    from txlcli.core.kernels.device import pick_device

    device = pick_device(device_choice.value)
    check_device(settings, device, processes=processes)
    return device


def check_device(settings: Settings, device: "torch.device", *, processes: int) -> None:
    """Refuse a precision, a kind of attention or a CUDA graph that a device does not manage, before a run is made.

    Raises:
        UsageError: it does not, or several processes would record graphs.
    """
    from txlcli.core.kernels.compilation import check_attention
    from txlcli.core.kernels.device import check_precision

    check_precision(settings.train.precision, device)
    check_attention(settings.train.attention, device)
    if settings.train.cuda_graph and device.type != "cuda":
        raise UsageError(
            "train.cuda_graph needs a CUDA device; leave it out, or --set train.cuda_graph=false for a run"
        )
    if settings.train.cuda_graph and processes > 1:
        raise UsageError("train.cuda_graph is for one process; leave it out, or train without --processes")
