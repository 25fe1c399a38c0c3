//! Texts in and out.

use crate::Failure;
use anyhow::{Context, anyhow};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Read, StdoutLock, Write};
use std::path::Path;

/// Longer texts are refused; a southbound database of 100,000 flows takes about 60 MiB.
const MAX_BYTES: u64 = 1 << 30;

/// The text of a file, or of standard input for `-`.
pub fn read(path: &Path) -> Result<String, Failure> {
    let name = name(path);
    let mut bytes = Vec::new();
    let result = if path == Path::new("-") {
        io::stdin().take(MAX_BYTES + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
    };
    result.with_context(|| format!("cannot read {name}")).map_err(Failure::Input)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Failure::Input(anyhow!("{name} is larger than {} MiB", MAX_BYTES >> 20)));
    }
    String::from_utf8(bytes).with_context(|| format!("{name} is not UTF-8")).map_err(Failure::Input)
}

/// What a file is called in messages.
pub fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

/// `/etc/weft/network.toml:31` without its folder.
pub fn file_name(source: &str) -> &str {
    source.rsplit_once('/').map_or(source, |(_, name)| name)
}

/// Writes to standard output.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = Output::new();
    out.write(text)?;
    out.flush()
}

/// Standard output, for much.
pub struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    /// Nothing is written until there is much, or [`Self::flush`].
    pub fn new() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }

    /// Writes.
    ///
    /// # Errors
    /// [`Failure::Unread`] when nobody reads any more.
    pub fn write(&mut self, text: &str) -> Result<(), Failure> {
        written(self.0.write_all(text.as_bytes()))
    }

    /// Writes an object as a line.
    pub fn json(&mut self, object: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(object)?;
        self.write(&text)?;
        self.write("\n")
    }

    /// Writes what is held back.
    pub fn flush(&mut self) -> Result<(), Failure> {
        written(self.0.flush())
    }
}

/// That nobody reads to the end is no failure.
pub fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::Unread),
        result => Ok(result.context("cannot write")?),
    }
}
