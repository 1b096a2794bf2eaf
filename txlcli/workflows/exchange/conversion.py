"""Converts weights between txl ("ours") and other systems ("theirs"), in both directions; layouts.toml has the names.

Some of our tensors, concatenated, are linked to some of theirs: they hold the same numbers. Matrices are (out, in)
everywhere but in the linear layers of the TF code, where they are (in, out).
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from txlcli.config.bands import bands
from txlcli.config.model_settings import ModelSettings, TransformerSettings
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.errors import RunError, shortened
from txlcli.workflows.exchange import load_table

System = Literal["hugging_face", "pytorch", "tf"]
Tensors = Mapping[str, Tensor]
LAYOUTS = load_table("layouts")
SYSTEMS: dict[System, str] = LAYOUTS["systems"]
BIASES = "encoding.content_bias", "encoding.position_bias"


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the weights of a model in a system that has such models (see `missing_setting`)."""

    system: System
    settings: TransformerSettings
    vocab_size: int

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Our parameters, without data."""
        with torch.device("meta"):
            return dict(TransformerXL(self.settings, self.vocab_size).named_parameters())

    @cached_property
    def links(self) -> dict[tuple[str, ...], list[str]]:
        """Names of ours by the names of theirs that hold the same numbers."""
        links: dict[tuple[str, ...], list[str]] = {}
        has_names_per_layer = self.system != "tf" and not self.settings.tie_biases
        for name in self.parameters:
            layers = range(self.settings.n_layers if has_names_per_layer and name in BIASES else 0)
            names = [f"layers.{n}.{name}" for n in layers] or [name]
            links.setdefault(tuple(map(self._name, names)), []).append(name)
        return links

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Further names of linked tensors, by alias: tied weights have several names, but one each in TF."""
        tied = {}
        for n, band in enumerate(bands(self.settings, self.vocab_size)):
            if self.settings.tie_embeddings:
                tied[f"softmax.tables.{n}"] = f"embedding.tables.{n}"
            if band.shared and band.projection is not None:
                tied[f"softmax.projections.{n}"] = f"embedding.projections.{band.projection}"
        for n in range(self.settings.n_layers if self.settings.tie_biases else 0):
            tied |= {f"layers.{n}.{bias}": bias for bias in BIASES}
        return {} if self.system == "tf" else {self._name(alias): self._name(first) for alias, first in tied.items()}

    def read(self, theirs: Tensors, where: str, padding: int = 0) -> dict[str, Tensor]:
        """Convert their tensors to ours, in float32; `where` is the file that messages name.

        The last `padding` rows of their vocabulary stand for no symbol and are dropped.
        """
        if padding:
            padded = dataclasses.replace(self, vocab_size=self.vocab_size + padding).read(theirs, where)
            return {name: tensor[: len(self.parameters[name])] for name, tensor in padded.items()}
        weights = {name: tensor for name, tensor in theirs.items() if not name.endswith(tuple(LAYOUTS["ignored"]))}
        tied = {alias: weights.pop(alias) for alias in self.aliases if alias in weights}
        weights = {self.aliases[alias]: tensor for alias, tensor in tied.items()} | weights  # may be stored once
        self._check(weights, where)
        for alias, tensor in tied.items():
            first = self.aliases[alias]
            if not torch.equal(tensor.float(), weights[first].float()):
                raise RunError(
                    f"{where}: {alias} differs from {first}, which the settings tie it to; untie them in [model] "
                    "(tie_embeddings, tie_projections or tie_biases)"
                )
        ours: dict[str, Tensor] = {}
        for names, linked in self.links.items():
            numbers = torch.cat([self._reordered(name, weights[name].float()).reshape(-1) for name in names])
            parts = numbers.split([self.parameters[name].numel() for name in linked])
            ours |= {name: part.view_as(self.parameters[name]) for name, part in zip(linked, parts, strict=True)}
        return ours

    def _check(self, weights: Tensors, where: str) -> None:
        """Reject tensors of other names and shapes than the linked ones, integers, and numbers that are not finite."""
        needed = {name: tuple(tensor.shape) for name, tensor in self._linked(self.parameters).items()}
        found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        differing = [name for name in needed | found if needed.get(name) != found.get(name)]
        if differing:
            name, more = differing[0], f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
            raise RunError(
                f"{where}: {shortened(name)}: {found.get(name, 'missing')}, the settings need "
                f"{needed.get(name, 'no such tensor')}{more}; correct [model] with `recipe` or `overrides`"
            )
        for name, tensor in weights.items():
            if not tensor.is_floating_point():
                raise RunError(f"{where}: {name} is {tensor.dtype}; save the weights as floating-point numbers")
            if not tensor.float().isfinite().all():  # of 8 bits, too
                raise RunError(f"{where}: {name} holds numbers that are not finite; download the weights again")

    def write(self, ours: Tensors) -> dict[str, Tensor]:
        """Convert our tensors to theirs; tied tensors appear once, except vectors, which are small."""
        theirs = self._linked(ours)
        return theirs | {name: theirs[first].clone() for name, first in self.aliases.items() if first.endswith("_bias")}

    def _linked(self, ours: Tensors) -> dict[str, Tensor]:
        theirs: dict[str, Tensor] = {}
        of_one_layer = self.system != "tf" or self.settings.tie_biases  # or of all layers
        for names, linked in self.links.items():
            parts = torch.cat([ours[name].detach().float() for name in linked]).chunk(len(names))
            for name, part in zip(names, parts, strict=True):
                is_bias = part.dim() == 3 and of_one_layer
                theirs[name] = self._reordered(name, part[0] if is_bias else part).contiguous()
        return theirs

    def _reordered(self, name: str, tensor: Tensor) -> Tensor:
        """Change the order of numbers from theirs to ours, or back: both operations are their own inverses."""
        if name.endswith(("/kernel", "/proj_W", "/proj")):
            return tensor.mT
        # The released PyTorch code pairs tail i with column -i of the head, all other systems with cluster i.
        return tensor.flip(0) if self.system == "pytorch" and "cluster" in name else tensor

    def _name(self, ours: str) -> str:
        """Return the name in the system, by layouts.toml."""
        number = re.search(r"\.(\d+)", ours)
        n, joined = int(number[1]) if number else 0, self.settings.div_val == 1
        name: str = LAYOUTS.get(self.system, LAYOUTS["pytorch"])[re.sub(r"\.\d+", "", ours)].format(
            n=n,
            table=0 if joined else n,
            cutoff="" if joined else f"cutoff_{n}/",
            bias=f"cutoff_{n}/b" if self.settings.cutoffs else "bias",
        )
        return f"transformer.{name}" if self.system == "hugging_face" and not name.startswith("crit.") else name


def missing_setting(model: ModelSettings, system: System) -> str | None:
    """Return an error that names a setting of a model that a system does not have; None if it has the model."""
    supported = LAYOUTS["settings"] | LAYOUTS.get(f"settings_of_{system}", {})
    given = vars(model) | (vars(model.parts) if isinstance(model, TransformerSettings) else {})
    for name, values in supported.items():
        value = "none" if given[name] is None else given[name]
        if value not in values:
            shown, *needed = map(json.dumps, (value, *values))
            return f"[model] {name} = {shown} is not a setting of {SYSTEMS[system]}, which needs {' or '.join(needed)}"
    return None


def to_hugging_face(model: TransformerXL) -> dict[str, Tensor]:
    """Return the weights under Hugging Face's names.

    Hugging Face projects every band if div_val is above 1; a band that txl does not project gets the identity.
    """
    layout = Layout("hugging_face", dataclasses.replace(model.settings, project_same_width=True), model.vocab_size)
    ours = dict(model.named_parameters())
    identities = {name: torch.eye(*shaped.shape) for name, shaped in layout.parameters.items() if name not in ours}
    return layout.write(identities | ours)
