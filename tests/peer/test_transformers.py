"""`txl export --format transformers` in Hugging Face Transformers 5: the same numbers, and its own tools work.

Transformers 5 is not the version that the other tests of this folder need, so it has an environment of its own; see
docs/testing.md. Skipped where it is not installed. Nothing is downloaded.
"""

import json
import os
import shutil

import pytest
import torch

os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
pytest.importorskip("transformers", minversion="5", reason="Transformers 5 is not installed")

from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DynamicCache,
    Trainer,
    TrainingArguments,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

import txlcli
from tests.commands.novel import TOKENIZERS, done, prepare_and_train, text_of
from tests.core.builders import POSITIONS, V, assert_close, cut, draw_tokens, read_segments, small_model
from txlcli.config.settings import EvalSettings
from txlcli.data.vocabulary import Vocab
from txlcli.workflows.exchange import transformers_folder
from txlcli.workflows.exchange.transformers_files.tokenization_txl import TxlTokenizer
from txlcli.workflows.exchange.transformers_folder import CODE, CONFIG, MODEL_CODE, WEIGHTS

B, T, L, M = 2, 23, 7, 5
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
PARTS = {
    "post": {},
    "pre": {"norm": "pre"},
    "pre_released": {"norm": "pre_released"},
    "modern": {"block": "modern", "norm": "pre"},
    "gates": {"gating": "gru", "norm": "pre"},
    "window": {"window": 4},
    "zeros": {"memory_start": "zeros", "norm": "pre"},
    "adaptive": {"cutoffs": (5, 11), "div_val": 2, "d_embed": 8, "tie_projections": (False, True, False)},
    "one width": {"cutoffs": (5, 11), "d_embed": 8, "tie_embeddings": False},
}


def opened(directory, model, evaluation):
    """Return a model of txl as Transformers opens it, in float64."""
    config = transformers_folder.config_of(model.settings, evaluation, model.vocab_size)
    (directory / CONFIG).write_text(json.dumps(config))
    save_file(transformers_folder.weights_of(model), directory / WEIGHTS, {"format": "pt"})
    shutil.copyfile(str(CODE / MODEL_CODE), directory / MODEL_CODE)
    return AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True, dtype=torch.float64).eval()


def evaluation_of(mem_len, **changed):
    return EvalSettings(seg_len=L, mem_len=mem_len, **changed)


@torch.no_grad()
def expected(model, tokens, evaluation):
    """Return txl's log-probabilities (B, T, V); a model without memory reads the text as one segment."""
    lengths = cut(T, L) if evaluation.mem_len else [T]
    limits = {"key_limit": evaluation.key_limit, "max_distance": evaluation.max_distance}
    return read_segments(model, tokens, lengths, mem_len=evaluation.mem_len, **limits)[0]


@torch.no_grad()
def in_calls(model, tokens, lengths):
    """Return log-probabilities (B, T, V) of a text that is read in calls of these lengths."""
    cache, parts = None, []
    for part in tokens.split(lengths, dim=1):
        output = model(part, **{CACHE: cache})
        cache = output[CACHE]
        parts.append(output.logits.log_softmax(-1))
    return torch.cat(parts, dim=1).double()


@pytest.mark.parametrize("same_length", ["off", "m", "m_plus_one"])
@pytest.mark.parametrize("mem_len", [0, M])
@pytest.mark.parametrize("position", POSITIONS)
def test_every_encoding_gives_the_same_numbers_however_a_text_is_divided(tmp_path, position, mem_len, same_length):
    settings = POSITIONS[position] | ({"n_positions": T} if position == "learned" else {})
    model, tokens = small_model(**settings), draw_tokens(B, T)
    limit = 6 if model.settings.limits_distance else None
    evaluation = evaluation_of(mem_len, same_length=same_length, max_distance=limit)
    theirs = opened(tmp_path, model, evaluation)
    ours = expected(model, tokens, evaluation)
    for lengths in ([T], cut(T, 1), cut(T, 9)):
        assert_close(in_calls(theirs, tokens, lengths), ours)


@pytest.mark.parametrize("parts", PARTS)
def test_every_part_of_a_model_gives_the_same_numbers(tmp_path, parts):
    model, tokens = small_model(**PARTS[parts]), draw_tokens(B, T)
    evaluation = evaluation_of(M, temperature=1.3)
    theirs = opened(tmp_path, model, evaluation)
    ours = expected(model.on(temperature=1.3), tokens, evaluation)
    assert_close(in_calls(theirs, tokens, cut(T, 4)), ours)


@torch.no_grad()
def test_hidden_states_are_those_of_all_layers(tmp_path):
    model, tokens = small_model(norm="pre"), draw_tokens(B, L)
    theirs = opened(tmp_path, model, evaluation_of(M, same_length="off"))
    states = theirs(tokens, output_hidden_states=True).hidden_states
    outputs = model.read_layers(tokens, model.pasts(model.first_memory(B, M), M))
    below = [outputs[0].kept, *(output.hidden for output in outputs[:-1])]
    for own, layer in zip([*below, model.final_hidden(outputs[-1].hidden)], states, strict=True):
        assert_close(layer, own)
    theirs.config.output_hidden_states = True
    longer = theirs(draw_tokens(B, T))
    assert [state.shape for state in longer.hidden_states] == len(states) * [(B, T, model.settings.d_model)]
    assert_close(theirs.softmax(longer.hidden_states[-1], theirs.embedding), longer.logits)
    assert theirs(tokens, output_hidden_states=False).hidden_states is None


def test_the_vocabulary_cannot_be_enlarged(tmp_path):
    with pytest.raises(NotImplementedError, match="the vocabulary is fixed"):
        opened(tmp_path, small_model(), evaluation_of(M)).resize_token_embeddings(V + 1)


@torch.no_grad()
def test_padding_at_the_left_changes_nothing(tmp_path):
    tokens = draw_tokens(B, T)
    theirs = opened(tmp_path, small_model(), evaluation_of(M, same_length="off"))
    mask = torch.ones(B, T + 3, dtype=torch.long)
    mask[0, :3] = 0
    padded = torch.cat([torch.zeros(B, 3, dtype=torch.long), tokens], dim=1)
    whole = theirs(tokens[:1]).logits
    assert_close(theirs(padded, attention_mask=mask).logits[:1, 3:], whole)


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_loss_of_a_batch_is_that_of_its_texts_wherever_they_are_padded(tmp_path, side):
    theirs = opened(tmp_path, small_model(), evaluation_of(M))
    texts = [draw_tokens(1, length, seed=length)[0] for length in (3, T, 8)]
    nats = [theirs(text[None], labels=text[None]).loss * (len(text) - 1) for text in texts]
    rows, masks, labels = [], [], []
    for text in texts:
        padding = T - len(text)
        pad = (padding, 0) if side == "left" else (0, padding)
        rows.append(torch.nn.functional.pad(text, pad, value=1))
        masks.append(torch.nn.functional.pad(torch.ones_like(text), pad))
        labels.append(torch.nn.functional.pad(text, pad, value=-100))
    loss = theirs(torch.stack(rows), attention_mask=torch.stack(masks), labels=torch.stack(labels)).loss
    mean = sum(nats) / sum(len(text) - 1 for text in texts)
    assert loss.item() == pytest.approx(mean.item(), rel=1e-6)  # Transformers computes it in float32


@pytest.mark.parametrize("parts", ["post", "adaptive"])
@pytest.mark.parametrize("id_", [-1, V])
def test_an_id_outside_of_the_vocabulary_is_an_error(tmp_path, parts, id_):
    theirs = opened(tmp_path, small_model(**PARTS[parts]), evaluation_of(M))
    with pytest.raises(IndexError):
        theirs(torch.tensor([[3, id_]]))


def test_outputs_are_tuples_or_of_some_positions_as_those_of_other_models(tmp_path):
    theirs, tokens = opened(tmp_path, small_model(), evaluation_of(M)), draw_tokens(B, T)
    logits = theirs(tokens).logits
    assert_close(theirs(tokens, return_dict=False)[0], logits)
    assert_close(theirs(tokens, logits_to_keep=2).logits, logits[:, -2:])
    assert_close(theirs(tokens, logits_to_keep=torch.tensor([4, 11])).logits, logits[:, [4, 11]])


@torch.no_grad()
def test_embeddings_in_place_of_tokens_and_several_texts_in_a_row_are_rejected(tmp_path):
    theirs, tokens = opened(tmp_path, small_model(), evaluation_of(M)), draw_tokens(B, T)
    for call in (theirs, theirs.generate):
        with pytest.raises(ValueError, match="inputs_embeds"):
            call(inputs_embeds=theirs.get_input_embeddings()(tokens))
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    position = (mask.cumsum(1) - 1).clamp(min=0)
    assert_close(theirs(tokens, mask, position_ids=position).logits, theirs(tokens, mask).logits)
    with pytest.raises(ValueError, match="each text its own row"):
        theirs(tokens, position_ids=torch.arange(T)[None] % 11)


def test_half_precision_is_near(tmp_path):
    tokens = draw_tokens(B, T)
    theirs = opened(tmp_path, small_model(std=0.1), evaluation_of(M))
    exact = in_calls(theirs, tokens, [T])
    assert_close(in_calls(theirs.bfloat16(), tokens, [T]), exact, atol=0.1)


def test_a_cache_that_keeps_all_keys_changes_nothing(tmp_path):
    tokens = draw_tokens(B, T)
    theirs = opened(tmp_path, small_model(), evaluation_of(M))
    cache = DynamicCache()
    parts = [theirs(part, **{CACHE: cache}).logits for part in tokens.split(4, dim=1)]
    assert_close(torch.cat(parts, dim=1), theirs(tokens).logits)


def test_greedy_text_does_not_depend_on_the_cache_and_beams_work(tmp_path):
    tokens = draw_tokens(B, 4)
    theirs = opened(tmp_path, small_model(), evaluation_of(M))
    shared = {"max_new_tokens": 15, "pad_token_id": 0, "attention_mask": torch.ones(B, 4, dtype=torch.long)}
    options = {**shared, "do_sample": False}
    greedy = theirs.generate(tokens, **options)
    assert torch.equal(theirs.generate(tokens, use_cache=False, **options), greedy)
    text = tokens
    for _ in range(15):
        text = torch.cat([text, in_calls(theirs, text, [text.shape[1]])[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(greedy, text)
    beams = theirs.generate(tokens, num_beams=3, **options)
    assert beams.shape == greedy.shape
    assert torch.equal(beams, theirs.generate(tokens, num_beams=3, use_cache=False, **options))
    sampled = theirs.generate(tokens, do_sample=True, **shared)
    assert sampled.shape == greedy.shape


def test_a_cache_of_fixed_size_is_rejected(tmp_path):
    theirs = opened(tmp_path, small_model(), evaluation_of(M))
    with pytest.raises(ValueError, match="leave out cache_implementation"):
        theirs.generate(draw_tokens(B, 4), max_new_tokens=3, cache_implementation="static")


def test_the_cache_can_be_switched_off_in_the_configuration(tmp_path):
    theirs, tokens = opened(tmp_path, small_model(), evaluation_of(M)), draw_tokens(B, T)
    assert theirs(tokens)[CACHE] is not None
    theirs.config.use_cache = False
    assert CACHE not in theirs(tokens)
    assert theirs(tokens, use_cache=True)[CACHE] is not None


def test_more_positions_than_were_learned_are_an_error(tmp_path):
    theirs = opened(tmp_path, small_model(**POSITIONS["learned"]), EvalSettings(seg_len=5, mem_len=0))
    assert theirs.config.n_positions == 5
    with pytest.raises(ValueError, match="5 positions"):
        theirs(draw_tokens(B, 6))


def test_a_model_with_new_weights_trains_with_all_dropout(tmp_path):
    rates = ("dropout", "projection_dropout", "attention_dropout", "word_dropout")
    for variational in (False, True):
        changed = dict.fromkeys(rates, 0.1) | {"variational_dropout": variational, "position": "relative_tied"}
        model = small_model(**changed)
        theirs = opened(tmp_path, model, evaluation_of(M)).float()
        fresh = type(theirs)(theirs.config).train()
        tokens = draw_tokens(3, 12, vocab_size=V)
        optimizer = torch.optim.Adam(fresh.parameters(), lr=3e-3)
        losses = []
        for _ in range(60):
            loss = fresh(tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a folder with a run for each tokenizer, and in `exported` what they are in Transformers."""
    directory = tmp_path_factory.mktemp("trained") / "here"
    prepare_and_train(directory)
    for name in TOKENIZERS:
        done("export", name, directory / "exported" / name, "--runs-dir", directory / "runs")
    return directory


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_tokenizer_and_the_model_of_a_run_score_a_text_as_txl_does(trained, name):
    text = text_of("test")
    run = txlcli.load(name, runs_dir=trained / "runs")
    folder = trained / "exported" / name
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokens = tokenizer(text, return_tensors="pt")
    ids = run.vocab.encode(text)
    assert tokens.input_ids[0].tolist() == ids.tolist()
    assert tokenizer.decode(tokens.input_ids[0]) == run.vocab.decode(ids.tolist())
    with torch.no_grad():
        losses = -model(**tokens).logits.log_softmax(-1)[0, :-1].gather(1, tokens.input_ids[0, 1:, None])[:, 0]
    first = 12  # txl's texts of words begin with an implied line end, which their first tokens see
    assert_close(losses[first:], torch.from_numpy(run.score(text).loss_nats[-len(losses) + first :]), atol=1e-5)
    batch = tokenizer([text[:30], text[:50]], padding=True, return_tensors="pt")
    assert batch.attention_mask[0, 0] == 0
    assert model.generate(**batch, max_new_tokens=3, do_sample=False).shape[1] == batch.input_ids.shape[1] + 3


@pytest.mark.parametrize("name", ["word", "sentencepiece"])
def test_the_symbol_of_a_line_end_may_be_written_before_a_text(trained, name):
    tokenizer = AutoTokenizer.from_pretrained(trained / "exported" / name, trust_remote_code=True)
    for text in ("the fox\n", " <eos> fox", "\ufb01"):
        ids = tokenizer(text).input_ids
        assert tokenizer(f"{tokenizer.bos_token}{text}").input_ids == [tokenizer.bos_token_id, *ids]


@pytest.mark.parametrize(
    ("kind", "symbols", "boundary"), [("char", ["a", "<unk>", " "], None), ("word", ["<eos>", "<unk>", "a"], 0)]
)
def test_unknown_symbols_and_written_line_ends_are_read_as_txl_does(tmp_path, kind, symbols, boundary):
    vocab = Vocab(kind, symbols, boundary=boundary, unknown=1)
    (tmp_path / "vocab.json").write_text(vocab.to_json())
    tokenizer = TxlTokenizer(tmp_path / "vocab.json")
    text = "<eos> \na b <eos> \na<eos>\r\n<eos>\n"
    ids = tokenizer(text).input_ids
    assert ids == vocab.encode(text).tolist()
    assert tokenizer.decode(ids) == vocab.decode(ids)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_data_collator_keeps_the_labels_of_line_ends(trained, name):
    tokenizer = AutoTokenizer.from_pretrained(trained / "exported" / name, trust_remote_code=True)
    rows = [tokenizer(text) for text in ("the fox\n\nthe owl\n", "the fox\n")]
    batch = DataCollatorForLanguageModeling(tokenizer, mlm=False)(rows)
    longest, shorter = (row.input_ids for row in rows)
    padding = len(longest) - len(shorter)
    assert batch["labels"].tolist() == [longest, [-100] * padding + shorter]
    assert batch["input_ids"][1, :padding].tolist() == [tokenizer.convert_tokens_to_ids(tokenizer.pad_token)] * padding


def test_trainer_lowers_the_loss(trained, tmp_path):
    folder = trained / "exported" / "byte"
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokens = tokenizer("the fox jumps over the lazy dog\n" * 2).input_ids
    rows = [{"input_ids": tokens, "labels": tokens}] * 8
    options = TrainingArguments(
        tmp_path, max_steps=60, learning_rate=1e-2, report_to=[], logging_steps=5, save_strategy="no", use_cpu=True
    )
    trainer = Trainer(model, options, train_dataset=rows)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", ["char", "word"])
def test_minicons_gives_our_surprisals(trained, name):
    scorer = pytest.importorskip("minicons.scorer", reason="pip install minicons")
    folder = trained / "exported" / name
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    text = "the fox jumps over the lazy dogs\n"
    minicons = scorer.IncrementalLMScorer(model, "cpu", tokenizer=tokenizer)
    (scores,) = minicons.token_score([text], surprisal=True, bos_token=tokenizer.bos_token is not None)
    ours = txlcli.load(name, runs_dir=trained / "runs").score(text)
    symbols, surprisals = zip(*scores[1:], strict=True)
    assert list(symbols) == tokenizer.convert_ids_to_tokens(ours.tokens.tolist())
    assert list(surprisals) == pytest.approx(ours.loss_nats.tolist(), abs=1e-4)


def test_the_harness_scores_the_folder_as_txl_does(trained):
    huggingface = pytest.importorskip("lm_eval.models.huggingface", reason='pip install "lm_eval>=0.4.13"')
    from lm_eval.api.instance import Instance

    model = huggingface.HFLM(
        pretrained=str(trained / "exported" / "word"), trust_remote_code=True, device="cpu", max_length=4096
    )
    text = text_of("test")
    request = Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=0)
    ours = txlcli.load("word", runs_dir=trained / "runs").score(text)
    assert model.loglikelihood_rolling([request]) == [pytest.approx(-ours.total_nats, rel=1e-5)]
