//! Files of other kinds (spreadsheets, databases, pictures) are named before their bytes are read as text.

use millstream_core::Result;
use millstream_core::format::Reading;
use millstream_format::{foreign_member, foreign_text};

use super::Reader;

/// Looks at the beginning of each content of a unit.
pub struct Foreign {
    /// What is read is text.
    is_text: bool,
    /// Any text will do.
    is_any_text: bool,
    /// Members are not asked for by their names, so that the parts of a spreadsheet are none.
    is_whole: bool,
    /// What has come of the content, as far as it tells.
    head: Vec<u8>,
}

/// So many bytes tell what a content is.
const TELLING: usize = 512;

impl Foreign {
    /// For the units of `reader`.
    pub fn new(reader: &Reader) -> Self {
        let (is_text, is_any_text) = match reader.format.reading() {
            Reading::Stream(format) => (true, format.reads_any_text()),
            Reading::Ranges(_) | Reading::Rows => (false, false),
        };
        Foreign { is_text, is_any_text, is_whole: reader.members.is_empty(), head: Vec::new() }
    }

    /// A content begins: a member of the unit at `uri`, or all of it.
    pub fn begin(&mut self, uri: &str, member: Option<&str>) -> Result<()> {
        self.head.clear();
        let found = member.filter(|_| self.is_text && self.is_whole).and_then(|member| foreign_member(uri, member));
        found.map_or(Ok(()), |error| Err(error.in_unit(uri, None)))
    }

    /// Text of the content comes.
    pub fn text(&mut self, text: &[u8]) -> Result<()> {
        let missing = TELLING - self.head.len();
        if missing == 0 || !self.is_text {
            return Ok(());
        }
        self.head.extend_from_slice(&text[..text.len().min(missing)]);
        foreign_text(&self.head, self.is_any_text).map_or(Ok(()), Err)
    }
}
