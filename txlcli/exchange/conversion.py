"""Converts weights between txl ("ours") and other systems ("theirs"), in both directions.

Axes: H heads, D head width, d model width, w width of a band, F inner width, n ids of a band, V vocabulary, N layers.

A link says that some of our tensors, concatenated, hold the same numbers as some of theirs. Matrices are (out, in)
everywhere but in the variables of the TF code, where they are (in, out).
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from txlcli.config.bands import Band, bands
from txlcli.config.blocks import BLOCKS
from txlcli.config.model_settings import TransformerSettings
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.errors import RecipeError, RunError, shortened

Tensors = Mapping[str, Tensor]
MAX_NAMED = 3  # tensors that an error lists by name
NEXT_STEP = "correct [model] with `recipe` or `overrides`"


@dataclass(frozen=True)
class Link:
    """Tensors of both systems that hold the same numbers."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    shape: tuple[int, ...]
    """Shape of each of theirs."""
    transposed: bool = False
    """True if theirs are (in, out)."""
    reversed: bool = False
    """True if theirs have their rows in the opposite order."""


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the weights of another system."""

    links: tuple[Link, ...]
    aliases: Mapping[str, str]
    """Further names of linked tensors, by alias: tied weights are stored under several names."""
    ignored: tuple[str, ...] = ()
    """Suffixes of names that are not weights."""

    def vocab_size_of(self, theirs: Tensors) -> int | None:
        """Return the number of ids in the embedding; None if a table is missing."""
        tables = [name for link in self.links if link.ours[0].startswith("embedding.tables.") for name in link.theirs]
        theirs = self._with_tied(theirs)
        rows = [theirs[name].shape[:1].numel() for name in tables if name in theirs]
        return sum(rows) if len(rows) == len(tables) else None

    def read(self, theirs: Tensors, shapes: Mapping[str, torch.Size], where: str) -> dict[str, Tensor]:
        """Convert their tensors to ours, of these `shapes`, in float32; `where` is the file that messages name."""
        linked = {name for link in self.links for name in link.theirs}
        theirs = self._with_tied(theirs)
        self._check_names(theirs, linked, where)
        for link in self.links:
            for name in link.theirs:
                _check_tensor(theirs[name], link.shape, f"{where}: {name}")
        for name, first in self.aliases.items():
            if name in theirs and not _are_equal(theirs[name], theirs[first]):
                raise RunError(
                    f"{where}: {name} differs from {first}, which the settings tie it to; untie them in [model] "
                    "(tie_embeddings, tie_projections or tie_biases)"
                )
        ours: dict[str, Tensor] = {}
        for link in self.links:
            ours |= _unpacked(link, [theirs[name] for name in link.theirs], shapes)
        return ours

    def _with_tied(self, theirs: Tensors) -> Tensors:
        """Add the linked names of tensors that were stored under an alias only."""
        stored = {first: theirs[name] for name, first in self.aliases.items() if name in theirs}
        return {**stored, **theirs}

    def _check_names(self, theirs: Tensors, linked: set[str], where: str) -> None:
        missing = sorted(linked - set(theirs))
        if missing:
            raise RunError(f"{where}: has no {_some(missing)}; these weights do not fit the settings, {NEXT_STEP}")
        known = linked | set(self.aliases)
        extra = sorted(name for name in theirs if name not in known and not name.endswith(self.ignored))
        if extra:
            raise RunError(f"{where}: has {_some(extra)}, unknown to the settings; {NEXT_STEP}")

    def write(self, ours: Tensors) -> dict[str, Tensor]:
        """Convert our tensors to theirs; tied tensors appear once, except vectors, which are small."""
        theirs: dict[str, Tensor] = {}
        for link in self.links:
            theirs |= _packed(link, [ours[name] for name in link.ours])
        small = {name: theirs[first].clone() for name, first in self.aliases.items() if first.endswith("_bias")}
        return theirs | small


def _check_tensor(tensor: Tensor, shape: tuple[int, ...], name: str) -> None:
    if tuple(tensor.shape) != shape:
        raise RunError(f"{name} has the shape {tuple(tensor.shape)}, the settings need {shape}; {NEXT_STEP}")
    if not tensor.is_floating_point():
        raise RunError(f"{name} holds {tensor.dtype}, which cannot be weights; convert them to float32")
    if not tensor.float().isfinite().all():  # of 8 bits, too
        raise RunError(f"{name} holds numbers that are not finite; download the weights again")


def _are_equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.float(), other.float())


def _unpacked(link: Link, theirs: Sequence[Tensor], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Return our tensors of a link, by name, split from theirs."""
    numbers = torch.cat([_reordered(link, tensor.float()).reshape(-1) for tensor in theirs])
    parts = numbers.split([shapes[name].numel() for name in link.ours])
    return {name: part.view(shapes[name]).clone() for name, part in zip(link.ours, parts, strict=True)}


def _packed(link: Link, ours: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return their tensors of a link, by name, concatenated from ours."""
    numbers = torch.cat([tensor.detach().float().reshape(-1) for tensor in ours])
    parts = numbers.view(len(link.theirs), *(reversed(link.shape) if link.transposed else link.shape))
    return {name: _reordered(link, part).contiguous() for name, part in zip(link.theirs, parts, strict=True)}


def _reordered(link: Link, tensor: Tensor) -> Tensor:
    """Change the layout of a tensor from theirs to ours, or back: both operations are their own inverses."""
    tensor = tensor.mT if link.transposed else tensor
    return tensor.flip(0) if link.reversed else tensor


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(map(shortened, names[:MAX_NAMED])) + more


def our_shapes(settings: TransformerSettings, vocab_size: int) -> dict[str, torch.Size]:
    """Return the shapes of a model's parameters, by name, without allocating them."""
    with torch.device("meta"):
        model = TransformerXL(settings, vocab_size)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def _check_block(settings: TransformerSettings) -> None:
    """Reject layers that the released code and Hugging Face do not have."""
    expected_parts = dataclasses.asdict(BLOCKS["paper"]) | {"gating": "residual", "memory_source": "layer_input"}
    given_parts = {name: getattr(settings, name) for name in expected_parts} | dataclasses.asdict(settings.parts)
    for name, expected in expected_parts.items():
        given = given_parts[name]
        if given != expected:
            raise RecipeError(f'[model] {name} = "{given}" is not in these weights; set it to "{expected}"')


def pytorch_layout(settings: TransformerSettings, vocab_size: int, *, hugging_face: bool) -> Layout:
    """Return the layout of the released PyTorch code's state dict, or of Hugging Face's.

    They differ in a prefix, and in the order of the cluster rows: the released PyTorch code pairs tail i with column -i
    of the head, all other systems with column i of the clusters.
    """
    _check_block(settings)
    if settings.norm == "pre":
        raise RecipeError('[model] norm = "pre" needs a final norm that these weights do not have; use "pre_released"')
    body = "transformer." if hugging_face else ""
    cut = bands(settings, vocab_size)
    tables, out_tables = f"{body}word_emb.emb_layers.{{}}.weight", "crit.out_layers.{}.weight"
    links = [
        *_banded("embedding.tables", tables, settings, cut),
        *_banded("softmax.biases", "crit.out_layers.{}.bias", settings, cut, vectors=True),
    ]
    for number, width in _projections(cut):
        name = f"{body}word_emb.emb_projs.{number}"
        links.append(Link((f"embedding.projections.{number}",), (name,), (settings.d_model, width)))
    aliases: dict[str, str] = {}
    if not settings.tie_embeddings:
        links += _banded("softmax.tables", out_tables, settings, cut)
    else:
        aliases |= {out_tables.format(i): tables.format(i) for i in range(1 if settings.div_val == 1 else len(cut))}
    for number, band in enumerate(cut):
        theirs = f"crit.out_projs.{number}"
        if band.projection is not None and band.shared:
            aliases[theirs] = f"{body}word_emb.emb_projs.{band.projection}"
        elif band.projection is not None:
            links.append(Link((f"softmax.projections.{number}",), (theirs,), (settings.d_model, band.width)))
    if len(cut) > 1:
        tails, turn = len(cut) - 1, not hugging_face
        weight, bias = ((f"softmax.cluster_{what}",) for what in ("weight", "bias"))
        links += [
            Link(weight, ("crit.cluster_weight",), (tails, cut[0].width), reversed=turn),
            Link(bias, ("crit.cluster_bias",), (tails,), reversed=turn),
        ]
    for number in range(settings.n_layers):
        links += _layer(settings, number, f"{body}layers.{number}.", tf=False)
    bias_links, bias_aliases = _pytorch_biases(settings, body)
    return Layout((*links, *bias_links), aliases | bias_aliases, ignored=("pos_emb.inv_freq",))


def _pytorch_biases(settings: TransformerSettings, body: str) -> tuple[list[Link], dict[str, str]]:
    """Return links and aliases of u and v, which are stored in every layer even if all layers share them."""
    links: list[Link] = []
    aliases: dict[str, str] = {}
    for ours, theirs in (("encoding.content_bias", "r_w_bias"), ("encoding.position_bias", "r_r_bias")):
        in_layers = tuple(f"{body}layers.{number}.dec_attn.{theirs}" for number in range(settings.n_layers))
        if settings.tie_biases:
            aliases |= dict.fromkeys(in_layers, f"{body}{theirs}")
        names = (f"{body}{theirs}",) if settings.tie_biases else in_layers
        links.append(Link((ours,), names, (settings.n_heads, settings.d_head)))
    return links, aliases


def _banded(
    ours: str, theirs: str, settings: TransformerSettings, cut: Sequence[Band], *, vectors: bool = False
) -> Iterator[Link]:
    """Yield links for the tables, or vectors, of the bands; theirs are one tensor if all bands have the same width.

    `theirs` is their name, with {} for the number of a band.
    """

    def shape(rows: int, band: Band) -> tuple[int, ...]:
        return (rows,) if vectors else (rows, band.width)

    if settings.div_val == 1:
        yield Link(
            tuple(f"{ours}.{number}" for number in range(len(cut))), (theirs.format(0),), shape(cut[-1].end, cut[0])
        )
        return
    for number, band in enumerate(cut):
        yield Link((f"{ours}.{number}",), (theirs.format(number),), shape(band.size, band))


def _projections(cut: Sequence[Band]) -> list[tuple[int, int]]:
    """Return index and input width of each projection of the embedding."""
    return sorted({(band.projection, band.width) for band in cut if band.projection is not None})


def _layer(settings: TransformerSettings, number: int, prefix: str, *, tf: bool) -> Iterator[Link]:
    d, inner, width = settings.d_model, settings.d_inner, settings.n_heads * settings.d_head
    ours = f"layers.{number}."
    # Our tensors in the layer, their shape, and the names in PyTorch and TF.
    rows: list[tuple[str, tuple[int, ...], str, str]] = [
        ("attention.w_o.weight", (d, width), "dec_attn.o_net.weight", "rel_attn/o/kernel"),
        ("feed_forward.ff_1.weight", (inner, d), "pos_ff.CoreNet.0.weight", "ff/layer_1/kernel"),
        ("feed_forward.ff_1.bias", (inner,), "pos_ff.CoreNet.0.bias", "ff/layer_1/bias"),
        ("feed_forward.ff_2.weight", (d, inner), "pos_ff.CoreNet.3.weight", "ff/layer_2/kernel"),
        ("feed_forward.ff_2.bias", (d,), "pos_ff.CoreNet.3.bias", "ff/layer_2/bias"),
        ("attention_norm.weight", (d,), "dec_attn.layer_norm.weight", "rel_attn/LayerNorm/gamma"),
        ("attention_norm.bias", (d,), "dec_attn.layer_norm.bias", "rel_attn/LayerNorm/beta"),
        ("ff_norm.weight", (d,), "pos_ff.layer_norm.weight", "ff/LayerNorm/gamma"),
        ("ff_norm.bias", (d,), "pos_ff.layer_norm.bias", "ff/LayerNorm/beta"),
    ]

    def link(tensors: tuple[str, ...], shape: tuple[int, ...], in_pytorch: str, in_tf: str) -> Link:
        turned = tf and len(shape) == 2
        name = prefix + (in_tf if tf else in_pytorch)
        return Link(tensors, (name,), shape[::-1] if turned else shape, transposed=turned)

    qkv = tuple(f"{ours}attention.{name}.weight" for name in ("w_q", "w_k_content", "w_v"))
    position = (f"encoding.w_k_position.{number}.weight",)
    yield link(qkv, (3 * width, d), "dec_attn.qkv_net.weight", "rel_attn/qkv/kernel")
    yield link(position, (width, d), "dec_attn.r_net.weight", "rel_attn/r/kernel")
    for name, shape, in_pytorch, in_tf in rows:
        yield link((ours + name,), shape, in_pytorch, in_tf)


def to_hugging_face(model: TransformerXL) -> dict[str, Tensor]:
    """Return the weights under Hugging Face's names.

    Hugging Face projects every band if div_val is above 1; a band that txl does not project gets the identity.
    """
    settings = model.settings
    ours = dict(model.named_parameters())
    projected = dataclasses.replace(settings, project_same_width=True)
    for name, shape in our_shapes(projected, model.vocab_size).items():
        if name not in ours:
            ours[name] = nn.Parameter(torch.eye(*shape))
    return pytorch_layout(projected, model.vocab_size, hugging_face=True).write(ours)


def tf_layout(settings: TransformerSettings, vocab_size: int) -> Layout:
    """Return the layout of the variables in the released TF code's checkpoints, without `:0`."""
    _check_block(settings)
    if settings.norm != "post":
        raise RecipeError(f'[model] norm = "{settings.norm}" is not in the released TF code; set it to "post"')
    if not settings.tie_embeddings:
        raise RecipeError("[model] tie_embeddings = false is not in the released TF code; set it to true")
    cut = bands(settings, vocab_size)
    d, root = settings.d_model, "transformer/"
    embed, softmax = f"{root}adaptive_embed/", f"{root}adaptive_softmax/"
    plain = len(cut) == 1
    in_softmax = "cutoff_{}/"
    in_embed = "" if settings.div_val == 1 else in_softmax
    links = list(_banded("embedding.tables", f"{embed}{in_embed}lookup_table", settings, cut))
    for number, width in _projections(cut):
        name = f"{embed}{in_embed.format(number)}proj_W"
        links.append(Link((f"embedding.projections.{number}",), (name,), (width, d), transposed=True))
    for i, band in enumerate(cut):
        bias = f"{softmax}bias" if plain else f"{softmax}{in_softmax.format(i)}b"
        links.append(Link((f"softmax.biases.{i}",), (bias,), (band.size,)))
        if band.projection is not None and not band.shared:
            name = f"{softmax}{in_softmax.format(i)}proj"
            links.append(Link((f"softmax.projections.{i}",), (name,), (band.width, d), transposed=True))
    if not plain:
        tails = len(cut) - 1
        links += [
            Link(("softmax.cluster_weight",), (f"{softmax}cutoff_0/cluster_W",), (tails, cut[0].width)),
            Link(("softmax.cluster_bias",), (f"{softmax}cutoff_0/cluster_b",), (tails,)),
        ]
    for number in range(settings.n_layers):
        links += _layer(settings, number, f"{root}layer_{number}/", tf=True)
    heads = (settings.n_heads, settings.d_head)
    pairs = heads if settings.tie_biases else (settings.n_layers, *heads)
    links += [
        Link(("encoding.content_bias",), (f"{root}r_w_bias",), pairs),
        Link(("encoding.position_bias",), (f"{root}r_r_bias",), pairs),
    ]
    return Layout(tuple(links), {}, ignored=("/Adam", "/Adam_1", "global_step", "beta1_power", "beta2_power"))
