"""txl generate --interactive: prompts and texts in turn, with one memory."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands.novel import done, refusal
from txlcli.runs import run_directory
from txlcli.workflows.generate import Conversation, prepare
from txlcli.workflows.generate_options import GenerateOptions
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.workspace import Workspace

HERE = Workspace(data_dir=Path("data"), runs_dir=Path("runs"), device="cpu")


def conversation(*options, prompts):
    return done("generate", "byte", "--interactive", "--tokens", 20, *options, stdin=prompts)


def test_a_conversation_remembers_until_it_is_reset(here):
    once, again = conversation(prompts="the fox\nthe fox\n").stdout.rstrip("\n").split("\n", 1)
    assert once != again
    forgotten = conversation("--greedy", prompts="the fox\n/reset\nthe fox\n").stdout
    assert forgotten[: len(forgotten) // 2] == forgotten[len(forgotten) // 2 :]


def test_commands_are_not_prompts_and_a_path_is(here):
    quiet = conversation("--quiet", prompts="/help\n/restart\n/quit\nthe fox\n")
    assert quiet.stdout == ""
    known, unknown = quiet.stderr.splitlines()
    assert "/reset" in known
    assert unknown.startswith('unknown command "/restart"')
    assert conversation(prompts="/exit\nthe fox\n").stdout == ""
    assert conversation(prompts="/fox/the\n").stdout


def test_a_conversation_equals_one_text_with_the_same_tokens(here):
    talk = Conversation(
        HERE.open_run(run_directory.find("byte", HERE.runs_dir)), GenerateOptions(tokens=3, greedy=True), Reporter()
    )
    first, second = ("".join(talk.reply(prompt)) for prompt in ("the fox ", "over "))
    whole = GenerateOptions(prompt=f"the fox {first}over ", tokens=3, greedy=True)
    expected = prepare(run_directory.find("byte", HERE.runs_dir), whole, HERE)
    assert "".join(expected.spell(next(expected.samples()))) == second


@pytest.mark.parametrize(("run", "said"), [("byte", ""), ("word", "not UTF-8 at byte 4")])
def test_a_prompt_that_is_not_utf8_is_bytes_or_is_reported_and_the_next_one_is_read(here, run, said):
    command = [sys.executable, "-m", "txlcli", "generate", run, "--interactive", "--tokens", "3"]
    prompts = b"the \xff\nthe fox\n"
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    ended = subprocess.run(command, input=prompts, capture_output=True, check=False, env=environment)
    assert ended.returncode == 0
    assert said in ended.stderr.decode()
    assert ("error: " in ended.stderr.decode()) == bool(said)
    assert ended.stdout.strip()


@pytest.mark.parametrize("options", [["--prompt", "a"], ["--samples", "2"], ["--reference"], ["--at", "3"]])
def test_interactive_rejects_what_it_asks_for(here, options):
    assert f"leave out {options[0]}" in refusal("generate", "byte", "--interactive", *options)
    assert "leave out --interactive" in refusal("generate", "byte", "--interactive", "--json")


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_stops_a_text_and_not_the_program(here):
    command = [sys.executable, "-m", "txlcli", "generate", "byte", "--interactive", "--tokens", "100000000"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdin.write("the fox\n")
        process.stdin.flush()
        process.stdout.read(5)  # the text has begun
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        assert process.poll() is None
        process.stdin.write("/reset\n")
        process.stdin.close()
        process.stdout.read()
        assert "(stopped)" in process.stderr.read()
    assert process.returncode == 0
