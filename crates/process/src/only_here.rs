//! Files that a copy of this process must not keep open.
//!
//! A process that this one becomes a copy of (by fork, as `multiprocessing` in Python does it) has all of its files. As
//! long as it held the writing end of a pipe, the program at the other end would not see the end of its input; and as
//! long as it held the socket of the guard, that would not see the end of this process. Files that are closed when a
//! program is executed do not help: a copy executes none. So the copy itself closes them, before it does anything else.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// The most files that are known at once; copies keep further ones open.
const MOST: usize = 8192;

/// No file.
const NONE: i32 = -1;

/// A file that is being added.
const TAKEN: i32 = -2;

/// A file, and its inode: its number may have become that of another one.
struct Slot {
    file: AtomicI32,
    inode: AtomicU64,
}

static SLOTS: [Slot; MOST] = [const { Slot { file: AtomicI32::new(NONE), inode: AtomicU64::new(0) } }; MOST];

/// How many slots have ever been used.
static USED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STARTS_PROGRAMS: Cell<bool> = const { Cell::new(false) };
}

/// Files that copies of this process close, until this is dropped.
#[derive(Debug, Default)]
pub struct OnlyHere(Vec<usize>);

impl OnlyHere {
    /// Adds `file`, a pipe or a socket.
    pub fn add(&mut self, file: &impl AsFd) {
        static HANDLER: Once = Once::new();
        // SAFETY: the handler makes only calls that are safe there. If there is no room for it, copies keep the files.
        HANDLER.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(in_copy));
        });
        let Ok(status) = rustix::fs::fstat(file) else { return };
        let is_free =
            |slot: &Slot| slot.file.compare_exchange(NONE, TAKEN, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let Some(place) = SLOTS.iter().position(is_free) else { return };
        SLOTS[place].inode.store(status.st_ino, Ordering::Relaxed);
        SLOTS[place].file.store(file.as_fd().as_raw_fd(), Ordering::Release);
        USED.fetch_max(place + 1, Ordering::Release);
        self.0.push(place);
    }
}

impl Drop for OnlyHere {
    fn drop(&mut self) {
        self.0.iter().for_each(|place| SLOTS[*place].file.store(NONE, Ordering::Release));
    }
}

/// The calling thread starts programs: in the copies that it makes, which execute them, all files stay as they are.
pub fn starts_programs() {
    STARTS_PROGRAMS.set(true);
}

/// Puts `/dev/null` in the place of the files, in a copy of this process. Their numbers stay taken: what holds them is
/// copied, too, and may close them.
extern "C" fn in_copy() {
    if STARTS_PROGRAMS.get() {
        return;
    }
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // SAFETY: calls that are safe between fork and exec, with memory of this function and numbers that are looked at.
    unsafe {
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for slot in &SLOTS[..USED.load(Ordering::Acquire)] {
            let file = slot.file.load(Ordering::Acquire);
            let mut status = MaybeUninit::<libc::stat>::uninit();
            if file < 0 || libc::fstat(file, status.as_mut_ptr()) != 0 {
                continue;
            }
            let status = status.assume_init();
            let is_pipe = matches!(status.st_mode & libc::S_IFMT, libc::S_IFIFO | libc::S_IFSOCK);
            if is_pipe && status.st_ino == slot.inode.load(Ordering::Relaxed) {
                match nothing {
                    0.. => libc::dup3(nothing, file, libc::O_CLOEXEC),
                    _ => libc::close(file),
                };
            }
        }
        if nothing >= 0 {
            libc::close(nothing);
        }
        *libc::__errno_location() = errno;
    }
}
