from __future__ import annotations

from paceline_lsp.feedback import Counts, Feedback


def test_each_counts_once() -> None:
    feedback = Feedback()
    item = feedback.offer(10)
    for _ in range(2):
        feedback.shown(item)
        feedback.accepted(item)
    assert feedback.counts == Counts(
        offered=1, shown=1, accepted=1, offered_characters=10, accepted_characters=10
    )


def test_parts_are_cumulative_and_the_whole_adds_the_rest() -> None:
    feedback = Feedback()
    item = feedback.offer(10)
    feedback.partly_accepted(item, 3)
    feedback.partly_accepted(item, 7)
    feedback.partly_accepted(item, 5)
    assert (feedback.counts.partly_accepted, feedback.counts.accepted_characters) == (1, 7)
    feedback.accepted(item)
    feedback.partly_accepted(item, 9)
    assert (feedback.counts.accepted, feedback.counts.accepted_characters) == (1, 10)


def test_what_was_never_offered_counts_nothing() -> None:
    feedback = Feedback()
    feedback.shown("completion-9")
    feedback.accepted("completion-9")
    feedback.partly_accepted("completion-9", 4)
    assert feedback.counts == Counts()


def test_memory_is_bounded() -> None:
    feedback = Feedback()
    first = feedback.offer(1)
    for _ in range(1000):
        feedback.offer(1)
    feedback.accepted(first)
    assert feedback.counts.accepted == 0
