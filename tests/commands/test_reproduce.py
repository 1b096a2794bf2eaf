"""txl reproduce, on the small novel with models of a few steps."""

import dataclasses
import itertools
import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from filelock import FileLock

from tests.commands.novel import done, interrupt_at_save, json_of, refusal, txl
from tests.samples import sampled
from txlcli.data.token_store import TokenStore
from txlcli.data.vocabulary import Vocab
from txlcli.runs import run_directory
from txlcli.workflows.reproduction import scales
from txlcli.workflows.reproduction.evaluations import key_of
from txlcli.workflows.reproduction.items import ITEMS
from txlcli.workflows.reproduction.names import OF_PAPER

SHORT = ("train.max_steps=3", "train.valid_every=3")
EVEN = ("train.batch_size=8", "train.seg_len=4", "train.mem_len=4", "model.d_head=6", "model.d_inner=30")
STATE = ("model.d_hidden=7", "train.mem_len=0", "eval.mem_len=0")


def models():
    changes = dict.fromkeys(scales.PAPER.models, ())
    changes |= {
        key: tuple(scales.DATA["changes"]["no-memory"]) for key in changes if "vanilla" in key or "adaptive" in key
    }
    small = {key: scales.Model(key, "tiny.toml", (*SHORT, *extra)) for key, extra in changes.items()}
    small |= scales.ablation_models(
        "ablation", (*SHORT, "train.seg_len=4", "eval.seg_len=4"), "tiny.toml", seg_len=4, longer=(6, 8)
    )
    small |= scales.sentence_models(SHORT, "tiny.toml", seg_len=5)
    small |= scales.frontier_models("tiny.toml", (*SHORT, *EVEN))
    for key, arch in (("words-lstm", "lstm"), ("words-qrnn", "qrnn")):
        small[key] = scales.Model(key, "state.toml", (f"model.arch={arch}",))
    return small


@pytest.fixture
def shrunk(here, monkeypatch):
    """Replace the tiny scale by one on the novel."""
    recipe = Path("tiny.toml").read_text(encoding="utf-8")
    transformer = ("n_heads = 3\n", "d_head = 5\n", "d_inner = 11\n")
    for line in transformer:
        recipe = recipe.replace(line, "")
    recipe = recipe.replace("[model]\n", '[model]\narch = "lstm"\n').replace("mem_len = 5", "mem_len = 0")
    Path("state.toml").write_text(recipe.replace("max_steps = 7", "max_steps = 3"), encoding="utf-8")
    scale = scales.Scale(
        name="tiny",
        description="For tests.",
        texts={"novel": scales.ScaleText("novel", "novel")},
        models=models(),
        positions=40,
        stride=1,
        attn_lens=(8, 4),
        recl_start=2,
        recl_longest=6,
        recl_positions=20,
        sample_tokens=(5, 7),
        context=5,
        timed_recipe="tiny.toml",
    )
    monkeypatch.setitem(scales.SCALES, "tiny", lambda has_ptb: scale)
    return here


@pytest.mark.slow
def test_all_items_are_in_one_report(shrunk):
    result = json_of("reproduce", "all")
    directory = Path("reproduction-tiny")
    assert result["report"] == [str(directory / "report.md"), str(directory / "report.html")]
    assert list(result["sections"]) == list(OF_PAPER)
    markdown, page = (Path(path).read_text(encoding="utf-8") for path in result["report"])
    for section in result["sections"].values():
        assert f"## {section['title']}" in markdown
        assert section["scale"] == "tiny"
        assert section["commands"]
        assert section["readings"] or not section["name"].startswith("table") or section["name"] in ("table8", "table9")
        for file, _ in section["figures"]:
            assert f"]({file})" in markdown
            assert (directory / file).read_bytes().startswith(b"\x89PNG")
    assert page.count('src="data:image/png;base64,') == sum(
        len(section["figures"]) for section in result["sections"].values()
    )
    assert [text for text, _ in result["sections"]["appendix-e"]["texts"]][:2] == [
        "Context 1",
        "Generated text 1, 5 tokens",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2])
def test_the_frontier_compares_all_models_in_all_seeds(shrunk, seeds):
    result = json_of("reproduce", "frontier", "--seeds", seeds)
    section = result["sections"]["frontier"]
    results, saved, published = section["grids"]
    names = [list(pair) for pair in itertools.product(scales.BLOCKS, scales.POSITIONS)]
    assert [row[:2] for row in results["rows"]] == [row[:2] for row in saved["rows"]] == names
    assert results["columns"] == [
        "block",
        "positions",
        "recurrence",
        "recurrence, M = 16",
        "window",
        "compressive",
        "rmt",
    ]
    for number, (block, position) in enumerate(names):
        data = [section["data"][scales.frontier_part(memory, position, block)] for memory in scales.MEMORIES]
        recurrence, window, compressive, rmt = (cell["trained"]["values"] for cell in data)
        assert len(recurrence) == len(window) == len(compressive) == len(rmt) == seeds
        assert results["rows"][number][2].startswith(f"{sum(recurrence) / seeds:.3f}")
        assert results["rows"][number][4].startswith(f"{sum(window) / seeds:.3f}")
        assert results["rows"][number][5].startswith(f"{sum(compressive) / seeds:.3f}")
        assert results["rows"][number][6].startswith(f"{sum(rmt) / seeds:.3f}")
        assert data[1]["longer"] is None
        better = sum(own < other for own, other in zip(recurrence, window, strict=True))
        assert saved["rows"][number][2].endswith(f" ({better} of {seeds})")
    assert ["RMT, 10 memory tokens, 3 segments, L = 150", "151M", "wt103", "25.04 ppl"] in [
        row[:4] for row in published["rows"]
    ]
    evaluated = json_of("eval", "tiny-frontier-window-rotary-paper-1111", "--mem-len", 5, "--positions", 40)
    values = section["data"]["frontier-window-rotary-paper"]["trained"]["values"]
    assert evaluated["rows"][0]["bpc"] == pytest.approx(values[0], abs=1e-6)


def test_finished_runs_are_reused(shrunk):
    done("reproduce", "table7")
    directories = sorted(Path("runs").glob("tiny-short-*"))
    assert [run.name for run in directories] == ["tiny-short-alone-1111", "tiny-short-shaw-1111", "tiny-short-xl-1111"]
    before = {run: (run / "last.safetensors").stat().st_mtime_ns for run in directories}
    first = json.loads(Path("reproduction-tiny/reproduction.json").read_text(encoding="utf-8"))
    done("reproduce", "table7")
    assert {run: (run / "last.safetensors").stat().st_mtime_ns for run in directories} == before
    again = json.loads(Path("reproduction-tiny/reproduction.json").read_text(encoding="utf-8"))
    assert again["sections"]["table7"]["grids"] == first["sections"]["table7"]["grids"]


def test_evaluations_are_reused(shrunk):
    first = done("reproduce", "table7").stderr
    evaluated = Path("runs/tiny-short-xl-1111/evals.jsonl").read_text(encoding="utf-8")
    again = done("reproduce", "table7").stderr
    assert (first.count("evaluating "), first.count("already evaluated")) == (3, 0)
    assert (again.count("evaluating "), again.count("already evaluated")) == (0, 3)
    assert Path("runs/tiny-short-xl-1111/evals.jsonl").read_text(encoding="utf-8") == evaluated
    assert done("reproduce", "table7", "--out", "mine").stderr.count("evaluating ") == 3


def test_the_key_of_an_evaluation_depends_on_all_its_inputs(shrunk):
    done("reproduce", "table7")
    run = run_directory.open_run(Path("runs/tiny-short-xl-1111"))
    store = TokenStore.open(Path("data/novel.h5"))
    options = {"positions": 40}
    keys = []

    def note(run=run, split="test", options=options, machine="cpu", code=None):
        keys.append(key_of(run, store, split, options, machine=machine, code=code))

    note()
    note()
    note(split="valid")
    note(options={})
    note(machine="gpu")
    other_settings = dataclasses.replace(run.settings, eval=dataclasses.replace(run.settings.eval, batch_size=9))
    note(run=dataclasses.replace(run, settings=other_settings))
    shutil.copy("runs/tiny-short-shaw-1111/best.safetensors", run.best_or_last)
    note()
    store.conventions["lines"] = "another"
    note()
    store.splits["valid"] = dataclasses.replace(store.splits["valid"], sha256="another")
    note()
    vocab, before = Vocab(tokenizer="char", symbols=["a", "b"]), store
    with h5py.File(store.path, "r+") as file:
        del file["vocabulary"]
        file["vocabulary"] = np.frombuffer(vocab.to_json().encode(), dtype=np.uint8)
        file.attrs["fingerprint"] = vocab.fingerprint
    store = TokenStore.open(store.path)
    store.conventions.update(before.conventions)
    store.splits.update(before.splits)
    note()
    note(code="another")
    assert len(set(keys)) == len(keys) - 1  # the first two are equal


def test_changed_splits_are_evaluated_again(shrunk):
    done("reproduce", "table7")
    *rest, last = Path("novel/test.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("novel/test.txt").write_text("".join(rest), encoding="utf-8")
    valid = Path("novel/valid.txt").read_text(encoding="utf-8")
    Path("novel/valid.txt").write_text(last + valid, encoding="utf-8")
    done("prepare", "novel", "--force")
    assert "already evaluated" not in done("reproduce", "table7").stderr


def test_the_duration_of_reused_evaluations_is_counted(shrunk):
    seconds = [json_of("reproduce", "table7")["sections"]["table7"]["seconds"]]
    path = Path("reproduction-tiny/evaluations.json")
    kept = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({key: {**one, "seconds": 1000.0} for key, one in kept.items()}), encoding="utf-8")
    seconds.append(json_of("reproduce", "table7")["sections"]["table7"]["seconds"])
    assert seconds[0] < 1000
    assert 3000 <= seconds[1] < 4000


@pytest.mark.parametrize(
    "text", sampled(4, ["{", "[]", '{"a": 5}', '{"a": {"result": 5, "seconds": 1}}', '{"a": {"result": {}}}'])
)
def test_damaged_evaluations_are_named(shrunk, text):
    done("reproduce", "table7")
    Path("reproduction-tiny/evaluations.json").write_text(text)
    message = refusal("reproduce", "table7", code=1)
    assert message.startswith("reproduction-tiny/evaluations.json: damaged (")
    assert message.endswith("); remove it")


def test_evaluations_that_cannot_be_stored_are_an_error(shrunk):
    done("reproduce", "table7")
    Path("reproduction-tiny/evaluations.json").unlink()
    Path("reproduction-tiny/.evaluations.json.new").mkdir()  # the name of the temporary file
    message = refusal("reproduce", "table7", code=1)
    assert message.startswith("reproduction-tiny/evaluations.json: cannot be written (")
    assert message.endswith("); check the folder and the free space")


def test_a_stopped_training_is_resumed(shrunk):
    key = "short-xl"
    changes = [word for change in scales.get("tiny", has_ptb=False).models[key].changes for word in ("--set", change)]
    done("train", "tiny.toml", "--name", f"tiny-{key}-1111", "--seed", 1111, "--max-steps", 1, *changes)
    result = done("reproduce", "table7")
    assert "resuming runs/tiny-short-xl-1111 at step 1 of 3" in result.stderr


def test_an_interrupt_at_the_last_save_of_a_training_stops_the_reproduction(shrunk, monkeypatch):
    interrupt_at_save(2, monkeypatch)
    message = refusal("reproduce", "table7", code=130)
    assert message == "stopped; runs/tiny-short-xl-1111 has finished its 3 steps"
    assert [path.name for path in Path("runs").glob("tiny-short-*")] == ["tiny-short-xl-1111"]


def test_an_interrupt_says_how_to_continue(shrunk, monkeypatch):
    models = scales.get("tiny", has_ptb=False).models
    more = (*models["short-xl"].changes, "train.valid_every=1")
    models["short-xl"] = dataclasses.replace(models["short-xl"], changes=more)
    with monkeypatch.context() as patches:
        interrupt_at_save(1, patches)
        message = refusal("reproduce", "table7", code=130)
    saved = "saved runs/tiny-short-xl-1111/last.safetensors at step 1"
    assert message == f"stopped; {saved}; repeat the same command to continue"
    assert "resuming runs/tiny-short-xl-1111 at step 1 of 3" in done("reproduce", "table7").stderr


def test_seeds_are_averaged_and_earlier_sections_are_kept(shrunk):
    done("reproduce", "table7")
    result = json_of("reproduce", "table4", "--seeds", 2)
    values = result["sections"]["table4"]["data"]["Transformer-XL Base"]["test"]["values"]
    assert len(values) == 2
    assert values[0] != values[1]
    report = Path("reproduction-tiny/report.md").read_text(encoding="utf-8")
    assert report.index("## Table 4") < report.index("## Table 7")
    assert f"{sum(values) / 2:.3f} ± " in report


def test_the_commands_of_the_report_give_the_same_result(shrunk):
    section = json_of("reproduce", "table7")["sections"]["table7"]
    train, evaluation = (
        next(line for line in section["commands"] if line.startswith(f"txl {word}")) for word in ("train", "eval")
    )
    words = train.split()[1:]
    words[words.index("--name") + 1] = "by-hand"
    done(*words)
    output = json_of(*evaluation.replace("tiny-short-xl-1111", "by-hand").split()[1:])
    assert output["rows"][0]["ppl"] == section["data"]["short-xl"][0]


@pytest.mark.slow
def test_the_commands_of_figures_write_the_same_files(shrunk):
    sections = json_of("reproduce", "figure3", "figure4", "figure5", "figure7", "--out", "all")["sections"]
    for section in sections.values():
        plotting = [line.split()[1:] for line in section["commands"] if line.split()[1] in ("recl", "attention")]
        assert plotting
        for file, _ in section["figures"]:
            (Path("all") / file).unlink()
        for words in plotting:
            done(*words)
        assert all((Path("all") / file).is_file() for file, _ in section["figures"])


def test_a_reproduction_interrupted_in_its_first_item_can_continue(shrunk, monkeypatch):
    def die(*_):
        Path("reproduction-tiny/half.png").write_bytes(b"")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setitem(ITEMS, "table7", dataclasses.replace(ITEMS["table7"], make=die))
        assert txl("reproduce", "table7").exit_code != 0
    assert json_of("reproduce", "table7")["sections"].keys() == {"table7"}


@pytest.mark.slow
def test_a_deleted_figure_is_named_in_the_report(shrunk):
    done("reproduce", "table10")
    Path("reproduction-tiny/table10.png").unlink()
    done("reproduce", "table7")
    page = Path("reproduction-tiny/report.html").read_text(encoding="utf-8")
    assert "<p>table10.png is missing; repeat txl reproduce</p>" in page
    assert 'id="table7"' in page


def test_a_training_killed_before_its_first_save_is_restarted(shrunk):
    done("reproduce", "table7")
    for name in ("last", "best"):
        Path(f"runs/tiny-short-xl-1111/{name}.safetensors").unlink()
    result = done("reproduce", "table7")
    assert "training tiny" in result.stderr
    assert Path("runs/tiny-short-xl-1111/last.safetensors").is_file()


def test_what_a_killed_preparation_left_is_removed_though_its_store_is_complete(shrunk):
    done("reproduce", "table7")
    Path("data/.preparing-dead").mkdir()
    done("reproduce", "table7")
    assert not Path("data/.preparing-dead").exists()


def test_two_processes_cannot_write_one_report(shrunk):
    done("reproduce", "table7")
    with FileLock("reproduction-tiny/.lock"):
        assert refusal("reproduce", "table7", code=1) == (
            "another process writes to reproduction-tiny; wait for it, or give another --out"
        )
    done("reproduce", "table7")


@pytest.mark.slow
def test_the_list_shows_missing_trainings_and_makes_nothing(shrunk):
    rows = {row["item"]: row for row in json_of("reproduce", "all", "--list")["items"]}
    assert list(rows) == list(OF_PAPER)
    assert (rows["table7"]["models"], rows["table7"]["missing"]) == (3, 3)
    assert rows["table7"]["training_flops"] > 0
    assert not Path("reproduction-tiny").exists()
    done("reproduce", "table7")
    again = json_of("reproduce", "table7", "--list")["items"][0]
    assert (again["missing"], again["training_flops"]) == (0, 0)
    table = done("reproduce", "table7", "--list").stdout
    assert max(len(line) for line in table.splitlines() if line.startswith("│")) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["paper", pytest.param("small", marks=pytest.mark.slow)])
def test_the_list_uses_the_published_vocabulary_size_for_part_of_a_benchmark(untouched, scale):
    def flops():
        return {row["item"]: row["training_flops"] for row in json_of("reproduce", "--list", "--scale", scale)["items"]}

    before = flops()
    done("prepare", "novel", "--tokenizer", "word", "--name", "wt103")
    assert flops() == before


def test_a_store_with_too_few_words_for_a_model_is_refused(untouched):
    done("prepare", "novel", "--tokenizer", "word", "--name", "wt103")
    size = TokenStore.open(untouched / "data/wt103.h5").vocab.size
    assert refusal("reproduce", "table1", "--scale", "paper") == (
        f"the store data/wt103.h5: [model] cutoffs [20000, 40000, 200000] reach beyond the vocabulary of {size}; "
        'each must be less, or none: --set "model.cutoffs=[]"'
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], 'give a table or figure, such as "txl reproduce table6"; --list shows all of them'),
        (["tabel6"], 'unknown table or figure "tabel6"; did you mean "table6"?'),
        (["figure1"], 'unknown table or figure "figure1"; did you mean "figure7"?'),
        (["table6", "--scale", "huge"], "'huge' is not one of"),
        (["table6", "--seeds", "0"], "Invalid value for '--seeds'"),
        (["table6", "--out", "texts"], "texts exists and is not a reproduction; give another --out"),
    ],
)
def test_wrong_options_are_refused(shrunk, arguments, message):
    Path("texts").mkdir(exist_ok=True)
    Path("texts/mine.txt").write_text("mine")
    assert message in refusal("reproduce", *arguments)
    assert not Path("reproduction-tiny").exists()


def test_a_run_with_other_settings_is_refused(shrunk):
    done("train", "tiny.toml", "--name", "tiny-short-xl-1111", "--seed", 1111)
    message = refusal("reproduce", "table7", code=1)
    assert message == "runs/tiny-short-xl-1111 was trained with other settings; remove it, or give another --runs-dir"


def test_a_damaged_report_or_one_at_another_scale_is_refused(shrunk):
    done("reproduce", "table7", "--out", "mine")
    assert refusal("reproduce", "table7", "--scale", "paper", "--out", "mine") == (
        "mine is a reproduction at tiny scale; give another --out"
    )
    for text in ("{", '{"scale": "tiny", "sections": {"table4": 5}}', '{"scale": "tiny", "sections": []}'):
        Path("mine/reproduction.json").write_text(text)
        assert "damaged, or of another version" in refusal("reproduce", "table7", "--out", "mine", code=1)
