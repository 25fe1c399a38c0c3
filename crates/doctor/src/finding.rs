//! What the doctor says: one line for each thing it has looked at.

use crate::mend::Action;
use serde::{Serialize, Serializer};
use std::fmt;

/// How bad it is, from best to worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Pass,
    /// It works, and costs more than it has to, or could not be looked at.
    Warn,
    /// Packets are lost, or weft cannot run.
    Fail,
}

impl Level {
    /// As it is printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        }
    }

    /// The exit code of a program whose worst finding this is.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Warn => 1,
            Self::Fail => 2,
        }
    }
}

/// How something is mended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mend {
    /// Safe, and undone as easily: `weft doctor --fix` does it.
    Safe(Vec<Action>),
    /// Somebody has to decide: a command, or what to write where.
    Command(String),
}

impl Mend {
    /// One action that is safe.
    pub fn safe(action: Action) -> Self {
        Self::Safe(vec![action])
    }

    /// Actions that others on this host, or its security, may depend on: they are told, and not done.
    pub fn for_somebody_to_decide(actions: Vec<Action>) -> Self {
        Self::Command(Self::Safe(actions).command())
    }

    /// What to type.
    pub fn command(&self) -> String {
        match self {
            Self::Safe(actions) => {
                actions.iter().map(Action::command).collect::<Vec<_>>().join("; ")
            }
            Self::Command(command) => command.clone(),
        }
    }
}

impl Serialize for Mend {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut object = serializer.serialize_struct("Mend", 2)?;
        object.serialize_field("command", &self.command())?;
        object.serialize_field("safe", &matches!(self, Self::Safe(_)))?;
        object.end()
    }
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What was looked at, such as `rp_filter`: the same in every version.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// Of what: a device, or `host`.
    pub subject: String,
    /// The value seen.
    pub seen: String,
    /// Why it matters, in one sentence.
    pub why: String,
    /// How it is mended; `None` where there is nothing to mend.
    pub mend: Option<Mend>,
}

impl Finding {
    /// Something that is as it should be.
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
            mend: None,
        }
    }

    /// Something that could not be looked at, and how somebody else may look.
    pub fn unexamined(
        check: &'static str,
        subject: &str,
        error: &impl fmt::Display,
        mend: Mend,
    ) -> Self {
        let why = "whatever is wrong there is not told here";
        let seen = format!("could not be examined: {error}");
        Self::pass(check, subject, seen, why).worse(Level::Warn, mend)
    }

    /// The same, as bad as `level` says, and mended by `mend`.
    pub fn worse(self, level: Level, mend: Mend) -> Self {
        Self { level, mend: Some(mend), ..self }
    }

    /// The same with another reason.
    pub fn because(self, why: impl Into<String>) -> Self {
        Self { why: why.into(), ..self }
    }
}
