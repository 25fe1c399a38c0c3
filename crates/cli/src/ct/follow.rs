//! `weft ct --follow`: connections that open, change or end.

use super::describe;
use crate::Failure;
use crate::control::replies::{ConnectionRow, ConnectionTotals};
use crate::control::{ConnectionFilter, Request, Stream};
use crate::stdio::Output;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

/// The polling interval.
const INTERVAL: Duration = Duration::from_secs(1);

/// Connections. The key is a text with zone, protocol and the addresses of both directions.
type Connections = HashMap<String, ConnectionRow>;

/// The event of a connection between two polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    New,
    /// Its state, mark or label differs from that of the previous poll.
    Changed,
    Ended,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Changed => "changed",
            Self::Ended => "ended",
        }
    }
}

/// Prints the events of the connections that `filter` selects, until interrupted.
///
/// # Errors
/// The daemon does not reply, or the output is closed.
pub(super) fn follow(path: &PathBuf, filter: &ConnectionFilter, json: bool) -> Result<(), Failure> {
    let mut before = connections(path, filter)?;
    let mut out = Output::new();
    let count = before.len();
    if json {
        out.json(&json!({ "following": count }))?;
    } else {
        out.write(&format!("following {count} connections\n"))?;
    }
    out.flush()?;
    loop {
        std::thread::sleep(INTERVAL);
        let now = connections(path, filter)?;
        for (event, row) in events(&before, &now) {
            print(event, row, json, &mut out)?;
        }
        out.flush()?;
        before = now;
    }
}

fn connections(path: &PathBuf, filter: &ConnectionFilter) -> Result<Connections, Failure> {
    let request = Request::Connections { filter: filter.clone() };
    let (_, stream): (Value, _) = Stream::open(path, &request)?;
    let mut all = Connections::new();
    let _: ConnectionTotals = stream.all(|row: ConnectionRow| {
        let ConnectionRow { zone, protocol, original, reply, .. } = &row;
        let id = serde_json::to_string(&(zone, protocol, original, reply))?;
        all.insert(id, row);
        Ok(())
    })?;
    Ok(all)
}

/// Compares two polls. Ended connections come first.
fn events<'a>(before: &'a Connections, now: &'a Connections) -> Vec<(Event, &'a ConnectionRow)> {
    let ended = before.iter().filter(|(id, _)| !now.contains_key(*id));
    let ended = ended.map(|(_, row)| (Event::Ended, row));
    let others = now.iter().filter_map(|(id, row)| match before.get(id) {
        None => Some((Event::New, row)),
        Some(previous)
            if (&previous.state, previous.mark, &previous.label)
                != (&row.state, row.mark, &row.label) =>
        {
            Some((Event::Changed, row))
        }
        Some(_) => None,
    });
    ended.chain(others).collect()
}

fn print(event: Event, row: &ConnectionRow, json: bool, out: &mut Output) -> Result<(), Failure> {
    if json {
        return out.json(&json!({ "event": event.name(), "connection": row }));
    }
    out.write(&format!("{:<8}{}", event.name(), describe(row)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;

    #[test]
    fn events_are_what_differs_between_two_looks() {
        let look = |rows: &[(&str, &str)]| -> Connections {
            rows.iter().map(|&(id, state)| (id.to_owned(), row(state))).collect()
        };
        let before = look(&[("a", "SYN_SENT"), ("b", "ESTABLISHED"), ("c", "ESTABLISHED")]);
        let now = look(&[("a", "ESTABLISHED"), ("b", "ESTABLISHED"), ("d", "SYN_SENT")]);
        let mut seen: Vec<_> = events(&before, &now)
            .into_iter()
            .map(|(event, row)| format!("{} {}", event.name(), row.state))
            .collect();
        assert_eq!(seen.remove(0), "ended ESTABLISHED");
        seen.sort();
        assert_eq!(seen, ["changed ESTABLISHED", "new SYN_SENT"]);
        assert_eq!(events(&now, &now), []);
        let marked =
            |mark| Connections::from([("a".to_owned(), ConnectionRow { mark, ..row("x") })]);
        let (before, now) = (marked(1), marked(2));
        assert_eq!(events(&before, &now), [(Event::Changed, &now["a"])]);
    }
}
