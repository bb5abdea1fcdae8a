"""A document in a packed sequence is trained as if it were alone."""

from __future__ import annotations

import pytest
import torch

from autotune.spec import ModelSpec
from autotune_workers.training.model.decoder import DecoderStage
from autotune_workers.training.model.loss import IGNORED
from autotune_workers.training.model.packed_sequences import (
    apply_documents,
    counted_targets,
    document_pieces,
    document_positions,
    without_document_ends,
)
from tests.workers.training.test_parts import whole
from tests.workers.trial_ranks import MODELS


def model_of(spec: ModelSpec, seq_len: int, document_len: int) -> DecoderStage:
    stage = whole(spec, document_positions(torch.arange(seq_len), document_len))
    if document_len:
        apply_documents(stage, document_len)
    return stage


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_packed_documents_give_the_logits_of_documents_alone(name: str) -> None:
    tokens = torch.randint(0, 256, (2, 28), generator=torch.Generator().manual_seed(0))
    packed = model_of(MODELS[name], 28, 12)(tokens)
    for start, end in ((0, 12), (12, 24), (24, 28)):
        alone = model_of(MODELS[name], end - start, 0)(tokens[:, start:end])
        torch.testing.assert_close(packed[:, start:end], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("seq_len", "document_len"), [(28, 12), (24, 12), (24, 1), (24, 24), (24, 0)]
)
def test_nothing_is_predicted_across_the_end_of_a_document(seq_len: int, document_len: int) -> None:
    targets = torch.arange(1, seq_len + 1).expand(3, -1)
    kept = without_document_ends(targets, torch.arange(seq_len), document_len)
    assert int((kept != IGNORED).sum()) == 3 * counted_targets(seq_len, document_len)
    if document_len:
        assert (kept[:, document_len - 1 :: document_len] == IGNORED).all()


def test_pieces_of_a_chunk_begin_where_its_documents_do() -> None:
    assert document_pieces(8, 20, 6) == [(8, 12, 6), (12, 18, 12), (18, 20, 18)]
    assert document_pieces(12, 18, 6) == [(12, 18, 12)]
    assert document_pieces(8, 20, 0) == [(8, 20, 0)]
