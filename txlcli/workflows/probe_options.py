"""Options of `txl probe`, without PyTorch."""

from txlcli.config.ranges import AtLeastTwo, NaturalInt, PositiveInt, Seed
from txlcli.workflows.options import PlotOptions, Split, memory_option, option, seed_option


class ProbeOptions(PlotOptions):
    """Options of `txl probe`."""

    distances: tuple[AtLeastTwo, ...] | None = option(
        "Distances in tokens [default: powers of two, up to the first beyond L + M]."
    )
    texts: PositiveInt = option("Generated texts for each distance.", default=32)
    positions: PositiveInt = option("Score the words of the first N tokens of the split.", default=50_000)
    split: Split = option("Split with the words, and the tokens of the generated texts.", default="valid")
    mem_len: NaturalInt | None = memory_option()
    seed: Seed = seed_option()
