"""`txl reproduce`: the paper's tables and figures, ours beside the paper's."""

import json as json_
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlcli import console
from txlcli.errors import RunError, TxlError, UsageError
from txlcli.options import DATA_DIR, RUNS_DIR, DataDir, Device, DeviceOption, Json, RunsDir
from txlcli.system import locks
from txlcli.system.atomic_files import replacing

if TYPE_CHECKING:
    from txlcli.workflows.reproduction.report import Section
    from txlcli.workflows.reproduction.scales import Scale
    from txlcli.workflows.reproduction.workshop import Workshop

MARK, LOCK = "reproduction.json", ".lock"


class ScaleName(StrEnum):
    """How large the models are."""

    tiny = "tiny"
    small = "small"
    paper = "paper"


def reproduce(
    item_names: Annotated[
        list[str] | None,
        typer.Argument(metavar="ITEM...", help="table1 to table10, figure3 to figure7, appendix-e, or all."),
    ] = None,
    scale: Annotated[
        ScaleName, typer.Option("--scale", help="tiny: minutes on two cores; small: one GPU; paper: as published.")
    ] = ScaleName.tiny,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Trainings of each model; numbers are averaged.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the report; reproduction-SCALE by default.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Say what each would cost, and make none.")] = False,
    device: DeviceOption = Device.auto,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Make the paper's tables and figures again.

    Prepares texts, trains and evaluates what is missing (finished runs and evaluations are used again, other runs go
    on), and writes report.md and report.html, our numbers beside the paper's.

    Example: txl reproduce table6
    """
    from txlcli.workflows.reproduction import items, scales
    from txlcli.workflows.reproduction.workshop import Workshop

    names = items.chosen(item_names or ([items.ALL] if listed else []))
    if not names:
        raise UsageError('reproduce what? Name a table or figure, e.g. "txl reproduce table6"; --list has all of them')
    size = scales.get(scale.value, ptb_is_here=(data_dir / "ptb.h5").is_file())
    if listed:
        _list(names, size, seeds, device, data_dir, runs_dir, json=json)
        return
    folder = out if out is not None else Path(f"reproduction-{scale.value}")
    _make_folder(folder)
    new_sections = []
    with locks.exclusive(folder / LOCK, f"another process writes into {folder}; wait for it, or give another --out"):
        by_name = _open_folder(folder, scale.value)
        shop = Workshop(size, seeds=seeds, device=device, data_dir=data_dir, runs_dir=runs_dir, folder=folder)
        for number, name in enumerate(names, 1):
            console.say(f"\n{name} ({number} of {len(names)}), {scale.value} scale")
            section = _make(shop, name, folder)
            new_sections.append(section)
            by_name[name] = section
            _write(folder, scale.value, by_name)  # after each, so that a stop costs one
    result = _as_result(folder, new_sections)
    if json:
        console.show_json(result)
    else:
        _show(folder, new_sections)


def _make(shop: "Workshop", name: str, folder: Path) -> "Section":
    import dataclasses

    from txlcli.workflows.reproduction.items import ITEMS

    with shop.noting() as notes:
        section = ITEMS[name].make(shop, folder)
    return dataclasses.replace(section, **dataclasses.asdict(notes), hardware=shop.machine)


def _make_folder(folder: Path) -> None:
    """Make the folder of a report, unless it is one."""
    if (folder / MARK).is_file():
        return
    held = [path for path in folder.iterdir() if path.name != LOCK] if folder.is_dir() else [folder]
    if folder.exists() and held:
        raise UsageError(f"{folder} exists and is no reproduction; give another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TxlError(f"{folder}: cannot be made ({error.strerror}); give another --out") from error


def _open_folder(folder: Path, scale: str) -> "dict[str, Section]":
    """What the folder's report says already; a new one begins with a report of nothing."""
    from txlcli.workflows.reproduction.report import Section

    path = folder / MARK
    if not path.is_file():
        _write(folder, scale, {})
        return {}
    try:
        stored = json_.loads(path.read_text(encoding="utf-8"))
        sections = {name: Section.from_table(table) for name, table in stored["sections"].items()}
        stored_scale = str(stored["scale"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path}: damaged, or of another version of txl ({error}); remove the folder, or give another --out"
        ) from error
    if stored_scale != scale:
        raise UsageError(f"{folder} holds a reproduction at {stored_scale} scale; give another --out")
    return sections


def _write(folder: Path, scale: str, by_name: "dict[str, Section]") -> None:
    """The report of everything made so far, in the paper's order."""
    from txlcli import __version__
    from txlcli.workflows.reproduction import report
    from txlcli.workflows.reproduction.items import ITEMS

    sections = [by_name[name] for name in ITEMS if name in by_name]
    title = f"Transformer-XL (Dai et al. 2019), reproduced at {scale} scale"
    footer = f"Made by txl {__version__}. The paper's numbers are those of its Tables 1 to 10."
    texts = {
        MARK: json_.dumps({"scale": scale, "sections": {name: one.to_table() for name, one in by_name.items()}}),
        "report.md": report.to_markdown(title, sections, footer),
        "report.html": report.to_html(title, sections, footer, folder),
    }
    try:
        for name, text in texts.items():
            with replacing(folder / name) as beside:
                beside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TxlError(f"{folder}: the report cannot be written ({error.strerror}); free some space") from error


def _as_result(folder: Path, new_sections: "list[Section]") -> dict[str, Any]:
    """The object that --json prints."""
    sections = {section.name: section.to_table() for section in new_sections}
    return {"report": [str(folder / "report.md"), str(folder / "report.html")], "sections": sections}


def _show(folder: Path, new_sections: "list[Section]") -> None:
    for section in new_sections:
        for grid in section.grids:
            console.show_table(section.title, grid.columns, grid.rows, grid.caption)
        for claim in section.claims:
            console.show_text(f"{claim.verdict}: {claim.text} ({claim.detail})")
        if section.grids or section.claims:
            console.show_text("")
    console.show_text(f"report: {folder / 'report.md'}, {folder / 'report.html'}")


def _list(
    names: list[str], size: "Scale", seeds: int, device: Device, data_dir: Path, runs_dir: Path, *, json: bool
) -> None:
    """What the trainings of each item take that are not there yet."""
    from txlcli.workflows.reproduction.costs import Costs

    costs = Costs(size, seeds=seeds, device=device, data_dir=data_dir, runs_dir=runs_dir)
    rows = [costs.of(name) for name in names]
    if json:
        console.show_json({"scale": size.name, "peak_flops_per_s": costs.peak, "items": rows})
        return
    from txlcli.views.forecast import duration

    lines = [
        [
            row["item"],
            f"{row['models']}",
            f"{row['missing']}",
            f"{row['training_flops']:.2g}",
            duration(row["seconds"]) if row["missing"] else "-",
        ]
        for row in rows
    ]
    caption = (
        f"{size.says}\nTime: of the trainings that are missing, at {costs.share:.0%} of the {costs.peak / 1e9:,.0f} "
        "GFLOP/s that a matrix product reached just now.\nModels that several items share count for each. Evaluation "
        "comes on top."
    )
    console.show_table(f"{size.name} scale", ("item", "trainings", "missing", "FLOP", "time"), lines, caption)
