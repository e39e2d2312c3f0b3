//! Rows as text for `COPY`, if a column's type has no binary form here.

use millstream_database::family::Family;
use millstream_database::table::Bulk;

use crate::database::cells::{Cells, Column};
use crate::database::encode::RowForm;
use crate::database::text::{self, Flavour, Reason};

/// Writes rows as text for `COPY`.
pub(super) struct CopyText {
    families: Vec<Family>,
}

impl CopyText {
    pub(super) fn new(bulk: &Bulk) -> Self {
        CopyText { families: bulk.columns.iter().map(|column| column.family).collect() }
    }
}

impl RowForm for CopyText {
    fn write(
        &mut self,
        columns: &mut [Column],
        row: usize,
        arrival: Option<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), (usize, Reason)> {
        for (index, column) in columns.iter_mut().enumerate() {
            if index > 0 {
                out.push(b'\t');
            }
            match (&column.cells, self.families[index]) {
                (Cells::Bool(_), family) if family != Family::Bool => text::write(column, row, Flavour::Mysql, out),
                // As text, the server would interpret escapes and hexadecimal digits in it.
                (Cells::Text(values), Family::Bytes) if !column.is_null(row) => {
                    text::bytes(values.value(row).as_bytes(), Flavour::Postgres, out);
                    Ok(())
                }
                _ => text::write(column, row, Flavour::Postgres, out),
            }
            .map_err(|reason| (index, reason))?;
        }
        if let Some(arrival) = arrival {
            out.push(b'\t');
            text::number(arrival, out);
        }
        out.push(b'\n');
        Ok(())
    }
}
