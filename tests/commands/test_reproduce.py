"""txl reproduce, on the small novel with models of a few steps."""

from pathlib import Path

import pytest
from filelock import FileLock

from tests.commands.novel import cells, done, interrupt_at_save, json_of, refusal
from tests.commands.test_recurrent import recipe_of
from txlcli.data.token_store import TokenStore
from txlcli.workflows.reproduction import scales
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
from txlcli.workflows.reproduction.options import PAPER_ITEMS


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


@pytest.fixture
def shrunk(here, monkeypatch):
    """Replace the tiny scale by one on the novel."""
    Path("state.toml").write_text(recipe_of("lstm").replace("max_steps = 7", "max_steps = 3"), encoding="utf-8")
    monkeypatch.setitem(scales.SCALES, "tiny", novel_scale)
    return here


@pytest.mark.slow
def test_all_items_are_in_one_report(shrunk):
    result = json_of("reproduce", "all")
    directory = Path("reproduction-tiny")
    assert result["report"] == [str(directory / "report.md"), str(directory / "report.html")]
    assert list(result["sections"]) == list(PAPER_ITEMS)
    markdown, page = (Path(path).read_text(encoding="utf-8") for path in result["report"])
    for section in result["sections"].values():
        assert f"## {section['title']}" in markdown
        assert section["scale"] == "tiny"
        assert section["commands"]
        assert section["readings"] or not section["name"].startswith("table") or section["name"] in ("table8", "table9")
        for file, _ in section["figures"]:
            assert f"]({file})" in markdown
            assert (directory / file).read_bytes().startswith(b"\x89PNG")
    figures = [file for section in result["sections"].values() for file, _ in section["figures"]]
    assert page.count('src="data:image/png;base64,') == len(figures)
    titles = [title for title, _ in result["sections"]["appendix-e"]["texts"]]
    assert titles[:2] == ["Context 1", "Generated text 1, 5 tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2])
def test_the_frontier_compares_all_models_in_all_seeds(shrunk, seeds):
    section = json_of("reproduce", "frontier", "--seeds", seeds)["sections"]["frontier"]
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
    assert ["RMT, 10 memory tokens, 3 segments, L = 150", "151M", "wt103", "25.04 ppl"] in [
        row[:4] for row in published["rows"]
    ]
    evaluated = json_of("eval", "tiny-frontier-window-rotary-paper-1111", "--mem-len", 5, "--positions", 40)
    values = section["data"]["frontier-window-rotary-paper"]["trained"]["values"]
    assert evaluated["rows"][0]["bpc"] == pytest.approx(values[0], abs=1e-6)


def test_finished_runs_are_reused(shrunk):
    first = json_of("reproduce", "table7")["sections"]["table7"]
    directories = sorted(Path("runs").glob("tiny-short-*"))
    assert [run.name for run in directories] == ["tiny-short-alone-1111", "tiny-short-shaw-1111", "tiny-short-xl-1111"]
    before = [(run / "last.safetensors").stat().st_mtime_ns for run in directories]
    again = json_of("reproduce", "table7")["sections"]["table7"]
    assert [(run / "last.safetensors").stat().st_mtime_ns for run in directories] == before
    assert {**again, "seconds": first["seconds"]} == first


def test_an_interrupt_says_how_to_continue(shrunk, monkeypatch):
    monkeypatch.setitem(scales.SCALES, "tiny", lambda: novel_scale(sentences_valid_every=1))
    with monkeypatch.context() as patches:
        interrupt_at_save(patches)
        message = refusal("reproduce", "table7", code=130)
    assert message.endswith("repeat the same command to continue")
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
    assert output["rows"][0]["ppl"] == section["data"]["Ours"]["test"]["values"][0]


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


def test_two_processes_cannot_write_one_report(shrunk):
    Path("reproduction-tiny").mkdir()
    with FileLock("reproduction-tiny/.lock"):
        assert "another process writes to reproduction-tiny" in refusal("reproduce", "table7", code=1)


def test_the_list_counts_missing_training_runs_and_makes_nothing(shrunk):
    rows = {row["item"]: row for row in json_of("reproduce", "all", "--list")["items"]}
    assert list(rows) == list(PAPER_ITEMS)
    steps, tokens = 3 * 3, 3 * 3 * 3 * 5  # of three runs, with batches of 3 x 5
    expected = {"item": "table7", "models": 3, "missing": 3, "steps": steps, "tokens": tokens}
    assert rows["table7"] == expected
    assert not Path("reproduction-tiny").exists()
    done("reproduce", "table7")
    result = done("reproduce", "table7", "--list")
    assert cells(result) == [["table7", "3", "0", "0", "0"]]
    assert max(len(line) for line in result.stdout.splitlines() if line.startswith("│")) <= 80


def test_a_store_with_too_few_words_for_a_model_is_rejected(untouched):
    done("prepare", "novel", "--tokenizer", "word", "--name", "wt103")
    size = TokenStore.open(untouched / "data/wt103.h5").vocab.size
    assert f"beyond the vocabulary of {size}" in refusal("reproduce", "table1", "--scale", "paper")


@pytest.mark.parametrize(("words", "telling"), [("", "--list"), ("table6 --scale huge", "not one of")])
def test_wrong_options_are_rejected(shrunk, words, telling):
    assert telling in refusal("reproduce", *words.split())
    assert not Path("reproduction-tiny").exists()


def test_a_run_with_other_settings_is_rejected(shrunk):
    done("train", "tiny.toml", "--name", "tiny-short-xl-1111", "--seed", 1111)
    assert "other settings" in refusal("reproduce", "table7", code=1)
