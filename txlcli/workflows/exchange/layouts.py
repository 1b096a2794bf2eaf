"""Names of our parameters in other systems, by the part of a name without its number.

The number n of a name is that of the layer, band or projection. Parameters with the same name in another system are
concatenated there.
"""

import re
from dataclasses import dataclass
from typing import Literal

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


def is_weight(name: str) -> bool:
    """Return False for tensors that are not weights, such as transformer/r_w_bias/Adam."""
    return not name.endswith(NOT_WEIGHTS)


def is_transposed(name: str) -> bool:
    """Return True for matrices (in, out), as transformer/layer_0/ff/layer_1/kernel; all others are (out, in)."""
    return name.endswith(("/kernel", "/proj_W", "/proj"))


@dataclass(frozen=True)
class Naming:
    """Names of the parameters of a model in a system."""

    system: System
    has_one_table: bool
    """True if all bands of the vocabulary share one table (div_val = 1)."""
    has_cutoffs: bool

    def of(self, ours: str) -> str:
        """Return the name of one of our parameters: layers.2.ff_norm.bias is layers.2.pos_ff.layer_norm.bias."""
        number = re.search(r"\.(\d+)", ours)
        n = int(number[1]) if number else 0
        part = re.sub(r"\.\d+", "", ours)
        if self.system == "tf":
            return self._tf(part, n)
        name = self._pytorch(part, n)
        if self.system == "hugging_face" and not name.startswith("crit."):
            return f"transformer.{name}"
        return name

    def _pytorch(self, part: str, n: int) -> str:
        table = 0 if self.has_one_table else n
        attention = f"layers.{n}.dec_attn"
        feed_forward = f"layers.{n}.pos_ff"
        names = {
            "embedding.tables": f"word_emb.emb_layers.{table}.weight",
            "embedding.projections": f"word_emb.emb_projs.{n}",
            "softmax.tables": f"crit.out_layers.{table}.weight",
            "softmax.biases": f"crit.out_layers.{table}.bias",
            "softmax.projections": f"crit.out_projs.{n}",
            "softmax.cluster_weight": "crit.cluster_weight",
            "softmax.cluster_bias": "crit.cluster_bias",
            "encoding.content_bias": "r_w_bias",
            "encoding.position_bias": "r_r_bias",
            "layers.encoding.content_bias": f"{attention}.r_w_bias",
            "layers.encoding.position_bias": f"{attention}.r_r_bias",
            "encoding.w_k_position.weight": f"{attention}.r_net.weight",
            "layers.attention.w_q.weight": f"{attention}.qkv_net.weight",
            "layers.attention.w_k_content.weight": f"{attention}.qkv_net.weight",
            "layers.attention.w_v.weight": f"{attention}.qkv_net.weight",
            "layers.attention.w_o.weight": f"{attention}.o_net.weight",
            "layers.attention_norm.weight": f"{attention}.layer_norm.weight",
            "layers.attention_norm.bias": f"{attention}.layer_norm.bias",
            "layers.feed_forward.ff_1.weight": f"{feed_forward}.CoreNet.0.weight",
            "layers.feed_forward.ff_1.bias": f"{feed_forward}.CoreNet.0.bias",
            "layers.feed_forward.ff_2.weight": f"{feed_forward}.CoreNet.3.weight",
            "layers.feed_forward.ff_2.bias": f"{feed_forward}.CoreNet.3.bias",
            "layers.ff_norm.weight": f"{feed_forward}.layer_norm.weight",
            "layers.ff_norm.bias": f"{feed_forward}.layer_norm.bias",
        }
        return names[part]

    def _tf(self, part: str, n: int) -> str:
        """Return the name of a variable without ":0"."""
        embedding = "transformer/adaptive_embed"
        if not self.has_one_table:
            embedding += f"/cutoff_{n}"
        softmax = "transformer/adaptive_softmax"
        biases = f"{softmax}/bias"
        if self.has_cutoffs:
            biases = f"{softmax}/cutoff_{n}/b"
        attention = f"transformer/layer_{n}/rel_attn"
        feed_forward = f"transformer/layer_{n}/ff"
        names = {
            "embedding.tables": f"{embedding}/lookup_table",
            "embedding.projections": f"{embedding}/proj_W",
            "softmax.biases": biases,
            "softmax.projections": f"{softmax}/cutoff_{n}/proj",
            "softmax.cluster_weight": f"{softmax}/cutoff_0/cluster_W",
            "softmax.cluster_bias": f"{softmax}/cutoff_0/cluster_b",
            "encoding.content_bias": "transformer/r_w_bias",
            "encoding.position_bias": "transformer/r_r_bias",
            "encoding.w_k_position.weight": f"{attention}/r/kernel",
            "layers.attention.w_q.weight": f"{attention}/qkv/kernel",
            "layers.attention.w_k_content.weight": f"{attention}/qkv/kernel",
            "layers.attention.w_v.weight": f"{attention}/qkv/kernel",
            "layers.attention.w_o.weight": f"{attention}/o/kernel",
            "layers.attention_norm.weight": f"{attention}/LayerNorm/gamma",
            "layers.attention_norm.bias": f"{attention}/LayerNorm/beta",
            "layers.feed_forward.ff_1.weight": f"{feed_forward}/layer_1/kernel",
            "layers.feed_forward.ff_1.bias": f"{feed_forward}/layer_1/bias",
            "layers.feed_forward.ff_2.weight": f"{feed_forward}/layer_2/kernel",
            "layers.feed_forward.ff_2.bias": f"{feed_forward}/layer_2/bias",
            "layers.ff_norm.weight": f"{feed_forward}/LayerNorm/gamma",
            "layers.ff_norm.bias": f"{feed_forward}/LayerNorm/beta",
        }
        return names[part]
