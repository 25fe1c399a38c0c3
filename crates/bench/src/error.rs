//! Why a study could not be carried out.

use std::io;
use std::time::Duration;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a lab could not be built, traffic did not flow, or a study ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine or the user lacks something without which nothing can start. One sentence: what, and how to get it.
    #[error("{what}; {how}")]
    Missing {
        /// What is not there, such as `this needs the privilege CAP_NET_ADMIN`.
        what: String,
        /// How to get it, such as `run the command with sudo`.
        how: String,
    },
    /// SIGINT or SIGTERM arrived. Everything built so far is removed on the way out.
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
    /// A process of the lab ended, or reported failure. `output` is the end of what it printed.
    #[error("{name} {how}{}", quoted(output))]
    Process {
        /// What was started, such as `weft run --host h1`.
        name: String,
        /// What became of it, such as `ended with exit status: 1`.
        how: String,
        /// The last lines of its standard output and standard error.
        output: String,
    },
    /// Something that should have happened did not within its deadline. `detail` says what was seen instead.
    #[error("{what} did not happen within {:.1} s{}", limit.as_secs_f64(), quoted(detail))]
    Deadline {
        /// The event, such as `a ping answer from 10.0.0.21`.
        what: String,
        /// The deadline.
        limit: Duration,
        /// What was seen instead, or nothing.
        detail: String,
    },
    /// Traffic that was set up but did not flow as it must.
    #[error("{0}")]
    Traffic(String),
}

impl Error {
    /// A closure for `map_err` that adds operation and object to an [`io::Error`] (or what converts into one).
    pub(crate) fn io<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { what: what.into(), source: source.into() }
    }

    /// True when the study was ended by the user and not by a fault.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Interrupted)
    }

    /// True when nothing was started because the machine or the user lacks something (exit status 2 of the command).
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }
}

/// `text` on lines of its own behind a colon, or nothing.
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
