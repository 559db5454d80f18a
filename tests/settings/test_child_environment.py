"""The environment of child processes."""

from __future__ import annotations

import pytest

from trtllm_truss.processes.child import child_environment

KNOWN = {
    "PATH": "/bin",
    "LD_LIBRARY_PATH": "/lib",
    "LD_PRELOAD": "/lib/libtcmalloc.so",
    "PYTHONPATH": "/packages",
    "LC_ALL": "C.UTF-8",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NCCL_P2P_DISABLE": "1",
    "UCX_IB_PKEY": "0xffff",
    "OMPI_MCA_pml": "ob1",
    "PMIX_MCA_gds": "hash",
    "TRTLLM_MAX_TOKENS": "1",
    "TLLM_LOG_LEVEL": "INFO",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "2",
    "HF_HOME": "/cache",
    "HF_HUB_OFFLINE": "1",
    "SSL_CERT_FILE": "/etc/ca.pem",
}


def test_known_variables_pass() -> None:
    assert child_environment(KNOWN) == KNOWN


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACEHUB_API_TOKEN"),
        *("BASETEN_API_KEY", "BASETEN_TRUSS_AUTH_API_KEY", "OPENAI_API_KEY", "NVIDIA_API_KEY"),
        *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "TRUSS_SECRET_hf_access_token"),
        *("TRITON_PASSWORD", "CUDA_CREDENTIALS", "PYTHON_KEYRING_PASSWD", "DATABASE_URL", "X"),
        *("TRITON_AUTHTOKEN", "nccl_secret", "http_proxy", "HTTPS_PROXY"),
    ],
)
def test_unknown_variables_pass_only_by_name(name: str) -> None:
    assert child_environment({name: "1"}) == {}
    assert child_environment({name: "1"}, [name]) == {name: "1"}


def test_passwords_in_urls_are_not_passed() -> None:
    proxies = {"http_proxy": "http://proxy:3128", "NO_PROXY": "localhost"}
    with_password = {"HTTPS_PROXY": "http://me:secret@proxy:3128"}
    assert child_environment({**proxies, **with_password}, online=True) == proxies
    assert child_environment({"HF_ENDPOINT": "https://me:secret@hub"}) == {}
    for user in ("http://hf_secret@proxy", "me:secret@proxy:3128", "hf_secret@proxy", "s://a:@b"):
        assert child_environment({**proxies, "https_proxy": user}, online=True) == proxies
    assert child_environment({"LC_ALL": "de_DE.UTF-8@euro"}) != {}
    assert child_environment({"HF_ENDPOINT": "https://hub:8443/a@b"}) != {}
    assert child_environment(with_password, ["HTTPS_PROXY"]) == with_password
