"""Train the small checkpoint: a byte-level model of this family with a draft head, on the King James Bible.

    apt-get install bible-kjv && bible gen1:1-rev22:21 > kjv.txt
    python -m golden.train kjv.txt weights.npz --steps 1500 --until 500
    python -m golden.export weights.npz golden/checkpoint/kjv-1m.safetensors
    python -m golden.measure kjv.txt --record

The text is in the public domain (1611); Debian's package bible-kjv-text holds it. Its last 5 % are held out. Needs
PyTorch (any release from 1.13 on; a processor is enough), which nothing else here does.
"""

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from golden.corpus import held_out, read_text, training
from golden.sizes import CONFIG
from golden.torch_model import Parameters, forward, initial

LENGTH = 128
DRAFT_WEIGHT = 0.3


def losses(p: Parameters, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy, in nats a token, of the next token and of the one after it. batch [B, LENGTH + 2]."""
    logits, drafted = forward(CONFIG, p, batch[:, :LENGTH])
    main = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1 : LENGTH + 1].flatten())
    draft = functional.cross_entropy(drafted.flatten(0, 1), batch[:, 2 : LENGTH + 1].flatten())
    return main, draft


def draw(text: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random windows of the text [count, LENGTH + 2]."""
    starts = torch.randint(len(text) - LENGTH - 2, (count,), generator=generator)
    return text[starts[:, None] + torch.arange(LENGTH + 2)]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps that the cosine is made for, the step to stop at, windows a step, and the highest rate."""

    steps: int
    until: int
    batch: int
    rate: float

    def rate_at(self, step: int) -> float:
        """Rate of a step: 100 steps of warm-up, then a cosine down to a fiftieth."""
        return self.rate * min(1.0, (step + 1) / 100) * (0.02 + 0.49 * (1 + math.cos(math.pi * step / self.steps)))


def train(text: Tensor, check: Tensor, schedule: Schedule, out: Path) -> None:
    """AdamW; prints the loss on held-out text and writes the weights every 100 steps."""
    p = initial(CONFIG, seed=1)
    matrices = [v for v in p.values() if v.dim() == 2 and v.shape[0] > 4]
    others = [v for v in p.values() if not (v.dim() == 2 and v.shape[0] > 4)]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=schedule.rate, betas=(0.9, 0.98), eps=1e-9)
    generator = torch.Generator().manual_seed(2)
    began = time.monotonic()
    for step in range(schedule.until):
        for group in optimiser.param_groups:
            group["lr"] = schedule.rate_at(step)
        main, draft = losses(p, draw(text, schedule.batch, generator))
        optimiser.zero_grad()
        (main + DRAFT_WEIGHT * draft).backward()
        torch.nn.utils.clip_grad_norm_(list(p.values()), 1.0)
        optimiser.step()
        with torch.no_grad():
            for name, value in p.items():
                if name.endswith("Al"):
                    value.clamp_(max=-1e-3)
        if step % 100 == 99 or step + 1 == schedule.until:
            with torch.no_grad():
                held = losses(p, draw(check, 64, torch.Generator().manual_seed(3)))
            bits = [float(x) / math.log(2) for x in (main.detach(), draft.detach(), *held)]
            print(f"step {step + 1}: bits a byte {bits[0]:.3f}, draft {bits[1]:.3f}; held out {bits[2]:.3f}, "
                  f"draft {bits[3]:.3f}; {time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
            save(p, out)


def save(p: Parameters, out: Path) -> None:
    """Write the weights beside their place, then rename."""
    part = out.with_name(out.name + ".part.npz")
    np.savez(part, **{name: value.detach().numpy() for name, value in p.items()})
    part.replace(out)


def main() -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--until", type=int, default=500, help="stop here: longer is better, and costs an hour")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=5e-3)
    args = parser.parse_args()
    data = read_text(args.text)
    pieces = (torch.from_numpy(part(data).astype(np.int64)) for part in (training, held_out))
    text, check = pieces
    train(text, check, Schedule(args.steps, args.until, args.batch, args.rate), args.out)


if __name__ == "__main__":
    main()
