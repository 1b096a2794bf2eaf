"""Tables and figures of the paper that can be reproduced, by their name on the command line."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from txlcli.workflows.reproduction import ablations, benchmarks, frontier, recl, single_model
from txlcli.workflows.reproduction.runner import Runner
from txlcli.workflows.reproduction.section import Section


@dataclass(frozen=True)
class Item:
    """A table, a figure, or Appendix E."""

    parts: tuple[str, ...]
    """Models that it needs, by their part in the paper."""
    make: Callable[[Runner], Section]


ITEMS: dict[str, Item] = {
    **{f"table{n}": Item(benchmarks.parts(n), partial(benchmarks.table, number=n)) for n in range(1, 6)},
    "table6": Item((*ablations.TABLE_6, ablations.STANDARD), ablations.table6),
    "table7": Item(ablations.TABLE_7, ablations.table7),
    "table8": Item(recl.PARTS, recl.table8),
    "table9": Item((), single_model.table9),
    "table10": Item(ablations.TABLE_10, ablations.table10),
    **{f"figure{n}": Item(recl.PARTS, partial(recl.figure, number=n)) for n in (3, 4)},
    **{f"figure{n}": Item((single_model.PART,), partial(single_model.attention_figure, number=n)) for n in (5, 6, 7)},
    "appendix-e": Item((single_model.PART,), single_model.appendix_e),
    "frontier": Item(frontier.PARTS, frontier.frontier),
}
