"""Run llama.cpp's HTTP server: `python llama_server.py MODEL PORT SLOTS CONTEXT_TOKENS THREADS`.

For the Python of `requirements/peers.txt`, which has `xllamacpp` and nothing of this project.
Prints its address once it serves; stops when its standard input closes.
"""

import sys

import xllamacpp  # type: ignore[import-not-found]


def main() -> None:
    model, *numbers = sys.argv[1:]
    port, slots, context_tokens, threads = map(int, numbers)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_parallel = slots
    parameters.n_ctx = context_tokens
    parameters.kv_unified = True  # a prompt may take more than its slot's share
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.verbosity = 0
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
