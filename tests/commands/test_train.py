"""txl train: what it writes and shows, how it resumes, what it refuses."""

import json
import shutil

import pytest

from tests.commands.novel import card, contents, done, names_in, refusal, reports
from tests.commands.test_quickstart import small_library
from tests.core.training.runs import assert_equal
from txlcli.config import recipe
from txlcli.core.training import checkpoint
from txlcli.data.token_store import TokenStore
from txlcli.runs import run_directory

RUN_FILES = ["best.safetensors", "last.safetensors", "metrics.jsonl", "run.json", "vocab.json"]


def train(*arguments):
    return done("train", "tiny.toml", *arguments)


def step_of(path):
    return checkpoint.load(path).state["step"]


def test_a_run_is_a_directory_of_settings_vocabulary_metrics_and_checkpoints(here):
    result = train("--name", "mine")
    run, said = here / "runs/mine", result.stderr.splitlines()[0]
    assert said.startswith(f"training tiny: {card(run)['parameters']:,} parameters (V = 256) on data/novel.h5 (")
    assert "batches of 3 x 5 tokens, memory 5, 7 steps (" in said
    assert names_in(run) == RUN_FILES
    assert run_directory.read_run(run).settings == recipe.load("tiny.toml")
    assert (run / "vocab.json").read_text() == TokenStore.open(here / "data/novel.h5").vocab.to_json()
    steps = {kind: [line["step"] for line in reports(run) if line["kind"] == kind] for kind in ("train", "valid")}
    assert steps == {"train": [2, 4, 6, 7], "valid": [4, 7]}
    assert "txl eval runs/mine" in result.stdout


def test_json_lines_are_the_metrics_of_the_run(here):
    result = train("--json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == reports("runs/tiny")
    last = reports("runs/tiny")[-1]
    assert last["bpc"] == pytest.approx(last["loss_nats"] / 0.6931471805599453, rel=1e-12)
    assert last["tokens"] == TokenStore.open(here / "data/novel.h5").info("valid").tokens - 1


@pytest.mark.parametrize(
    ("dropout", "limit", "step"),
    [(0.0, ["--max-steps", 3], 3), (0.2, ["--max-steps", 3], 3), (0.2, ["--max-minutes", 0], 0)],
)
def test_stopping_and_resuming_equals_training_without_a_stop(here, dropout, limit, step):
    train("--name", "whole", "--set", f"model.dropout={dropout}")
    first = train("--name", "parts", "--set", f"model.dropout={dropout}", *limit)
    assert ("memory 5, 3 of 7 steps (" in first.stderr) == (step == 3)
    assert first.stderr.endswith('resume with "txl train --resume runs/parts"\n')
    assert step_of(here / "runs/parts/last.safetensors") == step
    left = here / "runs/parts/.tmpA1b2C3"  # of a process that was killed while it saved
    left.touch()
    done("train", "--resume", "parts")
    assert not left.exists()
    for name in ("last.safetensors", "best.safetensors"):
        stopped = checkpoint.load(here / "runs/parts" / name)
        uninterrupted = checkpoint.load(here / "runs/whole" / name)
        assert stopped.state.pop("run_id") != uninterrupted.state.pop("run_id")
        assert stopped.state == uninterrupted.state
        assert_equal(stopped.tensors, uninterrupted.tensors)
    whole, parts = (reports(f"runs/{name}") for name in ("whole", "parts"))
    losses = [[line["loss_nats"] for line in lines if line["kind"] == "valid"] for lines in (whole, parts)]
    assert losses[0] == losses[1]


def test_the_batch_size_of_validation_cannot_change_after_the_first_validation(here):
    train("--max-steps", 4)
    before = card("runs/tiny")
    assert "not comparable" in refusal("train", "--resume", "tiny", "--set", "train.valid_batch_size=1")
    assert "already at step 4" in refusal("train", "--resume", "tiny", "--max-steps", 4, "--set", "train.lr=1e-3")
    assert card("runs/tiny") == before


def test_a_run_can_be_resumed_from_any_directory(here, monkeypatch):
    (here / "below").mkdir()
    monkeypatch.chdir(here / "below")
    where = ["--data-dir", "../data", "--runs-dir", "../runs"]
    said = done("train", "../tiny.toml", "--max-steps", 2, *where).stderr.splitlines()[-1]
    assert said.endswith('; resume with "txl train --resume ../runs/tiny --data-dir ../data"')
    result = done("train", "--resume", "../runs/tiny", "--data-dir", "../data")
    assert "txl eval ../runs/tiny --data-dir ../data" in result.stdout
    assert step_of(here / "runs/tiny/last.safetensors") == 7


def test_resuming_a_finished_run_is_rejected(here):
    before = contents(here / "runs/byte")
    assert "--set train.max_steps=N" in refusal("train", "--resume", "byte", code=1)
    assert "already at step 7" in refusal("train", "--resume", "byte", "--set", "train.max_steps=4")
    assert contents(here / "runs/byte") == before


def test_settings_that_weights_and_memory_depend_on_cannot_change(here):
    before = card("runs/byte")
    changes = {
        **{"model.n_layers": 3, "corpus.store": "char", "train.seg_len": 3, "train.mem_len": 3, "train.batch_size": 2},
        **{"train.roll_lanes": "true", "train.optimizer": "sgd", "train.average": "exponential", "train.seed": 3},
        **{"train.valid_tokens": 30, "train.valid_seg_len": 3},
    }
    for key, value in changes.items():
        message = refusal("train", "--resume", "byte", "--set", f"{key}={value}")
        assert message.endswith(f": a resumed run keeps its {key}; start a new run instead")
    assert card("runs/byte") == before


def test_a_run_is_trained_and_validated_on_one_text_only(here):
    train("--max-steps", 3)
    train("--name", "validated", "--max-steps", 4)
    (here / "novel/valid.txt").write_text("the fox\n" * 20)
    done("prepare", "novel", "--force")
    done("train", "--resume", "tiny", "--max-steps", 4)  # the first validation
    assert "another valid split" in refusal("train", "--resume", "validated", code=1)
    (here / "novel/train.txt").write_text("another text\n" * 60)
    done("prepare", "novel", "--force")
    assert "another train split" in refusal("train", "--resume", "tiny", code=1)
    assert step_of(here / "runs/tiny/last.safetensors") == 4


def test_a_dry_run_writes_nothing(here):
    before = sorted(here.rglob("*"))
    result = train("--dry-run")
    plan = json.loads(train("--dry-run", "--json").stdout)
    assert f"{plan['parameters']:,} parameters" in result.stdout
    assert f"{plan['training_flops_per_token'] / 1e9:.3g} GFLOP" in result.stdout
    assert "│ memory of a step, recurrent memory " in result.stdout
    assert sum(plan["parameters_by_part"].values()) == plan["parameters"]
    needed = plan["step_bytes"]
    assert needed["weights"] == needed["gradients"] == needed["optimizer"] / 2 == 4 * plan["parameters"]
    assert needed["total"] == sum(size for what, size in needed.items() if what != "total")
    assert plan["snapshot_bytes"] == needed["weights"] + needed["optimizer"] + needed["memory"]
    assert plan["seconds"] == pytest.approx(plan["training_flops"] / (plan["share_of_peak"] * plan["peak_flops_per_s"]))
    tokens = plan["steps"] * plan["lanes"] * plan["seg_len"]
    assert plan["training_flops"] == pytest.approx(tokens * plan["training_flops_per_token"])
    assert sorted(here.rglob("*")) == before


def test_without_its_corpus_a_published_recipe_is_counted_at_the_benchmarks_size(untouched):
    result = done("train", "wt103", "--dry-run", "--set", "train.batch_size=2")
    benchmark = recipe.load("wt103").published
    assert f"V = {benchmark.vocab_size:,}" in result.stderr
    assert f"{benchmark.parameters:,} parameters" in result.stdout
    assert not (untouched / "runs").exists()
    assert not (untouched / "data").exists()


def test_the_standard_library_is_prepared_automatically(untouched, monkeypatch):
    small_library(untouched, monkeypatch)
    result = train("--set", "corpus.store=stdlib", "--max-steps", 1)
    assert "no token store at data/stdlib.h5 yet; preparing it\n" in result.stderr
    assert names_in(untouched / "data") == ["stdlib.h5"]
    assert "preparing" not in train("--set", "corpus.store=stdlib", "--max-steps", 1).stderr


def prepared(directory, texts):
    shutil.rmtree(directory / "novel")
    (directory / "novel").mkdir()
    for split, text in texts.items():
        (directory / "novel" / f"{split}.txt").write_text(text)
    done("prepare", "novel")


def test_without_a_valid_split_it_trains_without_validation(untouched):
    prepared(untouched, {"train": "the fox " * 40})
    result = train()
    assert "training without validation\n" in result.stderr
    assert names_in(untouched / "runs/tiny") == [name for name in RUN_FILES if name != "best.safetensors"]
    assert {line["kind"] for line in reports("runs/tiny")} == {"train"}


@pytest.mark.parametrize(("key", "value"), [("average", "asgd"), ("schedule", "plateau"), ("stop_after", 2)])
def test_a_setting_that_needs_validation_needs_a_valid_split(untouched, key, value):
    prepared(untouched, {"train": "the fox " * 40})
    assert "needs a valid split" in refusal("train", "tiny.toml", "--set", f"train.{key}={value}")
    assert not (untouched / "runs/tiny").exists()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"train": "abc", "valid": "abc"}, "train.batch_size = 3"),
        ({"train": "the fox " * 9, "valid": "a"}, "the valid split has no token to predict"),
    ],
)
def test_a_text_that_is_too_short_is_rejected_before_a_run_is_made(untouched, texts, message):
    prepared(untouched, texts)
    assert message in refusal("train", "tiny.toml", code=1)
    assert not (untouched / "runs").exists()


@pytest.mark.parametrize(("valid_every", "when"), [(50, "at step 9"), (1, "after step 8")])
def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_checkpoint(here, valid_every, when):
    before = (here / "runs/byte/last.safetensors").read_bytes()
    wild = ["--set", "train.lr=1e30", "--set", "train.max_steps=90", "--set", f"train.valid_every={valid_every}"]
    error = refusal("train", "--resume", "byte", *wild, code=1)
    assert error.startswith(f"the loss is not finite {when}; the last good checkpoint is runs/byte/last.saf")
    assert (here / "runs/byte/last.safetensors").read_bytes() == before
    done("train", "--resume", "byte", "--set", "train.lr=1e-3", "--set", "train.max_steps=9")


USAGE = {
    "": "nothing to train",
    "nowel": 'did you mean "novel"?',
    "./novel": 'did you mean "novel"?',
    "tiny": 'did you mean "tiny.toml"?',
    "tiny.toml --set corpus.shuffle_sentences=true": "does not record where sentences start",
    "tiny.toml --set train.parallel=zero": "at least two processes",
    "tiny.toml --set train.parallel=zero --dry-run": "at least two processes",
    "tiny.toml --device cuda": "PyTorch finds no CUDA device",
    "tiny.toml --precision tf32": "needs a CUDA device",
    "tiny.toml --mem-len 5": "--set train.mem_len=VALUE",
    "tiny.toml --dry-run --max-minutes 1": "leave out --max-minutes",
    "tiny.toml --measure": "--dry-run",
    "tiny.toml --max-steps 50": "--set train.max_steps=50",
    "tiny.toml --set model.cutoffs=[3,400]": "beyond the vocabulary",
    "tiny.toml --resume byte": "leave out the recipe",
}


@pytest.mark.parametrize(("words", "telling"), USAGE.items())
def test_a_wrong_argument_is_rejected_before_anything_is_written(here, words, telling):
    before = sorted(here.rglob("*"))
    assert telling in refusal("train", *words.split())
    assert sorted(here.rglob("*")) == before


def test_many_stores_are_listed_by_their_own_command(here):
    assert "stores in data: char, novel, sentencepiece, word" in refusal("train", "nosuch")
    for number in range(10):
        shutil.copy("data/novel.h5", f"data/copy{number}.h5")
    assert 'stores in data: see "txl prepare --list"' in refusal("train", "nosuch")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "damaged checkpoint ("),
        (lambda path: path.unlink(), "no such checkpoint; best.safetensors holds weights only"),
        (lambda path: shutil.copy(path.with_name("best.safetensors"), path), "holds weights only"),
        (lambda path: shutil.copy(path.parents[1] / "char" / path.name, path), "belongs to another run"),
    ],
)
def test_a_checkpoint_that_cannot_be_resumed_is_named(here, spoil, message):
    spoil(here / "runs/byte/last.safetensors")
    assert refusal("train", "--resume", "byte", code=1).startswith(f"runs/byte/last.safetensors: {message}")


def test_a_store_of_another_vocabulary_is_rejected(here):
    # 256 bytes in another order: the size is the same, the meaning is not.
    (here / "novel/train.txt").write_text("another text " * 30)
    done("prepare", "novel", "--tokenizer", "word", "--name", "word", "--force")
    message = refusal("train", "--resume", "word", code=1)
    assert message.startswith("data/word.h5 has another vocabulary than the one runs/word was trained with; ")


def test_a_model_that_is_too_large_for_the_memory_is_rejected_in_one_line(here):
    wide = ["--set", "model.d_model=20_000"]
    message = refusal("train", "tiny.toml", "--set", "model.d_inner=2_000_000_000", *wide, code=1)
    assert "no division of the batch fits" in message
    message = refusal("train", "tiny.toml", "--set", "model.d_model=1000000000", code=1)
    assert message.endswith("use shorter lengths or a smaller model")
    assert not (here / "runs/tiny").exists()


def test_a_replaced_run_is_kept_until_the_new_one_has_weights(here):
    before = contents(here / "runs/byte")
    message = refusal("train", "tiny.toml", "--name", "byte", "--force", "--set", "model.init_std=1e30", code=1)
    assert "not finite" in message
    assert contents(here / "runs/byte") == before
    done("train", "tiny.toml", "--name", "byte", "--force", "--max-steps", 1)
    assert step_of(here / "runs/byte/last.safetensors") == 1
    assert not list((here / "runs").glob("*.replaced"))
