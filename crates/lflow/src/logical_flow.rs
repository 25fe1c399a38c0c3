//! [`LogicalFlow`]: a logical flow as text, and what can be wrong with it.

use super::error::SyntaxError;
use flow::DatapathKey;
use pipeline::Direction;
use std::fmt;

/// A logical flow as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogicalFlow {
    /// The datapaths that it applies to.
    pub datapaths: Vec<DatapathKey>,
    /// The pipeline.
    pub direction: Direction,
    /// The table in it, 0 to 63.
    pub table: u8,
    /// 0 to 65,535; higher wins.
    pub priority: u16,
    /// The name of the stage.
    pub stage: String,
    /// The match, in OVN's language.
    pub condition: String,
    /// The actions, in OVN's language.
    pub actions: String,
    /// Where it was written.
    pub source: String,
    /// Shown in traces: the first 32 bits of the flow's UUID, 0 without.
    pub cookie: u64,
}

/// A logical flow that cannot be compiled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", self.describe())]
pub struct FlowError {
    /// Where the flow was written.
    pub source_name: String,
    /// Which part of it is wrong.
    pub part: FlowPart,
    /// The text of that part.
    pub text: String,
    /// What is wrong with it.
    pub error: Option<SyntaxError>,
}

impl FlowError {
    fn describe(&self) -> String {
        let Self { source_name, part, text, error } = self;
        match error {
            Some(error) => {
                let column = text.get(..error.span.start).unwrap_or(text).chars().count() + 1;
                format!("{source_name}: {part}, column {column}: {}\n    {text}", error.message)
            }
            None => format!("{source_name}: {part} is out of range: a pipeline has tables 0 to 63"),
        }
    }
}

/// A part of a logical flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowPart {
    /// The match.
    Match,
    /// The actions.
    Actions,
    /// The number of the table.
    Table,
}

impl fmt::Display for FlowPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Match => "match",
            Self::Actions => "actions",
            Self::Table => "table",
        })
    }
}
