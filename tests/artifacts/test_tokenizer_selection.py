"""Selection of the tokenizer files of a repository."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.text.tokenizer_zoo import CORPUS, tokenizer_of
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from trtllm_truss.artifacts.listing import select_tokenizer
from trtllm_truss.errors import ArtifactError
from trtllm_truss.text import tokenizer_conversion
from trtllm_truss.text.tokenizer import load_tokenizer

WEIGHTS = ["model.safetensors", "pytorch_model.bin", "modeling_phi3.py", "configuration_phi3.py"]


def select(*names: str, trust: bool = False) -> list[str]:
    return select_tokenizer(dict.fromkeys(names, 1), trust_remote_code=trust)


def test_a_fast_tokenizer_and_nothing_else() -> None:
    files = ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    files += ["config.json", "chat_template.json"]
    templates = ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"]
    others = ["vocab.json", "merges.txt", "deeper/tokenizer.json", "a.gguf", *WEIGHTS]
    assert select(*files, *templates, *others) == sorted([*files, *templates])


def test_without_one_the_files_to_build_it_from() -> None:
    files = ["config.json", "tokenizer.model", "tokenizer_config.json"]
    assert select(*files, *WEIGHTS) == files


def test_a_gguf_file_comes_last() -> None:
    assert select("model.gguf", "README.md") == ["model.gguf"]


@pytest.mark.parametrize("names", [(), ("README.md",), ("a.gguf", "b.gguf"), ("config.json",)])
def test_none(names: tuple[str, ...]) -> None:
    with pytest.raises(ArtifactError, match="no tokenizer found"):
        select(*names)


@pytest.mark.parametrize("name", ["tokenizer.pkl", "vocab.pickle", "tokenizer_old.bin", "a.joblib"])
@pytest.mark.parametrize("trust", [False, True])
def test_a_pickle_alone_is_refused(name: str, trust: bool) -> None:
    with pytest.raises(ArtifactError, match=f"^{name} would run its author's code"):
        select(name, trust=trust)


@pytest.mark.parametrize(
    "name", ["start.sh", "run.bat", "scaler.pkl", "tokenizer_old.bin", "x.so", "setup.exe"]
)
@pytest.mark.parametrize("own", ["tokenizer.json", "tokenizer.model"])
def test_leftovers_that_nothing_loads_are_not_fetched(name: str, own: str) -> None:
    assert select(own, name) == [own]


def test_a_tokenizer_that_is_a_program_needs_trust() -> None:
    program = ["tokenization_x.py", "configuration_x.py", "tokenizer.model"]
    with pytest.raises(ArtifactError, match="set trust_remote_code: true"):
        select(*program)
    assert select(*program, trust=True) == sorted(program)


def write_gpt2(folder: Path) -> Tokenizer:
    """Write a tokenizer in GPT-2's format; return the expected fast tokenizer."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=alphabet,
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"})
    )
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "eos_token_id": [0, 7]}))
    return backend


def test_a_slow_tokenizer_becomes_a_fast_one(tmp_path: Path) -> None:
    backend = write_gpt2(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    text = CORPUS[0]
    assert tokenizer.encode(text) == backend.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_ids == (0, 7)


def test_an_unconvertible_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"no sentencepiece")
    message = r"cannot build a fast tokenizer from .*save_pretrained"
    with pytest.raises(ArtifactError, match=message):
        load_tokenizer(tmp_path)


def python_without_transformers(folder: Path) -> Path:
    """Write a Python in which `import transformers` fails."""
    file = folder / "python3"
    file.write_text(
        f"#!/bin/sh\nshift\nprogram=$1\nshift\nexec {sys.executable} -c "
        '"import sys; sys.modules[\'transformers\'] = None$program" "$@"\n'
    )
    file.chmod(0o755)
    return file


def test_no_python_has_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gpt2(tmp_path)
    monkeypatch.setattr(tokenizer_conversion, "pythons_with", lambda name: [])
    with pytest.raises(ArtifactError, match="requires transformers, which is not installed"):
        load_tokenizer(tmp_path)


def test_the_python_that_can_import_transformers_converts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In images up to 24.12 one of ours replaces a library that transformers needs."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    write_gpt2(folder)
    broken, whole = python_without_transformers(tmp_path), Path(sys.executable)
    monkeypatch.setattr(tokenizer_conversion, "pythons_with", lambda name: [broken, whole])
    assert load_tokenizer(folder).encode("abc")
    monkeypatch.setattr(tokenizer_conversion, "pythons_with", lambda name: [broken])
    with pytest.raises(ArtifactError, match=f"that of {broken} cannot be imported \\(import of"):
        load_tokenizer(folder)


def test_templates_in_files_of_their_own(tmp_path: Path) -> None:
    tokenizer_of("llama-2")._backend.save(str(tmp_path / "tokenizer.json"))
    shown = "{% for message in messages %}{{ message.content }}{% endfor %}"
    config = {"chat_template": [{"name": "default", "template": f"old{shown}"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").write_text(f"new{shown}")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text(f"{{{{ tools }}}}{shown}")
    tokenizer = load_tokenizer(tmp_path)
    messages = [{"role": "user", "content": "x"}]
    assert tokenizer.decode(tokenizer.apply_chat_template(messages)) == "newx"
    ids = tokenizer.apply_chat_template(messages, tools=[{"name": "a"}])
    assert tokenizer.decode(ids) == "[{'name': 'a'}]x"
