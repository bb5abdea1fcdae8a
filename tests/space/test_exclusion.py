"""Excluded configs are counted under short names, which people read as words."""

from __future__ import annotations

from autotune.space import LAWS
from autotune.space.enumeration import exclusion_words, in_words
from autotune.trainers import trainer_names


def test_every_law_says_what_is_wrong_in_a_few_words_without_values() -> None:
    for law in LAWS:
        words = exclusion_words(law.name)
        assert words != law.name
        assert " " in words
        assert len(words) <= 80
        assert words[0] == words[0].lower() or words.startswith("ZeRO")
        assert not words.endswith(".")


def test_limits_of_trainers_and_memory_have_words_and_sentences_stay() -> None:
    assert exclusion_words("hf_trainer_compile") == "hf_trainer cannot run this compile"
    assert exclusion_words("memory") == "expected to run out of memory"
    for sentence in ("more ranks than the runner's 4", "native_ is no trainer's limit here"):
        assert exclusion_words(sentence) == sentence
    assert "native" in trainer_names()


def test_counts_are_summed_and_ordered_by_frequency() -> None:
    assert in_words({"pp_fill": 1, "tp_heads": 3, "memory": 2}) == {
        "tp does not divide num_attention_heads": 3,
        "expected to run out of memory": 2,
        "fewer micro-batches than pipeline ranks": 1,
    }
