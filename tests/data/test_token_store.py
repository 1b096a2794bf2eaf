import fcntl
import hashlib
import json
import resource
import subprocess
import sys
import textwrap

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.samples import sampled
from txlcli.corpora import CORPORA
from txlcli.corpora.corpus import SPLITS
from txlcli.data.token_store import BENCHMARKS, SplitCounts, StoreFacts, TokenStore, prepare_command, writing
from txlcli.data.vocabulary import Vocab
from txlcli.errors import StoreError

VOCAB = Vocab("word", ["<S>", "<UNK>", "a", "b"], boundary=0, unknown=1)
FACTS = StoreFacts("tiny", "lm1b", "word", "word", "ppl", {"valid": "shard 1"}, ("a note",), "beef", False)


def write(path, splits=None, vocab=VOCAB, facts=FACTS):
    with writing(path, facts, vocab) as writer:
        for split, numbers in (splits or {"train": [2, 3, 0, 2, 0], "test": [3, 0]}).items():
            ids = np.array(numbers)
            counts = SplitCounts(tokens=ids.size, words=7, bytes=11)
            starts = np.append(0, np.flatnonzero(ids == 0) + 1)  # the last one is behind the text
            writer.add(split, counts, np.array_split(ids, 2), starts if split == "test" else None)
    return path


def test_a_store_is_read_as_it_was_written(tmp_path):
    store = TokenStore.open(write(tmp_path / "new" / "tiny.h5"))
    assert store.ids("train").tolist() == [2, 3, 0, 2, 0]
    assert store.ids("train").dtype == np.uint8
    assert store.to_json() == FACTS.to_json()
    assert (store.name, store.conventions, store.notes) == ("tiny", {"valid": "shard 1"}, ("a note",))
    assert list(store.splits) == ["train", "test"]
    info = store.info("train")
    assert (info.tokens, info.words, info.bytes, info.unknown, info.types) == (5, 7, 11, 0, 3)
    assert store.vocab.to_json() == VOCAB.to_json()
    assert store.fingerprint == VOCAB.fingerprint
    assert store.sentence_starts("train") is None
    assert store.sentence_starts("test").tolist() == [0]
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["tiny.h5"]


def test_a_store_is_read_without_locks_which_some_network_file_systems_lack(tmp_path):
    with write(tmp_path / "tiny.h5").open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert TokenStore.open(tmp_path / "tiny.h5").ids("train").tolist() == [2, 3, 0, 2, 0]


WORDS = st.lists(st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"]), min_size=1), min_size=2, unique=True)


@settings(max_examples=8)
@given(words=WORDS, streams=st.lists(st.lists(st.integers(0), max_size=50), min_size=1, max_size=3), data=st.data())
def test_any_ids_and_words_are_read_as_they_were_written(tmp_path_factory, words, streams, data):
    vocab, path = Vocab("word", words), tmp_path_factory.mktemp("store") / "any.h5"
    streams = {
        split: [number % len(words) for number in stream]
        for split, stream in zip(SPLITS[: len(streams)], streams, strict=True)
    }
    starts = np.array(data.draw(st.lists(st.integers(0, 50), max_size=9)), dtype=np.int64)
    with writing(path, FACTS, vocab) as writer:
        for split, numbers in streams.items():
            counts = SplitCounts(tokens=len(numbers), words=1, bytes=1)
            cuts = sorted(data.draw(st.lists(st.integers(0, len(numbers)), max_size=3)))
            blocks = np.split(np.array(numbers, dtype=np.int64), cuts)
            writer.add(split, counts, blocks, starts if split == "train" else None)
    store = TokenStore.open(path)
    store.verify()
    assert {split: store.ids(split).tolist() for split in store.splits} == streams
    inside = [start for start in starts.tolist() if start < max(1, len(streams["train"]))]
    assert store.sentence_starts("train").tolist() == inside
    assert store.vocab.to_json() == vocab.to_json()


def test_a_store_can_be_read_without_txl(tmp_path):
    with h5py.File(write(tmp_path / "tiny.h5")) as file:
        ids = file["splits/train/ids"]
        assert (ids[()].tolist(), ids.dtype, ids.chunks) == ([2, 3, 0, 2, 0], np.uint8, None)
        digests = [hashlib.sha256(bytes(numbers)).hexdigest() for numbers in ([3, 0], [0])]
        assert json.loads(file["splits/test"].attrs["info"])["sha256"] == digests[0]
        assert file["splits/test"].attrs["sentence_starts_sha256"].decode() == digests[1]
        assert file["splits/test/sentence_starts"][()].tolist() == [0]
        assert json.loads(bytes(file["vocabulary"]))["symbols"] == VOCAB.symbols
        assert json.loads(file.attrs["facts"])["corpus"] == "lm1b"
        assert json.loads(file["splits/train"].attrs["info"])["tokens"] == 5


def test_ids_are_a_read_only_memory_map_of_the_smallest_type(tmp_path):
    vocab = Vocab("char", [chr(256 + number) for number in range(300)])
    ids = TokenStore.open(write(tmp_path / "tiny.h5", {"train": [0, 299], "test": [1]}, vocab)).ids("train")
    assert isinstance(ids, np.memmap)
    assert ids.dtype == np.uint16
    assert ids.ctypes.data % 2 == 0
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


def test_a_missing_store_names_the_command(tmp_path):
    with pytest.raises(StoreError, match='run "txl prepare enwik8" first'):
        TokenStore.open(tmp_path / "enwik8.h5")


def test_a_missing_split_names_the_command(tmp_path):
    store = TokenStore.open(write(tmp_path / "tiny.h5"))
    for read in (store.ids, store.info, store.sentence_starts):
        with pytest.raises(StoreError, match=r"has no valid split \(it holds train, test\)"):
            read("valid")


def test_a_permission_error_is_not_reported_as_damage(tmp_path, monkeypatch):
    path = write(tmp_path / "tiny.h5")

    def denied(*_, **__):
        raise PermissionError(13, "Unable to open file")

    monkeypatch.setattr(h5py, "File", denied)
    with pytest.raises(StoreError, match="Permission denied"):
        TokenStore.open(path)


def test_other_files_are_rejected(tmp_path):
    (tmp_path / "text.h5").write_text("no HDF5")
    with pytest.raises(StoreError, match="is damaged or not a token store"):
        TokenStore.open(tmp_path / "text.h5")
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["data"] = [1, 2, 3]
    with h5py.File(write(tmp_path / "newer.h5"), "r+") as file:
        file.attrs["version"] = 2
    for name in ("foreign.h5", "newer.h5"):
        with pytest.raises(StoreError, match="not a token store of this version"):
            TokenStore.open(tmp_path / name)


def test_changed_ids_sentences_and_vocabularies_are_detected(tmp_path):
    with h5py.File(write(tmp_path / "tiny.h5"), "r+") as file:
        file["splits/train/ids"][3] = 1
        file["splits/test/sentence_starts"][0] = 1
    store = TokenStore.open(tmp_path / "tiny.h5")
    assert store.ids("test").tolist() == [3, 0]
    with pytest.raises(StoreError, match="the train split is damaged"):
        store.ids("train")
    with pytest.raises(StoreError, match="the list of sentences of the test split is damaged"):
        store.sentence_starts("test")
    with h5py.File(tmp_path / "tiny.h5", "r+") as file:
        file["vocabulary"][0] = 0
    store = TokenStore.open(tmp_path / "tiny.h5")
    with pytest.raises(StoreError, match="the vocabulary is damaged"):
        _ = store.vocab


def test_ids_beyond_the_vocabulary_and_other_types_are_rejected_although_the_digest_is_right(tmp_path):
    with h5py.File(write(tmp_path / "tiny.h5"), "r+") as file:
        group = file["splits/train"]
        group["ids"][3] = VOCAB.size
        info = json.loads(group.attrs["info"]) | {"sha256": hashlib.sha256(group["ids"][()]).hexdigest()}
        group.attrs["info"] = np.bytes_(json.dumps(info))
        del file["splits/test/ids"]
        file["splits/test"].create_dataset("ids", data=np.array([3, -1], dtype=np.int8))
    store = TokenStore.open(tmp_path / "tiny.h5")
    with pytest.raises(StoreError, match=f"contains {VOCAB.size}"):
        store.ids("train")
    with pytest.raises(StoreError, match="type int8"):
        store.ids("test")


def test_a_link_to_a_store_stays_a_link_and_its_file_is_replaced(tmp_path):
    (tmp_path / "disk").mkdir()
    write(tmp_path / "disk/big.h5", {"train": [3]})
    (tmp_path / "tiny.h5").symlink_to(tmp_path / "disk/big.h5")
    (tmp_path / "work").mkdir()
    with writing(tmp_path / "tiny.h5", FACTS, VOCAB, work=tmp_path / "work") as writer:
        writer.add("train", SplitCounts(tokens=2, words=7, bytes=11), [np.array([2, 2])])
    assert (tmp_path / "tiny.h5").is_symlink()
    assert TokenStore.open(tmp_path / "disk/big.h5").ids("train").tolist() == [2, 2]
    assert [entry.name for entry in (tmp_path / "disk").iterdir()] == ["big.h5"]


def test_a_failure_while_writing_keeps_the_old_store(tmp_path):
    before = write(tmp_path / "tiny.h5").read_bytes()
    with pytest.raises(ZeroDivisionError), writing(tmp_path / "tiny.h5", FACTS, VOCAB):
        _ = 1 / 0
    assert (tmp_path / "tiny.h5").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.h5"]


LIMITED = """
    import resource, sys
    from pathlib import Path
    import numpy as np
    from tests.data.test_token_store import FACTS, VOCAB
    from txlcli.data.token_store import SplitCounts, writing
    from txlcli.errors import StoreError
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
    try:
        with writing(Path(sys.argv[1]), FACTS, VOCAB) as writer:
            counts = SplitCounts(tokens=30_000, words=1, bytes=1)
            writer.add("train", counts, np.array_split(np.zeros(30_000, dtype=np.uint8), 7))
    except StoreError as error:
        print(error)
"""


@pytest.mark.parametrize("size", sampled(2, range(0, 32_768, 4096)))
def test_wherever_space_ends_the_old_store_stays_and_the_error_is_one_line(tmp_path, size):
    path = write(tmp_path / "tiny.h5")
    before = path.read_bytes()
    command = [sys.executable, "-c", textwrap.dedent(LIMITED), str(path), str(size)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("\n") == 1
    assert f"could not write {path} ([Errno 27] File too large)" in ran.stdout
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.h5"]


def contents(path):
    """Return everything that is read from a store, after all digests have been verified."""
    store = TokenStore.open(path)
    store.verify()
    ids = {split: store.ids(split).tolist() for split in store.splits}
    return store.to_json(), store.splits, ids, store.sentence_starts("test").tolist(), store.vocab.to_json()


def flip(path, place, bit):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_no_flipped_bit_changes_a_store_without_an_error(tmp_path):
    path = write(tmp_path / "tiny.h5", {"train": [2, 3, 0, 1] * 50, "test": [3, 0]})
    before, count = contents(path), 0
    places = range(0, path.stat().st_size, 7)
    for place in places:
        flip(path, place, bit=place % 8)
        try:
            assert contents(path) == before
        except StoreError:
            count += 1
        flip(path, place, bit=place % 8)
    assert count > len(places) // 3  # most others are in the gaps between aligned parts


@pytest.mark.parametrize("part", ["splits/train/ids", "splits/test/sentence_starts", "vocabulary"])
def test_packed_arrays_that_are_larger_than_the_file_are_rejected(tmp_path, part):
    path = write(tmp_path / "tiny.h5")
    with h5py.File(path, "r+") as file:
        del file[part]
        file.create_dataset(part, shape=(1 << 40,), dtype=np.uint8, chunks=(1 << 20,), compression="gzip")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StoreError, match="declares 1,099,511,627,776 bytes"):
        contents(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("wt103", "txl prepare wt103"),
        ("enwik8-released", "txl prepare enwik8 --released-convention"),
        ("ptb-bpe500", "txl prepare ptb --tokenizer sentencepiece --vocab-size 500 --sp-type bpe"),
        ("ptb-vocab-0a1b2c3d", "txl prepare ptb --vocab FILE"),
        ("my-diary", "txl prepare PATH --name my-diary"),
    ],
)
def test_the_command_that_prepares_a_store_follows_from_its_name(name, command):
    assert prepare_command(name) == command


def test_the_corpora_of_prepare_are_known_by_name():
    assert set(CORPORA) == BENCHMARKS
