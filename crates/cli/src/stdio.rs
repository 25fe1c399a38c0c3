//! Reads input files and writes to standard output.

use crate::Failure;
use anyhow::{Context, anyhow};
use netdev::regular_file;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, BufWriter, ErrorKind, Read, StdoutLock, Write};
use std::path::Path;

/// The largest accepted input. A southbound database of 100,000 flows takes about 60 MiB.
const MAX_INPUT_BYTES: u64 = 1 << 30;

/// The text of a regular file, or of standard input for `-`.
///
/// # Errors
/// The file cannot be read, is not a regular file, is too large, or is not UTF-8.
pub fn read_input(path: &Path) -> Result<String, Failure> {
    let name = display_name(path);
    let mut bytes = Vec::new();
    let result = if path == Path::new("-") {
        io::stdin().take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes)
    } else {
        regular_file::open(path)
            .and_then(|file| file.take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes))
            .map_err(|error| match error.kind() {
                ErrorKind::InvalidInput => {
                    io::Error::other(format!("{error}; `-` reads a pipe from standard input"))
                }
                _ => error,
            })
    };
    result.with_context(|| format!("cannot read {name}")).map_err(Failure::Input)?;
    if bytes.len() as u64 > MAX_INPUT_BYTES {
        let limit = MAX_INPUT_BYTES >> 20;
        return Err(Failure::Input(anyhow!(
            "cannot read {name}: it is larger than {limit} MiB; split it"
        )));
    }
    String::from_utf8(bytes)
        .with_context(|| format!("cannot read {name}: it is not UTF-8 text"))
        .map_err(Failure::Input)
}

/// The name of an input file in messages.
pub fn display_name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

/// The source of a flow without its directory: `network.toml:31` for `/etc/weft/network.toml:31`.
pub fn file_name(source: &str) -> &str {
    source.rsplit_once('/').map_or(source, |(_, name)| name)
}

/// Writes `text` to standard output.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = Output::new();
    out.write(text)?;
    out.flush()
}

/// Writes `object` to standard output as indented JSON.
pub fn print_json(object: &impl Serialize) -> Result<(), Failure> {
    print(&format!("{}\n", serde_json::to_string_pretty(object)?))
}

/// `text` with its control characters, except line ends and tabs, in the form `\u001b`. A terminal
/// would interpret them, and names can come from untrusted files and databases. In JSON, the
/// escaped text has the same meaning.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_harmful = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmful(c) {
            // All control characters are below U+00A0. Writing to a String cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Buffered standard output.
pub struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    /// Locks standard output.
    pub fn new() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }

    /// Writes `text` to the buffer, with control characters escaped by [`printable`].
    ///
    /// # Errors
    /// [`Failure::OutputClosed`] when the reader of a pipe has closed it.
    pub fn write(&mut self, text: &str) -> Result<(), Failure> {
        check_write(self.0.write_all(printable(text).as_bytes()))
    }

    /// Writes `object` as one line of JSON.
    pub fn json(&mut self, object: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(object)?;
        self.write(&text)?;
        self.write("\n")
    }

    /// Writes the buffer to standard output.
    pub fn flush(&mut self) -> Result<(), Failure> {
        check_write(self.0.flush())
    }
}

/// Maps a closed pipe to [`Failure::OutputClosed`]. That is no error: programs such as `head` close
/// their input.
pub fn check_write(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::OutputClosed),
        result => Ok(result.context("cannot write the output")?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_control_the_terminal_when_they_are_printed() {
        assert_eq!(printable("vm1\tup\n"), "vm1\tup\n");
        assert_eq!(printable("vm\u{1b}[2J\u{9b}1m\r"), "vm\\u001b[2J\\u009b1m\\u000d");
        let name = "vm\u{1b}[2J\u{9b}\u{7f}";
        let text = serde_json::to_string(name).unwrap();
        assert_eq!(serde_json::from_str::<String>(&printable(&text)).unwrap(), name);
    }
}
