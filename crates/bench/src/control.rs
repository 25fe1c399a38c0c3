//! A client of the daemon's control socket. A request is one line of JSON, and so is each line of
//! the response.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::{Error, Result};

/// How long a response may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// The form of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplyForm {
    /// One line.
    Line,
    /// Rows, followed by a line that ends them.
    Rows,
}

/// Sends `request` to the daemon at the socket `control`. `row` is called with each row of a
/// stream. Returns the response, or the line that ends the rows.
///
/// # Errors
/// The daemon does not respond within 20 s, or responds with an error.
pub(crate) fn ask(
    control: &Path,
    request: &Value,
    answer: ReplyForm,
    mut row: impl FnMut(&Value),
) -> Result<Value> {
    let failed = |e| Error::io(format!("ask the daemon at {}", control.display()))(e);
    let mut stream = UnixStream::connect(control).map_err(failed)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(failed)?;
    writeln!(stream, "{request}").map_err(failed)?;
    let last = match answer {
        ReplyForm::Line => "ok",
        ReplyForm::Rows => "end",
    };
    for line in BufReader::new(stream).lines() {
        let mut line: Value =
            serde_json::from_str(&line.map_err(failed)?).map_err(|e| failed(e.into()))?;
        if let Some(error) = line["error"].as_str() {
            return Err(Error::Other(format!("the daemon refused the request: {error}")));
        }
        if let Some(reply) = line.get_mut(last) {
            return Ok(reply.take());
        }
        if let Some(found) = line.get("row") {
            row(found);
        }
    }
    Err(Error::Other("the daemon closed the connection without a response".into()))
}
