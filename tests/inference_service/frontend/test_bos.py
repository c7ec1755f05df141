"""A prompt begins with the BOS that it should have: once, and never taken away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from .serving import Rig, serve, start

BOS = 0


@pytest.fixture(params=["bytes_tokenizer_dir", "pieces_tokenizer_dir"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    """As GPT-2 (a raw text gets no BOS) and as Llama (it gets one)."""
    async with serve(tmp_path, request.getfixturevalue(request.param)) as rig:
        yield rig


async def prompt_of(rig: Rig, **fields: Any) -> list[int]:
    """The prompt's ids, as the output echoes them."""
    output = {"exclude_input_from_output": False}
    outcome = await rig.one(start("r", output=output, sampling={"max_tokens": 1}, **fields))
    return outcome.token_ids[:-1]


async def test_a_rendered_chat_has_one_bos_and_it_is_the_templates(rig: Rig) -> None:
    ids = await prompt_of(rig, ids=None, chat={"messages": [{"role": "user", "content": "hello"}]})
    assert ids[0] == BOS
    assert ids.count(BOS) == 1


async def test_a_raw_text_gets_what_its_tokenizer_adds_and_nothing_when_told_so(rig: Rig) -> None:
    adds = rig.model.spec.tokenizer.encode("")[:1] == [BOS]
    ids = await prompt_of(rig, ids=None, text="hello")
    assert ids.count(BOS) == int(adds)
    assert ids[:1] == [BOS] or not adds
    assert BOS not in await prompt_of(rig, ids=None, text="hello", add_special_tokens=False)


async def test_a_chat_rendered_by_the_client_keeps_its_one_bos(rig: Rig) -> None:
    text = "<s>user: hello<|im_end|>assistant:"
    ids = await prompt_of(rig, ids=None, text=text, add_special_tokens=False)
    assert ids == await prompt_of(rig, ids=None, chat={"messages": [{"role": "user", "content": "hello"}]})


@pytest.mark.parametrize("given", [[BOS, 5, 6], [BOS, BOS, 5], [5, 6], [BOS]])
async def test_ids_stay_as_they_were_given(rig: Rig, given: list[int]) -> None:
    assert await prompt_of(rig, ids=given) == given
