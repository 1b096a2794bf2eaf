"""Suggests the known name that a user meant: by the words of other programs first, then by spelling."""

import difflib
import re
from collections.abc import Iterable

SIMILARITY = 0.65
"""Smallest similarity of spelling that is suggested, from 0 to 1."""

NAMES = {
    # devices and precisions
    "cuda": "gpu nvidia rocm cuda:0",
    "cpu": "mps metal xpu",
    "fp32": "float32 float full single",
    "tf32": "tensorfloat32 tensorfloat-32 tf-32",
    "fp16": "float16 half amp",
    "bf16": "bfloat16 bfloat",
    # formats of txl export
    "huggingface": "hf transformers hugging-face transfoxl",
    "llm.c": "llmc llm-c gpt2",
    "megatron": "neox gpt-neox megatron-lm",
    # corpora, recipes and splits
    "wt103": "wikitext wikitext-103 wikitext103 wt-103 wiki103",
    "ptb": "penn penn-treebank penntreebank treebank",
    "lm1b": "one-billion one-billion-word 1b 1-billion billion-word lm-1b gbw",
    "enwik8": "enwiki8 enwik enwiki hutter",
    "text8": "text-8",
    "train": "training fit finetune fine-tune",
    "valid": "validation dev val",
    "test": "testing",
    # tokenizers
    "sentencepiece": "bpe spm unigram subword sp",
    "byte": "bytes",
    "char": "chars character characters",
    "word": "words",
    # attention backends and what recipes choose from
    "sdpa": "flash flash-attention fused scaled-dot-product",
    "flex": "flexattention flex-attention",
    "triton": "kernel fused-kernel",
    "reference": "naive eager math",
    "rotary": "rope roformer",
    "alibi": "press slopes linear-biases",
    "t5": "t5-bias bucketed raffel",
    "none": "nope no-position",
    "sinusoid": "sinusoidal absolute vaswani",
    "learned": "learnt al-rfou",
    "relative": "transformer-xl xl rel",
    "adamw": "adam-w",
    "inverse_sqrt": "inv-sqrt noam rsqrt",
    "plateau": "dev-perf reduce-on-plateau",
    "transformer": "transformer-xl txl xl",
    "lstm": "rnn awd-lstm",
    "pre": "pre-lnorm prenorm pre-norm",
    "post": "post-lnorm postnorm post-norm",
    "exponential": "ema",
    "asgd": "swa",
    # commands
    "eval": "evaluate test score validate perplexity ppl",
    "generate": "sample chat complete inference",
    "speed": "benchmark bench profile throughput",
    "prepare": "preprocess tokenize download data dataset",
    "runs": "list ls history compare",
    "recipes": "configs config models settings",
    "attention": "plot heads",
    "reproduce": "paper table figure",
    "import": "convert load",
    "export": "save push",
    "info": "env version doctor about",
}
"""Names of txl with the words that other programs use for the same thing."""

SETTINGS = {
    "train.lr": "learning-rate alpha step-size",
    "train.max_steps": "steps epochs num-epochs max-epochs iterations max-iters num-steps max-step train-steps",
    "train.seg_len": "tgt-len ctx ctx-len n-ctx context context-len context-length block-size seq-len sequence-length "
    "bptt",
    "train.mem_len": "mem memory memory-len memory-length",
    "train.batch_size": "bs bsz batch lanes per-device-train-batch-size",
    "train.accumulate": "gradient-accumulation gradient-accumulation-steps grad-accum batch-chunk",
    "train.clip": "grad-clip clip-grad max-grad-norm gradient-clipping",
    "train.warmup_steps": "warmup warmup-step",
    "train.optimizer": "optim optimiser",
    "train.schedule": "scheduler lr-scheduler lr-schedule",
    "train.weight_decay": "wd l2 decay",
    "train.precision": "dtype amp fp16 bf16 tf32 allow-tf32",
    "train.seed": "random-seed",
    "train.recompute": "gradient-checkpointing checkpoint-activations activation-checkpointing",
    "train.average": "ema swa averaging",
    "train.valid_every": "eval-interval eval-every val-interval valid-interval",
    "train.attention": "attn-backend flash",
    "log.every": "log-interval log-every report-every",
    "log.tensorboard": "tb",
    "log.to": "report-to logger loggers tracker trackers",
    "eval.max_distance": "clamp-len clamp",
    "model.n_layers": "n-layer nlayers nlayer num-layers layers num-hidden-layers depth",
    "model.n_heads": "n-head nheads nhead heads num-heads num-attention-heads",
    "model.d_model": "hidden-size width dim n-embd emsize hidden-dim",
    "model.d_head": "head-dim",
    "model.d_inner": "d-ff dff ffn-dim intermediate-size ff-dim nhid",
    "model.d_embed": "embedding-dim embedding-size",
    "model.attention_dropout": "dropatt attn-dropout dropattn",
    "model.embedding_dropout": "dropouti",
    "model.word_dropout": "dropoute",
    "model.position": "attn-type pos-encoding position-encoding positional-encoding pos",
    "model.norm": "pre-lnorm pre-norm layer-norm",
    "model.tie_biases": "untie-r",
    "model.div_val": "div-value",
    "model.init_std": "init-range initializer-range",
    "corpus.store": "dataset data",
}
"""Settings, as section.key, with the words that other programs use for them."""

OPTIONS = {
    "--device cuda": "gpu cuda",
    "--device cpu": "cpu mps",
    "--precision fp16": "fp16 amp half",
    "--precision bf16": "bf16",
    "--precision tf32": "tf32 allow-tf32",
    "--mem-len": "mem memory memory-len mem-length",
    "--seg-len": "tgt-len seq-len block-size bptt context-length",
    "--max-distance": "clamp-len clamp",
    "--attn-len": "window context-window ctx",
    "--batch-size": "bs bsz batch lanes",
    "--tokens": "length max-tokens max-new-tokens num-tokens max-length",
    "--samples": "num-samples n num-return-sequences",
    "--top-p": "nucleus",
    "--tokenizer": "unit",
    "--sp-type": "model-type",
    "--vocab-size": "vocab-length n-vocab",
    "--processes": "nproc nproc-per-node gpus num-gpus workers",
    "--max-minutes": "max-time time-limit",
    "--resume": "restart continue checkpoint",
    "--data-dir": "data",
    "--runs-dir": "runs work-dir output-dir",
    "--text": "file input",
    "--out": "output",
    "--name": "run-name",
    "--positions": "max-positions limit",
    "--force": "overwrite yes",
    "--dry-run": "plan",
    "--list": "dry-run plan ls",
}
"""Options, with the words that other programs use for them."""


PHRASES = {"bpe": "sentencepiece with --sp-type bpe"}
"""Suggestions for words that need more than a known name."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "X"?` with the known name that was probably meant, or an empty string."""
    meant = meant_name(name, known)
    if meant is not None and PHRASES.get(_plain(name), "").startswith(meant):
        return f"; did you mean {PHRASES[_plain(name)]}?"
    return f'; did you mean "{meant}"?' if meant else ""


def meant_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant: a synonym, else the most similar spelling, else None."""
    names = list(known)
    return next((target for target in _synonyms(name, NAMES) if target in names), None) or _similar(name, names)


def meant_setting(section: str, key: str, known: Iterable[str]) -> str | None:
    """Return the setting that was probably meant by a key of a section, as "key", or "section.key" of another one.

    Args:
        section: section in which the key was given.
        key: the unknown key.
        known: all settings, as section.key.
    """
    names = list(known)
    of_section = [name.partition(".")[2] for name in names if name.startswith(f"{section}.")]
    elsewhere = [name for name in names if name.partition(".")[2] == key]
    meant = next((target for target in _synonyms(key, SETTINGS) if target in names), None)
    if meant is None:
        near = _similar(key, of_section)
        return near or (elsewhere[0] if elsewhere else None)
    return meant.removeprefix(f"{section}.")


def meant_option(option: str, options: Iterable[str], settings: Iterable[str]) -> str | None:
    """Return what to write in place of an unknown option, which may need `--set`.

    Args:
        option: the unknown option, with its dashes.
        options: options of the command.
        settings: all settings, as section.key; they are suggested if the command has `--set`.
    """
    names = [name for name in options if name != "--help"]
    for target in _synonyms(option, OPTIONS):
        if target.partition(" ")[0] in names:
            return target
    if "--set" in names:
        keys = {setting.partition(".")[2]: setting for setting in reversed(list(settings))}
        setting = next(iter(_synonyms(option, SETTINGS)), None) or keys.get(_plain(option).replace("-", "_"))
        if setting is not None:
            return f"--set {setting}=VALUE"
    plain = {_plain(name): name for name in names}
    near = _similar(_plain(option), plain)
    return plain[near] if near else None


def _synonyms(name: str, table: dict[str, str]) -> list[str]:
    """Return the entries of a table that a word may stand for."""
    word = _plain(name)
    return [target for target, words in table.items() if word in words.split()]


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.lstrip("-").lower())


def _similar(name: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=SIMILARITY)
    return near[0] if near else None
