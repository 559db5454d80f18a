"""`python -m trtllm_truss` is `trtllm-truss`; without the workbench, as in an image, its part."""

import sys
from importlib.util import find_spec

if find_spec("trtllm_workbench") is None:
    from trtllm_truss.cli.main import main
else:
    from trtllm_workbench.cli.main import main

sys.exit(main())
