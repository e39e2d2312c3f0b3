//! What programs write to standard error.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::program::Lines;
use millstream_core::redact::Secrets;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinHandle;

/// The most bytes of a line; the rest of it is left out.
const LINE_BYTES: usize = 2000;

/// How long the last lines of a program that has ended are awaited.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The last lines that are kept for messages.
const KEPT_LINES: usize = 20;

/// The last lines of a program.
#[derive(Debug)]
pub struct LastLines {
    kept: Arc<Mutex<VecDeque<String>>>,
    relay: Option<JoinHandle<()>>,
}

impl LastLines {
    /// The lines so far, the oldest first.
    pub fn lines(&self) -> Vec<String> {
        lock(&self.kept).iter().cloned().collect()
    }

    /// Waits until all lines of a program that has ended are there, but not for long: a process that has left its group
    /// may keep the pipe open.
    pub async fn complete(&mut self) {
        if let Some(relay) = self.relay.take() {
            let _ = tokio::time::timeout(LONGEST_WAIT, relay).await;
        }
    }
}

fn lock(kept: &Mutex<VecDeque<String>>) -> MutexGuard<'_, VecDeque<String>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes the lines from `stderr` on to `lines` until it ends, without `secrets`.
pub fn relay(mut stderr: Receiver, lines: Lines, secrets: Secrets) -> LastLines {
    let kept = Arc::new(Mutex::new(VecDeque::new()));
    let keep = Arc::clone(&kept);
    let relay = tokio::spawn(async move {
        let mut cutter = Cutter::default();
        let mut take = |line: String| {
            let line = secrets.hidden(&line).into_owned();
            lines(&line);
            let mut kept = lock(&keep);
            kept.push_back(line);
            let surplus = kept.len().saturating_sub(KEPT_LINES);
            kept.drain(..surplus);
        };
        let mut buffer = vec![0; 16 << 10];
        while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
            cutter.add(&buffer[..length], &mut take);
        }
        cutter.end(&mut take);
    });
    LastLines { kept, relay: Some(relay) }
}

/// Cuts a text into lines.
#[derive(Default)]
struct Cutter {
    line: Vec<u8>,
    is_cut: bool,
}

impl Cutter {
    fn add(&mut self, bytes: &[u8], take: &mut impl FnMut(String)) {
        let mut rest = bytes;
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            self.more(&rest[..end]);
            self.end(take);
            rest = &rest[end + 1..];
        }
        self.more(rest);
    }

    fn more(&mut self, bytes: &[u8]) {
        let room = LINE_BYTES - self.line.len();
        self.is_cut |= bytes.len() > room;
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// The line ends here, if it has begun.
    fn end(&mut self, take: &mut impl FnMut(String)) {
        let (line, is_cut) = (std::mem::take(&mut self.line), std::mem::take(&mut self.is_cut));
        if line.is_empty() {
            return;
        }
        let mut text = String::with_capacity(line.len());
        for character in String::from_utf8_lossy(&line).chars() {
            match character.is_control() && character != '\t' {
                true => text.extend(character.escape_default()),
                false => text.push(character),
            }
        }
        if is_cut {
            text.push('…');
        }
        take(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut cutter, mut lines) = (Cutter::default(), Vec::new());
        let mut take = |line| lines.push(line);
        pieces.iter().for_each(|piece| cutter.add(piece, &mut take));
        cutter.end(&mut take);
        lines
    }

    #[test]
    fn lines_end_where_they_say() {
        assert_eq!(lines(&[b"a\nb", b"c\n\n", b"d"]), ["a", "bc", "d"]);
        // As of a progress bar.
        assert_eq!(lines(&[b"10 %\r20 %\r\ndone\n"]), ["10 %", "20 %", "done"]);
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(lines(&[b"\x1b[2Jgone\tfar \xff\n"]), ["\\u{1b}[2Jgone\tfar \u{fffd}"]);
    }

    #[test]
    fn a_long_line_is_cut() {
        let long = vec![b'x'; 3 * LINE_BYTES];
        assert_eq!(lines(&[&long, &long, b"\nshort\n"]), [format!("{}…", "x".repeat(LINE_BYTES)), "short".to_owned()]);
    }
}
