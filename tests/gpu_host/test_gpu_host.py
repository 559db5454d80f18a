"""The LLM API's path with transformers' continuous batching in the worker, on a GPU.

`python -m pytest tests/gpu_host` in an environment that has PyTorch, transformers 5.17, peft and
gguf too. Without a GPU the model runs on the CPU, slowly.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.end_to_end.test_supervision import HARMS, PROMPT, harmed, restarts
from tests.fakes.tensorrt_llm import VERSIONS, serve_checkpoint, write_checkpoint
from tests.support.smollm2 import smollm2_file
from tests.support.truss_process import Served

os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path.home() / ".cache/torchinductor")  # made at once
torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("default")  # peft warns without a network

GPU = {
    "TLLM_FAKE_COMPUTE": "tensorrt_llm.fake.transformers_batching:TransformersCompute",
    "CUDA_VISIBLE_DEVICES": "0",  # hidden from the other tests
}
LIMITS = {"max_batch_size": 16, "max_num_tokens": 512, "max_seq_len": 2048}
CACHE_TOKENS = 32_768
ADAPTERS = ("poet", "pirate")
TOKENS = 48
PROMPTS = [f"The history of {each} begins" for each in ("bread", "glass", "music", "rain")]
LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


def serve(folder: Path, version: str, **metadata: Any) -> Served:
    arguments = {**LIMITS, "kv_cache_config": {"max_tokens": CACHE_TOKENS}}
    served = serve_checkpoint(folder, version, GPU, runtime={"llm_args": arguments}, **metadata)
    return served.wait_until_ready()


class Reference(NamedTuple):
    """An adapter, and the greedy answers to each of the prompts, computed alone."""

    folder: Path | None
    texts: list[str]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reference]:
    """The model itself, with the name "", and two adapters with random weights."""
    file = smollm2_file()
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    found = {"": Reference(None, [answer(model, tokenizer, each) for each in PROMPTS])}
    for number, name in enumerate(ADAPTERS):
        folder = tmp_path_factory.mktemp("adapters") / name
        torch.manual_seed(number)
        config = peft.LoraConfig(
            r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], init_lora_weights=False
        )
        adapted = peft.get_peft_model(model, config).eval()
        adapted.save_pretrained(folder, save_embedding_layers=False)
        texts = [answer(adapted, tokenizer, each) for each in PROMPTS]
        found[name] = Reference(folder, texts)
        model = adapted.unload()
    return found


def answer(model: Any, tokenizer: Any, prompt: str) -> str:
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).to(model.device)
    with torch.no_grad():
        output = model.generate(**ids, max_new_tokens=TOKENS, do_sample=False)
    new = output[0, ids["input_ids"].shape[1] :]
    text: str = tokenizer.decode(new, skip_special_tokens=True)
    return text


def test_adapters_of_one_batch_answer_as_alone(
    tmp_path: Path, references: dict[str, Reference]
) -> None:
    folder = write_checkpoint(tmp_path / "model", smollm2_file(), {"torch_dtype": "float32"})
    adapters = {name: str(each.folder) for name, each in references.items() if each.folder}
    served = serve(folder, VERSIONS[-1], lora_adapters=adapters)

    def ask(name: str, prompt: str) -> str:
        body = {"model": name or "model", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        url = f"http://127.0.0.1:{served.port}/v1/completions"
        answer = httpx.post(url, json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    try:
        with concurrent.futures.ThreadPoolExecutor(len(references) * len(PROMPTS)) as pool:
            together = [[pool.submit(ask, name, each) for each in PROMPTS] for name in references]
            texts = [[each.result() for each in asked] for asked in together]
    finally:
        assert served.end() == 0, served.log
    assert texts == [each.texts for each in references.values()]
    for answers in zip(*texts, strict=True):
        assert len({*answers}) == len(references)


@pytest.fixture(scope="module", params=VERSIONS)
def restarting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, loads: Path
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("kills") / "model"
    write_checkpoint(folder, smollm2_file(), LLAMA_1B, load_after=str(loads))
    served = serve(folder, request.param, serving=restarts(hang_timeout_s=10))
    try:
        yield served
        assert served.end() == 0, served.log
        assert not served.leftovers()
    finally:
        if served.process.poll() is None:
            served.process.kill()


@pytest.mark.parametrize(
    "harm", ["kill a worker", "kill a Python stub", "kill a tritonserver", "stop a worker"]
)
def test_harm_under_load(
    restarting: Served, loads: Path, harm: str, pytestconfig: pytest.Config, report_round: Any
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 10}
    before = restarting.post(body).text
    for _ in range(pytestconfig.getoption("--rounds")):
        report_round(
            harmed(restarting, HARMS[harm], loads, lambda served: served.post(body).text == before)
        )
