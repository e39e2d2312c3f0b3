//! A thread without the rights of root: tests often run as root, which may access all files.

/// Runs `work` on a thread of its own, as the user `nobody` if this process runs as root. This includes threads that it
/// starts; the rest of the process keeps its rights.
#[expect(clippy::expect_used, reason = "tests stop here")]
pub fn without_rights<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let nobody = rustix::process::Uid::from_raw(65_534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may become nobody");
            }
            work()
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
