"""`trtllm-truss` and `python -m trtllm_truss`.

Without the workbench, as in an image, the server's commands.
"""

import sys

INTERRUPTED_STATUS = 130
"""Exit status of a command stopped by Ctrl-C, as of one killed by SIGINT in a shell."""


def main() -> int:
    """Run one command and return its exit status; Ctrl-C during its imports stops it too."""
    try:
        from importlib.util import find_spec

        if find_spec("trtllm_workbench") is None:
            from trtllm_truss.cli.main import main as run
        else:
            from trtllm_workbench.cli.main import main as run
        return run()
    except KeyboardInterrupt:
        return 0 if sys.argv[1:2] == ["serve"] else INTERRUPTED_STATUS


if __name__ == "__main__":
    sys.exit(main())
