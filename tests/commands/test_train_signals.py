"""txl as a process: signals, a full disk, a closed pipe."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cards import read_log
from tests.commands.novel import ENDLESS, LONGEST_WAIT_S, Saved, done, on_a_full_disk, start, txl, wait_for
from tests.samples import sampled
from txlcli.core.training import checkpoint


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_a_training_stopped_by_a_signal_is_saved_and_can_be_resumed(here, number, code):
    metrics = here / "runs/tiny/metrics.jsonl"
    process = start("train", "tiny.toml", *ENDLESS, "--json")
    wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 3)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=LONGEST_WAIT_S)
    assert process.returncode == code, stderr
    step = checkpoint.load(here / "runs/tiny/last.safetensors").state["step"]
    assert step >= 8
    assert [json.loads(line) for line in stdout.splitlines()] == read_log(metrics)
    *_, stopping, error = stderr.splitlines()
    assert stopping == "stopping after this step; saving"
    assert error == (
        f'error: stopped; saved runs/tiny/last.safetensors at step {step:,}; resume with "txl train --resume runs/tiny"'
    )
    # Stopping and resuming gives the same weights as training without a stop.
    done("train", "--resume", "runs/tiny", "--max-steps", step + 3)
    done("train", "tiny.toml", *ENDLESS, "--name", "whole", "--max-steps", step + 3)
    assert Saved(here / "runs/tiny/last.safetensors") == Saved(here / "runs/whole/last.safetensors")


@pytest.mark.parametrize(
    ("limit", "file"),
    [
        (8192, "last.safetensors: the checkpoint cannot be written ("),
        pytest.param(
            500,
            "metrics.jsonl: cannot be written (File too large); check the folder and the free space",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_full_disk_leaves_the_last_checkpoint_as_it_was(here, limit, file):
    run = here / "runs/byte"
    (run / "metrics.jsonl").write_text("".join(f'{{"step": 1, "filler": "{number:060}"}}\n' for number in range(6)))
    before = (run / "last.safetensors").read_bytes()
    ended = on_a_full_disk(limit, "train", "--resume", "byte", "--set", "train.max_steps=9")
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    assert ended.stderr.splitlines()[-1].startswith(f"error: runs/byte/{file}")
    assert "Traceback" not in ended.stderr
    assert (run / "last.safetensors").read_bytes() == before
    assert not list(run.glob(".*.new"))


def test_a_full_disk_prevents_a_new_run_with_an_error(here):
    ended = on_a_full_disk(100, "train", "tiny.toml")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("error: runs/tiny/vocab.json: cannot be written (File too large)")


def test_a_training_saves_when_the_reader_of_its_reports_leaves(here):
    process = start("train", "tiny.toml", *ENDLESS, "--json")
    process.stdout.readline()
    process.stdout.close()
    stderr = process.stderr.read()
    assert process.wait(LONGEST_WAIT_S) == 1
    assert "Traceback" not in stderr
    assert checkpoint.load(here / "runs/tiny/last.safetensors").state["step"] >= 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("words", "unbuffered"),
    sampled(
        3,
        [
            ["eval", "byte", "--positions", "60"],
            ["generate", "byte", "--prompt", "the", "--tokens", "9"],
            ["recipes", "show", "stdlib"],
            ["prepare", "--list", "--json"],
            ["--version"],
        ],
        ["", "1"],
    ),
)
def test_output_that_cannot_be_written_is_one_line(here, words, unbuffered):
    ended = _into_a_full_device(words, unbuffered)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "error: stdout: cannot be written (No space left on device); free some space, or redirect it elsewhere"
    )
    assert "Traceback" not in ended.stderr
    assert "Exception" not in ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_help_that_cannot_be_written_is_one_line(here, unbuffered):
    ended = _into_a_full_device(["eval", "--help"], unbuffered)
    assert ended.returncode == 1
    assert ended.stderr == (
        "error: cannot write (No space left on device); free some space, or redirect the output elsewhere\n"
    )


def _into_a_full_device(words, unbuffered):
    with open("/dev/full", "w") as full:
        return subprocess.run(
            [sys.executable, "-m", "txlcli", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=LONGEST_WAIT_S,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered, "OMP_NUM_THREADS": "1"},
        )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_training_saves_when_its_reports_cannot_be_written(here):
    with open("/dev/full", "w") as full:
        process = start("train", "tiny.toml", *ENDLESS, "--json", stdout=full)
        stderr = process.stderr.read()
    assert process.wait(LONGEST_WAIT_S) == 1
    assert stderr.splitlines()[-1] == (
        "error: stdout: cannot be written (No space left on device); free some space, or redirect it elsewhere"
    )
    assert checkpoint.load(here / "runs/tiny/last.safetensors").state["step"] == 2


def test_a_closed_pipe_ends_the_command_without_a_traceback(here):
    process = start("generate", "byte", "--prompt", "the", "--tokens", "1000000", "--top-k", "1")
    process.stdout.read(5)
    process.stdout.close()
    stderr = process.stderr.read()
    assert process.wait(LONGEST_WAIT_S) == 1
    assert stderr == "generating with runs/byte, after the prompt\n"


@pytest.mark.parametrize("words", [["eval", "byte"], ["generate", "byte", "--prompt", "the"]])
def test_an_interrupt_of_any_command_is_one_line(here, monkeypatch, words):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "loads", interrupt)  # which reads run.json
    result = txl(*words)
    assert (result.exit_code, result.stderr) == (130, "error: interrupted\n")


MAIN = """
import signal
from txlcli.__main__ import main
try:
    main()
finally:
    print("ignored" if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else "handled")
"""


def test_an_interrupt_while_txl_loads_is_one_line(tmp_path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")  # imported by txlcli.cli
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.run(
        [sys.executable, "-c", MAIN],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=LONGEST_WAIT_S,
    )
    assert (process.returncode, process.stdout, process.stderr) == (130, "ignored\n", "error: interrupted\n")
