"""The folder with a program: listed, packed into an archive that its digest names, and unpacked elsewhere."""
