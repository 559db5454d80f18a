"""A new Truss folder for an engine.

`origin` reads the user's source, `runtime` chooses the image and the packages, `placing` the GPUs,
`documents` writes config.yaml and README.md, `folder` copies the rest.
"""
