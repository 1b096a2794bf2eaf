"""The help of all commands."""

import re

import pytest
import typer.main

from tests.commands.novel import done
from tests.test_cli import python
from txlcli.cli import app
from txlcli.corpora import CORPORA

HEAVY = {"torch", "h5py", "sentencepiece", "matplotlib", "pyarrow", "safetensors"}
COMMANDS = typer.main.get_command(app).commands
WITH_SUBCOMMANDS = COMMANDS | {
    f"{name} {inner}": command
    for name, group in COMMANDS.items()
    for inner, command in getattr(group, "commands", {}).items()
}


@pytest.mark.parametrize("name", WITH_SUBCOMMANDS)
def test_the_help_of_every_command_has_a_description_an_example_and_a_text_for_each_option(name):
    *group, _ = words = name.split()
    result = done(*words, "-h")
    assert result.stderr == ""
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert not re.search(r"<\w|x>=|`", result.stdout)  # Python types, ranges and names
    command = WITH_SUBCOMMANDS[name]
    assert command.help.splitlines()[0].endswith(".")
    assert f"Example: txl {name}" in result.stdout
    assert command.get_short_help_str(200) in " ".join(done(*group, "--help").stdout.split())
    help_of = {parameter.name: getattr(parameter, "help", None) for parameter in command.params}
    assert [option for option, text in help_of.items() if not text] == []


def test_the_help_of_prepare_lists_every_corpus():
    listed = " ".join(COMMANDS["prepare"].help.split()).partition("Own text")[0]
    assert set(CORPORA) <= set(re.findall(r"\w+", listed))


def test_every_command_but_quickstart_prints_json():
    groups = {name for name, command in COMMANDS.items() if getattr(command, "commands", {})}
    without = {
        name
        for name, command in WITH_SUBCOMMANDS.items()
        if name not in groups and not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == {"quickstart", "runs plot"}


def test_commands_that_need_no_model_import_nothing_heavy(here):
    script = f"""
import sys
from txlcli.cli import app
for line in ("--help", "recipes", "recipes show lm1b", "runs", "runs compare byte char"):
    try:
        app(line.split())
    except SystemExit as end:
        print(line, end.code, {HEAVY!r} & set(sys.modules), file=sys.stderr)
"""
    ended = python("-c", script)
    assert [line.endswith(" 0 set()") for line in ended.stderr.splitlines()] == [True] * 5, ended.stderr


def test_quiet_leaves_the_result_and_no_messages(here):
    quiet = done("eval", "word", "--mem-len", "0", "--positions", "20", "-q")
    assert quiet.stderr == ""
    assert "│ 0 " in quiet.stdout
    loud = done("eval", "word", "--mem-len", "0", "--positions", "20")
    assert loud.stderr.startswith("evaluating runs/word")
