//! The errors of this crate: of the lab (two hosts and their guests, as network namespaces), of its
//! traffic, and of studies.

use std::io;
use std::time::Duration;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the lab could not be built, traffic did not flow, or a study ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine or the user does not meet a requirement; nothing was started.
    #[error("{what}; {how}")]
    Missing {
        /// What is missing, such as `this needs the privilege CAP_NET_ADMIN`.
        what: String,
        /// How to get it, such as `run the command with sudo`.
        how: String,
    },
    /// SIGINT or SIGTERM arrived. Everything built so far is removed.
    #[error("interrupted")]
    Interrupted,
    /// The kernel refused a device, an address or a namespace.
    #[error(transparent)]
    Net(#[from] netdev::Error),
    /// A file, a socket or a process of the lab failed.
    #[error("{what}: {source}")]
    Io {
        /// Operation and object.
        what: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A process of the lab ended, or reported failure.
    #[error("{name} {how}{}", quoted(output))]
    Process {
        /// What was started, such as `weft run --host h1`.
        name: String,
        /// How it ended, such as `ended with exit status: 1`.
        how: String,
        /// The last lines of its standard output and standard error.
        output: String,
    },
    /// An expected event did not happen within its deadline.
    #[error("{what} did not happen within {:.1} s{}", limit.as_secs_f64(), quoted(detail))]
    Deadline {
        /// The event, such as `a ping answer from 10.0.0.21`.
        what: String,
        /// The deadline.
        limit: Duration,
        /// What was observed instead; may be empty.
        detail: String,
    },
    /// Any other failure, described in the text.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// A closure for `map_err` that adds the operation and its object to an [`io::Error`].
    pub(crate) fn io<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { what: what.into(), source: source.into() }
    }

    /// True when SIGINT or SIGTERM ended the work.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Interrupted)
    }

    /// True when a requirement is missing and nothing was started (exit code 2).
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }
}

/// `text` on its own lines after a colon, or nothing.
fn quoted(text: &str) -> String {
    let text = text.trim_end();
    if text.is_empty() { String::new() } else { format!(":\n{text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_error_shows_the_output_when_there_is_some() {
        let error = |output: &str| {
            let how = "ended with exit status: 1".to_owned();
            Error::Process { name: "weft".into(), how, output: output.into() }.to_string()
        };
        assert_eq!(error("no such host\n"), "weft ended with exit status: 1:\nno such host");
        assert_eq!(error(""), "weft ended with exit status: 1");
    }
}
