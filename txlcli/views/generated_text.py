"""Shows generated texts while they are sampled."""

from txlcli import console
from txlcli.workflows.generation import Generation


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


def _show_heading(text: str) -> None:
    console.show_text(f"--- {text} ---")
