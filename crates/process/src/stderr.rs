//! What programs write to standard error.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinHandle;

/// The most bytes of a line; the rest of it is left out.
const LINE_BYTES: usize = 2000;

/// The last lines that are kept for messages.
const KEPT_LINES: usize = 20;

/// Takes what a program writes to standard error.
pub trait Lines: Send + Sync {
    /// Takes one line, in order. Bytes that are no UTF-8 are replaced, control characters escaped.
    fn line(&self, line: &Line);
}

/// A line of standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its text, without its end.
    pub text: String,
    /// Whether it was longer.
    pub is_cut: bool,
}

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

    /// Waits until all lines of a program that has ended are there.
    pub async fn complete(&mut self) {
        if let Some(relay) = self.relay.take() {
            let _ = relay.await;
        }
    }
}

fn lock(kept: &Mutex<VecDeque<String>>) -> MutexGuard<'_, VecDeque<String>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes the lines from `stderr` on to `lines` until it ends.
pub fn relay(mut stderr: Receiver, lines: Arc<dyn Lines>) -> LastLines {
    let kept = Arc::new(Mutex::new(VecDeque::new()));
    let keep = Arc::clone(&kept);
    let relay = tokio::spawn(async move {
        let mut cutter = Cutter::default();
        let mut take = |line: Line| {
            lines.line(&line);
            let mut kept = lock(&keep);
            kept.extend([line.text]);
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
    fn add(&mut self, bytes: &[u8], take: &mut impl FnMut(Line)) {
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
    fn end(&mut self, take: &mut impl FnMut(Line)) {
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
        take(Line { text, is_cut });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<Line> {
        let (mut cutter, mut lines) = (Cutter::default(), Vec::new());
        let mut take = |line| lines.push(line);
        pieces.iter().for_each(|piece| cutter.add(piece, &mut take));
        cutter.end(&mut take);
        lines
    }

    fn whole(text: &str) -> Line {
        Line { text: text.to_owned(), is_cut: false }
    }

    #[test]
    fn lines_end_where_they_say() {
        assert_eq!(lines(&[b"a\nb", b"c\n\n", b"d"]), [whole("a"), whole("bc"), whole("d")]);
        // As of a progress bar.
        assert_eq!(lines(&[b"10 %\r20 %\r\ndone\n"]), [whole("10 %"), whole("20 %"), whole("done")]);
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(lines(&[b"\x1b[2Jgone\tfar \xff\n"]), [whole("\\u{1b}[2Jgone\tfar \u{fffd}")]);
    }

    #[test]
    fn a_long_line_is_cut() {
        let long = vec![b'x'; 3 * LINE_BYTES];
        let cut = lines(&[&long, &long, b"\nshort\n"]);
        assert_eq!(cut, [Line { text: "x".repeat(LINE_BYTES), is_cut: true }, whole("short")]);
    }
}
