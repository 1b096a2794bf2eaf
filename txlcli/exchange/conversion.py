"""Converts weights between txl ("ours") and other systems ("theirs"), in both directions; layouts.toml has the names.

A link says that some of our tensors, concatenated, hold the same numbers as some of theirs. Matrices are (out, in)
everywhere but in the linear layers of the TF code, where they are (in, out).
"""

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import torch
from torch import Tensor

from txlcli.config.bands import bands
from txlcli.config.model_settings import ModelSettings, TransformerSettings
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.errors import RunError, shortened

System = Literal["hugging_face", "pytorch", "tf"]
SYSTEMS: dict[System, str] = {
    "hugging_face": "Hugging Face TransfoXL",
    "pytorch": "the released PyTorch code",
    "tf": "the released TF code",
}
Tensors = Mapping[str, Tensor]
LAYOUTS = tomllib.loads((files("txlcli.exchange") / "layouts.toml").read_text(encoding="utf-8"))
IGNORED = ("pos_emb.inv_freq", "/Adam", "/Adam_1", "global_step", "beta1_power", "beta2_power")
"""Suffixes of names that are not weights."""
NEXT_STEP = "correct [model] with `recipe` or `overrides`"


@dataclass(frozen=True)
class Link:
    """Tensors of both systems that hold the same numbers."""

    ours: Sequence[str]
    theirs: Sequence[str]
    shape: tuple[int, ...]
    """Shape of each of theirs."""
    transposed: bool
    """True if theirs are (in, out)."""
    reversed: bool
    """True if theirs have their rows in the opposite order."""

    def reordered(self, tensor: Tensor) -> Tensor:
        """Change the order of numbers from theirs to ours, or back: both operations are their own inverses."""
        tensor = tensor.mT if self.transposed else tensor
        return tensor.flip(0) if self.reversed else tensor


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the weights of a model in another system."""

    shapes: Mapping[str, torch.Size]
    """Shapes of ours."""
    links: tuple[Link, ...]
    aliases: Mapping[str, str]
    """Further names of linked tensors, by alias: tied weights are stored under several names."""

    def read(self, theirs: Tensors, where: str) -> dict[str, Tensor]:
        """Convert their tensors to ours, in float32; `where` is the file that messages name."""
        stored_once = {first: theirs[name] for name, first in self.aliases.items() if name in theirs}
        theirs = {**stored_once, **theirs}
        self._check(theirs, where)
        ours: dict[str, Tensor] = {}
        for link in self.links:
            numbers = torch.cat([link.reordered(theirs[name].float()).reshape(-1) for name in link.theirs])
            parts = numbers.split([self.shapes[name].numel() for name in link.ours])
            ours |= {name: part.view(self.shapes[name]).clone() for name, part in zip(link.ours, parts, strict=True)}
        return ours

    def without_padding(self, theirs: Tensors, rows: int) -> dict[str, Tensor]:
        """Return their tensors without the last rows of the vocabulary, which stand for no symbol."""
        padded = {
            name: link.shape[0]
            for link in self.links
            for name in link.theirs
            if link.ours[0].startswith(("embedding.tables", "softmax.tables", "softmax.biases"))
        }
        padded |= {alias: padded[first] for alias, first in self.aliases.items() if first in padded}
        return {
            name: tensor[:size] if (size := padded.get(name)) and len(tensor) == size + rows else tensor
            for name, tensor in theirs.items()
        }

    def _check(self, theirs: Tensors, where: str) -> None:
        needed = {name: link.shape for link in self.links for name in link.theirs}
        known = {name: tensor for name, tensor in theirs.items() if not name.endswith(IGNORED)}
        found = {name: tuple(tensor.shape) for name, tensor in known.items() if name not in self.aliases}
        differing = [name for name in needed | found if needed.get(name) != found.get(name)]
        if differing:
            name, more = differing[0], f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
            has, need = found.get(name, "missing"), needed.get(name, "no such tensor")
            raise RunError(f"{where}: {shortened(name)}: {has}, the settings need {need}{more}; {NEXT_STEP}")
        for name in needed:
            tensor = theirs[name]
            if not tensor.is_floating_point():
                raise RunError(f"{where}: {name} is {tensor.dtype}; save the weights as floating-point numbers")
            if not tensor.float().isfinite().all():  # of 8 bits, too
                raise RunError(f"{where}: {name} holds numbers that are not finite; download the weights again")
        for name, first in self.aliases.items():
            if name in theirs and not torch.equal(theirs[name].float(), theirs[first].float()):
                raise RunError(
                    f"{where}: {name} differs from {first}, which the settings tie it to; untie them in [model] "
                    "(tie_embeddings, tie_projections or tie_biases)"
                )

    def write(self, ours: Tensors) -> dict[str, Tensor]:
        """Convert our tensors to theirs; tied tensors appear once, except vectors, which are small."""
        theirs: dict[str, Tensor] = {}
        for link in self.links:
            numbers = torch.cat([ours[name].detach().float().reshape(-1) for name in link.ours])
            shape = link.shape[::-1] if link.transposed else link.shape
            parts = numbers.view(len(link.theirs), *shape)
            theirs |= {name: link.reordered(part).contiguous() for name, part in zip(link.theirs, parts, strict=True)}
        small = {name: theirs[first].clone() for name, first in self.aliases.items() if first.endswith("_bias")}
        return theirs | small


def missing_setting(model: ModelSettings, system: System) -> str | None:
    """Return an error that names a setting of a model that a system does not have; None if it has the model."""
    supported = LAYOUTS["settings"] | (LAYOUTS["settings_of_tf"] if system == "tf" else {})
    given = vars(model) | (vars(model.parts) if isinstance(model, TransformerSettings) else {})
    for name, values in supported.items():
        value = "none" if given[name] is None else given[name]
        if value not in values:
            shown, *needed = map(json.dumps, (value, *values))
            return f"[model] {name} = {shown} is not a setting of {SYSTEMS[system]}, which needs {' or '.join(needed)}"
    return None


def layout_of(system: System, settings: TransformerSettings, vocab_size: int) -> Layout:
    """Return the layout of the weights of a model in a system that has such models (see `missing_setting`)."""
    with torch.device("meta"):
        model = TransformerXL(settings, vocab_size)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    linked: dict[tuple[str, ...], list[str]] = {}
    for name in shapes:
        linked.setdefault(_their_names(name, system, settings), []).append(name)
    links = []
    for theirs, ours in linked.items():
        rows, *columns = torch.cat([torch.empty(shapes[name], device="meta") for name in ours]).shape
        shape = rows // len(theirs), *columns
        if len(shape) == 3 and (system != "tf" or settings.tie_biases):
            shape = shape[1:]  # biases of one layer, or of all
        transposed = theirs[0].endswith(("/kernel", "/proj_W", "/proj"))
        # The released PyTorch code pairs tail i with column -i of the head, all other systems with cluster i.
        turned = system == "pytorch" and "cluster" in theirs[0]
        links.append(Link(ours, theirs, shape[::-1] if transposed else shape, transposed, turned))
    return Layout(shapes, tuple(links), _aliases(system, settings, vocab_size))


def _their_names(ours: str, system: System, settings: TransformerSettings) -> tuple[str, ...]:
    """Return the names of the tensors that hold a parameter of ours: several for biases per layer in PyTorch."""
    if ours.startswith("encoding.") and ours.endswith("_bias") and system != "tf" and not settings.tie_biases:
        return tuple(_name(f"layers.{n}.{ours}", system, settings) for n in range(settings.n_layers))
    return (_name(ours, system, settings),)


def _name(ours: str, system: System, settings: TransformerSettings) -> str:
    """Return the name in another system, by layouts.toml."""
    number = re.search(r"\.(\d+)", ours)
    n, joined = int(number[1]) if number else 0, settings.div_val == 1
    name: str = LAYOUTS["tf" if system == "tf" else "pytorch"][re.sub(r"\.\d+", "", ours)].format(
        n=n,
        table=0 if joined else n,
        cutoff="" if joined else f"cutoff_{n}/",
        bias=f"cutoff_{n}/b" if settings.cutoffs else "bias",
    )
    return f"transformer.{name}" if system == "hugging_face" and not name.startswith("crit.") else name


def _aliases(system: System, settings: TransformerSettings, vocab_size: int) -> dict[str, str]:
    """Return further names of tied tensors, each with the linked name; TF variables have one name each."""
    if system == "tf":
        return {}
    tied = {}
    for n, band in enumerate(bands(settings, vocab_size)):
        if settings.tie_embeddings:
            tied[f"softmax.tables.{n}"] = f"embedding.tables.{n}"
        if band.shared and band.projection is not None:
            tied[f"softmax.projections.{n}"] = f"embedding.projections.{band.projection}"
    for n in range(settings.n_layers if settings.tie_biases else 0):
        tied |= {f"layers.{n}.encoding.{bias}": f"encoding.{bias}" for bias in ("content_bias", "position_bias")}
    return {_name(alias, system, settings): _name(first, system, settings) for alias, first in tied.items()}


def to_hugging_face(model: TransformerXL) -> dict[str, Tensor]:
    """Return the weights under Hugging Face's names.

    Hugging Face projects every band if div_val is above 1; a band that txl does not project gets the identity.
    """
    projected = dataclasses.replace(model.settings, project_same_width=True)
    layout = layout_of("hugging_face", projected, model.vocab_size)
    ours = dict(model.named_parameters())
    identities = {name: torch.eye(*shape) for name, shape in layout.shapes.items() if name not in ours}
    return layout.write(identities | ours)
