"""Assumptions about checkpoints in TensorRT-LLM's LLM API.

In `source`, files are below ``tensorrt_llm/`` of NVIDIA/TensorRT-LLM, pages and 1.2.1's files as
published on nvidia.github.io/TensorRT-LLM; "near" means a commit of about that release.
"""

from __future__ import annotations

from trtllm_workbench.selftest.assumptions import served
from trtllm_workbench.selftest.assumptions.served import (
    Assumption,
    OfLibrary,
    OfServer,
    Unchecked,
    is_true,
    source_has,
)

_ARGUMENTS = "`llmapi/llm_args.py` of 1.2.1"
_SAMPLING = "`sampling_params.py` of 1.2.1"
_SAMPLER = "`_torch/pyexecutor/sampler.py`, near 1.2.1"
_CODE = "the installed source"
_CREATOR = "`py_executor_creator.py`"
_REFUSED_FIRST = "this project refuses such requests before the engine sees them"

CHECKPOINTS: tuple[Assumption, ...] = (
    Assumption(
        id="nested-mappings",
        sentence="nested arguments may be plain mappings",
        source=f"{_ARGUMENTS}: pydantic models",
        otherwise="the start fails with TensorRT-LLM's message",
        check=OfLibrary(
            "`TorchLlmArgs` with a mapping",
            is_true("takes_mappings", "kv_cache_config may be a mapping"),
        ),
    ),
    Assumption(
        id="drafts-by-kind",
        sentence=(
            "`speculative_config` and `sparse_attention_config` are made by `from_dict` of their "
            "base class, which chooses a class by kind; where there is none, from about 1.3 on, "
            "they may be mappings. Drafts have other names there (`Eagle3`, `Draft_Target`)"
        ),
        source=(
            f"`SpeculativeConfig` and `DecodingBaseConfig` in {_ARGUMENTS} and late in 1.3.0; "
            "pull request 1356 of ai-dynamo/dynamo"
        ),
        otherwise="the start with drafts fails with TensorRT-LLM's message",
        check=OfLibrary(
            "`TorchLlmArgs` with drafts",
            is_true("takes_drafts", "TorchLlmArgs takes drafts as the backend makes them"),
        ),
    ),
    Assumption(
        id="drafts-within-the-model",
        sentence=(
            "the sampler of drafts within the model (MTP, Eagle; from 1.3 on all but NGram) knows "
            "temperature, top-k and top-p only, before 1.2.0rc8 none of them, and before 1.3 with "
            "`allow_advanced_sampling`; log probabilities fail the step of all requests"
        ),
        source=(
            f"`allow_advanced_sampling` in {_ARGUMENTS}; `MTPSampler` of "
            "`_torch/speculative/mtp.py`, near 1.0 to 1.2; pull requests 9885 and 10019 (December "
            "2025), 17701 and 17599 (August 2026); the numbers of the pre-releases follow from the "
            "dates"
        ),
        otherwise="requests are refused without need, or fields of them have no effect",
        check=Unchecked("it needs a model with drafts"),
    ),
    Assumption(
        id="max-input-len",
        sentence="`max_input_len` has no effect on prompts, or is a limit",
        source=(
            "`_check_arguments` of `llmapi/llm.py`, 1.2.1, and `_validate_request` of "
            "`_torch/pyexecutor/py_executor.py`, near 1.2: neither reads it"
        ),
        otherwise="none: it is set to the longest prompt",
        check=OfServer("the longest prompt", served.longest_prompt),
    ),
    Assumption(
        id="unknown-arguments",
        sentence="an unknown argument is refused before the weights are loaded",
        source=f"{_ARGUMENTS}: unknown fields are forbidden",
        otherwise=("the start fails later; the backend compares names with the library's first"),
        check=OfLibrary(
            "`TorchLlmArgs` with an unknown name",
            is_true("refuses_unknown_arguments", "TorchLlmArgs refuses an unknown argument"),
        ),
    ),
    Assumption(
        id="architectures-of-1.0",
        sentence="the architectures of 1.0",
        source=(
            "`models/supported-models.html` and `reference/support-matrix.html` of 1.0.0; for "
            "`Qwen2MoeForCausalLM`, `Phi3ForCausalLM` and `NemotronHForCausalLM` the registered "
            "classes of 1.0.0rc4"
        ),
        otherwise='the start fails with "Unknown architecture"',
        check=OfLibrary("the registered classes", served.architectures((1, 0))),
    ),
    Assumption(
        id="architectures-of-1.2",
        since="1.2",
        sentence="the architectures of 1.2",
        source=(
            "`models/supported-models.html` and the release notes of 1.2.1; for "
            "`Starcoder2ForCausalLM` and `Glm4MoeForCausalLM` the registered classes of early 2026 "
            "(`_torch/models/__init__.py`)"
        ),
        otherwise="the same",
        check=OfLibrary("the registered classes", served.architectures((1, 2))),
    ),
    Assumption(
        id="unknown-quantization",
        sentence="unknown quantization methods are taken for unquantized",
        source="`_torch/model_config.py`, 1.2 and 1.3: no branch for them",
        otherwise=("a checkpoint is refused that would load; convert it to ModelOpt's format"),
        check=Unchecked("it needs a checkpoint that this project refuses"),
    ),
    Assumption(
        id="recurrent-layers-no-reuse",
        sentence="recurrent layers refuse block reuse",
        source=(
            "an assertion of `MambaHybridCacheManager`, `_torch/pyexecutor/mamba_cache_manager.py`,"
            " near 1.2"
        ),
        otherwise="reuse is off without need; set it in `llm_args`",
        check=OfLibrary(
            _CODE,
            source_has(
                "_torch/pyexecutor/mamba_cache_manager.py",
                "MambaHybridCacheManager",
                "assert not kv_cache_config.enable_block_reuse",
            ),
        ),
    ),
    Assumption(
        id="python-of-the-image",
        sentence=(
            "in images from about 26.03 on, TensorRT-LLM is in `/opt/venv-tritonserver`; Triton's "
            "stub runs with the first `python3` on `PATH`"
        ),
        source=(
            "`dockerfile/Dockerfile.triton.trt_llm_backend` of "
            "triton-inference-server/tensorrtllm_backend, branches r25.09 to r26.07"
        ),
        otherwise=(
            '"No module named tensorrt_llm"; the log\'s line "Python:" names what was found '
            "([deploy.md](deploy.md#inside-the-container))"
        ),
        check=OfServer("the start", served.started),
    ),
    Assumption(
        id="images-after-26.07",
        sentence="images after 26.07",
        source="none is in Triton's compatibility matrix (August 2026)",
        otherwise=("they are unknown, so versions are compared with the installed library only"),
        check=Unchecked("it is about images that do not exist yet"),
    ),
    Assumption(
        id="memory-of-the-host",
        sentence=(
            "the check for a fast read of weights looks at the host's memory, not at the "
            "container's limit"
        ),
        source="`_torch/models/checkpoints/hf/weight_loader.py`, 1.2",
        otherwise=("with a small limit the container may be killed while loading; raise it"),
        check=OfLibrary(
            _CODE,
            source_has(
                "_torch/models/checkpoints/hf/weight_loader.py", "HfWeightLoader", "virtual_memory"
            ),
        ),
    ),
    Assumption(
        id="kernel-caches",
        since="1.2",
        sentence=(
            "tactics and kernels are kept where variables say: the autotuner's in "
            "`TLLM_AUTOTUNER_CACHE_PATH`, the compilers' in "
            "[theirs](repositories.md#kernels-that-outlive-a-start); assumed: CUTLASS's DSL of the "
            "image is 4.3.2 or later"
        ),
        source=(
            "`PyTorchModelEngine` of `_torch/pyexecutor/model_engine.py`, near 1.2; "
            "`cpp/tensorrt_llm/deep_gemm/compiler.cuh`; `csrc/jit/compiler.hpp` of DeepGEMM; "
            "`flashinfer/jit/env.py` of FlashInfer; release notes of CUTLASS 4.3.2"
        ),
        otherwise="these kernels are made again at each start",
        check=OfLibrary(
            _CODE,
            source_has(
                "_torch/pyexecutor/model_engine.py",
                "PyTorchModelEngine",
                "TLLM_AUTOTUNER_CACHE_PATH",
            ),
        ),
    ),
    Assumption(
        id="one-thread",
        sentence="two calls on one LLM from different threads are not safe",
        source="`executor/proxy.py`, near 1.2: one socket without a lock",
        otherwise="none: all run on one event loop",
        check=Unchecked("a race shows by chance only"),
    ),
    Assumption(
        id="health-sees-shutdown-only",
        sentence="`_check_health` sees a shutdown only",
        source="`LLM._check_health` of `llmapi/llm.py`, 1.2.1",
        otherwise=(
            "none: workers are watched by process id, and an idle engine gets a request of one "
            "token"
        ),
        check=OfLibrary(_CODE, source_has("llmapi/llm.py", "_check_health", "is_shutdown")),
    ),
    Assumption(
        id="hangs-go-unnoticed",
        sentence="a hang inside a step may go unnoticed",
        source="pull request 10480 (January 2026), not found in 1.2.1",
        otherwise="`serving.hang_timeout_s` ends the engine",
        check=Unchecked("it needs a step that hangs"),
    ),
    Assumption(
        id="response-errors-are-single",
        sentence="an error of reading a response belongs to one request",
        source="`executor/result.py` of 1.2.1: an assertion and a ValueError; issue 10810",
        otherwise=(
            "the request after it fails, and the engine ends; a request of one token decides"
        ),
        check=Unchecked("it needs a response that breaks the library's own rules"),
    ),
    Assumption(
        id="cached-tokens",
        since="1.2",
        sentence="`cached_tokens` of a result counts the part of the prompt that was cached",
        source=(
            "`executor/result.py` of 1.2.1, `_handle_response`; "
            "`_torch/pyexecutor/llm_request.py`, near 1.2; pull request 7637 (September 2025)"
        ),
        otherwise="`cached_tokens` of `usage` is absent or wrong",
        check=OfServer("a prompt, twice", served.cached_tokens),
    ),
    Assumption(
        id="statistics-lag",
        sentence=(
            "`get_stats` passes on five iterations a second at most, the oldest first, so that its "
            "figures are late by more and more while requests run"
        ),
        source=(
            "`executor/proxy.py`, `_iteration_result_task` and `mp_stats_queue`, near 1.2; "
            "`IterationResult` in `executor/result.py` of 1.2.1"
        ),
        otherwise="none: they are not read; they could give the use of the KV cache",
        check=OfLibrary(
            _CODE, source_has("executor/proxy.py", "_iteration_result_task", "sleep(0.2)")
        ),
    ),
    Assumption(
        id="workers-survive",
        sentence="workers may survive the kill of their parent",
        source="measured: they end after 1 to 3 s with Open MPI 4.1.8 and 5.0.11",
        otherwise=("the backend and the guard of this project's processes kill them by id"),
        check=Unchecked("the guard kills them first"),
    ),
    Assumption(
        id="death-of-a-worker",
        sentence=(
            "with Open MPI 5 a worker's death ends its parent; with 4 the parent waits for ever"
        ),
        source="measured with 5.0.11 (status 14) and 4.1.8",
        otherwise="none: both end the run",
        check=OfLibrary("a worker that is killed", served.death_of_a_worker),
    ),
    Assumption(
        id="end-token",
        sentence="the end token is in the output, or with the C++ sampler is not",
        source=_SAMPLER,
        otherwise="none: it is removed only where it is",
        check=OfServer("an answer that ends by `end_id`", served.end_token),
    ),
    Assumption(
        id="no-field-for-long-stop-words",
        sentence="stop sequences of several tokens have no public field",
        source=_SAMPLING,
        otherwise="none: the backend matches them itself",
        check=OfLibrary("the fields of `SamplingParams`", served.stop_fields),
    ),
    Assumption(
        id="end-id-replaces-the-models",
        sentence=(
            "extra end tokens of `generation_config.json` are not applied when `end_id` is given"
        ),
        source="`sampling_params.py` of 1.2.1, `_setup`",
        otherwise="none: they are sent as stop tokens",
        check=OfLibrary(_CODE, source_has("sampling_params.py", "_setup", "end_id is None")),
    ),
    Assumption(
        id="bias-is-a-tensor",
        sentence="`embedding_bias` may be a tensor",
        source=_SAMPLING,
        otherwise="requests with `logit_bias` fail",
        check=OfServer("an answer with `logit_bias`", served.logit_bias),
    ),
    Assumption(
        id="chosen-token-only",
        until="1.3",
        sentence="the C++ sampler reports the chosen token only",
        source=_SAMPLER,
        otherwise="alternatives are refused without need; set `sampler_type: TorchSampler`",
        check=Unchecked(_REFUSED_FIRST),
    ),
    Assumption(
        id="seeds",
        sentence="the C++ sampler honours seeds",
        source=_SAMPLER,
        otherwise="equal seeds give different answers",
        check=OfServer("answers with equal seeds", served.seeds),
    ),
    Assumption(
        id="penalties",
        sentence=(
            "the PyTorch sampler ignores penalties and bad words until 1.3.0rc24, and seeds until "
            "1.3.0rc25"
        ),
        source=(
            "`features/sampling.html` of 1.3.0rc24, which has both samplers; pull requests 16485 "
            "and 16052 (July 2026), 17172 (August 2026; the number of the pre-release follows from "
            "the date), issue 9442"
        ),
        otherwise=(
            "requests with penalties are refused without need, or penalties have no effect; "
            "`check` warns of seeds"
        ),
        check=OfServer("an answer with a penalty", served.penalties),
    ),
    Assumption(
        id="greedy-by-default",
        until="1.1",
        sentence=("answers are greedy without `enable_trtllm_sampler` or `enable_mixed_sampler`"),
        source="`features/sampling.html` of 1.0.0; pull request 6451",
        otherwise="none: the C++ sampler is chosen",
        check=OfLibrary("the arguments' names", served.named_samplers),
    ),
    Assumption(
        id="beams",
        sentence=(
            "beam search needs no other argument from 1.2 on; before, no overlap scheduler and no "
            "CUDA graphs"
        ),
        source="`features/sampling.html` of 1.0.0, 1.1.0 and 1.2.1",
        otherwise=(
            "requests with beams fail; set `disable_overlap_scheduler: true` and "
            "`cuda_graph_config: null` in `llm_args`"
        ),
        check=OfServer("a request with beams", served.beams),
    ),
    Assumption(
        id="beams-and-log-probabilities",
        until="1.3",
        sentence=(
            "the C++ sampler fails a step with several requests for beams and log probabilities"
        ),
        source=_SAMPLER,
        otherwise="they are refused without need",
        check=Unchecked(_REFUSED_FIRST),
    ),
    Assumption(
        id="graphs-ignore-adapters",
        until="1.3",
        sentence="CUDA graphs ignore adapters before 1.3",
        source=(
            "`features/feature-combination-matrix.html` of 1.2.1; pull request 8279 (January 2026)"
        ),
        otherwise="answers with adapters come more slowly than they could",
        check=Unchecked("graphs are off with adapters there; `adapters-apply` checks the outcome"),
    ),
    Assumption(
        id="adapters-apply",
        sentence="an adapter applies to every token of an answer, the first and the others",
        source="pull request 8279 from 1.3 on; without CUDA graphs before",
        otherwise="answers with adapters are the base model's",
        check=OfServer("answers with each adapter and without", served.adapters),
    ),
    Assumption(
        id="latent-attention-chunks",
        sentence=(
            "latent attention is not chunked on other GPUs than the [defaults](#settings) name"
        ),
        source=(
            "`create_py_executor` of `_torch/pyexecutor/py_executor_creator.py`, near 1.0, 1.1 and "
            "1.2; `models/supported-models.md` at 00b6d5a confirms the last, the page of 1.2.1 "
            "names 10.0 and 10.3 only"
        ),
        otherwise="prompts above `max_num_tokens` are refused without need, or hang",
        check=Unchecked("it needs a checkpoint with latent attention and two kinds of GPUs"),
    ),
    Assumption(
        id="models-without-chunks",
        sentence=(
            "GPT-OSS before 1.2, VILA and HyperCLOVA X Vision lack chunked prefill or block reuse"
        ),
        source="`models/supported-models.html` of 1.0.0, 1.1.0 and 1.2.1",
        otherwise="the same",
        check=Unchecked("it needs these checkpoints, and would hang where it is right"),
    ),
    Assumption(
        id="guides-and-speculation",
        until="1.1",
        sentence="guides do not go with speculation in 1.0",
        source=f"{_CREATOR}, near 1.0",
        otherwise="a start is refused that would succeed",
        check=Unchecked("the start fails where it is right"),
    ),
    Assumption(
        id="padded-graphs",
        sentence="padded CUDA graphs cover every batch",
        source="`_generate_cuda_graph_batch_sizes` of `llmapi/llm_args.py`, 1.2.1",
        otherwise="some batches run without a graph",
        check=OfLibrary("the sizes for a batch of 256", served.graph_sizes),
    ),
    Assumption(
        id="context-of-the-parent",
        sentence="the workers' parent has a CUDA context of 0.5 GB",
        source=(
            "`executor/proxy.py`, near 1.2, opens a stream; users measured 500 to 590 MiB per "
            "process: issue 3058"
        ),
        otherwise="the estimate of the KV cache is too small or too large by that",
        check=OfServer("the GPU memory of Triton's stub", served.context_of_the_parent),
    ),
    Assumption(
        id="ids-outside-the-vocabulary",
        sentence="ids outside the vocabulary are refused",
        source=(
            '`_validate_request` of `_torch/pyexecutor/py_executor.py`, near 1.2: "Token ID out '
            'of range"'
        ),
        otherwise="none: the backend refuses them first",
        check=OfLibrary(
            _CODE,
            source_has(
                "_torch/pyexecutor/py_executor.py", "_validate_request", "check_token_id_range"
            ),
        ),
    ),
    Assumption(
        id="spawn",
        sentence=(
            "one Triton without `mpirun` can spawn workers by MPI, and TensorRT-LLM does for one "
            "GPU too"
        ),
        source=(
            "`MpiPoolSession` of `llmapi/mpi_session.py`, 1.2.1; measured with Open MPI 4.1.8 and "
            "5.0.11 and mpi4py 4.1.2 in the server's environment"
        ),
        otherwise=(
            "the start fails or hangs until its limit; NVIDIA's variables for MPI are cleared first"
        ),
        check=OfServer("the start", served.workers),
    ),
    Assumption(
        id="launcher-splits",
        sentence="`trtllm-llmapi-launch` splits its arguments at blanks, or runs them as they are",
        source=(
            "`tensorrt_llm/llmapi/trtllm-llmapi-launch` at 020c89e, line 4; a later one keeps them"
        ),
        otherwise="none: they are `/bin/sh` and a file without blanks",
        check=Unchecked("both come to the same here"),
    ),
    Assumption(
        id="code-runs-unasked",
        until="1.3",
        sentence="code of the checkpoint is run whatever `trust_remote_code` says",
        source=(
            "`_load_and_validate_config` of `_torch/pyexecutor/model_loader.py` and "
            "`inputs/registry.py`, near 1.2"
        ),
        otherwise="none: without consent there is no code in the folder",
        check=OfLibrary(
            _CODE,
            source_has(
                "_torch/pyexecutor/model_loader.py",
                "_load_and_validate_config",
                "trust_remote_code=True",
            ),
        ),
    ),
    Assumption(
        id="processors-are-read",
        sentence=(
            "models with vision or audio read their processor and tokenizer from the checkpoint's "
            "folder"
        ),
        source=(
            "`create_input_processor` of `inputs/registry.py`, called by `_build_model` of "
            "`llmapi/llm.py`, 1.2.1"
        ),
        otherwise="some small files are fetched without need",
        check=OfLibrary(
            _CODE, source_has("llmapi/llm.py", "_build_model", "create_input_processor")
        ),
    ),
    Assumption(
        id="no-auto-completion",
        sentence="Triton's auto-completion is off",
        source=(
            "this project passes the option of `triton_backend/scripts/launch_triton_server.py`"
        ),
        otherwise="none: `config.pbtxt` has every field",
        check=OfServer("the command line of Triton", served.no_auto_completion),
    ),
)
