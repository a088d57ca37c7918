"""``dragoman explain``: the twelve questions, each answered from a run's history with a verdict or "unclear".

A verdict is ``yes`` or ``no`` only where the evidence decides; a question whose evidence is broken says so, and the
others are answered all the same. Needs no torch.
"""

from typing import Any

from dragoman.observe.explain import change, files, learning, machines, pace
from dragoman.observe.explain.answer import Answer, Case, Finding, Question, plain, unclear
from dragoman.observe.history import History

__all__ = ["QUESTIONS", "Answer", "explain", "to_json"]

QUESTIONS = {
    "q01_duration": Question("How long did it take?", "the run finished", pace.duration),
    "q02_trained": Question("Is it fully trained?", "it is fully trained", learning.trained),
    "q03_overfitting": Question("Is it overfitting?", "it overfits", learning.overfitting),
    "q04_devices": Question("Were the devices fully used?", "the devices were fully used", machines.devices),
    "q05_network": Question(
        "Was the network the bottleneck?", "the network was the bottleneck", machines.network
    ),
    "q06_learning_rate": Question(
        "What did the learning rate do?", "the rate followed its formula", learning.rate
    ),
    "q07_data": Question("How big is the training set?", "the training set is known", files.data),
    "q08_checkpoint_files": Question(
        "Which files is a checkpoint made of?", "the newest checkpoint is complete", files.checkpoint_files
    ),
    "q09_checkpoint_size": Question(
        "How big are checkpoint and model?", "the size fits the parameters", files.checkpoint_size
    ),
    "q10_step_time": Question("How long is an average step?", "the pace was steady", pace.step_time),
    "q11_correlation": Question(
        "How does step time go with network use?", "step time goes with network use", machines.correlation
    ),
    "q12_next": Question("What should I change next?", "a change is worth it", change.next_change),
}


def explain(history: History) -> list[Answer]:
    """Answer all questions, in order. Never fails: broken evidence is answered with "unclear"."""
    case = Case(history)
    answers = []
    for key, question in QUESTIONS.items():
        try:
            found = question.ask(case)
        except Exception as error:  # evidence can be broken in more ways than can be foreseen
            found = unclear(f"the evidence cannot be reasoned about: {type(error).__name__}: {error}")
        case.found[key] = found
        answers.append(_answer(key, question, found))
    return answers


def to_json(history: History, answers: list[Answer]) -> dict[str, Any]:
    """Return an explanation as JSON holds it; the keys are stable."""
    return {
        "run": str(history.path),
        "kind": history.kind,
        "ending": history.ending,
        **{
            answer.key: {
                "question": answer.question,
                "claim": answer.claim,
                "verdict": answer.verdict,
                "summary": answer.summary,
                "evidence": answer.evidence,
                "confidence": answer.confidence,
                "advice": answer.advice,
            }
            for answer in answers
        },
        "problems": list(history.problems),
    }


def _answer(key: str, question: Question, found: Finding) -> Answer:
    return Answer(
        key,
        question.text,
        question.claim,
        found.verdict,
        " ".join(found.summary.split()),
        plain(found.evidence),
        plain(found.confidence),
        found.advice,
    )
