"""Describe the installed TensorRT-LLM as one line of JSON: names, signatures, what it refuses.

Runs as a program in the Python of TensorRT-LLM. A part that this release lacks, or that fails, is
absent from the line, and `problems` has the reason. It needs no GPU and loads no model.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
_BATCH = 256
_PROGRAM_NAME = "selftest"


def main() -> None:
    package = import_module("tensorrt_llm")
    assert package.__file__ is not None
    problems: dict[str, str] = {}
    facts: Facts = {
        "version": package.__version__,
        "folder": str(Path(package.__file__).parent),
        "problems": problems,
    }
    for look in (_arguments, _request, _health, _graphs, _architectures):
        for name, read in look():
            try:
                facts[name] = read()
            except Exception as error:  # noqa: BLE001 - absent is an answer
                problems[name] = f"{type(error).__name__}: {error}"
    sys.stdout.write(f"\n{json.dumps(facts)}\n")
    sys.stdout.flush()
    os._exit(0)  # the library's own functions at exit may wait, or fail


def _arguments() -> Iterator[tuple[str, Callable[[], Any]]]:
    def fields() -> Any:
        return import_module("tensorrt_llm.llmapi").TorchLlmArgs.model_fields

    yield "llm_arguments", lambda: sorted(fields())
    yield "sampler_default", lambda: _text(fields()["sampler_type"].default)
    yield "refuses_unknown_arguments", lambda: _refuses(no_such_argument=1)
    yield "refuses_unknown_fields", lambda: _refuses(kv_cache_config={"no_such_field": 1})
    yield "takes_mappings", _takes_mappings
    yield "takes_drafts", _takes_drafts


def _text(value: Any) -> str:
    """Return a text, also of a member of an enumeration."""
    return str(getattr(value, "value", value))


def _arguments_object(**given: Any) -> Any:
    args = import_module("tensorrt_llm.llmapi").TorchLlmArgs
    return args(model=_PROGRAM_NAME, skip_tokenizer_init=True, **given)


def _refuses(**given: Any) -> bool:
    """Return True if arguments are refused although they are not without these."""
    _arguments_object()
    try:
        _arguments_object(**given)
    except (TypeError, ValueError):
        return True
    return False


def _takes_mappings() -> bool:
    given = {"free_gpu_memory_fraction": 0.5}
    config = _arguments_object(kv_cache_config=given).kv_cache_config
    return (
        float(getattr(config, "free_gpu_memory_fraction", 0.0)) == given["free_gpu_memory_fraction"]
    )


def _takes_drafts() -> bool:
    """Return True if drafts are made by their kind, as the backend makes them."""
    base = import_module("tensorrt_llm.llmapi.llm_args").DecodingBaseConfig
    given = {"decoding_type": "NGram", "max_draft_len": 1, "max_matching_ngram_size": 2}
    drafts = base.from_dict(given) if hasattr(base, "from_dict") else given
    return not _refuses(speculative_config=drafts)


def _request() -> Iterator[tuple[str, Callable[[], Any]]]:
    llmapi = "tensorrt_llm.llmapi"
    for fact, module, name in (
        ("sampling_fields", llmapi, "SamplingParams"),
        ("guide_fields", llmapi, "GuidedDecodingParams"),
        ("adapter_fields", "tensorrt_llm.executor", "LoRARequest"),
    ):
        yield (
            fact,
            lambda module=module, name=name: _parameters(  # type: ignore[misc]
                getattr(import_module(module), name)
            ),
        )
    yield "request_arguments", lambda: _parameters(import_module(llmapi).LLM.generate_async)


def _parameters(function: Any) -> list[str]:
    return sorted(name for name in inspect.signature(function).parameters if name != "self")


def _health() -> Iterator[tuple[str, Callable[[], Any]]]:
    yield (
        "has_health_check",
        lambda: hasattr(import_module("tensorrt_llm.llmapi").LLM, "_check_health"),
    )


def _graphs() -> Iterator[tuple[str, Callable[[], Any]]]:
    def sizes() -> list[int]:
        module = import_module("tensorrt_llm.llmapi.llm_args")
        owners = (getattr(module, name, None) for name in ("CudaGraphConfig", "TorchLlmArgs"))
        name = "_generate_cuda_graph_batch_sizes"
        owner = next(owner for owner in owners if hasattr(owner, name))
        return [int(size) for size in getattr(owner, name)(_BATCH, True)]

    yield "graph_sizes", sizes
    yield "graph_batch", lambda: _BATCH


def _architectures() -> Iterator[tuple[str, Callable[[], Any]]]:
    def names() -> list[str]:
        import_module("tensorrt_llm._torch.models")
        module = import_module("tensorrt_llm._torch.models.modeling_utils")
        return sorted(module.MODEL_CLASS_MAPPING)

    yield "architectures", names


if __name__ == "__main__":
    main()
