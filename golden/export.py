"""`python -m golden.export WEIGHTS.npz OUT`: what training wrote, as one of our files."""

import argparse
from pathlib import Path

import numpy as np

from golden.sizes import CONFIG
from oracle.config import ModelConfig
from oracle.errors import LanelockError
from oracle.model_weights import HeldWeights, specs
from oracle.weights import save

ORIGIN = "golden/train.py on the King James Bible (public domain)"


def export(source: Path, out: Path, config: ModelConfig) -> None:
    """Quantise and write. Raises LanelockError for a file that does not hold exactly the model's tensors."""
    arrays = np.load(source)
    if sorted(arrays.files) != sorted(specs(config)):
        raise LanelockError(f"{source}: its tensors are not those of {config.name}")
    save(HeldWeights(config, {name: arrays[name] for name in arrays.files}), out, ORIGIN)


def main() -> None:
    """Export from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    export(args.source, args.out, CONFIG)


if __name__ == "__main__":
    main()
