"""Indexes of files of records, by which the record of any number is read at once.

    FILE.dtidx      "DTIDX001", the length of a header (4 bytes), the header (JSON), spaces up to a multiple
                    of 8 bytes; then the offset of each record and that of the end, uint64, little endian

An index belongs to a file of the size, time and checksums that its header names; else it is built anew.
"""
