//! Writes what Ballista logs to a file, with the time since the start.

use fs_err::File;
use log::{LevelFilter, Log, Metadata, Record};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

struct Logger {
    file: Mutex<File>,
    start: Instant,
}

impl Log for Logger {
    fn enabled(&self, _: &Metadata) -> bool {
        true
    }

    fn log(&self, record: &Record) {
        let seconds = self.start.elapsed().as_secs_f64();
        if let Ok(mut file) = self.file.lock() {
            let _ = writeln!(file, "{seconds:9.3} {:5} {}: {}", record.level(), record.target(), record.args());
        }
    }

    fn flush(&self) {}
}

/// Logs to this file from now on. A process has one such file.
pub fn log_to(path: &Path) -> std::io::Result<()> {
    let logger = Logger { file: Mutex::new(File::create(path)?), start: Instant::now() };
    if log::set_logger(Box::leak(Box::new(logger))).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
    Ok(())
}
