"""The model card of an exported run: what it is, its results with their protocol, how to use it."""

from collections.abc import Iterable

from txlcli import __version__
from txlcli.config import recipe
from txlcli.paper import metrics
from txlcli.runs import history
from txlcli.runs.loading import OpenRun
from txlcli.runs.log_file import Record

CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags: [transformer-xl]
# license: state the licence of the weights here
---

# {name}

A Transformer-XL language model (Dai et al. 2019) of {parameters:,} parameters, {origin} and exported by txl {version}.
{context}

## Use

{use}
`trust_remote_code=True` runs the Python files of this folder; read them first. They need `torch` and `transformers`,
and `sentencepiece` for a tokenizer of that kind.

## Data

Token store `{store}`: {vocab.tokenizer} tokens, a vocabulary of {vocab.size:,} symbols. State the source and the
licence of the text here.

## Results

{results}

## Settings

| setting | value |
| --- | --- |
{settings}

Other settings have txl's defaults.
"""
USE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # this folder, or its name on a hub
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
tokens = tokenizer("a prompt", return_tensors="pt")
print(tokenizer.decode(model.generate(**tokens, max_new_tokens=100, do_sample=True)[0]))
```
"""
USE_OF_IDS = """```python
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(".", trust_remote_code=True)
print(model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=100, do_sample=True))
```
"""


def card_of(opened: OpenRun) -> str:
    """Return the model card, Markdown with the header that model hubs read."""
    run = opened.run
    settings = run.settings
    evaluation = settings.evaluation_settings()
    past = history.read(run)
    valid = past.in_metric(past.best_valid)
    context = "It has no memory: a text is one segment."
    if evaluation.mem_len:
        context = f"It reads segments of {evaluation.seg_len} tokens with a memory of {evaluation.mem_len}."
    best = ""
    if valid is not None:
        best = f"Best validation during training: {metrics.format_measure(valid)} {run.metric}.\n\n"
    rows = [f"| `{key}` | `{recipe.format_value(value)}` |" for key, value in recipe.changed_keys(settings).items()]
    return CARD.format(
        name=run.directory.name,
        parameters=run.parameters,
        origin="imported" if past.state == "imported" else "trained",
        version=__version__,
        context=context,
        use=USE_OF_IDS if opened.vocab.tokenizer == "ids" else USE,
        store=settings.corpus.store,
        vocab=opened.vocab,
        results=best + "\n".join(_results(filter(past.is_of_weights, past.evals), run.metric)),
        settings="\n".join(rows),
    )


def _results(evals: Iterable[Record], metric: str) -> list[str]:
    """Return a table of the results of `txl eval`, with the protocol of each."""
    results = {}
    for line in evals:  # the newest of equal ones is kept
        row = (line.get("text", "-"), f"{line['tokens']:,}", history.describe_protocol(line))
        results[row] = metrics.format_measure(line[metric]) if metric in line else "-"
    if not results:
        return ["No evaluation of these weights is recorded."]
    table = [f"| text | tokens scored | protocol | {metric} |", "| --- | ---: | --- | ---: |"]
    for protocol, result in results.items():
        escaped = [cell.replace("|", "\\|") for cell in (*protocol, result)]
        table.append(f"| {' | '.join(escaped)} |")
    explained = (
        "Each row is a pass of `txl eval` over the text; M is the memory, L the segment and N a window, in tokens. A "
        "window predicts its last S tokens, without S one. In-sample: settings were chosen on this text."
    )
    return [*table, "", explained]
