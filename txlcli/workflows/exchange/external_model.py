"""Models of Hugging Face Transformers, read as models of txl are: in segments with a memory, or in windows.

The last hidden states of such a model are its logits, since what it does between the two, such as a cap, is its own.
Its memory is its cache, cut to the last M positions, or a state. What it can do is tried on a few ids when it is made:
neither its class nor its configuration says so.

Axes: B batch, L segment, V vocabulary.
"""

import copy
import inspect
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.config.model_settings import ModelSettings
from txlcli.config.ranges import PositiveInt
from txlcli.core.model.backends import Backend
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.reading.reader import Reader
from txlcli.errors import ExternalModelError, UsageError, reason_of

TRIED = 16
"""Ids that a model is tried on."""
SHIFT = 512
"""Number of positions by which they are moved, at most."""
TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Largest difference of logits that are called equal, in standard deviations of all, by the dtype of the weights."""
POSITION_NAMES = ("max_position_embeddings", "max_seq_len")
"""Names of the number of positions in a configuration; the second is MPT's."""
NO_LIMIT = -1
"""Number of positions in the configuration of a model without a limit, such as XLNet."""
CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state")
"""Names of the argument for the cache, in this release of Transformers and in others; the last is RWKV's."""


@dataclass(frozen=True, kw_only=True)
class ExternalSettings(ModelSettings):
    """Properties of a model of another program that an evaluation needs; no recipe has this class."""

    arch: str = "external"
    n_positions: PositiveInt | None = None
    """Number of positions that the model was made for; None if there is no limit."""
    obstacle: str | None = None
    """Property with which its cache cannot be carried along a text; None if it can."""
    by_token: bool = False
    """True if a cache is continued right by single tokens only, as Mamba's is in Transformers."""
    not_by_token: bool = False
    """True if a cache is continued right by two tokens or more, but not by one, as Zamba2's is in Transformers."""

    @property
    def has_attention(self) -> bool:
        return not self.recurrent_state

    @property
    def longest_window(self) -> int | None:
        return self.n_positions

    @property
    def memory_obstacle(self) -> str | None:
        return None if self.obstacle is None else f"has {self.obstacle}"


@dataclass(frozen=True, kw_only=True)
class ExternalStateSettings(ExternalSettings):
    """Settings of a model whose cache is a state, such as Mamba."""

    recurrent_state = True


@dataclass
class OwnCache:
    """Cache of a class of the model's own, which the model makes when it reads the first tokens, such as xLSTM's."""

    content: Any = None

    @property
    def layers(self) -> list[Any]:
        return getattr(self.content, "layers", [])


class ExternalReader(Reader):
    """Reads text with a model of Transformers, and carries its cache."""

    model: "ExternalModel"
    _cache: Any = None
    """Cache of the positions that are remembered; None before the first token."""

    def _prepare(self, model: LanguageModel, tokens: int) -> LanguageModel:
        assert isinstance(model, ExternalModel)
        model.check_lengths(self.seg_len, self.mem_len, tokens // self.settings.batch_size)
        return model

    def reset(self) -> None:
        self._cache = None
        self._read_before = 0

    def _run(self, tokens: Tensor, *, count: int) -> Tensor:
        with self._autocast:
            if not (self.mem_len or self.model.settings.recurrent_state):
                return self.model.read(tokens, count=count)
            if self._cache is None:
                if self.model.settings.by_token:
                    self.model.read(tokens[:, :1], count=1)  # resets a state in modules, as RecurrentGemma has one
                self._cache = self.model.new_cache()
            logits = self.model.read_on(tokens, self._cache, before=self._read_before)
        self._read_before += tokens.shape[1]
        _cut(self._cache, self.mem_len)
        return logits[:, logits.shape[1] - count :]


class ExternalModel(LanguageModel):
    """A causal model of Transformers, whose last hidden states are its logits.

    Args:
        network: in evaluation mode, on its device.
        title: name in messages.

    Attributes:
        arch: name of its architecture in Transformers.
        counts_positions: True if it derives positions from its cache.
        attends_in_chunks: True if its attention ends at every N-th position, as Llama 4's does; a cut moves them.
        cache_name: name of the argument for its cache; None if it does not take one.
        makes_cache: True if its cache is of a class of its own.

    Raises:
        ExternalModelError: it cannot be computed, or a prediction depends on later tokens, or is not finite.
    """

    settings: ExternalSettings
    own_reader = ExternalReader
    hidden_are_logits = True

    def __init__(self, network: nn.Module, title: str) -> None:
        nn.Module.__init__(self)  # the network has an embedding and a softmax of its own
        self.network = network
        self.title = title
        self._accepted = frozenset(inspect.signature(network.forward).parameters)
        self.counts_positions = "position_ids" not in self._accepted
        cache_names = [name for name in CACHE_NAMES if name in self._accepted]
        self.cache_name = cache_names[0] if cache_names else None
        self.makes_cache = False
        config: Any = network.config
        self.arch = config.model_type
        self._text_config = config.get_text_config()
        self.attends_in_chunks = getattr(self._text_config, "attention_chunk_size", None) is not None
        token = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        try:
            self.vocab_size = self.read(token, count=1).shape[-1]
        except Exception as error:  # of the code of any model
            raise _not_computed(title, error) from error
        self.settings = _examine(self, _count_positions(self._text_config))

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def targets_device(self) -> torch.device:
        return self.device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype

    def new_cache(self) -> Any:
        """Return an empty cache. Layers with attention keep all keys: `_cut` cuts them, a window is in their mask."""
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

        if self.makes_cache:
            return OwnCache()
        cache = DynamicCache(config=self._text_config)
        if not _layers_without_keys(cache):
            return DynamicCache()
        for number, layer in enumerate(cache.layers):
            if type(layer) is DynamicSlidingWindowLayer:
                cache.layers[number] = DynamicLayer()
        return cache

    @torch.inference_mode()
    def read(
        self,
        tokens: Tensor,
        cache: Any = None,
        *,
        first: int | None = None,
        mask: Tensor | None = None,
        count: int,
    ) -> Tensor:
        """Read tokens (B, l) after those of a cache, which they join; return the last logits (B, count, V).

        `first` is the position of the first token; by default, the model counts. `mask` is 0 for keys (B, K) that no
        token sees.
        """
        length = tokens.shape[1]
        options: dict[str, Any] = {"use_cache": cache is not None}
        if mask is not None:
            options["attention_mask"] = mask
        if cache is not None:
            options[str(self.cache_name)] = cache.content if isinstance(cache, OwnCache) else cache
        if first is not None and not self.counts_positions:
            options["position_ids"] = torch.arange(first, first + length, device=tokens.device)[None]
        if "logits_to_keep" in self._accepted:
            options["logits_to_keep"] = max(1, count)  # 0 keeps all
        output = self.network(tokens, **options)
        if isinstance(cache, OwnCache):
            cache.content = getattr(output, str(self.cache_name))
        logits: Tensor = output.logits
        return logits[:, logits.shape[1] - count :]

    def read_on(self, tokens: Tensor, cache: Any, *, before: int) -> Tensor:
        """Read tokens (B, l) after as many others, which a cache remembers; return their logits (B, l, V)."""
        step = tokens.shape[1]
        if self.settings.not_by_token and step == 1:  # the last token of its lane: see `check_lengths`
            return self.read(tokens.expand(-1, 2), cache, first=before, count=2)[:, :1]
        if self.settings.by_token and before:
            step = 1
        logits = []
        for part in tokens.split(step, dim=1):
            logits.append(self.read(part, cache, first=before, count=part.shape[1]))
            before += part.shape[1]
        return torch.cat(logits, dim=1)

    def check_lengths(self, seg_len: int, mem_len: int, lane_len: int) -> None:
        """Reject segments of L tokens, a memory of M, or lanes, for which the model has too few positions.

        With a memory, the numbers of the positions of a lane must make no difference.
        """
        if self.settings.not_by_token and seg_len == 1 and (mem_len or self.settings.recurrent_state):
            raise UsageError(
                f"{self.title}: Transformers predicts something else if it reads token by token; give a `seg_len` of 2 "
                "or more"
            )
        limit = self.settings.n_positions
        if limit is None or self.settings.recurrent_state:
            return
        if mem_len + seg_len > limit:
            raise UsageError(
                f"{self.title} has {limit:,} positions, fewer than M + L = {mem_len + seg_len:,}; give a shorter "
                "`mem_len`, `seg_len` or `attn_len`"
            )
        ids = _tried_ids(self, limit)
        last = lane_len - ids.shape[1]
        if mem_len and last > 0 and not _can_shift(self, ids, last):
            raise UsageError(
                f"{self.title}: its predictions change along the {lane_len:,} positions of a lane; give a larger "
                "`batch_size`, which divides the text into shorter lanes, or windows (`attn_len`; of `protocols`, "
                "all but recurrence)"
            )

    def losses(self, hidden: Tensor, targets: Tensor, tail_rows: object = None) -> Tensor:
        """Cross entropy in nats of each target, given logits: (B, L, V), (B, L) -> (B, L)."""
        losses = []
        for logits, of_lane in zip(hidden, targets, strict=True):  # one lane at a time, since logits are large
            losses.append(F.cross_entropy(self._scaled(logits), of_lane, reduction="none"))
        return torch.stack(losses)

    def log_probs(self, hidden: Tensor) -> Tensor:
        return self._scaled(hidden).log_softmax(-1)

    def _scaled(self, logits: Tensor) -> Tensor:
        return logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.backend.temperature

    def for_reading(self, *, compiles: bool = False) -> Self:
        return self

    def first_memory(self, batch_size: int, mem_len: int) -> Memory:
        return []

    def forward(self, tokens: Tensor, memory: Memory, *, mem_len: int) -> tuple[Tensor, Memory]:
        """Read one segment (B, L) from an empty memory; `ExternalReader` carries a cache."""
        return self.read(tokens, count=tokens.shape[1]), []

    def _view(self, chosen: Backend) -> Self:
        view = copy.copy(self)
        view.backend = chosen
        return view


def _not_computed(title: str, error: Exception) -> ExternalModelError:
    """Return the error for a model that Transformers opens, but cannot compute."""
    return ExternalModelError(
        f"{title}: Transformers cannot compute the model ({reason_of(error)}); check its config.json, or give another "
        "`precision`"
    )


def _count_positions(config: Any) -> int | None:
    """Return the number of positions that a model was made for, by its configuration; None if there is no limit."""
    for name in POSITION_NAMES:
        count: int | None = getattr(config, name, None)
        if count is not None:
            return None if count == NO_LIMIT else count
    return None


def _layers_without_keys(cache: Any) -> bool:
    """Return True if some layers of a cache have a state, or nothing, in place of keys."""
    from transformers.cache_utils import DynamicLayer

    kinds = {type(layer) for layer in cache.layers}
    return any(not issubclass(kind, DynamicLayer) or "LinearAttention" in kind.__name__ for kind in kinds)


def _is_state(cache: Any) -> bool:
    """Return True if no layer of a cache has keys, once tokens have been read."""
    from transformers.cache_utils import DynamicLayer

    return not any(isinstance(layer, DynamicLayer) for layer in cache.layers)


def _grows(model: ExternalModel, ids: Tensor) -> bool:
    """Return True if the tensors of a cache grow with the number of ids (B, L), as keys do and a state does not."""
    cache = OwnCache()
    first_id, others = ids.tensor_split([1], dim=1)
    model.read(first_id, cache, first=0, count=1)
    before = _count_elements(cache.content)
    model.read(others, cache, first=1, count=1)
    return _count_elements(cache.content) > before


def _count_elements(content: Any) -> int:
    """Count the elements of the tensors in lists, tuples and dictionaries, or in the attributes of an object."""
    if isinstance(content, Tensor):
        return content.numel()
    if not isinstance(content, list | tuple):
        content = content if isinstance(content, dict) else getattr(content, "__dict__", {})
        content = content.values()
    return sum(_count_elements(part) for part in content)


def _cut(cache: Any, mem_len: int) -> None:
    """Keep the last M positions of the layers with keys (B, H, x, D)."""
    for layer in cache.layers:
        if isinstance(getattr(layer, "keys", None), Tensor):
            layer.keys = layer.keys[..., -mem_len:, :]
            layer.values = layer.values[..., -mem_len:, :]


def _examine(model: ExternalModel, n_positions: int | None) -> ExternalSettings:
    """Try a model on random ids: whether it is causal, and how its cache can be carried along a text."""
    ids = _tried_ids(model, n_positions)
    _check_causal(model, ids)
    sizes: dict[str, Any] = {"arch": model.arch, "n_layers": 1, "d_model": 1, "n_positions": n_positions}
    if model.cache_name is None:
        return ExternalSettings(**sizes, obstacle="no cache that txl knows")
    lanes = torch.cat([ids, ids.flip(1)])
    obstacle, parts = _try_cache(model, lanes)
    if obstacle is not None:
        model.makes_cache = True
        own_obstacle, own_parts = _try_cache(model, lanes)
        if own_obstacle is None:
            obstacle = None
            parts = own_parts
        else:
            model.makes_cache = False
    if obstacle is None:
        cache = model.new_cache()
        model.read(lanes, cache, count=1)
        if not _is_state(cache):
            obstacle = _find_obstacle(model, ids, n_positions)
        elif isinstance(cache, OwnCache) and _grows(model, lanes):
            obstacle = "a cache that cannot be cut"
        else:
            return ExternalStateSettings(**sizes, **parts)
    return ExternalSettings(**sizes, obstacle=obstacle, **parts)


def _tried_ids(model: ExternalModel, n_positions: int | None) -> Tensor:
    """Return random ids (1, L) that fill half of the positions at most."""
    count = TRIED
    if n_positions is not None:
        count = min(TRIED, n_positions // 2)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(model.vocab_size, (1, count), generator=generator)
    return ids.to(model.device)


def _check_causal(model: ExternalModel, ids: Tensor) -> None:
    """Reject a model whose logits of ids (1, L) are not finite, or depend on the last of them."""
    count = ids.shape[1]
    try:
        logits = model.read(ids, count=count)
    except Exception as error:  # of the code of any model
        raise _not_computed(model.title, error) from error
    if not logits.isfinite().all():
        raise ExternalModelError(
            f"{model.title}: its logits are not finite; its weights are damaged, or its numbers too large for this "
            "`precision`: try fp32, or download it again"
        )
    other_last = (ids[:, -1:] + 1) % model.vocab_size
    changed = torch.cat([ids[:, :-1], other_last], dim=1)
    changed_logits = model.read(changed, count=count)
    if not _are_equal(changed_logits[:, :-1], logits[:, :-1]):
        raise ExternalModelError(
            f"{model.title} is not causal: predictions depend on later tokens, so that they are no likelihood; give a "
            "model that reads from left to right"
        )


def _try_cache(model: ExternalModel, ids: Tensor) -> tuple[str | None, dict[str, Any]]:
    """Return what is wrong with the cache of a model, if anything, and the settings of how it can be continued.

    Transformers may compute a state in another way from one token than from several; keys are the same.
    """
    half = ids.shape[1] // 2
    rest = ids.shape[1] - half
    obstacle = _try_parts(model, ids, [half, rest])
    if obstacle is None and not (model.makes_cache or _layers_without_keys(model.new_cache())):
        return None, {}
    token_obstacle = _try_parts(model, ids, [half, *[1] * rest])
    if obstacle is None:
        return None, {"not_by_token": token_obstacle is not None}
    return token_obstacle, {"by_token": True}


def _try_parts(model: ExternalModel, ids: Tensor, lengths: list[int]) -> str | None:
    """Return what is wrong with the cache if ids (1, L) are read in parts; None if the logits are those of one part."""
    cache = model.new_cache()
    logits = []
    first = 0
    try:
        for part in ids.split(lengths, dim=1):
            logits.append(model.read(part, cache, first=first, count=part.shape[1]))
            first += part.shape[1]
    except Exception as error:  # of the code of any model
        return f"a cache that cannot be continued ({type(error).__name__})"
    at_once = model.read(ids, count=ids.shape[1])
    if _are_equal(torch.cat(logits, dim=1), at_once):
        return None
    return "a cache that changes its predictions"


def _find_obstacle(model: ExternalModel, ids: Tensor, n_positions: int | None) -> str | None:
    """Return the property with which a cache of keys cannot be cut to the last positions; None if it can."""
    if any("Sliding" in type(layer).__name__ for layer in model.new_cache().layers):
        return "a cache that cannot be cut"
    if model.counts_positions:
        return None if _can_cut(model, ids) else "positions that it counts itself"
    if model.attends_in_chunks:
        return "attention in chunks of positions"
    shift = SHIFT
    if n_positions is not None:
        shift = min(SHIFT, n_positions - ids.shape[1])
    if not _can_shift(model, ids, shift):
        return "absolute positions"
    return None


def _can_cut(model: ExternalModel, ids: Tensor) -> bool:
    """Return True if half of ids (1, L) after a cut cache have the logits as after one whose first keys are masked."""
    before, after = ids.tensor_split(2, dim=1)
    cut_off = before.shape[1] // 2
    mask = torch.ones_like(ids)
    mask[:, :cut_off] = 0
    masked = model.new_cache()
    cut = model.new_cache()
    for cache in (masked, cut):
        model.read(before, cache, count=1)
    _cut(cut, before.shape[1] - cut_off)
    count = after.shape[1]
    return _are_equal(model.read(after, cut, count=count), model.read(after, masked, mask=mask, count=count))


def _can_shift(model: ExternalModel, ids: Tensor, shift: int) -> bool:
    """Return True if ids (1, L) have the same logits that many positions later, where angles are rounded more.

    Position 0 is left out: in RecurrentGemma, it resets the state, and a lane has only one.
    """
    count = ids.shape[1]
    try:
        shifted = model.read(ids, first=shift, count=count)
    except (IndexError, RuntimeError):  # its table of positions has no such position
        return False
    rounding = shift * torch.finfo(torch.float32).eps
    return _are_equal(shifted, model.read(ids, first=1, count=count), rounding=rounding)


def _are_equal(logits: Tensor, expected: Tensor, *, rounding: float = 0.0) -> bool:
    """Return True if logits differ by no more than they are rounded."""
    difference = float((logits - expected).abs().max())
    return difference <= (TOLERANCES[expected.dtype] + rounding) * float(expected.std())
