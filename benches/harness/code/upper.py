"""The function that Millstream and its peer call on batches of Arrow."""

import pyarrow
import pyarrow.compute


def upper(batch):
    """The batch with its names in capital letters."""
    names = pyarrow.compute.utf8_upper(batch.column("name"))
    return pyarrow.RecordBatch.from_arrays([names, *batch.columns[1:]], names=batch.schema.names)
