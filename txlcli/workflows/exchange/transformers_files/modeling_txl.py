"""Transformer-XL (Dai et al. 2019) for Hugging Face Transformers, as `txl export` wrote it.

A text is read in segments of L tokens. A token attends to the tokens of its segment up to itself, and to the M tokens
before the segment, whose keys and values a cache keeps: the memory of section 3.2. With a `key_limit`, it attends to
the last so many of these. It does not matter how a text is divided into calls. Without memory (M = 0) a text is one
segment.

Axes: B batch, T tokens of a call, K keys, H heads, D head width, d model width, n distances, V vocabulary.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, StaticCache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""Name of the cache in an output; it was the second one in earlier releases of Transformers 5."""


class TxlConfig(PreTrainedConfig):
    """Settings of a model, with the names of `txl recipes keys`, and of its evaluation.

    `n_learned_vectors` is called `n_positions` there. `n_positions` is the number of tokens of the longest text, None
    without a limit. `bands` are those of adaptive embedding and softmax: first and end of the ids, width, number of the
    projection, and if the softmax shares it. `key_limit` is the largest number of keys of a token, itself included.
    """

    model_type = "txl"
    use_cache = True
    attribute_map = {"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}

    def __init__(self, **settings):
        settings.setdefault("tie_word_embeddings", False)  # the softmax reads the tables of the embedding itself
        super().__init__(**settings)
        if settings.get("mem_len"):
            self.sliding_window = self.key_limit or self.mem_len + self.segment_len
            self.layer_types = ["sliding_attention"] * self.n_layers
        elif "n_layers" in settings:
            self.layer_types = ["full_attention"] * self.n_layers


class Dropout(nn.Module):
    """Dropout; variational dropout has one mask for all positions, the second last axis."""

    def __init__(self, config, rate):
        super().__init__()
        self.rate = rate
        self.variational = config.variational_dropout

    def forward(self, hidden):
        if not (self.training and self.variational):
            return F.dropout(hidden, self.rate, self.training)
        shape = list(hidden.shape)
        shape[-2] = 1
        return hidden * F.dropout(hidden.new_ones(shape), self.rate)


def in_float64(numbers: Tensor) -> Tensor:
    """Cast to float64, on the host if the device is a GPU of Apple's, which has none."""
    if numbers.device.type == "mps":
        numbers = numbers.cpu()
    return numbers.double()


def sinusoids(position: Tensor, width: int) -> Tensor:
    """Return R of section 3.3: sines, then cosines, (..., width) in float64, of positions or distances (...)."""
    position = in_float64(position)
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, dtype=position.dtype, device=position.device) / width)
    angle = position[..., None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def split_heads(projected: Tensor, n_heads: int) -> Tensor:
    """(..., x, H * D) -> (..., H, x, D)."""
    return projected.unflatten(-1, (n_heads, -1)).transpose(-3, -2)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Cast 16-bit numbers to float32: no softmax is computed in 16 bits."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def make_norm(config: TxlConfig) -> nn.Module:
    """Return the normalization of hidden states."""
    if config.norm_type == "rms":
        return nn.RMSNorm(config.d_model, config.norm_eps)
    return nn.LayerNorm(config.d_model, config.norm_eps, bias=config.biases == "all")


class Encoding(nn.Module):
    """Positions: no encoding, and the base class of the others."""

    def __init__(self, config):
        super().__init__()
        self.config = config

    def add_to_embedding(self, hidden: Tensor, place: Tensor) -> Tensor:
        """Change the embeddings (B, T, d) of tokens at their places in the segment (B, T)."""
        return hidden

    def add_to_layer_input(self, hidden: Tensor, layer: int, place: Tensor) -> Tensor:
        """Change what a layer reads, likewise."""
        return hidden

    def rotate(self, heads: Tensor, position: Tensor) -> Tensor:
        """Change queries or keys (B, H, x, D) at positions of the text (B, x)."""
        return heads

    def encode_distances(self, count: int, like: Tensor) -> Tensor | None:
        """Return vectors of the distances 0 .. n - 1 that layers project, (n, d)."""
        return None

    def score(self, attention: "Attention", query: Tensor, key: Tensor, distance: Tensor, encoded) -> Tensor:
        """Return the scores (B, H, T, K) of keys for queries at distances (B, T, K)."""
        return query @ key.mT * self.config.d_head**-0.5


class TiedRelativeEncoding(Encoding):
    """Section 3.3 with the projections of the hidden states: W_k R for W_kR R, and W_q R_0 for u and v."""

    def __init__(self, config):
        super().__init__(config)
        self.dropout = Dropout(config, config.distance_dropout)

    def encode_distances(self, count, like):
        distance = torch.arange(count, device=like.device)
        return self.dropout(sinusoids(distance, self.config.d_model).to(like))

    def keys_and_biases(self, attention, encoded):
        """Return W_kR R, (n, H * D), and the biases u and v, (H, D) each."""
        bias = attention.projection_dropout(attention.w_q(encoded[:1])).view(self.config.n_heads, -1)
        return attention.projection_dropout(attention.w_k_content(encoded)), bias, bias

    def score(self, attention, query, key, distance, encoded):
        keys, u, v = self.keys_and_biases(attention, encoded)
        content = (query + u[:, None]) @ key.mT  # (a) + (c)
        by_distance = (query + v[:, None]) @ split_heads(keys, self.config.n_heads).mT  # (b) + (d): (B, H, T, n)
        index = distance[:, None].expand(-1, self.config.n_heads, -1, -1)
        return (content + by_distance.gather(-1, index)) * self.config.d_head**-0.5


class RelativeEncoding(TiedRelativeEncoding):
    """The encoding of the paper, section 3.3."""

    def __init__(self, config):
        super().__init__(config)
        pairs = 1 if config.tie_biases else config.n_layers
        self.content_bias = nn.Parameter(torch.empty(pairs, config.n_heads, config.d_head))  # u
        self.position_bias = nn.Parameter(torch.empty(pairs, config.n_heads, config.d_head))  # v
        width = config.n_heads * config.d_head
        self.w_k_position = nn.ModuleList(nn.Linear(config.d_model, width, bias=False) for _ in range(config.n_layers))

    def keys_and_biases(self, attention, encoded):
        number = attention.number
        pair = 0 if self.config.tie_biases else number
        return self.w_k_position[number](encoded), self.content_bias[pair], self.position_bias[pair]


class ShawEncoding(Encoding):
    """Shaw et al. (2018): a learned vector for each distance; larger distances share the last one."""

    def __init__(self, config):
        super().__init__(config)
        width = config.n_heads * config.d_head
        tables = (torch.empty(config.n_learned_vectors, width) for _ in range(config.n_layers))
        self.distance_tables = nn.ParameterList(nn.Parameter(table) for table in tables)

    def score(self, attention, query, key, distance, encoded):
        keys = split_heads(self.distance_tables[attention.number], self.config.n_heads)
        index = distance.clamp(max=self.config.n_learned_vectors - 1)[:, None].expand(-1, self.config.n_heads, -1, -1)
        return (query @ key.mT + (query @ keys.mT).gather(-1, index)) * self.config.d_head**-0.5


class SinusoidEncoding(Encoding):
    """Vaswani et al. (2017): sinusoids of places in the segment, added to the embeddings."""

    def add_to_embedding(self, hidden, place):
        return hidden + sinusoids(place, self.config.d_model).to(hidden)


class LearnedEncoding(Encoding):
    """Al-Rfou et al. (2018): a learned vector for each place in the segment and layer."""

    def __init__(self, config):
        super().__init__(config)
        tables = (torch.empty(config.n_learned_vectors, config.d_model) for _ in range(config.n_layers))
        self.position_tables = nn.ParameterList(nn.Parameter(table) for table in tables)

    def add_to_layer_input(self, hidden, layer, place):
        if place.max() >= self.config.n_learned_vectors:
            raise ValueError(
                f"the model has learned {self.config.n_learned_vectors} positions; give it at most as many tokens"
            )
        return hidden + self.position_tables[layer][place]


class RotaryEncoding(Encoding):
    """Su et al. (2021): queries and keys are rotated by their positions."""

    def rotate(self, heads, position):
        wide = at_least_float32(heads)
        sine, cosine = sinusoids(position, self.config.d_head)[:, None].to(wide).chunk(2, dim=-1)
        first, second = wide.chunk(2, dim=-1)
        rotated = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
        return rotated.to(heads.dtype)


class AlibiEncoding(Encoding):
    """Press et al. (2022): a penalty that grows with the distance, at a slope of each head."""

    def score(self, attention, query, key, distance, encoded):
        heads = self.config.n_heads
        power = 1 << (heads.bit_length() - 1)
        slopes = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
        slopes += [2.0 ** (-4 * head / power) for head in range(1, 2 * (heads - power), 2)]
        distance_of_head = in_float64(distance)[:, None]
        penalty = distance_of_head.new_tensor(slopes)[:, None, None] * distance_of_head
        return super().score(attention, query, key, distance, encoded) - penalty.to(query)


class T5Encoding(Encoding):
    """Raffel et al. (2020): a learned bias for each head and range of distances, shared by all layers."""

    BUCKETS = 32
    FARTHEST = 128

    def __init__(self, config):
        super().__init__(config)
        self.bucket_biases = nn.Parameter(torch.empty(config.n_heads, self.BUCKETS))

    def score(self, attention, query, key, distance, encoded):
        exact = self.BUCKETS // 2
        share = (in_float64(distance.clamp(min=exact)) / exact).log() / math.log(self.FARTHEST / exact)
        ranges = (exact + (share * (self.BUCKETS - exact)).long()).clamp(max=self.BUCKETS - 1).to(distance.device)
        bias = self.bucket_biases[:, torch.where(distance < exact, distance, ranges)]  # (H, B, T, K)
        return super().score(attention, query, key, distance, encoded) + bias.transpose(0, 1)


ENCODINGS = {
    "relative": RelativeEncoding,
    "relative_tied": TiedRelativeEncoding,
    "shaw": ShawEncoding,
    "sinusoid": SinusoidEncoding,
    "learned": LearnedEncoding,
    "rotary": RotaryEncoding,
    "alibi": AlibiEncoding,
    "t5": T5Encoding,
    "none": Encoding,
}


class Attention(nn.Module):
    """Multi-head attention of one layer, section 3.3."""

    def __init__(self, config, number):
        super().__init__()
        self.config = config
        self.number = number
        width = config.n_heads * config.d_head
        self.w_q = nn.Linear(config.d_model, width, bias=False)
        self.w_k_content = nn.Linear(config.d_model, width, bias=False)
        self.w_v = nn.Linear(config.d_model, width, bias=False)
        self.w_o = nn.Linear(width, config.d_model, bias=False)
        normalizes = config.qk_norm == "rms"
        self.q_norm = nn.RMSNorm(config.d_head, config.norm_eps) if normalizes else nn.Identity()
        self.k_norm = nn.RMSNorm(config.d_head, config.norm_eps) if normalizes else nn.Identity()
        self.projection_dropout = Dropout(config, config.projection_dropout)

    def keys_and_values(self, hidden: Tensor, position: Tensor, encoding: Encoding) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, H, x, D) of hidden states (B, x, d) at positions (B, x)."""
        key = self.k_norm(split_heads(self.w_k_content(hidden), self.config.n_heads))
        return encoding.rotate(key, position), split_heads(self.w_v(hidden), self.config.n_heads)

    def forward(self, hidden, zeros, encoding, encoded, context, cache):
        """Attend from hidden states (B, T, d) to the keys of `context`; `zeros` (B, M, d) are read before all text."""
        key, value = self.keys_and_values(hidden, context.position, encoding)
        key, value = (heads[:, :, -context.n_keys :] for heads in cache.update(key, value, self.number))
        if zeros is not None:
            first_key, first_value = self.keys_and_values(zeros, context.zeros_position, encoding)
            key = torch.cat([first_key, key], dim=2)
            value = torch.cat([first_value, value], dim=2)
        query = self.q_norm(split_heads(self.w_q(hidden), self.config.n_heads))
        query = encoding.rotate(query, context.position)
        query, key, value = (self.projection_dropout(heads) for heads in (query, key, value))
        score = at_least_float32(encoding.score(self, query, key, context.distance, encoded))
        score = score.masked_fill(~context.visible[:, None], torch.finfo(score.dtype).min)
        probability = F.dropout(score.softmax(-1), self.config.attention_dropout, self.training).to(value.dtype)
        return self.w_o((probability @ value).transpose(1, 2).flatten(2))


class Context:
    """Which keys the tokens of a call may see.

    Args:
        config: settings of the model.
        position: of each token in its text, (B, T).
        key_position: of each key, (B, K).
        is_token: False for keys that are padding, (B, K).
    """

    def __init__(self, config: TxlConfig, position: Tensor, key_position: Tensor, is_token: Tensor) -> None:
        self.position = position
        self.place = position
        first = torch.zeros_like(position)  # position of the first key that a token may see
        if config.mem_len:
            self.place = position % config.segment_len
            first = position - self.place - config.mem_len
        self.n_keys = key_position.shape[1]  # of tokens; a cache may keep more
        self.zeros_position = None
        if config.memory_start == "zeros" and config.mem_len:
            memory = torch.arange(-config.mem_len, 0, device=position.device).expand(len(position), -1)
            self.zeros_position = memory
            key_position = torch.cat([memory, key_position], dim=1)
            is_token = torch.cat([torch.ones_like(memory, dtype=torch.bool), is_token], dim=1)
        distance = position[:, :, None] - key_position[:, None]
        visible = (distance >= 0) & (key_position[:, None] >= first[:, :, None]) & is_token[:, None]
        if config.key_limit is not None:
            visible &= distance < config.key_limit
        self.visible = visible
        self.distance = distance.clamp(min=0, max=config.max_distance)


class FeedForward(nn.Module):
    """W_2 relu(W_1 h + b_1) + b_2, or SwiGLU (Shazeer 2020)."""

    def __init__(self, config):
        super().__init__()
        bias = config.biases == "all"
        self.ff_1 = nn.Linear(config.d_model, config.inner_width, bias=bias)
        self.ff_2 = nn.Linear(config.inner_width, config.d_model, bias=bias)
        self.ff_gate = None
        if config.feed_forward == "swiglu":
            self.ff_gate = nn.Linear(config.d_model, config.inner_width, bias=bias)
        self.dropout = Dropout(config, config.inner_dropout)

    def forward(self, hidden):
        inner = self.ff_1(hidden)
        if self.ff_gate is None:
            inner = F.relu(inner)
        else:
            inner = F.silu(self.ff_gate(hidden)) * inner
        return self.ff_2(self.dropout(inner))


class GruGate(nn.Module):
    """A gated recurrent unit in place of a residual sum (GTrXL, Parisotto et al. 2020)."""

    def __init__(self, d_model):
        super().__init__()
        for name in ("w_r", "w_z", "w_g", "u_r", "u_z", "u_g"):
            self.add_module(name, nn.Linear(d_model, d_model, bias=False))
        self.update_bias = nn.Parameter(torch.empty(d_model))

    def forward(self, hidden, branch):
        reset = torch.sigmoid(self.w_r(branch) + self.u_r(hidden))
        update = torch.sigmoid(self.w_z(branch) + self.u_z(hidden) - self.update_bias)
        candidate = torch.tanh(self.w_g(branch) + self.u_g(reset * hidden))
        return hidden + update * (candidate - hidden)


class Layer(nn.Module):
    """Attention over memory and segment, then the feed-forward sublayer, each with residual and norm."""

    def __init__(self, config, number):
        super().__init__()
        self.config = config
        self.attention = Attention(config, number)
        self.attention_norm = make_norm(config)
        self.feed_forward = FeedForward(config)
        self.ff_norm = make_norm(config)
        gated = config.gating == "gru"
        self.attention_gate = GruGate(config.d_model) if gated else None
        self.feed_forward_gate = GruGate(config.d_model) if gated else None
        self.dropout = Dropout(config, config.dropout)
        self.feed_forward_dropout = Dropout(config, config.feed_forward_dropout)

    def forward(self, hidden, encoding, encoded, context, cache):
        pre_norm = self.config.norm != "post"
        before = self.attention_norm if pre_norm else nn.Identity()
        zeros = None
        if context.zeros_position is not None:
            zeros = before(hidden.new_zeros(*context.zeros_position.shape, self.config.d_model))
        branch = self.attention(before(hidden), zeros, encoding, encoded, context, cache)
        hidden = self.join(hidden, branch, self.dropout, self.attention_gate)
        if not pre_norm:
            hidden = self.attention_norm(hidden)
        inner = self.ff_norm(hidden) if pre_norm else hidden
        branch = self.feed_forward(inner)
        hidden = self.join(hidden, branch, self.feed_forward_dropout, self.feed_forward_gate)
        return hidden if pre_norm else self.ff_norm(hidden)

    @staticmethod
    def join(hidden, branch, dropout, gate):
        """Add the output of a sublayer to the hidden states (B, T, d), or gate both."""
        if gate is None:
            return hidden + dropout(branch)
        return gate(hidden, dropout(F.relu(branch)))


class AdaptiveEmbedding(nn.Module):
    """One table for each band of ids, and projections to model width for the bands that have them."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.tables = nn.ParameterList(torch.empty(band["end"] - band["first"], band["width"]) for band in config.bands)
        self.projections = nn.ParameterDict()
        for band in config.bands:  # several may share a projection
            if band["projection"] is not None:
                matrix = nn.Parameter(torch.empty(config.d_model, band["width"]))
                self.projections[str(band["projection"])] = matrix

    def forward(self, tokens):
        """Embed ids (B, T) -> (B, T, d), not yet scaled."""
        embedded = self.tables[0].new_zeros(*tokens.shape, self.config.d_model)
        last = len(self.tables) - 1
        for number, (table, band) in enumerate(zip(self.tables, self.config.bands, strict=True)):
            row = tokens - band["first"]
            if number > 0:
                row = row.clamp(min=0)
            if number < last:
                row = row.clamp(max=len(table) - 1)
            vectors = F.embedding(row, table)  # an id outside of the vocabulary is an error
            if band["projection"] is not None:
                vectors = F.linear(vectors, self.projections[str(band["projection"])])
            is_own = (tokens >= band["first"]) & (tokens < band["end"])
            embedded = torch.where(is_own[..., None], vectors, embedded)
        if not self.training or self.config.word_dropout == 0:
            return embedded
        kept = torch.rand(self.config.vocab_size, device=tokens.device) >= self.config.word_dropout
        dropped = max(1e-12, torch.finfo(embedded.dtype).tiny)  # a zero has no finite gradient in many layer norms
        return torch.where(kept[tokens][..., None], embedded / (1 - self.config.word_dropout), dropped)


class AdaptiveSoftmax(nn.Module):
    """Adaptive softmax (Grave et al. 2016): the head band and one cluster for each tail, then the ids of the tail."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.biases = nn.ParameterList(torch.empty(band["end"] - band["first"]) for band in config.bands)
        self.tables = nn.ParameterList()
        self.projections = nn.ParameterDict()
        for number, band in enumerate(config.bands):
            if not config.tie_embeddings:
                self.tables.append(nn.Parameter(torch.empty(band["end"] - band["first"], band["width"])))
            if band["projection"] is not None and not band["shared"]:
                self.projections[str(number)] = nn.Parameter(torch.empty(config.d_model, band["width"]))
        tails = len(config.bands) - 1
        if tails:
            self.cluster_weight = nn.Parameter(torch.empty(tails, config.bands[0]["width"]))
            self.cluster_bias = nn.Parameter(torch.empty(tails))

    def forward(self, hidden: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Return logits, or log-probabilities if there are tails: (B, T, d) -> (B, T, V)."""
        tables = self.tables if len(self.tables) else embedding.tables
        projected = []
        for number, band in enumerate(self.config.bands):
            if band["projection"] is None:
                projected.append(hidden)
            elif band["shared"]:
                projected.append(hidden @ embedding.projections[str(band["projection"])])
            else:
                projected.append(hidden @ self.projections[str(number)])
        bands = zip(projected, tables, self.biases, strict=True)
        temperature = self.config.softmax_temperature
        head, *tails = [at_least_float32(F.linear(*of_band)) / temperature for of_band in bands]
        if not tails:
            return head
        clusters = at_least_float32(F.linear(projected[0], self.cluster_weight, self.cluster_bias)) / temperature
        both = torch.cat([head, clusters], dim=-1).log_softmax(-1)
        parts = [both[..., : head.shape[-1]]]
        for number, tail in enumerate(tails):
            parts.append(both[..., head.shape[-1] + number, None] + tail.log_softmax(-1))
        return torch.cat(parts, dim=-1)


def check_positions(position_ids: Tensor | None, position: Tensor, is_token: Tensor) -> None:
    """Reject positions (B, T) that are not those of the last T tokens of each row, as of several texts in one row."""
    if position_ids is None:
        return
    last = slice(-position_ids.shape[-1], None)
    differs = position_ids != position[:, last]
    if (differs & is_token[:, last]).any():
        raise ValueError("position_ids must count the tokens of each row, without padding; give each text its own row")


class TxlForCausalLM(PreTrainedModel, GenerationMixin):
    """Transformer-XL with its softmax."""

    config_class = TxlConfig
    _no_split_modules = ["Layer"]

    def __init__(self, config):
        super().__init__(config)
        self.embedding = AdaptiveEmbedding(config)
        self.encoding = ENCODINGS[config.position](config)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.n_layers))
        self.final_norm = make_norm(config) if config.norm == "pre" else nn.Identity()
        self.softmax = AdaptiveSoftmax(config)
        self.embedding_dropout = Dropout(config, config.embedding_dropout)
        self.output_dropout = Dropout(config, config.output_dropout)
        self.post_init()

    def _init_weights(self, module):
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0.0, self.config.init_std)
            elif name == "weight":  # gains of a norm
                nn.init.ones_(parameter)
            else:
                nn.init.constant_(parameter, self.config.gate_bias if name == "update_bias" else 0.0)

    def get_input_embeddings(self):
        return self.embedding

    def resize_token_embeddings(self, *arguments, **options):
        raise NotImplementedError("the vocabulary is fixed: embedding and softmax are divided into bands of ids")

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        past_key_values: Cache | None = None,
        output_hidden_states: bool | None = None,
        **options,
    ) -> CausalLMOutputWithPast:
        """Read tokens (B, T) after those in the cache.

        Args:
            input_ids: the tokens.
            attention_mask: (B, all tokens so far), 0 for padding at the left.
            cache: the memory; None at the beginning of a text.
            labels: (B, T), like `input_ids`, or -100; the label of a token is predicted by the token before it. After
                padding no token is before it, and it is left out of the loss.
            use_cache: return the memory.
            logits_to_keep: number of last positions whose logits are computed, 0 for all, or the positions (x,).
            past_key_values: `cache`, by its earlier name.
            output_hidden_states: return the input of the first layer and the output of each, (B, T, d), the last one
                after the final norm.
        """
        if input_ids is None:
            raise ValueError("give input_ids; embeddings in their place (inputs_embeds) are not supported")
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if cache is None:
            cache = past_key_values
        if cache is None:  # a call of several segments needs one in any case
            cache = DynamicCache(config=self.config)
        if isinstance(cache, StaticCache):
            raise ValueError(
                "a cache of fixed size is not supported; leave out cache_implementation, or give a DynamicCache"
            )
        read = cache.get_seq_length()
        total = read + input_ids.shape[1]
        if attention_mask is None:
            attention_mask = input_ids.new_ones(len(input_ids), total)
        is_token = F.pad(attention_mask, (total - attention_mask.shape[1], 0), value=1).bool()
        position = is_token.long().cumsum(1) - 1
        check_positions(options.pop("position_ids", None), position, is_token)
        segments = []
        for part in input_ids.split(self.config.segment_len or input_ids.shape[1], dim=1):
            read += part.shape[1]
            states = self.read(part, position[:, :read], is_token[:, :read], cache)
            segments.append(list(states) if output_hidden_states else list(states)[-1:])
        *hidden_states, last = (torch.cat(parts, dim=1) for parts in zip(*segments, strict=True))
        last = self.final_norm(last)
        kept = logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-logits_to_keep, None)
        logits = self.softmax(self.output_dropout(last)[:, kept], self.embedding)
        loss = None
        if labels is not None:
            follows_token = F.pad(is_token[:, -labels.shape[1] : -1], (1, 0), value=True)
            labels = labels.masked_fill(~follows_token, -100)
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **options)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=(*hidden_states, last) if output_hidden_states else None,
            **{CACHE: cache if use_cache else None},
        )

    def read(self, tokens: Tensor, position: Tensor, is_token: Tensor, cache: Cache) -> Iterator[Tensor]:
        """Yield the input of the first layer and the output of each, (B, T, d).

        Args:
            tokens: (B, T), in one segment.
            position: (B, all tokens so far), in the text of each lane.
            is_token: likewise, False for padding.
            cache: the memory.
        """
        count = tokens.shape[1]
        kept = position.shape[1] - count
        if self.config.mem_len:
            kept = min(kept, self.config.sliding_window - 1)
        keys = slice(position.shape[1] - count - kept, None)
        context = Context(self.config, position[:, -count:].clamp(min=0), position[:, keys], is_token[:, keys])
        hidden = self.embedding(tokens) * self.config.d_model**0.5
        hidden = self.embedding_dropout(self.encoding.add_to_embedding(hidden, context.place))
        encoded = self.encoding.encode_distances(int(context.distance.max()) + 1, hidden)
        yield hidden
        for number, layer in enumerate(self.layers):
            hidden = self.encoding.add_to_layer_input(hidden, number, context.place)
            hidden = layer(hidden, self.encoding, encoded, context, cache)
            yield hidden
