"""Options of `txl speed`, without PyTorch."""

from txlcli.config.ranges import AtLeastTwo, PositiveInt
from txlcli.config.train_settings import Compile
from txlcli.paper.published import SLOWDOWN_BY_ATTN_LEN
from txlcli.workflows.options import PlotOptions, check_given_once, compile_option, option, overrides_option


class SpeedOptions(PlotOptions):
    """Options of `txl speed`."""

    attn_len: tuple[AtLeastTwo, ...] | None = option(
        f"Attention lengths to compare at [default: {','.join(map(str, SLOWDOWN_BY_ATTN_LEN))}, or the longest that "
        "the model allows]."
    )
    repeat: PositiveInt = option("Repetitions; the table shows the median.", default=3)
    compile: Compile | None = compile_option()
    overrides: tuple[str, ...] = overrides_option()

    def _check(self) -> None:
        check_given_once(self.overrides)
