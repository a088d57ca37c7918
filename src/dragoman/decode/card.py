"""The model card: a README.md in every exported folder that says what the model is and how to use it.

Everything in it is read from the run and from the folder's own ``dragoman.json``; what a run does not know is left out.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dragoman.decode.translator import CARD
from dragoman.files import read_json, read_json_lines, write_text
from dragoman.rundir import RunDir

NAME = "README.md"
LIBRARIES = {"ctranslate2": "ctranslate2", "huggingface": "transformers"}
HOW = {
    "ctranslate2": """\
```
pip install dragoman[translate]      # no torch needed
dragoman translate {folder} < input.txt
```

Without Dragoman, with [CTranslate2](https://opennmt.net/CTranslate2/) and SentencePiece alone:

```python
import ctranslate2, sentencepiece

pieces = sentencepiece.SentencePieceProcessor(model_file="{folder}/sentencepiece.model")
translator = ctranslate2.Translator("{folder}")
[result] = translator.translate_batch(
    [pieces.encode("A sentence.", out_type=str)], beam_size={beam}, length_penalty={length_penalty}, disable_unk=True
)
print(pieces.decode(result.hypotheses[0]))
```""",
    "huggingface": """\
```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{folder}")
model = AutoModelForSeq2SeqLM.from_pretrained("{folder}")
batch = tokenizer(["A sentence."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```

The class is Marian's where norms come after each block and Pegasus' where they come before it: these compute exactly
what was trained. The search is the one that the scores were made with. Text has to be in Unicode's form NFC.""",
}


def write_card(model: Path, run: RunDir, cost: dict[str, Any] | None = None) -> None:
    """Write the card of an exported model into its folder; ``cost`` is what quantisation cost."""
    write_text(model / NAME, "\n\n".join(_sections(model, run, cost)) + "\n")


def _sections(model: Path, run: RunDir, cost: dict[str, Any] | None) -> Iterator[str]:
    card = read_json(model / CARD)
    facts = read_json(run.facts) if run.facts.is_file() else {}
    src, tgt = card["src_lang"], card["tgt_lang"]
    languages = "".join(f"- {language}\n" for language in dict.fromkeys(f"{src}, {tgt}".split(", ")))
    yield (
        f"---\nlanguage:\n{languages}library_name: {LIBRARIES[card['format']]}\n"
        "pipeline_tag: translation\ntags:\n- translation\n- dragoman\n---"
    )
    yield f"# {src} → {tgt}"
    made_of = f"step {card['steps'][-1]:,}"
    if len(card["steps"]) > 1:
        made_of = f"the mean of steps {', '.join(f'{step:,}' for step in card['steps'])}"
    parameters = f"{facts['parameters'] / 1e6:.1f} M parameters, " if "parameters" in facts else ""
    yield f"A Transformer ({parameters}{card['quantization']}) trained with Dragoman; {made_of} of its run."
    how = HOW[card["format"]]
    for name in ("beam", "length_penalty"):
        how = how.replace(f"{{{name}}}", str(card[name]))
    yield "## Translate\n\n" + how.replace("{folder}", model.name)
    yield "## Scores\n\n" + "\n".join(_scores(card, run))
    if cost:
        yield "## What quantisation cost\n\n" + "\n".join(_cost(cost))
    if passport := facts.get("passport"):
        yield "## Trained on\n\n" + "\n".join(_trained_on(passport))
    yield "## Recipe\n\n```toml\n" + run.recipe.read_text("utf-8").strip() + "\n```"
    versions = ", ".join(f"{name} {version}" for name, version in card["versions"].items())
    yield (
        f"## Identity\n\n- checkpoint: `{card['checkpoint']}`\n- recipe: `{card['recipe']}`\n"
        f"- dataset: `{card.get('dataset', 'unknown')}`\n- exported with {versions}"
    )


def _scores(card: dict[str, Any], run: RunDir) -> Iterator[str]:
    lines = [line for line in read_json_lines(run.scores) if line["checkpoint"] == card["checkpoint"]]
    if not lines:
        yield "These weights were not scored by the run."
        return
    yield "| set | BLEU | 95 % interval | chrF | sentences |\n|---|---|---|---|---|"
    for line in {line["set"]: line for line in lines}.values():
        scores = f"{line['bleu']:.2f} | {_interval(line)} | {line['chrf']:.2f}"
        yield f"| {line['set']} | {scores} | {line['sentences']:,} |"
    first = lines[0]
    yield f"\nBeam {first['beam']}, length penalty {first['length_penalty']}, of the weights in float32. Signatures:"
    yield f"\n- BLEU `{first['signature']}`\n- chrF `{first['chrf_signature']}`"


def cost_line(cost: dict[str, Any]) -> str:
    """Return in one sentence what quantisation cost."""
    before, after = (
        f"{side['quantization']} BLEU {side['bleu']:.2f}, {side['bytes'] / 1e6:.1f} MB, "
        f"{side['sentences_per_second']:,.0f} sentences/s"
        for side in (cost["before"], cost["after"])
    )
    return f"dev before: {before}; after: {after}; {cost['verdict']}"


def _cost(cost: dict[str, Any]) -> Iterator[str]:
    yield "| | dev BLEU | 95 % interval | MB | sentences/s |\n|---|---|---|---|---|"
    for side in (cost["before"], cost["after"]):
        scores = f"{side['bleu']:.2f} | {_interval(side)}"
        speed = f"{side['bytes'] / 1e6:.1f} | {side['sentences_per_second']:,.0f}"
        yield f"| {side['quantization']} | {scores} | {speed} |"
    yield f"\n{cost['sentences']:,} sentences, on one machine. By paired bootstrap: {cost['verdict']}."


def _interval(line: dict[str, Any]) -> str:
    low, high = line["ci95"]
    return f"{low:.2f} – {high:.2f}"


def _trained_on(passport: dict[str, Any]) -> Iterator[str]:
    train = passport["splits"]["train"]
    tokens = " + ".join(f"{number:,}" for number in train["tokens"])
    megabytes = " + ".join(f"{size / 1e6:,.1f}" for size in train["bytes"])
    yield f"{train['pairs']:,} pairs of {train['lines']:,} lines were kept: {tokens} subwords, {megabytes} MB."
    yield ""
    for corpus in train["corpora"]:
        name = corpus.get("name") or ", ".join(Path(path).name for path in corpus["paths"])
        about = [f"{corpus['pairs']:,} pairs"]
        about += [str(corpus[key]) for key in ("licence", "source") if corpus.get(key)]
        yield f"- {name}: {', '.join(about)}"
    dropped = [f"{rule} {facts['pairs']:,}" for rule, facts in passport["dropped"].items() if facts["pairs"]]
    yield f"- dropped: {', '.join(dropped) or 'nothing'}"
    for name, found in passport.get("overlap", {}).get("sets", {}).items():
        seen = sum(found.get(how, 0) for how in ("exact", "normalised", "ngram"))
        yield f"- {seen:,} of {found['pairs']:,} lines of {name} were found in the training text"
