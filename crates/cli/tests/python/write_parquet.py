"""Writes files that Millstream has to read, or to refuse: folder as the first argument."""

import base64
import os
import struct
import sys
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

os.chdir(sys.argv[1])


def write(name, columns, **options):
    pq.write_table(pa.table(columns), f"{name}.parquet", **options)


def array(data_type, count, raw):
    return pa.Array.from_buffers(data_type, count, [None, pa.py_buffer(raw)])


def varint(data, at):
    while data[at] & 0x80:
        at += 1
    return at + 1


def patch(source, target, change):
    """A copy of a file with another directory."""
    data = open(f"{source}.parquet", "rb").read()
    begin = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    directory = change(data[begin:-8])
    with open(f"{target}.parquet", "wb") as file:
        file.write(data[:begin] + directory + struct.pack("<I", len(directory)) + b"PAR1")


# Values that their types exclude.
decimals = np.array([1, 0, -4431538, -1, 2, 0], dtype="int64")
write("decimals", {"id": [1, 2, 3], "d": array(pa.decimal128(5, 2), 3, decimals)})
write("times", {"id": [1, 2, 3], "t": array(pa.time64("us"), 3, np.array([1, -13899000000, 2], dtype="int64"))})

# UUIDs.
ids = pa.array([uuid.UUID("12345678-1234-5678-1234-56781234567a").bytes, None], pa.uuid())
lists = pa.ListArray.from_arrays(pa.array([0, 1, 1], pa.int32()), pa.array([uuid.UUID(int=5).bytes], pa.uuid()))
write("uuids", {"u": ids})
write("uuid-lists", {"u": lists})

# Checksums.
numbers = {"id": list(range(1000)), "s": [str(number) for number in range(1000)]}
for codec in ["none", "zstd"]:
    write(f"sums-{codec}", numbers, write_page_checksum=True, compression=codec, use_dictionary=False)
write("sums-v2", numbers, write_page_checksum=True, compression="snappy", data_page_version="2.0")
data = bytearray(open("sums-none.parquet", "rb").read())
data[1000] ^= 4
open("flipped.parquet", "wb").write(data)

# What memory and limits are for.
write("long", {"id": [1], "v": pa.array(["x" * 900_000_000], pa.large_string())}, compression="zstd",
      use_dictionary=False, write_statistics=False)
for name, value in [("text", "y" * 1_000_000), ("bytes", b"y" * 1_000_000)]:
    indices = pa.array(np.zeros(2100, dtype="int32"))
    write(f"dictionary-{name}", {"v": pa.DictionaryArray.from_arrays(indices, pa.array([value]))}, compression="zstd",
          write_statistics=False)
items = pa.array(np.zeros(50_000_000, dtype="int64"))
write("list", {"v": pa.ListArray.from_arrays(pa.array([0, 50_000_000], pa.int32()), items)}, compression="zstd",
      write_statistics=False)
write("prefixes", {"v": ["z" * 100_000 + str(number) for number in range(3000)]}, compression="zstd",
      use_dictionary=False, column_encoding={"v": "DELTA_BYTE_ARRAY"}, write_statistics=False)
# 96 rows of 2 MB in one group, each in a page of its own; packed they have half of that.
noise = np.random.default_rng(1)
write("rows", {"id": list(range(96)), "v": [noise.bytes(1_000_000).hex() for _ in range(96)]}, compression="zstd",
      use_dictionary=False, write_statistics=False, write_batch_size=1)
del items, data

# Small pages of equal values.
write("zeros", {"z": np.zeros(30_000_000)}, compression="zstd", use_dictionary=False, write_statistics=False)
write("equal", {"z": ["the same text"] * 3_000_000}, compression="zstd", use_dictionary=False, write_statistics=False)
write("zero-lists", {"z": pa.ListArray.from_arrays(pa.array(np.arange(0, 12_000_001, 3), pa.int32()),
                                                   pa.array(np.zeros(12_000_000, dtype="int64")))},
      compression="zstd", use_dictionary=False, write_statistics=False)

# No rows: none at all, and none in the group in the middle.
nothing = pa.table({"n": pa.array([], pa.int32()), "name": pa.array([], pa.string())})
pq.write_table(nothing, "empty.parquet")
with pq.ParquetWriter("empty-group.parquet", nothing.schema) as writer:
    for part in [{"n": [1], "name": ["a"]}, nothing.to_pydict(), {"n": [2], "name": ["b"]}]:
        writer.write_table(pa.table(part, schema=nothing.schema))
assert pq.read_metadata("empty-group.parquet").num_row_groups == 3

# Sound, or sound in parts.
pq.write_table(pa.Table.from_arrays([pa.array([1, 2]), pa.array(["a", "b"]), pa.array([3, 4]), pa.array([5, 6])],
                                    names=["x", "x", "x_2", "x"]), "twice.parquet")
write("plain", {"name": ["a", "b"], "n": [1, 2]}, store_schema=False, use_dictionary=False, write_statistics=False)


def unknown_type(directory):
    # Field 4 of the schema's element is its name, 6 its converted type: 0 is text.
    at = directory.index(b"\x18\x04name") + 6
    assert directory[at:at + 2] == b"\x25\x00"
    return directory[:at + 1] + bytes([60]) + directory[at + 2:]


def codec_at(directory):
    # Field 3 of the chunk's metadata is the path, 4 the codec.
    at = directory.rindex(b"\x18\x04name\x15") + 7
    assert directory[at] == 2, "snappy"
    return at


def dictionary_at_0(directory):
    at = codec_at(directory) + 1
    # Values and both sizes, and the offset of the data; then the place of the dictionary: field 11.
    for head in [0x16, 0x16, 0x16, 0x26]:
        assert directory[at] == head
        at = varint(directory, at + 1)
    return directory[:at] + b"\x26\x00" + bytes([directory[at] - 0x20]) + directory[at + 1:]


def old_codec(directory):
    at = codec_at(directory)
    return directory[:at] + b"\x06" + directory[at + 1:]


patch("plain", "unknown", unknown_type)
patch("plain", "no-dictionary", dictionary_at_0)
patch("plain", "lzo", old_codec)
for name in ["unknown", "no-dictionary"]:
    assert pq.ParquetFile(f"{name}.parquet").read().to_pydict() == {"name": ["a", "b"], "n": [1, 2]}, name


class Keys(pe.KmsClient):
    def __init__(self, _):
        super().__init__()

    def wrap_key(self, key, _):
        return base64.b64encode(key)

    def unwrap_key(self, key, _):
        return base64.b64decode(key)


factory = pe.CryptoFactory(Keys)
for name, plaintext in [("column", True), ("whole", False)]:
    settings = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["secret"]}, plaintext_footer=plaintext)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), settings)
    table = pa.table({"id": [1, 2], "secret": ["a", "b"]})
    with pq.ParquetWriter(f"encrypted-{name}.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
