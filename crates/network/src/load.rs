//! Loads a file into a [`Network`] or its [`Errors`].

use crate::errors::ProblemCollector;
use crate::{Errors, Network, check, read};
use std::io::{ErrorKind, Read};
use std::path::Path;
use toml::de::DeTable;

/// Larger files are refused. The largest network of 32,767 ports in one switch takes about 8 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Reads a network file without checking it. Errors show `path` as its name.
///
/// # Errors
/// [`Errors`] when it cannot be read, is not a regular file, or is larger than 256 MiB.
pub fn read_file(path: &Path) -> Result<Vec<u8>, Errors> {
    let file = path.display().to_string();
    let mut bytes = Vec::new();
    netdev::regular_file::open(path)
        .and_then(|opened| opened.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| {
            let remedy = match error.kind() {
                ErrorKind::PermissionDenied => {
                    ": make it readable for the user that runs weft; a running daemon, even of \
                     root, does not override the modes of files and directories"
                }
                _ => "",
            };
            Errors::of_file(&file, format!("cannot read the file: {error}{remedy}"))
        })?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let message = format!("the file is larger than {} MiB", MAX_FILE_BYTES >> 20);
        return Err(Errors::of_file(&file, message));
    }
    Ok(bytes)
}

/// Whether two network files have the same content. Comments, spaces and the order of keys are
/// ignored. Files that are not TOML differ.
pub fn has_same_content(one: &[u8], other: &[u8]) -> bool {
    let table = |bytes| toml::from_str::<toml::Table>(str::from_utf8(bytes).ok()?).ok();
    table(one).is_some_and(|one| table(other) == Some(one))
}

impl Network {
    /// Reads and checks a file. Errors show `path` as its name.
    ///
    /// # Errors
    /// As [`read_file`] and [`Network::parse_bytes`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Errors> {
        let path = path.as_ref();
        Self::parse_bytes(&read_file(path)?, &path.display().to_string())
    }

    /// Checks the content of a file. `file_name` is its name in errors.
    ///
    /// # Errors
    /// [`Errors`] when it is not UTF-8, or as [`Network::parse`].
    pub fn parse_bytes(bytes: &[u8], file_name: &str) -> Result<Self, Errors> {
        match str::from_utf8(bytes) {
            Ok(text) => Self::parse(text, file_name),
            Err(error) => {
                let (good, rest) = bytes.split_at(error.valid_up_to());
                let good = str::from_utf8(good).unwrap_or_default();
                let mut report = ProblemCollector::new(good);
                let byte = rest.first().copied().unwrap_or_default();
                report.error(
                    good.len(),
                    format!("byte {byte:#04x} is not UTF-8; save the file as UTF-8"),
                );
                Err(report.finish(file_name))
            }
        }
    }

    /// Checks a text. `file_name` is the file name in errors.
    ///
    /// # Errors
    /// [`Errors`] with everything that is wrong. When the text is not TOML, only its syntax errors
    /// are reported.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Errors> {
        // A byte order mark does not count as a column.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut report = ProblemCollector::new(text);
        let (root, syntax_errors) = DeTable::parse_recoverable(text);
        for error in syntax_errors {
            note_syntax_error(&mut report, text, &error);
        }
        if !report.is_clean() {
            return Err(report.finish(file_name));
        }
        if root.get_ref().is_empty() {
            return Err(Errors::of_file(
                file_name,
                "the file is empty; a network needs at least one [[host]]".to_owned(),
            ));
        }
        let draft = read::network(&mut report, root.get_ref());
        let network = check::network(&mut report, draft);
        match network {
            Some(network) if report.is_clean() => Ok(network),
            _ => Err(report.finish(file_name)),
        }
    }
}

fn note_syntax_error(report: &mut ProblemCollector<'_>, text: &str, error: &toml::de::Error) {
    let Some(span) = error.span() else {
        report.file_error(error.message());
        return;
    };
    let message = match (error.message(), text.get(span.clone()).map(str::trim)) {
        ("duplicate key", Some(key)) => format!("`{key}` occurs twice; keep one"),
        (message, Some(bare)) if message.starts_with("string values must be quoted") => {
            if bare.is_empty() {
                "the value is missing; write one after the `=`".to_owned()
            } else {
                format!("{bare} is not a value; if it is a string, write \"{bare}\"")
            }
        }
        (message, _) => message.to_owned(),
    };
    report.error(span.start, message);
}
