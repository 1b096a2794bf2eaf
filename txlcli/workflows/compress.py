"""Compresses files with the predictions of a run, and restores them.

The bytes of any text can be coded, and those of files of unknown formats: symbols that the vocabulary lacks are
escaped, if the vocabulary has bytes or characters. Words and SentencePiece models are accepted for texts that they
restore exactly.
"""

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from txlcli import __version__
from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.device import useful_threads
from txlcli.core.kernels.modes import threads
from txlcli.core.measures.compression import Ids, Predictor, SymbolCoder, SymbolDecoder, SymbolEncoder, code_text
from txlcli.core.measures.portable import PortableArithmetic
from txlcli.core.reading.scoring import Lanes
from txlcli.data import compressed_file
from txlcli.data.compressed_file import CompressionHeader
from txlcli.data.vocabulary import Vocab
from txlcli.errors import CompressedFileError, RecipeError, UsageError, VocabularyError
from txlcli.runs import loading, run_directory
from txlcli.runs.loading import OpenRun
from txlcli.runs.run_directory import Run
from txlcli.system.atomic_files import check_output, errors_of_writing, replacing
from txlcli.system.input_files import errors_of_reading
from txlcli.system.written_files import check_replaceable
from txlcli.workflows.compress_options import CompressOptions, DecompressOptions
from txlcli.workflows.evaluation.scoring import one_lane
from txlcli.workflows.user_text import read_unchanged
from txlcli.workflows.workspace import Workspace

BYTES_PER_LANE = 1 << 13
MAX_LANES = 64
CODECS = {"byte": ("latin-1", "strict"), "char": ("utf-8", "surrogateescape")}
"""Encodings whose characters are the symbols, by tokenizer; a byte that is not UTF-8 is one symbol."""
ALPHABETS = {"byte": 1 << 8, "char": sys.maxunicode + 1}
"""Number of symbols that a file may have, by tokenizer. An id V + n is symbol n, which the vocabulary lacks."""


@dataclass(frozen=True, kw_only=True)
class DecompressResult:
    """Size of a restored file."""

    run: str
    file: str
    compressed: str
    bytes: int
    """Size of the original file."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CompressResult(DecompressResult):
    """Sizes and settings of a compressed file."""

    compressed_bytes: int
    bits_per_byte: float | None
    """None for an empty file."""
    predicted_bits: float
    escaped_symbols: int
    """Symbols that the vocabulary lacks."""
    lanes: int
    seg_len: int
    mem_len: int


def compress(run: Run, source: Path, target: Path, options: CompressOptions, workspace: Workspace) -> CompressResult:
    """Compress a file with the predictions of a run."""
    _check_target(target, source, options)
    check_replaceable(target, compressed_file.MAGIC.decode())
    data = read_unchanged(source)
    opened = _open_exact(run)
    ids = _encode(opened.vocab, data, source)
    lanes = options.lanes or min(MAX_LANES, len(data) // BYTES_PER_LANE)
    batch_size = max(1, min(lanes, len(data)))
    settings = one_lane(run, mem_len=options.mem_len).with_batch_size(batch_size)
    lanes = Lanes.of(max(1, len(ids)), settings).n_lanes  # fewer if the last ones would be empty
    started = time.perf_counter()
    coder = SymbolEncoder()
    used = useful_threads(opened.model, lanes)
    with threads(used):
        title = f"compressing {source}"
        probe = _code(opened, settings, workspace, coder, ids, title, portable=options.portable)
    seconds = time.perf_counter() - started
    header = CompressionHeader(
        **_conditions(opened),
        threads=used,
        probe=probe,
        content=compressed_file.digest(data),
        bytes=len(data),
        tokens=len(ids),
        lanes=lanes,
        seg_len=settings.seg_len,
        mem_len=settings.mem_len,
        max_distance=settings.max_distance,
        same_length=settings.same_length,
        portable=options.portable,
    )
    with errors_of_writing(target):
        size = compressed_file.write(target, header, coder.words())
    return CompressResult(
        run=str(run.directory),
        file=str(source),
        compressed=str(target),
        bytes=len(data),
        compressed_bytes=size,
        bits_per_byte=8 * size / len(data) if data else None,
        predicted_bits=coder.bits,
        escaped_symbols=int((ids >= opened.vocab.size).sum()),
        lanes=lanes,
        seg_len=settings.seg_len,
        mem_len=settings.mem_len,
        seconds=seconds,
    )


def _code(
    opened: OpenRun,
    settings: EvalSettings,
    workspace: Workspace,
    coder: SymbolCoder,
    ids: Ids,
    title: str,
    *,
    portable: bool,
    probe: str | None = None,
) -> str:
    """Encode a text, or fill in one that is decoded; return the probe of the predictor, which must equal `probe`.

    An empty text has no probe.
    """
    vocab = opened.vocab
    count = len(ids)
    if not count:
        return ""
    model = opened.model
    arithmetic: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if portable:
        model = model.double().on(attention="reference")
        arithmetic = PortableArithmetic()
    with arithmetic, workspace.reporter.progress(title, total=count, unit="tokens") as bar:
        predictor = Predictor(model, settings, Lanes.of(count, settings))
        measured = predictor.probe()
        if probe is not None and probe != measured:
            raise CompressedFileError(
                f"{title}: this machine rounds differently from the one that compressed it; decompress it there, or "
                "compress it there with `portable`"
            )
        alphabet = ALPHABETS.get(vocab.tokenizer, vocab.size)
        code_text(predictor, coder, ids, boundary=vocab.boundary, alphabet=alphabet, on_tokens=bar.reach)
    return measured


def decompress(
    run: Run, source: Path, target: Path, options: DecompressOptions, workspace: Workspace
) -> DecompressResult:
    """Restore a file that `compress` wrote; the target is written after all of its bytes are verified."""
    _check_target(target, source, options)
    if target.exists() and h5py.is_hdf5(target):
        raise UsageError(f"{target} is an HDF5 file, such as a token store; name another file to write")
    with errors_of_reading(source):
        header, words = compressed_file.read(source)
    opened = _open_exact(run)
    started = time.perf_counter()
    with threads(header.threads):  # sums are divided among them
        data = _restored(source, header, SymbolDecoder(words), opened, workspace)
    if compressed_file.digest(data) != header.content:
        raise CompressedFileError(
            f"{source}: the restored text differs from the original, so nothing was written; decompress it where it "
            "was compressed"
        )
    with errors_of_writing(target), replacing(target) as draft:
        draft.write_bytes(data)
    return DecompressResult(
        run=str(run.directory),
        file=str(target),
        compressed=str(source),
        bytes=len(data),
        seconds=time.perf_counter() - started,
    )


def _open_exact(run: Run) -> OpenRun:
    """Open a run on the device and in the precision with which its predictions are repeated to the bit."""
    return loading.open_run(run, device="cpu", precision="fp32")


def _check_target(target: Path, source: Path, options: DecompressOptions) -> None:
    """Reject a target that is the source, or exists and may not be replaced."""
    if str(target) == "-":
        raise UsageError("- is not stdout here, but would be a file of this name; give the name of a file")
    check_output(target, str(target))
    if target.exists() and source.exists() and target.samefile(source):
        raise UsageError(f"{target} is the file to read; name another file to write")
    if os.path.lexists(target) and not options.force:  # a broken link, too
        raise UsageError(f"{target} exists; name another file, or add `force` to replace it")
    if run_directory.is_file_of_run(target):
        raise UsageError(f"{target} belongs to a run; name another file to write")


def _encode(vocab: Vocab, data: bytes, source: Path) -> Ids:
    """Return the ids (T,) of a file."""
    if vocab.tokenizer in CODECS:
        ids_of = vocab.ids_of
        symbols = data.decode(*CODECS[vocab.tokenizer])
        known_or_escaped = [ids_of.get(symbol, vocab.size + ord(symbol)) for symbol in symbols]
        return np.array(known_or_escaped, dtype=np.int64)
    with contextlib.suppress(UnicodeError):
        ids: Ids = vocab.encode(data.decode("utf-8"))
        if vocab.decode(ids).encode("utf-8") == data:
            return ids
    raise VocabularyError(
        f"{source}: the run's vocabulary ({vocab.tokenizer}) does not restore this text exactly; compress it with a "
        "run of bytes or characters"
    )


def _decode(vocab: Vocab, ids: Ids) -> bytes:
    """Return the bytes of a file."""
    if vocab.tokenizer not in CODECS:
        return vocab.decode(ids).encode("utf-8")
    symbols = []
    for id_ in ids.tolist():
        if id_ < vocab.size:
            symbols.append(vocab.symbols[id_])
        else:
            symbols.append(chr(id_ - vocab.size))
    return "".join(symbols).encode(*CODECS[vocab.tokenizer])


def _conditions(opened: OpenRun) -> dict[str, Any]:
    """Return the fields that affect predictions; a probe covers the machine."""
    return {
        "weights": compressed_file.digest(opened.checkpoint.weights_digest().encode()),
        "txl": __version__,
        "torch": torch.__version__,
        "constriction": version("constriction"),
    }


def _restored(
    source: Path, header: CompressionHeader, coder: SymbolDecoder, opened: OpenRun, workspace: Workspace
) -> bytes:
    for name, value in _conditions(opened).items():
        expected = getattr(header, name)
        if expected != value:
            raise CompressedFileError(
                f"{source}: compressed with {name} {expected}, and {opened.run.directory} here has {value}; restore it "
                "with the run and the releases that compressed it"
            )
    ids = np.zeros(header.tokens, dtype=np.int64)
    try:
        settings = opened.run.settings.evaluation_settings(
            batch_size=header.lanes,
            seg_len=header.seg_len,
            mem_len=header.mem_len,
            max_distance=header.max_distance,
            same_length=header.same_length,
        )
        title = f"restoring {source}"
        _code(opened, settings, workspace, coder, ids, title, portable=header.portable, probe=header.probe)
        return _decode(opened.vocab, ids)
    except (ValueError, RecipeError) as error:
        raise CompressedFileError(f"{source}: {error}; restore it from a copy") from error
