"""Table 9: how much slower prediction is without memory."""

import itertools

from txlcli.paper import metrics, published
from txlcli.workflows.reproduction.report import Claim, Grid, Section
from txlcli.workflows.reproduction.workshop import Workshop

TIMED = "enwik8"


def table9(shop: Workshop) -> Section:
    """How much slower prediction is without memory."""
    result = shop.timed(TIMED)
    rows = [
        [
            f"{row['attn_len']:,}",
            f"{row['xl_ms_per_token']:.3f}",
            f"{row['vanilla_ms_per_token']:.1f}",
            metrics.format_ratio(row["slowdown"]),
            metrics.format_ratio(row["slowdown_batched"]),
            f"{row['paper_slowdown']:,}x" if row["paper_slowdown"] else "-",
        ]
        for row in result["slowdown"]
    ]
    columns = ["attention", "XL ms/token", "vanilla ms/token", "slowdown", "windows batched", "paper"]
    ordered = sorted(result["slowdown"], key=lambda row: row["attn_len"])
    grows = all(a["slowdown"] < b["slowdown"] for a, b in itertools.pairwise(ordered))
    told = ", ".join(f"{metrics.format_ratio(row['slowdown'])} at {row['attn_len']}" for row in ordered)
    return Section(
        name="table9",
        title=f"Table 9: {published.TABLE_9.title}",
        scale=shop.scale.name,
        notes=[
            f"The model of recipes/{TIMED}.toml with random weights, since speed does not depend on them. Vanilla: the "
            "same weights without memory, one window computed anew for every prediction; batched: as many windows at "
            "once as serve it best."
        ],
        grids=[Grid(columns, rows, f"{result['device']}, {result['precision']}, medians of {result['repeat']}.")],
        claims=[Claim("Vanilla falls behind further as attention grows", grows, told)],
        data={"slowdown": result["slowdown"]},
    )
