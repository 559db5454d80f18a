"""Steps of several ranks, each of which needs all of them, like a collective on GPUs.

The first rank sends the requests of a step to the others before it runs it:

- the executor of engines: `getNewReqWithIds` of executor/executorImpl.cpp, near 1.1;
- the LLM API: `_broadcast_new_requests` of _torch/pyexecutor/executor_request_queue.py, near 1.2.

There, a wait in MPI takes a whole core; here it sleeps.
"""

import time

_TICK_S = 0.001


class Steps:
    """The steps of a communicator's ranks; `lead` on the first one, `follow` on the others."""

    def __init__(self, communicator):
        self._communicator = communicator
        self._others = range(1, communicator.Get_size())

    def lead(self):
        """Return once all ranks have taken part in a step."""
        for rank in self._others:
            self._communicator.send(True, rank)
        for rank in self._others:
            self._receive(rank)

    def end(self):
        """Let the others end."""
        for rank in self._others:
            self._communicator.send(False, rank)

    def follow(self):
        """Take part in steps until the first rank ends them."""
        while self.take_part():
            pass

    def take_part(self):
        """Take part in one step; return False if there is none any more."""
        goes_on = self._receive(0)
        if goes_on:
            self._communicator.send(True, 0)
        return goes_on

    def _receive(self, rank):
        while not self._communicator.Iprobe(source=rank):
            time.sleep(_TICK_S)
        return self._communicator.recv(source=rank)
