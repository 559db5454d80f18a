"""Convert configurations of other servers to config.yaml, with the outcome of every option.

`reading` collects options from files, folders and command lines (`command_lines`) and determines
which server they belong to. Each server has a module with rules for its options; `rules` applies
them.
"""
