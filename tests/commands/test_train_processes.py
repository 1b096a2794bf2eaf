"""txl train --processes: several processes on one machine act as one training."""

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cards import read_log
from tests.commands.novel import ENDLESS, LONGEST_WAIT_S, done, json_of, refusal, reports, start, wait_for
from txlcli.core.training import checkpoint
from txlcli.data.token_store import TokenStore
from txlcli.errors import StoreError
from txlcli.workflows.training import follow

on_linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
NOTHING_RANDOM = ["--set", "model.dropout=0", "--device", "cpu"]
TORCHRUN = ["--standalone", "--nproc-per-node", "2", "-m", "txlcli"]


def ended(process, code):
    """Return the stdout of a process and the lines of its stderr."""
    stdout, stderr = process.communicate(timeout=LONGEST_WAIT_S)
    assert process.returncode == code, stderr
    return stdout, stderr.splitlines()


def losses(run):
    return [(line["kind"], line["step"], pytest.approx(line["loss_nats"], abs=1e-4)) for line in reports(f"runs/{run}")]


def processes_in(here):
    """Return the ids of the processes that train in this folder, by rank."""
    ids = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            current, environment = (folder / "cwd").readlink(), (folder / "environ").read_bytes()
        except OSError:
            continue  # it has ended
        rank = [word for word in environment.split(b"\0") if word.startswith(b"RANK=")]
        if current == here.resolve() and rank:
            ids[int(rank[0].removeprefix(b"RANK="))] = int(folder.name)
    return ids


def test_two_processes_train_the_same_run_as_one(here):
    stdout, stderr = ended(start("train", "tiny.toml", "--processes", 2, "--name", "two", *NOTHING_RANDOM), 0)
    done("train", "tiny.toml", "--name", "one", *NOTHING_RANDOM)
    assert losses("two") == losses("one")
    names = [sorted(path.name for path in Path(f"runs/{run}").iterdir()) for run in ("one", "two")]
    assert names[0] == names[1]
    assert stdout.count("7 of 7") == 1
    assert stderr[0].endswith("fp32, 2 processes, cpu (1 thread) each, into runs/two")
    assert [line.partition(",")[0] for line in stderr[1:]] == ["step 4", "step 7"]
    assert done("eval", "two", "--mem-len", "0,5").stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_training_stopped_by_a_signal_is_saved_and_can_be_resumed(here, number, code):
    metrics = here / "runs/tiny/metrics.jsonl"
    process = start("train", "tiny.toml", *ENDLESS, "--processes", 2, "--json")
    wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 3)
    process.send_signal(number)
    stdout, stderr = ended(process, code)
    assert [json.loads(line) for line in stdout.splitlines()] == read_log(metrics)
    step = checkpoint.load(here / "runs/tiny/last.safetensors").state["step"]
    assert stderr[-2:] == [
        "stopping after this step; saving",
        f"error: stopped; saved runs/tiny/last.safetensors at step {step:,}; "
        'resume with "txl train --resume runs/tiny --processes 2"',
    ]
    if number == signal.SIGINT:
        ended(start("train", "--resume", "runs/tiny", "--processes", 2, "--max-steps", step + 3), 0)
        assert checkpoint.load(here / "runs/tiny/last.safetensors").state["step"] == step + 3


def test_a_training_started_by_torchrun_can_be_resumed_by_one_process(here):
    module = "torch.distributed.run"
    _, stderr = ended(start(*TORCHRUN, "train", "tiny.toml", "--max-steps", 4, *NOTHING_RANDOM, module=module), 0)
    assert sum(line.startswith("training tiny: ") for line in stderr) == 1
    done("train", "--resume", "tiny")
    done("train", "tiny.toml", "--name", "one", *NOTHING_RANDOM)
    assert losses("tiny") == losses("one")


def test_torchrun_is_refused_for_other_commands(here):
    _, stderr = ended(start(*TORCHRUN, "eval", "byte", module="torch.distributed.run"), 1)
    assert stderr.count("error: txl eval runs in one process; start it without torchrun") == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--set", "train.lrr=3"], '[train] has no key "lrr"; did you mean "lr"?'),
        (["--set", "train.batch_size=1"], "train.batch_size = 1 is too small for 2 processes; use fewer of them"),
        (["--resume", "nothing"], "leave out the recipe, --name, --force and --dry-run"),
    ],
)
def test_an_error_of_all_processes_is_reported_once(here, arguments, error):
    stdout, stderr = ended(start("train", "tiny.toml", *arguments, "--processes", 2), 2)
    assert stdout == ""
    assert [line for line in stderr if not line.startswith("training tiny: ")] == [stderr[-1]]
    assert stderr[-1].startswith("error: ")
    assert stderr[-1].endswith(error)
    assert not Path("runs/tiny").exists()


def test_an_error_of_rank_0_alone_ends_all_processes_quickly(here):
    (here / "runs/tiny").mkdir()
    started = time.monotonic()
    _, stderr = ended(start("train", "tiny.toml", "--name", "tiny", "--processes", 2), 1)
    assert stderr == ["error: runs/tiny exists; resume it with --resume tiny, or replace it with --force"]
    assert time.monotonic() - started < 30  # seconds; a waiting process would be killed much later


def test_another_text_than_rank_0_reads_is_refused(here):
    store = TokenStore.open(here / "data/novel.h5")
    digest = store.info("train").sha256
    follow.check_text_of_rank_0(store, SimpleNamespace(broadcast=lambda text: digest))
    with pytest.raises(StoreError, match=r"novel.h5: not the train split that rank 0 reads"):
        follow.check_text_of_rank_0(store, SimpleNamespace(broadcast=lambda text: "another"))


@on_linux
@pytest.mark.parametrize("rank", [None, 0])
def test_all_processes_end_with_their_launcher_or_rank_0(here, rank):
    process = start("train", "tiny.toml", *ENDLESS, "--processes", 2, "--set", "train.valid_every=20")
    wait_for((here / "runs/tiny/last.safetensors").exists)
    os.kill(process.pid if rank is None else processes_in(here)[rank], signal.SIGKILL)
    _, stderr = ended(process, -signal.SIGKILL if rank is None else 1)
    wait_for(lambda: not processes_in(here))
    killed = "error: process 0 was killed by signal 9; resume from the last checkpoint with --resume, if there is one"
    assert (killed in stderr) == (rank == 0)
    assert stderr[-1].startswith("saved runs/tiny/last.safetensors at step ") == (rank is None)


@on_linux
def test_a_process_that_dies_ends_the_training_with_the_command_to_resume(here):
    process = start("train", "tiny.toml", *ENDLESS, "--processes", 2, "--set", "train.valid_every=20")
    wait_for((here / "runs/tiny/last.safetensors").exists)
    os.kill(processes_in(here)[1], signal.SIGKILL)
    _, stderr = ended(process, 1)
    assert "error: another process has ended; resume from the last checkpoint with --resume" in stderr
    wait_for(lambda: not processes_in(here))
    assert checkpoint.load(here / "runs/tiny/last.safetensors").state["step"] >= 20


def test_a_dry_run_counts_the_memory_of_one_process(here):
    alone, one_of_two = (json_of("train", "tiny.toml", "--dry-run", "--processes", count) for count in (1, 2))
    assert (alone["processes"], one_of_two["processes"]) == (1, 2)
    memory = [plan["step_bytes"]["memory"] for plan in (alone, one_of_two)]
    assert memory[1] * 3 == memory[0] * 2  # the larger part of three lanes
    assert one_of_two["training_flops"] == alone["training_flops"]
    assert refusal("train", "tiny.toml", "--dry-run", "--processes", 4).startswith("train.batch_size = 3 is too small")
    assert "2 processes" in done("train", "tiny.toml", "--dry-run", "--processes", 2).stdout
