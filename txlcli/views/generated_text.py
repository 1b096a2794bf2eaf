"""Shows generated texts while they are sampled."""

import sys

from txlcli import console
from txlcli.errors import TxlError
from txlcli.workflows.generation import Conversation, Generation

PROMPT = "> "


def show(generation: Generation) -> None:
    """Write the texts to stdout, with the context and the reference if requested."""
    context, options = generation.context, generation.options
    if options.reference:
        _show_heading(f"context ({context.title})")
        console.show_text("".join(generation.spell(context.tokens)))
    for number, tokens in enumerate(generation.samples(), 1):
        if options.reference or options.samples > 1:
            _show_heading("generation" if options.samples == 1 else f"generation {number} of {options.samples}")
        console.show_text(context.prompt, end="")
        try:
            for text in generation.spell(tokens, after=context.tokens[-1] if context.prompt else None):
                console.show_text(text, end="")
        finally:  # the line must end before an error message, or after Ctrl-C
            console.show_text("")
    if options.reference:
        _show_heading("reference")
        console.show_text("".join(generation.spell(context.continuation)))


def converse(conversation: Conversation) -> None:
    """Answer prompts from stdin until it ends; Ctrl-C stops a text, and at a prompt the program."""
    while True:
        try:
            prompt = input(PROMPT if sys.stdin.isatty() else "")
        except EOFError:
            return
        if prompt.strip() == "/reset":
            conversation.reset()
            continue
        if not prompt:
            continue
        try:
            for text in conversation.reply(prompt):
                console.show_text(text, end="")
        except KeyboardInterrupt:
            console.say(" (stopped)")
        except TxlError as error:
            console.complain(str(error))
        console.show_text("")


def _show_heading(text: str) -> None:
    console.show_text(f"--- {text} ---")
