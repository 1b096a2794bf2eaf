"""txl prepare and txl export with Parquet files: a column of text becomes a store, and stores become such files."""

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from tests.commands.novel import STORES, TOKENIZERS, digests, done, json_of, names_in, refusal, store, text_of
from txlcli.data.vocabulary import Vocab


def write_rows(path, rows, column="text"):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.table({"id": list(range(len(rows))), column: rows}), path)


@pytest.fixture
def dataset(untouched):
    """Make a folder as a dataset of the Hugging Face Hub has it, with the lines of the novel."""
    for split, name in {"train": "train", "valid": "validation", "test": "test"}.items():
        write_rows(untouched / f"hub/data/{name}-00000-of-00001.parquet", text_of(split).splitlines())
    (untouched / "hub/README.md").write_text("a dataset")
    return untouched


# --- round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_an_exported_text_is_prepared_again_with_the_same_digests(here, tokenizer):
    name = STORES[tokenizer]
    told = json_of("export", name, "files", "--format", "parquet")
    assert (
        told["files"]
        == ["test.parquet", "train.parquet", "validation.parquet", "vocab.json"]
        == names_in(here / "files")
    )
    assert told["sha256"] == digests(name)
    rows = parquet.read_table("files/train.parquet")["text"].to_pylist()
    assert rows == text_of("train").splitlines(keepends=True)
    done("prepare", "files", "--name", "again")
    assert store("again").fingerprint == store(name).fingerprint
    assert {split: vars(info) for split, info in store("again").splits.items()} == {
        split: vars(info) for split, info in store(name).splits.items()
    }
    assert store("again").conventions["vocabulary"] == "from files/vocab.json"


# --- preparing -------------------------------------------------------------------------------------------------------


def test_a_dataset_gives_the_tokens_of_its_lines(dataset):
    metadata = parquet.read_metadata(dataset / "hub/data/train-00000-of-00001.parquet")
    metadata.set_file_path("train-00000-of-00001.parquet")
    for name in ("_metadata", "_common_metadata"):
        metadata.write_metadata_file(dataset / "hub/data" / name)
    (dataset / "hub/vocab.json").write_text(Vocab.of_bytes(b"abc").to_json())  # is not read, since txl did not export
    done("prepare", "novel", "--tokenizer", "word")
    told = json_of("prepare", "hub", "--tokenizer", "word")
    assert told["fingerprint"] == store("novel").fingerprint
    assert digests("hub") == digests("novel")
    assert told["splits"] == {
        split: told["splits"][split] | vars(store("novel").info(split)) for split in told["splits"]
    }


# --- refusals --------------------------------------------------------------------------------------------------------


def test_text_that_would_not_give_the_same_ids_is_not_exported(here):
    (here / "list.txt").write_text("<eos>\nfox\nthe\n")
    np.array([2, 1] * 99, "<u2").tofile("all.bin")  # no line end at the end, where the text of words always has one
    done("prepare", "all.bin", "--vocab", "list.txt", "--name", "all")
    assert "--format nanogpt" in refusal("export", "all", "files", "--format", "parquet", code=1)
    assert not (here / "files").exists()


def test_files_without_text_are_rejected(untouched):
    (untouched / "hub").mkdir()
    parquet.write_table(arrow.table({"text": arrow.array([None, None], arrow.string())}), "hub/train.parquet")
    assert "has no text" in refusal("prepare", "hub", code=1)
    write_rows(untouched / "short.parquet", ["a"])
    assert "too few bytes to split" in refusal("prepare", "short.parquet", code=1)


def test_a_single_file_is_cut_at_line_ends(untouched):
    rows = [f"line {number} of many" for number in range(400)]
    write_rows(untouched / "stories.parquet", [*rows, None], column="story")
    assert json_of("prepare", "stories.parquet", "--tokenizer", "word")["changes"] == {"rows_without_text": 1}
    counts = [info.tokens for info in store("stories").splits.values()]
    assert sum(counts) == 5 * len(rows)
    assert all(count % 5 == 0 for count in counts)


def test_a_vocabulary_of_the_user_replaces_that_of_the_export(here):
    done("export", "word", "files", "--format", "parquet")
    done("prepare", "files", "--name", "chars", "--tokenizer", "char")
    assert store("chars").tokenizer == "char"
    done("prepare", "files", "--name", "given", "--vocab", "runs/char/vocab.json")
    assert digests("given") == digests("char")
