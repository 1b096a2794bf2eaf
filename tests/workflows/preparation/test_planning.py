"""Options of a preparation that are wrong, or have no effect on what is prepared, and wrong names and paths."""

from pathlib import Path

import pytest

from txlcli.config.settings import plain_name
from txlcli.errors import CorpusInputError, UsageError
from txlcli.workflows.preparation.options import PrepareOptions
from txlcli.workflows.preparation.planning import make_plan


@pytest.fixture(autouse=True)
def in_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refusal(word, **options):
    with pytest.raises(UsageError) as refused:
        make_plan(str(word), PrepareOptions(**options), Path("data"))
    assert not Path("data").exists()
    return str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"split": shares}, "`split`: give three shares of train, valid and test that sum to 100, like 90,5,5")
            for shares in ((90, 5), (90, 5, 6), (0, 50, 50))
        ),
        ({"split": (110, -5, -5)}, "`split` must be at least 0, not -5"),
        ({"split": (float("nan"), 5, 5)}, "`split` must be at least 0, not nan"),
        ({"workers": 0}, "`workers` must be at least 1, not 0"),
        ({"min_count": 0}, "`min_count` must be at least 1, not 0"),
        ({"vocab_size": -5}, "`vocab_size` must be at least 2, not -5"),
        ({"name": "a/b"}, '`name` "a/b" is not a plain name; use letters, digits, ".", "-" and "_"'),
    ],
)
def test_values_and_combinations_are_checked_when_the_options_are_made(options, message):
    with pytest.raises(UsageError) as refused:
        PrepareOptions(**options)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("word", "options", "message"),
    [
        ("ptb", {"vocab_size": 9}, "`vocab_size` has no effect here; it is for token ids, and words or SentencePiece"),
        ("stdlib", {"tokenizer": "char", "vocab_size": 9}, "`vocab_size` has no effect here"),
        ("stdlib", {"min_count": 9}, "`min_count` has no effect here; it is for a vocabulary of words or characters"),
        ("stdlib", {"sp_type": "bpe"}, "`sp_type` has no effect here; it is for `tokenizer` sentencepiece"),
        ("ptb", {"split": (90, 5, 5)}, "`split` has no effect here; it is for text"),
        ("ptb", {"released_convention": True}, "`released_convention` has no effect here; it is for enwik8 and lm1b"),
        ("enwik8", {"released_convention": True, "tokenizer": "char"}, "`released_convention` has no effect here"),
        ("stdlib", {"column": "text"}, "`column` has no effect here; it is for files that end with .parquet"),
        ("stdlib", {"dtype": "uint16"}, "`dtype` has no effect here; it is for a .bin of ids without a header"),
        (".", {"source": Path()}, '`source` needs the name of a corpus, and "." is not one'),
    ],
)
def test_options_without_effect_are_rejected(word, options, message):
    assert refusal(word, **options).startswith(message)


def test_a_wrong_path_or_name_is_reported():
    hint = "give the path of a file or folder with your text"
    assert refusal("nowhere/else.txt") == f"no file or folder at nowhere/else.txt; {hint}"
    assert 'did you mean "wt103"?' in refusal("wikitext")


@pytest.mark.parametrize("name", ["ptb", "text8.txt", "stdlib", "enwik8-released"])
@pytest.mark.parametrize("force", [False, True])
def test_own_text_cannot_take_the_name_of_a_benchmark(name, force):
    if "." in name:
        Path(name).write_text("text")
    else:
        Path(name).mkdir()
        Path(name, "book.txt").write_text("text")
    stem = name.removesuffix(".txt")
    message = f'"{stem}" is the name of a benchmark\'s own store; choose another with `name`'
    assert refusal(f"./{name}", force=force) == message
    assert make_plan(f"./{name}", PrepareOptions(name="mine"), Path("data")).store == Path("data/mine.h5")


def test_a_file_given_as_data_dir_is_reported():
    Path("book.txt").write_text("text")
    Path("file").write_text("in the way")
    with pytest.raises(UsageError, match="`data_dir` file is a file; give a folder"):
        make_plan("book.txt", PrepareOptions(), Path("file"))


def test_a_missing_source_is_reported():
    with pytest.raises(CorpusInputError) as refused:
        make_plan("ptb", PrepareOptions(source=Path("nowhere")), Path("data"))
    assert "no file or folder at nowhere" in str(refused.value)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("topics.txt", "topics"),
        ("topics.txt.gz", "topics"),
        ("topics.xz", "topics"),
        ("topics-2.5.zst", "topics-2.5"),
        ("a.b.txt", "a.b"),
    ],
)
def test_a_store_is_named_after_its_file_without_the_endings_of_its_format(file, name):
    path = Path(file)
    path.write_bytes(b"")
    assert plain_name(path, otherwise="text") == name
