"""Text of the user's own: from a folder to a result without a recipe, and no training twice."""

import re

import pytest

from tests.commands.novel import done, json_of, train

SHORT = [
    *("--set", "train.max_steps=3", "--set", "train.valid_every=3", "--set", "train.seg_len=7"),
    *("--set", "train.mem_len=7", "--set", "train.batch_size=3", "--set", "model.n_layers=1"),
]


@pytest.mark.parametrize(
    ("tokenizer", "recipe_name"),
    [("byte", "stdlib"), ("char", "stdlib"), ("word", "ptb-small"), ("sentencepiece", "ptb-small")],
)
def test_a_store_is_trained_with_the_small_recipe_of_its_unit(untouched, tokenizer, recipe_name):
    size = ["--vocab-size", "300"] if tokenizer == "sentencepiece" else []
    prepared = done("prepare", "novel", "--tokenizer", tokenizer, *size)
    assert prepared.stdout.splitlines()[-1].startswith("next: txl train novel")
    name = prepared.stdout.splitlines()[-1].split()[-1]
    trained = done("train", f"{name}/", *SHORT)  # as a shell completes the name
    assert f'with the settings of the recipe "{recipe_name}"' in trained.stderr
    settings = json_of("runs")["runs"][0]
    assert (settings["name"], settings["recipe"]) == (name, recipe_name)
    assert json_of("eval", name, "--mem-len", 7, "--positions", 30)["rows"][0]["tokens"] == 30


def test_a_text_whose_file_has_the_name_of_its_store_is_trained_next_to_it(untouched):
    (untouched / "poem").write_text("the fox jumps over the lazy dogs\n" * 50)
    command = json_of("prepare", "poem")["next"]
    assert command == "txl train poem"
    assert json_of(*command.split()[1:], *SHORT, "--dry-run")["store"] == "data/poem.h5"


@pytest.mark.parametrize(("missing", "following"), [("test", "valid"), ("valid", None)])
def test_a_store_without_test_is_evaluated_on_valid(here, missing, following):
    (here / f"novel/{missing}.txt").unlink()
    done("prepare", "novel", "--name", "part")
    shown = done("train", "tiny.toml", "--set", "corpus.store=part", "--name", "part").stdout
    (command,) = re.findall(r"next +│ txl (.*?) +│", shown)
    assert command == "eval runs/part" + (f" --split {following}" if following else "")
    done(*command.split())


def test_line_ends_that_a_vocabulary_drops_are_no_words(here):
    (here / "list.txt").write_text("the\nfox\n<unk>\n")
    (here / "lines.txt").write_text("the fox\nfox owl <unk>\n" * 50)
    told = json_of("prepare", "lines.txt", "--vocab", "list.txt", "--name", "lines", "--split", "60,0,40")
    assert told["splits"]["test"]["words"] == told["splits"]["test"]["tokens"] == 5 * 20
    assert told["changes"] == {"line_ends_dropped": 100}
    assert len(told["notes"]) == 2
    train("corpus.store=lines", name="lines")
    for source in ([], ["--text", "lines.txt"], ["--protocols", "disjoint"]):
        (row,) = json_of("eval", "lines", *source)["rows"]
        assert row["ppl_per_word"] == row["ppl"]


def test_a_line_end_that_the_text_spells_is_counted_once(untouched):
    (untouched / "plain.txt").write_text("some words of a line\n" * 50)
    (untouched / "spelled.txt").write_text("some words of a line <eos>\n" * 50)
    plain, spelled = (json_of("prepare", f"{name}.txt", "--tokenizer", "word") for name in ("plain", "spelled"))
    for split in plain["splits"]:
        assert spelled["splits"][split]["tokens"] == plain["splits"][split]["tokens"]
    assert len(spelled["notes"]) == 1


def test_nul_bytes_and_byte_order_marks_are_counted(untouched):
    (untouched / "a.txt").write_bytes(b"\xef\xbb\xbf" + b"some text with a \0 byte\n" * 30)
    told = json_of("prepare", "a.txt")
    assert told["changes"] == {"byte_order_marks_dropped": 1, "nul_bytes_kept": 30}
    assert "30 NUL bytes" in told["notes"][0]
    assert "byte order marks dropped: 1, nul bytes kept: 30\n" in done("prepare", "a.txt", "--force").stdout


def test_bytes_that_are_not_utf_8_are_noted_for_own_text(untouched):
    (untouched / "legacy.txt").write_bytes("un café\n".encode("cp1252") * 30)
    assert "not UTF-8 in 30 places" in json_of("prepare", "legacy.txt")["notes"][0]
    told = json_of("prepare", "legacy.txt", "--encoding", "cp1252", "--force")
    assert told["splits"]["train"]["begins"].startswith("un café un café")


@pytest.mark.parametrize("tokenizer", ["byte", "word"])
def test_a_split_of_files_with_open_last_lines_scores_as_its_text(here, tokenizer):
    files = {"train": ["one two", "three four\nfive\n"] * 40, "test": ["two five\none", "end", "tiny\n\nfour three"]}
    for split, parts in files.items():
        (here / "open" / split).mkdir(parents=True)
        for number, text in enumerate(parts):
            (here / f"open/{split}/{number:02}.txt").write_text(text)
    told = json_of("prepare", "open", "--tokenizer", tokenizer)
    at_end = int(tokenizer == "word")  # whose last line ends, too
    assert told["splits"]["test"]["bytes"] == len("two five\none\nend\ntiny\n\nfour three") + at_end
    assert told["changes"]["line_ends_added"] == 40 + 2 + at_end
    (here / "test.txt").write_text("two five\none\nend\ntiny\n\nfour three")
    done("train", "tiny.toml", "--set", "corpus.store=open", "--name", "open")
    split, text = (
        json_of("eval", "open", *source, "--batch-size", 1)["rows"][0] for source in ([], ["--text", "test.txt"])
    )
    assert (split["tokens"], split["loss_nats"]) == (text["tokens"], text["loss_nats"])
