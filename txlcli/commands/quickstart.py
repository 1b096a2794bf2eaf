"""`txl quickstart`: the whole job on text that every machine has."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from txlcli import console
from txlcli.commands import eval as eval_
from txlcli.commands import generate, prepare, speed
from txlcli.options import DATA_DIR, RUNS_DIR, DataDir, Device, DeviceOption, RunsDir
from txlcli.views import training_result
from txlcli.workflows.training import start
from txlcli.workflows.training.execution import Limits

CORPUS = "stdlib"
MEM_LENS = "0,32,64,128,256"
ATTN_LENS = "128,256,512"
PROMPT = "    def __init__(self, "


def quickstart(
    max_minutes: Annotated[
        float | None, typer.Option("--max-minutes", min=0.0, help="Stop training after this time; the recipe decides.")
    ] = None,
    device: DeviceOption = Device.auto,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Do the whole job on Python's own source.

    Prepares it, trains a small model for about two minutes, evaluates, times and generates.

    Example: txl quickstart
    """
    folders = _folder_options(data_dir, runs_dir)
    said = []

    def announce(*words: str) -> None:
        line = shlex.join(["txl", *words, *folders[words[0]]])
        said.append(line)
        console.say(f"\n$ {line}")

    if not (data_dir / f"{CORPUS}.h5").exists():
        announce("prepare", CORPUS)
        prepare.prepare(CORPUS, data_dir=data_dir)
    announce("train", CORPUS, *(["--max-minutes", f"{max_minutes:g}"] if max_minutes is not None else []))
    result = start.train(
        CORPUS,
        [],
        device=device.value,
        data_dir=data_dir,
        runs_dir=runs_dir,
        limits=Limits(max_minutes=max_minutes, caller_continues=True),
        reporter=console.TerminalReporter(),
    )
    training_result.show(result)
    folder = str(result.run.folder)
    announce("eval", folder, "--mem-len", MEM_LENS)
    eval_.evaluate(folder, mem_len=MEM_LENS, device=device, data_dir=data_dir, runs_dir=runs_dir)
    announce("speed", folder, "--attn-len", ATTN_LENS)
    speed.speed(folder, attn_len=ATTN_LENS, device=device, data_dir=data_dir, runs_dir=runs_dir)
    announce("generate", folder, "--prompt", PROMPT, "--tokens", "600")
    generate.generate(folder, prompt=PROMPT, tokens=600, device=device, data_dir=data_dir, runs_dir=runs_dir)
    console.say("\nThese commands did all of that; repeat them with other words:")
    for line in said:
        console.say(f"  {line}")


def _folder_options(data_dir: Path, runs_dir: Path) -> dict[str, list[str]]:
    """The folder options that each command needs said, so that a repeated line does the same."""
    data = ["--data-dir", str(data_dir)] if data_dir != DATA_DIR else []
    run = ["--runs-dir", str(runs_dir)] if runs_dir != RUNS_DIR else []
    return {"prepare": data, "train": data + run, "eval": data, "speed": data, "generate": data}
