"""Commands for models: score, translate, export, serve."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.commands.options import (
    BeamOption,
    DeviceOption,
    JsonOption,
    ModelArgument,
    ThreadsOption,
    ToOption,
    print_json,
)


def evaluate(
    models: Annotated[
        list[Path] | None,
        typer.Argument(metavar="MODEL", help="Runs, or exported models; compared with the first."),
    ] = None,
    src: Annotated[
        Path | None, typer.Option(help="Source text, a sentence a line; or .sgm, .xml, .tmx, .tsv.")
    ] = None,
    ref: Annotated[
        Path | None, typer.Option(help="Reference translation; the same file if it holds both.")
    ] = None,
    set_name: Annotated[
        str | None,
        typer.Option("--set", metavar="NAME/SET", help="Instead: a test set that `dragoman data get` got."),
    ] = None,
    hyp: Annotated[
        list[Path] | None, typer.Option(help="Compare with this translation by another system; repeatable.")
    ] = None,
    metric: Annotated[
        str, typer.Option(help="Of bleu, chrf, ter and comet, with commas between.")
    ] = "bleu,chrf",
    sentences: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write every sentence with its scores: JSON lines, or .tsv; - to print."
        ),
    ] = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="Score again the translations that a run has stored.")
    ] = False,
    to: ToOption = None,
    beam: BeamOption = None,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Translate a text and score it: BLEU, chrF, TER, COMET.

    Every score has its 95 % interval and signature; several models are compared by a paired significance test."""
    import sys

    from rich.console import Console

    from dragoman.decode.compare_page import show_results, write_sentences
    from dragoman.decode.evaluate import evaluate as evaluate_models
    from dragoman.files import disk_errors, written

    if stored and models:
        _evaluate_stored(models, json)
        return
    comparison = evaluate_models(
        models or [],
        src=src,
        ref=ref,
        set_name=set_name,
        hyps=hyp or [],
        metrics=metric.replace(" ", "").split(","),
        to=to,
        beam=beam,
        device=device,
        threads=threads,
    )
    results = comparison.results()
    if sentences == "-":
        write_sentences(comparison.sentences(), sys.stdout, tabs=False)
    elif sentences:
        with disk_errors(Path(sentences)), written(Path(sentences)) as file:
            write_sentences(comparison.sentences(), file, tabs=sentences.endswith(".tsv"))
    if json and sentences != "-":
        print_json(results[0] if len(results) == 1 else {"systems": results})
    elif not json:
        show_results(
            results, comparison.metrics, Console(highlight=False, markup=False, stderr=sentences == "-")
        )


def _evaluate_stored(runs: list[Path], json: bool) -> None:
    from dragoman.decode.evaluate import require_unchanged, rescore
    from dragoman.rundir import RunDir

    for run in runs:
        lines = rescore(RunDir.open(run))
        if json:
            print_json(lines)
        for line in lines if not json else []:
            scores = f"BLEU {line['bleu']:.2f}, chrF {line['chrf']:.2f}"
            print(f"{line['hypotheses']}: {scores}, {'NOT ' if line['changed'] else ''}as in scores.jsonl")
        require_unchanged(run, lines)


def translate(
    model: ModelArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Text to translate; standard input if not given.")
    ] = None,
    to: ToOption = None,
    beam: BeamOption = None,
    nbest: Annotated[int, typer.Option(min=1, metavar="N", help="The N best translations of each line.")] = 1,
    sampling: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            metavar="TEMPERATURE",
            help="Draw words at random instead of searching; 1: as the model has it.",
        ),
    ] = None,
    topk: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Draw from the K likeliest words only.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Draw the same words again (on one core).")] = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Put the log-probability before each line.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Translate a text, line by line; on a terminal what you type.

    A line of several sentences is translated sentence by sentence. Order, empty lines and white space are kept."""
    import sys

    import ctranslate2

    from dragoman.decode.translator import Sampling, Translator, resolve_model
    from dragoman.errors import UserError

    draws = sampling is not None or topk is not None
    if seed is not None and not draws:
        raise UserError(
            "there is nothing to draw: a search finds the same every time",
            where=f"--seed {seed}",
            fix="add --sampling 1, or leave --seed out",
        )
    if seed is not None:
        ctranslate2.set_random_seed(seed)  # holds for threads that begin after it
        threads = 1
    translator = Translator(resolve_model(model), device=device, threads=threads)
    options = {
        "to": to,
        "beam": beam,
        "nbest": nbest,
        "sampling": Sampling(1.0 if sampling is None else sampling, topk or 0) if draws else None,
    }
    if file is None and sys.stdin.isatty() and sys.stdout.isatty() and not json:
        from dragoman.decode.prompt import converse, with_history

        with_history()
        converse(translator, options, scores=scores)
    else:
        from dragoman.decode.stream import translate_stream

        translate_stream(translator, file, sys.stdout, options, scores=scores, as_json=json, quiet=quiet)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    to: Annotated[Path, typer.Option(help="The directory to write the model to.")],
    format: Annotated[
        str, typer.Option(help="ctranslate2, or huggingface for transformers.")
    ] = "ctranslate2",
    step: Annotated[int | None, typer.Option(help="Which checkpoint; the best if not given.")] = None,
    average: Annotated[int, typer.Option(min=1, metavar="K", help="Average the last K checkpoints.")] = 1,
    quantize: Annotated[
        str | None, typer.Option(help="int8, int8_float32, int16, float16 or bfloat16.")
    ] = None,
    measure: Annotated[
        bool, typer.Option(help="Translate dev before and after quantising, to see what it costs.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Export a run's model for CTranslate2 or Hugging Face.

    The folder holds all that is needed to translate, and a README.md that says what the model is."""
    from dragoman.decode.card import cost_line, write_card
    from dragoman.decode.cost import quantization_cost
    from dragoman.decode.export import export_run
    from dragoman.rundir import RunDir

    opened = RunDir.open(run)
    path = export_run(opened, to, step=step, average=average, format=format, quantization=quantize)
    measures = measure and quantize not in (None, "float32")
    cost = quantization_cost(opened, path) if measures else None
    write_card(path, opened, cost)
    size = sum(file.stat().st_size for file in path.iterdir())
    if json:
        print_json({"model": str(path), "format": format, "bytes": size, "cost": cost})
        return
    if cost:
        print(cost_line(cost))
    elif measures:
        print(
            "What quantisation costs was not measured: the dataset or the checkpoint is not there any more."
        )
    how = f"Translate with:  dragoman translate {path} < input.txt"
    if format == "huggingface":
        how = f"{path / 'README.md'} says how to use it."
    print(f"{path}: {size / 1e6:.1f} MB. {how}")


def serve(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL", help="Runs, or exported models, of different language pairs."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's need --keys or --open.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for a free one.")] = 8080,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ask for API keys: one a line, then perhaps a name.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Answer everybody, under any name.")] = False,
    rate: Annotated[
        int, typer.Option(min=0, metavar="N", help="Requests per minute of a key or address; 0: any number.")
    ] = 0,
    max_characters: Annotated[int, typer.Option(min=1, help="Longest text of a request.")] = 20_000,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that a request may take.")] = 60.0,
    client_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that a client may take to send its request.")
    ] = 20.0,
    allow_origin: Annotated[
        str | None, typer.Option(metavar="ORIGIN", help="Let pages of this origin use the API; * for all.")
    ] = None,
    proxy: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Believe X-Forwarded-For of this proxy.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Access log; standard error if not given.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="Cores to use; all if not given.")] = None,
) -> None:
    """Serve a web page and LibreTranslate's API.

    Ends with SIGTERM or Ctrl-C, after what it has accepted. A newer model at the same place is noticed by itself."""
    import sys

    from dragoman.serve.limits import Limits
    from dragoman.serve.server import open_log
    from dragoman.serve.server import serve as serve_models

    def ready(address: str, pairs: list[str]) -> None:
        print(f"Serving {', '.join(pairs)} at {address} (API: {address}docs)", flush=True)

    limits = Limits(
        characters=max_characters, seconds=timeout, client_seconds=client_timeout, requests_per_minute=rate
    )
    serve_models(
        models,
        host=host,
        port=port,
        ready=ready,
        limits=limits,
        keys=keys,
        is_open=open_,
        allow_origin=allow_origin,
        proxy=proxy,
        log=open_log(log) if log else sys.stderr,
        device=device,
        threads=threads,
    )
