"""Records of the interfaces that users rely on, so that each change of one shows in a diff.

`python -m tests.frozen` compares, and with `--write` rewrites `data/`. The commit and the changelog
name each difference. The schema of the settings is docs/settings.schema.json, which
tests/docs/test_settings.py compares with the code.
"""
