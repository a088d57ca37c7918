"""A plain training loop around MarianMTModel, as its documentation leads one to write it; see `peers.py`.

    python huggingface_loop.py config.json          one worker; under torchrun, one of several

It runs in the peer's environment, where there is no Dragoman. Each step is told in ``steps-RANK.jsonl``.
"""

import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from transformers import MarianConfig, MarianMTModel

PAD, UNK, BOS, EOS = 0, 1, 2, 3
NOT_COUNTED = -100  # a label that cross entropy leaves out

Pair = tuple[list[int], list[int]]


def read_pairs(text: Path) -> tuple[list[Pair], int]:
    """Return the ids of all pairs with end-of-sentence, and the size of the vocabulary."""
    pieces = (text / "vocabulary.txt").read_text(encoding="utf-8").split()
    ids = {piece: number for number, piece in enumerate(pieces, EOS + 1)}
    texts = [(text / side).read_text(encoding="utf-8") for side in ("src", "tgt")]
    sides = [
        [
            [*(ids.get(piece, UNK) for piece in line.split()), EOS]
            for line in each.removesuffix("\n").split("\n")
        ]
        for each in texts
    ]
    return list(zip(*sides, strict=True)), len(ids) + EOS + 1


def batches(pairs: list[Pair], tokens: int, seed: int) -> Iterator[list[Pair]]:
    """Go through the pairs for ever, in batches of similar length and at most ``tokens`` target tokens."""
    shuffle = random.Random(seed).shuffle
    while True:
        shuffle(pairs)
        epoch: list[list[Pair]] = [[]]
        filled = 0
        for pair in sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[0]))):
            if filled + len(pair[1]) > tokens:
                epoch.append([])
                filled = 0
            epoch[-1].append(pair)
            filled += len(pair[1])
        shuffle(epoch)
        yield from epoch


def pad(rows: list[list[int]], value: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    shape, dropout = settings["shape"], settings["dropout"]
    if world > 1:
        distributed.init_process_group("gloo")
    torch.manual_seed(settings["seed"])
    pairs, size = read_pairs(Path(settings["text"]))
    model = MarianMTModel(
        MarianConfig(
            vocab_size=size,
            d_model=shape["d_model"],
            encoder_layers=shape["layers"],
            decoder_layers=shape["layers"],
            encoder_attention_heads=shape["heads"],
            decoder_attention_heads=shape["heads"],
            encoder_ffn_dim=shape["feed_forward"],
            decoder_ffn_dim=shape["feed_forward"],
            activation_function="relu",
            dropout=dropout,
            attention_dropout=dropout,
            activation_dropout=dropout,
            scale_embedding=True,
            pad_token_id=PAD,
            eos_token_id=EOS,
            forced_eos_token_id=EOS,
            decoder_start_token_id=BOS,
            use_cache=False,
        )
    )
    model.train()
    trained = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["learning_rate"], betas=settings["betas"])
    warmup = settings["warmup_steps"]
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))
    )
    source = batches(pairs, settings["tokens"], settings["seed"] + rank)
    with (Path(settings["work"]) / f"steps-{rank:03d}.jsonl").open("w", buffering=1) as told:
        for step in range(1, settings["steps"] + 1):
            batch = next(source)
            src, tgt = (pad([pair[side] for pair in batch], PAD) for side in (0, 1))
            labels = pad([pair[1] for pair in batch], NOT_COUNTED)
            tgt_in = torch.cat([torch.full((len(batch), 1), BOS), tgt[:, :-1]], 1)
            logits = trained(
                input_ids=src, attention_mask=(src != PAD).long(), decoder_input_ids=tgt_in
            ).logits
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                labels.flatten(),
                ignore_index=NOT_COUNTED,
                label_smoothing=settings["label_smoothing"],
            )
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip_norm"])
            optimizer.step()
            schedule.step()
            tokens = int((labels != NOT_COUNTED).sum())
            line = {"step": step, "time": time.time(), "tokens": tokens, "loss": loss.item()}
            told.write(json.dumps(line) + "\n")
    if world > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
