"""Reproduced tables and figures, on the small novel with models of a few steps."""

from pathlib import Path

import pytest
from filelock import FileLock

from tests.commands.novel import HERE, RecordingReporter, done, interrupt_at_save, json_of, recipe_of, refusal
from txlcli.commands.reproduce import report_writer
from txlcli.data.token_store import TokenStore
from txlcli.errors import BusyError, Interrupted, TxlError
from txlcli.system.plain_json import as_json
from txlcli.workflows.reproduction import reproduce, scales
from txlcli.workflows.reproduction.models import (
    BLOCKS,
    MEMORIES,
    NO_MEMORY,
    POSITIONS,
    Model,
    ablations,
    frontier,
    sentences,
)
from txlcli.workflows.reproduction.options import PAPER_ITEMS, ReproduceOptions, select_items
from txlcli.workflows.workspace import Workspace


def novel_scale(*, sentences_valid_every=3):
    """Return a scale of seconds instead of minutes, with the novel as its only text."""
    short = Model("short", "tiny.toml", ("train.max_steps=3", "train.valid_every=3"))
    cell = ("train.batch_size=8", "train.seg_len=4", "train.mem_len=4", "model.d_head=6", "model.d_inner=30")
    models = {
        **ablations(
            short.changed("ablation", "train.seg_len=4", "eval.seg_len=4"),
            longer_full=6,
            longer_half=8,
            longer_batch_size=3,
        ),
        **sentences(short.changed("short", f"train.valid_every={sentences_valid_every}")),
        **frontier(short.changed("frontier", *cell), n_memory_tokens=1),
        "ablation-standard": short.changed("ablation-standard"),
    }
    for part in (model.key for model in scales.PAPER_MODELS):
        has_memory = "vanilla" not in part and "adaptive" not in part
        models[part] = short.changed(part, *(() if has_memory else NO_MEMORY))
    for arch in ("lstm", "qrnn"):
        models[f"words-{arch}"] = Model(f"words-{arch}", "state.toml", (f"model.arch={arch}",))
    return scales.Scale(
        name="tiny",
        description="For tests.",
        texts={"novel": scales.CorpusText("novel")},
        models=models,
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


OPTIONS = ReproduceOptions(out=Path("report"))


def reproduced(*names, options=OPTIONS, scale=None, reporter=None):
    """Reproduce items at the scale of the novel; return the report's sections as JSON."""
    workspace = Workspace(**HERE, reporter=reporter or RecordingReporter())
    return as_json(reproduce.run(names, options, scale or novel_scale(), workspace, report_writer()).sections)


@pytest.fixture
def state(here):
    """Write the recipe of the recurrent models."""
    Path("state.toml").write_text(recipe_of("lstm").replace("max_steps = 7", "max_steps = 3"), encoding="utf-8")
    return here


@pytest.mark.slow
def test_all_items_are_in_one_report_and_their_commands_write_the_same_figures(state):
    options = ReproduceOptions(out=Path("report"), seeds=2)
    sections = reproduced(*PAPER_ITEMS, options=options)
    assert list(sections) == list(PAPER_ITEMS)
    costs = reproduce.list_costs(PAPER_ITEMS, options, novel_scale(), Workspace(**HERE)).items
    assert [row.item for row in costs if row.missing] == []
    markdown, page = (Path("report", name).read_text(encoding="utf-8") for name in ("report.md", "report.html"))
    files = [file for section in sections.values() for file, _ in section["figures"]]
    for section in sections.values():
        assert f"## {section['title']}" in markdown
        assert section["scale"] == "tiny"
        assert section["commands"]
        assert section["readings"] or not section["name"].startswith("table") or section["name"] in ("table8", "table9")
    for file in files:
        assert f"]({file})" in markdown
        assert Path("report", file).read_bytes().startswith(b"\x89PNG")
        Path("report", file).unlink()
    assert page.count('src="data:image/png;base64,') == len(files)
    titles = [title for title, _ in sections["appendix-e"]["texts"]]
    assert titles[:2] == ["Context 1", "Generated text 1, 5 tokens"]
    lines = dict.fromkeys(line for section in sections.values() for line in section["commands"])
    for words in (line.split()[1:] for line in lines if line.split()[1] in ("recl", "attention")):
        done(*words)
    for file in files:
        assert Path("report", file).is_file() or not file.startswith("figure")


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2])
def test_the_frontier_compares_all_models_in_all_seeds(state, seeds):
    section = reproduced("frontier", options=ReproduceOptions(out=Path("report"), seeds=seeds))["frontier"]
    results, published = section["grids"]
    assert results["columns"][2:] == ["recurrence", "recurrence, M = 16", "window", "compressive", "rmt"]
    names = [(block, position) for block in BLOCKS for position in POSITIONS]
    assert [tuple(row[:2]) for row in results["rows"]] == names
    for row, (block, position) in zip(results["rows"], names, strict=True):
        data = [section["data"][f"frontier-{memory}-{position}-{block}"] for memory in MEMORIES]
        values = [data[0]["trained"], data[0]["longer"], *(cell["trained"] for cell in data[1:])]
        for own, cell in zip(values, row[2:], strict=True):
            assert len(own["values"]) == seeds
            assert cell.startswith(f"{sum(own['values']) / seeds:.3f}")
        assert data[1]["longer"] is None
    assert ["RMT, 10 memory tokens, depth 3, L = 150", "151M", "wt103", "25.04 ppl"] in [
        row[:4] for row in published["rows"]
    ]
    evaluated = json_of("eval", "tiny-frontier-window-rotary-paper-1111", "--mem-len", 5, "--positions", 40)
    values = section["data"]["frontier-window-rotary-paper"]["trained"]["values"]
    assert evaluated["rows"][0]["bpc"] == pytest.approx(values[0], abs=1e-6)


def test_missing_runs_are_counted_and_trained_once_and_their_commands_give_the_same_result(state):
    def cost():
        (row,) = reproduce.list_costs(["table7"], OPTIONS, novel_scale(), Workspace(**HERE)).items
        return row.models, row.missing, row.steps, row.tokens

    assert cost() == (3, 3, 3 * 3, 3 * 3 * 3 * 5)  # of three runs, with batches of 3 x 5
    assert not Path("report").exists()
    first = reproduced("table7")["table7"]
    assert cost() == (3, 0, 0, 0)
    runs = sorted(Path("runs").glob("tiny-short-*"))
    assert [run.name for run in runs] == ["tiny-short-alone-1111", "tiny-short-shaw-1111", "tiny-short-xl-1111"]
    before = [(run / "last.safetensors").stat().st_mtime_ns for run in runs]
    again = reproduced("table7")["table7"]
    assert [(run / "last.safetensors").stat().st_mtime_ns for run in runs] == before
    assert {**again, "seconds": first["seconds"]} == first
    train, evaluation = (
        next(line for line in first["commands"] if line.startswith(f"txl {word}")) for word in ("train", "eval")
    )
    words = train.split()[1:]
    words[words.index("--name") + 1] = "by-hand"
    done(*words)
    output = json_of(*evaluation.replace("tiny-short-xl-1111", "by-hand").split()[1:])
    assert output["rows"][0]["ppl"] == first["data"]["Ours"]["test"]["values"][0]
    for weights in runs[0].glob("*.safetensors"):  # a run that is killed before its first checkpoint has reports only
        weights.unlink()
    assert cost() == (3, 1, 3, 3 * 3 * 5)


def test_an_interrupt_says_how_to_continue(state, monkeypatch):
    scale, reporter = novel_scale(sentences_valid_every=1), RecordingReporter()
    for items, words in ((PAPER_ITEMS, "all"), (["table7"], "table7")):
        with monkeypatch.context() as patches:
            interrupt_at_save(patches)
            with pytest.raises(Interrupted, match=f'resume with "txl reproduce {words} --out report --device cpu"$'):
                reproduced(*items, scale=scale)
    reproduced("table7", scale=scale, reporter=reporter)
    assert any("resuming runs/tiny-short-xl-1111 at step 1 of 3" in line for line in reporter.messages)


def test_seeds_are_averaged_and_earlier_sections_are_kept(state):
    reproduced("table7")
    section = reproduced("table4", options=ReproduceOptions(out=Path("report"), seeds=2))["table4"]
    values = section["data"]["Transformer-XL Base"]["test"]["values"]
    assert len(values) == 2
    assert values[0] != values[1]
    report = Path("report/report.md").read_text(encoding="utf-8")
    assert report.index("## Table 4") < report.index("## Table 7")
    assert f"{sum(values) / 2:.3f} ± " in report


def test_a_report_that_another_process_writes_and_runs_with_other_settings_are_rejected(state):
    Path("report").mkdir()
    with FileLock("report/.lock"), pytest.raises(BusyError, match="another process writes to report"):
        reproduced("table7")
    done("train", "tiny.toml", "--name", "tiny-short-xl-1111", "--seed", 1111)
    with pytest.raises(TxlError, match="other settings"):
        reproduced("table7")
    (row,) = reproduce.list_costs(["table7"], OPTIONS, novel_scale(), Workspace(**HERE)).items
    assert row.missing == row.models == 3


def test_the_command_lists_all_items_and_rejects_what_it_cannot_make(untouched):
    rows = {row["item"]: row for row in json_of("reproduce", "all", "--list")["items"]}
    assert list(rows) == select_items(["all"])
    of_two_seeds = {row["item"]: row["models"] for row in json_of("reproduce", "all", "--list", "--seeds", 2)["items"]}
    with_one_seed = {item for item, models in of_two_seeds.items() if models == rows[item]["models"]}
    assert with_one_seed == {"table8", "table9", *(f"figure{number}" for number in range(3, 8)), "appendix-e"}
    assert max(map(len, done("reproduce", "table7", "--list").stdout.splitlines()[:5])) <= 80
    for words, telling in (("", "--list"), ("table6 --scale huge", "not one of")):
        assert telling in refusal("reproduce", *words.split())
    done("prepare", "novel", "--tokenizer", "word", "--name", "wt103")
    size = TokenStore.open(untouched / "data/wt103.h5").vocab.size
    assert f"beyond the vocabulary of {size}" in refusal("reproduce", "table1", "--scale", "paper")
    assert not Path("reproduction-tiny").exists()
