//! Which member of an archive rows are from.

use std::sync::Arc;

use bytes::Bytes;

/// The member of an archive that rows are from; none if the unit is no archive.
#[derive(Debug, Clone, Default)]
pub struct MemberPlace {
    /// Its name.
    pub name: Option<Arc<str>>,
    /// How many members of the same name came before it.
    pub earlier: u32,
    /// The beginning of its text, if someone may ask for that.
    pub beginning: Bytes,
    /// Whether what stands before the rows in its text was not read, so that lines cannot be counted.
    pub is_behind: bool,
}

impl PartialEq for MemberPlace {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.earlier) == (&other.name, other.earlier)
    }
}
