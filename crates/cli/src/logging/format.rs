//! The formats of log lines.

use crate::clock::Utc;
use messages::tracing::field::{Field, Visit};
use messages::{FAILED, Level, Message, PANICKED};
use serde_json::{Map, Value};
use std::fmt::{self, Write as _};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

/// The format of the log, as chosen on the command line. `docs/log-messages.md` has an example of
/// each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum LogFormat {
    #[default]
    Auto,
    Text,
    Json,
    Journald,
}

impl LogFormat {
    /// The format of lines. `Auto` selects the format by the type of standard error.
    pub fn resolve(self) -> LineFormat {
        match self {
            Self::Text => LineFormat::Text,
            Self::Json => LineFormat::Json,
            Self::Journald => LineFormat::Journald,
            Self::Auto => {
                let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
                let stderr = fs::metadata("/proc/self/fd/2");
                let stderr = stderr.map(|stderr| format!("{}:{}", stderr.dev(), stderr.ino()));
                // JOURNAL_STREAM names the device and inode of the journal's socket. A child
                // process inherits the variable but may have another standard error. So standard
                // error is the journal only if it has this device and inode.
                match stderr.is_ok_and(|stderr| stderr == named) {
                    true => LineFormat::Journald,
                    false => LineFormat::Text,
                }
            }
        }
    }
}

/// The format of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LineFormat {
    #[default]
    Text,
    Json,
    Journald,
}

/// The text of a message and its fields.
#[derive(Default)]
pub struct Fields {
    /// The identifier; empty for messages of libraries.
    pub id: String,
    text: String,
    /// Name, value for JSON, and value as text.
    fields: Vec<(&'static str, Value, String)>,
}

impl Fields {
    /// A text without fields.
    pub fn of_text(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }

    /// Adds a field.
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.fields.push((name, value.into(), value.to_owned()));
        self
    }

    fn add(&mut self, field: &Field, value: impl Into<Value>, text: String) {
        self.fields.push((field.name(), value.into(), text));
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "id" => value.clone_into(&mut self.id),
            "message" => value.clone_into(&mut self.text),
            _ => self.add(field, value, format!("{value:?}")),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value, value.to_string());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value, value.to_string());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value, value.to_string());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.text = text,
            _ => self.add(field, text.clone(), text),
        }
    }
}

impl LineFormat {
    /// A log line with its line break.
    pub fn line(self, time: SystemTime, message: &Message, fields: &Fields) -> String {
        match self {
            Self::Json => json(time, message, fields) + "\n",
            Self::Text => {
                let text = text(message, fields);
                match is_last(message) {
                    true => text + "\n",
                    false => format!("{} {:>5} {text}\n", Utc(time), message.level),
                }
            }
            // The journal stores each line as an entry, so each one needs the priority prefix.
            Self::Journald => {
                let text = text(message, fields);
                let priority = priority(message.level);
                text.lines().map(|line| format!("<{priority}>{line}\n")).collect()
            }
        }
    }
}

/// True for the error that ends a command, and for panics. As in other programs, their line is the
/// text alone, without time, level and fields.
fn is_last(message: &Message) -> bool {
    [FAILED.id, PANICKED.id].contains(&message.id)
}

/// The severity of syslog.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// The text of a message, its fields and its identifier on one line, such as
/// `port is up port=vm1 id=port-up`. A message of [`is_last`] is its text, with its line breaks.
fn text(message: &Message, fields: &Fields) -> String {
    if is_last(message) {
        return printable(&fields.text);
    }
    // A name from a database may contain a line break. Unescaped, its rest could imitate a message.
    let mut line = one_line(&fields.text);
    let all = fields.fields.iter().map(|(name, _, text)| (*name, one_line(text)));
    for (name, value) in all.chain([("id", message.id.to_owned())]) {
        let space = if line.is_empty() { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = write!(line, "{space}{name}={value}");
    }
    line
}

/// Text on one line, with line breaks and control characters escaped.
fn one_line(text: &str) -> String {
    printable(text).replace('\n', "\\n")
}

/// Text with control characters escaped, because a terminal would interpret them. Line breaks and
/// tabs stay.
fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => out.push(character),
            control if control.is_control() => out.extend(control.escape_default()),
            other => out.push(other),
        }
    }
    out
}

/// A JSON object with `time`, `level`, `id` and `message`, then the fields. Leaves out a field that
/// has one of these names.
fn json(time: SystemTime, message: &Message, fields: &Fields) -> String {
    let mut object = Map::new();
    object.insert("time".to_owned(), Utc(time).to_string().into());
    object.insert("level".to_owned(), message.level.as_str().to_lowercase().into());
    object.insert("id".to_owned(), message.id.into());
    object.insert("message".to_owned(), fields.text.as_str().into());
    for (name, value, _) in &fields.fields {
        object.entry(*name).or_insert_with(|| value.clone());
    }
    Value::Object(object).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use messages::{PORT_DOWN, PORT_UP};
    use std::time::Duration;

    fn fields() -> Fields {
        let mut fields = Fields::of_text("port is up");
        fields.fields.push(("port", "vm\u{1b}1".into(), "vm\u{1b}1".to_owned()));
        fields.fields.push(("mtu", 1500.into(), "1500".to_owned()));
        fields
    }

    fn line(format: LineFormat, message: &Message, fields: &Fields) -> String {
        format.line(SystemTime::UNIX_EPOCH + Duration::from_millis(1), message, fields)
    }

    #[test]
    fn each_format_has_the_identifier_and_the_fields() {
        assert_eq!(
            line(LineFormat::Text, &PORT_UP, &fields()),
            "1970-01-01T00:00:00.001000Z  INFO port is up port=vm\\u{1b}1 mtu=1500 id=port-up\n"
        );
        assert_eq!(
            line(LineFormat::Journald, &PORT_DOWN, &fields()),
            "<4>port is up port=vm\\u{1b}1 mtu=1500 id=port-down\n"
        );
        let object: Value =
            serde_json::from_str(&line(LineFormat::Json, &PORT_UP, &fields())).unwrap();
        let expected = serde_json::json!({
            "time": "1970-01-01T00:00:00.001000Z", "level": "info", "id": "port-up",
            "message": "port is up", "port": "vm\u{1b}1", "mtu": 1500,
        });
        assert_eq!(object, expected);
    }

    #[test]
    fn several_lines_stay_one_object_and_all_have_a_priority() {
        let fields = Fields::of_text("weft: two\nlines");
        assert_eq!(line(LineFormat::Text, &FAILED, &fields), "weft: two\nlines\n");
        assert_eq!(line(LineFormat::Journald, &FAILED, &fields), "<3>weft: two\n<3>lines\n");
        assert_eq!(line(LineFormat::Json, &FAILED, &fields).lines().count(), 1);
    }

    #[test]
    fn standard_error_of_a_test_is_not_the_journal() {
        assert_eq!(LogFormat::Auto.resolve(), LineFormat::Text);
        assert_eq!(LogFormat::Json.resolve(), LineFormat::Json);
    }
}
