"""txl beside Hugging Face's TransfoXL in one run: times, memory, shares of the matrix-product peak.

python -m tests.benchmarks.peer [--device cpu|cuda] [--rows training,eval10] [--repeat 5] [--quick] [--json]

Needs the extra "peer" and Linux. The contestants take turns (A, B, C, A, B, C, ...), so that whatever else the machine
does meets all of them; a ratio is the median of the ratios within one turn. On a CPU the peer runs in fp32 only: it has
no usable bf16 there, so what txl does in bf16 is compared with the peer's fp32, too. On CUDA each precision is compared
with the peer in the same one (in bf16 by PyTorch's autocast), timed by CUDA events over at least ten steps. It prints a
table and judges nothing.
"""

import gc
import statistics
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import typer

from tests.benchmarks.comparisons import COMPARISONS
from txlcli import console
from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.kernels.device import check_precision, describe, pick_device
from txlcli.core.measures.cost import evaluation_flops_per_token, step_flops_per_token
from txlcli.core.measures.timing import measure, peak_flops_per_s
from txlcli.errors import UsageError


@dataclass(frozen=True)
class Contestant:
    work: object
    """A step, called without arguments."""
    tokens: int
    """That a step handles."""
    steps: int = 1
    """That are timed together."""

    def ms_per_token(self, device):
        return measure(self.work, device, tokens=self.tokens, repeat=1, steps=self.steps, warm_up=False).median


def take_turns(contestants, comparison, device, repeat):
    """Milliseconds per token of each contestant and the peak of the matrix product by precision, turn by turn."""
    for contestant in contestants.values():
        for _ in range(contestant.steps):
            contestant.work()  # to warm up
    turns, peaks = [], []
    for _ in range(repeat):
        turns.append({name: contestant.ms_per_token(device) for name, contestant in contestants.items()})
        peaks.append({precision: peak_flops_per_s(device, precision, repeat=2) for precision in comparison.ours})
    return turns, peaks


def steps(work, comparison, device):
    """The contestants of a training step, and the operations of a token."""
    from tests.benchmarks import contestants as made
    from tests.peer.peer import imported

    theirs = made.peer_model(work, training=True)
    model = imported(theirs)[0].to(device)
    our_step, peer_step = made.our_step(model, work), made.peer_step(theirs.to(device), work)
    tokens, count = work.batch_size * work.seg_len, made.min_steps(device)
    found = {precision: Contestant(lambda p=precision: our_step(p), tokens, count) for precision in comparison.ours}
    sizes = TrainSettings(max_steps=1, seg_len=work.seg_len, mem_len=work.mem_len, batch_size=work.batch_size)
    flops = step_flops_per_token(model.settings, work.vocab_size, sizes)
    return {**found, "peer": Contestant(lambda: peer_step(comparison.peer), tokens, count)}, flops, {}


def readings(work, comparison, device):
    """The contestants of an evaluation, the operations of a token, how far what they find differs."""
    from tests.benchmarks import contestants as made
    from tests.peer.peer import imported

    theirs = made.peer_model(work, training=False)
    model = imported(theirs)[0].to(device)
    readers = {precision: made.OurReading(model, work, precision) for precision in comparison.ours}
    readers["peer"] = made.PeerReading(theirs.to(device), work, comparison.peer)
    expected = readers["peer"].first()
    differences = {
        precision: float((readers[precision].first().flatten() - expected.flatten()).abs().max())
        for precision in comparison.ours
    }
    tokens = work.batch_size * work.seg_len
    found = {name: Contestant(reader.segment, tokens, reader.segments) for name, reader in readers.items()}
    settings = EvalSettings(seg_len=work.seg_len, mem_len=work.mem_len, same_length="m", max_distance=work.max_distance)
    flops = evaluation_flops_per_token(model.settings, work.vocab_size, settings)
    return found, flops, differences


def measure_time(row, comparison, device, repeat):
    """Yield a result for each of our precisions."""
    contestants, flops, differences = (steps if row.kind == "step" else readings)(row.work, comparison, device)
    turns, peaks = take_turns(contestants, comparison, device, repeat)
    del contestants
    gc.collect()
    torch.cuda.empty_cache()
    for precision in comparison.ours:
        ratios = [turn["peer"] / turn[precision] for turn in turns]
        shares = [1e3 * flops / turn[precision] / peak[precision] for turn, peak in zip(turns, peaks, strict=True)]
        yield {
            "precision": precision,
            "peer_precision": comparison.peer,
            "txl_ms_per_token": statistics.median(turn[precision] for turn in turns),
            "peer_ms_per_token": statistics.median(turn["peer"] for turn in turns),
            **_spread(ratios),
            "target": row.target(precision, device),
            "share_of_peak": statistics.median(shares),
            "share_target": row.shares.get(precision) if device.type == "cpu" else None,
            "peak_gflops_per_s": statistics.median(peak[precision] for peak in peaks) / 1e9,
            "largest_difference_nats": differences.get(precision),
        }


def measure_memory(name, comparison, device, repeat, *, row, quick):
    """Yield a result for each of our precisions. On CUDA one turn is enough: memory does not vary."""
    from tests.benchmarks import memory

    turns = []
    for _ in range(1 if device.type == "cuda" else repeat):
        of_row = {"quick": quick, "device": device}
        pairs = {precision: memory.measure(name, "txl", precision, **of_row) for precision in comparison.ours}
        pairs["peer"] = memory.measure(name, "peer", comparison.peer, **of_row)
        turns.append(pairs)
    for precision in comparison.ours:
        grown = [{who: peak - before for who, (before, peak) in pairs.items()} for pairs in turns]
        yield {
            "precision": precision,
            "peer_precision": comparison.peer,
            "txl_bytes": statistics.median(one[precision] for one in grown),
            "peer_bytes": statistics.median(one["peer"] for one in grown),
            "txl_process_bytes": statistics.median(pairs[precision][1] for pairs in turns),
            "peer_process_bytes": statistics.median(pairs["peer"][1] for pairs in turns),
            **_spread([one[precision] / one["peer"] for one in grown]),
            "target": row.target(precision, device),
        }


def compare(name, comparison, device, repeat, *, quick):
    """Return the results of a row for a comparison.

    Raises:
        UsageError: the device does not support a precision.
    """
    from tests.benchmarks import rows

    row = rows.quick(rows.ROWS[name]) if quick else rows.ROWS[name]
    for precision in (*comparison.ours, comparison.peer):
        check_precision(precision, device)
    if row.kind == "memory":
        found = measure_memory(name, comparison, device, repeat, row=row, quick=quick)
    else:
        found = measure_time(row, comparison, device, repeat)
    return [{"row": name, "title": row.title, **one} for one in found]


def _spread(ratios):
    return {"ratio": statistics.median(ratios), "ratio_low_high": [min(ratios), max(ratios)]}


def show(results, device, *, repeat, quick):
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
                _precisions(result),
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
        f"Median (lowest-highest) of {repeat} turns; the peer in the same precision, unless it is given.",
        "of peak: operations by formula over a large matrix product of the same precision in each turn.",
    ]
    headings = ("work", "precision", "txl", "peer", "ratio", "target", "of peak", "target")
    title = "small models: the numbers mean nothing" if quick else "txl and Hugging Face's TransfoXL 4.36.2"
    console.show_table(f"{title}, {describe(device)}", headings, lines, notes)


def _precisions(result):
    ours, theirs = result["precision"], result["peer_precision"]
    return ours if ours == theirs else f"{ours}, peer {theirs}"


def main(
    rows: Annotated[str | None, typer.Option(help="Which, divided by commas; by default all of the device.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Turns of each row.")] = 5,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device of both.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Small models: shows whether the comparison runs.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Measure txl beside Hugging Face's TransfoXL."""
    try:
        from tests.benchmarks.rows import ROWS
    except ImportError as error:
        sys.exit(f'error: the peer is not installed ({error}); pip install -e ".[peer]"')
    names = [name for name, row in ROWS.items() if device in row.devices] if rows is None else rows.split(",")
    if unknown := [name for name in names if name not in ROWS]:
        sys.exit(f'error: no row "{unknown[0]}"; there are {", ".join(ROWS)}')
    results = []
    try:
        used = pick_device(device)
        for name in names:
            console.say(ROWS[name].title)
            for comparison in COMPARISONS[device]:
                results += compare(name, comparison, used, repeat, quick=quick)
    except UsageError as error:
        sys.exit(f"error: {error}")
    if json:
        threads = torch.get_num_threads()
        of_machine = {"device": describe(used), "threads": threads, "repeat": repeat, "quick": quick}
        console.show_json({**of_machine, "rows": results})
    else:
        show(results, used, repeat=repeat, quick=quick)


if __name__ == "__main__":
    typer.run(main)
