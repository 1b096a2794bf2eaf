"""The model card of an exported run: what it is, its results with their protocol, how to use it."""

from txlcli import __version__
from txlcli.config import recipe
from txlcli.paper import metrics
from txlcli.runs import history
from txlcli.runs.loading import OpenRun
from txlcli.runs.log_file import Record

USE = """```python
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # this folder, or its name on a hub
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
tokens = tokenizer("A prompt", return_tensors="pt")
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
    use = USE_OF_IDS if opened.vocab.tokenizer == "ids" else USE
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [transformer-xl]",
        "# license: state the licence of the weights here",
        "---",
        "",
        f"# {run.directory.name}",
        "",
        f"A Transformer-XL language model (Dai et al. 2019) of {run.parameters:,} parameters, trained and exported by "
        f"txl {__version__}. It reads segments of {evaluation.seg_len} tokens with a memory of {evaluation.mem_len}.",
        "",
        "## Use",
        "",
        use,
        "`trust_remote_code=True` runs the Python files of this folder; read them first. They need `torch` and "
        "`transformers`, and `sentencepiece` for a tokenizer of that kind.",
        "",
        "## Data",
        "",
        f"Token store `{settings.corpus.store}`: {opened.vocab.tokenizer} tokens, a vocabulary of "
        f"{opened.vocab.size:,} symbols. State the source and the licence of the text here.",
        "",
        "## Results",
        "",
    ]
    if valid is not None:
        lines.append(f"Best validation during training: {metrics.format_measure(valid)} {run.metric}.")
    lines += ["", *_results(past.evals, run.metric), "", "## Settings", "", "| setting | value |", "| --- | --- |"]
    for key, value in recipe.changed_keys(settings).items():
        lines.append(f"| `{key}` | `{recipe.format_value(value)}` |")
    lines += ["", "Other settings have txl's defaults.", ""]
    return "\n".join(lines)


def _results(evals: tuple[Record, ...], metric: str) -> list[str]:
    """Return a table of the results of `txl eval`, with the protocol of each."""
    if not evals:
        return ["No evaluation is recorded."]
    rows = [
        f"| text | tokens scored | M | L | same_length | temperature | {metric} |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for line in evals:
        result = metrics.format_measure(line[metric]) if metric in line else "-"
        protocol = [line.get(key, "-") for key in ("mem_len", "seg_len", "same_length", "temperature")]
        cells = [line.get("text", "-"), f"{line['tokens']:,}", *protocol, result]
        escaped = [str(cell).replace("|", "\\|") for cell in cells]
        rows.append(f"| {' | '.join(escaped)} |")
    return [*rows, "", "Each row is a pass of `txl eval` over the text; M is the memory and L the segment, in tokens."]
