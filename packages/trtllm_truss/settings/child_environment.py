"""The environment of child processes: variables that they are known to read, without secrets.

All code in a child can read its environment: backends, conversion scripts, a checkpoint's Python.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "TERM", "TZ", "LANG", "LANGUAGE"),
        *("TMPDIR", "TMP", "TEMP", "VIRTUAL_ENV", "GLIBC_TUNABLES", "TOKENIZERS_PARALLELISM"),
        *("CC", "CXX", "CPATH", "LIBRARY_PATH", "OPAL_PREFIX", "REQUESTS_CA_BUNDLE"),
    }
)
_PREFIXES = (
    # the system and Python
    *("LC_", "LD_", "XDG_", "MALLOC_", "TCMALLOC_", "PYTHON", "CONDA_", "SSL_CERT_"),
    # GPUs and their libraries
    *("CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "NVTX_", "NSYS_", "NVSHMEM_", "NCCL_"),
    *("TRT_", "TENSORRT_", "TRTLLM_", "TLLM_", "TRITON_", "MODELOPT_", "FLASHINFER_"),
    *("DG_JIT_", "CUTE_DSL_"),
    *("TORCH", "PYTORCH_", "HF_", "TRANSFORMERS_"),
    # communication between processes
    *("MPI_", "OMPI_", "ORTE_", "PMIX_", "PRTE_", "HWLOC_", "HCOLL_"),
    *("UCX_", "UCC_", "SHARP_", "FI_", "IBV_", "MLX5_", "RDMAV_"),
    # the CPU
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TBB_", "ONEDNN_", "DNNL_", "OPENVINO_", "OV_"),
)
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})
_SECRET_NAME = re.compile(r"SECRET|PASSW|CREDENTIAL|(^|_)(API|ACCESS|AUTH)?(KEY|TOKEN)(_|$)", re.I)
_USER_IN_URL = re.compile(r"://[^/@\s]+@")  # a proxy's user alone may be a token
_USER = re.compile(r"[^/@\s]+@")


def child_environment(
    variables: Mapping[str, str], passed: Collection[str] = (), *, online: bool = False
) -> dict[str, str]:
    """Select the variables of a child process.

    Args:
        variables: the environment of this process.
        passed: names that are always passed (`serving.pass_environment`).
        online: pass proxies, for a child that fetches something.
    """
    return {
        name: value
        for name, value in variables.items()
        if name in passed or (_is_known(name, online=online) and not _is_secret(name, value))
    }


def _is_known(name: str, *, online: bool) -> bool:
    known = name in _NAMES or name.startswith(_PREFIXES)
    return known or (online and name.lower() in _PROXIES)


def _is_secret(name: str, value: str) -> bool:
    is_proxy = name.lower() in _PROXIES  # whose URL may lack its scheme
    has_user = _USER_IN_URL.search(value) or (is_proxy and _USER.match(value))
    return bool(_SECRET_NAME.search(name) or has_user)
