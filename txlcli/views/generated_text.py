"""Shows generated texts while they are sampled."""

import re
import sys

from txlcli import console
from txlcli.errors import TxlError, UsageError
from txlcli.system.input_files import MAX_SETTINGS
from txlcli.workflows.generation import Conversation, Generation

PROMPT = "> "
COMMANDS = {"/help": "lists these commands", "/reset": "forgets the text so far"}
COMMANDS_IN_A_LINE = (
    ", ".join(f"{command} {effect}" for command, effect in COMMANDS.items())
    + ", Ctrl-D ends; // at the beginning of a prompt stands for /"
)


def show(generation: Generation, *, raw: bool = False) -> None:
    """Write the texts to stdout, with the context and the reference if requested; `raw` as in `show_generated`."""
    context, options = generation.context, generation.options
    if options.reference:
        _show_heading(f"context ({context.title})")
        console.show_generated("".join(generation.spell(context.tokens)) + "\n", raw=raw)
    for number, tokens in enumerate(generation.samples(), 1):
        if options.reference or options.samples > 1:
            _show_heading("generation" if options.samples == 1 else f"generation {number} of {options.samples}")
        console.show_generated(context.prompt, raw=raw)
        try:
            for text in generation.spell(tokens, after=context.tokens[-1] if context.prompt else None):
                console.show_generated(text, raw=raw)
        finally:  # the line must end before an error message, or after Ctrl-C
            console.show_line("")
    if options.reference:
        _show_heading("reference")
        console.show_generated("".join(generation.spell(context.continuation)) + "\n", raw=raw)


def converse(conversation: Conversation, *, raw: bool = False) -> None:
    """Answer prompts from stdin until it ends; Ctrl-C stops a text, and at a prompt the program."""
    while True:
        try:
            prompt = _read_prompt()
        except EOFError:
            return
        if re.match("/[A-Za-z]", prompt):
            _obey(prompt.strip(), conversation)
            continue
        if not prompt:
            continue
        prompt = re.sub("^//(?=[A-Za-z])", "/", prompt)
        try:
            for text in conversation.reply(prompt):
                console.show_generated(text, raw=raw)
        except KeyboardInterrupt:
            console.say(" (stopped)")
        except TxlError as error:
            console.complain(str(error))
        console.show_line("")


def _obey(command: str, conversation: Conversation) -> None:
    """Carry out a command, or say which commands there are."""
    if command == "/reset":
        conversation.reset()
    elif command == "/help":
        console.answer(COMMANDS_IN_A_LINE)
    else:
        console.complain(f"unknown command {command.split(maxsplit=1)[0]}: {COMMANDS_IN_A_LINE}")


def _read_prompt() -> str:
    """Read one line from stdin.

    Raises:
        EOFError: stdin has ended.
        UsageError: the line is too long.
    """
    if sys.stdin.isatty():
        return input(PROMPT)
    line = sys.stdin.readline(MAX_SETTINGS + 1)
    if not line:
        raise EOFError
    if len(line) > MAX_SETTINGS:
        raise UsageError(f"stdin: a prompt of more than {MAX_SETTINGS:,} characters; give a shorter one")
    return line.removesuffix("\n")


def _show_heading(text: str) -> None:
    console.show_line(f"--- {text} ---")
