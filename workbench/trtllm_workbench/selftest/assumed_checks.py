"""Checks of what the code assumes of a served TensorRT-LLM, by the rows of docs/assumptions.md."""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Literal

from trtllm_truss.errors import TrussError
from trtllm_truss.releases import release
from trtllm_truss.request_fields import Sampling
from trtllm_workbench.selftest import answer_checks
from trtllm_workbench.selftest.calls import PREDICT, DirectEngine
from trtllm_workbench.selftest.served_model import (
    PROMPTS,
    CannotRun,
    FellShort,
    Held,
    ServedModel,
    expect,
    greedy_body,
)

_COMPLETIONS = "/v1/completions"
_TOKENS = 12
_FEW_TOKENS = 4
_LOGITS_VARY_BY = 0.2  # kernels of 16-bit numbers round differently by the batch's shape
_CACHED_PROMPT_TOKENS = 300
_TEXT_ID = "selftest-7b"
_BIAS = 100.0
_PENALTY = 2.0
_CONTEXT_MIB = range(200, 1200)
_SMI_LIMIT_S = 20
_WORKER = "mpi4py.futures.server"
_SERVER, _STUB = "tritonserver", "triton_python_backend_stub"
_NO_COMPLETION = "--disable-auto-complete-config"


def longest_prompt(model: ServedModel) -> Held:
    """Send the engine the longest prompt, and one that is too long by a token."""
    longest = model.prompt_tokens
    _direct(model).generate(_prompt(model, longest), 1)
    try:
        _direct(model).generate(_prompt(model, longest + 1), 1)
    except TrussError:
        return Held(f"{longest} tokens were answered, {longest + 1} refused", {"tokens": longest})
    raise FellShort(f"a prompt of {longest + 1} tokens was answered; the limit here is {longest}")


def cached_tokens(model: ServedModel) -> Held:
    """Send a prompt twice; the engine must tell that it had the second one."""
    prompt = _prompt(model, min(model.prompt_tokens, _CACHED_PROMPT_TOKENS))
    body = {"model": "any", "prompt": prompt, "max_tokens": 1, "temperature": 0}
    first, second = (expect(model.api.post(_COMPLETIONS, body)).json() for _ in range(2))
    told = [answer["usage"].get("prompt_tokens_details") for answer in (first, second)]
    if None in told:
        raise FellShort("the engine does not tell which tokens of a prompt were cached")
    cached = [details["cached_tokens"] for details in told]
    if not cached[1]:
        raise CannotRun("nothing was cached the second time, as without reuse of blocks")
    found = f"{cached[0]} and then {cached[1]} of {len(prompt)} tokens were cached"
    return Held(found, {"cached_tokens": cached})


def logits(model: ServedModel) -> Held:
    """Compare the first token's log probability from the prompt's logits and from its own."""
    body = {"model": "any", "prompt": model.prompt_ids, "logprobs": 2, "max_tokens": 1}
    body |= {"temperature": 0, "ignore_eos": True}
    found = []
    for echo in (True, False):
        response = model.api.post(_COMPLETIONS, {**body, "echo": echo})
        if response.status == HTTPStatus.BAD_REQUEST:
            raise CannotRun(response.complaint)
        found.append(expect(response).json()["choices"][0]["logprobs"]["token_logprobs"])
    scored, own = found
    if (len(scored), len(own)) != (len(model.prompt_ids) + 1, 1):
        raise FellShort(
            f"{len(scored)} and {len(own)} log probabilities came for {len(model.prompt_ids)} "
            "tokens of a prompt and one after it"
        )
    pair = f"{scored[-1]:.3f} from the prompt's logits and {own[0]:.3f} from its own"
    if abs(scored[-1] - own[0]) > _LOGITS_VARY_BY:
        raise FellShort(f"the first token has {pair}")
    return Held(f"the first token has {pair}", {"log_probs": [scored[-1], own[0]]})


def text_id(model: ServedModel) -> Held:
    """Send the engine a request whose id begins with no digit."""
    _direct(model).generate(model.prompt_ids, 1, request_id=_TEXT_ID)
    return Held("a request with a text as its id was answered")


def mixed_widths(model: ServedModel) -> Held:
    """Ask for one beam and for two at once."""
    if model.beam_width == 1:
        raise CannotRun("max_beam_width is 1")
    with ThreadPoolExecutor() as pool:
        answers = [
            pool.submit(
                model.direct.generate,
                model.prompt_ids,
                _TOKENS,
                beam_width=width,
                streaming=width == 1,
            )
            for width in (1, 2)
        ]
        counts = [len(answer.result().ids) for answer in answers]
    return Held(f"answers of {counts[0]} and {counts[1]} tokens", {"tokens": counts})


def beams(model: ServedModel) -> Held:
    """Ask for as many beams as every request must have."""
    width = model.beam_width
    if width == 1:
        raise CannotRun("max_beam_width is 1")
    generated = model.direct.generate(
        model.prompt_ids, _TOKENS, beam_width=width, streaming=False, sampling=Sampling()
    )
    if not generated.ids:
        raise FellShort(f"{width} beams gave an empty answer")
    return Held(f"{width} beams gave {len(generated.ids)} tokens")


def end_token(model: ServedModel) -> Held:
    """End an answer by a token from its middle."""
    ids = _direct(model).generate(model.prompt_ids, _TOKENS).ids
    token = ids[len(ids) // 2]
    ended = _direct(model).generate(model.prompt_ids, _TOKENS, end_id=token).ids
    if ended != ids[: ids.index(token)]:
        raise FellShort(f"with end_id {token} the answer {ids} became {ended}")
    return Held(f"the answer ended after {len(ended)} of {len(ids)} tokens, without the end token")


def logit_bias(model: ServedModel) -> Held:
    """Make one token of the vocabulary the likeliest everywhere."""
    token = model.prompt_ids[0]
    body = {"prompt": PROMPTS[0], "max_tokens": _FEW_TOKENS, "temperature": 0, "ignore_eos": True}
    reply = model.api.post(_COMPLETIONS, {**body, "logit_bias": {str(token): _BIAS}})
    answer, wanted = expect(reply).json()["choices"][0]["text"], model.decode([token])
    if answer.replace(wanted, "").strip():
        raise FellShort(f"a bias of {_BIAS:g} for {wanted!r} gave {answer!r}")
    return Held(f"a bias of {_BIAS:g} for one token gave an answer of that token")


def seeds(model: ServedModel) -> Held:
    """Draw with equal seeds; the sampler must be the one that is known to honour them."""
    if not model.honours_seeds:
        raise CannotRun("the sampler of this release ignores seeds")
    return answer_checks.seeds(model)


def penalties(model: ServedModel) -> Held:
    """Compare an answer with one under a penalty for repetition."""
    fields = {"repetition_penalty": _PENALTY}
    reply = model.api.post(PREDICT, greedy_body(PROMPTS[0], stream=False, **fields))
    if reply.status == 400 and "repetition_penalty" in reply.text:
        raise CannotRun("penalties are refused with the sampler of this release")
    plain = model.greedy(stream=False).json()["text"]
    if expect(reply).json()["text"] == plain:
        raise FellShort(f"a repetition_penalty of {_PENALTY:g} left the answer {plain!r} as it was")
    return Held(f"a repetition_penalty of {_PENALTY:g} changed the answer")


def adapters(model: ServedModel) -> Held:
    """Compare the answers of adapters with those of the checkpoint, token by token."""
    count = model.adapters
    if not count:
        raise CannotRun("no lora_adapters are configured")
    base = _direct(model).generate(model.prompt_ids, _TOKENS).ids
    places: list[int] = []
    for number in range(1, count + 1):
        ids = _direct(model).generate(model.prompt_ids, _TOKENS, lora_task_id=number).ids
        if ids == base:
            raise FellShort(f"adapter {number} answers like the checkpoint: {base}")
        # As a graph captured without adapters goes on: the checkpoint's own next tokens.
        after = _direct(model).generate([*model.prompt_ids, ids[0]], _TOKENS - 1).ids
        if ids[0] != base[0] and ids[1:] in (base[1:], after):
            raise FellShort(
                f"adapter {number} changes the first token only: {ids} where the checkpoint "
                f"answers {base}"
            )
        places.append(sum(one != other for one, other in zip(ids, base, strict=False)))
    return Held(
        f"{count} adapters changed {min(places)} to {max(places)} of {_TOKENS} tokens",
        {"changed": places},
    )


def workers(model: ServedModel) -> Held:
    """Count the workers that MPI has spawned."""
    found = sum(_WORKER in line for line in model.server.command_lines().values())
    needed = model.settings.world_size
    if found < needed:
        raise FellShort(f"{found} of {needed} workers were spawned by mpi4py")
    return Held(f"{found} workers were spawned by mpi4py", {"workers": found})


def no_auto_completion(model: ServedModel) -> Held:
    """Read the command line of each Triton."""
    lines = [
        line
        for line in model.server.command_lines().values()
        if line and Path(line[0]).name == _SERVER
    ]
    if not lines or not all(_NO_COMPLETION in line for line in lines):
        raise FellShort(f"{len(lines)} processes named {_SERVER} have not all {_NO_COMPLETION}")
    return Held(f"{_NO_COMPLETION} is on the command line")


def no_public_ports(model: ServedModel) -> Held:
    """Look at what the processes below the server listen on."""
    ports = model.server.public_ports()
    if ports:
        raise FellShort(
            f"{len(ports)} ports beside HTTP are open on every address; with UCX set UCX_TLS=^tcp"
        )
    return Held("no process below the server listens on a public address")


def context_of_the_parent(model: ServedModel) -> Held:
    """Ask the driver for the GPU memory of Triton's stub, which starts the workers."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise CannotRun("nvidia-smi is not on PATH")
    command = [program, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=_SMI_LIMIT_S, check=False
    )
    used = {row[0].strip(): row[1].strip() for row in csv.reader(ended.stdout.splitlines())}
    stubs = [
        str(pid)
        for pid, line in model.server.command_lines().items()
        if line and Path(line[0]).name.startswith(_STUB[:15])
    ]
    found = [int(used[pid]) for pid in stubs if used.get(pid, "").isdigit()]
    if not found:
        raise CannotRun("nvidia-smi does not list Triton's stub (another namespace of processes?)")
    if max(found) not in _CONTEXT_MIB:
        raise FellShort(f"Triton's stub uses {max(found)} MiB of a GPU")
    return Held(f"Triton's stub uses {max(found)} MiB of a GPU", {"mib": max(found)})


def _direct(model: ServedModel) -> DirectEngine:
    """Return the engine for requests of one beam.

    Raises:
        CannotRun: every request must have more.
    """
    if model.first_beam_width > 1:
        raise CannotRun(f"every request must have {model.first_beam_width} beams here")
    return model.direct


def _prompt(model: ServedModel, length: int) -> list[int]:
    """Return so many ids, those of the first prompt repeated."""
    ids = model.prompt_ids
    return (ids * (length // len(ids) + 1))[:length]


@dataclass(frozen=True, slots=True)
class AssumedCheck:
    """A check of one row of docs/assumptions.md.

    Attributes:
        row: its name there.
        kind: of the served model that it is about.
        run: raises `FellShort`, or `CannotRun` where the model lacks what it needs.
        since: the first TensorRT-LLM release that it is about; empty for all.
        until: the first one that it is no longer about; empty for none.
    """

    row: str
    kind: Literal["engine", "checkpoint"]
    run: Callable[[ServedModel], Held]
    since: str = ""
    until: str = ""

    def is_about(self, version: str) -> bool:
        numbers = release(version)
        return (not self.since or release(self.since) <= numbers) and (
            not self.until or numbers < release(self.until)
        )


CHECKS = (
    AssumedCheck("longest-prompt", "engine", longest_prompt),
    AssumedCheck("ids-are-texts", "engine", text_id, since="0.10"),
    AssumedCheck("widths-may-differ", "engine", mixed_widths, since="0.10"),
    AssumedCheck("reused-blocks", "engine", cached_tokens, since="0.16"),
    AssumedCheck("logits-of-steps", "engine", logits, since="0.19"),
    AssumedCheck("ranks-need-no-tcp", "engine", no_public_ports),
    AssumedCheck("max-input-len", "checkpoint", longest_prompt),
    AssumedCheck("cached-tokens", "checkpoint", cached_tokens, since="1.2"),
    AssumedCheck("end-token", "checkpoint", end_token),
    AssumedCheck("bias-is-a-tensor", "checkpoint", logit_bias),
    AssumedCheck("seeds", "checkpoint", seeds),
    AssumedCheck("penalties", "checkpoint", penalties),
    AssumedCheck("beams", "checkpoint", beams),
    AssumedCheck("adapters-apply", "checkpoint", adapters),
    AssumedCheck("context-of-the-parent", "checkpoint", context_of_the_parent),
    AssumedCheck("spawn", "checkpoint", workers),
    AssumedCheck("no-auto-completion", "checkpoint", no_auto_completion),
)


def checks_of(model: ServedModel, version: str) -> Iterator[AssumedCheck]:
    """Yield the checks of a served model.

    Args:
        version: of TensorRT-LLM, as installed.
    """
    for check in CHECKS:
        if check.kind == model.kind and check.is_about(version):
            yield check
