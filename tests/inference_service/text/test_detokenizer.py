from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_service.text.detokenizer import make_detokenizer
from inference_service.text.vocabulary import Vocabulary

HARD = "ďábelské 🌶👩‍👩‍👧 the  fox"


def stream(vocabulary: Vocabulary, ids: list[int], **options: bool) -> list[str]:
    detokenizer = make_detokenizer(vocabulary, **options)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), skip=st.booleans())
def test_pieces_concatenate_to_the_one_shot_decode(any_vocabulary: Vocabulary, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, len(any_vocabulary) + 3), max_size=40))
    assert "".join(stream(any_vocabulary, ids, skip_special_tokens=skip)) == any_vocabulary.decode(
        ids, skip_special_tokens=skip
    )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(max_size=30), cut=st.integers(0, 3))
def test_pieces_of_encoded_text_cut_anywhere_equal_the_one_shot_decode(
    bytes_vocabulary: Vocabulary, pieces_vocabulary: Vocabulary, text: str, cut: int
) -> None:
    for vocabulary in (bytes_vocabulary, pieces_vocabulary):
        ids = vocabulary._backend.encode(text).ids
        ids = ids[: len(ids) - cut]
        assert "".join(stream(vocabulary, ids)) == vocabulary.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["bytes_vocabulary", "pieces_vocabulary"])
def test_a_character_is_never_broken(kind: str, request: pytest.FixtureRequest) -> None:
    vocabulary: Vocabulary = request.getfixturevalue(kind)
    pieces = stream(vocabulary, vocabulary._backend.encode(HARD).ids)
    assert "".join(pieces) == HARD
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_bytes_that_form_no_character_never_raise_and_spare_the_text_after_them(any_vocabulary: Vocabulary) -> None:
    tokens = [any_vocabulary.token_id(f"<0x{byte:02X}>") for byte in range(0x80, 0x100)]
    ids = [token_id for token_id in tokens if token_id is not None] * 2 + any_vocabulary._backend.encode("hello").ids
    text = "".join(stream(any_vocabulary, ids))
    assert text.endswith("hello")
    assert text == any_vocabulary.decode(ids, skip_special_tokens=True)


def test_words_of_a_sentencepiece_stream_keep_their_spaces(pieces_vocabulary: Vocabulary) -> None:
    pieces = stream(pieces_vocabulary, pieces_vocabulary._backend.encode("the fox jumps", add_special_tokens=False).ids)
    assert "".join(pieces) == "the fox jumps"
    assert pieces[0] == "the"


def test_pending_is_true_exactly_while_text_is_held_back(bytes_vocabulary: Vocabulary) -> None:
    detokenizer = make_detokenizer(bytes_vocabulary)
    ids = bytes_vocabulary._backend.encode("€").ids
    assert [(detokenizer.push(token_id), detokenizer.pending) for token_id in ids] == [
        ("", True),
        ("", True),
        ("€", False),
    ]


def test_an_incomplete_tail_is_flushed_as_the_one_shot_decode_does(any_vocabulary: Vocabulary) -> None:
    ids = any_vocabulary._backend.encode("the 🌶").ids[:-1]
    assert "".join(stream(any_vocabulary, ids)) == any_vocabulary.decode(ids, skip_special_tokens=True)


def test_special_tokens_are_joined_without_spaces_when_asked(words_vocabulary: Vocabulary) -> None:
    ids = [words_vocabulary.token_id(token) for token in ("hello", "<s>", "</s>", "fox")]
    with_spaces = "".join(stream(words_vocabulary, ids, skip_special_tokens=False))
    without = "".join(stream(words_vocabulary, ids, skip_special_tokens=False, spaces_between_special_tokens=False))
    assert with_spaces == "hello <s> </s> fox"
    assert without == "hello <s></s> fox"


def test_cost_per_token_does_not_grow_with_the_length(any_vocabulary: Vocabulary) -> None:
    detokenizer = make_detokenizer(any_vocabulary)
    decoded = 0
    decode = any_vocabulary.decode

    class Counting(Vocabulary):
        def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
            nonlocal decoded
            decoded += len(token_ids)
            return decode(token_ids, skip_special_tokens=skip_special_tokens)

    detokenizer = make_detokenizer(Counting(any_vocabulary._backend))
    ids = any_vocabulary._backend.encode("hello fox " * 300, add_special_tokens=False).ids
    for token_id in ids:
        detokenizer.push(token_id)
    assert decoded <= 4 * len(ids)
