"""Conversations × chat templates: which texts reach the prompt.

`python -m tools.template_matrix FOLDER…` prints the matrix of the templates (`*.jinja`) in folders.
`conversations` has the conversations, `matrix` renders them; tests and docs/models.md use both.
"""
