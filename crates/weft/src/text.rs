//! Texts in and out.

use crate::Failure;
use anyhow::{Context, anyhow};
use std::fs::File;
use std::io::{self, Read, Write};
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

/// Writes to standard output. That nobody reads to the end is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result.context("cannot write")?),
    }
}
