"""txl eval --temperature: logits divided by a number, given or chosen on valid, in every way of evaluation."""

import itertools
import json
import math
import shutil
from pathlib import Path

import pytest
import torch

import txlcli
from tests.cards import read_card
from tests.commands.novel import done, json_of, refusal
from tests.core.builders import V, draw_tokens, small_model
from txlcli.workflows.evaluation.search import find_temperature


@pytest.mark.parametrize("cutoffs", [(), (5, 11)])
def test_logits_of_every_band_are_divided(cutoffs):
    model, hidden = small_model(cutoffs=cutoffs), torch.randn(3, 7, 14, dtype=torch.float64)
    targets = draw_tokens(3, 7)
    plain = model.log_probs(hidden)
    divided = model.on(temperature=1.7)
    given, losses = divided.log_probs(hidden), divided.losses(hidden, targets)
    likeliest = divided.softmax.likeliest(hidden[0, :1], 4)
    assert torch.equal(model.log_probs(hidden), plain)
    torch.testing.assert_close(losses, -given.gather(-1, targets[..., None])[..., 0])
    torch.testing.assert_close(likeliest[0], given[0, 0].topk(4).values)
    edges = [0, *cutoffs, V]
    # Clusters are logits of the head: their probability is the sum of their band's.
    bands = [plain[..., first:end] for first, end in itertools.pairwise(edges)]
    head = torch.cat([bands[0], *(band.logsumexp(-1, keepdim=True) for band in bands[1:])], dim=-1)
    head = (head / 1.7).log_softmax(-1)
    expected = [head[..., : edges[1]]]
    for number, band in enumerate(bands[1:]):
        expected.append(head[..., edges[1] + number, None] + (band / 1.7).log_softmax(-1))
    torch.testing.assert_close(given, torch.cat(expected, dim=-1))


@pytest.mark.parametrize(
    ("best", "found"), [(1.08, 1.08), (1.0, 1.0), (0.93, 0.93), (1.42, 1.42), (9.0, 2.0), (0.1, 0.5)]
)
def test_the_search_finds_the_minimum_of_a_parabola_within_its_limits(best, found):
    tried = []

    def loss_at(temperature):
        tried.append(temperature)
        return 7 + 3 * (temperature - best) ** 2

    assert find_temperature(loss_at) == pytest.approx(found, abs=1e-4)
    assert len(tried) == len(set(tried))


@pytest.fixture(scope="module")
def trained_novel(trained_novel, tmp_path_factory):
    """Train a further run on few words until it is too sure of them."""
    directory = tmp_path_factory.mktemp("sharp") / "here"
    shutil.copytree(trained_novel, directory)
    changes = ("corpus.store=word", "train.max_steps=60", "train.valid_every=60", "model.dropout=0")
    where = ("--data-dir", directory / "data", "--runs-dir", directory / "runs", "--name", "sharp")
    done("train", directory / "tiny.toml", *where, *(f"--set={change}" for change in changes))
    return directory


def with_temperature(run, temperature):
    """Change the temperature of a run's recipe."""
    path = Path("runs", run, "run.json")
    content = read_card(path.parent)
    content["settings"]["eval"]["temperature"] = temperature
    path.write_text(json.dumps(content))


def rows_of(*options):
    return json_of("eval", "sharp", *options)["rows"]


@pytest.mark.parametrize("options", [("--mem-len", "0,5"), ("--protocols", "recurrence,strided")])
def test_the_chosen_temperature_lowers_the_loss_on_valid_and_is_reported(here, options):
    plain, auto = rows_of("--split", "valid", *options), rows_of("--split", "valid", "--temperature", "auto", *options)
    assert not any("temperature" in row for row in plain)
    for before, after in zip(plain, auto, strict=True):
        assert after["temperature"] > 1.02
        assert after["loss_nats"] < before["loss_nats"]
    chosen = auto[0]["temperature"]
    for number in (chosen - 0.03, chosen + 0.03):
        other = rows_of("--split", "valid", "--temperature", number, *options)
        assert other[0]["temperature"] == number
        assert other[0]["loss_nats"] > auto[0]["loss_nats"]
    assert rows_of("--split", "valid", "--temperature", 1, *options)[0]["loss_nats"] == plain[0]["loss_nats"]
    # The test split has the temperature of valid.
    assert [row["temperature"] for row in rows_of("--temperature", "auto", *options)] == [
        row["temperature"] for row in auto
    ]


def test_the_note_of_a_sweep_has_the_temperature_of_each_row(here):
    sweep = ("--mem-len", "0,5", "--temperature", "auto")
    first, second = (row["temperature"] for row in rows_of(*sweep))
    assert first != second
    shown = " ".join(done("eval", "sharp", *sweep).stdout.split())
    assert f"temperature {first:g} with M = 0, {second:g} with M = 5 (chosen on valid)" in shown
    shown = " ".join(done("eval", "sharp", "--mem-len", "0,5", "--temperature", 1.5).stdout.split())
    assert "temperature 1.5; " in shown


def test_the_cache_and_dynamic_evaluation_have_a_temperature(here):
    options = ("--cache", "5", "--dynamic")
    plain, auto = rows_of(*options), rows_of(*options, "--temperature", "auto")
    assert [row["method"] for row in plain] == ["model", "cache 5", "dynamic"]
    assert [row["method"] for row in auto] == ["model", "cache 5", "dynamic", "dynamic, temperature"]
    assert "temperature" not in auto[2]
    assert auto[2]["loss_nats"] == plain[2]["loss_nats"]
    assert auto[0]["temperature"] == auto[1]["temperature"] != 1
    assert auto[3]["temperature"] == auto[3]["adaptation"]["temperature"] != 1
    # Every step of dynamic evaluation is that of temperature 1: with another number only the losses change.
    number = auto[3]["temperature"]
    assert rows_of(*options, "--temperature", number)[3]["loss_nats"] == pytest.approx(auto[3]["loss_nats"], rel=1e-6)


def test_a_recipe_can_have_a_temperature_and_the_table_reports_it(here):
    with_temperature("sharp", "auto")
    result = done("eval", "sharp")
    (row,) = rows_of()
    assert f", temperature {row['temperature']:g} (chosen on valid)" in " ".join(result.stdout.split())
    assert "chosen on " in result.stderr
    done("eval", "sharp", "--html", "page.html")
    done("probe", "sharp", "--plot", "probe.png")
    assert (here / "probe.png").stat().st_size > 0
    assert "temperature 1.5" in " ".join(done("eval", "sharp", "--temperature", 1.5).stdout.split())


def test_a_recipe_with_a_wrong_temperature_is_refused(here):
    for number, telling in (("hot", "a number or auto"), ("0", "greater than 0")):
        assert telling in refusal("train", "tiny.toml", "--set", f"eval.temperature={number}")
    assert math.isfinite(json_of("eval", "byte", "--temperature", 100)["rows"][0]["loss_nats"])


def test_python_scores_with_the_stored_temperature_as_eval_does(here):
    with_temperature("sharp", "auto")
    (here / "text.txt").write_text("the fox jumps over lazy dogs\n" * 20)
    (row,) = rows_of("--text", "text.txt", "--batch-size", 1)
    score = txlcli.load("sharp").score(here / "text.txt")
    assert score.total_nats / len(score.loss_nats) == pytest.approx(row["loss_nats"], rel=1e-6)
    assert row["temperature"] != 1
