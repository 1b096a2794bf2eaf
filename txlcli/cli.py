"""The command line: registers the commands, and turns exceptions into one line and an exit code."""

import contextlib
import errno
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from txlcli import __version__, console
from txlcli.commands import (
    attention,
    compress,
    exchange,
    generate,
    info,
    prepare,
    probe,
    quickstart,
    recipes,
    recl,
    reproduce,
    runs,
    speed,
    train,
)
from txlcli.commands import eval as eval_
from txlcli.commands.options import with_options
from txlcli.config import recipe
from txlcli.errors import DisagreementError, ReportedError, TxlError, UsageError, shortened
from txlcli.suggestions import did_you_mean, meant_option
from txlcli.system import launcher, signals
from txlcli.system.memory import LESS, is_out_of_memory, requested_size

CTRL_C = 128 + signal.SIGINT
CLOSED_PIPE = 128 + signal.SIGPIPE
"""Exit code if the reader of stdout has left, as of other programs: `txl recipes keys | head -1`."""
SECONDS_FOR_RANK_0 = 10.0
"""Time for rank 0 to report an error before another process reports it."""
FILE_ERRORS = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EDQUOT, errno.ENOSPC)
"""Errors of the system that concern a file, whichever function meets it first."""


class TxlGroup(TyperGroup):
    """A command group whose errors are one line each: what, where, next step."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run a command line; always raises SystemExit with an exit code of txl, but for a bug."""
        console.set_quiet(False)
        signals.explain_end("")
        if args is None:
            args = sys.argv[1:]
        words = list(args)  # also for commands that start processes of the same line
        try:
            options = extra | {"standalone_mode": False, "obj": words}
            with signals.raising():  # so that unfinished files are removed
                code = super().main(words, prog_name or "txl", **options)
            if code == CTRL_C:  # Typer turns KeyboardInterrupt into this result
                raise KeyboardInterrupt
        except BaseException as error:
            code = _report(error)
            if code is None and launcher.place_or_alone().world_size == 1:
                raise
            if code is None:
                traceback.print_exc()
                code = TxlError.exit_code
        if not isinstance(code, int):
            code = 0
        if launcher.place_or_alone().world_size > 1:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(code)  # without cleanup: destroying PyTorch's process groups can deadlock
        sys.exit(code)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands in sections."""
        width = max(map(len, self.commands))
        for section, names in COMMANDS.items():
            with formatter.section(section):
                rows = []
                for name in names:
                    text = self.commands[name].get_short_help_str(formatter.width)
                    rows.append((name.ljust(width), text))
                formatter.write_dl(rows)


def help_record(parameter: Any, context: Any) -> tuple[str, str] | None:
    """Return the name and the help text of a parameter, without Python types; None if it is hidden."""
    record = parameter.get_help_record(context)
    if record is None:
        return None
    name, text = record
    if parameter.param_type_name == "argument":
        name = parameter.metavar
    return name, text.replace("x>=", "at least ")


class TxlCommand(TyperCommand):
    """A command with plain help, which rejects empty arguments, and an option of one value that is given twice."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line; an argument in brackets may be left out."""
        words = ["[OPTIONS]"]
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                word = str(parameter.metavar)
                if not parameter.required:
                    word = f"[{word}]"
                words.append(word)
        return words

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List the arguments and the options."""
        for heading, kind in (("Arguments", "argument"), ("Options", "option")):
            parameters = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == kind]
            records = [help_record(parameter, ctx) for parameter in parameters]
            if any(records):
                with formatter.section(heading):
                    formatter.write_dl([record for record in records if record])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; the parser alone would forget the first of two values."""
        if not ctx.resilient_parsing:
            values, _, order = self.make_parser(ctx).parse_args(args=list(args))
            for parameter in order:
                is_option = parameter.param_type_name == "option"
                name = parameter.opts[0] if is_option else parameter.metavar
                given = values[parameter.name]
                # An unset variable of a shell gives an empty word; Path("") would be the present folder.
                if given == "" or (isinstance(given, list | tuple) and "" in given):
                    remedy = "give a value, or leave it out" if is_option else "give a value"
                    raise UsageError(f"{name} is empty; {remedy}")
                is_switch = getattr(parameter, "is_flag", False) and not parameter.secondary_opts
                takes_one = is_option and not (parameter.multiple or is_switch)
                if takes_one and order.count(parameter) > 1:
                    raise UsageError(f"{name} is given twice, and takes one value; leave out one of them")
        return super().parse_args(ctx, args)


def _report(error: BaseException) -> int | None:
    """Report an error on one line and return the exit code; None for a bug."""
    if isinstance(error, TxlError):
        _complain_once(error)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort | signals.Terminated):
        number = signals.number_of(error)
        if launcher.is_main() or not isinstance(error, signals.Terminated):  # rank 0 ends the others itself
            console.warn(signals.last_line(number))
        return 128 + number
    if isinstance(error, SystemExit):
        if isinstance(error.__context__, BrokenPipeError):
            return CLOSED_PIPE
        return error.code if isinstance(error.code, int) else 0
    message = _message_of(error)
    if message is None:
        return None
    console.complain(message)
    return error.exit_code if isinstance(error, typer.TyperException) else TxlError.exit_code


def _message_of(error: BaseException) -> str | None:
    """Return the line that explains an error of the option parser, the system or the device; None for a bug."""
    if isinstance(error, typer.TyperException):
        return _explain(error)
    if isinstance(error, OSError) and error.errno in FILE_ERRORS:
        where = "cannot read or write"
        if error.filename is not None:
            where = shortened(os.fsdecode(error.filename))
        return f"{where}: {error.strerror}; check the path, its permissions and the free space"
    if isinstance(error, TypeError | NotImplementedError) and "MPS" in str(error):
        return f"Apple's GPU lacks an operation ({str(error).strip().partition('. ')[0]}); use --device cpu"
    if is_out_of_memory(error):
        return f"out of memory{requested_size(error)}; {LESS}"
    return None


def _complain_once(error: TxlError) -> None:
    """Report an error; other processes than rank 0 wait, since it reports most errors of all and then ends them."""
    if isinstance(error, ReportedError):
        return  # at once: rank 0 waits until this process has ended
    if not launcher.is_main():
        time.sleep(SECONDS_FOR_RANK_0)
        if isinstance(error, DisagreementError):
            return
    if error.exit_code - 128 in signals.WORDS:  # a signal is not an error
        console.warn(str(error))
    else:
        console.complain(str(error))


def _explain(error: typer.TyperException) -> str:
    """Return an error of the option parser on one line, with what was probably meant."""
    context: typer.Context | None = getattr(error, "ctx", None)
    text = str(error.message) if hasattr(error, "option_name") else error.format_message()
    message = " ".join(text.split()).rstrip(".").replace("Value error, ", "")  # a prefix of the option parser
    choice = re.search(r"'([^']*)' is not one of (.+)$", message)
    option = re.match(r"No such option: (-\S*)", message)
    command = re.match(r"No such command '(.*)'$", message)
    extra = re.match(r"Got unexpected extra argument", message)
    if choice:
        message += did_you_mean(choice[1], re.findall(r"'([^']*)'", choice[2]))
    if context is None:
        return message
    if option:
        message = _unknown_option(option[1], context)
    elif command:
        message = _unknown_command(command[1], context)
    elif extra:
        message += _several_values(context)
    see = "; see"
    if message.endswith("?"):
        see = " See"
    return f'{message}{see} "{context.command_path} --help"'


def _unknown_option(option: str, context: typer.Context) -> str:
    for command in _commands_of(context).values():
        if option in _options_of(command):
            return f'{option} comes after the command: "{context.command_path} COMMAND {option}"'
    meant = meant_option(option, _options_of(context.command), recipe.setting_names())
    if meant is None:
        return f"unknown option {option}"
    return f"unknown option {option}; did you mean {meant}?"


def _unknown_command(command: str, context: typer.Context) -> str:
    commands = _commands_of(context)
    for name, group in commands.items():
        if isinstance(group, TyperGroup) and command in group.commands:
            return f'unknown command "{command}"; did you mean "{context.command_path} {name} {command}"?'
    suggestion = did_you_mean(command, commands)
    if command == "list":
        suggestion = f'; "{context.command_path}" alone lists all'
    elif not suggestion and "show" in commands:
        suggestion = f'; did you mean "{context.command_path} show {command}"?'
    return f'unknown command "{command}"{suggestion}'


def _several_values(context: typer.Context) -> str:
    """Return how several values of an option are written, if one that takes several was given."""
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if not value or parameter.param_type_name != "option":
            continue
        option = parameter.opts[0]
        if getattr(parameter, "multiple", False):
            return f"; for several values, repeat {option}"
        if "," in str(parameter.metavar):
            return f"; several values of {option} are separated by commas"
    return ""


def _commands_of(context: typer.Context) -> Mapping[str, Any]:
    if isinstance(context.command, TyperGroup):
        return context.command.commands
    return {}


def _options_of(command: Any) -> list[str]:
    names = []
    for parameter in command.params:
        names += [*parameter.opts, *parameter.secondary_opts]
    return names


app = typer.Typer(
    cls=TxlGroup,
    invoke_without_command=True,
    suggest_commands=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes take a tenth of a second: Rich's Markdown is loaded for them
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Transformer-XL (Dai et al. 2019): prepare a corpus, train, evaluate, measure speed, generate text.\n\n"
    'Start with "txl quickstart": it does all of this with Python source files of this machine.',
)


@app.callback()
def _root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        console.show_line(f"txl {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        console.show_text(context.get_help() + "\n")
    elif launcher.place().world_size > 1 and context.invoked_subcommand not in ("train", "eval"):
        raise UsageError(f"txl {context.invoked_subcommand} runs in one process; start it without torchrun")


COMMANDS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Main commands": {
        "quickstart": quickstart.quickstart,
        "prepare": prepare.prepare,
        "train": train.train,
        "eval": eval_.evaluate,
        "speed": speed.speed,
        "generate": generate.generate,
        "runs": runs.app,
        "info": info.info,
    },
    "Analysis and the paper": {
        "recl": recl.recl,
        "attention": attention.attention,
        "probe": probe.probe,
        "reproduce": reproduce.reproduce,
    },
    "Recipes, weights and files": {
        "recipes": recipes.app,
        "import": exchange.import_run,
        "export": exchange.export,
        "compress": compress.compress,
        "decompress": compress.decompress,
    },
}
for commands in COMMANDS.values():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            for inner in command.registered_commands:
                inner.callback = with_options(cast(Callable[..., None], inner.callback))
                inner.cls = TxlCommand
            app.add_typer(command, name=name)
        else:
            app.command(name, cls=TxlCommand)(with_options(command))
