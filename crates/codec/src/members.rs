//! Which members of an archive are read, by their names. Each kind of archive decodes names itself.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use millstream_core::error::printable;
use millstream_core::spec::Fault;
use millstream_core::{Error, Result};

/// Names that the message shows if no member matches.
pub(crate) const NAMES_SHOWN: usize = 8;

/// Selects members by their names.
#[derive(Debug)]
pub(crate) struct MemberFilter {
    /// `None`: all that are data.
    globs: Option<GlobSet>,
}

impl MemberFilter {
    /// Selects the members that match one of `globs`; all if there are none.
    pub(crate) fn new(globs: &[String]) -> Result<Self> {
        if globs.is_empty() {
            return Ok(MemberFilter { globs: None });
        }
        let broken = |cause: globset::Error| Error::job("a glob of `members` is not valid").cause(cause);
        let mut set = GlobSetBuilder::new();
        for glob in globs {
            set.add(build(glob).map_err(broken)?);
        }
        Ok(MemberFilter { globs: Some(set.build().map_err(broken)?) })
    }

    /// Whether the member `name` is selected.
    pub(crate) fn wants(&self, name: &str) -> bool {
        match &self.globs {
            Some(globs) => globs.is_match(name),
            None => !is_of_macos(name),
        }
    }

    /// Whether there are globs, so that finding no member is an error.
    pub(crate) fn asks(&self) -> bool {
        self.globs.is_some()
    }
}

fn build(glob: &str) -> std::result::Result<globset::Glob, globset::Error> {
    GlobBuilder::new(glob).literal_separator(true).build()
}

/// All faults of `globs`; their paths are indices.
pub(crate) fn check(globs: &[String]) -> Vec<Fault> {
    let fault = |(index, glob): (usize, &String)| {
        let cause = build(glob).err()?;
        Some(
            Fault::new(&index.to_string(), format!("`{glob}` is not a valid glob: {}", cause.kind()))
                .hint("`*` is any text inside a folder, `**` any folders, `?` one character, `{a,b}` a choice"),
        )
    };
    globs.iter().enumerate().filter_map(fault).collect()
}

/// What the Finder of macOS adds to archives: attributes of the files, never data.
fn is_of_macos(name: &str) -> bool {
    name.starts_with("__MACOSX/") || name == ".DS_Store" || name.ends_with("/.DS_Store")
}

/// The error of an archive of which no member is selected. `names` are its first members with data.
pub(crate) fn none_selected<'a>(kind: &str, names: impl Iterator<Item = &'a str>, count: u64) -> Error {
    let error = Error::refused(format!("no member of the {kind} matches `members`"));
    let shown: Vec<&str> = names.take(NAMES_SHOWN).collect();
    if shown.is_empty() {
        return error.hint("the archive has no members");
    }
    let more = count.saturating_sub(shown.len() as u64);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    let names = printable(shown.join(", ").as_bytes());
    error.hint(format!("the archive has {names}{rest}; `*` stays inside a folder, `**/*` does not"))
}

/// The error of an archive with more members than `most`, found at byte `at`.
pub(crate) fn too_many(most: u64, at: u64) -> Error {
    Error::refused(format!("the archive has more than {most} members"))
        .byte(at)
        .hint("raise `limits: {members: …}` of the source if you trust the data")
}

/// Refuses a member whose name contains a NUL.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.contains('\0') {
        return Err(Error::refused("the member's name holds a NUL: tools disagree on where it ends"));
    }
    Ok(())
}
