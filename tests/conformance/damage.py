"""Damaged copies of a TFRecord file, by the name of golden file k's case."""


def damaged(case, whole, first, second):
    """The bytes of the file of a case, from those of a whole one whose first two records have so many bytes
    of data.

    A record is 12 bytes of header, its data and 4 bytes of checksum.
    """
    start = first + 16
    middle = start + 12 + second // 2
    flip = {"flip_data_byte_of_record_1": middle, "flip_length_byte_of_record_1": start}.get(case)
    if flip is not None:
        return whole[:flip] + bytes([whole[flip] ^ 0xFF]) + whole[flip + 1 :]
    ends = {
        "truncated_in_data_of_record_1": middle,
        "truncated_in_header_of_record_1": start + 6,
        "empty_file": 0,
        "missing_last_crc_byte": len(whole) - 1,
    }
    return whole[: ends[case]]
