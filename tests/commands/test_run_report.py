"""txl runs report: one page with the results of the other commands, and reasons for what a run lacks."""

import json
import re
from pathlib import Path

import txlcli
from tests.cards import read_log
from tests.commands.novel import card, done, json_of, recipe_of, refusal, train
from txlcli.paper.metrics import format_measure
from txlcli.runs import log_file


def report_of(run, *options):
    output = json_of("runs", "report", run, *options)
    assert output["report"] == [f"runs/{run}/report/report.md", f"runs/{run}/report/report.html"]
    return (Path(path).read_text(encoding="utf-8") for path in output["report"])


def test_the_report_has_the_numbers_of_the_other_commands(here):
    done("eval", "byte", "--mem-len", "0,5")
    done("eval", "byte", "--mem-len", "5")
    markdown, page = report_of("byte", "--samples", 1, "--seed", 5)
    lines = markdown.splitlines()
    evals = read_log("runs/byte/evals.jsonl")[1:]  # the newest of M = 5, and that of M = 0
    for row in (evals[-1], read_log("runs/byte/evals.jsonl")[0]):
        start = f"| novel test | M = {row['mem_len']}, L = 5, "
        numbers = f" | {row['tokens']:,} | {format_measure(row['bpc'])} | "
        assert len([line for line in lines if line.startswith(start) and numbers in line]) == 1
    show = json_of("runs", "show", "byte")
    assert f"| parameters | {show['parameters']:,} |" in lines
    assert "| train.lr | 0.03 |" in lines
    sample = json_of("generate", "byte", "--reference", "--seed", 5, "--tokens", 300)
    for text in (sample["context"], sample["samples"][0]["text"], sample["reference"]):
        assert f"\n{text}\n" in markdown
    heads = txlcli.load("byte").attention().to_dict()["heads"]
    widest = max((head for head in heads if head["layer"] == 2), key=lambda head: head["width_tokens"])
    row = next(line.strip("| ").split(" | ") for line in lines if line.startswith("| 2 | "))
    assert row[-2:] == [f"2.{widest['head']}", f"{widest['width_tokens']:,.1f}"]
    assert "not a corpus of the paper" in markdown
    assert len(re.findall('<img src="data:image/png;base64,', page)) == 4  # curves and Figures 5 to 7
    assert re.findall('<a href="#([a-z-]+)">', page) == re.findall('<h2 id="([a-z-]+)">', page)
    assert "\nAttention that each term of the score would give alone (Figure 7 of the paper).\n" in markdown
    for name in ("curves", "figure5", "figure6", "figure7"):
        assert Path(f"runs/byte/report/{name}.png").is_file()


def test_the_evaluations_of_a_report_are_those_of_its_weights_by_each_setting(here):
    train("train.keep_every=2", name="kept")
    done("eval", "kept", "--max-distance", 7)
    done("eval", "kept")
    done("eval", "runs/kept/step-2.safetensors")
    first, second, other = (format_measure(row["bpc"]) for row in read_log("runs/kept/evals.jsonl"))
    assert other not in (first, second)
    markdown, _ = report_of("kept", "--samples", 1)
    rows = [line for line in markdown.splitlines() if line.startswith("| novel test | M = 5")]
    assert len(rows) == 2
    assert "max_distance = 7, fp32 |" in rows[0]
    assert [f" | {loss} | " in row for row, loss in zip(rows, (first, second), strict=True)] == [True, True]
    assert "step-2.safetensors" not in markdown
    done("runs", "report", "runs/kept/step-2.safetensors", "--samples", 1, "--seed", 5, "--force")
    markdown = Path("runs/kept/report/report.md").read_text(encoding="utf-8")
    assert "\n| weights | step-2.safetensors in " in markdown
    (row,) = (line for line in markdown.splitlines() if line.startswith("| novel test | M = 5"))
    assert f" | {other} | " in row
    sample = json_of("generate", "runs/kept/step-2.safetensors", "--reference", "--seed", 5, "--tokens", 300)
    assert f"\n{sample['samples'][0]['text']}\n" in markdown


def test_a_report_says_what_a_run_lacks_and_replaces_no_file_of_the_user(here):
    Path("lstm.toml").write_text(recipe_of("lstm"))
    done("train", "lstm.toml")
    done("eval", "lstm")
    done("eval", "lstm", "--temperature", 1.25)
    evals = Path("runs/lstm/evals.jsonl")
    busy = {"slowdown": 7.0, "times_trusted": False}
    lines = [log_file.to_line(log_file.from_line(line) | busy) for line in evals.read_text().splitlines()]
    evals.write_text("".join(lines))
    Path("runs/lstm/report").mkdir()
    Path("runs/lstm/report/notes.txt").touch()
    assert "runs/lstm/report has files" in refusal("runs", "report", "lstm", code=1)
    Path("runs/lstm/report/notes.txt").unlink()
    Path("runs/lstm/report/curves.png").touch()  # as an interrupted report leaves it
    done("runs", "report", "lstm", "--samples", 1)
    Path("runs/lstm/report/notes.txt").touch()
    done("runs", "report", "lstm", "--data-dir", "none", "--force")
    assert Path("runs/lstm/report/notes.txt").is_file()
    markdown = Path("runs/lstm/report/report.md").read_text(encoding="utf-8")
    assert 'runs/lstm has no attention to single tokens (arch = "lstm")' in markdown
    assert "no token store at none/novel.h5" in markdown
    assert "| novel test | recurrent state, L = " in markdown
    assert "same_length" not in markdown
    (row,) = (line for line in markdown.splitlines() if "| recurrent state, temperature 1.25, L = " in line)
    assert row.endswith(" | - |")  # its time was measured on a busy machine
    assert "![Losses of training and validation by step.](curves.png)" in markdown


def test_the_best_of_several_test_scores_is_ranked_among_published_results(here):
    directory = Path("runs/word")
    content = card(directory) | {"vocab_size": 10_000, "parameters": 24_525_160}
    content["settings"]["corpus"]["store"] = "ptb"
    content["corpus"] = "ptb"
    (directory / "run.json").write_text(json.dumps(content))
    valid = {"kind": "valid", "step": 7, "loss_nats": 4.0, "tokens": 73_760, "seconds": 1.0}
    (directory / "metrics.jsonl").write_text(log_file.to_line(valid))
    markdown, _ = report_of("word")
    assert "| > runs/word | 24M | 54.60 | - |\n" in markdown
    same = {
        **{"corpus": "ptb", "text": "ptb test", "split": "test", "whole": True, "tokens": 82_430},
        **{"attn_len_max": 140, "mem_len": 140, "step": 7, "weights": "best.safetensors"},
    }
    rows = [same | {"loss_nats": loss} for loss in (4.25, 4.05)]
    (directory / "evals.jsonl").write_text("".join(map(log_file.to_line, rows)))
    markdown = "".join(report_of("word", "--force"))
    rows = [line.strip("| ").split(" | ") for line in markdown.splitlines() if line.startswith("| ")]
    rank = rows.index(["> runs/word", "24M", "54.60", "57.40"])
    assert [rows[rank - 1][3], rows[rank + 1][3]] == ["57.3", "58.6"]


def test_the_samples_of_a_report_fit_a_short_test_split(here):
    Path("short.txt").write_text("the fox saw the owl\n" * 101)
    done("prepare", "short.txt", "--tokenizer", "byte")
    train("corpus.store=short", name="short")
    markdown, _ = report_of("short", "--samples", 1)
    n_test = len(txlcli.open_store("short").ids("test"))
    assert n_test < 300  # the length of other samples
    assert f"Generated text 1, {n_test // 2} tokens" in markdown
    assert "Actual continuation 1" in markdown
