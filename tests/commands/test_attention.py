"""txl attention: its figures, table, JSON and errors."""

import itertools
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import txlcli
from tests.commands.novel import done, json_of, names_in, recipe_of, refusal, text_of, write_texts
from tests.report.test_plots import MAGIC
from txlcli.core.measures.attention_maps import strongest
from txlcli.report import attention

POSITIONS = {
    "shaw": ["model.position=shaw", "model.n_positions=5"],
    "sinusoid": ["model.position=sinusoid"],
    "learned": ["model.position=learned", "model.n_positions=5", "train.mem_len=0", "eval.mem_len=0"],
}
N_VALID = len(text_of("valid").encode()) - 1  # every byte except the first
FILES = ["figure5.png", "figure6.png", "figure7.png"]


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Runs of other models."""
    directory = tmp_path_factory.mktemp("others") / "here"
    write_texts(directory)
    where = ["--data-dir", directory / "data"]
    done("prepare", directory / "novel", *where)
    where += ["--runs-dir", directory / "runs"]
    (directory / "lstm.toml").write_text(recipe_of("lstm"))
    done("train", directory / "lstm.toml", *where)
    for name, changes in POSITIONS.items():
        options = [f"--set={change}" for change in changes]
        done("train", directory / "tiny.toml", "--name", name, *options, *where)
    return directory


@pytest.fixture
def other(others, tmp_path, monkeypatch):
    shutil.copytree(others, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_json_contains_the_numbers_of_the_figures(here):
    output = json_of("attention", "byte", "--positions", 31, "--at", 9)
    five, six, seven = (output.pop(f"figure{number}") for number in (5, 6, 7))
    heads = output.pop("heads")
    assert output["files"] == [f"runs/byte/figures/{name}" for name in FILES]
    facts = (output["text"], output["attn_len_max"], output["first_position"], output["positions"])
    assert facts == ("novel valid", 5, 5, 31)
    for averaged in (five, seven["a"], seven["b"], seven["d"]):
        assert np.shape(averaged) == (2, 3, 5)
        np.testing.assert_allclose(np.sum(averaged, axis=-1), 1, atol=1e-5)
    assert not np.allclose(five, seven["b"], atol=1e-4)
    averaged = np.array(five)
    for head in heads:
        row = averaged[head["layer"] - 1, head["head"] - 1]
        assert head["mean_distance_tokens"] == pytest.approx(sum(row * range(5)), rel=1e-4)
        assert head["width_tokens"] == pytest.approx(np.exp(-sum(row * np.log(row))), rel=1e-4)
    data = text_of("valid").encode()
    assert six["at"] == 9
    byte_names = [chr(byte) if 32 <= byte < 127 else {10: "\\n"}.get(byte, f"\\x{byte:02x}") for byte in data]
    assert six["targets"] == byte_names[10:26]
    assert six["context"] == byte_names[5:10]
    widest = sorted(heads, key=lambda head: -head["width_tokens"])[:3]
    pairs = [(head["layer"], head["head"]) for head in six["heads"]]
    assert pairs == [(head["layer"], head["head"]) for head in widest]
    for head in six["heads"]:
        attention = np.array(head["attention"], dtype=float)
        assert attention.shape == (16, 5)
        assert np.nansum(attention[0]) == pytest.approx(1, abs=1e-5)
        assert [np.flatnonzero(row).tolist() for row in strongest(attention)] == head["top"]
        assert [len(row) for row in head["top"]] == [1] * 5 + [0] * 11  # the sixth target no longer sees it


def measured(run, **options):
    """Return the numbers without drawing the figures."""
    return txlcli.load(run).attention(txlcli.AttentionOptions(**options)).to_dict()


def test_each_average_is_in_its_column_whatever_their_order():
    averages = {"memory_share": (0.25, 0.5), "entropy_nats": (1.5, 2.0), "width_tokens": (3.0, 5.0)}
    averages["mean_distance_tokens"] = (7.0, 11.0)
    result = SimpleNamespace(heads={name: np.array([values]) for name, values in averages.items()})
    assert attention.rows(result) == [["1", "9.0", "1.75", "37.5%", "1.2", "5.0"]]


def test_heads_are_counted_from_1_and_drawn_into_another_folder_in_another_format(here):
    options = ("--heads", "2.3,1.1,2.3", "--out", "deep/er", "--format", "svg")
    output = json_of("attention", "byte", *options)
    assert [(head["layer"], head["head"]) for head in output["figure6"]["heads"]] == [(2, 3), (1, 1)]
    names = [name.replace(".png", ".svg") for name in FILES]
    assert names_in(here / "deep/er") == names
    assert output["files"] == [f"deep/er/{name}" for name in names]
    assert (here / "deep/er/figure5.svg").read_bytes().startswith(MAGIC[".svg"])
    every = measured("byte", heads=tuple(itertools.product((1, 2), (1, 2, 3))))["figure6"]["heads"]
    attention = {(head["layer"], head["head"]): head["attention"] for head in every}
    assert len(attention) == 6
    for head in output["figure6"]["heads"]:
        assert head["attention"] == attention[head["layer"], head["head"]]
    assert attention[2, 3] != attention[1, 1]


def test_lengths_split_and_the_last_token_can_be_set(here):
    output = measured("word", mem_len=11, seg_len=3, split="test", positions=20)
    assert (output["seg_len"], output["attn_len_max"], output["first_position"]) == (3, 11, 12)
    assert (output["text"], output["max_distance"]) == ("word test", 10)
    assert np.shape(output["figure5"]) == (2, 3, 11)
    assert measured("byte", positions=20, at=24)["figure6"]["targets"]
    assert measured("byte", positions=N_VALID - 5)["positions"] == N_VALID - 5


def test_the_seed_selects_the_passage_of_text(here):
    passages = [measured("byte", seed=seed, positions=18)["figure6"] for seed in (1, 1, 5, 7)]
    assert passages[0] == passages[1]
    assert {one["at"] for one in passages} == {5, 6, 7}  # 16 rows fit


@pytest.mark.slow
def test_columns_before_the_text_have_no_label(untouched):
    done("prepare", "novel")
    done("train", "tiny.toml", "--set", "eval.same_length=off", "--set", "train.max_steps=1")
    output = json_of("attention", "--at", 6)
    assert output["attn_len_max"] == 10
    assert output["figure6"]["context"] == [""] * 3 + list("the fox")
    nowhere = {tuple(row[:3]) for head in output["figure6"]["heads"] for row in head["attention"]}
    assert nowhere == {(None, None, None)}


def test_figure_7_has_the_terms_of_the_encoding(other):
    assert list(measured("shaw")["figure7"]) == ["a", "b"]
    done("attention", "sinusoid")
    assert names_in(other / "runs/sinusoid/figures") == FILES[:2]
    assert "no attention to single tokens" in refusal("attention", "lstm")
    assert measured("sinusoid")["figure7"] is None


def test_a_model_without_memory_is_measured_by_segments(other):
    output = measured("learned", mem_len=0)
    assert (output["attn_len_max"], output["first_position"], output["positions"]) == (5, 0, N_VALID)
    assert {head["memory_share"] for head in output["heads"]} == {0}
    assert "give --mem-len 0" in refusal("attention", "learned", "--mem-len", 5)
    assert "learned 5 positions" in refusal("attention", "learned", "--mem-len", 0, "--seg-len", 6)


def test_an_output_directory_that_cannot_be_created_is_rejected(here):
    (here / "taken").write_text("")
    for path, reason in (("taken", "File exists"), ("taken/in", "Not a directory")):
        assert f"{path}: cannot be written ({reason})" in refusal("attention", "byte", "--out", path, code=1)


def test_figures_are_written_to_the_run_directory_and_overwritten_only_with_force(here):
    assert f"{N_VALID - 5} tokens of novel valid" in done("attention", "byte", "--heads", "1.1").stderr
    for name in FILES:
        assert (here / "runs/byte/figures" / name).read_bytes().startswith(MAGIC[".png"])
    assert "byte" in refusal("attention", "bite")  # a folder with figures is still a run
    path = here / "runs/byte/figures/figure6.png"
    before = path.read_bytes()
    assert "figure5.png exists" in refusal("attention", "byte", "--heads", "2.1", code=1)
    assert (path.read_bytes(), names_in(path.parent)) == (before, FILES)
    done("attention", "byte", "--heads", "2.1", "--force")
    assert path.read_bytes() != before
    assert names_in(path.parent) == FILES


@pytest.mark.parametrize(
    ("words", "telling"),
    [
        *((f"--heads {heads}", "1.1 to 2.3") for heads in ("3.1", "0.1", "1.1,3.2")),
        *((f"--heads {heads}", "layer.head") for heads in ("1", "a.b", "1.1,")),
        (f"--positions {N_VALID - 4}", "5 of them without a full memory"),
        ("--mem-len 100000", "100,000 of them without a full memory"),
        *((f"--positions 20 --at {at}", "5 to 24") for at in (4, 25)),
    ],
)
def test_options_that_do_not_suit_the_run_are_rejected(here, words, telling):
    assert telling in refusal("attention", "byte", *words.split())
