"""Importers: configurations of other servers → config.yaml, with the fate of every option.

`reading` collects options from files, folders and command lines (`command_lines`) and finds out
whose they are. A module per server has the rules of its options; `rules` applies them.
"""
