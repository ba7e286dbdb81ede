"""What word-count must answer, by a plain loop."""

from __future__ import annotations

from collections import Counter

from holdfast.workloads import Options, workload


def expected_counts(options: Options) -> list[tuple[int, str, int]]:
    """(epoch, key, count) of word-count, row by row: what each epoch changed, in the order of epoch and key."""
    counts: Counter[str] = Counter()
    answers = []
    for epoch in range(options.epochs):
        batch = workload("word-count").batch(options, epoch)
        changed = set()
        for text in batch.column(0).to_pylist():
            for word in text.split():
                counts[word] += 1
                changed.add(word)
        answers += [(epoch, word, counts[word]) for word in sorted(changed)]
    return answers
