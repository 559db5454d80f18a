"""LoRA adapters of a checkpoint: their weights, what is applied, and their memory."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.engines.checkpoint.checkpoints import GB, listing, llama, settings_for
from tests.support.inspection import inspect_config
from tests.support.lora import ATTENTION, adapter_config, adapter_weights, write_adapter

from trtllm_truss.engines.adapters import AdaptedLayer, Adapter
from trtllm_truss.engines.capacity import Capacity
from trtllm_truss.engines.checkpoint.adapter_files import read_adapter, read_adapter_folder
from trtllm_truss.engines.checkpoint.engine import CheckpointEngine
from trtllm_truss.engines.cpu.engine import CpuEngine
from trtllm_truss.engines.diagnostics import Diagnostic
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.gpus import Gpu
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.kinds import check_compatibility, with_settings
from trtllm_truss.errors import ArtifactError, SettingsError
from trtllm_truss.serving.preparation import cache_capacity
from trtllm_truss.settings.loading import Environment

FOLDER = Path(__file__).parent / "adapters"
"""Adapters that PEFT wrote, by its release and by their form."""

QKVO = ("attn_dense", "attn_k", "attn_q", "attn_v")
MLP = ("mlp_4h_to_h", "mlp_gate", "mlp_h_to_4h")
SERVED: dict[str, tuple[str, ...]] = {
    "names": ("attn_q", "attn_v"),
    "all-linear": (*QKVO, *MLP),
    "pattern": ("attn_q", "attn_v"),
    "layers": QKVO,
    "rank-stabilized": ("attn_dense",),
    "rank-pattern": ("attn_q", "attn_v"),
    "bias-of-none": ("attn_q",),
    "experts-of-none": QKVO,
    "fused": ("attn_dense", "attn_qkv", "mlp_4h_to_h", "mlp_gate_up"),
}
"""Forms that are served, with the modules that they change."""

REFUSED: dict[str, str] = {
    "alpha-pattern": "adapter_config.json sets alpha_pattern, and TensorRT-LLM scales all",
    "bias-all": "layers.0.self_attn.k_proj.bias, base_model.model.model.layers.0.self_attn.q_proj.",
    "lora-bias": "adapter_config.json sets lora_bias, and TensorRT-LLM does not apply biases;",
    "dora": "adapter_config.json sets use_dora",
    "modules-to-save": "adapter_config.json sets modules_to_save",
    "head": "lm_head.lora_B.weight: TensorRT-LLM does not apply adapters to the output layer;",
    "embedding": "lora_embedding_B: TensorRT-LLM does not apply adapters to embeddings; train",
    "trained-tokens": "adapter_config.json sets trainable_token_indices",
    "target-parameters": "adapter_config.json sets target_parameters",
    "experts": "TensorRT-LLM does not apply adapters to routed experts; train",
    "replicated-layers": "adapter_config.json sets layer_replication",
    "activated": "adapter_config.json sets alora_invocation_tokens",
    "pooled": "adapter_config.json sets use_qalora",
}
"""Forms that are refused, with a part of the message."""

LOSES_ITS_BIASES = {"0.11", "0.15", "0.17"}
"""Releases of PEFT whose files omit the biases of ``lora_only``, so that nothing can apply them."""

WRITTEN = sorted(folder.relative_to(FOLDER).as_posix() for folder in FOLDER.glob("*/*"))


def tiny(**changes: Any) -> dict[str, Any]:
    """Return the configuration of the models that the adapters were made of."""
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 16}
    return llama(**sizes, **heads, max_position_embeddings=64, **changes)


def complete(
    *adapters: Adapter, config: dict[str, Any] | None = None, version: str = "1.2.1", **more: Any
) -> Engine:
    names = {adapter.name: "org/adapter" for adapter in adapters}
    engine = inspect_config(config or tiny(), listing())
    return with_settings(engine, settings_for(lora_adapters=names, **more), version, adapters)


def findings(engine: Engine, version: str = "1.2.1") -> list[Diagnostic]:
    found = check_compatibility(settings_for(), engine, HostInfo(runtime_version=version))
    return [each for each in found if each.code.startswith("adapter")]


def refusal(*adapters: Adapter, version: str = "1.2.1", **more: Any) -> str:
    engine = complete(*adapters, version=version, **more)
    return " ".join(each.message for each in findings(engine, version))


def adapter(*paths: str, name: str = "sql", **weights: Any) -> Adapter:
    content = adapter_weights(paths or ATTENTION, **weights)
    return read_adapter(name, adapter_config(), lambda count: content[:count], len(content))


def refused_weights(content: bytes) -> str:
    with pytest.raises(ArtifactError) as caught:
        read_adapter("sql", adapter_config(), lambda count: content[:count], len(content))
    return caught.value.message


def test_every_release_of_peft_wrote_the_forms_that_it_knows() -> None:
    forms = {
        form: {each.split("/")[0] for each in WRITTEN if each.endswith(f"/{form}")}
        for form in (*SERVED, *REFUSED, "bias-lora-only")
    }
    new = {"0.17": {"target-parameters", "pooled"}, "0.21": {"activated"}}
    new["0.15"] = {"lora-bias", "trained-tokens", "experts", "experts-of-none"}
    since = {form: first for first, names in new.items() for form in names}
    releases = ["0.11", "0.15", "0.17", "0.21"]
    for form, there in forms.items():
        assert sorted(there) == releases[releases.index(since.get(form, "0.11")) :], form


@pytest.mark.parametrize("written", WRITTEN)
def test_an_adapter_of_peft_is_served_or_refused_by_name(written: str) -> None:
    release, form = written.split("/")
    if form in REFUSED or (form == "bias-lora-only" and release not in LOSES_ITS_BIASES):
        words = REFUSED.get(form, "q_proj.base_layer.bias, base_model.model.model.layers.0.self_")
        if written == "0.21/experts":  # with transformers 5, whose experts are one parameter
            words = REFUSED["target-parameters"]
        with pytest.raises(ArtifactError) as caught:
            read_adapter_folder("sql", FOLDER / written)
        assert words in caught.value.message
        return
    read = read_adapter_folder("sql", FOLDER / written)
    engine = complete(read)
    assert not findings(engine)
    assert isinstance(engine, CheckpointEngine)
    wanted = ("attn_q", "attn_v") if form == "bias-lora-only" else SERVED[form]
    assert engine.llm_args["lora_config"] == {
        "lora_target_modules": sorted(wanted),
        "max_lora_rank": 4 if form == "rank-pattern" else 2,
        "max_loras": 1,
        "max_cpu_loras": 1,
    }


def test_fused_layers_are_adapted_by_later_releases() -> None:
    fused = read_adapter_folder("sql", FOLDER / "0.21/fused")
    found = refusal(fused, version="1.1.0")
    assert found == (
        "lora_adapters.sql: adapter_model.safetensors holds base_model.model.model.layers.0."
        "self_attn.qkv_proj.lora_A.weight for qkv_proj, which is adapted from TensorRT-LLM 1.2 on, "
        "not by 1.1.0; train the adapter without it, or merge it into the checkpoint."
    )
    given = {"trtllm_modules_to_hf_modules": {"attn_qkv": "qkv_proj", "x": "o_proj"}}
    runtime = {"llm_args": {"lora_config": given}}
    assert "gate_up_proj" in refusal(fused, version="1.1.0", runtime=runtime)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (adapter_config(peft_type="IA3"), 'peft_type "IA3"; only LORA adapters'),
        (adapter_config(r=0), "the rank r 0"),
        (adapter_config(r=True), "the rank r true"),
        (adapter_config(lora_alpha=None), "lora_alpha null; it must be a number"),
        (adapter_config(use_bdlora={"a": 1}), "sets use_bdlora"),
        (adapter_config(arrow_config={"a": 1}), "sets arrow_config"),
        (adapter_config(init_lora_weights="pissa_niter_4"), "which also changes the model"),
        (adapter_config(init_lora_weights="loftq"), "which also changes the model"),
        (adapter_config(lora_alpha=math.nan), "lora_alpha NaN; it must be a number"),
        (adapter_config(lora_alpha=10**400, alpha_pattern={"q_proj": 8}), "has lora_alpha 1000"),
    ],
)
def test_configurations_that_are_refused(content: bytes, words: str) -> None:
    weights = adapter_weights()
    with pytest.raises(ArtifactError) as caught:
        read_adapter("sql", content, lambda count: weights[:count], len(weights))
    assert words in caught.value.message


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.(q|v)_proj", "use_dora": False, "modules_to_save": None},
        {"alpha_pattern": {"q_proj": 8}},
        {"rank_pattern": {"q_proj": 64}},
        {"init_lora_weights": "gaussian", "lora_alpha": 8.0, "use_rslora": True},
    ],
)
def test_fields_that_do_not_matter(changes: dict[str, Any]) -> None:
    weights = adapter_weights()
    config = adapter_config(**changes)
    assert read_adapter("sql", config, lambda count: weights[:count], len(weights)).rank == 2


MODEL = "base_model.model.model"


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"paths": ("mlp.experts.3.up_proj",)}, "adapters to routed experts;"),
        ({"paths": ("cross_attn.q_proj",)}, "cross_attn.q_proj.lora_B.weight: TensorRT-LLM does"),
        ({"stack": "base_model.model.vision_tower.layers"}, "other parts of the model than its"),
        ({"stack": f"{MODEL}.blocks"}, "weights of such a name;"),
        ({"tensors": {f"{MODEL}.norm.weight": (8,)}}, f"holds {MODEL}.norm.weight: TensorRT-LLM"),
        ({"tensors": {"\n\x1b[1mlayers": (8,)}}, r'holds "\n\u001b[1mlayers": TensorRT-LLM does'),
        (
            {"tensors": {f"{MODEL}.layers.0.mlp.up_proj.lora_A.weight": (2, 8)}},
            "without its lora_B",
        ),
        (
            {"paths": ("self_attn.q_proj", "other_attn.q_proj")},
            "takes for one layer; train the adapter with one of them",
        ),
        (
            {
                "tensors": {
                    f"{MODEL}.layers.0.mlp.up_proj.lora_A.weight": (2, 8),
                    f"{MODEL}.layers.0.mlp.up_proj.lora_B.weight": (8, 3),
                }
            },
            "of shape [2, 8] and its lora_B of [8, 3], which do not match",
        ),
        ({"paths": ()}, "holds no tensor"),
    ],
)
def test_weights_that_are_refused(weights: dict[str, Any], words: str) -> None:
    assert words in refused_weights(adapter_weights(**{"hidden": 8, **weights}))


def edited(edit: Any) -> bytes:
    """Return an adapter with another header of the same meaning for its length."""
    content = adapter_weights(hidden=8)
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def first(header: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = next(value for name, value in header.items() if "lora" in name)
    return entry


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "its header would end at byte"),
        (b"garbage", "its header would end at byte"),
        (adapter_weights()[:-1], "its tensors have 65536 bytes, and 65535 are there"),
        (adapter_weights() + b"x", "are there; upload it again"),
        (b"\xff" * 64, "its header would end at byte"),
        (struct.pack("<Q", 2) + b"[]", "its header is not a JSON object"),
        (struct.pack("<Q", 4) + b"\xff\xff\xff\xff", "not valid JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "run `git lfs pull`"),
        (edited(lambda h: first(h).update(shape=[3, 8])), "has another size than its shape"),
        (edited(lambda h: first(h).update(shape="x")), "does not describe"),
        (edited(lambda h: first(h).update(data_offsets=[4, 36])), "overlap or have gaps"),
        (edited(lambda h: first(h).pop("dtype")), "does not describe"),
        (edited(lambda h: first(h).update(dtype="I16")), "as I16; save the adapter as BF16"),
    ],
)
def test_a_damaged_file_is_found_by_its_header(content: bytes, words: str) -> None:
    assert words in refused_weights(content)


def test_a_long_header_is_read_at_once() -> None:
    layers = range(1200)
    content = adapter_weights(
        [f"self_attn.{name}_proj" for name in "qkvo"], hidden=1, rank=1, layers=layers
    )
    reads: list[int] = []

    def read(count: int) -> bytes:
        reads.append(count)
        return content[:count]

    found = read_adapter("sql", adapter_config(), read, len(content))
    assert len(found.layers) == 4 * len(layers)
    assert len(reads) == 2


def test_an_adapter_of_another_model() -> None:
    assert not refusal(adapter(hidden=8, layers=(0, 1)))
    deep = refusal(adapter(hidden=8, layers=(0, 2)))
    assert "model.layers.2.self_attn.q_proj.lora_A.weight, but the checkpoint's layers end at 1"
    assert "but the checkpoint's layers end at 1; name an adapter of this model." in deep
    assert "for inputs of size 16, but the checkpoint's hidden_size is 8" in refusal(
        adapter(hidden=16)
    )
    assert "for outputs of size 16" in refusal(adapter("self_attn.o_proj", hidden=16))
    assert refusal(adapter(hidden=8), adapter(name="chat", hidden=4)).startswith(
        "lora_adapters.chat: adapter_model.safetensors holds"
    )


def test_layers_that_no_release_adapts() -> None:
    found = refusal(adapter("self_attn.q_proj", "self_attn.kv_a_proj_with_mqa", hidden=8))
    assert (
        "kv_a_proj_with_mqa.lora_A.weight for kv_a_proj_with_mqa, which the LLM API does" in found
    )
    assert "only q_proj, k_proj, v_proj, qkv_proj, o_proj, gate_proj, up_proj" in found


def test_shared_experts_are_adapted_by_some_pre_releases() -> None:
    shared = adapter("mlp.shared_expert.up_proj", hidden=8)
    assert "from TensorRT-LLM 1.3.0rc8 on, not by 1.3.0rc7" in refusal(shared, version="1.3.0rc7")
    assert not refusal(shared, version="1.3.0rc9")


@pytest.mark.parametrize("name", ["Llama4ForConditionalGeneration", "Exaone4ForCausalLM"])
def test_models_without_adapters(name: str) -> None:
    config = tiny(architectures=[name])
    assert refusal(adapter(hidden=8), config=config) == (
        f"lora_adapters.sql: TensorRT-LLM applies no adapters to {name}; merge the adapter into "
        "the checkpoint."
    )


def arguments(*adapters: Adapter, **metadata: Any) -> dict[str, Any]:
    engine = complete(*adapters, **metadata)
    assert isinstance(engine, CheckpointEngine)
    return dict(engine.llm_args)


def test_events_do_not_tell_adapters_apart() -> None:
    with pytest.raises(SettingsError, match="lora_adapters: events do not name"):
        complete(adapter()).reporting_kv_events(Path("/run/events"))


def test_the_arguments_hold_all_adapters() -> None:
    both = (adapter(rank=16), adapter("self_attn.q_proj", "mlp.up_proj", name="chat", rank=64))
    assert complete(*both).takes_adapters
    assert arguments(*both)["lora_config"] == {
        "lora_target_modules": ["attn_q", "attn_v", "mlp_gate"],
        "max_lora_rank": 64,
        "max_loras": 2,
        "max_cpu_loras": 2,
    }
    fewer = arguments(*both, runtime={"llm_args": {"lora_config": {"max_loras": 1}}})
    assert fewer["lora_config"]["max_loras"] == 1
    assert fewer["lora_config"]["max_cpu_loras"] == 2


def test_without_adapters() -> None:
    engine = with_settings(inspect_config(llama(), listing()), settings_for())
    assert not engine.takes_adapters
    assert engine.late_bytes == 0


def on_gpu(version: str, *adapters: Adapter, gigabytes: float = 80, **metadata: Any) -> Capacity:
    settings = settings_for(lora_adapters={each.name: "org/a" for each in adapters}, **metadata)
    engine = with_settings(inspect_config(llama(), listing()), settings, version, adapters)
    free = int(gigabytes * GB)
    host = HostInfo(gpus=[Gpu("a GPU", free, free, (9, 0), "590.44.01")])
    capacity = cache_capacity(settings, engine, host)
    assert capacity is not None
    return capacity


def large(name: str = "sql", paths: tuple[str, ...] = ATTENTION) -> Adapter:
    """Return an adapter of all layers with rank 64, without its weights."""
    return Adapter(
        name,
        tuple(
            AdaptedLayer(f"{path}.{layer}", layer, path, 64, 4096, 4096)
            for layer in range(32)
            for path in paths
        ),
    )


def test_the_cache_of_adapters_takes_memory_from_the_kv_cache() -> None:
    wide = large(paths=tuple(f"self_attn.{name}_proj" for name in "qkvo"))
    cache = 32 * 4 * 64 * 2 * 4096 * 2  # layers, modules, rank, inputs and outputs, bytes
    without, held = on_gpu("1.3.0"), on_gpu("1.3.0", wide)
    assert without.free_bytes - held.free_bytes == cache
    assert held.late_bytes == 0
    settings = settings_for(tensor_parallelism=2, lora_adapters={"sql": "org/a"})
    split = with_settings(inspect_config(llama(), listing()), settings, "1.2.1", (wide,))
    assert isinstance(split, CheckpointEngine)
    assert split.adapter_memory.cache_bytes == cache * 3 // 4  # one side of each is split
    assert any(fact.startswith("adapters: sql (rank 64); 0.10 GB of each") for fact in split.facts)


@pytest.mark.parametrize("version", ["1.0.0", "1.2.1", "1.3.0rc11"])
def test_adapters_are_counted_twice_where_a_copy_is_kept(version: str) -> None:
    many = [large(f"a{number}") for number in range(64)]
    capacity = on_gpu(version, *many, gigabytes=120)
    assert capacity.late_bytes == 64 * 32 * 2 * 64 * 2 * 4096 * 2
    assert not capacity.diagnostics
    (finding,) = on_gpu(version, *many, gigabytes=60).diagnostics
    assert finding.code == "adapters_exceed_memory"
    assert finding.message.endswith(
        "keeps a second copy of each adapter on the first GPU for good (before 1.3; NVIDIA's pull "
        "request 12815): 4.3 GB, and the KV cache leaves 3.6 GB; set model_metadata.runtime."
        "kv_cache_free_gpu_mem_fraction to 0.88 or less, or serve fewer adapters."
    )
    lower = {"kv_cache_free_gpu_mem_fraction": 0.88}
    assert not on_gpu(version, *many, gigabytes=60, runtime=lower).diagnostics
    assert not on_gpu("1.3.0rc12", *many, gigabytes=60).diagnostics


def test_other_engines_take_none_from_the_settings() -> None:
    engine = CpuEngine(max_sequence_tokens=9, max_input_tokens=8, max_batch_size=1)
    with pytest.raises(SettingsError, match="lora_adapters is set, but the engine in org/model"):
        with_settings(engine, settings_for(lora_adapters={"sql": "org/sql"}))


@pytest.mark.parametrize("name", ["sql", "sql@2"])
def test_a_folder_has_no_revision(name: str, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / name)
    settings = settings_for(lora_adapters={"sql": str(folder)})
    (found,) = CheckpointEngine.open_adapters(settings, Environment(None, {}))
    assert found.fetch() == folder
    assert found.adapter.name == "sql"


def test_a_folder_is_read_as_a_whole(tmp_path: Path) -> None:
    assert read_adapter_folder("sql", write_adapter(tmp_path / "sql")).rank == 2
    (tmp_path / "sql" / "adapter_config.json").unlink()
    with pytest.raises(ArtifactError, match=r"^adapter_config.json cannot be read \(No such file"):
        read_adapter_folder("sql", tmp_path / "sql")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    for each, content in (
        ("adapter_config.json", adapter_config()),
        ("adapter_model.safetensors", adapter_weights()),
    ):
        (tmp_path / each).write_bytes(content)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ArtifactError, match=rf"{name} cannot be read \(a pipe\)"):
        read_adapter_folder("sql", tmp_path)
