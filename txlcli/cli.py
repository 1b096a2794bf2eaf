"""The command line: registers the commands, and turns exceptions into one line and an exit code."""

import contextlib
import errno
import functools
import inspect
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from txlcli import __version__, console
from txlcli.commands import (
    attention,
    compress,
    export,
    generate,
    import_run,
    info,
    prepare,
    quickstart,
    recipes,
    recl,
    reproduce,
    speed,
    train,
)
from txlcli.commands import eval as eval_
from txlcli.commands import runs as runs_
from txlcli.config import recipe
from txlcli.errors import DisagreementError, ReportedError, TxlError, UsageError, shortened
from txlcli.runs import recovery
from txlcli.suggestions import did_you_mean, meant_option
from txlcli.system import launcher, signals
from txlcli.system.memory import LESS, is_out_of_memory, requested_size

CTRL_C = 128 + signal.SIGINT
SECONDS_FOR_RANK_0 = 10.0
"""Time for rank 0 to report an error before another process reports it."""


class TxlCommand(TyperCommand):
    """A command with plain help, which has room for descriptions at 80 columns."""

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, **settings | {"rich_markup_mode": None})


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")]


def _with_quiet(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option --quiet, and recover interrupted runs before it begins."""

    @functools.wraps(command)
    def run(*, quiet: bool = False, **values: Any) -> None:
        console.set_quiet(quiet)
        if "runs_dir" in values and launcher.is_main():
            recovery.recover(values["runs_dir"], console.say)
        command(**values)

    signature = inspect.signature(command)
    option = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, "quiet": Quiet}
    return run


NEXT_STEPS = {
    errno.ENAMETOOLONG: "give a shorter path",
    errno.EACCES: "check the permissions of the file and of its folders",
    errno.EPERM: "check the permissions of the file and of its folders",
    errno.EROFS: "give a folder that can be written to",
    errno.EMFILE: 'allow more open files, as with "ulimit -n 1024"',
    errno.EIO: "check the disk",
    errno.ESTALE: "mount the disk again",
    errno.EDQUOT: "free some space",
}
"""Next step for each error of the system that concerns a file, whichever function meets it first."""


class TxlGroup(TyperGroup):
    """A command group whose errors are one line each: what, where, next step."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run a command line; always raises SystemExit with an exit code of txl."""
        if launcher.world_size() == 1:
            return self._main(args, prog_name, extra)
        try:
            self._main(args, prog_name, extra)
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            traceback.print_exc()
            code = TxlError.exit_code
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        # Exit without cleanup: destroying PyTorch's process groups can deadlock.
        os._exit(code if isinstance(code, int) else 0)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands in sections."""
        width = max(map(len, self.commands))
        for section, names in COMMANDS.items():
            with formatter.section(section):
                rows = [(name.ljust(width), self.commands[name].get_short_help_str(formatter.width)) for name in names]
                formatter.write_dl(rows)

    def _main(self, args: Sequence[str] | None, prog_name: str | None, extra: dict[str, Any]) -> Any:
        args = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        console.set_quiet(False)
        extra["obj"] = args
        try:
            with signals.raising():  # so that unfinished files are removed
                result = super().main(args=args, prog_name=prog_name or "txl", **extra)
            if result == CTRL_C:  # Typer turns KeyboardInterrupt into this result
                raise KeyboardInterrupt
        except TxlError as error:
            _complain_once(error)
            sys.exit(error.exit_code)
        except (KeyboardInterrupt, typer.Abort):
            console.complain("interrupted")
            sys.exit(CTRL_C)
        except signals.Terminated as ended:
            if launcher.is_main():  # which ends the others itself
                console.complain(signals.WORDS[signals.number_of(ended)])
            raise
        except typer.TyperException as error:
            console.complain(_explain(error))
            sys.exit(error.exit_code)
        except OSError as error:
            if error.errno in NEXT_STEPS and error.filename is not None:
                console.complain(
                    f"{shortened(os.fsdecode(error.filename))}: {error.strerror}; {NEXT_STEPS[error.errno]}"
                )
                sys.exit(TxlError.exit_code)
            if error.errno != errno.ENOSPC:
                raise
            console.give_up(sys.stdout)  # --help is written by the option parser
            console.complain(f"cannot write ({error.strerror}); free some space, or redirect the output elsewhere")
            sys.exit(TxlError.exit_code)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            console.complain(f"out of memory{requested_size(error)}; {LESS}")
            sys.exit(TxlError.exit_code)
        sys.exit(result if isinstance(result, int) else 0)


def _complain_once(error: TxlError) -> None:
    """Report an error; other processes than rank 0 wait, since it reports most errors of all and then ends them."""
    if isinstance(error, ReportedError):
        return  # at once: rank 0 waits until this process has ended
    if not launcher.is_main():
        time.sleep(SECONDS_FOR_RANK_0)
        if isinstance(error, DisagreementError):
            return
    console.complain(str(error))


def _explain(error: typer.TyperException) -> str:
    """Return an error of the option parser on one line, with what was probably meant."""
    context: typer.Context | None = getattr(error, "ctx", None)
    message = " ".join(str(error.message if hasattr(error, "option_name") else error.format_message()).split())
    message = message.rstrip(".").replace("Value error, ", "")
    if choice := re.search(r"'([^']*)' is not one of (.+)$", message):
        message += did_you_mean(choice[1], re.findall(r"'([^']*)'", choice[2]))
    if context is None:
        return message
    if option := re.match(r"No such option: (-\S*)", message):
        options = [
            name for parameter in context.command.params for name in (*parameter.opts, *parameter.secondary_opts)
        ]
        meant = meant_option(option[1], options, recipe.setting_names())
        message = f"unknown option {option[1]}" + (f"; did you mean {meant}?" if meant else "")
        if example := _option_of_a_command(option[1], context):
            return f'{option[1]} comes after the command: "{example} {option[1]}"'
    elif command := re.match(r"No such command '(.*)'$", message):
        known = context.command.list_commands(context) if isinstance(context.command, TyperGroup) else []
        message = f'unknown command "{command[1]}"' + did_you_mean(command[1], known)
        if "show" in known and not message.endswith("?"):
            message += f'; did you mean "{context.command_path} show {command[1]}"?'
    return f'{message}; see "{context.command_path} --help"'.replace("?; see", "? See")


def _option_of_a_command(option: str, context: typer.Context) -> str | None:
    """Return the command of a group to which an option belongs: the one on the command line, or the first."""
    if not isinstance(context.command, TyperGroup):
        return None
    having = [
        name
        for name, command in context.command.commands.items()
        if any(option in (*parameter.opts, *parameter.secondary_opts) for parameter in command.params)
    ]
    words = context.find_root().obj or []
    name = next((word for word in words if word in having), next(iter(having), None))
    return f"{context.command_path} {name}" if name else None


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


def _show_version(requested: bool) -> None:
    if requested:
        console.show_line(f"txl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        console.show_text(context.get_help() + "\n")
    elif launcher.place().world_size > 1 and context.invoked_subcommand not in ("train", "eval"):
        name = launcher.place().launcher
        raise UsageError(f"txl {context.invoked_subcommand} runs in one process; start it without {name}")


MAIN, ANALYSIS, FILES = "Main commands", "Analysis and the paper", "Recipes, weights and files"
COMMANDS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    MAIN: {
        "quickstart": quickstart.quickstart,
        "prepare": prepare.prepare,
        "train": train.train,
        "eval": eval_.evaluate,
        "speed": speed.speed,
        "generate": generate.generate,
        "runs": runs_.app,
        "info": info.info,
    },
    ANALYSIS: {
        "recl": recl.recl,
        "attention": attention.attention,
        "reproduce": reproduce.reproduce,
    },
    FILES: {
        "recipes": recipes.app,
        "import": import_run.import_run,
        "export": export.export,
        "compress": compress.compress,
        "decompress": compress.decompress,
    },
}
for commands in COMMANDS.values():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            for inner in command.registered_commands:
                inner.cls, inner.callback = TxlCommand, _with_quiet(cast(Callable[..., None], inner.callback))
            app.add_typer(command, name=name)
        else:
            app.command(name, cls=TxlCommand)(_with_quiet(command))
