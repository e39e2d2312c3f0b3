//! Small file systems for tests of full disks.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A mounted file system, unmounted when dropped.
#[derive(Debug)]
pub struct Mount(TempDir);

impl Mount {
    /// A file system in memory, with options such as `size=256k`. `None` if this process may not mount.
    pub fn tmpfs(options: &str) -> Option<Mount> {
        Mount::mounted(&["-t", "tmpfs", "-o", options, "tmpfs"])
    }

    /// A file system of 4 MB in the file `image` (ext4 reserves some of it). Unlike in a tmpfs, its folders take space.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn ext4(image: &Path) -> Option<Mount> {
        fs_err::File::create(image).and_then(|file| file.set_len(4 << 20)).expect("an image");
        let options = ["-q", "-m", "0", "-b", "1024", "-N", "2400", "-O", "^has_journal"];
        let made = Command::new("mkfs.ext4").args(options).arg(image).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfs.ext4 is needed: the Debian package e2fsprogs");
        Mount::mounted(&["-o", "loop", &image.display().to_string()])
    }

    #[expect(clippy::expect_used, reason = "tests stop here")]
    fn mounted(arguments: &[&str]) -> Option<Mount> {
        let folder = TempDir::new().expect("a folder");
        let mounted = Command::new("mount").args(arguments).arg(folder.path()).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Mount(folder));
        }
        eprintln!("skipped: mounting is not allowed here");
        None
    }

    /// Changes the size of a file system in memory: `64m`.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn resize(&self, size: &str) {
        let grown = Command::new("mount").args(["-o", &format!("remount,size={size}")]).arg(self.path()).status();
        assert!(grown.expect("there is mount").success(), "the file system in memory takes another size");
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
