from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, processors

from engine.models.hf_tokenizer import load_tokenizer
from tests.engine.gguf_files import CHAT_TEMPLATE, SPECIAL, TOKENS
from tests.engine.models.hf_folders import (
    byte_level,
    sentencepiece,
    transformers,
    write_json,
    write_tokenizer,
)

CHAT = [{"role": "user", "content": "hello 12"}]
RENDERED = "<|im_start|>user\nhello 12<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("backend", [byte_level(), byte_level(bos=True), sentencepiece()], ids=["plain", "bos", "sp"])
def test_ids_and_text_are_those_of_transformers(tmp_path: Path, backend: tokenizers.Tokenizer) -> None:
    write_tokenizer(tmp_path, backend)
    peer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    for text in ("hello world", " héllo\n\n日本 12345", "<|im_start|>hell<|im_end|>", "<s>he</s> x"):
        theirs = peer.encode(text)
        ids = ours.encode(text)
        assert ids == theirs or [ids[0], *ids] == theirs, "a beginning that the text has already is not added again"
        assert ours.decode(ids) == peer.decode(ids, skip_special_tokens=True)


def test_the_post_processor_says_whether_a_text_gets_a_beginning(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_level())
    assert load_tokenizer(tmp_path).encode("he")[0] != 1
    write_tokenizer(tmp_path, byte_level(bos=True))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("he")[0] == 1
    assert tokenizer.encode("<|im_start|>he").count(1) == 1


def test_lengths_are_never_cut_or_filled(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=10)
    write_tokenizer(tmp_path, backend)
    assert len(load_tokenizer(tmp_path).encode("abcdefg")) == 7


def test_all_files_say_what_ends_an_answer(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_level())
    assert load_tokenizer(tmp_path).eos_ids == frozenset()
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [0, 7]})
    write_json(tmp_path / "config.json", {"eos_token_id": 9})
    for written in ("<|im_end|>", {"content": "<|im_end|>", "lstrip": False}):
        write_tokenizer(tmp_path, byte_level(), eos_token=written)
        assert load_tokenizer(tmp_path).eos_ids == {0, 7, 9, SPECIAL.index("<|im_end|>")}


def test_special_tokens_have_no_text(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_level())
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.decode([0, 1, 2, TOKENS.index("hello")]) == "hello"


@pytest.mark.parametrize(
    "template",
    [CHAT_TEMPLATE, [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHAT_TEMPLATE}]],
    ids=["one", "several"],
)
def test_chat_template_of_the_settings(tmp_path: Path, template: object) -> None:
    write_tokenizer(tmp_path, byte_level(), chat_template=template)
    assert load_tokenizer(tmp_path).apply_chat(CHAT) == RENDERED


def test_the_template_file_comes_first_and_knows_the_special_tokens(tmp_path: Path) -> None:
    write_tokenizer(
        tmp_path, byte_level(), bos_token="<|im_start|>", eos_token={"__type": "AddedToken", "content": "<|im_end|>"}
    )
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    text = load_tokenizer(tmp_path).apply_chat(CHAT)
    assert text == "<|im_start|>hello 12<|im_end|>"
    peer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert text == peer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)


def test_no_template(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_level(), chat_template=None)
    with pytest.raises(ValueError, match="no chat template: give the prompt as plain text"):
        load_tokenizer(tmp_path).apply_chat(CHAT)


def test_what_is_missing_damaged_or_not_supported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokenizer\.json: write one with transformers"):
        load_tokenizer(tmp_path)
    write_json(tmp_path / "tokenizer.json", {"version": "1.0"})
    with pytest.raises(ValueError, match=r"tokenizer\.json can not be read .* get it again"):
        load_tokenizer(tmp_path)
    write_tokenizer(tmp_path, byte_level(), chat_template="{% for %}")
    with pytest.raises(ValueError, match="chat template is not valid Jinja"):
        load_tokenizer(tmp_path)
    write_tokenizer(tmp_path, byte_level(), chat_template=[{"name": "rag", "template": "x"}])
    with pytest.raises(ValueError, match=r"has chat templates \['rag'\], none of them 'default'"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing("$A <|im_end|>", None, [("<|im_end|>", 2)])
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"turns 'a' into \['a', '<\|im_end\|>'\]: it may add one token before a text"):
        load_tokenizer(tmp_path)
    backend = byte_level()
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="decoder WordPiece is not supported"):
        load_tokenizer(tmp_path)
    backend.decoder = None
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="has no decoder"):
        load_tokenizer(tmp_path)
