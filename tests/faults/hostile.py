"""Hostile files: code in pickles, bombs, endless nesting and numbers, terminal escapes, ids and names out of range."""

import dataclasses
import gzip
import hashlib
import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

import h5py
import numpy as np
import torch

from tests.exchange.hostile import HOSTILE, MARKER
from tests.faults import process
from tests.faults.sample import BARE
from tests.faults.table import SILENT
from tests.hdf5_files import unsealed
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.data import token_store
from txlcli.data.token_store import SplitCounts, TokenStore
from txlcli.data.vocabulary import Vocab

DEEP = 100_000
DIGITS = 5_000
ZEROS = 3 << 30  # bytes that a bomb unpacks to
ESCAPE = "\x1b]0;owned\x07\x1b[2J"
NEWLINE = "name\nerror: forged"
EVAL = ("eval", "byte", "--positions", "40")
BYTE = ("data/novel.h5", "runs/byte")
SHOW = ("runs", "show", "byte")
TRAIN = ("train", "tiny.toml", "--max-steps", "2", "--name", "new")
FOREIGN = ("foreign.toml", "words.txt")


@dataclass(frozen=True)
class Attack:
    """A hostile file, and a command that reads it."""

    target: str
    name: str
    needs: tuple[str, ...]
    write: Callable
    """Called with the directory."""
    words: tuple[str, ...]
    sample: object = None
    is_refused: bool = True
    """True if the command must fail; otherwise it may succeed, but must not pass terminal escapes on."""

    fault = "hostile files"

    def act(self, directory, outcome):
        self.sample.copy(self.needs, directory)
        self.write(directory)
        ended = outcome.examine(process.run(*self.words, directory=directory))
        if (directory / MARKER).exists():
            outcome.add(SILENT, f"{ended.command}: code in the file was run")
        if self.is_refused and ended.done and "damaged" not in ended.stderr:
            outcome.add(SILENT, f"{ended.command}: accepted")
        said = ended.stdout + ended.stderr
        if "\x07" in said:
            outcome.add(SILENT, f"{ended.command}: a bell is printed")
        if "\nerror: forged" in said:
            outcome.add(SILENT, f"{ended.command}: a name forges an error line")


# --- JSON and TOML ---------------------------------------------------------------------------------------------------

NESTED = '{"a":' * DEEP + "1" + "}" * DEEP
LISTS = "[" * DEEP + "]" * DEEP
TEXTS = {
    "nested objects": NESTED,
    "nested lists": LISTS,
    "unclosed lists": "[" * DEEP,
    "a long number": f'{{"format": {"9" * DIGITS}}}',
    "a number": "7",
    "a string": '"x"',
    "null": "null",
    "binary zeros": "\0" * 4096,
    "nothing": "",
    "half a surrogate": '{"format": 1, "recipe": "\\ud800"}',
}


def _replace(name, text):
    return lambda directory: (directory / name).write_text(text, encoding="utf-8")


def _change(name, **changes):
    """Return a function that changes keys of a JSON file."""

    def write(directory):
        value = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps(value | changes))

    return write


def _json_attacks():
    readers = {
        "run.json": ("runs/byte/run.json", EVAL, BYTE),
        "vocab.json": ("runs/byte/vocab.json", EVAL, BYTE),
        "config.json": ("hf/config.json", ("import", "hf"), ("hf", "data/word.h5")),
        "vocabulary to import": ("hf/vocab.json", ("import", "hf"), ("hf", "data/word.h5")),
        "vocabulary to prepare": ("vocab.json", ("prepare", "novel", "--vocab", "vocab.json"), ("novel",)),
    }
    for target, (path, words, needs) in readers.items():
        for name, text in TEXTS.items():
            yield Attack(target, name, needs, _replace(path, text), words)
    for name, text in TEXTS.items():
        for path in ("metrics.jsonl", "evals.jsonl"):
            if text:
                yield Attack(path, name, BYTE, _replace(f"runs/byte/{path}", f"{text}\n"), SHOW)
    for name, text in {
        "nested lists": f"a = {LISTS}",
        "nested tables": "[" + ".".join("a" * DEEP) + "]",
        "a long number": f"[train]\nmax_steps = {'9' * DIGITS}",
        "a key of escapes": f'"{ESCAPE.encode("unicode_escape").decode()}" = 1',
        "a billion layers": "[model]\nn_layers = 1000000000",
    }.items():
        yield Attack("recipe", name, ("data/novel.h5",), _replace("tiny.toml", text), TRAIN)
    for value in ("[" * DEEP, "9" * DIGITS, "1e999", "'" * 9999):
        words = (*TRAIN, "--set", f"train.lr={value}")
        yield Attack("--set", value[:5], ("tiny.toml", "data/novel.h5"), lambda directory: None, words)
    for size in ("model.n_layers=1000000000", "model.d_model=1000000000", "train.batch_size=1000000000"):
        words = (*TRAIN, "--set", size)
        yield Attack("--set", size, ("tiny.toml", "data/novel.h5"), lambda directory: None, words)


# --- weights ---------------------------------------------------------------------------------------------------------


def _safetensors_header(path, header, *, length=None):
    def write(directory):
        content = header if isinstance(header, bytes) else json.dumps(header).encode()
        size = len(content) if length is None else length
        (directory / path).write_bytes(size.to_bytes(8, "little") + content)

    return write


def _all_nan(directory):
    path = directory / "runs/byte/best.safetensors"
    loaded = checkpoint.load(path)
    tensors = {name: tensor * float("nan") for name, tensor in loaded.tensors.items()}
    checkpoint.save(path, Checkpoint(tensors, loaded.state))


def _npz_bomb(directory):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (ZEROS // 4,)})
    _write_zip(directory / "bomb.npz", "transformer/r_w_bias.npy", header.getvalue(), bytes(1 << 24), ZEROS >> 24)


def _write_zip(path, member, start, block, count):
    """Write an archive of one member: `start`, then `count` times the block."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(member, "w", force_zip64=True) as file,
    ):
        file.write(start)
        for _ in range(count):
            file.write(block)


def _torch_of(value, path):
    return lambda directory: torch.save(value, directory / path)


def _weight_attacks():
    huge = {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}
    headers = {
        "a huge tensor": _safetensors_header("{}", huge),
        "a header of 2**60 bytes": _safetensors_header("{}", b"{}", length=1 << 60),
        "a header of 100 MB": _safetensors_header("{}", b" " * 100_000_000),
        "a nested header": _safetensors_header("{}", LISTS.encode()),
    }
    readers = (
        ("checkpoint", "runs/byte/best.safetensors", EVAL, BYTE),
        ("checkpoint", "runs/byte/last.safetensors", SHOW, BYTE),
        ("import", "hf/model.safetensors", ("import", "hf"), ("hf", "data/word.h5")),
    )
    for target, path, words, needs in readers:
        for name, write in headers.items():
            yield Attack(target, f"{name} in {path}", needs, _renamed(write, path), words)
    for words in (EVAL, ("generate", "byte", "--prompt", "the"), ("attention", "byte", "--plot", "a.png")):
        yield Attack("checkpoint", f"weights of NaN, {words[0]}", BYTE, _all_nan, words)
    yield Attack("import", "npz of 3 GB", FOREIGN, _npz_bomb, ("import", "bomb.npz", *BARE))
    for name, (value, _) in HOSTILE.items():
        yield Attack("import", name, FOREIGN, _torch_of(value, "w.pt"), ("import", "w.pt", *BARE))
        write = _pickle_of(value, "v.pkl")
        yield Attack(
            "import", f"{name} in words", ("state.pt", *FOREIGN), write, ("import", "state.pt", *IMPORTED_WORDS)
        )


IMPORTED_WORDS = (*BARE[:-1], "v.pkl")


def _renamed(write, path):
    """Let a function that writes `{}` write another file."""

    def write_there(directory):
        write(directory)
        (directory / "{}").replace(directory / path)

    return write_there


def _pickle_of(value, path):
    return lambda directory: (directory / path).write_bytes(pickle.dumps({"idx2sym": ["a"], "more": value}))


# --- stores ----------------------------------------------------------------------------------------------------------


WORDS_OF_STORE = [f"w{number}" for number in range(7)] + ["<eos>"]
GOOD_IDS = [number % 8 for number in range(999)]


def _store(vocab, ids, *, note="a note", name="novel"):
    """Return a function that writes a store."""

    def write(directory):
        path = directory / "data/novel.h5"
        facts = TokenStore.open(path).facts
        facts = type(facts)(**{**vars(facts), "notes": (note,), "name": name})
        with token_store.writing(path, facts, vocab) as writer:
            for split in ("train", "valid", "test"):
                counts = SplitCounts(tokens=len(ids), words=1, bytes=len(ids), unknown=0, types=2)
                writer.add(split, counts, [np.asarray(ids)])

    return write


def _ids(ids, dtype):
    """Return a function that writes a store with other ids and their checksums; txl would not write it."""
    ids = np.asarray(ids, dtype)

    def write(directory):
        _store(Vocab("word", WORDS_OF_STORE, boundary=7), GOOD_IDS)(directory)
        with unsealed(directory / "data/novel.h5") as file:
            for group in file["splits"].values():
                info = json.loads(group.attrs["info"])
                del group["ids"]
                group["ids"] = ids
                group.attrs["info"] = json.dumps(
                    info | {"tokens": len(ids), "sha256": hashlib.sha256(ids.data).hexdigest()}
                )

    return write


def _boundary(boundary):
    """Return a function that writes a store whose vocabulary has another boundary; txl would not write it."""

    def write(directory):
        _store(Vocab("word", WORDS_OF_STORE, boundary=7), GOOD_IDS)(directory)
        with unsealed(directory / "data/novel.h5") as file:
            vocabulary = json.loads(bytes(file["vocabulary"][()])) | {"boundary": boundary}
            text = json.dumps(vocabulary, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
            del file["vocabulary"]
            file["vocabulary"] = np.frombuffer(text, dtype=np.uint8)
            file.attrs["fingerprint"] = hashlib.sha256(text).hexdigest()

    return write


def _hdf5_bomb(directory):
    path = directory / "data/novel.h5"
    with h5py.File(path, "r+") as file:
        del file["vocabulary"]
        file.create_dataset("vocabulary", shape=(ZEROS,), dtype="u1", chunks=(1 << 24,), compression="gzip")


def _external_vocabulary(directory):
    (directory / "secret").write_bytes(b"s" * 100)
    with h5py.File(directory / "data/novel.h5", "r+") as file:
        del file["vocabulary"]
        file.create_dataset("vocabulary", shape=(100,), dtype="u1", external=[(str(directory / "secret"), 0, 100)])


def _linked_split(name):
    def write(directory):
        with h5py.File(directory / "data/novel.h5", "r+") as file:
            del file["splits/test"]
            links = {
                "a broken soft link": h5py.SoftLink("/nowhere"),
                "a link to itself": h5py.SoftLink("/splits/test"),
                "an external link": h5py.ExternalLink("/etc/passwd", "/"),
            }
            file["splits/test"] = links[name]

    return write


def _store_attacks():
    words, many = WORDS_OF_STORE, GOOD_IDS
    good = Vocab("word", words, boundary=7)
    attacks = {
        "boundary -1": _boundary(-1),
        "boundary 10**9": _boundary(10**9),
        "ids above V": _ids([*many, 200], "u1"),
        "floating-point ids": _ids(many, "f4"),
        "ids of 64 bits": _ids([*many, 2**62], "i8"),
        "negative ids": _ids([*many, -1], "i4"),
        "a vocabulary of 3 GB": _hdf5_bomb,
        "an external vocabulary": _external_vocabulary,
        **{name: _linked_split(name) for name in ("a broken soft link", "a link to itself", "an external link")},
    }
    needs = ("data/novel.h5", "tiny.toml")
    for name, write in attacks.items():
        yield Attack("store", name, needs, write, TRAIN)
        yield Attack("store", f"{name}, listed", needs, write, ("prepare", "--list"), is_refused=False)
    for name, text in (("escapes", ESCAPE), ("a forged error", NEWLINE)):
        for what in ("note", "name"):
            write = _store(good, many, **{what: text})
            for command in (("prepare", "--list"), TRAIN):
                yield Attack("store", f"{name} as {what}, {command[0]}", needs, write, command, is_refused=False)
        write = _store(Vocab("word", [text, *words[1:]], boundary=7), many)
        yield Attack("store", f"{name} in words", needs, write, ("prepare", "--list"), is_refused=False)


# --- archives and texts ----------------------------------------------------------------------------------------------


def _zip_of(member, size):
    block = min(size, 1 << 24)
    return lambda directory: _write_zip(directory / "enwik8.zip", member, b"", b"a" * block, size // block)


def _tgz_of(member, *, kind=tarfile.REGTYPE, link=""):
    def write(directory):
        with tarfile.open(directory / "ptb.tgz", "w:gz") as archive:
            info = tarfile.TarInfo(member)
            info.type, info.linkname = kind, link
            info.size = 100 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"the word \n" * 10))

    return write


def _bytes_to(path, content):
    return lambda directory: (directory / path).write_bytes(content)


def _archive_attacks():
    zips = {"3 GB": ("enwik8", ZEROS), "a parent folder": ("../enwik8", 999), "an escape": (f"{ESCAPE}enwik8", 999)}
    for name, (member, size) in zips.items():
        words = ("prepare", "enwik8", "--source", "enwik8.zip")
        yield Attack("archive", f"zip of {name}", (), _zip_of(member, size), words)
    tgz = {
        "an absolute member": _tgz_of("/tmp/ptb.train.txt"),
        "a link": _tgz_of("data/ptb.train.txt", kind=tarfile.SYMTYPE, link="/etc/passwd"),
        "a device": _tgz_of("data/ptb.train.txt", kind=tarfile.CHRTYPE),
        "a FIFO": _tgz_of("data/ptb.train.txt", kind=tarfile.FIFOTYPE),
        "an escape": _tgz_of(f"data/{ESCAPE}ptb.train.txt"),
    }
    for name, write in tgz.items():
        yield Attack("archive", f"tgz with {name}", (), write, ("prepare", "ptb", "--source", "ptb.tgz"))
    random_bytes = np.random.default_rng(1).bytes(100_000)
    contents = {
        "PNG": b"\x89PNG\r\n\x1a\n" + random_bytes,
        "0xFF": b"\xff" * 100_000,
        "random bytes": random_bytes,
        "gzip": gzip.compress(random_bytes),
    }
    for name, content in contents.items():
        words = ("prepare", "enwik8", "--source", "enwik8")
        yield Attack("archive", f"{name} as enwik8", (), _bytes_to("enwik8", content), words)
    yield Attack("names", "escapes", ("novel",), _rename_text(ESCAPE), ("prepare", "texts"), is_refused=False)
    yield Attack("names", "a forged error", ("novel",), _rename_text(NEWLINE), ("prepare", "texts"), is_refused=False)
    for name, text in (("escapes", ESCAPE), ("a forged error", NEWLINE)):
        for words in (("runs",), ("eval", text), ("runs", "show", text)):
            needs, write = ("data/novel.h5", "runs/byte"), _rename_run(text)
            yield Attack("names", f"{name}, {words[0]} {len(words)}", needs, write, words, is_refused=False)
    write = _change("runs/byte/run.json", recipe=ESCAPE, metric=NEWLINE)
    yield Attack("run.json", "escapes", BYTE, write, ("runs", "show", "byte"), is_refused=False)


def _rename_text(name):
    def write(directory):
        (directory / "texts").mkdir()
        (directory / "novel/train.txt").rename(directory / f"texts/{name.replace('/', '')}.json")

    return write


def _rename_run(name):
    return lambda directory: (directory / "runs/byte").rename(directory / "runs" / name)


ATTACKS = (*_json_attacks(), *_weight_attacks(), *_store_attacks(), *_archive_attacks())


def injections(sample, amounts):
    """Return every attack once."""
    return [dataclasses.replace(attack, sample=sample) for attack in ATTACKS]
