"""txl as a process: signals, a full device, a closed pipe."""

import json
import signal
from pathlib import Path

import pytest

from tests.cards import read_log
from tests.commands.novel import ENDLESS, LONGEST_WAIT_S, Saved, done, start, txl, wait_for
from tests.samples import sampled
from txlcli.core.training import checkpoint
from txlcli.system import signals


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, 128 + signal.SIGUSR1, marks=pytest.mark.slow),
        pytest.param(signal.SIGXCPU, 128 + signal.SIGXCPU, marks=pytest.mark.slow),
    ],
)
def test_a_training_stopped_by_a_signal_is_saved_and_can_be_resumed(here, number, code):
    metrics = here / "runs/tiny/metrics.jsonl"
    process = start("train", "tiny.toml", *ENDLESS, "--json")
    wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 3)
    for _ in range(3 if number in signals.WARNINGS else 1):  # warnings may repeat
        process.send_signal(number)
    stdout, stderr = process.communicate(timeout=LONGEST_WAIT_S)
    assert process.returncode == code, stderr
    step = checkpoint.load(here / "runs/tiny/last.safetensors").state["step"]
    assert step >= 8
    assert [json.loads(line) for line in stdout.splitlines()] == read_log(metrics)
    assert stderr.endswith(f'at step {step:,}; resume with "txl train --resume runs/tiny"\n')
    # Stopping and resuming gives the same weights as training without a stop.
    done("train", "--resume", "runs/tiny", "--max-steps", step + 3)
    done("train", "tiny.toml", *ENDLESS, "--name", "whole", "--max-steps", step + 3)
    assert Saved(here / "runs/tiny/last.safetensors") == Saved(here / "runs/whole/last.safetensors")


def test_a_training_saves_when_the_reader_of_its_reports_leaves(here):
    process = start("train", "tiny.toml", *ENDLESS, "--json")
    process.stdout.readline()
    process.stdout.close()
    stderr = process.stderr.read()
    assert process.wait(LONGEST_WAIT_S) == 128 + signal.SIGPIPE
    assert "Traceback" not in stderr
    assert checkpoint.load(here / "runs/tiny/last.safetensors").state["step"] >= 4


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("eval byte", "interrupted"),
        ("train --resume byte", "repeat the command"),
        ("train --from byte", "repeat the command"),
        ("train --from byte --dry-run", "interrupted"),
    ],
)
def test_an_interrupt_before_the_first_step_is_one_line_with_the_next_command(here, monkeypatch, words, line):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "loads", interrupt)  # which reads run.json
    result = txl(*words.split())
    assert (result.exit_code, result.stderr.count("\n")) == (130, 1)
    assert line in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("words", "unbuffered"),
    sampled(4, [["generate", "byte", "--prompt", "the", "--tokens", "9"], ["recipes", "show", "stdlib"]], ["", "1"]),
)
def test_output_that_cannot_be_written_is_one_line(here, words, unbuffered):
    with open("/dev/full", "w") as full:
        process = start(*words, stdout=full, environment={"PYTHONUNBUFFERED": unbuffered})
        stderr = process.communicate(timeout=LONGEST_WAIT_S)[1]
    assert process.returncode == 1
    assert "stdout: cannot be written (No space left on device)" in stderr.splitlines()[-1]
    assert "Traceback" not in stderr
    assert "Exception" not in stderr
