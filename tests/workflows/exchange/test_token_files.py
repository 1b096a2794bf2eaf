"""Token files of nanoGPT, llm.c and Megatron: read as their authors describe them, and refused if damaged."""

import re
import struct
from dataclasses import replace

import numpy as np
import pytest

from tests.errors import rejection
from txlcli.corpora import OWN_TEXT, signatures
from txlcli.corpora.corpus import CorpusError, ReadOptions
from txlcli.errors import CorpusInputError
from txlcli.workflows.exchange import containers, token_files
from txlcli.workflows.exchange.token_files import IdType

IDS = [5, 0, 40_000, 7, 7, 12, 65_499]


def ids_of(tokens, pieces):
    return [int(number) for piece in pieces for block in tokens.blocks(piece) for number in block]


def read(path, dtype=None, vocab_size=None, *, is_export=False):
    tokens = token_files.find(path, IdType(dtype, vocab_size, is_export))
    return tokens.format, {split: ids_of(tokens, pieces) for split, pieces in tokens.splits.items()}


def refusal(path, dtype=None, vocab_size=None):
    return rejection((CorpusInputError, CorpusError), token_files.find, path, IdType(dtype, vocab_size))


def packed(code, numbers):
    return struct.pack(f"<{len(numbers)}{code}", *numbers)


def megatron_index(lengths, *, type_code=8, itemsize=2, documents=None, modes=b""):
    """Build an .idx from the published description of the format.

    Nine bytes of magic number, version 1, a code of the type, the number of sequences, the number of document bounds;
    then the length of each sequence as int32, the offset of each in bytes as int64, the bounds as int64, and for some
    data a mode per sequence as int8.
    """
    documents = list(range(len(lengths) + 1)) if documents is None else documents
    offsets = [itemsize * sum(lengths[:number]) for number in range(len(lengths))]
    head = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", type_code)
    head += struct.pack("<Q", len(lengths)) + struct.pack("<Q", len(documents))
    return head + packed("i", lengths) + packed("q", offsets) + packed("q", documents) + modes


def megatron(directory, ids, lengths, *, code="H", **index):
    (directory / "data.bin").write_bytes(packed(code, ids))
    (directory / "data.idx").write_bytes(megatron_index(lengths, **index))
    return directory / "data.idx"


def llm_c(ids, *, magic=20240520, version=1, count=None, code="H"):
    return packed("i", [magic, version, len(ids) if count is None else count, *[0] * 253]) + packed(code, ids)


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("magic", "version", "code"), [(20240520, 1, "H"), (20240801, 7, "I")])
def test_the_header_of_llm_c_states_the_type(tmp_path, magic, version, code):
    (tmp_path / "data.bin").write_bytes(llm_c(IDS, magic=magic, version=version, code=code))
    assert read(tmp_path / "data.bin") == ("llm.c", {"": IDS})


@pytest.mark.parametrize(
    ("type_code", "code", "ids"),
    [
        (1, "B", [3, 255, 0]),
        (2, "b", [3, 127, 0]),
        (3, "h", [3, 32_767, 0]),
        (4, "i", [3, 70_001, 0]),
        (5, "q", [3, 70_001, 0]),
        (8, "H", [3, 65_535, 0]),
    ],
)
def test_every_type_of_ids_of_megatron_is_read(tmp_path, type_code, code, ids):
    path = megatron(tmp_path, ids, [2, 1], type_code=type_code, itemsize=struct.calcsize(code), code=code)
    assert read(path) == read(tmp_path / "data.bin") == ("Megatron", {"": ids})
    index = {"documents": [0, 2, 2, 3], "modes": bytes(3)}  # a document of two sequences, an empty one, a mode each
    path = megatron(tmp_path, ids, [1, 0, 2], type_code=type_code, itemsize=struct.calcsize(code), code=code, **index)
    assert read(path) == ("Megatron", {"": ids})
    tokens = token_files.find(path, IdType())
    (piece,), size = tokens.splits[""], struct.calcsize(code)
    assert tokens.documents.starts([piece]).tolist() == [0, size]
    assert tokens.documents.starts([replace(piece, start=size)]).tolist() == [0]


@pytest.mark.parametrize(("ids", "index"), [("DATA.BIN", "DATA.IDX"), ("data.bin", "data.IDX")])
def test_names_in_capitals_are_token_files_too(tmp_path, ids, index):
    (tmp_path / ids).write_bytes(packed("I", IDS))
    (tmp_path / index).write_bytes(megatron_index([2, 5], type_code=4, itemsize=4))
    assert read(tmp_path / ids) == read(tmp_path) == ("Megatron", {"": IDS})


def test_the_files_of_a_directory_are_splits_in_the_order_of_their_names(tmp_path):
    for name, ids in {"fineweb_val_000000": [1], "fineweb_train_000002": [3], "fineweb_train_000001": [2]}.items():
        (tmp_path / f"{name}.bin").write_bytes(llm_c(ids))
    (tmp_path / ".train.bin").write_bytes(b"hidden")
    (tmp_path / "input.txt").write_text("the text")
    assert read(tmp_path) == ("llm.c", {"train": [2, 3], "valid": [1]})


def test_other_files_and_directories_are_text(tmp_path):
    (tmp_path / "words.txt").write_text("the text")
    assert token_files.find(tmp_path / "words.txt", IdType()) is None
    (tmp_path / "firmware.bin").write_bytes(b"\1\2\3")
    assert token_files.find(tmp_path, IdType()) is None


# --- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "code", "header"),
    [(65_500, "H", {}), (65_536, "H", {}), (65_537, "I", {"magic": 20240801, "version": 7, "code": "I"})],
)
def test_nanogpt_s_file_is_the_ids_alone_and_llm_c_s_has_the_header_of_its_type(tmp_path, size, code, header):
    token_files.write("nanogpt", tmp_path / "train.bin", np.array(IDS), size)
    assert (tmp_path / "train.bin").read_bytes() == packed(code, IDS)
    token_files.write("llm.c", tmp_path / "train.bin", np.array(IDS), size)
    assert (tmp_path / "train.bin").read_bytes() == llm_c(IDS, **header)


@pytest.mark.parametrize(("size", "code", "index"), [(65_499, "H", {}), (65_500, "i", {"type_code": 4, "itemsize": 4})])
@pytest.mark.parametrize(("starts", "lengths"), [(None, [7]), (np.array([0, 3, 4]), [3, 1, 3])])
def test_megatron_s_files_are_those_of_the_description(tmp_path, size, code, index, starts, lengths):
    token_files.write("megatron", tmp_path / "train.bin", np.array(IDS), size, starts)
    assert (tmp_path / "train.bin").read_bytes() == packed(code, IDS)
    assert (tmp_path / "train.idx").read_bytes() == megatron_index(lengths, **index)


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "size"), [(None, 7), ("uint16", 7), ("uint32", 6)])
def test_a_part_of_an_id_is_rejected(tmp_path, dtype, size):
    (tmp_path / "train.bin").write_bytes(bytes(size))
    assert f"not a whole number of {dtype or 'uint16'} ids" in refusal(tmp_path, dtype)


def is_named(dtype, message):
    """True if an error advises a type; the name of another type begins like it."""
    return bool(re.search(rf"`dtype` {dtype}(?!-)\b", message))


@pytest.mark.parametrize("largest", [100, 50_000])
@pytest.mark.parametrize("given", ["uint8", "uint16", "uint16-be"])
def test_ids_whose_upper_bytes_are_zero_are_not_read_as_narrower_ones(tmp_path, largest, given):
    ids = [(number * 7919) % largest for number in range(64)]
    (tmp_path / "train.bin").write_bytes(packed("I", ids))
    assert is_named("uint32", refusal(tmp_path, given, largest))
    assert not is_named("uint32", refusal(tmp_path, given))
    assert read(tmp_path / "train.bin", "int32") == ("nanoGPT", {"": ids})


def test_a_long_run_of_one_id_tells_no_type(tmp_path):
    ids = [7, *[0] * 4096, *range(9)]
    (tmp_path / "train.bin").write_bytes(packed("H", ids))
    assert read(tmp_path) == ("nanoGPT", {"train": ids})


def test_ids_beyond_uint16_are_read_as_such_only_if_that_is_stated(tmp_path):
    ids = [(number * 7919) % 200_000 for number in range(64)]
    (tmp_path / "train.bin").write_bytes(packed("I", ids))
    assert not is_named("uint32", refusal(tmp_path))
    assert not is_named("uint32", refusal(tmp_path, vocab_size=1000))
    assert read(tmp_path, vocab_size=200_000) == ("nanoGPT", {"train": ids})
    assert len(read(tmp_path / "train.bin", "uint16")[1][""]) == 2 * len(ids)


def skewed(size, count=3001):
    """Return ids of which the small ones are the most frequent, as in every vocabulary of text."""
    return (size ** np.random.default_rng(5).random(2 * count)).astype(np.int64).tolist()


SIZES = [61, 251, 5003, 50_257, 70_001]


@pytest.mark.parametrize(
    ("dtype", "order", "code", "size"),
    [
        *(("uint8", "<", "B", size) for size in SIZES[:2]),
        *(("uint16-be", ">", "H", size) for size in SIZES[:4]),
        *(("uint32-be", ">", "I", size) for size in SIZES),
        *(("int64", "<", "q", size) for size in SIZES),
        *(("int64-be", ">", "q", size) for size in SIZES),
    ],
)
def test_ids_of_another_type_are_recognized_and_read_as_stated(tmp_path, dtype, order, code, size):
    ids = skewed(size)
    (tmp_path / "train.bin").write_bytes(struct.pack(f"{order}{len(ids)}{code}", *ids))
    assert is_named(dtype, refusal(tmp_path, vocab_size=size))
    assert "`vocab_size`" in refusal(tmp_path)  # no type is advised without a vocabulary
    assert not is_named(dtype, refusal(tmp_path, vocab_size=size // 2))
    assert read(tmp_path, dtype) == ("nanoGPT", {"train": ids})


@pytest.mark.parametrize("code", ["f", "d"])
@pytest.mark.parametrize("dtype", [None, "uint16", "int64"])
def test_floating_point_numbers_are_no_ids(tmp_path, code, dtype):
    (tmp_path / "train.bin").write_bytes(packed(code, np.random.default_rng(7).poisson(size=3004).tolist()))
    assert "floating-point numbers" in refusal(tmp_path, dtype)


@pytest.mark.parametrize("size", [2, 61, 5003, 50_257, 65_536])
def test_every_vocabulary_of_uint16_is_read_without_a_word(tmp_path, size):
    for ids in (skewed(size), np.random.default_rng(3).integers(size, size=5003).tolist()):
        (tmp_path / "train.bin").write_bytes(packed("H", ids))
        assert read(tmp_path) == ("nanoGPT", {"train": ids})


def test_files_in_folders_named_as_splits_and_folders_of_token_files_alone(tmp_path):
    for name, ids in {"a/train/0.bin": [1], "a/val/0.bin": [2], "a/train/1.bin": [3]}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(packed("H", ids))
    (tmp_path / "a/README.md").write_text("about the ids")
    assert read(tmp_path / "a") == ("nanoGPT", {"train": [1, 3], "valid": [2]})
    (tmp_path / "chunks").mkdir()
    for number in (2, 1):
        (tmp_path / f"chunks/chunk_{number}.bin").write_bytes(packed("H", [number]))
    assert read(tmp_path / "chunks") == ("nanoGPT", {"": [1, 2]})
    (tmp_path / "chunks/weights.bin").write_bytes(b"PK\3\4" * 32)
    assert "zip, not ids" in refusal(tmp_path / "chunks")


@pytest.mark.parametrize("ids", [[1, 0] * 999, [0, 256] * 999, [0] * 2999 + [257] * 400, [0, 0, 0, 1] * 999])
def test_the_files_of_an_export_have_the_type_of_its_vocabulary(tmp_path, ids):
    token_files.write("nanogpt", tmp_path / "train.bin", np.array(ids), 500)
    assert read(tmp_path, vocab_size=500, is_export=True) == ("nanoGPT", {"train": ids})


def litgpt(ids, *, version=1, type_code=8, code="H"):
    """Build a packed chunk: a magic number, the version, a code of the type, the number of ids, and the ids."""
    return b"LITPKDS" + struct.pack("<QBQ", version, type_code, len(ids)) + packed(code, ids)


def test_packed_chunks_of_litgpt_are_read_after_their_header(tmp_path):
    (tmp_path / "train_0000000000.bin").write_bytes(litgpt(IDS))
    (tmp_path / "train_0000000001.bin").write_bytes(litgpt(IDS[:3]))
    assert read(tmp_path) == ("LitGPT", {"train": IDS + IDS[:3]})
    (tmp_path / "train_0000000002.bin").write_bytes(litgpt([70_001], type_code=4, code="i"))
    assert "LitGPT int32 and LitGPT uint16" in refusal(tmp_path)


def test_files_with_a_header_or_an_index_are_ids_next_to_text(tmp_path):
    (tmp_path / "gpt2-merges.txt").write_text("t h\n")
    (tmp_path / "chunk_0.bin").write_bytes(packed("H", IDS))
    assert token_files.find(tmp_path, IdType()) is None
    (tmp_path / "chunk_1.bin").write_bytes(litgpt(IDS))
    assert read(tmp_path) == ("LitGPT", {"": IDS})
    (tmp_path / "chunk_1.bin").unlink()
    token_files.write("megatron", tmp_path / "text_document.bin", np.array(IDS), 500)
    assert read(tmp_path) == ("Megatron", {"": IDS})


@pytest.mark.parametrize("data", [litgpt(IDS)[:-2], litgpt(IDS, version=2), litgpt(IDS, type_code=6)])
def test_a_packed_chunk_that_does_not_fit_its_header_is_rejected(tmp_path, data):
    (tmp_path / "train.bin").write_bytes(data)
    assert "header of LitGPT" in refusal(tmp_path)


def old_index(lengths, *, itemsize=4, documents=None):
    """Build an .idx of the format before mmap: type, counts, the first size and id of each sequence, and the sizes."""
    count = len(lengths)
    head = b"TNTIDX\0\0" + struct.pack("<5Q", 1, 4, itemsize, count, count)
    if documents is not None:
        head += struct.pack("<Q", len(documents))
    ends = np.cumsum([0, *lengths]).tolist()
    return (
        head + packed("q", range(count + 1)) + packed("q", ends) + packed("q", lengths) + packed("q", documents or [])
    )


@pytest.mark.parametrize(
    ("index", "format", "starts"),
    [
        (
            b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, 4, 3) + struct.pack("<3i3q", 2, 1, 4, 0, 8, 12),
            "fairseq",
            [0, 8, 12],
        ),
        (old_index([2, 1, 4]), "fairseq (TNTIDX)", [0, 8, 12]),
        (old_index([2, 1, 4], documents=[0, 2, 3]), "Megatron", [0, 12]),
    ],
)
def test_indexes_of_sequences_and_older_ones_are_read(tmp_path, index, format, starts):
    ids = [5, 0, 70_001, 7, 7, 12, 3]
    (tmp_path / "train.bin").write_bytes(packed("i", ids))
    (tmp_path / "train.idx").write_bytes(index)
    assert read(tmp_path) == (format, {"train": ids})
    tokens = token_files.find(tmp_path, IdType())
    assert tokens.documents.starts(tokens.splits["train"]).tolist() == starts


def test_a_type_that_cannot_hold_the_vocabulary_of_an_export_is_rejected(tmp_path):
    (tmp_path / "train.bin").write_bytes(packed("H", IDS))
    with pytest.raises(CorpusInputError, match="too many for uint8"):
        token_files.find(tmp_path, IdType("uint8", 257, is_export=True))
    assert token_files.find(tmp_path, IdType("uint8", 256, is_export=True)) is not None


def test_an_older_index_of_another_file_is_named(tmp_path):
    (tmp_path / "train.bin").write_bytes(packed("i", [1, 2]))
    (tmp_path / "train.idx").write_bytes(old_index([2, 1]))
    assert "TNTIDX" in refusal(tmp_path)


def streaming_chunk(samples, more=b""):
    """Build a chunk: the number of samples, their offsets in the file and its end, perhaps a description, the data."""
    begin = 4 * (len(samples) + 2) + len(more)
    offsets = begin + np.cumsum([0, *map(len, samples)])
    return packed("I", [len(samples), *offsets]) + more + b"".join(samples)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (streaming_chunk([packed("H", IDS)] * 5), "streaming samples"),
        (streaming_chunk([b"text", b"more text"], b'{"column_names": ["tokens"]}'), "streaming samples"),
        (b"\x93NUMPY\1\0" + bytes(200), "NumPy"),
        (b"PAR1" + bytes(200), "Parquet"),
        (b"\x89HDF\r\n\x1a\n" + bytes(200), "HDF5"),
    ],
)
def test_other_formats_named_bin_are_told_by_their_headers(tmp_path, data, word):
    (tmp_path / "train.bin").write_bytes(data)
    assert word in refusal(tmp_path)


def test_numbers_that_only_begin_like_a_table_of_offsets_are_ids(tmp_path):
    (tmp_path / "train.bin").write_bytes(packed("H", [1, 0, 0]) + b"\7")
    assert "streaming samples" not in refusal(tmp_path)


@pytest.mark.parametrize("name", ["chunk-0-0.mds", "train.npy"])
def test_files_of_ids_with_other_names_are_named_even_next_to_a_description(tmp_path, name):
    data = streaming_chunk([packed("H", IDS)] * 5) if name.endswith("mds") else packed("H", IDS * 99)
    (tmp_path / name).write_bytes(data)
    (tmp_path / "index.json").write_text("{}")
    for source in (tmp_path, tmp_path / name):
        assert containers.find(source, column=None, encoding=None) == ()
        with pytest.raises(CorpusError, match=r"streaming samples|NumPy"):
            OWN_TEXT.read(source, ReadOptions())


@pytest.mark.parametrize("header", [{"version": 9}, *({"count": count} for count in (0, -1, 6, 8, 1 << 30))])
def test_ids_that_do_not_fit_their_header_of_llm_c_are_rejected_unless_it_is_read_as_ids(tmp_path, header):
    (tmp_path / "train.bin").write_bytes(llm_c(IDS, **header))
    assert "header of llm.c" in refusal(tmp_path)
    format, splits = read(tmp_path, "uint16")
    assert (format, splits["train"][512:]) == ("nanoGPT", IDS)


@pytest.mark.parametrize("magic", [20240326, 20240522])
def test_a_header_of_another_file_of_llm_c_is_not_read_as_ids(tmp_path, magic):
    (tmp_path / "train.bin").write_bytes(llm_c(IDS, magic=magic))
    assert f"another file of llm.c than token ids (magic number {magic})" in refusal(tmp_path)
    format, splits = read(tmp_path, "uint16")
    assert (format, splits["train"][512:]) == ("nanoGPT", IDS)
    (tmp_path / "train.bin").write_bytes(packed("H", [magic % (1 << 16), magic >> 16, *range(1, 600)]))
    assert read(tmp_path)[0] == "nanoGPT"


@pytest.mark.parametrize(
    "change",
    [
        lambda index: b"",
        lambda index: b"N" + index[1:],
        lambda index: index[:9] + b"\2" + index[10:],  # version
        lambda index: index[:17] + b"\6" + index[18:],  # type
        lambda index: index[:-1],
        lambda index: index[:18] + b"\xff" * 8 + index[26:],  # number of sequences
        lambda index: index[:34] + b"\3" + index[35:],  # a length
        lambda index: index[:50] + b"\5" + index[51:],  # an offset
        lambda index: index[:66] + b"\5" + index[67:],  # a document
    ],
)
def test_a_damaged_index_is_rejected(tmp_path, change):
    path = megatron(tmp_path, IDS, [2, 5], documents=[0, 1, 2])
    path.write_bytes(change(path.read_bytes()))
    assert "data.idx: damaged" in refusal(path)


def test_ids_with_an_index_in_a_directory_need_no_names_of_splits(tmp_path):
    megatron(tmp_path, IDS, [7])
    assert read(tmp_path) == ("Megatron", {"": IDS})
    assert token_files.find(tmp_path, IdType()).documents is None  # one alone cannot be divided into splits
    (tmp_path / "data.bin").unlink()
    assert token_files.find(tmp_path, IdType()) is None
    with pytest.raises(CorpusError, match="an index of Megatron"):
        signatures.reject_other_than_text(tmp_path / "data.idx")


def test_splits_of_one_document_each_are_not_divided_into_documents(tmp_path):
    for name in ("train", "valid", "test"):
        token_files.write("megatron", tmp_path / f"{name}.bin", np.array(IDS), 65_500)
    assert token_files.find(tmp_path, IdType()).documents is None


def test_files_of_one_document_each_are_the_documents_of_their_split(tmp_path):
    for name in ("train-0", "train-1"):
        token_files.write("megatron", tmp_path / f"{name}.bin", np.array(IDS), 65_500)
    tokens = token_files.find(tmp_path, IdType())
    assert tokens.documents.starts(tokens.splits["train"]).tolist() == [0, 4 * len(IDS)]


def test_files_of_two_formats_or_without_a_split_are_rejected(tmp_path):
    (tmp_path / "train.bin").write_bytes(packed("H", IDS))
    (tmp_path / "val.bin").write_bytes(llm_c(IDS))
    assert "llm.c uint16 and nanoGPT uint16" in refusal(tmp_path)
    (tmp_path / "val.bin").rename(tmp_path / "more.bin")
    assert "more.bin names none or several" in refusal(tmp_path)
