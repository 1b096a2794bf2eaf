"""txl beside Hugging Face's TransfoXL in one run: times, memory, shares of the matrix-product peak.

python -m tests.benchmarks.peer [--rows training,eval10] [--repeat 5] [--quick] [--json]

Needs the extra "peer" and Linux. The contestants take turns (A, B, C, A, B, C, ...), so that whatever else the machine
does meets all of them; a ratio is the median of the ratios within one turn. The peer runs in fp32 only: it has no
usable bf16, so what txl does in bf16 is compared with the peer's fp32, too. It prints a table and judges nothing.
"""

import gc
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Annotated

import torch
import typer

from txlcli import console
from txlcli.core.measures.cost import decoding_flops_per_token, training_flops_per_token
from txlcli.core.measures.timing import peak_flops_per_s

CPU = torch.device("cpu")
PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Contestant:
    work: object
    """Called without arguments."""
    tokens: int
    """That one call handles."""

    def seconds_per_token(self):
        started = time.perf_counter()
        self.work()
        return (time.perf_counter() - started) / self.tokens


def take_turns(contestants, repeat):
    """Seconds per token of each contestant and the peak of the matrix product by precision, turn by turn."""
    for contestant in contestants.values():
        contestant.work()  # to warm up
    turns, peaks = [], []
    for _ in range(repeat):
        turns.append({name: contestant.seconds_per_token() for name, contestant in contestants.items()})
        peaks.append({precision: peak_flops_per_s(CPU, precision, repeat=2) for precision in PRECISIONS})
    return turns, peaks


def steps(work):
    """The contestants of a training step, and the operations of a token."""
    from tests.benchmarks import contestants as made

    theirs = made.peer_model(work, training=True)
    model = made.our_model(theirs, work, training=True)
    our_step, peer_step = made.our_step(model, work), made.peer_step(theirs, work)
    tokens = work.batch_size * work.seg_len
    found = {precision: Contestant(lambda p=precision: our_step(p), tokens) for precision in PRECISIONS}
    flops = training_flops_per_token(
        model.settings, work.vocab_size, seg_len=work.seg_len, mem_len=work.mem_len, batch_size=work.batch_size
    )
    return {**found, "peer": Contestant(peer_step, tokens)}, flops, {}


def readings(work):
    """The contestants of an evaluation, the operations of a token, how far what they find differs."""
    from tests.benchmarks import contestants as made

    theirs = made.peer_model(work, training=False)
    model = made.our_model(theirs, work, training=False)
    readers = {precision: made.OurReading(model, work, precision) for precision in PRECISIONS}
    readers["peer"] = made.PeerReading(theirs, work)
    expected = readers["peer"].first()
    differences = {
        precision: float((readers[precision].first().flatten() - expected.flatten()).abs().max())
        for precision in PRECISIONS
    }
    found = {name: _reading(reader, work.batch_size * work.seg_len) for name, reader in readers.items()}
    flops = decoding_flops_per_token(model.settings, work.vocab_size, keys=work.mem_len, max_distance=work.max_distance)
    return found, flops, differences


def _reading(reader, tokens):
    def work():
        for _ in range(reader.segments):
            reader.segment()

    return Contestant(work, reader.segments * tokens)


def measure_time(row, repeat):
    contestants, flops, differences = (steps if row.kind == "step" else readings)(row.work)
    turns, peaks = take_turns(contestants, repeat)
    del contestants
    gc.collect()
    for precision in PRECISIONS:
        ratios = [turn["peer"] / turn[precision] for turn in turns]
        shares = [flops / turn[precision] / peak[precision] for turn, peak in zip(turns, peaks, strict=True)]
        yield {
            "precision": precision,
            "txl_ms_per_token": 1e3 * statistics.median(turn[precision] for turn in turns),
            "peer_ms_per_token": 1e3 * statistics.median(turn["peer"] for turn in turns),
            **_spread(ratios),
            "target": row.targets.get(precision),
            "share_of_peak": statistics.median(shares),
            "share_target": row.shares.get(precision),
            "peak_gflops_per_s": statistics.median(peak[precision] for peak in peaks) / 1e9,
            "largest_difference_nats": differences.get(precision),
        }


def measure_memory(name, row, repeat, *, quick):
    from tests.benchmarks import memory

    turns = []
    for _ in range(repeat):
        pairs = {precision: memory.measure(name, "txl", precision, quick=quick) for precision in PRECISIONS}
        pairs["peer"] = memory.measure(name, "peer", "fp32", quick=quick)
        turns.append(pairs)
    for precision in PRECISIONS:
        grown = [{who: peak - before for who, (before, peak) in pairs.items()} for pairs in turns]
        yield {
            "precision": precision,
            "txl_bytes": statistics.median(one[precision] for one in grown),
            "peer_bytes": statistics.median(one["peer"] for one in grown),
            "txl_process_bytes": statistics.median(pairs[precision][1] for pairs in turns),
            "peer_process_bytes": statistics.median(pairs["peer"][1] for pairs in turns),
            **_spread([one[precision] / one["peer"] for one in grown]),
            "target": row.targets.get(precision),
        }


def _spread(ratios):
    return {"ratio": statistics.median(ratios), "ratio_low_high": [min(ratios), max(ratios)]}


def show(results, *, repeat, quick):
    lines = []
    for result in results:
        low, high = result["ratio_low_high"]
        timed = "txl_bytes" not in result
        ours, theirs = (
            f"{result[f'{who}_ms_per_token']:.3g} ms" if timed else f"{result[f'{who}_bytes'] / 2**20:,.0f} MiB"
            for who in ("txl", "peer")
        )
        lines.append(
            [
                result["title"],
                result["precision"],
                ours,
                theirs,
                f"{result['ratio']:.2f}x ({low:.2f}-{high:.2f})",
                "-" if result["target"] is None else f"{'>=' if timed else '<='} {result['target']:g}x",
                f"{result['share_of_peak']:.1%}" if timed else "-",
                f">= {result['share_target']:.0%}" if result.get("share_target") else "-",
            ]
        )
    notes = [
        "ms: per token. MiB: the most that two steps held above what the model held before.",
        f"Median (lowest-highest) of {repeat} turns; the peer in fp32 throughout, since it has no usable bf16.",
        "of peak: operations by formula over a 2048 x 2048 matrix product of the same precision in each turn.",
    ]
    headings = ("work", "precision", "txl", "peer", "ratio", "target", "of peak", "target")
    title = "small models: the numbers mean nothing" if quick else "txl and Hugging Face's TransfoXL 4.36.2"
    console.show_table(f"{title}, {torch.get_num_threads()} threads", headings, lines, notes, verbose=True)


def main(
    rows: Annotated[str | None, typer.Option(help="Which, divided by commas; all by default.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Turns of each row.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Small models: shows whether the comparison runs.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Measure txl beside Hugging Face's TransfoXL."""
    try:
        from tests.benchmarks.rows import ROWS
        from tests.benchmarks.rows import quick as made_small
    except ImportError as error:
        sys.exit(f'error: the peer is not installed ({error}); pip install -e ".[peer]"')
    names = list(ROWS) if rows is None else rows.split(",")
    if unknown := [name for name in names if name not in ROWS]:
        sys.exit(f'error: no row "{unknown[0]}"; there are {", ".join(ROWS)}')
    results = []
    for name in names:
        row = made_small(ROWS[name]) if quick else ROWS[name]
        console.say(row.title)
        found = measure_memory(name, row, repeat, quick=quick) if row.kind == "memory" else measure_time(row, repeat)
        results += [{"row": name, "title": row.title, **one} for one in found]
    if json:
        console.show_json({"threads": torch.get_num_threads(), "repeat": repeat, "quick": quick, "rows": results})
    else:
        show(results, repeat=repeat, quick=quick)


if __name__ == "__main__":
    typer.run(main)
