"""One engine over several hosts: the leader runs the Truss, `trtllm-truss join` runs on the others.

Every member dials the leader and keeps one authenticated connection (`channel`). The leader's
`mpirun` starts a daemon on a member through `launch_agent`, `leader` and `member`; the daemon then
starts the member's ranks.
"""
