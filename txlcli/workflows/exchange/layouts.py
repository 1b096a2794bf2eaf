"""Names of our parameters in other systems. Parameters with the same name in another system are concatenated there."""

import re
from typing import Literal

from txlcli.config.model_settings import TransformerSettings

System = Literal["hugging_face", "pytorch", "tf"]
SYSTEMS: dict[System, str] = {
    "hugging_face": "Hugging Face TransfoXL",
    "pytorch": "the released PyTorch code",
    "tf": "the released TF code",
}
NOT_WEIGHTS = ("pos_emb.inv_freq", "/Adam", "/Adam_1", "global_step", "beta1_power", "beta2_power")
"""Ends of the names of buffers, and of what optimizers store."""
SUPPORTED: dict[str, tuple[object, ...]] = {
    "arch": ("transformer",),
    "position": ("relative",),
    "auxiliary_losses": (False,),
    "norm": ("post", "pre_released"),
    "window": ("none",),
    "gating": ("residual",),
    "norm_type": ("layer",),
    "feed_forward": ("relu",),
    "qk_norm": ("none",),
    "biases": ("all",),
}
"""Values of [model] with which other systems have the same model."""
SUPPORTED_BY_TF: dict[str, tuple[object, ...]] = {**SUPPORTED, "norm": ("post",), "tie_embeddings": (True,)}

PYTORCH = {
    "embedding.tables": "word_emb.emb_layers.{table}.weight",
    "embedding.projections": "word_emb.emb_projs.{n}",
    "softmax.tables": "crit.out_layers.{table}.weight",
    "softmax.biases": "crit.out_layers.{table}.bias",
    "softmax.projections": "crit.out_projs.{n}",
    "softmax.cluster_weight": "crit.cluster_weight",
    "softmax.cluster_bias": "crit.cluster_bias",
    "encoding.content_bias": "r_w_bias",
    "encoding.position_bias": "r_r_bias",
    "layers.encoding.content_bias": "layers.{n}.dec_attn.r_w_bias",
    "layers.encoding.position_bias": "layers.{n}.dec_attn.r_r_bias",
    "encoding.w_k_position.weight": "layers.{n}.dec_attn.r_net.weight",
    "layers.attention.w_q.weight": "layers.{n}.dec_attn.qkv_net.weight",
    "layers.attention.w_k_content.weight": "layers.{n}.dec_attn.qkv_net.weight",
    "layers.attention.w_v.weight": "layers.{n}.dec_attn.qkv_net.weight",
    "layers.attention.w_o.weight": "layers.{n}.dec_attn.o_net.weight",
    "layers.attention_norm.weight": "layers.{n}.dec_attn.layer_norm.weight",
    "layers.attention_norm.bias": "layers.{n}.dec_attn.layer_norm.bias",
    "layers.feed_forward.ff_1.weight": "layers.{n}.pos_ff.CoreNet.0.weight",
    "layers.feed_forward.ff_1.bias": "layers.{n}.pos_ff.CoreNet.0.bias",
    "layers.feed_forward.ff_2.weight": "layers.{n}.pos_ff.CoreNet.3.weight",
    "layers.feed_forward.ff_2.bias": "layers.{n}.pos_ff.CoreNet.3.bias",
    "layers.ff_norm.weight": "layers.{n}.pos_ff.layer_norm.weight",
    "layers.ff_norm.bias": "layers.{n}.pos_ff.layer_norm.bias",
}
"""Names in the released PyTorch code, by our name without its number n: that of the layer, band or projection."""
TF = {
    "embedding.tables": "transformer/adaptive_embed{band}/lookup_table",
    "embedding.projections": "transformer/adaptive_embed{band}/proj_W",
    "softmax.biases": "transformer/adaptive_softmax/cutoff_{n}/b",
    "softmax.projections": "transformer/adaptive_softmax/cutoff_{n}/proj",
    "softmax.cluster_weight": "transformer/adaptive_softmax/cutoff_0/cluster_W",
    "softmax.cluster_bias": "transformer/adaptive_softmax/cutoff_0/cluster_b",
    "encoding.content_bias": "transformer/r_w_bias",
    "encoding.position_bias": "transformer/r_r_bias",
    "encoding.w_k_position.weight": "transformer/layer_{n}/rel_attn/r/kernel",
    "layers.attention.w_q.weight": "transformer/layer_{n}/rel_attn/qkv/kernel",
    "layers.attention.w_k_content.weight": "transformer/layer_{n}/rel_attn/qkv/kernel",
    "layers.attention.w_v.weight": "transformer/layer_{n}/rel_attn/qkv/kernel",
    "layers.attention.w_o.weight": "transformer/layer_{n}/rel_attn/o/kernel",
    "layers.attention_norm.weight": "transformer/layer_{n}/rel_attn/LayerNorm/gamma",
    "layers.attention_norm.bias": "transformer/layer_{n}/rel_attn/LayerNorm/beta",
    "layers.feed_forward.ff_1.weight": "transformer/layer_{n}/ff/layer_1/kernel",
    "layers.feed_forward.ff_1.bias": "transformer/layer_{n}/ff/layer_1/bias",
    "layers.feed_forward.ff_2.weight": "transformer/layer_{n}/ff/layer_2/kernel",
    "layers.feed_forward.ff_2.bias": "transformer/layer_{n}/ff/layer_2/bias",
    "layers.ff_norm.weight": "transformer/layer_{n}/ff/LayerNorm/gamma",
    "layers.ff_norm.bias": "transformer/layer_{n}/ff/LayerNorm/beta",
}
"""Names in the released TF code, without ":0". Several tables of a vocabulary have the names of their bands."""


def is_weight(name: str) -> bool:
    """Return False for tensors that are not weights, such as transformer/r_w_bias/Adam."""
    return not name.endswith(NOT_WEIGHTS)


def is_transposed(name: str) -> bool:
    """Return True for matrices (in, out), as transformer/layer_0/ff/layer_1/kernel; all others are (out, in)."""
    return name.endswith(("/kernel", "/proj_W", "/proj"))


def name_of(ours: str, system: System, settings: TransformerSettings) -> str:
    """Return the name of one of our parameters: layers.2.ff_norm.bias is layers.2.pos_ff.layer_norm.bias."""
    number = re.search(r"\.(\d+)", ours)
    n = number[1] if number else "0"
    part = re.sub(r"\.\d+", "", ours)
    has_one_table = settings.div_val == 1
    if system == "tf":
        if part == "softmax.biases" and not settings.cutoffs:
            return "transformer/adaptive_softmax/bias"
        return TF[part].format(n=n, band="" if has_one_table else f"/cutoff_{n}")
    name = PYTORCH[part].format(n=n, table="0" if has_one_table else n)
    if system == "hugging_face" and not name.startswith("crit."):
        return f"transformer.{name}"
    return name
