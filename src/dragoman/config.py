"""What a recipe may say: every section, field, default and limit, stated once.

A recipe is data: frozen, typed, read from TOML by ``recipe.py`` and checked once, before any process starts.
A field marked ``may_change`` can differ when a run is resumed; any other change would make the second half of
the run another experiment, and is refused. ``docs/config.md`` is generated from this file.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dragoman.corpus import Corpora, Corpus, Language
from dragoman.settings import Section, setting

Beta = Annotated[float, Field(ge=0, lt=1)]


class Data(Section):
    """Which text to learn from. A corpus is a pair `[src, tgt]` of paths, the path of a file that holds both sides
    (`.tsv`, `.tmx`, `.xml`), or `"builtin"`; several are a list of these, or of tables with more to say
    (below). `.gz`, `.xz`, `.zst` and `.bz2` files are read as they are. A change of paths is allowed in a resumed
    run as long as the text is the same."""

    src_lang: Language = setting("en", "Language of the source side, as a code.")
    tgt_lang: Language = setting("de", "Language of the target side, as a code.")
    train: Corpora = setting(..., "The corpora to train on.", may_change=True)
    dev: Corpora = setting(..., "Text to evaluate on while training.", may_change=True)
    test: Corpora | None = setting(None, "Text to score the best model on at the end.", may_change=True)
    temperature: float = setting(
        1.0, "Above 1, small corpora are seen more often and large ones less, with an epoch as long as before: the "
        "share of a corpus is its share of the pairs to the power of 1/temperature.", ge=1
    )  # fmt: skip
    directory: str = setting("datasets", "Where prepared datasets are kept.", may_change=True)

    def languages(self, corpus: Corpus) -> tuple[str, str]:
        """Return the languages of both sides of a corpus."""
        return corpus.src_lang or self.src_lang, corpus.tgt_lang or self.tgt_lang

    @property
    def language_pairs(self) -> tuple[tuple[str, str], ...]:
        """The language pairs to train on, each once, in the order of the corpora."""
        return tuple(dict.fromkeys(map(self.languages, self.train)))

    @property
    def src_languages(self) -> str:
        """The languages to translate from, as people read them: ``en``, or ``de, en``."""
        return ", ".join(sorted({src for src, _ in self.language_pairs}))

    @property
    def tgt_languages(self) -> str:
        """The languages to translate into, as people read them."""
        return ", ".join(sorted({tgt for _, tgt in self.language_pairs}))

    @property
    def tags(self) -> tuple[str, ...]:
        """The target languages that a source line has to name; none where there is but one."""
        targets = sorted({tgt for _, tgt in self.language_pairs})
        return tuple(targets) if len(targets) > 1 else ()


class Filter(Section):
    """Which training pairs to drop. Dev and test are never filtered."""

    max_length: int = setting(128, "Longest side kept, in subwords with end-of-sentence.", ge=4, le=4096)
    max_ratio: float = setting(
        4.0, "Largest ratio of the sides' lengths in words (short pairs exempt).", gt=1
    )
    identical: bool = setting(True, "Drop pairs whose two sides are the same.")
    max_copy: float = setting(
        0.9, "Largest share of words that both sides have in common (short pairs exempt). 1: off.", gt=0, le=1
    )
    html: bool = setting(True, "Drop pairs with remains of HTML, CSS or JavaScript.")
    max_nonletters: float = setting(
        0.7,
        "Largest share of a side's characters that are no letters, spaces not counted. 1: off.",
        gt=0,
        le=1,
    )
    min_script: float = setting(
        0.5, "Smallest share of a side's letters in the script of its language. 0: off.", ge=0, le=1
    )
    numbers: bool = setting(True, "Drop pairs whose numbers clearly differ.")
    max_other_language: float = setting(
        0.8, "Largest probability that a side is in another language, by py3langid (short sides exempt). 1: off.",
        gt=0, le=1,
    )  # fmt: skip
    duplicates: bool = setting(True, "Drop pairs that occurred before.")
    near_duplicates: bool = setting(
        True,
        "With duplicates, also drop pairs that differ from an earlier one in case and punctuation alone.",
    )
    overlap: bool = setting(True, "Drop training pairs that overlap with dev or test.")


class Vocab(Section):
    """The joint SentencePiece BPE vocabulary of both languages."""

    size: int = setting(32000, "Subwords, rounded up to a multiple of 8.", ge=64, le=256_000)
    sample_pairs: int = setting(200_000, "Pairs to learn the subwords from, spread over the corpus.", ge=1)
    character_coverage: float = setting(1.0, "Share of characters that get a subword.", gt=0.9, le=1.0)
    dropout: float = setting(
        0.0,
        "BPE-dropout: probability that a merge of subwords is passed over in training, drawn anew for each pair and "
        "epoch. 0: off; 0.1 is usual for a small corpus.",
        ge=0,
        lt=1,
    )

    @property
    def dataset_settings(self) -> dict[str, object]:
        """What shapes a dataset: dropout only changes how it is read."""
        return self.model_dump(exclude={"dropout"})


class Model(Section):
    """The Transformer's shape. Source, target and output embeddings are one matrix."""

    layers: int = setting(6, "Encoder layers.", ge=1)
    decoder_layers: int | None = setting(
        None, "Decoder layers; as many as encoder layers if not given.", ge=1
    )
    d_model: int = setting(512, "Width.", ge=8)
    heads: int = setting(8, "Attention heads.", ge=1)
    feed_forward: int = setting(2048, "Inner width of the feed-forward blocks.", ge=8)
    dropout: float = setting(0.1, "Dropout on embeddings and residual branches.", ge=0, lt=1)
    attention_dropout: float = setting(0.1, "Dropout on attention weights.", ge=0, lt=1)
    relu_dropout: float = setting(0.1, "Dropout inside the feed-forward blocks.", ge=0, lt=1)
    norm: Literal["pre", "post"] = setting("pre", "Layer norm before each block, or after its residual sum.")

    @property
    def num_decoder_layers(self) -> int:
        return self.decoder_layers or self.layers


class Train(Section):
    """How long and in what portions to train. `tokens` are target tokens with end-of-sentence."""

    steps: int = setting(..., "Optimizer updates of the whole run.", may_change=True, ge=1)
    tokens_per_step: int = setting(
        ..., "Target tokens of one step on average, over all workers together.", ge=1
    )
    micro_batch_tokens: int | None = setting(
        None,
        "Tokens of one forward and backward; workers share a step by whole micro-batches. "
        "A quarter of the step if not given.",
        ge=1,
    )
    seed: int = setting(1, "Seed of weights, order and dropout.", ge=0, lt=2**32)
    label_smoothing: float = setting(0.1, "Probability spread evenly over the vocabulary.", ge=0, lt=1)
    clip_norm: float = setting(1.0, "Largest gradient norm; larger gradients are scaled down. 0: off.", ge=0)
    precision: Literal["auto", "float32", "bf16", "fp16"] = setting(
        "auto", "Arithmetic of products; weights and sums stay float32. auto is bf16 on GPUs and CPUs that have "
        "units for it, else fp16 on a GPU and float32 on a CPU, and on a CPU for models narrower than 128."
    )  # fmt: skip
    average: Literal["none", "ema", "checkpoints"] = setting(
        "none", "Weights that are evaluated and exported: the last, their moving average, or the mean of the "
        "last checkpoints (at the end only)."
    )  # fmt: skip
    ema_decay: float = setting(
        0.999, "How slowly the moving average follows, with average = ema.", gt=0, lt=1
    )
    average_last: int = setting(5, "How many checkpoints to average, with average = checkpoints.", ge=2)

    @property
    def tokens_per_micro_batch(self) -> int:
        return self.micro_batch_tokens or max(1, self.tokens_per_step // 4)


class Optimizer(Section):
    """How gradients become updates."""

    name: Literal["adam", "adamw", "muon"] = setting(
        "adam", "Adam; Adam with decoupled weight decay; or Muon for matrices with Adam for the rest."
    )
    betas: tuple[Beta, Beta] = setting((0.9, 0.997), "Adam's decay rates of the two moments.", strict=False)
    epsilon: float = setting(1e-9, "Adam's epsilon.", gt=0)
    weight_decay: float = setting(0.0, "Decoupled weight decay, for adamw and muon.", ge=0)
    momentum: float = setting(0.95, "Muon's momentum.", ge=0, lt=1)


class Schedule(Section):
    """The learning rate as a function of the step; the formulas stand in `train/schedules.py`."""

    name: Literal["noam", "inverse_sqrt", "cosine", "linear", "constant"] = setting("noam", "The formula.")
    learning_rate: float = setting(2.0, "The peak; for noam the factor before d_model^-0.5.", gt=0)
    warmup_steps: int | None = setting(
        None, "Steps of linear rise; a tenth of the run if not given.", ge=0, may_change=True
    )
    decay_steps: int | None = setting(
        None,
        "Steps of the final fall, for linear; all after the warm-up if not given.",
        ge=1,
        may_change=True,
    )
    final_ratio: float = setting(0.0, "Where cosine and linear end, as a share of the peak.", ge=0, le=1)


class Guard(Section):
    """What happens when the loss breaks out. A step is bad when its loss or gradient is not finite, or its loss
    lies `spike_nats` above the running mean: bad steps are skipped, and too many in a row go back to the last
    checkpoint with a lower rate."""

    spike_nats: float = setting(3.0, "How far above its running mean a loss is a spike.", gt=0)
    max_skips: int = setting(5, "Bad steps in a row before going back.", ge=1)
    rollback_rate: float = setting(0.5, "Factor on the learning rate after going back.", gt=0, lt=1)
    max_rollbacks: int = setting(3, "How often to go back before giving up.", ge=0)


class Evaluate(Section):
    """Dev loss and training-sample loss in the loop; BLEU and chrF by the lane, from each checkpoint."""

    every_steps: int = setting(1000, "Steps between evaluations; each also writes a checkpoint.", ge=1,
                               may_change=True)  # fmt: skip
    train_sample: int = setting(500, "Training pairs of the fixed sample whose clean loss is compared with dev.",
                                ge=1)  # fmt: skip
    beam: int = setting(4, "Beam width when translating dev and test.", ge=1, may_change=True)
    length_penalty: float = setting(0.6, "Exponent of the length by which hypotheses' scores are divided.",
                                    ge=0, may_change=True)  # fmt: skip
    split_sentences: bool = setting(True, "Translate a line of several sentences one by one, here and wherever the "
                                    "model is used. Off for a model trained on whole paragraphs.",
                                    may_change=True)  # fmt: skip
    patience: int = setting(0, "Evaluations without a better value before stopping early. 0: off.", ge=0,
                            may_change=True)  # fmt: skip
    patience_metric: Literal["loss", "bleu"] = setting("loss", "The dev value that patience looks at.",
                                                       may_change=True)  # fmt: skip


class Checkpoint(Section):
    """When to save the training state, and what to keep."""

    every_steps: int = setting(1000, "Steps between checkpoints.", ge=1, may_change=True)
    every_minutes: float = setting(15.0, "Longest time between checkpoints. 0: off.", ge=0, may_change=True)
    keep_last: int = setting(3, "Newest checkpoints to keep.", ge=1, may_change=True)
    keep_best: int = setting(2, "Best checkpoints and models by dev BLEU to keep.", ge=1, may_change=True)


class Cluster(Section):
    """How the workers of a run work together."""

    sync: Literal["every-step", "compressed", "local", "auto"] = setting(
        "every-step", "How workers stay one model: gradients in full, gradients compressed, weights now and then, "
        "or the mildest of these that the network allows (docs/sync.md).", may_change=True
    )  # fmt: skip
    wire: Literal["float32", "bf16", "fp16", "int8", "int4", "powersgd"] | None = setting(
        None, "What numbers travel as. float32 for every-step, int4 for compressed and local if not given.",
        may_change=True,
    )  # fmt: skip
    powersgd_rank: int = setting(
        4, "Columns of the thin matrices, with wire = powersgd.", ge=1, may_change=True
    )
    inner_steps: int = setting(16, "Steps between exchanges of the same weight, with sync = local.", ge=1,
                               may_change=True)  # fmt: skip
    outer_learning_rate: float = setting(1.0, "How far the common weights follow, with sync = local.", gt=0,
                                         may_change=True)  # fmt: skip
    outer_momentum: float = setting(0.0, "Nesterov momentum of the common weights, with sync = local.", ge=0, lt=1,
                                    may_change=True)  # fmt: skip
    timeout_seconds: float = setting(600.0, "How long a worker waits for the others before the run restarts.",
                                     gt=0, may_change=True)  # fmt: skip
    max_restarts: int = setting(10, "How often lost workers are restarted from the last checkpoint.", ge=0,
                                may_change=True)  # fmt: skip
    min_hosts: int = setting(1, "With fewer hosts than this the run gives up, with more it goes on without those "
                             "that are lost.", ge=1, may_change=True)  # fmt: skip
    interface: str | None = setting(None, "Network interface between the hosts; the one that leads to them if not "
                                    "given.", may_change=True)  # fmt: skip

    @property
    def wire_format(self) -> str:
        """What numbers travel as, also where the recipe leaves it to us."""
        return self.wire or WIRES[self.sync][0]


# What may travel in each mode; the first if the recipe does not say.
WIRES = {
    "every-step": ("float32", "bf16"),
    "compressed": ("int4", "int8", "bf16", "fp16", "powersgd"),
    "local": ("int4", "int8", "bf16"),
    "auto": ("float32",),
}


class Log(Section):
    """What a run says while it goes."""

    every_steps: int = setting(50, "Steps between lines on the console and points in TensorBoard.", ge=1,
                               may_change=True)  # fmt: skip
    samples_every: int = setting(500, "Steps between sample translations. 0: off.", ge=0, may_change=True)
    tensorboard: bool = setting(True, "Write TensorBoard curves.", may_change=True)
    telemetry: bool = setting(True, "Measure device and network at the start, and look at the machine every second.",
                              may_change=True)  # fmt: skip


class Recipe(Section):
    """All that describes a run."""

    data: Data
    filter: Filter = Filter()
    vocab: Vocab = Vocab()
    model: Model = Model()
    train: Train
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    guard: Guard = Guard()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    cluster: Cluster = Cluster()
    log: Log = Log()

    @property
    def warmup_steps(self) -> int:
        """The warm-up in steps, also where the recipe leaves it to us."""
        given = self.schedule.warmup_steps
        return max(1, self.train.steps // 10) if given is None else given

    @property
    def decay_steps(self) -> int:
        """The length of the final fall in steps."""
        return self.schedule.decay_steps or max(1, self.train.steps - self.warmup_steps)

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        """Check what no single field can; every message begins with the field to change."""
        problems = list(_contradictions(self))
        if problems:
            raise Contradictions(problems)
        return self


class Contradictions(ValueError):
    """Fields that do not fit each other: (field, what, fix) for each."""

    def __init__(self, problems: list[tuple[str, str, str]]) -> None:
        super().__init__("; ".join(what for _, what, _ in problems))
        self.problems = problems


def _contradictions(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    yield from _contradictions_of_text(recipe.data)
    model, train, schedule = recipe.model, recipe.train, recipe.schedule
    if model.d_model % model.heads:
        yield (
            "model.heads",
            f"d_model {model.d_model} cannot be shared evenly by {model.heads} heads",
            "choose a number of heads that divides d_model",
        )
    if model.d_model % 2:
        yield ("model.d_model", f"d_model {model.d_model} is odd", "choose an even d_model")
    if train.tokens_per_micro_batch > train.tokens_per_step:
        yield (
            "train.micro_batch_tokens",
            f"a micro-batch ({train.tokens_per_micro_batch:,} tokens) is larger than a step "
            f"({train.tokens_per_step:,} tokens)",
            "lower micro_batch_tokens, or raise train.tokens_per_step",
        )
    # noam, inverse_sqrt and constant do not know the end of the run: ending during their warm-up is odd, not wrong.
    if schedule.name in ("cosine", "linear"):
        if recipe.warmup_steps > train.steps:
            yield (
                "schedule.warmup_steps",
                f"warmup ({recipe.warmup_steps:,} steps) is longer than the run ({train.steps:,} steps)",
                f"lower warmup_steps below {train.steps}, or raise train.steps",
            )
        elif recipe.warmup_steps + recipe.decay_steps > max(train.steps, recipe.warmup_steps + 1):
            yield (
                "schedule.decay_steps",
                f"warmup ({recipe.warmup_steps:,}) and decay ({recipe.decay_steps:,} steps) are longer than the "
                f"run ({train.steps:,} steps)",
                "lower decay_steps or warmup_steps, or raise train.steps",
            )
    cluster = recipe.cluster
    if cluster.wire_format not in WIRES[cluster.sync]:
        allowed = " or ".join(WIRES[cluster.sync])
        yield (
            "cluster.wire",
            f"sync = {cluster.sync} cannot send {cluster.wire}",
            "leave wire out: auto chooses it"
            if cluster.sync == "auto"
            else f"set wire to {allowed}, or leave it out",
        )
    if train.average == "checkpoints" and recipe.checkpoint.keep_last < train.average_last:
        yield (
            "checkpoint.keep_last",
            f"average_last is {train.average_last} but only {recipe.checkpoint.keep_last} checkpoints are kept",
            f"set checkpoint.keep_last to at least {train.average_last}, or lower train.average_last",
        )


def _contradictions_of_text(data: Data) -> Iterator[tuple[str, str, str]]:
    trained = {tgt for _, tgt in data.language_pairs}
    for split, corpora in (("dev", data.dev), ("test", data.test or ())):
        for _, tgt in sorted({data.languages(corpus) for corpus in corpora}):
            if tgt not in trained:
                yield (
                    f"data.{split}",
                    f"{split} is translated into {tgt}, which no training corpus is",
                    f'correct tgt_lang, or train on a corpus with tgt_lang = "{tgt}"',
                )
        if any(corpus.weight != 1 for corpus in corpora):
            yield (f"data.{split}", f"{split} has a weight, but is always used once", "remove the weight")
