"""Files that outlive a run: weights, whole models, and models for other programs.

1. A file is in the safetensors format, whatever its name ends in: arrays under their variables' names (an
   optimizer's slots as in a checkpoint), and in the metadata their meaning and a checksum over the whole
   file. Any framework reads the arrays.
2. Architecture, loss, metrics and optimizer are data: class names and numbers in JSON. A name is looked up in
   a table of known classes; nothing in a file is imported, unpickled or evaluated.
3. A file is written aside, fsynced and renamed: under its name it is whole, or the one before it.
4. A file that is damaged, or whose description does not match its arrays, is refused with one message. No
   memory is allocated for a size that a file merely claims.
5. Only the leader's files count. Other tasks of a run save into a directory of their own that is deleted at
   their end, and read from there under the name that was given. A second run that would write the same file
   is refused while the first one lives (`dtrain.runs.claims`).
"""
