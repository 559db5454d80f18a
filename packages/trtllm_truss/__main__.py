"""`python -m trtllm_truss` is `trtllm-truss`."""

import sys

from trtllm_truss.cli.main import main

sys.exit(main())
