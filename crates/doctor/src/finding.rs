//! Findings: the results of the checks, each with its reason and its fix.

use crate::fix::Action;
use serde::{Serialize, Serializer};
use std::fmt;

/// The severity, from best to worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No fault was found.
    Pass,
    /// It works, but costs more than necessary; or it could not be checked.
    Warn,
    /// Packets are lost, or weft cannot run.
    Fail,
}

impl Level {
    /// The name in the output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        }
    }

    /// The exit code of `weft doctor` when this is the worst severity.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Warn => 1,
            Self::Fail => 2,
        }
    }
}

/// How to fix a finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fix {
    /// Safe and easily undone: `weft doctor --fix` applies it.
    Safe(Vec<Action>),
    /// An administrator has to decide: a command, or a change of a file.
    Command(String),
}

impl Fix {
    /// One safe action.
    pub fn safe(action: Action) -> Self {
        Self::Safe(vec![action])
    }

    /// A fix that may affect other software on this host, or its security. Its actions are shown as
    /// commands, but never applied.
    pub fn needs_decision(actions: Vec<Action>) -> Self {
        Self::Command(Self::Safe(actions).command())
    }

    /// The command to type.
    pub fn command(&self) -> String {
        match self {
            Self::Safe(actions) => {
                actions.iter().map(Action::command).collect::<Vec<_>>().join("; ")
            }
            Self::Command(command) => command.clone(),
        }
    }
}

impl Serialize for Fix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut object = serializer.serialize_struct("Fix", 2)?;
        object.serialize_field("command", &self.command())?;
        object.serialize_field("safe", &matches!(self, Self::Safe(_)))?;
        object.end()
    }
}

/// The result of one check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// The name of the check, such as `rp_filter`. It is the same in every version.
    pub check: &'static str,
    /// The severity.
    pub level: Level,
    /// The subject of the check: a device, a switch, or `host`.
    pub subject: String,
    /// The value seen.
    pub seen: String,
    /// Why it matters, in one sentence.
    pub why: String,
    /// How to fix it; `None` when there is nothing to fix.
    pub fix: Option<Fix>,
}

impl Finding {
    /// A finding with severity PASS.
    pub fn pass(
        check: &'static str,
        subject: &str,
        seen: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self {
            check,
            level: Level::Pass,
            subject: subject.to_owned(),
            seen: seen.into(),
            why: why.into(),
            fix: None,
        }
    }

    /// A finding for something that could not be read, and the command that shows it.
    pub fn unreadable(
        check: &'static str,
        subject: &str,
        error: &impl fmt::Display,
        fix: Fix,
    ) -> Self {
        let why = "a fault there would not be reported";
        let seen = format!("cannot be read: {error}");
        Self::pass(check, subject, seen, why).worse(Level::Warn, fix)
    }

    /// The same finding with severity `level` and the fix `fix`.
    pub fn worse(self, level: Level, fix: Fix) -> Self {
        Self { level, fix: Some(fix), ..self }
    }

    /// The same finding with another reason.
    pub fn with_reason(self, why: impl Into<String>) -> Self {
        Self { why: why.into(), ..self }
    }
}
