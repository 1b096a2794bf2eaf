"""Special files where a file is expected: FIFO, socket, links to devices, broken and endless links, directory."""

import os
import shutil
import socket
from dataclasses import dataclass

from tests.faults import process
from tests.faults.sample import BARE, RECL
from tests.faults.table import SILENT

ENDLESS = "/dev/zero"


def _fifo(path):
    os.mkfifo(path)


def _socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def _link_to_endless(path):
    path.symlink_to(ENDLESS)


def _link_to_full(path):
    path.symlink_to("/dev/full")


def _link_to_terminal(path):
    path.symlink_to("/dev/tty")


def _broken_link(path):
    path.symlink_to("nowhere")


def _loop_of_links(path):
    path.symlink_to(path.name)


def _directory(path):
    path.mkdir()


SPECIAL = {
    "FIFO": _fifo,
    "socket": _socket,
    "link to /dev/zero": _link_to_endless,
    "link to /dev/full": _link_to_full,
    "link to /dev/tty": _link_to_terminal,
    "broken link": _broken_link,
    "link to itself": _loop_of_links,
    "folder": _directory,
}
HALF = ("tiny.toml", "data/novel.h5", "runs/half")
BYTE = ("data/novel.h5", "runs/byte")
EVAL = ("--positions", "40")
INPUTS = (
    ("text", "text.txt", ("prepare", "text.txt"), ()),
    ("text in a folder", "novel/train.txt", ("prepare", "novel"), ("novel",)),
    ("source", "enwik8", ("prepare", "enwik8", "--source", "enwik8"), ()),
    ("vocabulary to prepare", "vocab.json", ("prepare", "novel", "--vocab", "vocab.json"), ("novel",)),
    ("recipe", "tiny.toml", ("train", "tiny.toml", "--max-steps", "2"), ("tiny.toml", "data/novel.h5")),
    ("store", "data/novel.h5", ("train", "tiny.toml", "--max-steps", "2"), ("tiny.toml", "data/novel.h5")),
    ("store to evaluate", "data/novel.h5", ("eval", "byte", *EVAL), BYTE),
    ("text to score", "text.txt", ("eval", "byte", "--text", "text.txt"), BYTE),
    ("run.json", "runs/half/run.json", ("eval", "half", *EVAL), HALF),
    ("vocab.json", "runs/half/vocab.json", ("eval", "half", *EVAL), HALF),
    ("best.safetensors", "runs/half/best.safetensors", ("eval", "half", *EVAL), HALF),
    ("last.safetensors", "runs/half/last.safetensors", ("train", "--resume", "half"), HALF),
    ("metrics.jsonl", "runs/half/metrics.jsonl", ("runs", "compare", "half", "half-2"), HALF),
    ("metrics.jsonl to resume", "runs/half/metrics.jsonl", ("train", "--resume", "half"), HALF),
    ("evals.jsonl", "runs/half/evals.jsonl", ("runs", "compare", "half", "half-2"), HALF),
    ("losses to write", "losses.h5", ("eval", "byte", *EVAL, "--losses", "losses.h5"), BYTE),
    ("losses of recl", "runs/recl.h5", ("recl", "byte", *RECL), BYTE),
    ("weights to import", "state.pt", ("import", "state.pt", *BARE), ("foreign.toml", "words.txt")),
    ("dump to import", "tf.npz", ("import", "tf.npz", *BARE), ("foreign.toml", "words.txt")),
    ("configuration to import", "hf/config.json", ("import", "hf"), ("hf", "data/word.h5")),
    ("safetensors to import", "hf/model.safetensors", ("import", "hf"), ("hf", "data/word.h5")),
    ("words to import", "words.txt", ("import", "state.pt", *BARE), ("state.pt", "foreign.toml", "words.txt")),
    ("pickle to import", "words.pkl", ("import", "state.pt", *BARE[:-1], "words.pkl"), ("state.pt", "foreign.toml")),
)
MAY_SUCCEED = {
    *(("text in a folder", "folder"), ("source", "folder")),
    *((target, "broken link") for target in ("losses to write", "losses of recl", "evals.jsonl")),
    *((target, "broken link") for target in ("metrics.jsonl", "metrics.jsonl to resume")),
    *((target, "link to itself") for target in ("losses to write", "losses of recl")),
}
"""Requests that make sense: a directory of texts, and files that need not exist yet."""


@dataclass(frozen=True)
class SpecialFile:
    """A special file as one input of one command."""

    target: str
    name: str
    path: str
    words: tuple[str, ...]
    needs: tuple[str, ...]
    sample: object

    fault = "special files"

    def act(self, directory, outcome):
        self.sample.copy(self.needs, directory)
        if "half-2" in self.words:
            shutil.copytree(directory / "runs/half", directory / "runs/half-2")
        path = directory / self.path
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        SPECIAL[self.name](path)
        ended = outcome.examine(process.run(*self.words, directory=directory))
        if ended.done and (self.target, self.name) not in MAY_SUCCEED and "damaged" not in ended.stderr:
            outcome.add(SILENT, f"{ended.command}: accepted")


def injections(sample, amounts):
    """Return every kind of special file for every input."""
    return [
        SpecialFile(target, kind, path, words, needs, sample)
        for target, path, words, needs in INPUTS
        for kind in SPECIAL
    ]
