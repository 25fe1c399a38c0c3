//! Behaves like `test-ovsdb idl` of Open vSwitch's test suite, so that the cases of its
//! `ovsdb-idl.at` test this client. `cargo xtask ovsdb-idl` runs them.
//!
//! ```text
//! idl [-c] [-tSECONDS] idl REMOTE [STEP]...
//! ```
//!
//! After each update, it prints the replica, and then executes the next step. A step is a
//! transaction as JSON, changes of the table `simple` (`set 0 b 1, insert 2`), `condition TABLE
//! CLAUSES`, `reconnect`, `sleep` or `set-remote REMOTES`. `+` before a step omits the wait for an
//! update, `^` waits for a condition instead, and `?` prints less. `-c` prints changes in place of
//! the replica.
#![forbid(unsafe_code)]

mod changes;
mod print;
mod schema;

use ovsdb::io::Client;
use ovsdb::{Atom, Clause, Condition, Config, Event, Function, Remote, Reply, RowChange};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("idl: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The client under test, and its reports.
pub struct Idl {
    client: Client,
    deadline: Instant,
    /// The number of updates.
    updates: u64,
    /// The last condition that the server applies.
    condition: u64,
    /// The changes since the last print.
    changes: Vec<RowChange>,
    /// Prints changes instead of the replica.
    tracks: bool,
    step: usize,
}

fn run() -> Result<(), Failure> {
    let mut seconds = 60;
    let mut tracks = false;
    let mut arguments = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "-c" | "--change-track" => tracks = true,
            text if text.starts_with("-t") => seconds = text[2..].parse()?,
            // The remaining options are for logging, and `--write-changed-only`.
            text if text.starts_with('-') => {}
            _ => arguments.push(argument),
        }
    }
    let [command, remote, steps @ ..] = arguments.as_slice() else {
        return Err("usage: idl [-c] [-tSECONDS] idl REMOTE [STEP]...".into());
    };
    if command != "idl" {
        return Err(format!("the command `{command}` is not supported").into());
    }
    let remotes = Remote::parse_list(remote)?;
    let mut config = Config::new("idltest", remotes.clone());
    config.tables = schema::requests();
    let mut idl = Idl {
        client: Client::new(config, None)?,
        deadline: Instant::now() + Duration::from_secs(seconds),
        updates: 0,
        condition: 0,
        changes: Vec::new(),
        tracks,
        step: 0,
    };
    let server = Client::new(Config::new("idltest", remotes), None)?;
    idl.execute(steps, server)
}

impl Idl {
    fn execute(&mut self, steps: &[String], mut server: Client) -> Result<(), Failure> {
        let mut seen = 0;
        let mut wanted = 0;
        let mut symbols = Vec::new();
        let mut steps = steps.iter().map(String::as_str).peekable();
        if let Some(text) = steps.peek().and_then(|step| step.split_once("condition ")) {
            wanted = self.set_conditions(text.1)?;
            steps.next();
        }
        for step in steps {
            let (is_terse, step) = match step.strip_prefix('?') {
                Some(step) => (true, step),
                None => (false, step),
            };
            let step = if let Some(step) = step.strip_prefix('+') {
                step
            } else if let Some(step) = step.strip_prefix('^') {
                self.until(|idl| idl.condition >= wanted)?;
                step
            } else {
                self.until(|idl| idl.updates != seen)?;
                // All updates that have arrived belong to the same print.
                while self.drain() {}
                self.print(is_terse, self.tracks);
                step
            };
            seen = self.updates;
            if step == "sleep" {
                self.say("sleep");
                std::thread::sleep(Duration::from_secs(1));
            } else if step == "reconnect" {
                self.say("reconnect");
                self.client.session_mut().reconnect(Instant::now());
            } else if let Some(remotes) = step.strip_prefix("set-remote ") {
                self.set_remotes(remotes)?;
            } else if let Some(text) = step.strip_prefix("condition ") {
                wanted = self.set_conditions(text)?;
            } else if step.starts_with('[') {
                let reply = self.call(&mut server, step, &mut symbols)?;
                self.say(&reply);
            } else if !changes::execute(self, step)? {
                seen = 0;
            }
        }
        self.until(|idl| idl.updates != seen)?;
        self.print(false, false);
        self.say("done");
        Ok(())
    }

    /// Prints a line for this step, and continues with the next step.
    fn say(&mut self, text: &str) {
        println!("{:03}: {text}", self.step);
        self.step += 1;
    }

    fn print(&mut self, is_terse: bool, tracks: bool) {
        let changes = std::mem::take(&mut self.changes);
        let replica = self.client.session().replica();
        let lines = if tracks {
            print::changes(replica, &changes, is_terse)
        } else {
            let changes = if self.tracks { changes } else { Vec::new() };
            print::rows(replica, &changes, is_terse)
        };
        for line in lines {
            println!("{:03}: {line}", self.step);
        }
        self.step += 1;
    }

    /// Drives the client until `done` returns true.
    fn until(&mut self, mut done: impl FnMut(&Self) -> bool) -> Result<(), Failure> {
        while !done(self) {
            if Instant::now() > self.deadline {
                return Err("timed out".into());
            }
            self.next_event();
        }
        Ok(())
    }

    /// Handles the events that have arrived, without waiting. True if there may be more.
    fn drain(&mut self) -> bool {
        let event = self.client.next_event(Some(Instant::now()));
        let is_event = event.is_some();
        if let Some(event) = event {
            self.handle(event);
        }
        is_event
    }

    /// Handles an event; returns those that are not about the replica.
    fn next_event(&mut self) -> Option<Event> {
        let step = Instant::now() + Duration::from_millis(100);
        let event = self.client.next_event(Some(step))?;
        self.handle(event)
    }

    fn handle(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Update(update) => {
                self.updates += 1;
                self.changes.extend(update.changes);
                None
            }
            Event::ConditionsApplied { seqno } => {
                self.condition = seqno;
                None
            }
            Event::Disconnected { remote, reason } => {
                eprintln!("{remote}: {reason}");
                None
            }
            other => Some(other),
        }
    }

    fn set_remotes(&mut self, text: &str) -> Result<(), Failure> {
        let remotes = Remote::parse_list(text)?;
        let session = self.client.session_mut();
        session.set_remotes(Instant::now(), remotes);
        let is_connected = session.is_ready();
        self.say(&format!("new remotes: {text}, is connected: {is_connected}"));
        Ok(())
    }

    /// Sets conditions: `TABLE CLAUSES`, separated by semicolons. Returns the number to wait for.
    fn set_conditions(&mut self, text: &str) -> Result<u64, Failure> {
        let mut wanted = 0;
        let mut lines = Vec::new();
        for part in text.split(';') {
            let (table, clauses) = part.trim().split_once(' ').ok_or("a table and clauses")?;
            let condition = condition(table, &serde_json::from_str(clauses)?)?;
            let before = self.condition.max(wanted);
            wanted = self.client.session_mut().set_condition(table, condition)?;
            let is_same = wanted == before;
            let what = if is_same { "conditions unchanged" } else { "change conditions" };
            lines.push(format!("{:03}: {table}: {what}", self.step));
        }
        println!("{}", lines.join("\n"));
        self.step += 1;
        Ok(wanted)
    }

    /// Executes a transaction on a separate connection. Returns the reply as text.
    fn call(
        &mut self,
        server: &mut Client,
        text: &str,
        symbols: &mut Vec<String>,
    ) -> Result<String, Failure> {
        let mut params: Value = serde_json::from_str(text)?;
        substitute(&mut params, symbols);
        while !server.session().is_ready() {
            if Instant::now() > self.deadline {
                return Err("timed out".into());
            }
            server.next_event(Some(Instant::now() + Duration::from_millis(100)));
        }
        let wanted = server.session_mut().call("transact", &params)?;
        loop {
            match server.next_event(Some(self.deadline)) {
                Some(Event::Replied { id, reply: Reply::Result(result) }) if id == wanted => {
                    collect(&result, symbols);
                    return Ok(json!({"error": null, "result": result}).to_string());
                }
                Some(Event::Replied { id, reply }) if id == wanted => {
                    return Err(format!("transact: {reply:?}").into());
                }
                None if Instant::now() > self.deadline => return Err("timed out".into()),
                _ => {}
            }
        }
    }
}

fn condition(table: &str, clauses: &Value) -> Result<Condition, Failure> {
    let list = clauses.as_array().ok_or("a condition is an array")?;
    if list.contains(&Value::Bool(true)) {
        return Ok(Condition::all());
    }
    let clause = |clause: &Value| {
        let (column, function) = (clause[0].as_str()?, clause[1].as_str()?);
        let function = match function {
            "==" => Function::Equals,
            "!=" => Function::Differs,
            "<" => Function::Less,
            "<=" => Function::LessOrEqual,
            ">" => Function::Greater,
            ">=" => Function::GreaterOrEqual,
            "includes" => Function::Includes,
            "excludes" => Function::Excludes,
            _ => return None,
        };
        let kind = schema::kind(table, column)?;
        let value = match (&clause[2], kind) {
            // A UUID is written as a plain string in clauses.
            (Value::String(text), ovsdb::schema::AtomKind::Uuid) => Atom::Uuid(text.parse().ok()?),
            (value, kind) => Atom::from_json(kind, value)?,
        };
        Some(Clause::new(column, function, value))
    };
    let clauses: Option<Vec<_>> = list.iter().map(clause).collect();
    Ok(Condition::any(clauses.ok_or("a clause is [COLUMN, FUNCTION, VALUE]")?))
}

/// Replaces `#N#` by the UUID number N of earlier replies.
fn substitute(value: &mut Value, symbols: &[String]) {
    match value {
        Value::String(text) => {
            let number = text.strip_prefix('#').and_then(|text| text.strip_suffix('#'));
            let uuid = number.and_then(|number| symbols.get(number.parse::<usize>().ok()?));
            if let Some(uuid) = uuid {
                *text = uuid.clone();
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| substitute(value, symbols)),
        Value::Object(map) => map.values_mut().for_each(|value| substitute(value, symbols)),
        _ => {}
    }
}

/// Collects the UUIDs of a reply.
fn collect(value: &Value, symbols: &mut Vec<String>) {
    match value {
        Value::String(text) if text.parse::<ovsdb::Uuid>().is_ok() => symbols.push(text.clone()),
        Value::Array(list) => list.iter().for_each(|value| collect(value, symbols)),
        Value::Object(map) => map.values().for_each(|value| collect(value, symbols)),
        _ => {}
    }
}
