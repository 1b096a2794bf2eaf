"""Options of `txl generate`, without PyTorch."""

from pathlib import Path
from typing import Annotated

from txlcli.config.ranges import NaturalInt, PositiveInt, PositiveShare, Range, Seed
from txlcli.config.train_settings import Compile
from txlcli.errors import UsageError
from txlcli.workflows.options import Options, compile_option, flag_option, force_option, option, seed_option

DEFAULT_CONTEXT = 512
DEFAULT_TOP_K = 40


class GenerateOptions(Options):
    """Options of `txl generate`: context and sampling of the texts."""

    prompt: str | None = option("Text to continue; - is stdin.", metavar="TEXT")
    prompt_ids: Path | None = option("Token ids to continue: a list in JSON, MidiTok's JSON, or .npy.", metavar="FILE")
    out: Path | None = option(
        "Write the ids of the context and of the generated tokens to this .json file, as MidiTok reads them.",
        writes=(".json",),
    )
    force: bool = force_option()
    at: NaturalInt | None = option("Last token of the context in the test split [default: random, by --seed].")
    context: PositiveInt | None = option(f"Tokens of context, at most [default: {DEFAULT_CONTEXT}].")
    tokens: PositiveInt = option("Tokens to generate.", default=500)
    samples: PositiveInt = option("Number of texts to generate.", default=1)
    top_k: NaturalInt | None = option(
        f"Sample from the k likeliest tokens; 0 is all [default: {DEFAULT_TOP_K}, or all with --top-p]."
    )
    top_p: PositiveShare | None = option("Sample from the likeliest tokens that reach this probability.")
    temperature: Annotated[float, Range(least=1e-3, most=1e3)] | None = option(
        "Below 1 prefers likely tokens; --greedy selects the likeliest [default: 1]."
    )
    greedy: bool = flag_option("Always select the likeliest token.")
    stop: tuple[str, ...] = option(
        "End a text before this one, and without it; repeatable. A line end is $'\\n' in the shell.",
        default=(),
        metavar="TEXT",
    )
    reference: bool = flag_option("Also print the context and its actual continuation in the test split.")
    compile: Compile | None = compile_option()
    seed: Seed = seed_option()

    def _check(self) -> None:
        if "" in self.stop:
            raise UsageError("`stop` is empty; give the text to stop at, or leave it out")
        if self.prompt is not None:
            self.exclude("at", "context", "reference", "prompt_ids", because="`prompt` is the whole context")
        if self.prompt_ids is not None:
            self.exclude("at", "context", "reference", because="`prompt_ids` is the whole context")
        if self.out is not None:
            self.exclude("stop", "reference", because="`out` receives ids, not text")
        elif self.force:
            raise UsageError("`force` replaces the file `out`; give that, or leave it out")
        if self.greedy:
            self.exclude("top_k", "top_p", "temperature", "samples", because="`greedy` does not sample")
