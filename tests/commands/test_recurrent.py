"""The commands with LSTM and QRNN models; options without meaning for a recurrent state are rejected."""

import json

import pytest
from safetensors.torch import load_file

from tests.commands.novel import RECIPE, done, json_of, refusal, start, write_texts
from tests.commands.processes import ended
from tests.commands.test_eval import cells, headings

ARCHS = ("lstm", "qrnn")


def recipe_of(arch, *keys, mem_len=0):
    """The recipe of the novel for a model without attention."""
    lines = (line for line in RECIPE.splitlines() if not line.startswith(("n_heads", "d_head", "d_inner")))
    model = "\n".join([f'arch = "{arch}"', "n_layers = 2", *keys])
    return "\n".join(lines).replace("n_layers = 2", model).replace("mem_len = 5", f"mem_len = {mem_len}")


@pytest.fixture(scope="module")
def trained_novel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("recurrent") / "here"
    write_texts(directory)
    done("prepare", directory / "novel", "--data-dir", directory / "data")
    for arch in ARCHS:
        (directory / f"{arch}.toml").write_text(recipe_of(arch, "d_hidden = 11"))
        done("train", directory / f"{arch}.toml", "--data-dir", directory / "data", "--runs-dir", directory / "runs")
    return directory


@pytest.mark.parametrize("arch", ARCHS)
def test_training_reports_and_saves_the_recurrent_state(here, arch):
    result = done("train", f"{arch}.toml", "--name", "again")
    assert "batches of 3 x 5 tokens, recurrent state, 7 steps" in result.stderr
    tensors = load_file(here / "runs/again/last.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name.startswith("memory.")}
    last = {"lstm": (3, 8), "qrnn": (3, 0, 11)}[arch]
    second = {"lstm": (3, 11), "qrnn": (3, 1, 8)}[arch]
    assert shapes == {"memory.0": (3, 11), "memory.1": second, "memory.2": (3, 8), "memory.3": last}
    assert any(tensor.count_nonzero() for name, tensor in tensors.items() if name.startswith("memory."))


@pytest.mark.parametrize("arch", ARCHS)
def test_evaluation_has_one_row_without_memory_length_or_slowdown(here, arch):
    table, told = done("eval", arch), json_of("eval", arch)
    (row,) = told["rows"]
    assert headings(table) == ["attention", "bpc", "ppl", "ms/token"]
    (line,) = cells(table)
    assert line[:3] == ["state", f"{row['bpc']:.3f}", f"{row['ppl']:.3f}"]
    assert "The recurrent state is carried along the text. L = 5, fp32; 3 lanes" in table.stdout
    assert (row["attn_len_min"], row["attn_len_max"], row["slowdown"]) == (None, None, None)
    assert (told["max_distance"], told["same_length"]) == (None, None)


def test_speed_measures_all_but_table_9(here):
    result = done("speed", "lstm", "--repeat", 1)
    assert "Table 9 is left out: a model with a recurrent state has no attention length" in result.stderr
    assert "XL" not in result.stdout
    assert "run runs/lstm on cpu (" in result.stdout
    told = json_of("speed", "qrnn.toml", "--repeat", 1)
    assert told["slowdown"] == []
    assert [row["work"] for row in told["throughput"]] == [
        "evaluation, 1 lane, L 5",
        "evaluation, 3 lanes, L 5",
        "one token at a time, L 1",
        "training, 3 lanes, L 5",
    ]
    for row in told["throughput"]:
        assert 0 < row["share_of_peak"] < 1


REJECTED = {
    "eval {arch} --mem-len 0": "recurrent state",
    "eval {arch} --plot curve.svg": "recurrent state",
    "eval {arch} --same-length": "no attention",
    "eval {arch} --max-distance none": "no attention",
    "speed {arch} --attn-len 800": "no attention length",
}


@pytest.mark.parametrize("arch", ARCHS)
def test_options_without_meaning_for_a_recurrent_state_are_rejected(here, arch):
    for words, telling in REJECTED.items():
        assert telling in refusal(*words.format(arch=arch).split())


@pytest.mark.slow
def test_three_processes_read_the_lanes_of_an_lstm(here):
    arguments = ["eval", "lstm", "--batch-size", 7, "--device", "cpu", "--json"]
    stdout, _ = ended(start(*arguments, "--processes", 3), 0)
    alone, together = json.loads(done(*arguments).stdout), json.loads(stdout)
    assert together["processes"] == 3
    assert together["rows"][0]["loss_nats"] == pytest.approx(alone["rows"][0]["loss_nats"], abs=1e-6)
