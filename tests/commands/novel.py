"""A small novel in three splits, a tiny recipe, a trained run per tokenizer, and helpers that run commands."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from typer.testing import CliRunner

from tests.cards import read_card, read_log
from txlcli.cli import app
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.data.token_store import TokenStore
from txlcli.runs import run_directory
from txlcli.workflows.reporter import Reporter

WORDS = ["the", "fox", "cat", "owl", "jumps", "flies", "over", "lazy", "dogs", "naïve", "été", "語", "🦊"]
LINES = {"train": 61, "valid": 7, "test": 11}
ENDLESS = ["--set", "train.max_steps=1_000_000", "--set", "train.valid_every=500_000"]
LONGEST_WAIT_S = 300  # long enough for a busy machine; a process that hangs is ended then
TOKENIZERS = ("byte", "char", "word", "sentencepiece")
STORES = {kind: "novel" if kind == "byte" else kind for kind in TOKENIZERS}
RECIPE = """
[corpus]
store = "novel"

[model]
n_layers = 2
d_model = 8
n_heads = 3
d_head = 5
d_inner = 11

[train]
seg_len = 5
mem_len = 5
batch_size = 3
max_steps = 7
lr = 3e-2
valid_every = 4
valid_batch_size = 5

[eval]
seg_len = 5
mem_len = 5
batch_size = 3

[log]
every = 2
"""


RMT = [
    *("model.arch=rmt", "model.segment_len=5", "model.n_memory_tokens=2", "train.seg_len=10"),
    *("train.mem_len=0", "eval.mem_len=0", "eval.same_length=off"),
]
"""Changes of the recipe for a Recurrent Memory Transformer."""


def recipe_of(arch, *keys, mem_len=0):
    """Return the recipe for a model without attention."""
    lines = (line for line in RECIPE.splitlines() if not line.startswith(("n_heads", "d_head", "d_inner")))
    model = "\n".join([f'arch = "{arch}"', "n_layers = 2", *keys])
    return "\n".join(lines).replace("n_layers = 2", model).replace("mem_len = 5", f"mem_len = {mem_len}")


HERE = {"device": "cpu", "data_dir": Path("data"), "runs_dir": Path("runs")}
"""Arguments of a training workflow in the current folder."""


class RecordingReporter(Reporter):
    """Keeps the messages of a workflow; a subclass can act on its progress."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def say(self, message):
        self.messages.append(message)


def txl(*arguments, stdin=None):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin, prog_name="txl")


def done(*arguments, stdin=None):
    """Run a command that must succeed, and return its result."""
    result = txl(*arguments, stdin=stdin)
    assert result.exit_code == 0, f"{result.stderr}\n{result.exception!r}"
    return result


def json_of(*arguments, stdin=None):
    """Return the JSON object that a command prints."""
    result = done(*arguments, "--json", stdin=stdin)
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def compressed_and_restored(run, text, *options):
    """Return True if `txl decompress` restores a text, bytes, that `txl compress` has compressed."""
    Path("text").write_bytes(text)
    done("compress", run, "text", "packed", "--force", *options)
    done("decompress", run, "packed", "restored", "--force")
    return Path("restored").read_bytes() == text


def refusal(*arguments, stdin=None, code=2):
    """Return the last line of a command that must fail and print no result: an error, unless a signal ended it."""
    result = txl(*arguments, stdin=stdin)
    assert result.exit_code == code, f"{result.stderr}\n{result.exception!r}"
    assert result.stdout == ""
    *before, error = result.stderr.splitlines()
    assert error.startswith("error: ") == (code < 128)
    assert not any(line.startswith("error: ") for line in before)
    return error.removeprefix("error: ")


def start(*arguments, module="txlcli", stdout=subprocess.PIPE, environment=None):
    """Start a command as a process, with further environment variables."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **(environment or {})},
    )


def wait_for(condition):
    """Wait until the condition is true."""
    until = time.monotonic() + LONGEST_WAIT_S
    while not condition():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.05)


def cells(result):
    """Return the cells of the printed tables, one list per line."""
    lines = [line for line in result.stdout.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def on_a_full_disk(limit, *arguments):
    """Run a command that cannot write a file longer than `limit` bytes."""
    import resource  # Windows has none

    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    try:
        return txl(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def interrupt_at_save(monkeypatch):
    """Send Ctrl-C while `last.safetensors` is written for the first time."""
    replace, saved = os.replace, []

    def replace_and_interrupt(source, target):
        replace(source, target)
        if target.name == run_directory.LAST and not saved:
            saved.append(target)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(os, "replace", replace_and_interrupt)


def text_of(split):
    """Return the text of a split; each one contains every word."""
    chance = random.Random(split)
    lines = [" ".join(chance.choices(WORDS, k=7)) for _ in range(LINES[split])]
    return "\n".join([" ".join(WORDS), *lines]) + "\n"


def write_texts(directory: Path):
    """Write the novel and the recipe."""
    (directory / "novel").mkdir(parents=True)
    for split in LINES:
        (directory / "novel" / f"{split}.txt").write_text(text_of(split), encoding="utf-8")
    (directory / "tiny.toml").write_text(RECIPE)


def prepare_and_train(directory: Path):
    """Make a store and a trained run for every tokenizer, named after it; the store of bytes is "novel"."""
    write_texts(directory)
    data, runs_dir = directory / "data", directory / "runs"
    for kind in TOKENIZERS:
        size = ["--vocab-size", 290] if kind == "sentencepiece" else []
        store_of = ["--tokenizer", kind, "--name", STORES[kind], "--data-dir", data]
        done("prepare", directory / "novel", *store_of, *size)
        where = ["--data-dir", data, "--runs-dir", runs_dir, "--name", kind, "--set", "published.parameters=1"]
        done("train", directory / "tiny.toml", "--set", f"corpus.store={STORES[kind]}", *where)


def train(*changes, name):
    """Train the recipe with changes of its settings, in the current folder."""
    done("train", "tiny.toml", "--name", name, *(word for change in changes for word in ("--set", change)))


def reports(directory):
    """Return the lines of a run's metrics.jsonl."""
    return read_log(Path(directory) / "metrics.jsonl")


def store(name):
    return TokenStore.open(f"data/{name}.h5")


def digests(name):
    return {split: info.sha256 for split, info in store(name).splits.items()}


card = read_card


def contents(directory):
    """Return the content of every file below a directory."""
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def change_weights(run, change):
    """Change the weights of the checkpoint that is evaluated."""
    path = Path(f"runs/{run}/best.safetensors")
    saved = checkpoint.load(path)
    changed = {name: change(name, tensor) for name, tensor in saved.tensors.items()}
    checkpoint.save(path, Checkpoint(changed, saved.state))


@dataclass(frozen=True)
class Saved:
    """Tensors of a checkpoint, for comparison."""

    path: Path

    def __eq__(self, other):
        ours, theirs = load_file(self.path), load_file(other.path)
        return ours.keys() == theirs.keys() and all(ours[key].equal(theirs[key]) for key in ours)

    __hash__ = None
