"""How many kernels the program launches on a GPU, and the bytes that they read and write; needs no GPU.

python -m tests.benchmarks.launches [RECIPE ...] [--json]

A fake device counts the kernels of a training step with a full memory, of a segment of evaluation with its losses, and
of a token that is sampled and read, with compiled layers, in bf16, by default for enwik8, ptb-memory and wt103: per
layer, from models of two and of three layers, and for everything else together. "By the host" are the launches that
remain where CUDA graphs read the text, each of which is one. The training step is also counted as one of two processes
takes it, with train.parallel = "ddp" and "zero", and with the bytes that these exchange. Needs Linux, g++ and Triton.
"""

import dataclasses
import json as json_format
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tests.core.fake_cuda import SOURCE, problem
from tests.core.fake_devices import build, call

RECIPES = ("enwik8", "ptb-memory", "wt103")
LAYERS = (2, 3)
PROCESSES = 2
MODES = ("training", "ddp", "zero")
"""A training step of one process, and of several, which exchange gradients in bf16."""


def cuda_library(directory):
    """Build the helper library of the fake device in a directory, or end with the reason why it cannot be."""
    if reason := problem():
        sys.exit(f"error: {reason}")
    library = directory / "libfakecuda.so"
    if build(library, SOURCE).returncode:
        sys.exit("error: the fake device does not compile with this release of PyTorch; install PyTorch 2.13")
    return library


def measure(recipe, library):
    """Return kernels and bytes of each work."""
    return {"recipe": recipe, **call(library, "tests.benchmarks.launches:measure_here", recipe)}


def measure_here(recipe):
    """Return kernels and bytes per layer and of the rest, of each kind of work."""
    found = []
    for n_layers in LAYERS:
        work = {mode: _training(recipe, n_layers, mode) for mode in MODES}
        found.append({**work, **_reading(recipe, n_layers)})
    return {work: _divide(*(counts[work] for counts in found)) for work in found[0]}


def _divide(two, three):
    """Divide the counts (names, bytes, sent) of models of two and three layers into those of a layer and the rest."""
    of_layer, size, sent = three[0] - two[0], three[1] - two[1], three[2] - two[2]
    return {
        "kernels_per_layer": of_layer.total(),
        "other_kernels": two[0].total() - LAYERS[0] * of_layer.total(),
        "bytes_per_layer": size,
        "other_bytes": two[1] - LAYERS[0] * size,
        "launched": two[3],
        "sent_per_layer": sent,
        "other_sent": two[2] - LAYERS[0] * sent,
        "names": dict(of_layer.most_common()),
        "other_names": {name: more for name, count in two[0].items() if (more := count - LAYERS[0] * of_layer[name])},
    }


def _settings(recipe, n_layers):
    from txlcli.config import recipe as recipes

    changes = ["train.precision=bf16", "train.compile=on", f"model.n_layers={n_layers}"]
    has_mean = recipes.load(recipe).train.average == "mean"  # which begins at the end
    return recipes.load(recipe, [*changes, "train.average_from=1"] if has_mean else changes)


def _model(settings):
    from tests.core.fake_cuda.device import CUDA
    from txlcli.core.architectures.registry import new_model

    return new_model(settings.model, settings.published.vocab_size, seed=1, device=CUDA)


def _training(recipe, n_layers, mode):
    from tests.core.fake_cuda.device import Kernels, pretending, world_of
    from tests.core.tape import call_again
    from txlcli.core.training.loop import Training
    from txlcli.core.training.segments import TrainingSegments

    settings, captured = _settings(recipe, n_layers), []
    train, more = settings.train, {}
    if mode != "training":  # with as many lanes in each process
        more["world"] = world_of(PROCESSES)
        changed = {"parallel": mode, "exchange_precision": "bf16", "batch_size": PROCESSES * train.batch_size}
        train = dataclasses.replace(train, **changed)

    def capture_graph(run, device, *, warm_up=0):
        captured.append(run)
        return call_again(run, device, warm_up=warm_up)

    with pretending():
        model = _model(settings)
        ids = _ids(model.softmax.bands, train.batch_size * (20 * train.seg_len + train.reread_len))
        training = Training(model, train, TrainingSegments(ids, train), capture_graph=capture_graph, **more)
        while not captured and training.step < 9:
            training.update()
        training.update()
        with Kernels() as kernels:
            training.update()
    return kernels.names, kernels.bytes, kernels.sent, None


def _ids(bands, count):
    """Return ids, an eighth of them in each tail: as many as the fake device finds there."""
    import numpy as np

    firsts = [band.first for band in bands[1:]]
    return np.resize([0] * (8 - len(firsts)) + firsts, count)


class Graphs:
    """Stands in for CUDA graphs: a replay calls its function again, and counts the kernels that the host launches."""

    def __init__(self, kernels):
        self._kernels = kernels
        self._repeated = 0

    def __call__(self, run, device, *, warm_up=0):
        def replay():
            before = self._kernels.names.total()
            result = run()
            repeated = self._kernels.names.total() - before
            self._repeated += max(0, repeated - 1)  # none while nothing is counted
            return result

        return replay

    @property
    def launched(self):
        """Launches of the host: kernels outside of graphs, and graphs."""
        return self._kernels.names.total() - self._repeated


def _reading(recipe, n_layers):
    """Count a segment with its losses, and a token that is sampled and read."""
    import torch

    from tests.core.fake_cuda.device import CUDA, Kernels, pretending
    from txlcli.core.reading.decoder import Decoder
    from txlcli.core.reading.sampling import Sampling, generate

    settings, found = _settings(recipe, n_layers), {}
    how = {"evaluation": (settings.eval, 10), "single token": (dataclasses.replace(settings.eval, seg_len=1), 1)}
    for work, (evaluation, lanes) in how.items():
        with pretending():
            model = _model(settings).eval().on(reading_compile="on", precision="bf16")
            replayed = Kernels()
            graphs = Graphs(replayed)
            decoder = Decoder(model, dataclasses.replace(evaluation, batch_size=lanes), capture_graph=graphs)
            if work == "evaluation":
                tokens = torch.zeros(lanes, evaluation.seg_len, dtype=torch.long, device=CUDA)
                targets = tokens.to(model.targets_device)
                for _ in range(-(-evaluation.mem_len // evaluation.seg_len)):
                    decoder.losses(decoder.read(tokens), targets)
                with Kernels() as kernels:  # the buffers do not slide yet
                    decoder.losses(decoder.read(tokens), targets)
                for _ in range(2 * decoder.housekeeping_interval // evaluation.seg_len):
                    decoder.losses(decoder.read(tokens), targets)
                with replayed:
                    decoder.losses(decoder.read(tokens), targets)
            else:
                text = generate(decoder, torch.zeros(1, dtype=torch.long), Sampling(), seed=1)
                for _ in range(3):
                    next(text)
                with replayed as kernels:
                    next(text)
        found[work] = kernels.names, kernels.bytes, kernels.sent, graphs.launched
    return found


def show(results):
    from txlcli import console

    lines = [
        [
            *(result["recipe"], work),
            *(f"{counts['kernels_per_layer']}", f"{counts['other_kernels']}"),
            str(counts["launched"] or ""),
            *(f"{counts['bytes_per_layer'] / 1e9:.3g} GB", f"{counts['other_bytes'] / 1e9:.3g} GB"),
            *(f"{counts['sent_per_layer'] / 1e6:.3g} MB", f"{counts['other_sent'] / 1e6:.3g} MB"),
        ]
        for result in results
        for work, counts in result.items()
        if work != "recipe"
    ]
    headings = (
        "recipe",
        "work",
        "kernels per layer",
        "others",
        "by the host",
        "bytes per layer",
        "others",
        "sent per layer",
        "others",
    )
    console.show_table("Launches on a GPU, bf16", headings, lines, [])


def main(
    recipes: Annotated[list[str] | None, typer.Argument(help="Recipes of models with attention.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Count kernels and bytes of training, evaluation and single tokens."""
    with tempfile.TemporaryDirectory() as directory:
        library = cuda_library(Path(directory))
        results = [measure(name, library) for name in recipes or RECIPES]
    if json:
        print(json_format.dumps(results))
    else:
        show(results)


if __name__ == "__main__":
    typer.run(main)
