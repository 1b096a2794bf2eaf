"""Executing a training: limits and signals, and what is saved."""

import json
import math
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.commands.novel import HERE, RecordingReporter, contents
from txlcli.core.training.reports import StepReport, ValidReport
from txlcli.errors import Interrupted, UsageError
from txlcli.runs import run_directory
from txlcli.system.processors import ShareClock
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.training.log import TrainingLog
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.run import train_recipe
from txlcli.workflows.workspace import Workspace

EVERY_STEP = TrainOptions(log_every=1)


def send_twice(number):
    def send(report):
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)

    return send


def interrupted(workflow, *arguments, **options):
    """Run a workflow that must be interrupted; return the error and the last message before it."""
    reporter = options.pop("reporter", RecordingReporter())
    with pytest.raises(Interrupted) as caught:
        workflow(*arguments, Workspace(**HERE, reporter=reporter), **options)
    return caught.value, reporter.messages[-1]


@pytest.mark.parametrize(
    ("given", "command"), [(None, "txl train --resume runs/byte"), ("txl reproduce table7", "txl reproduce table7")]
)
def test_a_second_interrupt_stops_at_once_and_keeps_the_last_checkpoint(here, given, command):
    before = (here / "runs/byte/last.safetensors").read_bytes()
    options = TrainOptions(resume="byte", overrides=("train.max_steps=90",), log_every=1, resume_command=given)
    error, message = interrupted(train_recipe, None, options, on_report=send_twice(signal.SIGINT))
    assert message == "stopping after this step; saving"
    assert str(error).endswith(f'the last checkpoint is kept; resume with "{command}"')
    assert error.exit_code == 130
    assert (here / "runs/byte/last.safetensors").read_bytes() == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_signal_that_came_twice_determines_the_exit_code(here, number, code):
    error, _ = interrupted(train_recipe, "tiny.toml", EVERY_STEP, on_report=send_twice(number))
    assert str(error) == "stopped at once, without saving; there is no checkpoint"
    assert error.exit_code == code
    assert not (here / "runs/tiny").exists()


def test_an_interrupt_that_a_callback_raises_stops_at_once_as_ctrl_c_does(here):
    def interrupt(report):
        raise KeyboardInterrupt

    error, _ = interrupted(train_recipe, "tiny.toml", EVERY_STEP, on_report=interrupt)
    assert "without saving" in str(error)
    assert error.exit_code == 130


def test_a_signal_before_the_first_step_keeps_the_run_that_was_to_be_replaced(here):
    class Interrupting(RecordingReporter):
        def progress(self, *description, **_):
            os.kill(os.getpid(), signal.SIGINT)
            return super().progress(*description)

    before = contents(here / "runs/byte")
    error, _ = interrupted(train_recipe, "tiny.toml", TrainOptions(name="byte", force=True), reporter=Interrupting())
    assert (str(error), error.exit_code) == ("no step was taken; the earlier run runs/byte was kept", 130)
    assert contents(here / "runs/byte") == before
    assert not list((here / "runs").glob(".byte*"))


def test_a_profile_records_steps_after_the_warm_up_and_changes_no_number(here):
    workspace, lines = Workspace(**HERE, reporter=RecordingReporter()), []
    plain = train_recipe("tiny.toml", EVERY_STEP, workspace)
    options = TrainOptions(log_every=1, profile=3)
    result = train_recipe("tiny.toml", options, workspace, on_report=lines.append)
    assert result.best_nats == plain.best_nats
    *_, line = lines
    assert (line["kind"], line["first_step"], line["steps"]) == ("profile", 5, 3)  # M is full after one, and 3 warm up
    products = {kernel["name"]: kernel for kernel in line["kernels"]}
    assert products["aten::mm"]["calls_per_step"] > 4
    assert sum(kernel["ms_per_step"] for kernel in line["kernels"]) == pytest.approx(line["ms_per_step"])
    assert sum(kernel["share"] for kernel in line["kernels"]) == pytest.approx(1)
    assert any(
        event.get("name") == "aten::mm" for event in json.loads(Path(result.profile.trace).read_text())["traceEvents"]
    )


def test_reports_and_the_run_say_how_its_steps_were_computed(here):
    lines = []
    run = train_recipe("tiny.toml", TrainOptions(), Workspace(**HERE), on_report=lines.append).run
    path = "tiles, not compiled, not captured"
    assert {line["path"] for line in lines if line["kind"] == "train"} == {path}
    assert run_directory.read_run(run.directory).path == path


@pytest.mark.parametrize(("profile", "max_steps", "fits"), [(4, None, 3), (1, 4, 0)])
def test_a_profile_that_does_not_fit_between_warm_up_and_end_is_rejected(here, profile, max_steps, fits):
    options = TrainOptions(profile=profile, max_steps=max_steps)
    with pytest.raises(UsageError, match=f"`profile` {profile}: {fits} steps fit between .* every 4 steps; "):
        train_recipe("tiny.toml", options, Workspace(**HERE))
    assert not (here / "runs/tiny").exists()


def test_metrics_have_the_share_of_the_peak_rate_of_a_known_card(here):
    run, lines, reporter = run_directory.find("byte", here / "runs"), [], RecordingReporter()
    with reporter.progress("training") as progress:
        plan = SimpleNamespace(run=run, peak_tokens_per_s=1000.0)
        log = TrainingLog(plan=plan, reporter=reporter, progress=progress, track=lines.append)
        log.record(StepReport(8, 1.0, 2.0, 0.1, 1.0, tokens_per_s=250.0))
    assert json.loads((run.directory / "metrics.jsonl").read_text().splitlines()[-1])["mfu"] == 0.25
    assert (lines[-1]["mfu"], log.mfu) == (0.25, 0.25)  # also for trackers and the summary
    metrics = (here / "runs/word/metrics.jsonl").read_text()
    assert '"tokens_per_s"' in metrics
    assert "mfu" not in metrics  # on a CPU


def test_progress_names_the_step_of_each_number_of_an_earlier_step(here):
    run, shown = run_directory.find("byte", here / "runs"), []
    reporter = Reporter(lambda text, done, _: shown.append((done, text)) if done else None)
    with reporter.progress("training") as progress:
        plan = SimpleNamespace(run=run, peak_tokens_per_s=None)
        log = TrainingLog(plan=plan, reporter=reporter, progress=progress, track=lambda line: None)
        log.show_step(1)
        log.record(StepReport(1200, 1.0, 2 * math.log(2), 0.1, 1.0, tokens_per_s=2571.0))
        log.show_step(1201)
        log.record(ValidReport(1201, 1.0, 3 * math.log(2), tokens=9, seconds=1.0, best=True, averaged=False))
        log.show_step(1202)
        log.record(StepReport(1203, 1.0, math.log(2), 0.1, 1.0, tokens_per_s=13.0))
    assert shown == [
        (1, "training"),
        (1200, "training: train 2.000 bpc (2,571 tokens/s, lr 0.1)"),
        (1201, "training: train 2.000 bpc at step 1,200 (2,571 tokens/s, lr 0.1)"),
        (1201, "training: train 2.000 bpc at step 1,200 (2,571 tokens/s, lr 0.1), valid 3.000"),
        (1202, "training: train 2.000 bpc at step 1,200 (2,571 tokens/s, lr 0.1), valid 3.000 at step 1,201"),
        (1203, "training: train 1.000 bpc (13 tokens/s, lr 0.1), valid 3.000 at step 1,201"),
    ]


@pytest.mark.parametrize(("cpu_share", "hints"), [(0.4, 1), (0.6, 0)], ids=["shared", "idle"])
def test_a_step_that_waits_for_processors_hints_at_threads_once(cpu_share, hints):
    now, reporter = 0.0, RecordingReporter()
    clock = ShareClock(lambda: now, lambda: cpu_share * now)
    with reporter.progress("training") as progress:
        log = TrainingLog(plan=None, reporter=reporter, progress=progress, track=None, clock=clock)
        for _ in range(50):
            now += 1.0
            log.show_step(1)
    hint = "a step takes 2.5 times its CPU time: other programs use the processors; `threads` 1 may be faster"
    assert reporter.messages == [hint] * hints
