from __future__ import annotations

import hashlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import grpc
import pytest

from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb

from .serving import Rig, serve


async def refusal(call: Any) -> errors.EnginehouseError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return errors.from_rpc_error(caught.value)


async def test_texts_and_ids_go_round(rig: Rig) -> None:
    texts = ["the fox 🌶", "a", ""]
    tokenized = await rig.inference.Tokenize(pb.TokenizeRequest(texts=texts))
    sequences = [{"ids": list(result.token_ids)} for result in tokenized.results]
    back = await rig.inference.Detokenize(pb.DetokenizeRequest(sequences=sequences))
    assert list(back.texts) == texts


async def test_offsets_are_characters_of_the_text(rig: Rig) -> None:
    text = "héllo fox"
    (result,) = (await rig.inference.Tokenize(pb.TokenizeRequest(texts=[text], return_offsets=True))).results
    assert len(result.starts) == len(result.ends) == len(result.token_ids)
    assert result.ends[-1] == len(text)


async def test_truncation_keeps_the_last_tokens(rig: Rig) -> None:
    whole = (await rig.inference.Tokenize(pb.TokenizeRequest(texts=["abc"]))).results[0].token_ids
    request = pb.TokenizeRequest(texts=["abc"], truncate_prompt_tokens=2, return_offsets=True)
    (result,) = (await rig.inference.Tokenize(request)).results
    assert list(result.token_ids) == list(whole)[-2:]
    assert list(result.starts) == [1, 2]


async def test_what_would_take_too_much_memory_is_refused(rig: Rig) -> None:
    text, half = "a" * (1 << 20) + "b", [5] * (1 << 19)
    chat = {"messages": [{"role": "user", "content": text}]}
    error = await refusal(rig.inference.Tokenize(pb.TokenizeRequest(texts=[text[1:], "c"])))
    assert (error.reason, error.metadata["length"]) == ("TOO_LONG", str((1 << 20) + 1))
    error = await refusal(rig.inference.ApplyChatTemplate(pb.ApplyChatTemplateRequest(chat=chat, tokenize=True)))
    assert error.reason == "TOO_LONG"
    chat = {"messages": [{"role": "user"}] * (1 << 18)}
    error = await refusal(rig.inference.ApplyChatTemplate(pb.ApplyChatTemplateRequest(chat=chat)))
    assert error.reason == "TOO_LONG"
    error = await refusal(rig.inference.Abort(pb.AbortRequest(server_ids=[""] * (1 << 17))))
    assert error.reason == "TOO_MANY"
    error = await refusal(
        rig.inference.Detokenize(pb.DetokenizeRequest(sequences=[{"ids": half}, {"ids": [*half, 5]}]))
    )
    assert error.reason == "TOO_LONG"


async def test_special_tokens_are_skipped_unless_asked_for(rig: Rig) -> None:
    sequences = [{"ids": [0, *rig.model.spec.tokenizer.encode("a"), 1]}]
    assert list((await rig.inference.Detokenize(pb.DetokenizeRequest(sequences=sequences))).texts) == ["a"]
    shown = await rig.inference.Detokenize(pb.DetokenizeRequest(sequences=sequences, skip_special_tokens=False))
    assert list(shown.texts) == ["<s>a</s>"]


async def test_a_chat_is_rendered_and_encoded_without_a_second_bos(rig: Rig) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "template_kwargs": {"flavour": "sweet"}}
    response = await rig.inference.ApplyChatTemplate(pb.ApplyChatTemplateRequest(chat=chat, tokenize=True))
    assert response.text == "<s>user: hi<|im_end|>assistant:sweet"
    assert list(response.token_ids).count(0) == 1


async def test_a_template_of_the_callers_is_refused_by_name(rig: Rig) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "chat_template": "{{ 1 }}"}
    error = await refusal(rig.inference.ApplyChatTemplate(pb.ApplyChatTemplateRequest(chat=chat)))
    assert error.metadata["field"] == "chat_template"


async def test_the_tokenizer_comes_whole_with_digests_in_last_pieces(rig: Rig, tmp_path: Path) -> None:
    files: dict[str, bytes] = defaultdict(bytes)
    async for chunk in rig.inference.GetTokenizer(pb.GetTokenizerRequest(model="tiny")):
        assert len(chunk.data) <= 1 << 20
        files[chunk.path] += chunk.data
        if chunk.sha256:
            assert chunk.sha256 == hashlib.sha256(files[chunk.path]).hexdigest()
    for name, data in files.items():
        (tmp_path / Path(name).name).write_bytes(data)
    from inference_service.text.tokenizer import Tokenizer

    assert Tokenizer(tmp_path).encode("the fox") == rig.model.spec.tokenizer.encode("the fox")


@pytest.mark.parametrize(
    ("method", "request_", "error"),
    [
        ("Tokenize", pb.TokenizeRequest(), errors.InvalidArgument),
        ("Tokenize", pb.TokenizeRequest(model="other", texts=["a"]), errors.NotFound),
        ("Detokenize", pb.DetokenizeRequest(sequences=[{"ids": [-1]}]), errors.InvalidArgument),
        ("Detokenize", pb.DetokenizeRequest(sequences=[{"ids": [410]}]), errors.InvalidArgument),
        ("ApplyChatTemplate", pb.ApplyChatTemplateRequest(), errors.InvalidArgument),
        ("Abort", pb.AbortRequest(), errors.InvalidArgument),
    ],
)
async def test_bad_requests_are_refused(rig: Rig, method: str, request_: Any, error: type[Exception]) -> None:
    assert type(await refusal(getattr(rig.inference, method)(request_))) is error


async def test_an_engine_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    async with serve(tmp_path, None) as rig:
        error = await refusal(rig.inference.Tokenize(pb.TokenizeRequest(texts=["a"])))
        assert error.reason == "NO_TOKENIZER"


async def test_server_info_and_load_tell_what_is_there(rig: Rig) -> None:
    info = await rig.inference.GetServerInfo(pb.GetServerInfoRequest())
    assert list(info.models) == ["tiny"]
    assert list(info.opsets) == [1]
    assert info.devices[0].id == "cpu"
    assert "sampling.top_k" in info.features
    (load,) = (await rig.inference.GetLoad(pb.GetLoadRequest())).models
    assert (load.model, load.running_requests, load.used_kv_blocks, load.total_kv_blocks) == ("tiny", 0, 0, 64)
