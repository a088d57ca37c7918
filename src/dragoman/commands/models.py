"""Commands for models: score, translate, export."""

import json as jsonlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from dragoman.commands.options import BeamOption, JsonOption, ModelArgument, ToOption, print_json


def evaluate(
    model: ModelArgument,
    src: Annotated[Path, typer.Option(help="Source text, a sentence a line; or .sgm, .xml, .tmx, .tsv.")],
    ref: Annotated[Path, typer.Option(help="Reference translation; the same file if it holds both.")],
    to: ToOption = None,
    beam: BeamOption = None,
    json: JsonOption = False,
) -> None:
    """Translate a text and score it: BLEU, chrF, signatures.

    Every score comes with its 95 % interval."""
    from dragoman.decode.score import evaluate_model

    result = evaluate_model(model, src, ref, to=to, beam=beam)
    if json:
        print_json(result)
        return
    for metric, name in (("bleu", "BLEU"), ("chrf", "chrF")):
        low, high = result["ci95" if metric == "bleu" else "chrf_ci95"]
        signature = result["signature" if metric == "bleu" else "chrf_signature"]
        print(f"{name} {result[metric]:.2f}  (95 % interval {low:.2f} to {high:.2f})  {signature}")
    print(f"{result['sentences']:,} sentences in {result['seconds']:.1f} s")


def translate(
    model: ModelArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Text to translate; standard input if not given.")
    ] = None,
    to: ToOption = None,
    beam: BeamOption = None,
    json: JsonOption = False,
) -> None:
    """Translate a text, line by line."""
    from dragoman.decode.translator import Translator, resolve_model

    translator = Translator(resolve_model(model))
    for translation in translator.translate(read_lines(file), beam=beam, to=to):
        if json:
            line = {"text": translation.text, "log_probability": translation.log_probability}
            print(jsonlib.dumps(line, ensure_ascii=False), flush=True)
        else:
            print(translation.text, flush=True)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    to: Annotated[Path, typer.Option(help="The directory to write the model to.")],
    step: Annotated[int | None, typer.Option(help="Which checkpoint; the best if not given.")] = None,
    average: Annotated[int, typer.Option(min=1, metavar="K", help="Average the last K checkpoints.")] = 1,
    quantize: Annotated[
        str | None, typer.Option(help="int8, int8_float32, int16, float16 or bfloat16.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Export a run's model for CTranslate2."""
    from dragoman.decode.export import export_run
    from dragoman.rundir import RunDir

    path = export_run(RunDir.open(run), to, step=step, average=average, quantization=quantize)
    size = sum(file.stat().st_size for file in path.iterdir())
    if json:
        print_json({"model": str(path), "bytes": size})
    else:
        print(f"{path}: {size / 1e6:.1f} MB. Translate with:  dragoman translate {path} < input.txt")


def read_lines(file: Path | None) -> Iterator[str]:
    """Yield the lines of a file or of standard input, without their ends."""
    from dragoman.data.formats import open_lines

    yield from open_lines(file)
