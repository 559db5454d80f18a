"""Repositories as verified folders on this machine; `open_repository` is the entry point.

- `open_repository`: resolves a name to a `listing.Source`, which lists and fetches files
- `listing`: names, sizes and hashes, checked before they are used; `remote_source`: one that is
  not on this machine, online or offline
- `hub`, `s3`: listings, contents and errors of Hugging Face and S3, by their libraries
- `transfer`: fetches in parallel ranges and verifies; `progress` logs it
- `cache`: the layout of Hugging Face's cache
- `range_client`, `byte_ranges`, `retrying`: requests for parts of files
"""
