"""Options of `txl compress` and `txl decompress`, without PyTorch."""

from typing import Annotated

from txlcli.config.ranges import NaturalInt, Range
from txlcli.workflows.options import Options, flag_option, force_option, memory_option, option


class DecompressOptions(Options):
    """Options of `txl decompress`."""

    force: bool = force_option()


class CompressOptions(DecompressOptions):
    """Options of `txl compress`."""

    mem_len: NaturalInt | None = memory_option()
    lanes: Annotated[int, Range(least=1, most=4096)] | None = option(
        "Parts coded side by side; more are faster and larger [default: one per 8 KiB, at most 64]."
    )
    portable: bool = flag_option(
        "Use arithmetic that any processor repeats to the bit, to restore the file elsewhere; slower."
    )
