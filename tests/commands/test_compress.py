"""txl compress and txl decompress: sizes, exact restoration, and what is refused."""

import dataclasses
import gzip
import math
import os
import random
from pathlib import Path

import pytest

from tests.commands.novel import change_weights, done, json_of, recipe_of, refusal, start, train
from tests.commands.processes import ended
from tests.samples import sampled
from txlcli.data import compressed_file

NOVEL = "the fox jumps over lazy dogs\nnaïve 語 🦊\n" * 7


def written(name, data):
    Path(name).write_bytes(data)
    return name


def restored(run, data, *options):
    """Compress and restore data; return the result of the compression and the restored data."""
    result = json_of("compress", run, written("file", data), "file.txlz", "--force", *options)
    json_of("decompress", run, "file.txlz", "back", "--force")
    return result, Path("back").read_bytes()


KINDS = {
    "empty": b"",
    "one byte": b"x",
    "text": NOVEL.encode(),
    "unknown characters": "ΑΒΓ the fox\r\n\tzzz".encode(),
    "no UTF-8": b"the fox \xff\xfe\x80 \xe8\xaa",
    "all bytes": b"\xef\xbb\xbf" + bytes(range(256)),  # begins like a text with a byte order mark
    "random": random.Random(7).randbytes(301),
    "zeros": bytes(211),
    "rows": b'{"text": "the fox"}\n' * 9,
    "long line": b"fox " * 97,
}


@pytest.mark.parametrize(("kind", "run"), sampled(2, KINDS, ["byte", "char"]))
def test_any_file_is_restored(here, kind, run):
    data = KINDS[kind]
    result, back = restored(run, data, "--lanes", 3)
    assert back == data
    assert result["bytes"] == len(data)
    assert result["compressed_bytes"] == os.path.getsize("file.txlz")


def test_the_lanes_of_a_short_file_are_those_that_have_a_token(here):
    result, back = restored("byte", b"foxes", "--lanes", 4)
    assert (result["lanes"], back) == (3, b"foxes")  # of two, two and one byte


def test_a_portable_file_is_restored_with_other_threads_and_vectors(here):
    text = b"the fox saw the fox\n"
    json_of("compress", "byte", written("file", text), "file.txlz", "--portable", "--threads", 1)
    narrow = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "OMP_NUM_THREADS": "2"}
    ended(start("decompress", "byte", "file.txlz", "back", environment=narrow), 0)
    assert Path("back").read_bytes() == text


@pytest.mark.parametrize(
    ("run", "text"), [("word", "the fox jumps\nover the owl\n"), ("sentencepiece", "the fox jumps")]
)
def test_words_and_pieces_are_restored_if_the_vocabulary_restores_them(here, run, text):
    assert restored(run, text.encode())[1] == text.encode()
    written("file", b"the  fox\xff")
    assert "does not restore this text exactly" in refusal("compress", run, "file", "out", code=1)
    assert not os.path.exists("out")


@pytest.mark.parametrize(
    ("data", "name"),
    [(gzip.compress(NOVEL.encode()), "gzip"), (NOVEL.encode("utf-16"), "utf-16"), (b"PAR1" * 9, "Parquet")],
    ids=["gzip", "utf-16", "Parquet"],
)
def test_a_file_whose_bytes_are_not_its_text_is_rejected(here, data, name):
    refused = refusal("compress", "byte", written("file", data), "out", code=1)
    assert name in refused
    assert "--encoding" not in refused  # which compress does not have
    assert not os.path.exists("out")


def test_a_file_is_not_named_like_stdout(here):
    written("file", b"the fox")
    for command in ("compress", "decompress"):
        assert "give the name of a file" in refusal(command, "byte", "file", "-")
    assert not os.path.exists("-")


def test_the_predictions_have_the_bits_that_eval_reports(here):
    text = written("file", NOVEL.encode())
    result = json_of("compress", "byte", text, "out", "--lanes", 1)
    (row,) = json_of("eval", "byte", "--text", text, "--batch-size", 1)["rows"]
    evaluated = row["bpc"] * (len(NOVEL.encode()) - 1)
    first = result["predicted_bits"] - evaluated
    assert 0 < first < 8.1  # the first byte has no prediction
    assert result["compressed_bytes"] - result["predicted_bits"] / 8 < 700


def test_absolute_positions_predict_without_a_memory_that_was_not_trained(here):
    train("model.position=sinusoid", "train.mem_len=0", "eval.mem_len=0", name="windows")
    assert restored("windows", b"the fox saw the fox")[1] == b"the fox saw the fox"
    assert "give --mem-len 0" in refusal("compress", "windows", "file", "out", "--mem-len", 3)


def test_a_recurrent_state_predicts_too(here):
    Path("lstm.toml").write_text(recipe_of("lstm"))
    done("train", "lstm.toml", "--name", "lstm")
    assert restored("lstm", NOVEL.encode(), "--lanes", 2)[1] == NOVEL.encode()
    assert "--portable" in refusal("compress", "lstm", "file", "other", "--portable")
    assert not os.path.exists("other")


@pytest.fixture
def packed(here):
    json_of("compress", "byte", written("file", b"the fox jumps over lazy dogs\n"), "packed")


def test_a_file_of_another_run_or_release_or_with_words_of_another_text_is_not_restored(packed):
    assert "and runs/char here has " in refusal("decompress", "char", "packed", "back", code=1)
    header, words = compressed_file.read(Path("packed"))
    for name, value, message in (
        ("txl", "0.0.1", "compressed with txl 0.0.1"),
        ("torch", "0.0.1", "compressed with torch 0.0.1"),
        ("probe", "another", "rounds differently"),
        ("same_length", "zz", "[eval] same_length"),
    ):
        compressed_file.write(Path(name), dataclasses.replace(header, **{name: value}), words)
        assert message in refusal("decompress", "byte", name, "back", code=1)
    compressed_file.write(Path("other"), header, words[::-1].copy())
    message = refusal("decompress", "byte", "other", "back", code=1)
    assert "the restored text differs" in message or "no encoder wrote these words" in message
    assert not os.path.exists("back")


def test_files_that_cannot_be_read_or_written_are_rejected(packed):
    os.symlink("nowhere", "link")
    os.mkfifo("pipe")
    for command, message in (
        ("compress file packed", "packed exists"),
        ("decompress packed file", "file exists"),
        ("compress file link", "link exists"),
        ("compress file pipe --force", "pipe is a folder, pipe or device"),
        ("decompress packed pipe --force", "pipe is a folder, pipe or device"),
        ("compress file file --force", "file is the file to read"),
        ("compress nothing out", "nothing: cannot be read"),
        ("compress file missing/out", "missing/out: the folder missing is missing"),
        ("compress file out --lanes 4097", "--lanes must be at most 4096"),
    ):
        name, *rest = command.split()
        assert refusal(name, "byte", *rest).startswith(message)
    assert os.readlink("link") == "nowhere"
    assert Path("pipe").is_fifo()
    assert not Path("out").exists()


def test_weights_that_have_diverged_compress_nothing(here):
    change_weights("byte", lambda name, tensor: tensor * math.nan)
    assert "not numbers" in refusal("compress", "byte", written("file", NOVEL.encode()), "out", code=1)
    assert not os.path.exists("out")
