"""lm_eval on a task of each kind: scored continuations, and generated text."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.clients import page
from tests.clients.conftest import PYTHON
from tests.support.paths import ROOT

CITIES = {"France": "Paris", "Italy": "Rome", "Norway": "Oslo"}
_TASK = {
    "dataset_path": "json",
    "test_split": "test",
    "doc_to_text": "The capital of {{country}} is",
    "doc_to_target": "{{city}}",
}
_TASKS = {
    "scored": {
        "output_type": "multiple_choice",
        "doc_to_choice": [*CITIES.values()],
        "metric_list": [{"metric": "acc"}],
    },
    "generated": {
        "output_type": "generate_until",
        "generation_kwargs": {"until": ["."], "max_gen_toks": 12},
        "metric_list": [{"metric": "exact_match"}],
    },
}


def test_lm_eval(address: str, tmp_path: Path) -> None:
    rows = [{"country": country, "city": city} for country, city in CITIES.items()]
    documents = tmp_path / "documents.jsonl"
    documents.write_text("\n".join(map(json.dumps, rows)))
    for name, task in _TASKS.items():
        files = {"dataset_kwargs": {"data_files": {"test": str(documents)}}}
        # JSON is YAML.
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"task": name, **_TASK, **files, **task}))
    (command,) = page.blocks("lm_eval", "")
    for old, new in (("arc_easy", ",".join(_TASKS)), ("DIR", _tokenizer(tmp_path / "tokenizer"))):
        assert old in command
        command = command.replace(old, new)
    command = command.replace(page.ADDRESS, address).replace("\\\n", "")
    _, program, *arguments = shlex.split(command)
    options = ("--include_path", tmp_path, "--log_samples", "--output_path", tmp_path / "out")
    ended = subprocess.run(
        [Path(sys.prefix) / "bin" / program, *arguments, *options],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    scored, generated = (_samples(tmp_path / "out", name) for name in _TASKS)
    assert [sample["acc"] for sample in scored] == [1, 1, 1]
    for sample in generated:
        ((text,),) = sample["resps"]
        assert text
        assert "." not in text


def _tokenizer(folder: Path) -> str:
    """Write the tokenizer of the model in the project's environment."""
    code = (
        "import sys, pathlib; from tests.support.smollm2 import write_smollm2_tokenizer as write\n"
    )
    code += "write(pathlib.Path(sys.argv[1]))"
    subprocess.run([PYTHON, "-c", code, folder], cwd=ROOT, check=True)
    return str(folder)


def _samples(out: Path, task: str) -> list[dict[str, object]]:
    (file,) = out.glob(f"*/samples_{task}_*.jsonl")
    samples = [json.loads(line) for line in file.read_text().splitlines()]
    return sorted(samples, key=lambda sample: sample["doc_id"])
