"""`txl attention`: where the heads of a run look (Appendix D, Figures 5 to 7)."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from txlcli import console
from txlcli.config.encodings import ENCODINGS
from txlcli.errors import UnknownNameError, UsageError
from txlcli.options import (
    DATA_DIR,
    RUNS_DIR,
    DataDir,
    Device,
    DeviceOption,
    Force,
    Json,
    PrecisionOption,
    RunsDir,
    Seed,
    Unfinished,
)
from txlcli.runs import history, run_folder
from txlcli.views.attention_result import Head
from txlcli.workflows import attention as attention_workflow
from txlcli.workflows.attention import FIGURES, AttentionWishes

FOLDER = "figures"


class Format(StrEnum):
    """The format of figures."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


def attention(
    run_name: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run; the newest by default.")] = None,
    figure: Annotated[
        str, typer.Option("--figure", metavar="5,6,7|all", help="Figures of the paper; all that the model has.")
    ] = "all",
    heads: Annotated[
        str | None,
        typer.Option("--heads", metavar="LAYER.HEAD,...", help="Heads of Figure 6, from 1.1 on."),
    ] = None,
    auto: Annotated[
        int | None,
        typer.Option("--auto", metavar="N", min=1, help="The N heads of the widest attention instead; 3 by default."),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option("--at", min=0, help="Token of the split that Figure 6 begins with; random by --seed."),
    ] = None,
    positions: Annotated[
        int | None, typer.Option("--positions", metavar="N", min=1, help="Tokens to average over; 5,000 by default.")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="train, valid (the default) or test.")] = "valid",
    mem_len: Annotated[int | None, typer.Option("--mem-len", min=0, help="Memory length M; the recipe's.")] = None,
    seg_len: Annotated[int | None, typer.Option("--seg-len", min=1, help="Segment length L; the recipe's.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where the figures go; RUN/figures by default.")
    ] = None,
    kind: Annotated[Format, typer.Option("--format", help="Format of the figures.")] = Format.png,
    unfinished: Unfinished = False,
    force: Force = False,
    seed: Seed = 1111,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Draw where the heads of a run look.

    Figure 5 of the paper is the attention of all heads by distance, Figure 6 that of chosen heads to a piece of text,
    Figure 7 what the terms (a), (b) and (d) of the score would give alone. A head's width is the number of distances
    that its average attention spreads over.

    Example: txl attention --heads 2.3,4.1 --out figures
    """
    from corpora.corpus import SPLITS
    from txlcli.runs import loading

    if split not in SPLITS:
        raise UnknownNameError("split", split, SPLITS)
    if heads is not None and auto is not None:
        raise UsageError("--heads names the heads that --auto would choose; leave out one of them")
    figures = _parse_figures(figure)
    given = [option for option, value in {"--heads": heads, "--auto": auto, "--at": at}.items() if value is not None]
    if given and figures and 6 not in figures:
        raise UsageError(f"{given[0]} is about Figure 6; leave it out, or add 6 to --figure {figure}")
    wishes = AttentionWishes(
        figures=figures,
        heads=_parse_heads(heads) if heads is not None else (),
        widest=auto,
        split=split,
        positions=positions,
        at=at,
        seed=seed,
        mem_len=mem_len,
        seg_len=seg_len,
    )
    if not unfinished:
        history.check_finished(run_folder.find(run_name, runs_dir))
    opened = loading.open_run(run_name, runs_dir, device=device.value, precision=precision.value if precision else None)
    folder = opened.run.folder / FOLDER if out is None else out
    result = attention_workflow.make(
        opened, wishes, folder=folder, ending=kind.value, force=force, data_dir=data_dir, shown=not json
    )
    if json:
        console.show_json(result)
    else:
        show(result)


def _parse_figures(text: str) -> tuple[int, ...] | None:
    """`5,7` -> (5, 7); None is all."""
    if text == "all":
        return None
    known = {str(number): number for number in FIGURES}
    parts = text.split(",")
    if not all(part in known for part in parts):
        raise UsageError(f'--figure {text}: write 5, 6 or 7, several like 5,6, or "all"')
    return tuple(sorted({known[part] for part in parts}))


def _parse_heads(text: str) -> tuple[Head, ...]:
    """`2.3,5.10` -> (2, 3), (5, 10), each once, in the order given."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)\.(\d+)", part)
        if match is None:
            raise UsageError(f"--heads {text}: {part!r} is no head; write layer.head, both from 1, like 2.3,5.1")
        found.append((int(match[1]), int(match[2])))
    return tuple(dict.fromkeys(found))


def show(result: dict[str, Any]) -> None:
    """Write the table to stdout."""
    rows = []
    for layer in dict.fromkeys(head["layer"] for head in result["heads"]):
        heads = [head for head in result["heads"] if head["layer"] == layer]
        widest = max(heads, key=lambda head: head["width_tokens"])
        rows.append(
            [
                str(layer),
                f"{_mean(heads, 'mean_distance_tokens'):,.1f}",
                f"{_mean(heads, 'entropy_nats'):.2f}",
                f"{_mean(heads, 'memory_share'):.1%}",
                f"{layer}.{widest['head']}",
                f"{widest['width_tokens']:,.1f}",
            ]
        )
    columns = ["layer", "mean distance", "entropy (nats)", "in memory", "widest head", "width"]
    title = f"Attention of {result['run']} on {result['text']}, {result['positions']:,} tokens"
    console.show_table(title, columns, rows, caption=_caption(result))


def _mean(heads: list[dict[str, Any]], key: str) -> float:
    return sum(head[key] for head in heads) / len(heads)


def _caption(result: dict[str, Any]) -> str:
    traits = ENCODINGS[result["position"]]
    far = f"max_distance = {result['max_distance']}, " if traits.scores_distances else ""
    said = [
        f"L = {result['seg_len']}, M = {result['mem_len']}, up to {result['attn_len_max']:,} keys per query, "
        f"same_length = {result['same_length']}, {far}{result['precision']}.",
        "Means over a layer's heads. Distances and widths in tokens; width: distances that a head's average attention",
        "spreads over (exp of its entropy); in memory: share of the attention that leaves the segment.",
    ]
    if result["figure6"] is not None:
        shown = ", ".join(f"{head['layer']}.{head['head']}" for head in result["figure6"]["heads"])
        said.append(f"Figure 6: heads {shown} from token {result['figure6']['at']:,} on.")
    if result["figure7"] is not None and "d" not in result["figure7"]:
        said.append("Figure 7: terms (a) and (b) only; this encoding has no biases u and v, so no (c) and (d).")
    if not traits.score_terms:
        said.append(f'Figure 7: none; position = "{result["position"]}" scores by term (a) alone.')
    return "\n".join(said)
