//! The limit of queues in Redis: the least programs that fill a stream, and that read one and acknowledge. They trust
//! the server's answers, and look at nothing in a message.
//!
//! ```text
//! redis-stream fill ADDRESS STREAM FILE     a message for each line of the file
//! redis-stream drain ADDRESS STREAM GROUP   all entries of a group: XREADGROUP of 10,000, then XACK of them
//! ```
//!
//! Both print how many messages there were. Two requests are always under way, so that neither side waits.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;

/// How many entries are asked for at once, and how many messages are sent before their answers are read.
const TOGETHER: usize = 10_000;

/// The buffer of each direction, in bytes.
const BUFFER: usize = 256 << 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let messages = match words[..] {
        ["fill", address, stream, file] => Link::open(address).and_then(|link| link.fill(stream, file)),
        ["drain", address, stream, group] => Link::open(address).and_then(|link| link.drain(stream, group)),
        _ => Err(io::Error::other("usage: redis-stream fill ADDRESS STREAM FILE | drain ADDRESS STREAM GROUP")),
    };
    match messages {
        Ok(messages) => {
            println!("{messages}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("redis-stream: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A connection. `line` is the last line that was read, without its end.
struct Link {
    from: BufReader<TcpStream>,
    to: TcpStream,
    line: Vec<u8>,
}

impl Link {
    fn open(address: &str) -> io::Result<Self> {
        let to = TcpStream::connect(address)?;
        to.set_nodelay(true)?;
        Ok(Link { from: BufReader::with_capacity(BUFFER, to.try_clone()?), to, line: Vec::new() })
    }

    /// Sends the lines of a file. The answers to a batch are read once the next one is sent.
    fn fill(mut self, stream: &str, file: &str) -> io::Result<usize> {
        let mut lines = BufReader::with_capacity(BUFFER, fs_err::File::open(file)?);
        let (mut batch, mut line) = (Vec::with_capacity(BUFFER), Vec::new());
        let (mut sent, mut due) = (0, 0);
        loop {
            let mut count = 0;
            while count < TOGETHER && lines.read_until(b'\n', &mut line)? > 0 {
                let body = line.strip_suffix(b"\n").unwrap_or(&line);
                command(&mut batch, &[b"XADD", stream.as_bytes(), b"*", b"body", body])?;
                line.clear();
                count += 1;
            }
            self.send(&mut batch)?;
            for _ in 0..due {
                self.text(|_| ())?;
            }
            if count == 0 {
                return Ok(sent);
            }
            (sent, due) = (sent + count, count);
        }
    }

    /// Reads all entries, and acknowledges them: the answers are those to reads, and from the third on each follows
    /// that to an acknowledgement.
    fn drain(mut self, stream: &str, group: &str) -> io::Result<usize> {
        let count = TOGETHER.to_string();
        let read = ["XREADGROUP", "GROUP", group, "reader", "COUNT", &count, "STREAMS", stream, ">"].map(str::as_bytes);
        let mut request = Vec::with_capacity(BUFFER);
        command(&mut request, &read)?;
        command(&mut request, &read)?;
        self.send(&mut request)?;
        let (mut messages, mut unconfirmed) = (0, 0);
        loop {
            if unconfirmed == 2 {
                self.number(b':')?;
                unconfirmed -= 1;
            }
            let ids = self.entries()?;
            if ids.is_empty() {
                break;
            }
            messages += ids.len();
            let start = ["XACK", stream, group].map(str::as_bytes);
            command(&mut request, &start.into_iter().chain(ids.iter().map(Vec::as_slice)).collect::<Vec<_>>())?;
            command(&mut request, &read)?;
            self.send(&mut request)?;
            unconfirmed += 1;
        }
        // The answer to the other read comes before the one to the last acknowledgement.
        for _ in 0..unconfirmed {
            self.number(b':')?;
        }
        Ok(messages)
    }

    /// The ids of the entries of an answer to XREADGROUP; their fields are passed over.
    fn entries(&mut self) -> io::Result<Vec<Vec<u8>>> {
        // Nothing is there: no list of streams at all.
        if self.number(b'*')? < 1 {
            return Ok(Vec::new());
        }
        self.number(b'*')?;
        self.text(|_| ())?;
        let count = self.number(b'*')?;
        let mut ids = Vec::with_capacity(count.unsigned_abs() as usize);
        for _ in 0..count {
            self.number(b'*')?;
            ids.push(self.text(<[u8]>::to_vec)?);
            for _ in 0..self.number(b'*')? {
                self.text(|_| ())?;
            }
        }
        Ok(ids)
    }

    fn send(&mut self, request: &mut Vec<u8>) -> io::Result<()> {
        self.to.write_all(request)?;
        request.clear();
        Ok(())
    }

    /// A text of the answer.
    fn text<T>(&mut self, take: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        let length = self.number(b'$')?.unsigned_abs() as usize;
        self.line.resize(length + 2, 0);
        self.from.read_exact(&mut self.line)?;
        Ok(take(&self.line[..length]))
    }

    /// A number of the answer, which has to be of a kind: `:` a number, `$` the bytes of a text, `*` the items of a
    /// list.
    fn number(&mut self, kind: u8) -> io::Result<i64> {
        self.line.clear();
        self.from.read_until(b'\n', &mut self.line)?;
        let line = std::str::from_utf8(&self.line).map_err(io::Error::other)?.trim_end();
        let number = line.strip_prefix(char::from(kind)).and_then(|digits| digits.parse().ok());
        number.ok_or_else(|| io::Error::other(format!("an answer begins with {line:?}")))
    }
}

/// Adds a command to a request.
fn command(request: &mut Vec<u8>, words: &[&[u8]]) -> io::Result<()> {
    write!(request, "*{}\r\n", words.len())?;
    for word in words {
        write!(request, "${}\r\n", word.len())?;
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    Ok(())
}
