//! A process that ends all programs when this one has ended without doing so.
//!
//! A process that is killed cannot end its children. The kernel can signal a child when its parent ends, but not the
//! children of that child. So a copy of this process, which does nothing but wait, holds the reading end of a pipe. It
//! reads which process groups there are. The pipe ends when this process does, and then the copy kills the groups.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use rustix::pipe::{PipeFlags, pipe_with};

/// The most groups that are guarded at once; further ones are not.
const MOST_GROUPS: usize = 4096;

/// The guard of this process.
#[derive(Debug)]
pub struct Guard {
    pipe: Mutex<Option<File>>,
    process: libc::pid_t,
}

impl Guard {
    /// Starts the guard.
    ///
    /// # Errors
    /// If there can be no further process or pipe.
    pub fn start() -> io::Result<Guard> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: the copy has only the calling thread. It calls nothing but `watch`, which takes no lock, allocates
        // nothing, and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => watch(reader.as_raw_fd()),
            process => Ok(Guard { pipe: Mutex::new(Some(File::from(writer))), process }),
        }
    }

    /// From now on kills the process group `group` when this process has ended.
    pub fn add(&self, group: i32) {
        self.tell(group);
    }

    /// Does not kill `group` any more.
    pub fn remove(&self, group: i32) {
        self.tell(-group);
    }

    /// A guard that has ended is none; the programs are ended by this process all the same.
    fn tell(&self, message: i32) {
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = pipe.as_mut().map(|pipe| pipe.write_all(&message.to_ne_bytes()));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.pipe.lock().unwrap_or_else(PoisonError::into_inner).take());
        // SAFETY: the process is a child of this one; no status is asked for. If another has waited for it, the call
        // fails at once.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

/// Reads groups from `pipe` until it ends, then kills them. Only calls that are safe in a signal handler.
fn watch(pipe: i32) -> ! {
    let mut groups = [0_i32; MOST_GROUPS];
    // SAFETY: each call gets valid arguments, and memory of this function only. The process has one thread, and shares
    // nothing with its parent but the pipe: all other files are closed.
    unsafe {
        // A terminal's interrupt goes to the programs, not to their guard.
        libc::setsid();
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, c"millstream-guard".as_ptr());
        close_all_but(pipe);
        loop {
            let mut message = [0_u8; 4];
            // Messages are shorter than what a pipe takes at once, so they come whole.
            let length = libc::read(pipe, message.as_mut_ptr().cast(), message.len());
            if length < 0 && *libc::__errno_location() == libc::EINTR {
                continue;
            }
            if length < 4 {
                break;
            }
            let group = i32::from_ne_bytes(message);
            let (old, new) = if group > 0 { (0, group) } else { (-group, 0) };
            let mut place = 0;
            while place < MOST_GROUPS && groups[place] != old {
                place += 1;
            }
            if place < MOST_GROUPS {
                groups[place] = new;
            }
        }
        for group in groups {
            if group > 0 {
                libc::kill(-group, libc::SIGKILL);
            }
        }
        libc::_exit(0)
    }
}

/// Closes all files but `kept`.
///
/// # Safety
/// Nothing may use them any more.
unsafe fn close_all_but(kept: i32) {
    let kept = kept.unsigned_abs();
    // SAFETY: as the caller's.
    let range = |first: u32, last: u32| unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0;
    if (kept == 0 || range(0, kept - 1)) && range(kept + 1, u32::MAX) {
        return;
    }
    // Before Linux 5.9.
    for file in (0..65_536).filter(|file| *file != kept) {
        // SAFETY: as the caller's.
        unsafe { libc::close(file as i32) };
    }
}
