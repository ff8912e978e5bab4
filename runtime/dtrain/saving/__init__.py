"""What outlives a run: files of weights and of whole models, and models for other programs.

1. A file is in the safetensors format, whatever its name ends in: arrays under their variables' names (an
   optimizer's slots as in a checkpoint), and in the metadata what they are and a checksum over all of it. Any
   framework reads the arrays.
2. Architecture, loss, metrics and optimizer are data: class names and numbers in JSON. A name is looked up in
   a table of known classes; nothing is imported, unpickled or evaluated because a file says so.
3. A file is written aside, fsynced and renamed: under its name it is whole, or what was there before.
4. A file that is damaged, or says what its arrays do not, is refused with one message; nothing is as large as
  a file merely claims.
5. Only the leader's files count: what other tasks of a run save goes to a directory of their own that is
   thrown away at their end, and is read from there under the name that it was given. A second run that would
   write the same file is refused while the first one lives (`dtrain.runs.claims`).
"""
