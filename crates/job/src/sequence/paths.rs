//! Paths of the files that a sequence names: they are relative to its folder, however it is started.

use std::path::{Component, Path, PathBuf};

/// The path from this process of the file that the sequence at `sequence` calls `named`.
pub fn beside(sequence: &str, named: &str) -> String {
    let folder = Path::new(sequence).parent().unwrap_or(Path::new(""));
    folder.join(named).to_string_lossy().into_owned()
}

/// The same for all ways to write a path, without a look at the disk.
pub(crate) fn plain(path: &str) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if matches!(plain.components().next_back(), Some(Component::Normal(_))) => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_folder_of_the_sequence() {
        assert_eq!(beside("nightly.yaml", "load.yaml"), "load.yaml");
        assert_eq!(beside("etc/nightly.yaml", "load.yaml"), "etc/load.yaml");
        assert_eq!(beside("etc/nightly.yaml", "../load.yaml"), "etc/../load.yaml");
        assert_eq!(beside("etc/nightly.yaml", "/jobs/load.yaml"), "/jobs/load.yaml");
    }

    #[test]
    fn one_file_has_one_plain_path() {
        for path in ["etc/load.yaml", "./etc//load.yaml", "etc/x/../load.yaml", "x/../etc/./load.yaml"] {
            assert_eq!(plain(path), Path::new("etc/load.yaml"), "{path}");
        }
        assert_eq!(plain("../../load.yaml"), Path::new("../../load.yaml"));
    }
}
