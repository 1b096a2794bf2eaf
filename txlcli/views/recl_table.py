"""Shows the result of `txl recl` as Table 8, Figure 3 or Figure 4."""

from pathlib import Path
from typing import Any

from txlcli import console
from txlcli.runs import run_directory


def show(result: dict[str, Any], *, verbose: bool = False) -> None:
    """Write the table to stdout: a row per model, a column per r."""
    shares = [point["top_r"] for point in result["models"][0]["recl"]]
    lines = [
        [name, f"{model['parameters']:,}", *(_length(point) for point in model["recl"])]
        for name, model in zip(_names(result), result["models"], strict=True)
    ]
    title = f"RECL on {result['text']}, {result['positions']:,} positions"
    columns = ("model", "parameters", *(f"r = {share:g}" for share in shares))
    console.show_table(title, columns, lines, _notes(result), verbose=verbose)


def _length(point: dict[str, Any]) -> str:
    return f"{'>= ' if point['grid_ended'] else ''}{point['recl_tokens']:,}"


def _notes(result: dict[str, Any]) -> list[str]:
    notes = [
        f"RECL: context length in tokens beyond which {result['step_tokens']:,} more improve perplexity by less than "
        f"{100 * result['threshold']:g} %."
    ]
    points = [point for model in result["models"] for point in model["recl"]]
    shortest = result["context_tokens"][0]
    if any(point["grid_ended"] for point in points):
        notes.append(">=: every step improved perplexity; give a larger --longest.")
    if any(point["recl_tokens"] == shortest for point in points):
        notes.append(f"{shortest:,}: no step improved perplexity, so RECL may be less; give a smaller --start.")
    notes.append("r: share of the positions, the hardest for the best model of the group (Appendix C).")
    models = zip(_names(result), result["models"], strict=True)
    return notes + [f"{name}: {_context(model)}" for name, model in models]


def _context(model: dict[str, Any]) -> str:
    """Describe the source of a model's context."""
    if model["context"] == "state":
        return f"recurrent state, zeros before the context; {model['precision']}"
    if model["context"] == "window":
        most = model["longest_window_tokens"]
        return f"one window{f' of at most {most:,} tokens' if most else ''}, no memory; {model['precision']}"
    limit = f", max_distance = {model['max_distance']}" if model["max_distance"] else ""  # None if no limit applies
    settings = f"L = {model['seg_len']}, M = {model['mem_len']}, same_length = {model['same_length']}"
    return f"{settings}{limit}; {model['precision']}"


def _names(result: dict[str, Any]) -> list[str]:
    return run_directory.short_names([Path(model["run"]) for model in result["models"]])


def plot_gains(path: Path, result: dict[str, Any]) -> None:
    """Plot the unnormalized gain of perplexity at each context length, for the first r (Figure 3)."""
    share = result["models"][0]["recl"][0]["top_r"]
    curves = {}
    for name, model in zip(_names(result), result["models"], strict=True):
        gains = model["recl"][0]["gains"]
        curves[name] = ([gain["from_tokens"] for gain in gains], [gain["ppl_gain"] for gain in gains])
    step = result["step_tokens"]
    _plot(path, curves, f"perplexity gained by {step:,} more tokens", f"{result['text']}, r = {share:g}")


def plot_perplexities(path: Path, result: dict[str, Any]) -> None:
    """Plot the perplexity of all positions at each context length, without the baseline of the group (Figure 4)."""
    curves = {
        name: (result["context_tokens"], model["ppl"])
        for name, model in zip(_names(result), result["models"], strict=True)
    }
    _plot(path, curves, f"perplexity per {result['unit']}", result["text"])


def _plot(path: Path, curves: Any, y_label: str, title: str) -> None:
    from txlcli.commands import plots

    plots.plot_curves(path, curves, x_label="context length (tokens)", y_label=y_label, title=title)
