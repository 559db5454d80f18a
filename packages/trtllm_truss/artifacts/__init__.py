"""Repositories become folders on this machine; `open_repository` is the one way in.

`open_repository.open_repository` turns a name into a `source.Source`: something that lists its
files, gives single small ones, and brings the rest. `local` has those that are here already. `hub`
and `s3` are the two `transfer.Remote`s; `remote_source` makes a source of either: it lists, lets
`transfer` fetch what its `store` does not have, and goes on with what is there when nobody answers.
What went wrong is told by `hub_problems` and `s3` in one sentence; what may pass is tried
again by `retrying`.
"""
