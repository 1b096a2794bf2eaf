"""Appendix E: text that the standard model draws."""

from typing import Any

from txlcli.workflows.reproduction.report import Section
from txlcli.workflows.reproduction.workshop import FIRST_SEED, Workshop

SUBJECT = "words-xl"  # the paper's samples are of a model on WikiText-103


def appendix_e(shop: Workshop) -> Section:
    """Samples, the first ones drawn, each beside the text that really follows."""
    run = shop.run(SUBJECT)
    texts = []
    for number, tokens in enumerate(shop.scale.sample_tokens):
        result = shop.drawn(run, tokens=tokens, seed=FIRST_SEED + number)
        texts += _texts_of(number + 1, tokens, result)
    return Section(
        name="appendix-e",
        title="Appendix E: generated text",
        scale=shop.scale.name,
        notes=[shop.scale.says, "The first samples drawn, none chosen; contexts are random places of the test split."],
        texts=texts,
    )


def _texts_of(number: int, tokens: int, result: dict[str, Any]) -> list[list[str]]:
    return [
        [f"Context {number}", result["context"]],
        [f"Generated text {number}, {tokens:,} tokens", result["samples"][0]["text"]],
        [f"How the text really goes on, {number}", result["reference"]],
    ]
