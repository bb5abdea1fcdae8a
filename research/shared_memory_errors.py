"""How much of the error of the predicted peak do the configs of one program share?

    python -m research.shared_memory_errors

For each published source with peaks: the error of log peak over the shipped constants, its median
(what all rows share) and its standard deviation about the median of the rows of one model, length
and cluster (each config's own).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from autotune.cost import calibration_for
from research.fit_memory import predicted
from tests.benchmarks.published import FILES, Block
from tests.benchmarks.published.unseen import BATCHES, unseen


def main() -> None:
    """Prints the table, and the medians over the sources."""
    sources: dict[str, list[Block]] = {name: list(reader()) for name, reader in FILES.items()}
    for batch in BATCHES:
        sources |= {f"{name} (blind)": list(blocks) for name, blocks in unseen(batch=batch).items()}
    print("| source | trainer | rows | assumed | shared | own |\n|---|---|---|---|---|---|")
    found = defaultdict(list)
    for name, blocks in sources.items():
        errors = [each for block in blocks if len(each := _errors(block))]
        if not errors:
            continue
        shared = float(np.median(np.concatenate(errors)))
        about = [each - np.median(each) for each in errors if len(each) > 1]
        own = float(np.sqrt(np.mean(np.concatenate(about) ** 2))) if about else None
        workload = blocks[0].workload
        sigma = calibration_for(workload).memory_sigma
        rows = sum(map(len, errors))
        print(
            f"| {name} | {workload.trainer} | {rows} | {sigma:.2f} | {shared:+.3f} | {'-' if own is None else f'{own:.3f}'} |"
        )
        found["shared"].append(abs(shared))
        found["own"] += [] if own is None else [own]
    for kind, values in found.items():
        print(f"{kind}: median {np.median(values):.3f} over {len(values)} sources")


def _errors(block: Block) -> np.ndarray:
    """Log of measured over predicted peak of the rows whose peak is known."""
    known = np.flatnonzero(~block.failed & np.isfinite(block.peak_memory_bytes))
    if not len(known):
        return np.zeros(0)
    block = block.take(known)
    return np.asarray(
        np.log(block.peak_memory_bytes / predicted(block, calibration_for(block.workload))[0])
    )


if __name__ == "__main__":
    main()
