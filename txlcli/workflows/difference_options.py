"""Options of `txl runs difference`, without PyTorch."""

from txlcli.config.ranges import NaturalInt, PositiveInt
from txlcli.errors import UsageError
from txlcli.workflows.options import Options, Split, option


class DifferenceOptions(Options):
    """Options of `txl runs difference`."""

    mem_len: tuple[NaturalInt, ...] | None = option(
        "Memory length M of both, or of each; of a file with windows alone, their length [default: the recipe's; of a "
        "file, the best]."
    )
    split: Split = option("Split on which runs are evaluated.", default="test")
    positions: PositiveInt | None = option("Score the first N tokens of the split only.")

    def _check(self) -> None:
        if self.mem_len is not None and len(self.mem_len) > 2:
            raise UsageError("`mem_len`: give one length for both, or two, one for each")
