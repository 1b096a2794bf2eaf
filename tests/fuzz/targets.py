"""Readers of files, each as a function of bytes; a refusal is a TxlError, anything else is a defect.

A file with a checksum would be refused before its content is parsed. So the functions put the bytes behind the
checksum. Formats that a library in C reads (HDF5, Parquet, SentencePiece) are left out: such files may end the process.
"""

import contextlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tests.cards import read_card
from tests.faults.sample import state_of
from tests.workflows.exchange.hostile import MARKER
from txlcli.config import recipe
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.data import compressed_file
from txlcli.data.vocabulary import Vocab
from txlcli.errors import TxlError
from txlcli.runs import history, run_directory
from txlcli.workflows.exchange import huggingface, token_files, vocabularies, weights

MAX_BYTES = 1 << 16
"""Longest input; every format is complete in less."""


@dataclass(frozen=True)
class Target:
    name: str
    seeds: Callable[[Path], list[bytes]]
    """Returns inputs, valid ones among them, given the directory of the sample of `tests.faults`."""
    reader: Callable[[Path, Path], Callable[[bytes], None]]
    """Returns the function, given the sample and a directory to work in."""


def refused(function):
    """Return a function that calls another one and accepts its refusal, a TxlError with a message; True without one."""

    def call(data):
        try:
            function(data)
        except TxlError as refusal:
            message = str(refusal)
            if not message:
                raise ValueError("a refusal without a message") from refusal
            return False
        return True

    return call


def _of_text(function):
    """Return a function of bytes for one of text; bytes that are no UTF-8 are passed over."""

    def read(data):
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return
        function(text)

    return refused(read)


def _recipes(sample, work):
    return _of_text(lambda text: recipe.resolve_text(text, "fuzzed.toml"))


def _overrides(sample, work):
    text = (sample / "tiny.toml").read_text()
    return _of_text(lambda change: recipe.resolve_text(text, "tiny.toml", [change]))


def _vocabularies(sample, work):
    return _of_text(Vocab.from_json)


def _runs(sample, work):
    def read(data):
        (work / "run.json").write_bytes(data)
        run_directory.read_run(work)

    return refused(read)


def _reports(sample, work):
    run = run_directory.read_run(sample / "runs/half")
    run = type(run)(**{**vars(run), "directory": work})

    def read(data):
        for name in ("metrics.jsonl", "evals.jsonl"):
            (work / name).write_bytes(data)
        with contextlib.suppress(TxlError):
            history.read(run)
        (work / "metrics.jsonl").write_bytes(b"")
        past = history.read(run)
        assert json.dumps([past.state, past.step, past.tokens_per_s])

    return refused(read)


def _checkpoints(sample, work):
    """Read a file, or with `{` as the first byte a checkpoint with that state."""
    path = work / "last.safetensors"

    def read(data):
        path.write_bytes(data)
        if data[:1] == b"{":
            with contextlib.suppress(ValueError, RecursionError):
                checkpoint.save(path, Checkpoint({"model.a": torch.zeros(3)}, json.loads(data)))
        checkpoint.load(path)

    return refused(read)


def _configurations(sample, work):
    def read(data):
        (work / "config.json").write_bytes(data)
        for name, keys in huggingface.read_keys(work).items():
            recipe.read_section(name, keys)

    return refused(read)


def _file_reader(name, function):
    """Return a maker of a function that writes its input to a file of that name and reads it."""

    def make(sample, work):
        def read(data):
            (work / name).write_bytes(data)
            try:
                function(work / name)
            finally:
                assert not (work / MARKER).exists()

        return refused(read)

    return make


def _files(*names):
    return lambda sample: [(sample / name).read_bytes() for name in names]


def _seeds_of_checkpoints(sample):
    content = (sample / "runs/half/last.safetensors").read_bytes()
    state = state_of(content)
    state.pop("checksums")
    return [json.dumps(state).encode(), content[:4096]]


def _compressed(sample, work):
    """Read a compressed file, given without its marker and its checksum."""

    def read(data):
        content = compressed_file.MAGIC + data
        (work / "packed").write_bytes(content + bytes.fromhex(compressed_file.digest(content)))
        compressed_file.read(work / "packed")

    return refused(read)


def _seeds_of_compressed_files(sample):
    content = (sample / "packed").read_bytes()
    return [content[len(compressed_file.MAGIC) : -compressed_file.CHECKSUM_BYTES]]


def _tokens(sample, work):
    """Read token files: an index beside fixed ids if the first byte is "i", else a .bin by itself."""

    def read(data):
        ids, index = work / "train.bin", work / "train.idx"
        is_index = data[:1] == b"i"
        ids.write_bytes(IDS.tobytes() if is_index else data[1:])
        index.write_bytes(data[1:])
        if not is_index:
            index.unlink()
        tokens = token_files.find(ids, token_files.IdType())
        for piece in tokens.splits[""]:
            assert sum(block.nbytes for block in tokens.blocks(piece)) == piece.size

    return refused(read)


def _seeds_of_tokens(sample):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "train.bin"
        token_files.write("megatron", path, IDS, 97, np.array([0, 3]))
        seeds = [b"i" + path.with_suffix(".idx").read_bytes()]
        for format in ("nanogpt", "llm.c"):
            token_files.write(format, path, IDS, 97)
            seeds.append(b"b" + path.read_bytes())
        return seeds


IDS = np.arange(7, dtype=np.uint16)
CHANGES = (b"train.lr=1e-4", b"model.n_layers=3", b"eval.max_distance=none", b"model.position=rotary", b"log.to=['x']")
ALL = (
    Target("recipe", _files("tiny.toml", "foreign.toml"), _recipes),
    Target("override", lambda sample: list(CHANGES), _overrides),
    Target("vocabulary", _files("runs/word/vocab.json", "runs/char/vocab.json"), _vocabularies),
    Target("run", lambda sample: [json.dumps(read_card(sample / "runs/half")).encode()], _runs),
    Target("reports", _files("runs/half/metrics.jsonl", "runs/half/evals.jsonl"), _reports),
    Target("checkpoint", _seeds_of_checkpoints, _checkpoints),
    Target("configuration", _files("hf/config.json"), _configurations),
    Target("words", _files("words.txt"), _file_reader("words.txt", vocabularies.read)),
    Target("pickle", _files("words.pkl"), _file_reader("words.pkl", vocabularies.read)),
    Target("pytorch", _files("state.pt"), _file_reader("state.pt", weights.read)),
    Target("npz", _files("tf.npz"), _file_reader("tf.npz", weights.read)),
    Target("tokens", _seeds_of_tokens, _tokens),
    Target("compressed", _seeds_of_compressed_files, _compressed),
    Target("safetensors", _files("hf/model.safetensors"), _file_reader("model.safetensors", weights.read)),
)
NAMES = tuple(target.name for target in ALL)


def named(name):
    return next(target for target in ALL if target.name == name)


@contextlib.contextmanager
def working_directory():
    """Yield a temporary directory for the files of a target, in memory if possible."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="txl-fuzz-", dir=memory if memory.is_dir() else None) as name:
        yield Path(name)
