"""The tables and figures of the paper that can be made again, by the words of the command line."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from txlcli.errors import UnknownNameError
from txlcli.workflows.reproduction import ablations, benchmarks, looks, reach, samples, slowdown
from txlcli.workflows.reproduction.report import Section
from txlcli.workflows.reproduction.workshop import Workshop


@dataclass(frozen=True)
class Item:
    """One table or figure, or Appendix E."""

    models: tuple[str, ...]
    """The words of the models that must be trained for it."""
    make: Callable[[Workshop, Path], Section]
    """Makes it; figures go into the folder."""


def _benchmark(number: int) -> Item:
    return Item(benchmarks.models(number), lambda shop, _: benchmarks.make(shop, number))


def _reach(number: int) -> Item:
    return Item(reach.MODELS, lambda shop, folder: reach.figure(shop, number, folder))


def _attention(number: int) -> Item:
    return Item((looks.SUBJECT,), lambda shop, folder: looks.figure(shop, number, folder))


ITEMS: dict[str, Item] = {
    **{f"table{number}": _benchmark(number) for number in range(1, 6)},
    "table6": Item((*ablations.TABLE_6, ablations.STANDARD), ablations.table6),
    "table7": Item(ablations.TABLE_7, lambda shop, _: ablations.table7(shop)),
    "table8": Item(reach.MODELS, lambda shop, _: reach.table8(shop)),
    "table9": Item((), lambda shop, _: slowdown.table9(shop)),
    "table10": Item(ablations.TABLE_10, ablations.table10),
    **{f"figure{number}": _reach(number) for number in (3, 4)},
    **{f"figure{number}": _attention(number) for number in (5, 6, 7)},
    "appendix-e": Item((samples.SUBJECT,), lambda shop, _: samples.appendix_e(shop)),
}
ALL = "all"


def chosen(words: list[str]) -> list[str]:
    """The items that somebody asks for, in the paper's order.

    Raises:
        UnknownNameError: there is no such table or figure to make.
    """
    for word in words:
        if word not in ITEMS and word != ALL:
            raise UnknownNameError("table or figure", word, [*ITEMS, ALL])
    return [name for name in ITEMS if ALL in words or name in words]
