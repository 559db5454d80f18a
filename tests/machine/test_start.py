"""Starts in images of both eras: the version that is rendered, and the environment of Triton."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
import venv
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.backends.triton_native.native_triton import write_tokenizer
from tests.engines.checkpoint.checkpoints import write_checkpoint
from tests.engines.checkpoint.llm_api.conftest import LLM_ARGS
from tests.fakes.tensorrt_llm import COUNTING, SITE, open_mpi
from tests.fakes.triton import write_engine
from tests.machine.images import ImageTree, lay_out
from tests.support.paths import ROOT, TEMPLATES
from tests.support.shared_library import write_library
from tests.support.waiting import PATIENCE_S
from tokenizers import Tokenizer, models

from trtllm_builder.run import step_environment
from trtllm_truss.engines.engine import ModelConfig
from trtllm_truss.errors import SettingsError, TritonError
from trtllm_truss.machine.runtime import assemble_backends, find_installation, find_runtime
from trtllm_truss.serving.service import Service
from trtllm_truss.settings.loading import Environment, parse_settings
from trtllm_truss.triton.client.client import TritonClient
from trtllm_truss.triton.client.engine_messages import EngineRequest
from trtllm_truss.triton.model_repository import (
    InstanceCounts,
    render_native_models,
    render_repository,
)
from trtllm_truss.triton.server.command import launcher, server_environment
from trtllm_truss.triton.server.process import ServerProcess
from trtllm_workbench.cli.main import main

SMI = """#!/bin/sh
echo "GPU-aaaa-1, NVIDIA H100 80GB HBM3, 81559, 81038, 9.0, {driver}"
"""
LIBRARIES = (
    *("numpy", "mpi4py", "typing_extensions"),
    *("pydantic", "pydantic_core", "annotated_types", "typing_inspection"),
    "safetensors",
)
"""Packages that the stand-in of TensorRT-LLM imports."""
KEEP_AND_END = """#!/bin/sh
env > "$KEPT/environment"
for word; do case $word in --model-repository=*) cp -rL "${word#*=}" "$KEPT/repository"; esac; done
exit 1
"""


@pytest.fixture(autouse=True)
def without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the GPUs from the tree's `nvidia-smi`, on machines with GPUs too."""
    monkeypatch.setitem(sys.modules, "pynvml", None)


def start(tree: ImageTree, engine: Path, driver: str) -> None:
    """Start the engine as the Truss does, with a Triton that records its input and exits."""
    for name, text in (
        ("usr/bin/nvidia-smi", SMI.format(driver=driver)),
        ("opt/tritonserver/bin/tritonserver", KEEP_AND_END),
    ):
        (tree.root / name).write_text(text)
        (tree.root / name).chmod(0o755)
    kept = tree.root / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    serving = {"pass_environment": ["KEPT"]}
    metadata = {"engine_repository": str(engine), "serving": serving}
    settings = parse_settings({"model_metadata": metadata})
    Service(settings, Environment(None, variables(tree)), ROOT / "data", "my/image:1").start()


def variables(tree: ImageTree) -> dict[str, str]:
    return {
        **tree.environ,
        "PATH": f"{tree.environ['PATH']}:/usr/bin:/bin",
        "_CUDA_COMPAT_PATH": str(tree.root / "usr/local/cuda/compat"),
        "KEPT": str(tree.root / "kept"),
    }


def kept_environment(tree: ImageTree) -> dict[str, str]:
    lines = (tree.root / "kept/environment").read_text().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def check_and_render(
    tree: ImageTree,
    engine: Path,
    version: str,
    seed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run the commands inside the container, with an image of an unknown name."""
    for name, value in tree.environ.items():
        monkeypatch.setenv(name, value)
    content = {
        "base_image": {"image": "my/image:1"},
        "model_metadata": {"engine_repository": str(engine)},
    }
    config = tree.root / "config.yaml"
    config.write_text(json.dumps(content))
    options = ["--truss", str(ROOT), "--config", str(config)]
    assert main(["check", *options]) == 0
    printed = capsys.readouterr().out
    assert f"TensorRT-LLM {version} for {tree.python}" in printed
    assert f"Triton: {tree.root}/opt/tritonserver/bin/tritonserver" in printed
    output = tree.root / "rendered"
    assert main(["render", *options, "--output", str(output)]) == 0
    assert f'name: "{seed}"' in (output / "tensorrt_llm/config.pbtxt").read_text()


@pytest.mark.parametrize(
    ("in_environment", "version", "cuda", "compat", "seed"),
    [
        (False, "0.18.2", "12.8.1.012", "570.124.06", "random_seed"),
        (True, "1.2.1", "13.1.0.036", "590.44.01", "seed"),
    ],
)
def test_a_start_in_both_eras(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    in_environment: bool,
    version: str,
    cuda: str,
    compat: str,
    seed: str,
) -> None:
    caplog.set_level(logging.INFO, "trtllm_truss")
    tree = lay_out(
        tmp_path, version, in_environment=in_environment, driver=None, cuda=cuda, compat=compat
    )
    folder = tmp_path / "usr/local/cuda/compat/lib.real"
    write_library(folder / f"libcuda.so.{compat}", {"cuInit": 0})
    engine = write_engine(tmp_path / "engine")
    file = engine / "config.json"
    built = file.read_text().replace('"version": "1.0.0"', f'"version": "{version}"')
    Tokenizer(models.WordLevel({"<unk>": 0, "Hello": 1, "<eos>": 2}, "<unk>")).save(
        f"{engine}/tokenizer.json"
    )

    with pytest.raises(SettingsError, match=f"installed runtime is TensorRT-LLM {version}"):
        start(tree, engine, "595.10")
    file.write_text(built)
    check_and_render(tree, engine, version, seed, monkeypatch, capsys)

    with pytest.raises(TritonError, match="exited with code 1"):
        start(tree, engine, "535.104.05")
    environment = kept_environment(tree)
    libraries = environment["LD_LIBRARY_PATH"].split(":")
    assert libraries == [str(folder), *tree.environ["LD_LIBRARY_PATH"].split(":")]
    assert step_environment(variables(tree), ())["LD_LIBRARY_PATH"].split(":") == libraries
    rendered = (tmp_path / "kept/repository/tensorrt_llm/config.pbtxt").read_text()
    assert f'name: "{seed}"' in rendered
    assert f"TensorRT-LLM {version} for {tree.python}" in caplog.text
    assert "NVIDIA driver: 535.104.05" in caplog.text
    assert f"CUDA: {cuda}" in caplog.text
    assert f"CUDA compatibility: forward compatibility ({folder}, driver {compat})" in caplog.text

    with pytest.raises(TritonError, match="exited with code 1"):
        start(tree, engine, "595.10")
    assert kept_environment(tree)["LD_LIBRARY_PATH"] == tree.environ["LD_LIBRARY_PATH"]
    assert "CUDA compatibility: native" in caplog.text

    write_library(folder / f"libcuda.so.{compat}", {"cuInit": 804})
    with pytest.raises(SettingsError, match=f"driver here is 470.82.01, too old for CUDA {cuda}"):
        start(tree, engine, "470.82.01")


@pytest.mark.parametrize("in_environment", [False, True])
def test_python_models_of_a_checkpoint_run_where_tensorrt_llm_is(
    tmp_path: Path, in_environment: bool
) -> None:
    """An engine's run in the Python of the Truss, which has the packages of the text models."""
    tree = lay_out(tmp_path, "1.2.1", in_environment=in_environment, driver=None, compat=None)
    checkpoint = write_checkpoint(tmp_path / "checkpoint", shards=1)
    engine = write_engine(tmp_path / "engine")
    file = engine / "config.json"
    file.write_text(file.read_text().replace('"version": "1.0.0"', '"version": "1.2.1"'))
    pythons = []
    for folder in (checkpoint, engine):
        words = models.WordLevel({"<unk>": 0, "Hello": 1, "<eos>": 2}, "<unk>")
        Tokenizer(words).save(f"{folder}/tokenizer.json")
        with pytest.raises(TritonError, match="exited with code 1"):
            start(tree, folder, "590.44.01")
        pythons.append(shutil.which("python3", path=kept_environment(tree)["PATH"]))
    assert pythons == [str(tree.python), str(Path(sys.executable).with_name("python3"))]


@pytest.fixture
def environment_tree(tmp_path: Path) -> ImageTree:
    """An image of 2026 whose virtual environment runs: TensorRT-LLM and what it imports."""
    tree = lay_out(tmp_path / "image", "1.2.1", in_environment=True)
    home = tree.root / "opt/venv-tritonserver"
    shutil.rmtree(home)
    venv.create(home, symlinks=True)
    (packages,) = home.glob("lib/python3.*/site-packages")
    for folder in SITE.iterdir():
        (packages / folder.name).symlink_to(folder)
    for name in LIBRARIES:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        module = Path(spec.origin)
        found = module.parent if module.stem == "__init__" else module
        for path in (found, found.with_name(f"{name}.libs")):
            if path.exists():
                (packages / path.name).symlink_to(path)
    metadata = packages / "tensorrt_llm-1.2.1.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.4\nName: tensorrt-llm\nVersion: 1.2.1\n")
    return tree


@pytest.fixture
def served(environment_tree: ImageTree, tmp_path: Path) -> Iterator[ServerProcess]:
    """Real Triton on a checkpoint, with one text model; the stub runs in the environment."""
    engine = tmp_path / "checkpoint"
    vocabulary = write_tokenizer(engine).get_vocab_size()
    (engine / "config.json").write_text(json.dumps({"vocab_size": vocabulary}))
    repository = render_repository(
        TEMPLATES,
        tmp_path / "repository",
        ModelConfig(
            engine,
            {"tokenizer_dir": str(engine), "llm_args": json.dumps(LLM_ARGS)},
            of_executor=False,
        ),
        backend="llm_api",
        max_batch_size=4,
        tensorrt_llm_version="1.2.1",
    )
    render_native_models(
        TEMPLATES,
        repository,
        tokenizer_dir=engine,
        max_batch_size=4,
        counts=InstanceCounts(),
        tensorrt_llm_version="1.2.1",
        decoupled=True,
    )
    for name in ("ensemble", "postprocessing", "tensorrt_llm_bls"):
        shutil.rmtree(repository / name)
    tree, installation = environment_tree, find_installation()
    mpi = {**open_mpi(), "HOME": str(tmp_path)}
    parent = {**tree.environ, **COUNTING, **mpi, "PATH": f"/usr/bin:/bin:{mpi['PATH']}"}
    runtime = find_runtime(tree.environ, None, tree.root)
    assert (runtime.version, runtime.python) == ("1.2.1", tree.python)
    process = ServerProcess(
        launcher(
            installation,
            repository=repository,
            backends=assemble_backends(installation, tmp_path / "backends", {}),
        ),
        server_environment(parent, installation, python=runtime.python, spawns=True),
    )
    process.start()
    try:
        process.wait_until_ready(PATIENCE_S)
        yield process
    finally:
        process.stop(1)


@pytest.mark.server
def test_python_models_run_in_the_environment(served: ServerProcess) -> None:
    """Serve from an environment without tokenizers, which the Truss's packages provide."""

    async def tokens() -> list[int]:
        client = TritonClient(served.grpc_address, tensorrt_llm_version="1.2.1")
        got = []
        try:
            request = EngineRequest("r", input_ids=[5, 6, 7], max_tokens=5, end_id=99)
            async with client.answer(request) as answer:
                while not (chunk := await answer.next()).final:
                    got += chunk.token_ids
                return [*got, *chunk.token_ids]
        finally:
            await client.close()

    assert asyncio.run(tokens()) == [5, 6, 7, 5, 6]
