//! A process that ends all programs when this one has ended without doing so.
//!
//! A process that is killed cannot end its children. The kernel can signal a child when its parent ends, but not the
//! children of that child. So a copy of this process, which does nothing but wait, holds one end of a socket. It reads
//! which process groups there are. The socket ends when this process does, and then the copy kills the groups.
//!
//! The copy gives back the memory that it has of this process, which may be a notebook, and has a command line of its
//! own. A program of its own would need a file that is there wherever this code is a library.
//!
//! The copy can also hold the input of a program open, so that a program whose run is killed does not see its end
//! before it is killed itself.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};

use crate::only_here::OnlyHere;
use crate::shed;

/// The most groups that are guarded at once; further ones are not.
const MOST_GROUPS: usize = 4096;

/// A message: the group, what of it, and the number of its start.
type Message = [i32; 3];

/// The length of a message, in bytes.
const MESSAGE_BYTES: usize = size_of::<Message>();

/// What the guard is called in lists of processes: what looks for the arguments of this process does not find it.
const NAME: &CStr = c"millstream-guard";

/// The group has ended.
const REMOVE: i32 = 0;
/// The group is to be killed.
const ADD: i32 = 1;
/// The file that comes with the message is to be held as long as the group is guarded.
const HOLD: i32 = 2;
/// The file is not to be held any more.
const RELEASE: i32 = 3;
/// What was added with this number has not become a program.
const FORGET: i32 = 4;

/// The guard of this process.
#[derive(Debug)]
pub struct Guard {
    socket: Mutex<Option<OwnedFd>>,
    process: libc::pid_t,
    starts: AtomicI32,
    _only_here: OnlyHere,
}

impl Guard {
    /// Starts the guard.
    ///
    /// # Errors
    /// If there can be no further process or socket.
    pub fn start() -> io::Result<Guard> {
        let (reader, writer) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // SAFETY: the copy has only the calling thread. It calls nothing but `watch`, which takes no lock, allocates
        // nothing, and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => watch(reader.as_raw_fd()),
            process => {
                let mut only_here = OnlyHere::default();
                only_here.add(&writer);
                let socket = Mutex::new(Some(writer));
                Ok(Guard { socket, process, starts: AtomicI32::new(0), _only_here: only_here })
            }
        }
    }

    /// The number of a start, and what the new process is to call before it becomes a program: from then on its group
    /// is killed when this process has ended. If this process did it, the program could run for a moment without.
    /// To be called while the guard lives.
    pub fn start_of_group(&self) -> (i32, impl FnMut() -> io::Result<()> + Send + Sync + 'static) {
        let number = self.starts.fetch_add(1, Ordering::Relaxed);
        let socket = self.lock().as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let add = move || {
            // SAFETY: two calls that are safe between fork and exec, with a message of this function. If the guard has
            // ended, that is no reason not to start.
            unsafe {
                let message: Message = [libc::getpid(), ADD, number];
                libc::send(socket, message.as_ptr().cast(), MESSAGE_BYTES, libc::MSG_NOSIGNAL);
            }
            Ok(())
        };
        (number, add)
    }

    /// The start of this number has failed.
    pub fn forget(&self, number: i32) {
        self.send([0, FORGET, number], None);
    }

    /// Does not kill `group` any more, and holds nothing of it.
    pub fn remove(&self, group: i32) {
        self.send([group, REMOVE, 0], None);
    }

    /// Holds `input`, the writing end of a pipe to `group`, until that is killed or the guard is asked to release it.
    pub fn hold(&self, group: i32, input: BorrowedFd<'_>) {
        self.send([group, HOLD, 0], Some(input));
    }

    /// Does not hold the input of `group` any more.
    pub fn release(&self, group: i32) {
        self.send([group, RELEASE, 0], None);
    }

    fn lock(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A guard that has ended is none; the programs are ended by this process all the same.
    fn send(&self, message: Message, file: Option<BorrowedFd<'_>>) {
        let message: Vec<u8> = message.iter().flat_map(|part| part.to_ne_bytes()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let socket = self.lock();
        let data = [io::IoSlice::new(&message)];
        let _ = socket.as_ref().map(|socket| sendmsg(socket.as_fd(), &data, &mut control, SendFlags::NOSIGNAL));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.lock().take());
        // SAFETY: the process is a child of this one; no status is asked for. If another has waited for it, the call
        // fails at once.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

/// A guarded group, the number of its start, and the file that is held for it; 0 and -1 for none.
#[derive(Clone, Copy)]
struct Guarded {
    group: i32,
    start: i32,
    file: i32,
}

const NONE: Guarded = Guarded { group: 0, start: -1, file: -1 };

/// Reads messages from `socket` until it ends, then kills the groups. Only calls that are safe in a signal handler.
fn watch(socket: i32) -> ! {
    let mut all_guarded = [NONE; MOST_GROUPS];
    // SAFETY: each call gets valid arguments, and memory of this function only, on the stack. The process has one
    // thread, uses nothing else of its parent, and shares nothing with it but the socket: all other files are closed.
    unsafe {
        // A terminal's interrupt goes to the programs, not to their guard.
        libc::setsid();
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        close_all_but(socket);
        shed::command_line(NAME.to_bytes());
        bind();
        shed::memory();
        loop {
            let (length, [group, what, start], file) = receive(socket);
            if length < 0 && *libc::__errno_location() == libc::EINTR {
                continue;
            }
            if length < MESSAGE_BYTES as isize {
                break;
            }
            let found = all_guarded.iter_mut().find(|guarded| match what {
                ADD => guarded.group == 0,
                FORGET => guarded.start == start,
                _ => guarded.group == group,
            });
            // One too many is not guarded.
            let Some(guarded) = found else {
                libc::close(file);
                continue;
            };
            let before = guarded.file;
            *guarded = match what {
                ADD => Guarded { group, start, file: -1 },
                HOLD => Guarded { file, ..*guarded },
                RELEASE => Guarded { file: -1, ..*guarded },
                _ => NONE,
            };
            libc::close(before);
        }
        for guarded in all_guarded {
            if guarded.group > 0 {
                libc::kill(-guarded.group, libc::SIGKILL);
            }
        }
        // `_exit` cannot be bound by a call before.
        libc::syscall(libc::SYS_exit_group, 0);
        libc::_exit(0)
    }
}

/// Calls once, and without an effect, what is called when memory was given back ([`shed::memory`]). A build that binds
/// symbols at their first call (without `-z now`) does so here, while the linker has all of its data.
///
/// # Safety
/// Safe in a signal handler.
unsafe fn bind() {
    // SAFETY: calls with a file that there is none of, with no memory, and with a signal that is none.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        libc::recvmsg(-1, &raw mut header, 0);
        libc::kill(libc::getpid(), 0);
        libc::close(-1);
        libc::read(-1, std::ptr::null_mut(), 0);
        libc::munmap(std::ptr::null_mut(), 0);
        libc::madvise(std::ptr::null_mut(), 0, libc::MADV_DONTNEED);
    }
}

/// The next message of `socket`: its length, the group and what of it, and the file that came with it, or -1.
///
/// # Safety
/// Safe in a signal handler; `socket` must be one.
unsafe fn receive(socket: i32) -> (isize, Message, i32) {
    // As large as a control message with a file, and aligned for it.
    let (mut message, mut control): (Message, [u64; 8]) = ([0; 3], [0; 8]);
    let mut data = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: MESSAGE_BYTES };
    // SAFETY: `header` names the two buffers above with their lengths; the macros read what the kernel has written.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&raw mut data, 1);
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control) as _;
        let length = libc::recvmsg(socket, &raw mut header, 0);
        let first = if length > 0 { libc::CMSG_FIRSTHDR(&raw const header) } else { std::ptr::null_mut() };
        let is_file = !first.is_null() && (*first).cmsg_type == libc::SCM_RIGHTS;
        let file = if is_file { libc::CMSG_DATA(first).cast::<i32>().read_unaligned() } else { -1 };
        (length, message, file)
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
