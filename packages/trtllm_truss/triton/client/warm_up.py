"""First request to a server: one token shows that the engine generates."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from trtllm_truss.errors import TritonError, TrussError
from trtllm_truss.triton.client.client import TritonClient
from trtllm_truss.triton.client.request import EngineRequest


def warm_up(
    address: str, token_id: int, timeout_s: float, version: str, beam_width: int = 1
) -> None:
    """Generate one token; block, even where an event loop runs, as in a notebook.

    Args:
        address: ``host:port`` of Triton's gRPC endpoint.
        token_id: the whole prompt; any id that the engine knows.
        timeout_s: for the whole request.
        version: the TensorRT-LLM version that the server's repository was rendered for.
        beam_width: a width that the engine accepts.

    Raises:
        TritonError: the engine failed, or did not respond in time.
    """
    client = TritonClient(address, tensorrt_llm_version=version)
    request = EngineRequest(
        request_id="warm-up",
        input_ids=[token_id],
        max_tokens=1,
        beam_width=beam_width,
        streaming=beam_width == 1,
    )
    try:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, _generate(client, request, timeout_s)).result()
    except TrussError as failure:
        raise TritonError(f"the engine failed its first request: {failure.message}") from failure
    except TimeoutError:
        raise TritonError(
            f"the engine did not answer its first request within {timeout_s:.0f} s."
        ) from None


async def _generate(client: TritonClient, request: EngineRequest, timeout_s: float) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    try:
        async with client.answer(request) as answer:
            while not (await answer.next(deadline=deadline)).final:
                pass
    finally:
        await client.close()
