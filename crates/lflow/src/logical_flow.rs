//! [`LogicalFlow`]: a logical flow as text, and its errors.

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
    /// The table in that pipeline, 0 to 63.
    pub table: u8,
    /// The priority, 0 to 65,535; the highest wins.
    pub priority: u16,
    /// The name of the stage.
    pub stage: String,
    /// The match, in OVN's language.
    pub condition: String,
    /// The actions, in OVN's language.
    pub actions: String,
    /// Where the flow was defined.
    pub source: String,
    /// The first 32 bits of the flow's UUID, shown in traces; 0 without a UUID.
    pub cookie: u64,
}

/// A logical flow that cannot be compiled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", self.describe())]
pub struct FlowError {
    /// Where the flow was defined.
    pub source_name: String,
    /// The wrong part.
    pub part: FlowPart,
    /// The text of that part.
    pub text: String,
    /// The parse error; `None` for a table number that is out of range.
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
