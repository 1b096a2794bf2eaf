"""Converts weights between txl ("ours") and other systems ("theirs"), in both directions; `layouts` has the names.

Some of our tensors, concatenated, are linked to some of theirs: they hold the same elements. Matrices are (out, in)
everywhere but in the linear layers of the TF code, where they are (in, out).
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from txlcli.config.bands import bands
from txlcli.config.model_settings import ModelSettings, TransformerSettings
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.errors import RunError, shortened
from txlcli.workflows.exchange.layouts import (
    SUPPORTED,
    SUPPORTED_BY_TF,
    SYSTEMS,
    System,
    is_transposed,
    is_weight,
    name_of,
)

Tensors = Mapping[str, Tensor]
BIASES = ("encoding.content_bias", "encoding.position_bias")


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
    def our_names(self) -> dict[tuple[str, ...], list[str]]:
        """Names of our tensors by the names of theirs that hold the same elements."""
        our_names: dict[tuple[str, ...], list[str]] = {}
        has_biases_per_layer = self.system != "tf" and not self.settings.tie_biases
        for ours in self.parameters:
            parts = [ours]
            if has_biases_per_layer and ours in BIASES:
                parts = [f"layers.{n}.{ours}" for n in range(self.settings.n_layers)]
            theirs = tuple(self._name_of(part) for part in parts)
            our_names.setdefault(theirs, []).append(ours)
        return our_names

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Further names of linked tensors, by alias: tied weights have several names, but one each in TF."""
        if self.system == "tf":
            return {}
        tied = {}
        for n, band in enumerate(bands(self.settings, self.vocab_size)):
            if self.settings.tie_embeddings:
                tied[f"softmax.tables.{n}"] = f"embedding.tables.{n}"
            if band.shared and band.projection is not None:
                tied[f"softmax.projections.{n}"] = f"embedding.projections.{band.projection}"
        if self.settings.tie_biases:
            for n in range(self.settings.n_layers):
                for bias in BIASES:
                    tied[f"layers.{n}.{bias}"] = bias
        return {self._name_of(alias): self._name_of(first) for alias, first in tied.items()}

    def _name_of(self, ours: str) -> str:
        return name_of(ours, self.system, self.settings)

    def read(self, theirs: Tensors, where: str, padding: int = 0) -> dict[str, Tensor]:
        """Convert their tensors to ours, in float32; `where` is the file that messages name.

        The last `padding` rows of their vocabulary stand for no symbol and are dropped.
        """
        if padding:
            padded = Layout(self.system, self.settings, self.vocab_size + padding).read(theirs, where)
            return {name: tensor[: len(self.parameters[name])] for name, tensor in padded.items()}
        weights = self._without_aliases(theirs, where)
        ours: dict[str, Tensor] = {}
        for their_names, our_names in self.our_names.items():
            tensors = [self._reordered(name, weights[name].float()) for name in their_names]
            elements = torch.cat([tensor.reshape(-1) for tensor in tensors])
            parts = elements.split([self.parameters[name].numel() for name in our_names])
            for name, part in zip(our_names, parts, strict=True):
                ours[name] = part.view_as(self.parameters[name])
        return ours

    def _without_aliases(self, theirs: Tensors, where: str) -> dict[str, Tensor]:
        """Return their weights under one name each; tied weights may be stored under several, which must be equal."""
        weights = {name: tensor for name, tensor in theirs.items() if is_weight(name)}
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
        return weights

    def _check(self, weights: Tensors, where: str) -> None:
        """Reject tensors of other names and shapes than the linked ones, integers, and values that are not finite."""
        needed = {name: tuple(tensor.shape) for name, tensor in self._linked(self.parameters).items()}
        given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        differing = [name for name in needed | given if needed.get(name) != given.get(name)]
        if differing:
            name = differing[0]
            more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
            raise RunError(
                f"{where}: {shortened(name)}: {given.get(name, 'missing')}, the settings need "
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
        vectors = {}
        for alias, first in self.aliases.items():
            if first.endswith("_bias"):
                vectors[alias] = theirs[first].clone()
        return theirs | vectors

    def _linked(self, ours: Tensors) -> dict[str, Tensor]:
        """Convert our tensors to theirs, tied tensors once."""
        theirs: dict[str, Tensor] = {}
        has_biases_of_one_layer = self.system != "tf" or self.settings.tie_biases  # or of all layers
        for their_names, our_names in self.our_names.items():
            joined = torch.cat([ours[name].detach().float() for name in our_names])
            parts = joined.chunk(len(their_names))
            for name, part in zip(their_names, parts, strict=True):
                tensor = part
                if part.dim() == 3 and has_biases_of_one_layer:
                    tensor = part[0]
                theirs[name] = self._reordered(name, tensor).contiguous()
        return theirs

    def _reordered(self, name: str, tensor: Tensor) -> Tensor:
        """Change the order of elements from theirs to ours, or back: both operations are their own inverses."""
        if is_transposed(name):
            return tensor.mT
        if self.system == "pytorch" and "cluster" in name:
            # The released PyTorch code pairs tail i with column -i of the head, all other systems with cluster i.
            return tensor.flip(0)
        return tensor


def missing_setting(model: ModelSettings, system: System) -> str | None:
    """Return an error that names a setting of a model that a system does not have; None if it has the model."""
    values = dict(vars(model))
    if isinstance(model, TransformerSettings):
        values |= vars(model.parts)
    supported = SUPPORTED_BY_TF if system == "tf" else SUPPORTED
    for name, allowed in supported.items():
        value = "none" if values[name] is None else values[name]
        if value not in allowed:
            needed = " or ".join(map(json.dumps, allowed))
            return f"[model] {name} = {json.dumps(value)} is not a setting of {SYSTEMS[system]}, which needs {needed}"
    return None


def to_hugging_face(model: TransformerXL) -> dict[str, Tensor]:
    """Return the weights under Hugging Face's names.

    Hugging Face projects every band if div_val is above 1; a band that txl does not project gets the identity.
    """
    settings = dataclasses.replace(model.settings, project_same_width=True)
    layout = Layout("hugging_face", settings, model.vocab_size)
    ours: dict[str, Tensor] = dict(model.named_parameters())
    for name, parameter in layout.parameters.items():
        if name not in ours:
            ours[name] = torch.eye(*parameter.shape)
    return layout.write(ours)
