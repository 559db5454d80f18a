"""Repositories as verified folders on this machine; `open_repository` is the entry point.

`open_repository.open_repository` resolves a name to a `listing.Source`, which lists and fetches
files: there for a local folder, in `transfer` for the remotes `hub` and `s3`. `transfer` fetches
the files that its `store` lacks, in ranges (`part`), and works offline with those fetched before.
`direct` requests ranges and repeats failed requests; `hub` and `s3` translate errors.
"""
