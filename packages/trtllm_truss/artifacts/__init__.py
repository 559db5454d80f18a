"""Repositories as verified folders on this machine; `open_repository` is the entry point.

`open_repository.open_repository` resolves a name to a `listing.Source`, which lists and fetches
files. `local` implements it for local folders, `remote_source` for the two `transfer.Remote`s,
`hub` and `s3`: it lists, lets `transfer` fetch the files that its `store` lacks, and works offline
with those fetched before. `hub` and `s3` translate errors; `retrying` repeats requests.
"""
