"""Child processes that never outlive this one, and the facts of this process.

- `begin`: when the command began that the user waits for;
- `child`: starts a command behind `process_guard`, a separate program that kills the command when
  this process dies;
- `folder_guard`: a program that removes temporary folders once their user is gone;
- `limits`: open files and core dumps;
- `mpi_job`: this process's rank in an MPI job of another launcher;
- `secret_variables`: which environment variables are secrets, and their removal.
"""
