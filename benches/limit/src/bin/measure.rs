//! A stop-watch: runs a command and writes what it took as JSON.
//!
//! ```text
//! measure FILE COMMAND [ARGUMENT…]
//! ```
//!
//! It exists because a process begins with the peak memory of its parent: started from the harness itself, no process
//! could take less than a Python interpreter. Processes that the command started and waited for count too: their times
//! are added, and the peak is that of the largest single one.

use std::io;
use std::process::{Command, ExitCode};
use std::time::Instant;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(report), Some(program)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: measure FILE COMMAND [ARGUMENT…]");
        return ExitCode::FAILURE;
    };
    let start = Instant::now();
    let status = match Command::new(&program).args(arguments).status() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("measure: {}: {error}", program.to_string_lossy());
            return ExitCode::FAILURE;
        }
    };
    let wall = start.elapsed().as_secs_f64();
    let written = usage().and_then(|usage| fs_err::write(report, json(wall, status.code().unwrap_or(-1), &usage)));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("measure: {error}");
            ExitCode::FAILURE
        }
    }
}

fn json(wall: f64, status: i32, usage: &libc::rusage) -> String {
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    format!(
        "{{\"wall\": {wall}, \"user\": {}, \"system\": {}, \"peak_rss\": {}, \"disk_read\": {}, \"disk_written\": {}, \
         \"status\": {status}}}\n",
        seconds(usage.ru_utime),
        seconds(usage.ru_stime),
        // Linux counts resident memory in units of 1024 bytes and traffic with the disk in units of 512.
        usage.ru_maxrss * 1024,
        usage.ru_inblock * 512,
        usage.ru_oublock * 512,
    )
}

/// The resource usage of all ended children: there is only one.
fn usage() -> io::Result<libc::rusage> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: getrusage writes a whole rusage where the pointer points when it returns 0, and only then is it read.
    unsafe {
        match libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) {
            0 => Ok(usage.assume_init()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
