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
    ("word", "options", "telling"),
    [
        ("ptb", {"vocab_size": 9}, "`vocab_size` has no effect"),
        ("stdlib", {"tokenizer": "char", "vocab_size": 9}, "`vocab_size` has no effect"),
        ("stdlib", {"min_count": 9}, "`min_count` has no effect"),
        ("stdlib", {"sp_type": "bpe"}, "`sp_type` has no effect"),
        ("ptb", {"split": (90, 5, 5)}, "`split` has no effect"),
        ("ptb", {"released_convention": True}, "enwik8 and lm1b"),
        ("enwik8", {"released_convention": True, "tokenizer": "char"}, "`released_convention` has no effect"),
        ("stdlib", {"column": "text"}, "`column` has no effect"),
        ("stdlib", {"dtype": "uint16"}, "`dtype` has no effect"),
        (".", {"source": Path()}, "`source` needs the name of a corpus"),
        ("nowhere/else.txt", {}, "no file or folder"),
        ("wikitext", {}, '"wt103"'),
    ],
)
def test_options_without_effect_and_wrong_names_are_rejected(word, options, telling):
    assert telling in refusal(word, **options)


@pytest.mark.parametrize("name", ["ptb", "text8.txt", "stdlib", "enwik8-released"])
@pytest.mark.parametrize("force", [False, True])
def test_own_text_cannot_take_the_name_of_a_benchmark(name, force):
    if "." in name:
        Path(name).write_text("text")
    else:
        Path(name).mkdir()
        Path(name, "book.txt").write_text("text")
    stem = name.removesuffix(".txt")
    assert f'"{stem}" is the name of a benchmark' in refusal(f"./{name}", force=force)
    assert make_plan(f"./{name}", PrepareOptions(name="mine"), Path("data")).store == Path("data/mine.h5")


@pytest.mark.parametrize("store", ["ptb-small", "vanilla-stdlib"])
def test_a_store_cannot_take_the_name_of_a_recipe_of_another_text(store):
    Path(f"{store}.txt").write_text("text")
    Path("book.txt").write_text("text")
    telling = f'"txl train {store}" would train another text'
    assert telling in refusal(f"{store}.txt")
    assert telling in refusal("book.txt", name=store)
    assert telling in refusal("stdlib", name=store)


@pytest.mark.parametrize("store", ["ptb", "lm1b-released"])
def test_a_store_can_be_given_the_name_of_a_benchmark(store):
    Path("book.txt").write_text("text")
    assert make_plan("book.txt", PrepareOptions(name=store), Path("data")).store == Path(f"data/{store}.h5")


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
