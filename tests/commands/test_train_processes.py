"""txl train --processes: several processes on one machine act as one training."""

import json
import os
import pickle
import signal
import socket
import time
from pathlib import Path

import pytest
from torch import distributed

from tests.cards import read_log
from tests.commands.novel import ENDLESS, contents, done, json_of, names_in, refusal, reports, start, wait_for
from tests.commands.processes import (
    TORCHRUN,
    ended,
    environment_of,
    listening,
    network_addresses,
    on_linux,
    processes_in,
    start_ranks,
)
from txlcli.core.training import checkpoint
from txlcli.system.launcher import SECONDS_TO_EXPLAIN

NOTHING_RANDOM = ["--set", "model.dropout=0", "--device", "cpu"]
LAST = Path("runs/tiny/last.safetensors")
RENDEZVOUS = "join_timeout=60,last_call_timeout=3"


def last_step():
    return checkpoint.load(LAST).state["step"]


def error_of(stderr):
    """Return the only line of an error."""
    (error,) = (line for line in stderr if line.startswith("error: "))
    return error


def trains_as_one(run, *changes):
    """Check that a run has the losses of one process that was not stopped."""
    done("train", "tiny.toml", "--name", "one", *changes, *NOTHING_RANDOM)
    assert losses(run) == losses("one")


def losses(run):
    return [(line["kind"], line["step"], pytest.approx(line["loss_nats"], abs=1e-4)) for line in reports(f"runs/{run}")]


@pytest.mark.slow
def test_two_processes_train_the_same_run_as_one(here):
    stdout, stderr = ended(start("train", "tiny.toml", "--processes", 2, "--name", "two", *NOTHING_RANDOM), 0)
    trains_as_one("two")
    assert names_in(Path("runs/one")) == names_in(Path("runs/two"))
    assert stdout.count("7 of 7") == 1
    assert stderr[0].endswith("fp32, 2 processes, cpu (1 thread) each, into runs/two")
    assert [line.partition(",")[0] for line in stderr[1:]] == ["step 4", "step 7"]
    assert done("eval", "two", "--mem-len", "0,5").stdout


@pytest.mark.slow
def test_a_fully_divided_training_is_resumed_by_one_process(here):
    divided = ["--processes", 2, "--set", "train.parallel=fsdp", "--set", "train.average=exponential"]
    _, stderr = ended(start("train", "tiny.toml", *divided, "--max-steps", 4, *NOTHING_RANDOM), 0)
    assert sum(line.startswith("step 4, ") for line in stderr) == 1
    assert "at least two processes" in refusal("train", "--resume", "tiny")
    done("train", "--resume", "tiny", "--set", "train.parallel=ddp")
    trains_as_one("tiny", "--set", "train.average=exponential")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_training_stopped_by_a_signal_is_saved_and_can_be_resumed(here, number, code):
    metrics = here / "runs/tiny/metrics.jsonl"
    process = start("train", "tiny.toml", *ENDLESS, "--processes", 2, "--json")
    wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 3)
    process.send_signal(number)
    stdout, stderr = ended(process, code)
    assert [json.loads(line) for line in stdout.splitlines()] == read_log(metrics)
    step = last_step()
    assert stderr[-1].endswith('resume with "txl train --resume runs/tiny --processes 2"')
    if number == signal.SIGTERM:
        ended(start("train", "--resume", "runs/tiny", "--processes", 2, "--max-steps", step + 3), 0)
        assert last_step() == step + 3


@pytest.mark.slow
def test_torchrun_is_rejected_for_other_commands(here):
    _, stderr = ended(start(*TORCHRUN, "generate", "byte", module="torch.distributed.run"), 1)
    assert sum("without torchrun" in line for line in stderr) == 1


@pytest.mark.slow
def test_a_script_under_torchrun_may_train_twice(here):
    (here / "twice.py").write_text(
        "import txlcli\n"
        "txlcli.train('tiny.toml', txlcli.TrainOptions(name='first', max_steps=2), device='cpu')\n"
        "txlcli.train('tiny.toml', txlcli.TrainOptions(name='second', max_steps=3), device='cpu')\n"
    )
    ended(start("--standalone", "--nproc-per-node", 2, "twice.py", module="torch.distributed.run"), 0)
    assert [reports(f"runs/{name}")[-1]["step"] for name in ("first", "second")] == [2, 3]


@pytest.mark.slow
def test_processes_of_a_cluster_form_one_training(here, free_port):
    arguments = ["train", "tiny.toml", "--name", "two", *NOTHING_RANDOM]
    processes = start_ranks(arguments, arguments, port=free_port)
    written = [ended(process, 0) for process in processes]
    assert [len(stdout) > 0 for stdout, _ in written] == [True, False]
    trains_as_one("two")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (["--data-dir", "other"], "error: the train split (SHA-256) is "),
        (["--data-dir", "nowhere"], "error: rank 1 on "),
        (["--max-steps", "3"], "error: the option --max-steps is absent on rank 0 and 3 on rank 1 "),
    ],
)
def test_processes_that_differ_end_with_one_line(here, free_port, change, error):
    store = Path("other/novel.h5")
    store.parent.mkdir()
    Path("shorter.txt").write_text("the fox and the owl " * 300)
    done("prepare", "shorter.txt", "--name", "novel", "--tokenizer", "byte", "--data-dir", "other")
    arguments = ["train", "tiny.toml", *NOTHING_RANDOM]
    processes = start_ranks(arguments, [*arguments, *change], port=free_port)
    code = 1 if change[-1] == "nowhere" else 2
    lines = [line for process in processes for line in ended(process, code)[1] if line.startswith("error: ")]
    assert len(lines) == 1
    assert lines[0].startswith(error)
    assert not Path("runs/tiny").exists()


@pytest.mark.slow
def test_a_signal_at_another_rank_stops_and_saves_the_training(here, free_port):
    arguments = ["train", "tiny.toml", *ENDLESS, *NOTHING_RANDOM]
    processes = start_ranks(arguments, arguments, port=free_port)
    wait_for(lambda: Path("runs/tiny/metrics.jsonl").exists())
    processes[1].send_signal(signal.SIGTERM)
    _, stderr = ended(processes[0], 143)
    ended(processes[1], 143)
    assert stderr[-1].startswith("stopped; saved runs/tiny/last.safetensors at step ")
    done("train", "--resume", "tiny", "--set", "train.max_steps=1_000_001", "--max-minutes", "0.001")


@on_linux
@pytest.mark.parametrize("rank", [None, pytest.param(0, marks=pytest.mark.slow)])
def test_all_processes_end_with_their_launcher_or_rank_0(here, rank):
    process = start("train", "tiny.toml", *ENDLESS[:2], "--processes", 2, "--set", "train.valid_every=20")
    wait_for(LAST.exists)
    os.kill(process.pid if rank is None else processes_in(here)[rank], signal.SIGKILL)
    _, stderr = ended(process, -signal.SIGKILL if rank is None else 1)
    wait_for(lambda: not processes_in(here))
    assert any("process 0 was killed" in line for line in stderr) == (rank == 0)
    assert any("stopped; saved" in line for line in stderr) == (rank is None)


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, file):
        self.file = str(file)

    def __reduce__(self):
        return open, (self.file, "w")


def assert_only_this_machine_connects(pids):
    """Check that the processes listen on the loopback alone."""
    sockets = listening(pids)
    assert sockets  # the ranks exchange tensors
    assert {str(address) for address, _ in sockets if not address.is_loopback} == set()
    for address in network_addresses():
        for _, port in sockets:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, port), 5)


def write_pickle_to_store(environment, payload):
    """Write a pickle where the ranks and the launcher look for values when a rank has ended."""
    file = Path(environment["TXL_STORE"])
    assert file.parent.stat().st_mode & 0o777 == 0o700
    store = distributed.FileStore(str(file))
    run_id = environment["TORCHELASTIC_RUN_ID"]
    for key in (f"torch.rendezvous.{run_id}", "restart 0/note/0", "restart 0/note/1"):
        store.set(key, pickle.dumps(payload).decode("latin-1"))


@on_linux
@pytest.mark.parametrize(
    "parallel", ["ddp", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("zero", "fsdp"))]
)
def test_processes_of_one_machine_cannot_be_reached_run_no_pickle_and_die_with_the_last_checkpoint(here, parallel):
    done("train", "tiny.toml", *ENDLESS, *NOTHING_RANDOM, "--max-steps", 3)
    first = LAST.read_bytes()
    process = start("train", "--resume", "tiny", "--processes", 2, "--set", f"train.parallel={parallel}")
    wait_for(lambda: reports("runs/tiny")[-1]["step"] > 3)
    ranks = processes_in(here)
    assert_only_this_machine_connects([process.pid, *ranks.values()])
    write_pickle_to_store(environment_of(ranks[0]), Payload(here / "run by a pickle"))
    os.kill(ranks[1], signal.SIGKILL)  # rank 0 looks for its note, and the launcher reports why it ended
    _, stderr = ended(process, 1)
    wait_for(lambda: not processes_in(here))
    assert "process 1 was killed by signal 9" in error_of(stderr)
    assert LAST.read_bytes() == first
    assert not Path("run by a pickle").exists()


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize(("number", "code"), [(None, 1), (signal.SIGTERM, 143)])
def test_a_stopped_process_of_a_launcher_is_named_and_all_end_with_the_last_save(here, number, code):
    saves = ["--set", "train.save_minutes=0.01", "--set", "train.rank_timeout=4"]
    process = start("train", "tiny.toml", *ENDLESS, *NOTHING_RANDOM, *saves, "--processes", 2)
    wait_for(LAST.exists)
    ranks = processes_in(here)
    os.kill(ranks[1], signal.SIGSTOP)
    if number:
        process.send_signal(number)
    began = time.monotonic()
    _, stderr = ended(process, code)
    assert time.monotonic() - began < 4 + SECONDS_TO_EXPLAIN + 30  # other tests may run beside it
    wait_for(lambda: not processes_in(here))
    assert "rank 1 has ended or does not answer" in error_of(stderr)
    assert last_step() > 0


def test_more_processes_than_lanes_are_rejected_before_they_start(here):
    done("train", "tiny.toml", "--max-steps", 1)
    for what in (["tiny.toml", "--name", "many"], ["--resume", "tiny"]):
        assert "too small for 16 processes" in refusal("train", *what, "--processes", 16)
    assert not Path("runs/many").exists()


@pytest.mark.slow
@on_linux
def test_lost_processes_are_started_again_and_resume(here):
    steps = ["--set", "train.max_steps=90", "--set", "train.valid_every=30"]
    process = start("train", "tiny.toml", *steps, *NOTHING_RANDOM, "--processes", 2, "--restarts", 1)
    wait_for(LAST.exists)
    os.kill(processes_in(here)[1], signal.SIGKILL)
    _, stderr = ended(process, 0)
    assert sum("(restart 1)" in line for line in stderr) == 1
    resumed = next(line for line in stderr if line.startswith("resuming runs/tiny at step "))
    assert 30 <= int(resumed.split()[4]) < 90
    assert not Path("runs/tiny-2").exists()
    assert reports("runs/tiny")[-1]["step"] == 90


@pytest.mark.slow
@on_linux
def test_a_run_that_is_replaced_is_not_resumed_if_its_replacement_is_killed_before_its_first_save(here):
    steps = ["--set", "train.max_steps=900", "--set", "train.valid_every=900"]
    done("train", "tiny.toml", *steps, *NOTHING_RANDOM, "--max-steps", 3)
    process = start("train", "tiny.toml", *steps, *NOTHING_RANDOM, "--force", "--restarts", 1)
    wait_for(Path("runs/.tiny.replaced").exists)
    os.kill(processes_in(here)[0], signal.SIGKILL)
    _, stderr = ended(process, 0)
    assert sum("(restart 1)" in line for line in stderr) == 1
    assert not any(line.startswith("resuming") for line in stderr)
    assert reports("runs/tiny")[0]["step"] < 3
    assert names_in(Path("runs")).count("tiny-2") == 0


def test_a_name_that_is_taken_is_rejected_before_processes_that_may_restart(here):
    before = contents(here / "runs/byte")
    error = refusal("train", "tiny.toml", "--name", "byte", "--restarts", 1, code=1)
    assert error.startswith("runs/byte exists; choose another --name")
    assert contents(here / "runs/byte") == before


@pytest.mark.slow
@on_linux
def test_torchrun_restarts_a_training_on_fewer_machines(here, free_port):
    elastic = ["--nnodes", "1:2", "--nproc-per-node", 1, "--max-restarts", 1, "--rdzv-backend", "c10d", "--rdzv-id", 1]
    elastic += ["--rdzv-endpoint", f"localhost:{free_port}"]
    command = ["-m", "txlcli", "train", "tiny.toml", *NOTHING_RANDOM, "--name", "tiny", "--set", "train.max_steps=300"]
    left, lost = (
        start(*elastic, "--rdzv-conf", f"{RENDEZVOUS},is_host={is_host}", *command, module="torch.distributed.run")
        for is_host in (True, False)
    )
    wait_for(lambda: Path("runs/tiny/metrics.jsonl").exists() and len(processes_in(here)) == 2)
    lost.kill()
    _, stderr = ended(left, 0)
    lost.communicate()
    assert any(line.startswith("resuming runs/tiny at step ") for line in stderr)
    assert reports("runs/tiny")[-1]["step"] == 300


def test_a_dry_run_counts_the_memory_of_one_process(here):
    alone, one_of_two = (json_of("train", "tiny.toml", "--dry-run", "--processes", count) for count in (1, 2))
    assert (alone["processes"], one_of_two["processes"]) == (1, 2)
    memory = [plan["step_bytes"]["memory"] for plan in (alone, one_of_two)]
    assert memory[1] * 3 == memory[0] * 2  # the larger part of three lanes
    assert one_of_two["training_flops"] == alone["training_flops"]
