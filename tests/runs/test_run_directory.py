"""Run directories: creating, naming, finding and reading them."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cards import read_card, read_log
from tests.errors import rejection
from txlcli.config import recipe
from txlcli.errors import BusyError, MissingPackageError, TxlError, UnknownNameError
from txlcli.runs import lifecycle, run_directory, summaries
from txlcli.runs.run_directory import Run

SETTINGS = recipe.load("enwik8", ["train.clip=none", "eval.max_distance=none"])
FACTS = {
    **{"recipe_name": "enwik8", "settings": SETTINGS, "vocab_fingerprint": "abc", "vocab_size": 204},
    **{"parameters": 41_055_436, "metric": "bpc"},
}
VOCAB = '{"kind": "byte", "ä": 1}'


@pytest.fixture
def runs_dir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path("runs")


def create(runs_dir, name=None, *, force=False, vocab=VOCAB, **changed):
    facts = {**FACTS, **changed}
    run = Run(runs_dir / name if name else next(lifecycle.free_directories(runs_dir, facts["recipe_name"])), **facts)
    with lifecycle.created(run, vocab, force=force):
        (run.directory / "best.safetensors").touch()
    (run.directory / "best.safetensors").unlink()
    return run


def refusal(function, *arguments, **options):
    return rejection(TxlError, function, *arguments, **options)


def test_a_run_is_read_as_it_was_created(runs_dir):
    run = create(runs_dir)
    assert run == Run(runs_dir / "enwik8", **FACTS)
    assert run_directory.read_run(run.directory) == run
    assert (run.directory / "vocab.json").read_text(encoding="utf-8") == VOCAB
    assert sorted(file.name for file in run.directory.iterdir()) == ["run.json", "vocab.json"]


def test_a_run_is_named_after_its_recipe_and_numbered_from_2(runs_dir):
    (runs_dir / "enwik8-3").mkdir(parents=True)  # any directory of that name is kept
    assert [create(runs_dir).name for _ in range(3)] == ["enwik8", "enwik8-2", "enwik8-4"]


def test_only_force_replaces_a_run_with_all_its_files(runs_dir):
    old = create(runs_dir, "mine")
    old.append_metrics({"step": 1})
    message = refusal(create, runs_dir, "mine", metric="ppl")
    assert message == "runs/mine exists; choose another `name`, or replace it with `force`"
    (old.directory / "last.safetensors").touch()
    assert 'resume it with "txl train --resume runs/mine"' in refusal(create, runs_dir, "mine")
    assert run_directory.read_run(old.directory) == old
    assert create(runs_dir, "mine", force=True, metric="ppl").metric == "ppl"
    assert sorted(file.name for file in old.directory.iterdir()) == ["run.json", "vocab.json"]


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize(
    ("file", "telling"),
    [
        ("mine/thesis.txt", "is not a run"),
        ("mine/last.safetensors", "is not a run"),  # of a run that lost its run.json
        ("mine", "is a link or a file"),
    ],
)
def test_what_is_not_a_run_is_never_replaced(runs_dir, force, file, telling):
    (runs_dir / file).parent.mkdir(parents=True)
    (runs_dir / file).write_text("years of work")
    assert telling in refusal(create, runs_dir, "mine", force=force)
    assert (runs_dir / file).read_text() == "years of work"


@pytest.mark.parametrize("file", ["thesis.txt", ".mine.new/thesis.txt", "wandb/notes.txt", "report/mine.png"])
def test_a_file_of_the_user_in_a_run_is_never_removed(runs_dir, file):
    run = create(runs_dir, "mine")
    tracked = "wandb/offline-run-20260102_030405-a1b2c3d4/run-a1b2c3d4.wandb"
    for own in ("report/report.html", "report/.report.md.new", ".tmpA1b2C3", tracked, file):
        path = run.directory / own
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("years of work")
    assert f"{run.directory / file} was not written by txl" in refusal(create, runs_dir, "mine", force=True)
    assert lifecycle.files_of_user(run.directory) == [run.directory / file]
    (run.directory / file).unlink()
    assert create(runs_dir, "mine", force=True) == run


@pytest.mark.parametrize("name", ["run.json", "evals.jsonl", "best.safetensors", "figures", "wandb"])
def test_a_link_among_the_files_of_a_run_is_rejected(runs_dir, tmp_path, name):
    run = create(runs_dir, "mine")
    kept = tmp_path / "kept"
    if (run.directory / name).exists():
        (run.directory / name).rename(kept)
    (run.directory / name).symlink_to(kept)
    (run.directory / "notes").symlink_to(kept)  # not a file of txl
    assert f"{run.directory / name} is a link" in refusal(run_directory.read_run, run.directory)


def test_a_pipe_among_the_files_of_a_run_is_rejected(runs_dir):
    run = create(runs_dir, "mine")
    os.mkfifo(run.directory / "evals.jsonl")
    assert "special file" in refusal(run_directory.read_run, run.directory)


def test_a_damaged_replacement_is_not_replaced_in_turn(runs_dir):
    create(runs_dir, "a")
    (runs_dir / "a/last.safetensors").write_text("damaged")
    shutil.copytree(runs_dir / "a", lifecycle.aside(runs_dir / "a"))
    message = refusal(create, runs_dir, "a", force=True)
    assert message.startswith("runs/a/last.safetensors: damaged (")
    assert message.endswith("; the earlier run is runs/.a.replaced; remove one of them")
    assert lifecycle.aside(runs_dir / "a").exists()


def test_what_a_killed_start_leaves_is_replaced(runs_dir):
    (runs_dir / "mine").mkdir(parents=True)
    (runs_dir / "mine/.run.json.new").touch()
    (runs_dir / "mine/.tmpA1b2C3").touch()  # of safetensors
    assert create(runs_dir, "mine") == run_directory.find("mine", runs_dir)


def test_who_may_add_a_run_may_lock_it(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with lifecycle.locked(shared / "mine"):
        assert (shared / ".locks").stat().st_mode & 0o7777 == 0o1777


def test_one_process_writes_a_linked_run_whatever_its_name_and_force_keeps_it(runs_dir, tmp_path):
    run, kept = create(runs_dir, "mine"), tmp_path / "elsewhere/kept"
    kept.parent.mkdir()
    run.directory.rename(kept)
    run.directory.symlink_to(kept)
    assert "is a link" in refusal(create, runs_dir, "mine", force=True)
    for first, second in ((run.directory, kept), (kept, run.directory)):
        with lifecycle.locked(first), pytest.raises(BusyError), lifecycle.locked(second):
            pass


def test_changed_settings_replace_the_old_ones_and_the_best_checkpoint_is_evaluated(runs_dir):
    run = create(runs_dir)
    longer = dataclasses.replace(run, settings=recipe.load("enwik8", ["train.max_steps=7"]))
    run_directory.update(longer)
    assert run_directory.read_run(run.directory) == longer
    assert sorted(file.name for file in run.directory.iterdir()) == ["run.json", "vocab.json"]
    assert run.best_or_last == run.directory / "last.safetensors"
    (run.directory / "best.safetensors").touch()
    assert run.best_or_last == run.directory / "best.safetensors"


def test_a_run_is_found_by_its_name_or_its_directory(runs_dir, tmp_path):
    run = create(runs_dir, "mine")
    for word in ("mine", "runs/mine", str(tmp_path / "runs" / "mine")):
        assert run_directory.find(word, runs_dir).vocab_fingerprint == run.vocab_fingerprint
        assert run_directory.is_run(word, runs_dir)
    weights = run.directory / "step-7.safetensors"
    weights.touch()
    (runs_dir / "alone.safetensors").touch()
    for word in ("mine/step-7.safetensors", str(weights)):
        assert run_directory.find(word, runs_dir).subject == weights
        assert run_directory.is_run(word, runs_dir)
    for word in ("other", "alone.safetensors"):
        assert not run_directory.is_run(word, runs_dir)
    (tmp_path / "mine").mkdir()  # a corpus of the same name
    assert run_directory.find("mine", runs_dir) == run


def test_a_run_has_the_name_of_its_directory_also_from_within(runs_dir, monkeypatch):
    run = create(runs_dir, "mine")
    (run.directory / "step-7.safetensors").touch()
    (run.directory / "plots").mkdir()
    monkeypatch.chdir(run.directory)
    for word in (".", "step-7.safetensors"):
        assert run_directory.find(word, runs_dir).name == "mine"
    assert run_directory.find_directory(".", runs_dir).name == "mine"
    monkeypatch.chdir("plots")
    assert run_directory.find("..", runs_dir).name == "mine"


def written(directory, name, seconds):
    (directory / name).touch()
    os.utime(directory / name, (seconds, seconds))


def test_the_most_recent_run_is_the_one_that_was_saved_last(runs_dir):
    a, b, c = (create(runs_dir, name) for name in "abc")
    for seconds, run in enumerate((a, b, c)):
        (run.directory / "best.safetensors").touch()
        written(run.directory, "run.json", 1000 + seconds)
    assert run_directory.find(None, runs_dir) == c
    written(a.directory, "last.safetensors", 2000)
    assert run_directory.find(None, runs_dir) == a
    (runs_dir / "no run at all").mkdir()
    assert run_directory.find(None, runs_dir) == a


def test_without_runs_the_error_has_the_command_to_train_one(runs_dir):
    assert not run_directory.any_run(runs_dir)
    message = refusal(run_directory.find, None, runs_dir)
    assert '"txl train stdlib"' in message
    run = create(runs_dir)
    assert not run_directory.any_run(runs_dir)  # the run has no weights yet
    assert refusal(run_directory.find, None, runs_dir) == message
    (run.directory / "last.safetensors").touch()
    assert run_directory.any_run(runs_dir)
    assert run_directory.find(None, runs_dir) == run


def test_an_unknown_run_or_another_directory_is_rejected(runs_dir):
    create(runs_dir, "enwik8")
    create(runs_dir, "wt103")
    with pytest.raises(UnknownNameError) as caught:
        run_directory.find("enwik", runs_dir)
    assert 'did you mean "enwik8"?' in str(caught.value)
    assert caught.value.exit_code == 2
    (runs_dir / "thing").mkdir()
    assert "it has no run.json; name a folder" in refusal(run_directory.find, "thing", runs_dir)
    (runs_dir / "thing/config.json").touch()
    assert "txl eval hf:" in refusal(run_directory.find, "thing", runs_dir)


@pytest.mark.parametrize(
    ("change", "telling"),
    [
        *(
            (lambda card, key=key: card.pop(key), f"damaged (missing '{key}')")
            for key in ("settings", "format", "metric")
        ),
        (lambda card: card["settings"]["model"].pop("d_head"), '[model] needs the key "d_head"'),
        (lambda card: card["settings"].update(model=3), "[model] must be a section"),
        (lambda card: card["settings"].update(colours={}), "newer txl"),
        (lambda card: card.update(colour="red"), "newer txl"),
        (lambda card: card.update(vocab_size="204"), "damaged"),
        (lambda card: card.update(parameters=-7), "damaged"),
        (lambda card: card.update(metric="kg"), "damaged"),
        (lambda card: card.update(changes=[3]), "damaged"),
        (lambda card: card.update(changes=[{"step": "2", "settings": {}}]), "damaged"),
        (lambda card: card.update(origin={"run": "a"}), "damaged"),
    ],
)
def test_unknown_keys_are_of_a_newer_version_and_other_wrong_facts_are_damage(runs_dir, change, telling):
    run = create(runs_dir)
    card = read_card(run.directory)
    change(card)
    (run.directory / "run.json").write_text(json.dumps(card))
    assert telling in refusal(run_directory.read_run, run.directory)


@pytest.mark.parametrize(
    ("section", "key", "kind"),
    [
        ("model", "arch", "architecture"),
        ("model", "position", "encoding"),
        ("model", "feed_forward", "feed-forward sublayer"),
        ("train", "optimizer", "optimizer"),
    ],
)
def test_a_run_with_a_part_that_was_not_registered_is_not_called_damaged(runs_dir, section, key, kind):
    run = create(runs_dir)
    card = read_card(run.directory)
    card["settings"][section][key] = "third"
    (run.directory / "run.json").write_text(json.dumps(card))
    message = refusal(run_directory.read_run, run.directory)
    assert f'needs the package that registers the {kind} "third"' in message
    assert "damaged" not in message
    with pytest.raises(MissingPackageError) as caught:
        run_directory.read_run(run.directory)
    assert (caught.value.kind, caught.value.name) == (kind, "third")
    reports = []
    assert summaries.describe(run.directory, reports.append).state == "needs package"
    assert reports == [message]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"format": 1, "recipe": "x", "settings": []}'])
def test_run_json_of_another_structure_is_rejected(runs_dir, text):
    run = create(runs_dir)
    (run.directory / "run.json").write_bytes(text)
    assert "damaged" in refusal(run_directory.read_run, run.directory)
    (run.directory / "run.json").write_text('{"format": 2}')
    assert "newer txl" in refusal(run_directory.read_run, run.directory)


def metrics_of(run):
    return read_log(run.directory / "metrics.jsonl")


def test_a_resumed_run_removes_the_reports_after_its_checkpoint(runs_dir):
    run = create(runs_dir)
    for step in (1, 2, 3, 4):
        run.append_metrics({"kind": "train", "step": step})
        run.append_metrics({"kind": "valid", "step": step})
    run.drop_metrics_after(2, reported=2, validated=2)
    left = [("train", 1), ("valid", 1), ("train", 2), ("valid", 2)]
    assert [(line["kind"], line["step"]) for line in metrics_of(run)] == left
    run.append_metrics({"kind": "train", "step": 3})
    assert metrics_of(run)[-1] == {"kind": "train", "step": 3}
    run.drop_metrics_after(
        3, reported=3, validated=1
    )  # the checkpoint was written before the validation of step 2 counted
    assert [(line["kind"], line["step"]) for line in metrics_of(run)] == [*left[:3], ("train", 3)]
    run.drop_metrics_after(3, reported=1, validated=1)  # a resumed run completes the interval of steps 2 and 3
    assert [(line["kind"], line["step"]) for line in metrics_of(run)] == [*left[:2]]


@pytest.mark.parametrize("half", ['{"ste', '{"step": 2, "loss_nats": 1.', "3", "{}"])
def test_a_truncated_last_line_is_removed(runs_dir, half):
    run = create(runs_dir)
    run.append_metrics({"kind": "train", "step": 1})
    with (run.directory / "metrics.jsonl").open("a") as file:
        file.write(half)
    run.drop_metrics_after(2, reported=2, validated=0)
    run.append_metrics({"kind": "train", "step": 3})
    assert metrics_of(run) == [{"kind": "train", "step": 1}, {"kind": "train", "step": 3}]


def test_runs_of_the_same_name_are_labelled_by_their_directories():
    directories = [Path("here/byte"), Path("there/byte"), Path("here/word")]
    assert run_directory.short_names(directories) == ["here/byte", "there/byte", "word"]
