"""The help of all commands."""

import re

import pytest
import typer.main

from tests.commands.novel import done
from tests.test_cli import python
from txlcli.cli import app

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
    assert not re.search(r"<\w|x>=", result.stdout)  # Python types and ranges
    command = WITH_SUBCOMMANDS[name]
    assert command.help.splitlines()[0].endswith(".")
    assert f"Example: txl {name}" in result.stdout
    assert command.get_short_help_str(200) in " ".join(done(*group, "--help").stdout.split())
    help_of = {parameter.name: getattr(parameter, "help", None) for parameter in command.params}
    assert [option for option, text in help_of.items() if not text] == []


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("compress", "compress [OPTIONS] RUN FILE OUT"),
        ("eval", "eval [OPTIONS] [RUN]"),
        ("runs delete", "runs delete [OPTIONS] RUN..."),
        ("runs plot", "runs plot [OPTIONS] [RUN...]"),
    ],
)
def test_the_usage_has_brackets_around_arguments_that_may_be_left_out(name, usage):
    assert done(*name.split(), "--help").stdout.startswith(f"Usage: txl {usage}\n")


def test_every_command_but_quickstart_prints_json():
    groups = {name for name, command in COMMANDS.items() if getattr(command, "commands", {})}
    without = {
        name
        for name, command in WITH_SUBCOMMANDS.items()
        if name not in groups and not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == {"quickstart", "runs plot"}


@pytest.mark.parametrize("line", ["--help", "recipes", "recipes show lm1b", "runs", "runs compare byte char"])
def test_commands_that_need_no_model_import_nothing_heavy(here, line):
    script = f"""
import atexit, sys
atexit.register(lambda: print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr))
from txlcli.cli import app
app({line.split()!r})
"""
    ended = python("-c", script)
    assert (ended.returncode, ended.stderr) == (0, "[]\n")


@pytest.mark.parametrize("option", ["--quiet", "-q"])
def test_quiet_leaves_the_result_and_no_messages(here, option):
    quiet = done("eval", "word", "--mem-len", "0", "--positions", "20", option)
    assert quiet.stderr == ""
    assert "│ 0 " in quiet.stdout
    loud = done("eval", "word", "--mem-len", "0", "--positions", "20")
    assert loud.stderr.startswith("evaluating runs/word")


OWN_HELP = (
    "--at --attn-len --batch-size --format --list --max-minutes --mem-len --name --out --positions --precision "
    "--processes --seg-len --split --temperature --vocab"
)
"""Options that mean a different quantity or object in different commands, which their help names."""


def test_an_option_has_the_same_help_in_every_command():
    helps = {}
    for command in WITH_SUBCOMMANDS.values():
        for parameter in command.params:
            for option in (option for option in parameter.opts if option.startswith("--")):
                helps.setdefault(option, set()).add(parameter.help)
    assert " ".join(sorted(option for option, texts in helps.items() if len(texts) > 1)) == OWN_HELP


def test_names_with_terminal_escapes_are_shown_harmless(here):
    (here / "runs/word").rename(here / "runs/a\x1b[2Jb")
    for words in (("runs",), ("runs", "show", "a\x1b[2Jb")):
        shown = done(*words)
        assert "\x1b" not in shown.stdout + shown.stderr
        assert r"a\x1b[2Jb" in shown.stdout
